"""`doctor`."""

from __future__ import annotations

import typer

from rolloutpipe_core.cli.options import AsJson, Bucket

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


def doctor(bucket: Bucket = "rolloutpipe", as_json: AsJson = False) -> None:
    """Check Redis and S3: credentials, versions, settings, clocks, conditional writes. Exit 1 when a check fails."""
    from rich.text import Text

    from rolloutpipe_core.cli.connect import DEADLINE_S, store_of
    from rolloutpipe_core.cli.output import console, print_json, table
    from rolloutpipe_core.config.connections import Connections
    from rolloutpipe_core.observe.doctor import examine

    connections = Connections.read()
    checks = examine(connections.redis.client(), store_of(bucket, connections), DEADLINE_S)
    if as_json:
        print_json(checks)
    else:
        rows = [
            (check.subject, Text(check.verdict, COLOURS[check.verdict]), check.found, check.remedy) for check in checks
        ]
        console().print(table("", ("what", "verdict", "found", "do"), rows))
    if any(check.verdict == "failed" for check in checks):
        raise typer.Exit(1)
