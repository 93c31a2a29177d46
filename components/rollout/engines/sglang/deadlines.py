"""How long the engine waits for what. Every wait on a server ends by one of these."""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpipe_core.config.models import EngineConfig


@dataclass(frozen=True, slots=True)
class Deadlines:
    """All in seconds."""

    answer_s: float  # a group's K samples, or a whole load: a moment before the service gives up, to say why
    load_s: float  # one server's update from disk
    start_s: float  # a server that we start, until it answers
    stall_s: float  # a server with samples in flight, from one answer to the next
    silent_s: float = 20.0  # a server's HTTP side, which answers also while the model is busy, compiling or paused
    step_s: float = 30.0  # one administrative step: pause, continue, checksum
    abort_s: float = 0.5  # a request whose caller is gone, until the server ends it: below what `answer_s` leaves
    probe_s: float = 2.0  # between two looks at a server
    stop_s: float = 12.0  # a server that was told to stop: below what the services' supervisor grants

    @classmethod
    def of(cls, engine: EngineConfig, engine_s: float) -> Deadlines:
        """From a configuration; `engine_s` is the service's own deadline for one call."""
        moment_s = min(1.0, engine_s / 20)
        return cls(
            answer_s=engine_s - moment_s,
            abort_s=moment_s / 2,
            load_s=engine_s / 2,
            start_s=engine.launch.start_s if engine.launch else engine_s,
            stall_s=engine.stall_s,
        )
