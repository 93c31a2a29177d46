"""A run that does not end as it should is told, with what each service was at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conductor import Conductor, RunFailed
from .deeds import Deed
from .plan import config_of
from .stage import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


def end_when_waiting(conductor: Conductor, stage: Stage, run: str) -> None:
    """Bring the deadline forward to where a worker waits for the trainer."""
    key = f"rolloutpipe:{{{run}}}:service:rollout-0"
    while "version 1" not in (stage.redis.hget(key, "waiting_for") or ""):
        time.sleep(0.05)
    conductor.deadline_s = 0.0


def test_a_run_past_its_deadline_says_what_each_service_waits_for(stage: Stage, tmp_path: Path) -> None:
    forever = Deed("stop", "self", 60, "take_role/before")
    conductor = Conductor(stage, tmp_path, config_of("strict", "late"), [forever], deadline_s=300)
    threading.Thread(target=end_when_waiting, args=(conductor, stage, "late"), daemon=True).start()
    with pytest.raises(RunFailed, match="the run did not end within") as failure:
        conductor.play()
    assert "waits for version 1: the trainer has all of round 0" in str(failure.value)
    assert "DEED stop self at take_role/before #1 for 60.00 s" in "\n".join(conductor.played.story)


def test_a_service_that_ends_by_itself_is_a_failure(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"ended by itself with status 2(?s:.*)key: unknown key"):
        Conductor(stage, tmp_path, {**config_of("strict", "unknown"), "key": 1}, [], deadline_s=300).play()
