"""The trainer's housekeeper at work: it tells what it did, and its failure ends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from rolloutpipe_core.errors import StoreMisconfigured
from rolloutpipe_core.store.objects import ObjectStore, UnfinishedUpload

from .conftest import Bench, R, make_bench, make_config


class ForbiddenStore(ObjectStore):
    """Its policy forbids to list uploads."""

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        raise StoreMisconfigured("the object store refuses: list uploads", given="AccessDenied")


def trained(bench: Bench) -> dict[str, str]:
    """The run's hash after its one round."""
    bench.rollout.open()
    running = bench.start_trainer()
    for index in range(R):
        bench.rollout.serve(index)
    running.finish()
    return bench.reader.run_state()


def test_the_last_pass_is_told(bench: Bench) -> None:
    state = trained(bench)
    assert state["version"] == "1"
    assert (state["housekeeping_error"], state["housekeeping_ms"] > state["prepared_ms"]) == ("", True)


def test_a_failing_housekeeper_ends_nothing(
    redis_client: redis.Redis,
    s3_client: Any,
    object_store: ObjectStore,
    run_name: str,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    store = ForbiddenStore(s3_client, object_store.bucket, deadline_s=20.0)
    state = trained(make_bench(make_config(run_name, tiny_model), redis_client, store, tiny_model, tmp_path / "cache"))
    assert state["version"] == "1"
    assert state["housekeeping_error"] == "the object store refuses: list uploads; given: AccessDenied"
