"""Making a run: its config, version 0 and genesis in the store, and its hash in Redis. Every step may be repeated.

    config.json ── version 0's weights ── genesis commit ── Redis

The rollout side prepares (it has the data and the starting weights); the trainer waits for the genesis.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from rolloutpipe_core.config.identity import config_sha, difference
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput, CommitLost, StoreRefused
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.store.commits import CommitChain, Genesis, Link
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import publish_weights, weights_prefix

FIRST_LINEAGE = 1


def prepare_run(config: RunConfig, model: Path, data_fingerprint: str, store: ObjectStore) -> Link:
    """Write what a new run needs, or check that this config continues the run that is there; returns the chain's head.

    Raises BadInput, naming the keys, when the run exists with another configuration or other data.
    """
    check_positions(config, model)
    store_config(config, store)
    chain = CommitChain(store, config.run)
    head = chain.head()
    if head is None:
        genesis = Genesis(
            run=config.run,
            lineage=FIRST_LINEAGE,
            weights_sha=publish_weights(store, config.run, model).manifest_sha,
            data_fingerprint=data_fingerprint,
            config_sha=config_sha(config),
        )
        try:
            head = chain.begin(genesis)
        except CommitLost:
            head = chain.head()
            assert head is not None
    check_belongs(config, head)
    if head.commit.data_fingerprint != data_fingerprint:
        raise BadInput(
            f"run {config.run} was made with other data",
            given=f"data fingerprint {data_fingerprint[:16]}",
            expected=head.commit.data_fingerprint[:16],
            remedy="use the run's data file, or give this run another name",
        )
    return head


def check_positions(config: RunConfig, model: Path) -> None:
    """Raise BadInput when not even an empty prompt leaves room for the longest response."""
    positions = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
    if positions is not None and config.sampling.max_new_tokens >= positions:
        raise BadInput(
            "responses could be longer than the model's positions",
            given=f"sampling.max_new_tokens = {config.sampling.max_new_tokens}",
            expected=f"less than {positions}, with room for the prompt",
            remedy="lower it, or take a model with more positions",
        )


def store_config(config: RunConfig, store: ObjectStore) -> None:
    """Write `config.json` once; on a resume, refuse a config that would make it another run."""
    key = f"runs/{config.run}/config.json"
    result = store.put_if_absent(key, config.model_dump_json(indent=1).encode())
    if not result.ours:
        try:
            stored = RunConfig.model_validate_json(result.stored)
        except ValidationError as error:
            raise BadInput(
                f"run {config.run} has a configuration that this version does not understand",
                given=f"{key}: {error.errors()[0]['msg']} ({'.'.join(map(str, error.errors()[0]['loc']))})",
                remedy="go on with the version of rolloutpipe that made the run, or give this run another name",
            ) from error
        changed = difference(stored, config)
        if changed:
            raise BadInput(
                f"run {config.run} exists with another configuration",
                given="\n  " + "\n  ".join(changed),
                remedy="undo these changes, or give this run another name (key `run`)",
            )


def check_belongs(config: RunConfig, head: Link) -> None:
    """Raise BadInput when the chain is not of this configuration."""
    if head.commit.config_sha != config_sha(config):
        raise BadInput(
            f"run {config.run} was made with another configuration",
            given=f"configuration {config_sha(config)[:16]}",
            expected=head.commit.config_sha[:16],
            remedy=f"compare with runs/{config.run}/config.json in the bucket, or give this run another name",
        )


def register_run(client: LedgerClient, head: Link, actor: str) -> None:
    """Put the run into Redis at the chain's head; one that is there stays as it is, a stopped one becomes active."""
    commit = head.commit
    keys = [client.keys.run, client.keys.ledger, client.keys.fifo, client.keys.weights]
    facts = [commit.lineage, commit.version.number, commit.version.sha]
    place = [weights_prefix(commit.run, commit.weights_sha), head.key, head.sha256]
    client.call("prepare", keys, [actor, *facts, *place, commit.config_sha, commit.cursor])


def check_not_ahead(reader: LedgerReader, chain: CommitChain) -> None:
    """Raise StoreRefused when Redis knows a version that no commit holds."""
    # Redis first: a trainer may publish while we look, and its commit comes before.
    version = int(reader.run_state().get("version", 0))
    head = chain.head()
    if head is None or version > head.commit.version.number:
        raise StoreRefused(
            "the object store has lost commits",
            given=f"Redis is at version {version}, the commit chain ends at {head.key if head else 'nothing'}",
            expected="a chain at least as long as what Redis has published",
            remedy="restore the bucket; a version without its commit is never used",
        )


def missing_commits(chain: CommitChain, reader: LedgerReader, head: Link) -> list[Link]:
    """Commits that Redis has not heard of (it lost its last second, or the trainer died in between), oldest first."""
    known = int(reader.run_state().get("version", 0))
    if known >= head.commit.version.number:
        return []
    return [link for link in chain.read() if link.commit.version.number > known]
