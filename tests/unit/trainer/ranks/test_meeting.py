"""Followers over real sockets: who is let in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from rolloutpipe_components.trainer.ranks.meeting import Line, admit, config_hash, join, listen

from rolloutpipe_core.errors import BadInput, DeadlineExceeded, RankLost

HERE = "127.0.0.1"


class Rank0:
    """Admits in a thread."""

    def __init__(self, ranks: int, config: str = "same") -> None:
        self.door = listen(HERE, 0)
        self.port = self.door.getsockname()[1]
        self.lines: dict[int, Line] = {}
        self.error: Exception | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._admit, args=(ranks, config))
        self.thread.start()

    def _admit(self, ranks: int, config: str) -> None:
        try:
            self.lines = admit(self.door, ranks, "token", config, self._check)
        except Exception as error:
            self.error = error

    def _check(self, missing: set[int]) -> None:
        if self.stopped:
            raise DeadlineExceeded(f"missing {sorted(missing)}")

    def finish(self) -> None:
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def rank_0() -> Iterator[Rank0]:
    made = Rank0(ranks=3)
    yield made
    made.stopped = True
    made.finish()
    made.door.close()


def test_followers_are_let_in_in_any_order(rank_0: Rank0) -> None:
    lines = {rank: join(HERE, rank_0.port, rank, "token", "same", 20) for rank in (2, 1)}
    rank_0.finish()
    assert rank_0.lines.keys() == {1, 2}
    for rank, line in lines.items():
        rank_0.lines[rank].channel.send({"to": rank, "much": "x" * 300_000}, 20)
        assert line.channel.receive(20)["to"] == rank


@pytest.mark.parametrize(("rank", "token"), [(1, "wrong"), (0, "token"), (3, "token")])
def test_who_does_not_belong_is_sent_away(rank_0: Rank0, rank: int, token: str) -> None:
    with pytest.raises(RankLost, match=f"rank 0 does not take rank {rank}"):
        join(HERE, rank_0.port, rank, token, "same", 20)
    rank_0.stopped = True
    rank_0.finish()
    assert "missing [1, 2]" in str(rank_0.error)


def test_a_rank_is_taken_once(rank_0: Rank0) -> None:
    join(HERE, rank_0.port, 1, "token", "same", 20)
    with pytest.raises(RankLost):
        join(HERE, rank_0.port, 1, "token", "same", 20)
    join(HERE, rank_0.port, 2, "token", "same", 20)
    rank_0.finish()
    assert rank_0.lines.keys() == {1, 2}


def test_nonsense_at_the_door_keeps_nobody_out(rank_0: Rank0) -> None:
    with socket.create_connection((HERE, rank_0.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with socket.create_connection((HERE, rank_0.port)) as stranger:
        content = b'{"rank": "one"}'
        stranger.sendall(len(content).to_bytes(4, "big") + content)
        for rank in (1, 2):
            join(HERE, rank_0.port, rank, "token", "same", 20)
    rank_0.finish()
    assert rank_0.lines.keys() == {1, 2}


def test_another_configuration_is_refused() -> None:
    rank_0 = Rank0(ranks=2, config=config_hash({"lr": 1}))
    with suppress(RankLost):
        join(HERE, rank_0.port, 1, "token", config_hash({"lr": 2}), 20)
        pytest.fail("it was let in")
    rank_0.finish()
    assert isinstance(rank_0.error, BadInput)
    assert "rank 1 has another configuration" in str(rank_0.error)
    rank_0.door.close()


def test_a_taken_port_is_refused() -> None:
    with listen(HERE, 0) as door, pytest.raises(BadInput, match="ROLLOUTPIPE_RANK_PORT"):
        listen(HERE, door.getsockname()[1])


def test_a_rank_0_that_is_not_there() -> None:
    with listen(HERE, 0) as door:
        port = door.getsockname()[1]
    with pytest.raises(RankLost, match="cannot be reached"):
        join(HERE, port, 1, "token", "same", 0.1)
