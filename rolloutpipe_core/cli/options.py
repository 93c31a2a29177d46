"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.", show_default=False)]

Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        default_factory=list,
        help="Set a key of the configuration, for example schedule.rounds=10. May be repeated.",
        show_default=False,
    ),
]

RunName = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Name of the run; without it, the newest one.", show_default=False),
]

RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Name of the run; without it, the newest one.", show_default=False),
]

GroupId = Annotated[
    str, typer.Argument(metavar="GROUP", help="A group, for example r000012-g0034.", show_default=False)
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

Bucket = Annotated[str, typer.Option("--bucket", help="Bucket of the run (key `bucket` of its configuration).")]
