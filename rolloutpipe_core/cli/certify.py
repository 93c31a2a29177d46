"""`certify`: a configuration under every schedule, compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpipe_core.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolloutpipe_core.certify.certification import Certification, Result
    from rolloutpipe_core.certify.trials import Trial
    from rolloutpipe_core.config.connections import Connections
    from rolloutpipe_core.config.models import RunConfig

POLL_S = 0.2
NOT_CERTIFIED = 1


def certify(
    config: ConfigFile,
    overrides: Overrides,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run; always 1 with --tolerance.")] = 2,
    workers: Annotated[str, typer.Option(help="Numbers of rollout workers to try.")] = "1,2",
    schedule: Annotated[
        list[str] | None, typer.Option(help="Try this schedule; may be repeated.", show_default="all of them")
    ] = None,
    tolerance: Annotated[
        bool, typer.Option("--tolerance", help="Without `deterministic`: compare the first round within rounding.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Where the certificate goes.")] = Path("certificate.json"),
    local: Annotated[
        bool, typer.Option("--local", help="Start embedded servers for these runs; they end with them.")
    ] = False,
) -> None:
    """Certify that the schedule changes only time: run CONFIG under every schedule, and compare.

    `deterministic` is set, and what the configuration promises must be the same to the bit. Exit 1, with the first
    difference, when it is not. Certified runs are removed again, others stay.
    """
    import json
    import os
    from contextlib import nullcontext
    from datetime import UTC, datetime

    from rolloutpipe_core.certify.certificate import certificate
    from rolloutpipe_core.certify.trials import plan_trials
    from rolloutpipe_core.cli.connect import check_output
    from rolloutpipe_core.cli.processes import service_environment
    from rolloutpipe_core.config.connections import Connections
    from rolloutpipe_core.config.load import load_config
    from rolloutpipe_core.errors import BadInput
    from rolloutpipe_core.local.servers import LocalServers

    check_output("certificate", output, "certificate.json")
    forced = [f"deterministic={str(not tolerance).lower()}", f"schedule.rounds={1 if tolerance else rounds}"]
    base = load_config(config, [*overrides, *forced])
    trials = plan_trials(base, config, overrides, schedule or (), workers)
    if output.exists() and output.samefile(config):
        raise BadInput("the certificate would replace the config", given=str(output), expected="another file")
    with LocalServers.start(Path(), die_with_parent=True) if local else nullcontext() as servers:
        connections = servers.connections if servers else Connections.read()
        output.unlink(missing_ok=True)  # an earlier one must not stand for a certification that fails
        certification = _compare(base, config, trials, connections)
    threads = "1" if base.deterministic else service_environment(os.environ)["OMP_NUM_THREADS"]
    output.write_text(json.dumps(certificate(certification, threads, datetime.now(UTC)), indent=1) + "\n")
    _print(certification, output)
    if not certification.certified:
        raise typer.Exit(NOT_CERTIFIED)


def _compare(base: RunConfig, file: Path, trials: Sequence[Trial], connections: Connections) -> Certification:
    """Run all trials, one after the other. Those of a certified configuration leave nothing behind."""
    from rolloutpipe_core.certify.certification import Certification
    from rolloutpipe_core.certify.cleanup import remove_run
    from rolloutpipe_core.cli.output import console
    from rolloutpipe_core.store.objects import ObjectStore

    store = ObjectStore(connections.s3.client(), base.bucket, base.deadlines.store_s)
    certification = Certification(base, store)
    for trial in trials:
        console().print(f"{trial.variant}: run {trial.config.run} ...", highlight=False)
        result = certification.add(trial.variant, trial.config.run, _serve(trial, file))
        console().print(f"  {_verdict(certification, result)}, {result.seconds:g} s", highlight=False)
    if certification.certified:
        for trial in trials:
            remove_run(store, connections.redis.client(), trial.config.run, base.deadlines.redis_s)
    return certification


def _serve(trial: Trial, file: Path) -> float:
    """One run to its end; returns its seconds. Raises ServiceFailed when a service fails."""
    import os
    import time

    from rolloutpipe_core.cli.processes import service_children, service_environment
    from rolloutpipe_core.local.supervise import Supervisor

    start = time.monotonic()
    children = service_children(trial.config, file, trial.overrides)
    with Supervisor(children, service_environment(os.environ)) as services:
        while services.running():
            services.raise_failure()
            time.sleep(POLL_S)
        services.raise_failure()
    return time.monotonic() - start


def _verdict(certification: Certification, result: Result) -> str:
    if result is certification.results[0]:
        return "the first run"
    if result.difference is not None:
        return f"differs: {result.difference}"
    near = result.closeness
    if near is None:
        return "the same as the first"
    told = f"log-probabilities within {near.logprob:.2g}, {near.parted} of {near.samples} samples part at a tie"
    return told if near.movement is None else f"{told}, weights within {near.movement:.2g} of their movement"


def _print(certification: Certification, output: Path) -> None:
    from rolloutpipe_core.cli.output import console, table

    columns = ("schedule", "workers", "samples", "weights", "s", "compared")
    rows = [
        (
            result.schedule,
            str(result.workers),
            " ".join(sha[:8] for sha in result.samples),
            " ".join(sha[:8] for sha in result.weights[1:]),
            f"{result.seconds:.1f}",
            _verdict(certification, result),
        )
        for result in certification.results
    ]
    verdict = "certified" if certification.certified else "NOT certified"
    how = "to the bit" if certification.config.deterministic else "within rounding"
    title = f"{certification.config.run}: {verdict} {how}, {certification.promise}"
    console().print(table(title, columns, rows, numbers=("workers", "s")))
    if not certification.moved:
        console().print(
            "warning: no round moved the weights, so that their equality shows nothing; "
            "do: take more or longer samples, until the rewards within a group differ",
            highlight=False,
        )
    if not certification.certified:
        names = ", ".join(result.run for result in certification.results)
        console().print(f"these runs stay, to be looked at: {names}", highlight=False)
    console().print(f"certificate: {output}", highlight=False)
