"""A whole run on this machine: both services as children, a live display, a table and a report at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.cli.connect import store_of
from rolloutpipe_core.cli.output import console
from rolloutpipe_core.cli.processes import service_children, service_environment
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local.supervise import Supervisor
from rolloutpipe_core.observe.live import watch
from rolloutpipe_core.observe.report import build_report, write_report

DISPLAY_DEADLINE_S = 2.0
"""The display may not stand still for an outage: whether a service died is asked between two looks."""


@dataclass(frozen=True, slots=True)
class Job:
    config: RunConfig
    file: Path
    overrides: Sequence[str]
    report: tuple[Path, Path]  # the page, and the same numbers as JSON


def run_job(job: Job, connections: Connections) -> None:
    """Run to the end. Raises ServiceFailed when a service fails; both are stopped whatever happens."""
    client = connections.redis.client()
    reader = LedgerReader(client, job.config.run, DISPLAY_DEADLINE_S, lambda bucket: store_of(bucket, connections))
    children = service_children(job.config, job.file, job.overrides)
    with Supervisor(children, service_environment(os.environ)) as services:

        def running() -> bool:
            services.raise_failure()
            return bool(services.running())

        timelines = watch(reader, console(), running)
    html, data = job.report
    write_report(build_report(job.config, timelines, round(time.time() * 1000)), html, data)
    console().print(f"report: {html}, {data}", highlight=False)
