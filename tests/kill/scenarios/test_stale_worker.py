"""A worker's upload arrives after its lease ran out: it announces nothing, and its object is nobody's.

tests/contract/rollout/test_leases.py shows it with real workers and a trainer by hand; here the trainer is real, and
the group's first attempt comes late at each of its steps.
"""

from __future__ import annotations

import pytest

from rolloutpipe_core.domain import group_id
from rolloutpipe_core.errors import Fenced
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.store.groups import encode_group, reference_of

from ...contract.trainer.conftest import Bench, R
from .conftest import check_trained_once, commits


@pytest.mark.parametrize("when", ["admitted again", "announced", "claimed", "published"])
def test_a_late_announcement_loses_and_its_object_is_an_orphan(bench: Bench, when: str) -> None:
    """The second attempt is in turn only admitted, announced, assigned to an update, and published."""
    rollout, group = bench.rollout, group_id(0, 0)
    rollout.open()
    stale = RolloutLedger(rollout.ledger.client, "stale", 0.001, 4)
    late = stale.admit(group)
    stale.serving_complete(late)
    stale.materialized(late)
    reaper = RolloutLedger(rollout.ledger.client, "reaper", 0, 4)
    while not (taken := reaper.reap(0)):
        pass  # a millisecond
    assert [name for name, _ in taken] == [group]
    lease = rollout.admit(0)
    if when != "admitted again":
        rollout.announce(lease, rollout.group(lease))
    trainer = None
    if when in ("claimed", "published"):
        trainer = bench.start_trainer()
        trainer.wait_for(lambda: bench.reader.group(group)["state"] == "claimed")
    if when == "published":
        rollout.serve(1)
        rollout.serve(2)
        trainer.finish()
    before = bench.reader.group(group)

    data = encode_group(rollout.group(late))
    ref = reference_of(rollout.group(late), data)
    bench.store.put(ref.object, data)
    with pytest.raises(Fenced, match="announce refused an old token"):
        stale.announce(late, ref, 8, 5)
    with pytest.raises(Fenced):
        stale.filtered(late, "zero variance of rewards", {})
    with pytest.raises(Fenced):
        stale.give_up(late, "the engine broke")
    assert stale.renew(0, [late]) == [group]

    assert bench.reader.group(group) == before
    if when == "admitted again":
        rollout.announce(lease, rollout.group(lease))
    trainer = trainer or bench.start_trainer()
    if when != "published":
        rollout.serve(1)
        rollout.serve(2)
    trainer.finish()
    (commit,) = commits(bench)
    assert [member.attempt for member in commit.groups if member.group == group] == [2]
    assert sorted(trainer.accumulated) == [(group, 2), *((group_id(0, index), 1) for index in range(1, R))]
    named = {member.object for member in commit.groups}
    stored = {info.key for info in bench.store.list(f"runs/{bench.config.run}/groups/")}
    assert stored - named == {ref.object}
    check_trained_once(bench)
