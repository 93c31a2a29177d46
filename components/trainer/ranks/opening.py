"""How a trainer's ranks come to be, on rank 0 and on the others.

Under torchrun's variables every rank is there already, and runs the same command. Without them rank 0 starts the others
on its machine.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.local.process import free_ports
from rolloutpipe_core.service import CACHE, log_outage
from rolloutpipe_core.store.objects import ObjectStore

from ..backends.choice import make_backend
from ..rank import Rank, Ranks
from .children import Children
from .collective import LOOPBACK, process_group
from .crew import Crew, named
from .follower import Follower
from .meeting import Line, admit, config_hash, join, listen
from .place import Place, rank_count
from .several import SeveralRanks

HERE = "127.0.0.1"


@contextmanager
def open_ranks(own: Rank, config: RunConfig, name: str, beacon: Beacon) -> Iterator[Ranks]:
    """All ranks of this configuration, while the block runs; to be entered in the main thread.

    `own` is this process's, `name` the service's. Raises BadInput for a place that does not fit the configuration,
    RankLost for a rank that ends, DeadlineExceeded for one that does not come.
    """
    place = Place.read(os.environ, config.trainer)
    if rank_count(config.trainer) == 1:
        yield own
        return
    deadline_s = config.deadlines.rank_s
    with ExitStack() as stack:
        if place is None:
            door = stack.enter_context(listen(HERE, 0))
            ports = free_ports(1)[0], door.getsockname()[1]
            place = Place(0, rank_count(config.trainer), 0, HERE, *ports, secrets.token_hex(32))
            children = stack.enter_context(Children(place, os.environ))
        else:
            door = stack.enter_context(listen(HERE if place.address in LOOPBACK else "", place.control_port))
            children = Children(place, os.environ)  # of whom there are none
        with door:
            lines = _admit_all(door, place, config, children, beacon)
        crew = stack.enter_context(Crew(lines, name, deadline_s, beacon.waiting, children.how_ended))
        stack.enter_context(process_group(place, config.model.device, deadline_s))
        yield SeveralRanks(own, crew)
        crew.end()  # before the process group does, which may have the ranks wait for one another


def follow(config: RunConfig, _name: str) -> None:
    """Be the follower that the environment says, until rank 0 has no more orders."""
    place = Place.read(os.environ, config.trainer)
    assert place is not None
    deadlines = config.deadlines
    line = join(place.address, place.control_port, place.rank, place.token, _hash(config), deadlines.rank_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 is told as well, and ends the others when it is ready
    store = ObjectStore(Connections.read().s3.client(), config.bucket, deadlines.store_s, log_outage)
    rank = Rank(store, config.run, CACHE, partial(make_backend, config))
    with Follower(place.rank, line, rank) as follower, process_group(place, config.model.device, deadlines.rank_s):
        follower.run()


def _admit_all(
    door: socket.socket, place: Place, config: RunConfig, children: Children, beacon: Beacon
) -> dict[int, Line]:
    with beacon.waiting("the trainer's ranks", config.deadlines.rank_s) as wait:

        def check(missing: set[int]) -> None:
            children.check(missing)
            wait.what = f"{named(missing)} to come"
            wait.check("the other ranks are there")

        return admit(door, place.ranks, place.token, _hash(config), check)


def _hash(config: RunConfig) -> str:
    return config_hash(config.model_dump(mode="json"))
