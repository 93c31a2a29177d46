"""What one trainer rank does by itself: read groups, fetch weights and checkpoints, make its backend.

With one rank this is all there is. With several each has one, and rank 0 keeps them together (ranks/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rolloutpipe_core.domain import Group, GroupRef
from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.gate import Expectation, why_altered, why_rejected
from rolloutpipe_core.scratch import scratch_folder
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.checkpoints import download_checkpoint
from rolloutpipe_core.store.commits import Checkpoint
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import fetch_weights

from .trainer import Backend, Trainer

MakeBackend = Callable[[Path, Path | None], Backend]
"""(folder with the weights to start from, folder with version 0 for the KL reference or None) -> backend"""


@dataclass(frozen=True, slots=True)
class Start:
    """What a trainer starts from, by its names in the store."""

    weights: str  # sha256 of their manifest
    reference: str | None  # the same of version 0, when the loss has a KL term
    checkpoint: Checkpoint | None  # None: the optimizer is new


@dataclass(frozen=True, slots=True)
class Files:
    """A `Start` as folders on this machine."""

    weights: Path
    reference: Path | None
    checkpoint: Path | None


class Ranks(Protocol):
    """All of a trainer's ranks, as the service sees them."""

    def read(self, ref: GroupRef, expected: Expectation) -> Group:
        """The announced group, verified. From any thread.

        Raises Damaged with the reason against training it, StoreUnavailable when an outage outlives its deadline.
        """

    def start(self, start: Start) -> tuple[Trainer, int]:
        """The trainer as it was then, and the size of its vocabulary.

        Raises ObjectMissing for what is gone from the store, Damaged on a wrong hash, BadInput for no usable model.
        """


@dataclass(frozen=True, slots=True)
class Rank:
    """Implements `Ranks` for one rank alone."""

    store: ObjectStore
    run: str
    cache: Path  # folder of downloaded weights, shared by the node's services and ranks
    make_backend: MakeBackend

    def read(self, ref: GroupRef, expected: Expectation) -> Group:
        return read_group(self.store, ref, expected)

    def start(self, start: Start) -> tuple[Trainer, int]:
        with self.files(start) as files:
            return self.load(files)

    @contextmanager
    def files(self, start: Start) -> Iterator[Files]:
        """Download what this machine lacks; the folders stay within the block."""
        with DirectoryCache(self.cache) as first, DirectoryCache(self.cache) as present, scratch_folder() as state:
            reference = fetch_weights(self.store, self.run, start.reference, first) if start.reference else None
            weights = fetch_weights(self.store, self.run, start.weights, present)
            if start.checkpoint is not None:
                download_checkpoint(self.store, start.checkpoint, state)
            yield Files(weights, reference, state if start.checkpoint else None)

    def load(self, files: Files) -> tuple[Backend, int]:
        """The backend, and the size of its vocabulary."""
        backend = self.make_backend(files.weights, files.reference)
        vocabulary = int(json.loads((files.weights / "config.json").read_text())["vocab_size"])
        if files.checkpoint is not None:
            backend.load(files.checkpoint)
        return backend, vocabulary


def read_group(store: ObjectStore, ref: GroupRef, expected: Expectation) -> Group:
    """See `Ranks.read`."""
    try:
        data = store.get(ref.object)
    except ObjectMissing:
        raise Damaged(f"missing object: {ref.object}") from None
    if (reason := why_altered(data, ref)) is not None:
        raise Damaged(reason)
    group = decode_group(data)
    if (reason := why_rejected(group, ref, expected)) is not None:
        raise Damaged(reason)
    return group
