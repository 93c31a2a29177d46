from __future__ import annotations

import pytest
from rolloutpipe_components.rollout.engines.sglang.routing import choose


@pytest.mark.parametrize(
    ("in_flight", "slots", "home", "chosen"),
    [
        ([0, 0], 4, None, 0),
        ([3, 1], 4, None, 1),
        ([1, 3], 4, None, 0),
        ([4, 3], 4, None, 1),
        ([4, 4], 4, None, None),  # all full
        ([None, 3], 4, None, 1),  # the first is out
        ([None, 4], 4, None, None),
        ([None, None], 4, None, None),
        ([3, 0], 4, 0, 0),  # the group's prompt is cached at 0
        ([4, 0], 4, 0, 1),  # but a slot that would idle is worth more
        ([None, 0], 4, 0, 1),
        ([90, 80], None, None, 1),  # without a limit
        ([90, 80], None, 0, 0),
        ([], None, None, None),
    ],
)
def test_the_least_loaded_server_that_has_a_slot(
    in_flight: list[int | None], slots: int | None, home: int | None, chosen: int | None
) -> None:
    assert choose(in_flight, slots, home) == chosen
