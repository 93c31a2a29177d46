"""Commands that keep a version's weights from being deleted: `pin`, `unpin`, `pins`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpipe_core.cli.options import AsJson, Bucket, RunName, RunOption

if TYPE_CHECKING:
    from rolloutpipe_core.ledger.retention import Pins

DURATION = re.compile(r"(?=.)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
LONGEST_S = 3650 * 86_400

Version = Annotated[int, typer.Argument(metavar="VERSION", min=0, help="Number of the version.", show_default=False)]


def pin(
    version: Version,
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, as 2h, 1d12h or 90m.")] = "2h",
    reason: Annotated[str, typer.Option(help="Whom it serves; the same reason again moves the end.")] = "by hand",
    run: RunOption = None,
    bucket: Bucket = "rolloutpipe",
) -> None:
    """Keep a version's weights until the pin ends, for an evaluation, an export or a replica."""
    from rolloutpipe_core.cli.connect import reader_of, store_of
    from rolloutpipe_core.retention.pinning import pin_version

    seconds = duration_s(duration)
    name = reader_of(run).keys.name
    pin_version(_pins(name), store_of(bucket), name, version, reason, seconds)
    typer.echo(f"version {version} of run {name} stays for {duration}: {reason}")


def unpin(
    version: Version,
    reason: Annotated[str | None, typer.Option(help="Only the pin of this reason; without it, all of them.")] = None,
    run: RunOption = None,
) -> None:
    """End the pins of a version."""
    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.errors import BadInput

    name = reader_of(run).keys.name
    ended = _pins(name).unpin(version, reason)
    if not ended:
        raise BadInput(
            f"version {version} of run {name} has no such pin",
            given="any reason" if reason is None else f"reason {reason!r}",
            remedy="`rolloutpipe pins` lists them",
        )
    typer.echo(f"version {version} of run {name}: {len(ended)} pin{'s' if len(ended) > 1 else ''} ended")


def pins(run: RunName = None, as_json: AsJson = False) -> None:
    """Versions whose weights are pinned, and until when."""
    from datetime import timedelta

    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.cli.output import console, print_json, table

    reader = reader_of(run)
    name, now_ms = reader.keys.name, reader.server_time_ms()
    found = _pins(name).pins()
    if as_json:
        print_json({"run": name, "pins": found})
        return
    left = [timedelta(seconds=max(pin.until_ms - now_ms, 0) // 1000) for pin in found]
    rows = [(str(pin.version), pin.sha, str(rest), pin.reason) for pin, rest in zip(found, left, strict=True)]
    console().print(table(f"{name}, pins", ("version", "weights", "ends in", "reason"), rows, numbers=("version",)))


def duration_s(text: str) -> float:
    """`duration_s("1h30m") == 5400.0`; raises BadInput unless it is more than nothing and at most ten years."""
    from rolloutpipe_core.errors import BadInput

    match = DURATION.fullmatch(text)
    days, hours, minutes, rest = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if not 0 < total <= LONGEST_S:
        expected = "days, hours, minutes, seconds, as 2h, 1d12h or 90m, at most 3650d"
        raise BadInput("not a time", given=repr(text[:80]), expected=expected)
    return float(total)


def _pins(run: str) -> Pins:
    from rolloutpipe_core.cli.connect import DEADLINE_S
    from rolloutpipe_core.config.connections import Connections
    from rolloutpipe_core.ledger.client import LedgerClient
    from rolloutpipe_core.ledger.retention import Pins

    return Pins(LedgerClient(Connections.read().redis.client(), run, DEADLINE_S))
