"""An audit's result for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rolloutpipe_core.observe.audit.model import Audit


def audit_view(audit: Audit) -> RenderableType:
    """The audit's result: what was checked, then each finding."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bright_black")
    facts.add_column()
    facts.add_row("commits", f"{audit.commits}, the genesis included")
    facts.add_row("groups", f"{audit.groups_trained} trained, {audit.groups_ended} ended unused")
    facts.add_row("checked by object", f"rounds {ranges(audit.rounds_by_object)}")
    facts.add_row("by recorded hash only", f"rounds {ranges(audit.rounds_by_hash)}")
    facts.add_row("ledger", f"{audit.events} events, {audit.rounds_in_ledger} committed rounds compared")
    if audit.groups_mended:
        facts.add_row("", f"{audit.groups_mended} groups were trained by a commit whose assignment Redis had lost")
    facts.add_row("weights", f"{audit.manifests} manifests checked, {audit.manifests_retired} retired")
    verdict = Text("passed: every group once, by the version that sampled it", style="bold green")
    if not audit.passed:
        verdict = Text(f"FAILED: {len(audit.findings)} findings", style="bold red")
    findings = [Text(str(finding), style="red") for finding in audit.findings]
    return Group(Text.assemble((f"audit of {audit.run} ", "bold"), verdict), facts, *findings)


def ranges(numbers: Sequence[int]) -> str:
    """`ranges([0, 1, 2, 5]) == "0-2, 5"`; nothing: "none"."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts) or "none"
