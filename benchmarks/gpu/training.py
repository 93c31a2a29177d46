"""The trainer process: `python -m rolloutpipe_benchmarks.gpu.training FOLDER DEVICE`; standard input has references."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from rolloutpipe_components.trainer.trainer import UpdateResult
from transformers.utils.logging import disable_progress_bar

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import Group, GroupRef, group_id
from rolloutpipe_core.errors import Damaged
from rolloutpipe_core.gate import Expectation, why_altered, why_rejected
from rolloutpipe_core.schedule import Finish, Step, Take, TrainerView, next_action
from rolloutpipe_core.store.groups import decode_group

from .setup import RUN, K, Lines, configure, peak_memory_gib, tell, version_of, vocabulary_of, weights_of

FETCHERS = 2


@dataclass(slots=True)
class Round:
    """What the trainer knows of the round in progress."""

    number: int
    schedule: ScheduleConfig
    arriving: dict[int, Future[tuple[Group, float]]] = field(default_factory=dict)
    ready: dict[int, Group] = field(default_factory=dict)
    drained: bool = False
    accumulated: int = 0
    latencies_s: list[float] = field(default_factory=list)  # from materialized to verified
    results: list[UpdateResult] = field(default_factory=list)
    busy_s: float = 0.0
    blocked_s: float = 0.0  # only fetching and verifying kept the trainer waiting

    @property
    def view(self) -> TrainerView:
        return TrainerView(tuple(self.ready), self.accumulated, self.drained, tuple(self.arriving))


class RoundTrainer:
    """Trains rounds as the service does: `next_action` decides."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        self._trainer = TorchTrainer.of(configure(device, "serial", 1), weights_of(folder, 0))
        self._vocabulary = vocabulary_of(weights_of(folder, 0))

    def run(self, lines: Lines) -> None:
        with ThreadPoolExecutor(FETCHERS) as fetchers:
            while (order := lines.wait()) is not None:
                tell({"ready": order["round"]})
                config = configure(self._device, order["schedule"], order["new_tokens"])
                round = Round(order["round"], config.schedule)
                self._train(round, lines, fetchers)
                self._publish(round)

    def _train(self, round: Round, lines: Lines, fetchers: ThreadPoolExecutor) -> None:
        trainer = self._trainer
        trainer.begin_round()
        trainer.begin_update(0)
        while not isinstance(action := self._next(round, lines, fetchers), Finish):
            began = time.monotonic()
            if isinstance(action, Take):
                trainer.accumulate([round.ready.pop(index) for index in action.indices])
                round.accumulated += len(action.indices)
                round.busy_s += time.monotonic() - began
            elif isinstance(action, Step):
                round.results.append(trainer.step())
                trainer.begin_update(len(round.results))
                round.accumulated = 0
                round.busy_s += time.monotonic() - began
            else:
                held_up = isinstance(next_action(round.view.all_ready(), round.schedule), Take | Step)
                lines.pause()
                round.blocked_s += held_up * (time.monotonic() - began)

    def _next(self, round: Round, lines: Lines, fetchers: ThreadPoolExecutor) -> object:
        """Take in what has come, then decide."""
        for line in lines.take():
            if told := line.get("group"):
                round.arriving[told["index"]] = fetchers.submit(self._fetch, round.number, told)
            else:
                round.drained = True
        for index in [index for index, future in round.arriving.items() if future.done()]:
            round.ready[index], latency_s = round.arriving.pop(index).result()
            round.latencies_s.append(latency_s)
        return next_action(round.view, round.schedule)

    def _fetch(self, round: int, told: dict[str, Any]) -> tuple[Group, float]:
        """The verified group, and the seconds since it was materialized. Raises Damaged."""
        data = Path(told["path"]).read_bytes()
        group, version = decode_group(data), version_of(round)
        facts = (told["object"], told["sha256"], K, told["tokens"], 0.0, 0.0)
        ref = GroupRef(group_id(round, told["index"]), round, told["index"], 1, 1, version, *facts)
        expected = Expectation(RUN, 1, version, K, 1, self._vocabulary)
        if reason := why_altered(data, ref) or why_rejected(group, ref, expected):
            raise Damaged(reason)
        return group, time.monotonic() - told["materialized"]

    def _publish(self, round: Round) -> None:
        """Tell how it went, and write the next round's weights."""
        ended = time.monotonic()
        self._trainer.export_weights(weights_of(self._folder, round.number + 1))
        first = round.results[0].metrics  # before the first step both have the round's weights
        tell(
            {
                "trained": {
                    "ended": ended,
                    "busy_s": round.busy_s,
                    "blocked_s": round.blocked_s,
                    "tokens": sum(result.tokens for result in round.results),
                    "handoff_p50_s": median(round.latencies_s),
                    "handoff_max_s": max(round.latencies_s),
                    "memory_gib": peak_memory_gib(self._device),
                    "weights_s": time.monotonic() - ended,
                    **{name: value for name, value in first.items() if name.startswith("mismatch")},
                }
            }
        )


if __name__ == "__main__":
    disable_progress_bar()
    RoundTrainer(Path(sys.argv[1]), sys.argv[2]).run(Lines(sys.stdin))
