"""The fault points: every named transition of a run, once before and once after it is made.

    LedgerClient.call(script)            announce/before   the service has decided, Redis knows nothing
                                         announce/after    Redis has done it, the service has not gone on
    ObjectStore.put, upload_file, ...    commit/before, commit/after: the same for S3

The names come from the scripts' folder and from the layout of the bucket, so that nothing new can be left out: a script
or a key without a name here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import rolloutpipe_core

SCRIPTS = Path(rolloutpipe_core.__file__).parent / "ledger" / "scripts"
SHARED = "prelude"  # part of every script, and none itself

VARIANTS = {
    "advance": ("serving_complete", "materialized"),
    "finish": ("filtered", "refilled"),
    "release": ("release", "failed"),
    "reject": ("reject", "rejected"),
}
"""Scripts that make several transitions."""
TO = 5
"""What tells those of `advance` and `finish` apart: where a group goes. Group, worker, attempt, nonce, from, to."""
DRAWN = 9
"""The argument of `finish` that is the prompt of the group in the filtered one's place; empty: none is drawn."""
LAST_CHANCE = {"release": (3, "1", "failed"), "reject": (7, "0", "rejected")}
"""(place of the limit among the arguments, its value where nothing is tried again, how a group then ends)"""

OBJECTS = {
    r"runs/[^/]+/config\.json": "config",
    r"runs/[^/]+/ledger/.+\.parquet": "archive-part",
    r"runs/[^/]+/commits/genesis\.json": "genesis",
    r"runs/[^/]+/commits/c\d+\.json": "commit",
    r"runs/[^/]+/groups/.+\.arrow": "group",
    r"runs/[^/]+/weights/[^/]+/manifest\.json": "weights-manifest",
    r"runs/[^/]+/weights/[^/]+/.+": "weights-file",
    r"runs/[^/]+/checkpoints/[^/]+/manifest\.json": "checkpoint-manifest",
    r"runs/[^/]+/checkpoints/[^/]+/.+": "checkpoint-file",
}
"""What is written, by its key; the first that fits."""

DELETION = "deletion"  # whatever is deleted

MOMENTS = ("before", "after")


def script_names() -> list[str]:
    """The ledger's scripts, as they lie in the folder."""
    return sorted(path.stem for path in SCRIPTS.glob("*.lua") if path.stem != SHARED)


def transitions() -> list[str]:
    """Every named transition: the ledger's, then the objects'."""
    ledger = [name for script in script_names() for name in VARIANTS.get(script, (script,))]
    return [*ledger, *dict.fromkeys(OBJECTS.values()), DELETION]


def points() -> list[str]:
    return [f"{name}/{moment}" for name in transitions() for moment in MOMENTS]


def transition_of_call(script: str, args: Sequence[object]) -> str:
    """The transition that a script call makes. Raises ValueError for one without a fault point."""
    if script not in VARIANTS:
        return script
    if script in LAST_CHANCE:
        place, limit, end = LAST_CHANCE[script]
        return end if str(args[place]) == limit else script
    to = str(args[TO])
    if to not in VARIANTS[script]:
        raise ValueError(f"no fault point for {script} to {to}")
    return "refilled" if to == "filtered" and args[DRAWN] else to


def transition_of_key(key: str) -> str:
    """What a write to this key is. Raises ValueError for one without a fault point."""
    for pattern, name in OBJECTS.items():
        if re.fullmatch(pattern, key):
            return name
    raise ValueError(f"no fault point for the key {key}")
