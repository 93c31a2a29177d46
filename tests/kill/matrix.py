"""The kill matrix: `python -m tests.kill.matrix --kills 240 --seed 1`, which `make kill-test` calls.

Lanes play runs side by side, each with servers and a zygote of its own. A run's end is judged by the independent
checker (history.py), by `audit`, and against the undisturbed run of its configuration, or, where timing decides which
groups share an update, against its own commits trained again (replay.py). The summary is written as JSON
and shown as a table; the folder of a run that failed stays, with the logs of its services and what was done when.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from rolloutpipe_core.cli.start import INTERRUPTED
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local import leash
from rolloutpipe_core.observe.audit import audit_run
from rolloutpipe_core.store.objects import ObjectStore

from .conductor import Conductor, Played, RunFailed
from .deeds import Deed
from .evidence import read_evidence, samples_of
from .history import Evidence, History, Link, check
from .plan import POINTS, VARIANTS, RunPlan, config_of, plan_missed, plan_runs
from .replay import replayed_weights
from .stage import BUCKET, ROOT, Stage

DEADLINE_S = 300.0
"""Of one run: several times what a loaded machine needs."""
TOP_UPS, MOST_TOP_UPS = 10_000, 8
"""Number of the first run that makes good what others missed, and how many a lane plays."""
ALL_POINTS = 240
"""A matrix of so many kills is at every point."""
LANE_END_S = 20.0
FAILURES = Path(".rolloutpipe") / "kill-test"


@dataclass
class Report:
    """One run, as a lane reports it."""

    number: int
    variant: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    bit_equal: bool | None = None  # to the undisturbed run, or (in completion order) to the commits trained again
    final: str = ""  # manifest sha256 of the last version
    faults: list[str] = field(default_factory=list)
    folder: str = ""


class Lane:
    """Plays every n-th run of a plan on a stage of its own."""

    def __init__(self, stage: Stage, failures: Path) -> None:
        self._stage, self._failures = stage, failures
        self._undisturbed: dict[str, Evidence] = {}
        self._prefix = f"kill-{secrets.token_hex(3)}"

    def reports(self, plans: list[RunPlan]) -> Iterator[Report]:
        """One report a run; what did not come about as planned is made good in runs of its own."""
        wanted = {deed.point for plan in plans for deed in plan.deeds if deed.point and deed.is_kill}
        done = list[dict[str, Any]]()
        for plan in plans:
            report = self.report(plan)
            done += report.kills
            yield report
        for number in range(MOST_TOP_UPS):
            missed = sorted(wanted - {kill["point"] for kill in done})
            if not missed and len(done) >= sum(plan.kills for plan in plans):
                return
            report = self.report(plan_missed(TOP_UPS + number, missed or sorted(wanted)[number:]))
            done += report.kills
            yield report

    def report(self, plan: RunPlan) -> Report:
        report = Report(plan.number, plan.variant)
        run = f"{self._prefix}-{plan.number}"
        if plan.variant not in self._undisturbed:
            name = f"{self._prefix}-{plan.variant}"
            undisturbed = self._play(plan.variant, name, (), report)
            if undisturbed is None:
                return report
            self._undisturbed[plan.variant] = undisturbed
        evidence = self._play(plan.variant, run, plan.deeds, report)
        if evidence is not None:
            self._compare_weights(plan, run, evidence, report)
        if evidence is not None and not report.faults:
            report.faults += self._other_samples(plan, evidence)
        return report

    def _compare_weights(self, plan: RunPlan, run: str, evidence: Evidence, report: Report) -> None:
        made = [sha for _, sha in _versions(evidence)]
        if VARIANTS[plan.variant].bit_equal:
            report.final, other = made[-1], "the undisturbed run"
            report.bit_equal = made == [sha for _, sha in _versions(self._undisturbed[plan.variant])]
        else:
            config = RunConfig.model_validate(config_of(plan.variant, run))
            other = "their commits' groups, trained again in the recorded order"
            report.bit_equal = made[1:] == list(replayed_weights(evidence, config))
        if not report.bit_equal:
            report.faults.append(f"the weights are not those of {other}")

    def _play(self, variant: str, run: str, deeds: tuple[Deed, ...], report: Report) -> Evidence | None:
        """Play one run and judge it; None when it did not end."""
        folder = Path(tempfile.mkdtemp(prefix=f"{run}-", dir=self._stage.folder))
        options = VARIANTS[variant].resume_options
        conductor = Conductor(self._stage, folder, config_of(variant, run), deeds, DEADLINE_S, options)
        faults, evidence = list[str](), None
        try:
            conductor.play()
            evidence = read_evidence(self._stage.redis, self._stage.s3, BUCKET, run)
            faults += [str(violation) for violation in check(evidence)]
            faults += self._audit(run)
        except RunFailed as error:
            faults.append(str(error))
        except Exception:  # what the run has left behind can't even be judged
            faults.append(traceback.format_exc())
        played = conductor.played
        report.seconds += played.seconds
        report.kills += [_kill(deed, who) for deed, who in played.done if deed.is_kill]
        report.missed += [str(deed) for deed in played.missed]
        report.faults += faults
        if faults:
            report.folder = str(self._keep(folder, played, faults))
        shutil.rmtree(folder)
        return evidence

    def _audit(self, run: str) -> list[str]:
        """The command's own judgement must be the same."""
        store = ObjectStore(self._stage.s3, BUCKET)
        audit = audit_run(LedgerReader(self._stage.redis, run, open_store=lambda bucket: store), store)
        return [] if audit.passed else [f"audit: {finding}" for finding in audit.findings]

    def _other_samples(self, plan: RunPlan, evidence: Evidence) -> list[str]:
        """Samples, group by group, against the undisturbed run; in completion order only those of the first round."""
        undisturbed, disturbed = History(self._undisturbed[plan.variant]), History(evidence)
        variant = VARIANTS[plan.variant]
        rounds = len(disturbed.commits) if variant.bit_equal else 1
        pairs = list(zip(undisturbed.commits, disturbed.commits, strict=True))[:rounds]
        differ = [
            before.body["round"]
            for before, after in pairs
            if (variant.all_groups and before.trained.keys() != after.trained.keys())
            or not _same_samples(undisturbed, before, disturbed, after)
        ]
        return [f"round {round}: the samples are not those of the undisturbed run" for round in differ]

    def _keep(self, folder: Path, played: Played, faults: list[str]) -> Path:
        """The logs of a run that failed, with its story."""
        kept = self._failures / folder.name
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns(".rolloutpipe", "*.sock"))
        for log in ("valkey.log", "seaweedfs.log"):
            shutil.copy(self._stage.folder / log, kept / log)
        (kept / "story.txt").write_text("\n".join([*played.story, "", *faults, ""]))
        return kept


def _versions(evidence: Evidence) -> list[tuple[str, str]]:
    """(number, manifest sha256) of every version that the chain makes."""
    return [link.version for link in History(evidence).links]


def _same_samples(one: History, before: Link, other: History, after: Link) -> bool:
    """Whether the groups that both commits hold have the same samples; what one run has let go is not compared."""
    mine, theirs = before.trained, after.trained
    keys = [(mine[group][2]["object"], theirs[group][2]["object"]) for group in mine.keys() & theirs.keys()]
    kept = [pair for pair in keys if pair[0] in one.evidence.keys and pair[1] in other.evidence.keys]
    return all(samples_of(one.evidence, key) == samples_of(other.evidence, its) for key, its in kept)


def _kill(deed: Deed, who: str) -> dict[str, Any]:
    signal = "SIGKILL" if deed.kind == "kill" else "SIGSTOP"
    return {"target": who, "signal": signal, "kind": deed.kind, "point": deed.point}


def run_lane(plans: list[RunPlan], failures: Path) -> None:
    """Play these runs, one line of JSON a run."""
    with tempfile.TemporaryDirectory(prefix="rolloutpipe-kill-") as folder, Stage(Path(folder)) as stage:
        for report in Lane(stage, failures).reports(plans):
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
            sys.stdout.flush()


def run_matrix(seed: int, kills: int, lanes: int, failures: Path) -> dict[str, Any]:
    """Play the whole matrix; returns its summary."""
    started, reports = time.monotonic(), list[dict[str, Any]]()

    def follow(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            reports.append(report)
            _show(report, sum(len(each["kills"]) for each in reports))

    shares = [_start_lane(seed, kills, lane, lanes, failures) for lane in range(lanes)]
    followers = [Thread(target=follow, args=(process,)) for process in shares]
    try:
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()
    finally:
        _end(shares)
    crashed = [f"lane {lane} ended with status {process.wait()}" for lane, process in enumerate(shares)]
    crashed = [line for line in crashed if not line.endswith(" 0")]
    return summary(seed, reports, time.monotonic() - started, crashed)


def _end(lanes: list[subprocess.Popen[str]]) -> None:
    """Those that still play unwind, so that their folders go with them."""
    for lane in lanes:
        lane.send_signal(signal.SIGINT)
    for lane in lanes:
        with suppress(subprocess.TimeoutExpired):
            lane.wait(LANE_END_S)
        lane.kill()


def _start_lane(seed: int, kills: int, lane: int, lanes: int, failures: Path) -> subprocess.Popen[str]:
    numbers = {"seed": seed, "kills": kills, "lane": lane, "lanes": lanes, "failures": failures.resolve()}
    options = [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable]
    command = [*leashed, "-m", __package__ + ".matrix", *options]
    # In a group of its own: Ctrl-C is ours, and a lane is told once.
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0)


def summary(seed: int, reports: list[dict[str, Any]], seconds: float, crashed: list[str]) -> dict[str, Any]:
    """What the matrix has shown, for a file."""
    kills = [kill for report in reports for kill in report["kills"]]
    by_point = Counter(kill["point"] for kill in kills if kill["point"])
    finals = {(report["variant"], report["final"]) for report in reports if report["final"]}
    compared = [report["bit_equal"] for report in reports if report["bit_equal"] is not None]
    return {
        "seed": seed,
        "kills": len(kills),
        "runs": len(reports),
        "seconds": round(seconds, 1),
        "by_target": dict(sorted(Counter(f"{kill['target']} {kill['signal']}" for kill in kills).items())),
        "at_points": sum(by_point.values()),
        "at_random_instants": len(kills) - sum(by_point.values()),
        "by_point": {point: by_point[point] for point in POINTS},
        "runs_by_variant": dict(Counter(report["variant"] for report in reports)),
        "missed": sum(len(report["missed"]) for report in reports),
        "weights_compared": len(compared),
        "weights_bit_equal": sum(compared),
        "final_weights": {
            variant: sorted(sha for name, sha in finals if name == variant) for variant, _ in sorted(finals)
        },
        "violations": crashed + [f"{_name(report)}: {fault}" for report in reports for fault in report["faults"]],
        "kept": [report["folder"] for report in reports if report["folder"]],
    }


def _name(report: dict[str, Any]) -> str:
    return f"run {report['number']} ({report['variant']})"


def _show(report: dict[str, Any], kills: int) -> None:
    verdict = {True: "weights bit-equal", False: "WEIGHTS DIFFER", None: "weights not compared"}[report["bit_equal"]]
    faults = f"  {len(report['faults'])} FAULTS, see {report['folder']}" if report["faults"] else ""
    missed = f", {len(report['missed'])} missed" if report["missed"] else ""
    line = f"run {report['number']:5} {report['variant']:10} {len(report['kills'])} kills{missed}"
    sys.stderr.write(f"{line} {report['seconds']:6.1f} s  {verdict}{faults}  [{kills}]\n")


def table(result: dict[str, Any]) -> str:
    """The summary, for people."""
    lines = [f"seed {result['seed']}: {result['kills']} kills in {result['runs']} runs, {result['seconds']} s"]
    lines += [f"  {count:4}  {what}" for what, count in result["by_target"].items()]
    lines.append(f"  {result['at_points']} at named points, {result['at_random_instants']} at random instants")
    pairs = [f"{point} {count}" for point, count in result["by_point"].items()]
    lines += ["  " + "  ".join(f"{pair:24}" for pair in pairs[at : at + 4]) for at in range(0, len(pairs), 4)]
    lines.append(f"weights bit-equal in {result['weights_bit_equal']} of {result['weights_compared']} compared runs")
    lines += [f"  {variant:10} {', '.join(shas)}" for variant, shas in result["final_weights"].items()]
    lines.append(f"violations: {len(result['violations'])}")
    lines += [f"  {violation}" for violation in result["violations"]]
    lines += [f"  kept: {folder}" for folder in result["kept"]]
    return "\n".join(lines)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="kill-test", description="Kill everything, everywhere; then check.")
    parser.add_argument("--kills", type=_at_least_one, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=_at_least_one, default=2, help="runs at a time")
    parser.add_argument("--lane", type=int, default=None, help="play this lane's share alone")
    parser.add_argument("--only", type=int, default=None, help="play this run of the matrix alone, and show its report")
    parser.add_argument("--failures", type=Path, default=FAILURES, help="where folders of failed runs are kept")
    parser.add_argument("--out", type=Path, default=FAILURES.with_suffix(".json"))
    options = parser.parse_args()
    plans = plan_runs(options.seed, options.kills)
    if options.only is not None:
        if options.only not in range(len(plans)):
            parser.error(f"argument --only: {options.only} is no run of this matrix, which has 0 to {len(plans) - 1}")
        plans = plans[options.only : options.only + 1]
        for deed in plans[0].deeds:
            sys.stderr.write(f"{deed}\n")
    if options.only is not None or options.lane is not None:
        run_lane(plans[options.lane or 0 :: options.lanes], options.failures)
        return 0
    result = run_matrix(options.seed, options.kills, options.lanes, options.failures)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(table(result) + "\n")
    unreached = [point for point, count in result["by_point"].items() if count == 0]
    if unreached:
        sys.stdout.write(f"points without a kill: {', '.join(unreached)}\n")
    incomplete = result["kills"] < options.kills or (unreached and options.kills >= ALL_POINTS)
    return 1 if result["violations"] or incomplete else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
