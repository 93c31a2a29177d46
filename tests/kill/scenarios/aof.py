"""Really loses a Valkey's last writes: kill -9 alone loses what the server has not written yet, mostly nothing.

units       what the server applies at once: a command, or all effects of a script between MULTI and EXEC
lose_from   kill -9, cut the append-only file before a unit, start again on what is left
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.local.process import ServerProcess
from rolloutpipe_core.local.valkey import start_valkey

Command = list[bytes]


def units(data: bytes) -> Iterator[tuple[int, list[Command]]]:
    """(offset, commands) of each whole unit of an append-only file in RESP."""
    position, start = 0, 0
    unit: list[Command] = []
    while position < len(data):
        command, position = _command(data, position)
        unit.append(command)
        if unit[0][0].upper() != b"MULTI" or command[0].upper() == b"EXEC":
            yield start, unit
            start, unit = position, []


def _command(data: bytes, position: int) -> tuple[Command, int]:
    """The command at a position, and where the next one begins: *2 $6 SELECT $1 0."""
    count, position = _number(data, position, b"*")
    command = []
    for _ in range(count):
        length, position = _number(data, position, b"$")
        command.append(data[position : position + length])
        position += length + 2
    return command, position


def _number(data: bytes, position: int, kind: bytes) -> tuple[int, int]:
    end = data.index(b"\r\n", position)
    assert data[position : position + 1] == kind
    return int(data[position + 1 : end]), end + 2


def told(unit: list[Command]) -> Iterator[Mapping[str, str]]:
    """The ledger events that a unit appended."""
    for command in unit:
        if command[0].upper() == b"XADD" and command[1].endswith(b":ledger"):
            words = [word.decode() for word in command[3:]]
            yield dict(zip(words[::2], words[1::2], strict=True))


@dataclass
class ForgetfulValkey:
    """A server of a test's own, whose latest writes can be lost."""

    server: ServerProcess
    data: Path
    log: Path
    password: str

    def lose_from(self, lost: Callable[[Mapping[str, str]], bool]) -> int:
        """Lose the newest unit that appended such a ledger event, and all after it. Returns how many units it were."""
        self.server.kill()
        (file,) = (self.data / "appendonlydir").glob("*.incr.aof")
        written = file.read_bytes()
        starts = [(start, any(map(lost, told(unit)))) for start, unit in units(written)]
        cut = max(start for start, is_it in starts if is_it)
        file.write_bytes(written[:cut])
        port = self.server.port
        self.server = start_valkey(self.data, self.log, self.password, die_with_parent=True, port=port)
        return sum(start >= cut for start, _ in starts)
