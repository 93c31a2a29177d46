"""The measurements as tables: for a terminal, and as Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table as RichTable

from rolloutpipe_core.cli.output import table

from .handover import Latency, Throughput
from .long_ledger import LongLedger
from .real_run import RealRun

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured."""

    machine: Mapping[str, str]
    latency: Mapping[str, Latency]  # by load: idle, both cores busy
    throughput: Throughput
    runs: Sequence[RealRun]
    ledger: LongLedger


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Row
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.columns), _line(tuple("---" for _ in self.columns))]
        return "\n".join([*lines, *map(_line, self.rows)]) + "\n"

    def rich(self) -> RichTable:
        return table(self.title, self.columns, self.rows, numbers=self.columns[1:])


def tables(report: Report) -> list[Table]:
    return [
        _latency(report.latency),
        _throughput(report.throughput),
        critical_paths("The added critical path of real rounds (pointer walk, U = 2)", report.runs),
        _memory(report.ledger),
        _readers(report.ledger),
    ]


def markdown(report: Report) -> str:
    return "\n".join(one.markdown() for one in tables(report))


def view(report: Report) -> Group:
    return Group(*(one.rich() for one in tables(report)))


def _latency(latency: Mapping[str, Latency]) -> Table:
    columns = ("machine", "groups", "p50", "p99", "p50 to the announcement", "p50 from there to tensors")
    rows = tuple(
        (
            load,
            str(one.groups),
            *(f"{ms:.1f} ms" for ms in (one.p50_ms, one.p99_ms, one.announced_p50_ms, one.tensors_p50_ms)),
        )
        for load, one in latency.items()
    )
    return Table("One group of 16 x 512 tokens, from materialized to tensors in the trainer", columns, rows)


def _throughput(one: Throughput) -> Table:
    columns = ("", "groups/s", "MB/s")
    megabytes = one.group_bytes / 1e6
    rows = (
        ("hand-over, materialized to tensors", f"{one.groups_s:.0f}", f"{one.groups_s * megabytes:.1f}"),
        ("the same bytes by boto3 alone", f"{one.bare_groups_s:.0f}", f"{one.bare_groups_s * megabytes:.1f}"),
        (
            "the same bytes by libcurl alone",
            f"{one.same_client_groups_s:.0f}",
            f"{one.same_client_groups_s * megabytes:.1f}",
        ),
        ("ratio to boto3 alone, median (least to most)", f"{one.ratio:.2f} ({one.least:.2f} to {one.most:.2f})", ""),
        ("ratio to libcurl alone, median", f"{one.same_client_ratio:.2f}", ""),
    )
    title = f"Saturated: {one.groups} groups of {one.group_bytes} bytes, {one.at_once} at once, {one.turns} turns"
    return Table(title, columns, rows)


def critical_paths(title: str, runs: Sequence[RealRun]) -> Table:
    columns = (
        "schedule",
        "groups a round",
        "round",
        "blocked by fetch or verification",
        "first group",
        "last group",
        "share of the round",
        "all standstill",
    )
    rows = tuple(
        (
            run.schedule,
            f"{run.groups_per_round} x {run.samples_per_group}",
            f"{run.round_s:.1f} s",
            f"{run.blocked_ms:.0f} ms",
            f"{run.first_ms:.0f} ms",
            f"{run.last_ms:.0f} ms",
            f"{run.handoff_share:.2%}",
            f"{run.standstill_share:.2%}",
        )
        for run in runs
    )
    return Table(title, columns, rows)


def _memory(ledger: LongLedger) -> Table:
    memory = ledger.memory
    columns = ("Redis's bytes a group", "all", "ledger", "FIFO", "the group's hash")
    parts = (memory.group_bytes, memory.ledger_bytes, memory.fifo_bytes, memory.hash_bytes)
    return Table("Redis memory", columns, ((f"{ledger.groups} groups", *(f"{part:.0f}" for part in parts)),))


def _readers(ledger: LongLedger) -> Table:
    columns = ("command", "time", "peak memory")
    costs = {
        "status": ledger.status,
        "timeline (newest round)": ledger.timeline,
        "report (all rounds)": ledger.report,
        f"audit ({ledger.objects} objects read)": ledger.audit,
    }
    rows = tuple((name, f"{cost.seconds:.2f} s", f"{cost.peak_mib:.0f} MiB") for name, cost in costs.items())
    title = f"A ledger of {ledger.groups} groups in {ledger.rounds} rounds, {ledger.events} events, none archived"
    return Table(title, columns, rows)


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"
