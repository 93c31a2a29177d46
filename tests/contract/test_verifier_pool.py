"""The pool with real worker processes and verifiers that misbehave."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from rolloutpipe_core.config.models import RewardConfig
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput, VerifierFailure
from rolloutpipe_core.rewards.pool import VerifierPool, _even_slices
from rolloutpipe_core.rewards.score import Score

PROMPT = Prompt(id="p-0", answer="B", text="dBaDbB?a=", metadata={"hops": "2"})
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def obeying(**settings) -> RewardConfig:
    return RewardConfig(**{"verifier": "misbehaving:obey", "deadline_s": 30.0, **settings})


def score(config: RewardConfig, *batches: list[str], prompt: Prompt = PROMPT) -> list[list[Score]]:
    async def run():
        async with VerifierPool(config) as pool:
            return [await pool.score(prompt, batch) for batch in batches]

    return asyncio.run(run())


def is_alive(pid: int) -> bool:
    """Whether it lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pid: int) -> None:
    end = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < end, f"process {pid} lives on"
        time.sleep(0.02)


def test_scores_come_in_the_order_of_the_responses():
    ((*scores,),) = score(RewardConfig(verifier="pointer_walk"), ["#B", "#D", "aDdBbB#B", ""])
    assert [one.value for one in scores] == [1.0, 0.0, 1.0, 0.0]
    assert scores[1].reason == "answered D, not B"
    assert scores[0].reason is None


def test_no_response_no_score():
    assert score(RewardConfig(), []) == [[]]


@pytest.mark.parametrize("workers", [2, 3])
def test_responses_are_spread_over_the_workers(workers):
    ((*scores,),) = score(obeying(workers=workers), [f"value 0.{i}" for i in range(8)])
    assert [one.value for one in scores] == [i / 10 for i in range(8)]
    ((*pids,),) = score(obeying(workers=workers), ["pid"] * 8)
    assert len({one.reason for one in pids}) <= workers


@pytest.mark.parametrize(
    ("count", "slices"),
    [(1, ["abcde"]), (2, ["ab", "cde"]), (3, ["a", "bc", "de"]), (7, ["a", "b", "c", "d", "e"])],
)
def test_slices_are_even(count, slices):
    assert ["".join(part) for part in _even_slices(list("abcde"), count)] == slices
    assert _even_slices([], count) == []


def test_many_groups_at_once():
    async def run():
        async with VerifierPool(RewardConfig(workers=2)) as pool:
            return await asyncio.gather(*(pool.score(PROMPT, ["#B", "#D"]) for _ in range(50)))

    assert [[one.value for one in scores] for scores in asyncio.run(run())] == [[1.0, 0.0]] * 50


def test_a_prompt_arrives_whole():
    chat = Prompt(id="p-1", answer="4", messages=({"role": "user", "content": "ü\ud800?"},))
    ((one,),) = score(obeying(), ["prompt"])
    assert one.reason == "p-0 B dBaDbB?a= None {'hops': '2'}"
    ((one,),) = score(obeying(), ["prompt"], prompt=chat)
    assert one.reason == "p-1 4 None ({'role': 'user', 'content': 'ü\\ud800?'},) {}"


@pytest.mark.parametrize("command", ["hang", "spin"])
def test_over_the_deadline_scores_0_and_the_rest_goes_on(command):
    first, second = score(obeying(deadline_s=2.0), ["fine", command, "fine"], ["fine"])
    assert [one.value for one in first] == [1.0, 0.0, 1.0]
    assert first[1].reason == "over the deadline of 2 s"
    assert second[0].value == 1.0


def test_the_deadline_is_each_responses_own():
    ((*scores,),) = score(obeying(deadline_s=2.0), ["slow 0.6"] * 5)
    assert [one.value for one in scores] == [1.0] * 5


def test_what_a_verifier_started_ends_with_it(tmp_path):
    ((one,),) = score(obeying(deadline_s=3.0), [f"child {tmp_path / 'pid'}"])
    assert one.value == 0.0
    await_end(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("raise no such luck", "the verifier raised ValueError: no such luck"),
        ("exit now", "the verifier raised SystemExit: now"),
        ("recurse", "the verifier raised RecursionError: maximum recursion depth exceeded"),
        ("value nan", "the verifier returned the value nan, not one in [0, 1]"),
        ("value inf", "the verifier returned the value inf, not one in [0, 1]"),
        ("value 1.001", "the verifier returned the value 1.001, not one in [0, 1]"),
        ("value -0.1", "the verifier returned the value -0.1, not one in [0, 1]"),
        ("none", "the verifier returned NoneType, not a Score"),
        ("text", "the verifier returned the value '1', not one in [0, 1]"),
        ("memory", "its worker ended 2 times: out of memory (1024 MiB)"),
        ("die", "its worker ended 2 times: exit status 3"),
        ("segfault", "its worker ended 2 times: killed by SIGSEGV"),
    ],
)
def test_what_the_response_causes_scores_0_with_a_reason(command, reason):
    ((before, one, after),) = score(obeying(memory_mb=1024, infrastructure_retries=1), ["fine", command, "fine"])
    assert one.value == 0.0
    assert one.reason.startswith(reason)
    assert [before.value, after.value] == [1.0, 1.0]


@pytest.mark.parametrize("command", ["die-once", "memory-once"])
def test_what_does_not_repeat_itself_is_not_the_responses_doing(command, tmp_path):
    ((*scores,),) = score(obeying(memory_mb=1024), ["fine", f"{command} {tmp_path / 'mark'}", "fine"])
    assert [one.value for one in scores] == [1.0] * 3


def test_a_worker_that_died_idle_is_replaced():
    async def run():
        async with VerifierPool(obeying()) as pool:
            (first,) = await pool.score(PROMPT, ["pid"])
            os.kill(int(first.reason), signal.SIGKILL)
            (second,) = await pool.score(PROMPT, ["pid"])
            return first.reason, second.reason

    first, second = asyncio.run(run())
    assert first != second


def test_without_retries_an_idle_death_is_a_failure():
    async def run():
        async with VerifierPool(obeying(infrastructure_retries=0)) as pool:
            (one,) = await pool.score(PROMPT, ["pid"])
            os.kill(int(one.reason), signal.SIGKILL)
            with pytest.raises(VerifierFailure, match="lost 1 workers before they began; given: killed by SIGKILL"):
                await pool.score(PROMPT, ["fine"])
            return await pool.score(PROMPT, ["fine"])

    assert asyncio.run(run())[0].value == 1.0


def test_a_worker_that_never_starts_is_a_failure(tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(
        "import os\nwith open(__file__.replace('fragile.py', 'starts'), 'a') as f:\n    f.write('x')\nos._exit(4)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(VerifierFailure, match="cannot start a worker; given: exit status 4"):
        score(RewardConfig(verifier="fragile:verify"), ["fine"])
    assert (tmp_path / "starts").read_text() == "xxx"  # the first try and two retries


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("no_such_module:verify", "no_such_module:verify in .*ModuleNotFoundError: No module named 'no_such_module'"),
        ("misbehaving:no_such_function", "misbehaving:no_such_function in .*AttributeError"),
        ("misbehaving:not_a_function", "not_a_function is not a function"),
    ],
)
def test_a_verifier_that_cannot_be_loaded_is_bad_input(verifier, reason):
    with pytest.raises(BadInput, match=f"cannot load the verifier; given: .*{reason}.*rewards.verifier"):
        score(RewardConfig(verifier=verifier), ["fine"])


@pytest.mark.parametrize("verifier", ["maths", "module.verify", "a b:verify", ":verify", "module:", "m:f:g", "os;x:y"])
def test_what_is_no_verifiers_name_is_refused(verifier):
    with pytest.raises(ValueError, match="verifier"):
        RewardConfig(verifier=verifier)


def test_what_a_verifier_prints_and_reads_stays_out_of_the_protocol():
    ((*scores,),) = score(obeying(), ["print a", "read", "print b", "fine"])
    assert [one.value for one in scores] == [1.0, 0.5, 1.0, 1.0]
    assert scores[1].reason == "''"


def test_large_responses_pass():
    text = "x" * 3_000_000
    ((*scores,),) = score(RewardConfig(), [text + "#B", text, "#B"])
    assert [one.value for one in scores] == [1.0, 0.0, 1.0]


def test_workers_hold_no_torch_though_this_process_does():
    torch.ones(8, 8) @ torch.ones(8, 8)
    ((one,),) = score(obeying(), ["modules"])
    assert one.reason == ""


def test_a_loop_that_is_held_up_makes_no_response_late():
    async def run():
        async with VerifierPool(obeying(deadline_s=1.0)) as pool:
            scoring = asyncio.create_task(pool.score(PROMPT, ["slow 0.1", "fine"]))
            await asyncio.sleep(0)
            time.sleep(2.5)
            return await scoring

    assert [one.value for one in asyncio.run(run())] == [1.0, 1.0]


def test_closing_ends_what_is_in_flight_and_every_worker():
    async def run():
        async with VerifierPool(obeying(workers=2)) as pool:
            pids = await pool.score(PROMPT, ["pid"] * 2)
            scoring = asyncio.create_task(pool.score(PROMPT, ["hang"] * 3))
            waiting = asyncio.create_task(pool.score(PROMPT, ["fine"] * 2))
            await asyncio.sleep(0.3)
        results = await asyncio.gather(scoring, waiting, return_exceptions=True)
        pool.close()
        return [int(one.reason) for one in pids], results

    pids, results = asyncio.run(run())
    assert [type(result) for result in results] == [VerifierFailure] * 2
    assert "was closed" in str(results[0])
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("last", ["hang", "fine"])
def test_workers_die_with_the_pools_process(last, tmp_path):
    program = f"""
        import asyncio, sys
        from rolloutpipe_core.config.models import RewardConfig
        from rolloutpipe_core.domain import Prompt
        from rolloutpipe_core.rewards.pool import VerifierPool

        async def main():
            prompt = Prompt(id="p", answer="", text="")
            async with VerifierPool(RewardConfig(verifier="misbehaving:obey", deadline_s=3000)) as pool:
                print((await pool.score(prompt, ["pid"]))[0].reason, flush=True)
                await pool.score(prompt, [{last!r}])
                await asyncio.sleep(3600)

        asyncio.run(main())
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    worker = int(owner.stdout.readline())
    assert is_alive(worker)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await_end(worker)


def test_math_in_a_worker():
    prompt = Prompt(id="g-0", answer="72", text="q")
    ((*scores,),) = score(
        RewardConfig(verifier="math", deadline_s=3), ["#### 72.0", r"\boxed{71}", "9**9**9**9"], prompt=prompt
    )
    assert [one.value for one in scores] == [1.0, 0.0, 0.0]
