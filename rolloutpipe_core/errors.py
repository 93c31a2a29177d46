"""Every error of RolloutPipe, one type per boundary that can fail.

RolloutPipeError
├── BadInput              exit 2   a config, a flag, a file of the user
├── DeadlineExceeded      exit 3   something awaited did not come in time
├── Fenced                exit 4   this process lost its role or its lease
├── RunStopped            exit 5   the run itself was stopped, with its reasons
├── RedisUnavailable      exit 6   Redis stayed away past its deadline
├── StoreUnavailable      exit 6   the object store stayed away past its deadline
├── StoreMisconfigured    exit 7   the store answers, but refuses us (403, no bucket, clock)
├── StoreRefused          exit 7   the store breaks a promise we build on
├── LedgerRefused         exit 8   the ledger's state forbids the call: a defect or a foreign writer
├── RankLost              exit 9   a rank of the trainer ended or broke; started again, the trainer replays
├── CommitLost            (caught) another trainer's commit won; adopt and reload
├── ObjectMissing         (caught) a key that should exist does not
├── Damaged               (caught) proven damage of a group; the gate rejects it
├── EngineFailure         (caught) the engine broke; the group is retried, then failed
└── VerifierFailure       (caught) the verifier's workers broke; the group is retried, then failed
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)  # an exception must stay hashable
class RolloutPipeError(Exception):
    """What happened, with what was given, what was expected and what to do.

    `str(error)` is the one line a user reads.
    """

    what: str
    given: str = ""
    expected: str = ""
    remedy: str = ""

    exit_code = 1

    def __str__(self) -> str:
        parts = [self.what]
        if self.given:
            parts.append(f"given: {self.given}")
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.remedy:
            parts.append(f"do: {self.remedy}")
        return "; ".join(parts)


class BadInput(RolloutPipeError):
    exit_code = 2


class DeadlineExceeded(RolloutPipeError):
    exit_code = 3


class Fenced(RolloutPipeError):
    exit_code = 4


class RunStopped(RolloutPipeError):
    exit_code = 5


class RedisUnavailable(RolloutPipeError):
    exit_code = 6


class StoreUnavailable(RolloutPipeError):
    exit_code = 6


class StoreMisconfigured(RolloutPipeError):
    exit_code = 7


class StoreRefused(RolloutPipeError):
    exit_code = 7


class LedgerRefused(RolloutPipeError):
    exit_code = 8


class RankLost(RolloutPipeError):
    exit_code = 9


@dataclass(eq=False)  # an exception must stay hashable
class CommitLost(RolloutPipeError):
    winner: bytes = b""  # the commit that stands, as stored


class ObjectMissing(RolloutPipeError):
    pass


class Damaged(RolloutPipeError):
    pass


class EngineFailure(RolloutPipeError):
    pass


class VerifierFailure(RolloutPipeError):
    pass
