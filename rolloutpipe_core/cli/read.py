"""Commands that look at a run: they read Redis and the object store, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpipe_core.cli.options import AsJson, Bucket, GroupId, RunName, RunOption

if TYPE_CHECKING:
    from rolloutpipe_core.domain import Sample
    from rolloutpipe_core.errors import BadInput
    from rolloutpipe_core.ledger.reader import LedgerReader

Round = Annotated[int | None, typer.Option("--round", min=0, help="The round; without it, the newest one.")]


def status(run: RunName = None, as_json: AsJson = False) -> None:
    """What the run does now: round, groups by state, FIFO, versions, and who waits for what since when."""
    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.cli.output import console, print_json
    from rolloutpipe_core.observe.status import read_status
    from rolloutpipe_core.observe.terminal import status_view

    now = read_status(reader_of(run))
    if as_json:
        print_json(now)
    else:
        console().print(status_view(now))


def groups(run: RunName = None, round: Round = None, as_json: AsJson = False) -> None:
    """A round's groups in submission order, with their states."""
    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.cli.output import console, print_json, table

    reader = reader_of(run)
    newest = reader.current_round()
    if round is not None and not reader.round_state(round):
        raise _archived(reader, round) if round <= reader.archived_round() else _no_such_round(reader, round)
    number = newest if round is None else round
    rows = [] if number is None else reader.groups(number)
    if as_json:
        print_json({"run": reader.keys.name, "round": number, "groups": rows})
        return
    columns = ("id", "state", "attempt", "worker", "update", "samples", "tokens", "reward_mean", "reward_std", "reason")
    cells = [[row.get(column, "") for column in columns] for row in rows]
    title = f"{reader.keys.name}, round {number}"
    console().print(table(title, columns, cells, numbers=("attempt", "update", *columns[5:9])))


def show(group: GroupId, run: RunOption = None, bucket: Bucket = "rolloutpipe", as_json: AsJson = False) -> None:
    """One group: its present state, and its samples when its object is there."""
    from rolloutpipe_core.cli.connect import reader_of, store_of
    from rolloutpipe_core.cli.output import console, print_json, table
    from rolloutpipe_core.domain import parse_group_id
    from rolloutpipe_core.errors import BadInput, ObjectMissing
    from rolloutpipe_core.store.groups import decode_group

    round = parse_group_id(group)[0]
    reader = reader_of(run)
    fields = reader.group(group)
    if not fields and round <= reader.archived_round():
        raise BadInput(
            f"round {round} of run {reader.keys.name} is archived: Redis no longer has its groups' present state",
            given=group,
            remedy=f"`rolloutpipe why {group} --run {reader.keys.name}` tells its history",
        )
    if not fields:
        raise BadInput(
            f"run {reader.keys.name} has no such group",
            given=group,
            remedy="`rolloutpipe groups` lists those of a round",
        )
    fields.pop("nonce", None)  # the lease's fencing token
    samples: list[Mapping[str, object]] = []
    if key := fields.get("object"):
        try:
            samples = [_sample_row(sample) for sample in decode_group(store_of(bucket).get(key)).samples]
        except ObjectMissing:
            typer.echo(f"its object is no longer there (retention.keep_rounds): {key}", err=True)
    if as_json:
        print_json({"run": reader.keys.name, **fields, "sample_list": samples})
        return
    console().print(table(group, ("field", "value"), sorted(fields.items())))
    if samples:
        cells = [[str(value) for value in row.values()] for row in samples]
        console().print(table("samples", list(samples[0]), cells, numbers=list(samples[0])[:5]))


def why(group: GroupId, run: RunOption = None, as_json: AsJson = False) -> None:
    """One group's history in words, with the reason of its end."""
    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.cli.output import console, print_json
    from rolloutpipe_core.domain import parse_group_id
    from rolloutpipe_core.observe.why import group_history, history_view

    round = parse_group_id(group)[0]
    history = group_history(reader_of(run).events(rounds={round}), group)
    if as_json:
        print_json(history)
    else:
        console().print(history_view(history))


def audit(run: RunName = None, bucket: Bucket = "rolloutpipe", as_json: AsJson = False) -> None:
    """Prove from ledger, commits and objects that every group was trained exactly once. Exit 1 when it fails."""
    from rolloutpipe_core.cli.connect import reader_of, store_of
    from rolloutpipe_core.cli.output import console, print_json
    from rolloutpipe_core.observe.audit import audit_run
    from rolloutpipe_core.observe.audit.view import audit_view

    result = audit_run(reader_of(run), store_of(bucket))
    if as_json:
        print_json(result.to_json())
    else:
        console().print(audit_view(result))
    if not result.passed:
        raise typer.Exit(1)


def timeline(
    run: RunName = None,
    round: Round = None,
    last: Annotated[int, typer.Option(min=1, help="How many rounds up to that one.")] = 1,
    svg: Annotated[Path | None, typer.Option(help="Write that one round as a picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rounds as pictures: what each group and the trainer did when."""
    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.cli.output import console, print_json
    from rolloutpipe_core.errors import BadInput
    from rolloutpipe_core.observe.measures import all_round_metrics
    from rolloutpipe_core.observe.terminal import round_view
    from rolloutpipe_core.observe.timeline import Timelines
    from rolloutpipe_core.observe.timeline_svg import timeline_svg

    reader = reader_of(run)
    # A Redis that was emptied may know of the archive's rounds alone.
    end = max(reader.current_round() or 0, reader.archived_round()) if round is None else round
    if end > int(reader.run_state().get("version", 0)):  # round r samples with version r
        raise _no_such_round(reader, end)
    # With the round before: it tells when the period of the first one began.
    lines = Timelines(reader.events(rounds=range(max(end - last, 0), end + 1))).rounds()
    pairs = zip(lines, all_round_metrics(lines), strict=True)
    chosen = [pair for pair in pairs if pair[0].round > end - last]
    if round is not None and (not chosen or chosen[-1][0].round != round):
        raise _no_such_round(reader, round)
    if svg is not None:
        if not chosen:
            raise BadInput(f"run {reader.keys.name} has no round to draw")
        line, metrics = chosen[-1]
        svg.write_text(timeline_svg(line, metrics, reader.keys.name), encoding="utf-8")
        typer.echo(svg)
        return
    if as_json:
        print_json([{"metrics": metrics, "timeline": line} for line, metrics in chosen])
        return
    for line, metrics in chosen:
        console().print(round_view(line, metrics, console().width))


def report(
    run: RunName = None,
    bucket: Bucket = "rolloutpipe",
    output: Annotated[Path, typer.Option(help="The page; its JSON is written beside it.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write the run's report: one self-contained page, and the same numbers as JSON (--json: print only these)."""
    from rolloutpipe_core.cli.connect import reader_of, report_paths, store_of, stored_config
    from rolloutpipe_core.cli.output import print_json
    from rolloutpipe_core.observe.report import build_report, report_json, write_report
    from rolloutpipe_core.observe.timeline import Timelines

    reader = reader_of(run)
    config = stored_config(store_of(bucket), reader.keys.name)
    made = build_report(config, Timelines(reader.events()), reader.server_time_ms())
    if as_json:
        print_json(report_json(made))
        return
    html, data = report_paths(output)
    write_report(made, html, data)
    typer.echo(f"{html}, {data}")


def metrics(
    run: RunName = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of /metrics.")] = 9464,
    address: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
) -> None:
    """Serve the run's Prometheus metrics until Ctrl-C."""
    import signal

    from rolloutpipe_core.cli.connect import reader_of
    from rolloutpipe_core.errors import BadInput
    from rolloutpipe_core.observe.metrics import serve_metrics
    from rolloutpipe_core.observe.status import read_status

    reader = reader_of(run)
    try:
        stop = serve_metrics(lambda: read_status(reader), port, address)
    except OSError as error:
        raise BadInput(
            "cannot serve the metrics", given=f"{address}:{port}", expected=f"a free address ({error.strerror})"
        ) from None
    typer.echo(f"http://{address}:{port}/metrics of run {reader.keys.name}; Ctrl-C ends it")
    try:
        signal.pause()
    finally:
        stop()


def _archived(reader: LedgerReader, round: int) -> BadInput:
    from rolloutpipe_core.errors import BadInput

    run = reader.keys.name
    return BadInput(
        f"round {round} of run {run} is archived: Redis no longer has its groups",
        remedy=f"`rolloutpipe timeline {run} --round {round}` shows it, `rolloutpipe why GROUP --run {run}` one group",
    )


def _no_such_round(reader: LedgerReader, round: int) -> BadInput:
    from rolloutpipe_core.errors import BadInput

    archived, newest = reader.archived_round(), reader.current_round()
    sizes = [] if newest is None else reader.sizes(range(newest + 1))
    known = [*range(archived + 1), *(number for number, size in enumerate(sizes) if size and number > archived)]
    expected = f"a round from {known[0]} to {known[-1]}" if known else "no round: none was opened yet"
    return BadInput(f"run {reader.keys.name} has no such round", given=str(round), expected=expected)


def _sample_row(sample: Sample) -> dict[str, object]:
    return {
        "sample": sample.index,
        "reward": round(float(sample.reward), 4),
        "advantage": round(float(sample.advantage), 4),
        "prompt tokens": len(sample.prompt_ids),
        "response tokens": len(sample.response_ids),
        "finish": sample.finish_reason.value,
        "reason": sample.reason or "",
        "text": sample.text or "",
    }
