"""A rank that stands still is not waited for longer than `deadlines.rank_s`, whatever group the others wait in."""

from __future__ import annotations

import pytest
from rolloutpipe_components.trainer.ranks.collective import timed_out

LAYOUTS = {
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_rank_that_is_stopped_is_waited_for_until_the_deadline(layout, ranks, make_model, groups):
    config = {
        "run": "test",
        "model": {"path": str(make_model())},
        "trainer": {"kind": "megatron", **layout},
        "deadlines": {"rank_s": 1.5},
    }
    said, _ = ranks.run(2, stopped=1, op="stop", config=config, groups=groups)
    assert timed_out(RuntimeError(said)), said
    assert "1500ms" in said
