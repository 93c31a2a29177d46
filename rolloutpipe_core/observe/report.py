"""A run's report: report.json, and report.html with the same numbers drawn, which needs nothing but itself."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rolloutpipe_core import __version__
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.observe.measures import RoundMetrics, all_round_metrics
from rolloutpipe_core.observe.timeline import RoundTimeline, Timelines


@dataclass(frozen=True, slots=True)
class Report:
    """What a report is made of."""

    config: RunConfig
    timelines: Sequence[RoundTimeline]
    rounds: Sequence[RoundMetrics]
    versions: Sequence[dict[str, Any]]  # number, sha, published_ms, commit
    stop_reason: str
    made_ms: int

    @property
    def finished(self) -> list[RoundMetrics]:
        """The rounds that were published."""
        return [metrics for metrics in self.rounds if metrics.state == "published"]


def build_report(config: RunConfig, timelines: Timelines, made_ms: int) -> Report:
    """`made_ms`: the time to show as the report's own, ms since 1970."""
    lines = timelines.rounds()
    versions = [
        {"number": number, "sha": event.version.sha, "published_ms": event.at_ms, "commit": event.commit}
        for number, event in sorted(timelines.versions.items())
    ]
    return Report(config, lines, all_round_metrics(lines), versions, timelines.stop_reason, made_ms)


def report_json(report: Report) -> dict[str, Any]:
    """The report as plain data. Durations are seconds; null: not known, or nothing to measure."""
    return {
        "run": report.config.run,
        "rolloutpipe": __version__,
        "made": datetime.fromtimestamp(report.made_ms / 1000, UTC).isoformat(timespec="seconds"),
        "schedule": report.config.schedule.kind,
        "stop_reason": report.stop_reason,
        "config": report.config.model_dump(mode="json"),
        "versions": list(report.versions),
        "rounds": [_plain(asdict(metrics)) for metrics in report.rounds],
    }


def write_report(report: Report, html: Path, data: Path) -> None:
    """Write both files; each appears whole or not at all."""
    from rolloutpipe_core.observe.report_html import report_html

    _write(data, json.dumps(report_json(report), indent=1, allow_nan=False) + "\n")
    _write(html, report_html(report))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN or infinity: what is not finite is not known."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    whole.write_text(text, encoding="utf-8")
    whole.replace(path)
