"""One rank's bad read is everyone's: what several ranks found becomes one error."""

from __future__ import annotations

from collections.abc import Mapping

from rolloutpipe_core.errors import Damaged, RolloutPipeError


def verdict(found: Mapping[int, RolloutPipeError], ranks: int) -> RolloutPipeError | None:
    """What stands against going on, by `found`: the errors of those of the `ranks` that had one.

    What all found alike is told once; anything else names the first rank that found it. Proven damage comes first: an
    outage beside it changes nothing about it.
    """
    if not found:
        return None
    rank = min(found, key=lambda rank: (not isinstance(found[rank], Damaged), rank))
    error = found[rank]
    if len(found) == ranks and len({str(each) for each in found.values()}) == 1:
        return error
    return type(error)(f"rank {rank} of {ranks}: {error.what}", error.given, error.expected, error.remedy)
