"""`python -m rolloutpipe_benchmarks.schedules`."""

from __future__ import annotations

import typer


def main() -> None:
    """Measure the schedules side by side."""


if __name__ == "__main__":
    typer.run(main)
