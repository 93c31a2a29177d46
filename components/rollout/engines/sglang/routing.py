"""Which server gets the next sample: pure."""

from __future__ import annotations

from collections.abc import Sequence

SHARED_PROMPT_TOKENS = 64
"""From this length on, a group's samples go to one server, whose prefix cache then holds their prompt.

A shorter one is prefilled again for less than an uneven load costs.
"""


def choose(in_flight: Sequence[int | None], slots: int | None, home: int | None) -> int | None:
    """The server for a sample, by its place; None when all are full or out.

    Args:
        in_flight: samples that each server has; None: it is out.
        slots: samples that one server takes; None: any number, it queues them itself.
        home: where the group's other samples went, if its prompt is worth keeping together.
    """
    free = [place for place, load in enumerate(in_flight) if load is not None and (slots is None or load < slots)]
    if home in free:
        return home
    return min(free, key=lambda place: in_flight[place] or 0, default=None)
