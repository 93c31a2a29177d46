"""A worker that is slower than the retention."""

from __future__ import annotations

import asyncio

import pytest

from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import ObjectMissing
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.store.weights import weights_prefix

from .conftest import Rig


class LateReader(LedgerReader):
    """Sees the registry's newest version a little later than it is there, once."""

    seen: tuple[WeightVersion, str] | None = None

    def latest_version(self) -> tuple[WeightVersion, str] | None:
        seen, self.seen = self.seen, None
        return seen or super().latest_version()


def delete_weights(rig: Rig, version: WeightVersion) -> None:
    rig.store.delete_many([info.key for info in rig.store.list(weights_prefix(rig.config.run, version.sha))])


def test_a_version_that_was_deleted_meanwhile_is_passed_over(rig: Rig) -> None:
    late = LateReader(rig.redis, rig.config.run, rig.config.deadlines.redis_s)
    first = late.latest_version()
    assert first is not None

    async def scenario() -> None:
        async with rig.worker():
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
        delete_weights(rig, first[0])
        (rig.tmp_path / "cache").rename(rig.tmp_path / "another-nodes-cache")
        late.seen, rig.reader = first, late
        async with rig.worker("worker-1") as worker:
            await worker.finish()

    asyncio.run(scenario())
    assert late.seen is None


def test_the_runs_own_version_must_be_there(rig: Rig) -> None:
    first = rig.reader.latest_version()
    assert first is not None
    delete_weights(rig, first[0])

    async def scenario() -> None:
        async with rig.worker() as worker:
            await worker.finish()

    with pytest.raises(ObjectMissing):
        asyncio.run(scenario())
