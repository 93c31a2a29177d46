"""What is done to a run, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "stop", "replace", "damage", "spoil"]
Victim = Literal["self", "rollout", "trainer", "valkey", "s3"]


@dataclass(frozen=True, slots=True)
class Deed:
    """One deed: at the `nth` time that any service reaches `point`, or at a random instant when there is no point.

    kill     SIGKILL, then a restart; a server stays away for `lasts_s`
    stop     SIGSTOP, SIGCONT after `lasts_s`, which is longer than the lease
    replace  as stop, but a successor starts at once: the old one wakes up beside it
    damage   the group's object is overwritten (no kill: it makes ready for the gate's transitions)
    spoil    damage, then kill: what the service has in memory is gone, too
    """

    kind: Kind
    victim: Victim  # "self": the service that reaches the point
    lasts_s: float
    point: str = ""
    nth: int = 1
    at_s: float = 0.0  # seconds since the run's start, without a point

    @property
    def is_kill(self) -> bool:
        return self.kind != "damage"

    def __str__(self) -> str:
        where = f"at {self.point} #{self.nth}" if self.point else f"after {self.at_s:.2f} s"
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        return f"{self.kind} {self.victim} {where}{lasts}"
