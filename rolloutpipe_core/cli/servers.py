"""`up` and `down`: embedded servers that outlive the command."""

from __future__ import annotations

from pathlib import Path

import typer


def up() -> None:
    """Start an embedded Redis (Valkey) and S3 (SeaweedFS) for this folder; they run until `rolloutpipe down`."""
    from rolloutpipe_core.local.servers import LocalServers
    from rolloutpipe_core.local.state import credentials_path

    servers = LocalServers.start(Path(), die_with_parent=False)
    typer.echo("started:" if servers.started_here else "already running:")
    typer.echo(f"  Redis  127.0.0.1:{servers.redis.port}")
    typer.echo(f"  S3     http://127.0.0.1:{servers.s3.port}")
    typer.echo(f"  credentials (mode 0600): {credentials_path(servers.directory)}")
    typer.echo("Commands started in this folder find them; the data stays in .rolloutpipe/ after `rolloutpipe down`.")


def down() -> None:
    """Stop the embedded servers of this folder. Their data stays."""
    from rolloutpipe_core.local.servers import stop_servers

    typer.echo("stopped" if stop_servers(Path()) else "no embedded server was running in this folder")
