"""`python damaged_rank.py MODULE ARG...`: `python -m MODULE ARG...`, but rank 1's first read of group 0 is damaged.

As if the bytes had changed on the way to that machine alone: the object in the store is whole.
"""

from __future__ import annotations

import os
import runpy
import sys

from rolloutpipe_core.store.objects import ObjectStore

GROUP = "/groups/r000000/g0000-"


def damage() -> None:
    get, seen = ObjectStore.get, []

    def damaged(self: ObjectStore, key: str) -> bytes:
        data = get(self, key)
        if GROUP in key and not seen:
            seen.append(key)
            return data[:200] + bytes([data[200] ^ 1]) + data[201:]
        return data

    ObjectStore.get = damaged  # type: ignore[method-assign]


if os.environ.get("RANK") == "1":
    damage()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
