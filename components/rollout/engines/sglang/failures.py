"""What goes wrong with one server. None of it leaves the engine before the samples' other ways are exhausted."""

from __future__ import annotations

from rolloutpipe_core.errors import EngineFailure


class Unreachable(EngineFailure):
    """The server gave no answer: refused, cut off, or silent past the deadline."""


class Refused(EngineFailure):
    """The server answered that it will not, or cannot."""


class Broken(Refused):
    """The server answered that something is wrong with itself (5xx)."""


class Unfit(Refused):
    """The server was started with arguments under which it cannot serve the run."""


class Ended(EngineFailure):
    """A server that we start ended before its first answer."""


class Lost(EngineFailure):
    """The server was taken out of service while it had the sample."""


class Unusable(EngineFailure):
    """The answer is no sample: aborted, incomplete, or not what was asked for."""


class WrongVersion(Unusable):
    """The answer comes from other weights than the round's."""


class Disagreement(WrongVersion):
    """The server's weights are named right, but their checksums are not the others'."""
