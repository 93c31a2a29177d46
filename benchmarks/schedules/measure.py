"""Runs one cell, or what a floor needs, and reads its numbers from the ledger: no clock of its own.

cell       prepare the run ─> trainer loads and waits ─> rollout loads, opens the round ─> both end ─> ledger
floor      rollout alone records a round; then the trainer replays it while rollout records the next one
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.data.load import load_prompts
from rolloutpipe_core.domain import RoundState
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.observe.measures import round_metrics
from rolloutpipe_core.observe.timeline import RoundTimeline, Timelines
from rolloutpipe_core.preparation import prepare_run
from rolloutpipe_core.store.objects import ObjectStore

from .floor import arrivals_s, durations_s, floor_s
from .plan import WIDTH, Cell, Regime, configuration, overrides
from .processes import ServiceStarter
from .summary import Floor, Measured

POLL_S = 0.1
LOAD_DEADLINE_S = 120.0
ROUND_DEADLINE_S = 600.0
STOP_DEADLINE_S = 20.0
KEEP_LOGS = "run it again with --logs FOLDER"
DRAINED = {RoundState.DRAINED, RoundState.TRAINED, RoundState.COMMITTED, RoundState.PUBLISHED}


class CellFailed(RolloutPipeError):
    """A service of a measured run failed or came to no end."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a regime's runs start from."""

    model: Path
    prompts: Path


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures in one folder with its servers."""

    connections: Connections
    starter: ServiceStarter
    inputs: dict[str, Inputs]  # by regime
    groups: int  # R

    def cell(self, regime: Regime, cell: Cell, repeat: int) -> Measured:
        """Run it. Raises CellFailed with the reason that a service logged."""
        run = Run(self, regime, cell, f"{cell.id}-r{repeat}")
        with closing(run):
            run.start("trainer")
            run.until(run.trainer_waits, "the trainer to wait for groups", LOAD_DEADLINE_S)
            run.start("rollout")
            run.finish()
            return Measured(cell, repeat, asdict(round_metrics(run.timeline(), None)))

    def record(self, regime: Regime, groups_per_update: int, name: str) -> Run:
        """A round that rollout has sampled and nobody has trained; the run is the caller's to close."""
        run = Run(self, regime, Cell(regime.name, groups_per_update, "stream", WIDTH), name)
        try:
            rollout = run.start("rollout")
            run.until(run.drained, "the round to drain", ROUND_DEADLINE_S)
            run.stop(rollout)
        except BaseException:
            run.close()
            raise
        return run

    def replay(self, regime: Regime, recorded: Run, next_update: int, next_name: str, repeat: int) -> tuple[Floor, Run]:
        """Train the recorded groups beside a rollout that records the next ones; closes `recorded`."""
        with closing(recorded):
            recorded.start("trainer")
            following = self.record(regime, next_update, next_name)
            try:
                recorded.finish()
                arrivals, durations = arrivals_s(following.timeline()), durations_s(recorded.timeline())
            except BaseException:
                following.close()
                raise
        floor = Floor(
            regime=regime.name,
            groups_per_update=recorded.cell.groups_per_update,
            repeat=repeat,
            floor_s=floor_s(arrivals, durations),
            rollout_s=max(arrivals.values()),
            training_s=sum(durations.values()),
        )
        return floor, following


class Run:
    """One run of a cell: its configuration, its services, its ledger."""

    def __init__(self, bench: Bench, regime: Regime, cell: Cell, name: str) -> None:
        """Writes the configuration and the run's genesis, so that the trainer can load before rollout starts."""
        self.cell = cell
        self.name = name
        self._starter = bench.starter
        self._file = bench.starter.folder / f"{regime.name}.json"
        self._overrides = overrides(cell, name)
        inputs = bench.inputs[regime.name]
        settings = configuration(regime, str(inputs.model), str(inputs.prompts), bench.groups)
        self._file.write_text(json.dumps(settings, indent=1))
        config = load_config(self._file, self._overrides)
        self._store = ObjectStore(bench.connections.s3.client(), config.bucket)
        self._store.ensure_bucket()
        prepare_run(config, inputs.model, load_prompts(config.data).fingerprint, self._store)
        self._reader = LedgerReader(bench.connections.redis.client(), name)
        self._processes: list[BaseProcess] = []

    def start(self, role: str) -> BaseProcess:
        process = self._starter.start(role, self.name, self._file, self._overrides)
        self._processes.append(process)
        return process

    def trainer_waits(self) -> bool:
        """Its heartbeat tells: the model is loaded, and the round has no group yet."""
        rows = self._reader.services()
        return any(row.get("role") == "trainer" and row.get("waiting_for", "").startswith("round 0") for row in rows)

    def drained(self) -> bool:
        return self._reader.round_state(0).get("state") in DRAINED

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait for it. Raises CellFailed when a service of the run fails first, or it takes too long."""
        end = time.monotonic() + deadline_s
        while not condition():
            for process in self._processes:
                if process.exitcode:
                    raise self._failed(process)
            if time.monotonic() > end:
                raise CellFailed(f"run {self.name}: waited {deadline_s:g} s for {what}", remedy=KEEP_LOGS)
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Wait until every service has ended."""
        self.until(lambda: all(process.exitcode == 0 for process in self._processes), "its end", ROUND_DEADLINE_S)

    def stop(self, process: BaseProcess) -> None:
        """Ask it to end, make sure that it does, and forget it."""
        self._processes.remove(process)
        process.terminate()
        process.join(STOP_DEADLINE_S)
        if process.exitcode is None:
            process.kill()
            process.join()

    def timeline(self) -> RoundTimeline:
        line = Timelines(self._reader.events()).round(0)
        assert line is not None
        return line

    def close(self) -> None:
        """End what still runs, and drop the objects: weights and checkpoints of a hundred runs are some GB."""
        for process in list(self._processes):
            self.stop(process)
        self._store.delete_many([info.key for info in self._store.list(f"runs/{self.name}/")])

    def _failed(self, process: BaseProcess) -> CellFailed:
        log = self._starter.log(self.name, process.name)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return CellFailed(
            f"{process.name} of run {self.name} exited with {process.exitcode}",
            given=lines[-1] if lines else "nothing in its log",
            remedy=KEEP_LOGS,
        )
