"""The chain of commits in a real store."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rolloutpipe_core.errors import BadInput, CommitLost, Damaged
from rolloutpipe_core.store.commits import (
    Commit,
    CommitChain,
    Genesis,
    Link,
    TrainerEpoch,
    commit_key,
    genesis_key,
)

SHA = "ab" * 32


@pytest.fixture
def chain(object_store, run_name) -> CommitChain:
    return CommitChain(object_store, run_name)


def genesis(run: str, weights_sha: str = SHA) -> Genesis:
    return Genesis(run=run, lineage=1, weights_sha=weights_sha, data_fingerprint="walk-2", config_sha=SHA)


def following(link: Link, nonce: str = "n1") -> Commit:
    """An empty round behind a link."""
    return Commit(
        run=link.commit.run,
        lineage=1,
        weights_sha=SHA,
        data_fingerprint="walk-2",
        config_sha=SHA,
        previous=link.as_previous,
        trainer_epoch=TrainerEpoch(number=1, nonce=nonce),
        round=link.next_round,
        updates=(),
        ended=(),
        cohort_sha=SHA,
        cursor=0,
        checkpoint=None,
    )


def grown(chain: CommitChain, run: str, rounds: int) -> list[Link]:
    links = [chain.begin(genesis(run))]
    for _ in range(rounds):
        links.append(chain.append(following(links[-1])))
    return links


def test_a_chain_grows_and_is_read_back(chain, run_name):
    assert chain.head() is None and chain.read() == []
    links = grown(chain, run_name, 3)
    assert [link.key for link in links] == [genesis_key(run_name), *(commit_key(run_name, round) for round in range(3))]
    assert chain.head() == links[-1]
    assert chain.read() == links
    assert chain.head().next_round == 3 and chain.head().commit.version.number == 3


def test_the_head_of_a_new_chain_is_its_genesis(chain, run_name):
    link = chain.begin(genesis(run_name))
    assert chain.head() == link and link.next_round == 0


def test_repeating_is_harmless(chain, run_name):
    links = grown(chain, run_name, 1)
    assert chain.begin(genesis(run_name)) == links[0]
    assert chain.append(following(links[0])) == links[1]


def test_another_commit_of_the_round_has_lost(chain, run_name):
    links = grown(chain, run_name, 1)
    with pytest.raises(CommitLost) as caught:
        chain.append(following(links[0], nonce="n2"))
    assert Commit.model_validate_json(caught.value.winner) == links[1].commit
    with pytest.raises(CommitLost):
        chain.begin(genesis(run_name, weights_sha="cd" * 32))


def test_of_racing_trainers_exactly_one_commits(chain, run_name):
    begin = chain.begin(genesis(run_name))
    start = threading.Barrier(4)

    def commit(nonce: str) -> str:
        start.wait(30)
        try:
            chain.append(following(begin, nonce))
        except CommitLost as lost:
            return Commit.model_validate_json(lost.winner).trainer_epoch.nonce
        return nonce

    with ThreadPoolExecutor(4) as pool:
        winners = set(pool.map(commit, ["n1", "n2", "n3", "n4"]))
    assert len(winners) == 1
    assert chain.head().commit.trainer_epoch.nonce == winners.pop()


def test_a_commit_follows_the_round_before(chain, run_name):
    links = grown(chain, run_name, 2)
    skipping = following(links[1]).model_copy(update={"round": 4})
    with pytest.raises(Damaged, match=r"the commit chain breaks at .*c000004.json"):
        chain.append(skipping)
    unfounded = following(links[2]).model_copy(update={"round": 4, "previous": following(links[2]).previous})
    unfounded = unfounded.model_copy(
        update={"previous": unfounded.previous.model_copy(update={"key": commit_key(run_name, 3)})}
    )
    with pytest.raises(Damaged, match=r"c000003.json, which is missing"):
        chain.append(unfounded)
    assert chain.head() == links[-1]


def test_a_commit_of_another_run_is_refused(chain):
    with pytest.raises(BadInput, match="commit of another run"):
        chain.begin(genesis("another"))


def test_an_altered_predecessor_breaks_the_head(chain, object_store, run_name):
    links = grown(chain, run_name, 3)
    altered = links[2].commit.model_copy(update={"cursor": 99})
    object_store.put(links[2].key, altered.to_bytes())
    with pytest.raises(Damaged, match=r"the commit chain breaks at .*c000002.json"):
        chain.head()


def test_an_altered_commit_is_found_by_reading_all(chain, object_store, run_name):
    links = grown(chain, run_name, 3)
    object_store.put(links[1].key, links[1].commit.model_copy(update={"cursor": 99}).to_bytes())
    assert chain.head() == links[-1]
    with pytest.raises(Damaged, match=r"the commit chain breaks at .*c000001.json"):
        chain.read()


@pytest.mark.parametrize(
    ("missing", "reason"), [(1, "has a hole: .*c000000.json is missing"), (0, "has no beginning: .*genesis.json")]
)
def test_a_missing_commit_is_named(chain, object_store, run_name, missing, reason):
    links = grown(chain, run_name, 3)
    object_store.delete(links[missing].key)
    for call in (chain.head, chain.read):
        with pytest.raises(Damaged, match=reason):
            call()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}", "not a commit: .*c000000.json"),
        (b"\x00", "not a commit: .*c000000.json"),
    ],
)
def test_what_is_no_commit_is_named(chain, object_store, run_name, data, reason):
    grown(chain, run_name, 1)
    object_store.put(commit_key(run_name, 0), data)
    with pytest.raises(Damaged, match=reason):
        chain.head()


def test_a_commit_at_the_wrong_place_is_named(chain, object_store, run_name):
    links = grown(chain, run_name, 2)
    object_store.put(links[2].key, links[1].commit.to_bytes())
    with pytest.raises(Damaged, match=r"commit of another round: .*c000001.json; given: round 0; expected: round 1"):
        chain.head()


def test_the_tail_is_read_on_from_what_is_known(chain, run_name):
    links = grown(chain, run_name, 4)
    assert chain.tail(None) == links[1:]
    assert chain.tail(2) == links[3:]
    assert chain.tail(2, after=2) == links[4:]
    assert chain.tail(2, after=3) == []
    assert chain.commit(1) == links[2]


def test_a_tail_that_got_shorter_or_broke_is_damage(chain, object_store, run_name):
    links = grown(chain, run_name, 3)
    object_store.delete(links[3].key)
    with pytest.raises(Damaged, match="got shorter"):
        chain.tail(2, after=2)
    object_store.put(links[3].key, following(links[1]).model_copy(update={"round": 2}).to_bytes())
    with pytest.raises(Damaged, match="breaks at"):
        chain.tail(2)
    with pytest.raises(Damaged, match="breaks at"):
        chain.tail(2, after=1)
