import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from rolloutpipe_components.rollout.engine import Engine
from rolloutpipe_components.rollout.engines.torch import TorchEngine
from safetensors.torch import load_file, save_file

from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason, WeightVersion
from rolloutpipe_core.errors import BadInput, EngineFailure

Folders = Callable[..., Path]
V0, V1 = WeightVersion(0, "a" * 64), WeightVersion(1, "b" * 64)
SAMPLING = SamplingConfig(max_new_tokens=20)
# Longer than any test waits: 150 tokens of a sample that no eos ends (top_k leaves it out).
LONG = SamplingConfig(max_new_tokens=150, top_k=1)
PROMPT = [5, 6, 7]


def run(work: Callable[[], Awaitable[None]]) -> None:
    """A wait that nobody ends fails the test instead of hanging it."""
    asyncio.run(asyncio.wait_for(work(), timeout=120))


@asynccontextmanager
async def engine_of(folder: Path, slots: int = 4, load: bool = True) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(EngineConfig(slots=slots), ModelConfig(path=str(folder)))
    try:
        if load:
            await engine.load(V0, folder)
        yield engine
    finally:
        await engine.close()


def rewritten(folder: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of a version's weights with some tensors changed, as two shards."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    out.mkdir()
    names = sorted(tensors)
    for shard, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, out / f"model-{shard}.safetensors")
    return out


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.response_ids.tolist() for completion in completions]


def test_it_is_an_engine(folders: Folders) -> None:
    engine: Engine = TorchEngine(EngineConfig(), ModelConfig(path="unused"))
    asyncio.run(engine.close())


def test_completions_come_in_the_order_of_the_seeds_and_do_not_depend_on_other_calls(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders()) as engine:
            alone = await engine.generate(PROMPT, SAMPLING, [1, 2, 3, 4, 5, 6], 0)
            calls = [engine.generate(PROMPT, SAMPLING, seeds, 0) for seeds in ([6, 5], [4, 3], [2, 1])]
            together = [completion for call in await asyncio.gather(*calls) for completion in call]
            assert ids(together) == ids(alone)[::-1]

    run(work)


def test_a_new_version_changes_tokens_and_spans(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders(seed=0)) as engine:
            old = await engine.generate(PROMPT, SAMPLING, [1, 2], 0)
            await engine.load(V1, folders(seed=1))
            assert engine.version == V1
            new = await engine.generate(PROMPT, SAMPLING, [1, 2], 0)
            await engine.load(V0, folders(seed=0))
            again = await engine.generate(PROMPT, SAMPLING, [1, 2], 0)
        assert ids(old) == ids(again) != ids(new)
        for completions, version in ((old, V0), (new, V1), (again, V0)):
            for completion in completions:
                (span,) = completion.spans
                assert span == (version, 0, len(completion.response_ids))
        async with engine_of(folders(seed=1)) as fresh:
            assert ids(await fresh.generate(PROMPT, SAMPLING, [1, 2], 0)) == ids(new)

    run(work)


def test_weights_of_another_dtype_are_cast(folders: Folders, tmp_path: Path) -> None:
    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    async def work() -> None:
        async with engine_of(folders()) as engine:
            await engine.load(V1, rewritten(folders(), tmp_path / "bf16", halve))
            (completion,) = await engine.generate(PROMPT, SAMPLING, [1], 0)
            assert torch.isfinite(torch.from_numpy(completion.behavior_logprobs)).all()

    run(work)


EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(NORM), "misses model.norm.weight"),
        (lambda tensors: tensors.pop(EMBEDDING), "misses lm_head.weight, model.embed_tokens.weight"),
        (lambda tensors: tensors.update({"extra": torch.zeros(1)}), "has unknown extra"),
        (lambda tensors: tensors.update({NORM: torch.zeros(5)}), "has other shapes of model.norm.weight"),
        (lambda tensors: tensors.update({HEAD: tensors[EMBEDDING] + 1}), "tied weights differ"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_next_load_mends_it(
    folders: Folders, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    async def work() -> None:
        async with engine_of(folders()) as engine:
            expected = await engine.generate(PROMPT, SAMPLING, [1], 0)
            with pytest.raises(EngineFailure, match=words):
                await engine.load(V1, rewritten(folders(), tmp_path / "broken", change))
            assert engine.version is None
            with pytest.raises(EngineFailure, match="no weights"):
                await engine.generate(PROMPT, SAMPLING, [1], 0)
            assert engine.spare_slots() == 4
            await engine.load(V1, folders())
            assert ids(await engine.generate(PROMPT, SAMPLING, [1], 0)) == ids(expected)

    run(work)


def test_a_tied_tensor_may_be_given_under_both_names(folders: Folders, tmp_path: Path) -> None:
    def both(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()

    async def work() -> None:
        async with engine_of(folders()) as engine:
            await engine.load(V1, rewritten(folders(), tmp_path / "both", both))
            assert engine.version == V1

    run(work)


def test_a_first_load_without_all_weights_is_refused(folders: Folders, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "config.json").write_bytes((folders() / "config.json").read_bytes())
    tensors = load_file(folders() / "model.safetensors")
    del tensors[NORM]
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})

    async def work() -> None:
        async with engine_of(folders(), load=False) as engine:
            with pytest.raises(EngineFailure, match="no weights"):
                await engine.generate(PROMPT, SAMPLING, [1], 0)
            with pytest.raises(EngineFailure, match="cannot be loaded"):
                await engine.load(V0, tmp_path)
            with pytest.raises(EngineFailure, match=r"weights are missing.*model\.norm\.weight"):
                await engine.load(V0, partial)
            await engine.load(V0, folders())
            await engine.generate(PROMPT, SAMPLING, [1], 0)

    run(work)


def test_a_failing_step_fails_all_calls_and_leaves_a_clear_engine(folders: Folders, tmp_path: Path) -> None:
    def poison(tensors: dict[str, torch.Tensor]) -> None:
        tensors[NORM].fill_(torch.nan)

    async def work() -> None:
        async with engine_of(folders(), slots=2) as engine:
            expected = await engine.generate(PROMPT, SAMPLING, [1, 2], 0)
            await engine.load(V1, rewritten(folders(), tmp_path / "nan", poison))
            calls = [engine.generate(PROMPT, SAMPLING, [1, 2, 3], priority) for priority in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, EngineFailure) and "not finite" in str(result) for result in results)
            assert engine.spare_slots() == 2
            with pytest.raises(EngineFailure, match="not finite"):
                await engine.generate(PROMPT, SAMPLING, [1], 0)
            await engine.load(V0, folders())
            assert ids(await engine.generate(PROMPT, SAMPLING, [1, 2], 0)) == ids(expected)

    run(work)


def test_spare_slots_count_what_runs_and_what_waits(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders(), slots=4) as engine:
            assert engine.spare_slots() == 4
            calls = [asyncio.create_task(engine.generate(PROMPT, LONG, [1, 2, 3], 0))]
            await asyncio.sleep(0)
            assert engine.spare_slots() == 1
            calls.append(asyncio.create_task(engine.generate(PROMPT, LONG, [4, 5], 0)))
            await asyncio.sleep(0)
            assert engine.spare_slots() == 0
            await asyncio.gather(*calls)
            assert engine.spare_slots() == 4

    run(work)


def test_a_groups_tail_shows_its_spare_slots(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders(), slots=4) as engine:
            tail = asyncio.create_task(engine.generate(PROMPT, LONG, [1], 0))
            await engine.generate(PROMPT, SamplingConfig(max_new_tokens=1), [1, 2, 3], 0)
            assert not tail.done()
            assert engine.spare_slots() == 3
            await tail

    run(work)


def test_cancelling_a_call_frees_its_slots_and_its_place_in_the_queue(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders(), slots=2) as engine:
            expected = await engine.generate(PROMPT, SAMPLING, [7], 0)
            running = asyncio.create_task(engine.generate(PROMPT, LONG, [1, 2, 3], 0))
            waiting = asyncio.create_task(engine.generate(PROMPT, LONG, [4], 1))
            await asyncio.sleep(0)
            for call in (running, waiting):
                call.cancel()
            for call in (running, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await call
            assert ids(await engine.generate(PROMPT, SAMPLING, [7], 9)) == ids(expected)
            assert engine.spare_slots() == 2
            # Nothing is in flight: loading is allowed.
            await engine.load(V1, folders())

    run(work)


def test_weights_are_not_changed_under_a_call_in_flight(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders()) as engine:
            call = asyncio.create_task(engine.generate(PROMPT, LONG, [1], 0))
            await asyncio.sleep(0)
            with pytest.raises(EngineFailure, match="1 calls in flight"):
                await engine.load(V1, folders(seed=1))
            (completion,) = await call
            assert completion.spans[0].version == V0
            assert completion.finish_reason is FinishReason.LENGTH

    run(work)


def test_closing_fails_what_is_in_flight_and_all_later_calls(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders(), slots=1) as engine:
            calls = [asyncio.create_task(engine.generate(PROMPT, LONG, [1, 2], 0)) for _ in range(3)]
            await asyncio.sleep(0)
            await engine.close()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, EngineFailure) and "closed" in str(result) for result in results)
            with pytest.raises(EngineFailure, match="closed"):
                await engine.generate(PROMPT, SAMPLING, [1], 0)
            with pytest.raises(EngineFailure, match="closed"):
                await engine.load(V1, folders())

    run(work)


@pytest.mark.parametrize(
    ("prompt", "sampling", "seeds", "words"),
    [
        ([], SAMPLING, [1], "0 prompt ids"),
        (PROMPT, SAMPLING, [], "0 seeds"),
        ([5, 61], SAMPLING, [1], "prompt id.*given: 61; expected: 0 to 60"),
        ([5, -1], SAMPLING, [1], "given: -1"),
        (PROMPT, SamplingConfig(stop_ids=(99,)), [1], "stop id.*given: 99"),
        ([5] * 100, SamplingConfig(max_new_tokens=61), [1], "100 prompt tokens.*61; expected: at most 160"),
        (PROMPT, SAMPLING, [1 << 128], "128-bit"),
        (PROMPT, SAMPLING, [-1], "128-bit"),
    ],
)
def test_calls_that_the_model_cannot_take_are_refused_before_they_reach_it(
    folders: Folders, prompt: list[int], sampling: SamplingConfig, seeds: list[int], words: str
) -> None:
    async def work() -> None:
        async with engine_of(folders()) as engine:
            with pytest.raises(BadInput, match=words):
                await engine.generate(prompt, sampling, seeds, 0)
            assert engine.spare_slots() == 4
            assert engine.statistics.prefills == 0

    run(work)


def test_the_longest_allowed_response_fits(folders: Folders) -> None:
    async def work() -> None:
        async with engine_of(folders()) as engine:
            (completion,) = await engine.generate([5] * 100, SamplingConfig(max_new_tokens=60, top_k=1), [1], 0)
            assert len(completion.response_ids) <= 60

    run(work)
