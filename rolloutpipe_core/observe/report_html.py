"""The report as one page: template, charts and each round's picture put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from itertools import accumulate
from statistics import fmean, quantiles
from string import Template

from rolloutpipe_core import __version__
from rolloutpipe_core.observe.chart_svg import WIDE, Series, Values, line_chart, stacked_bars
from rolloutpipe_core.observe.measures import RoundMetrics
from rolloutpipe_core.observe.report import Report
from rolloutpipe_core.observe.svg import DARK, HATCH, LIGHT, SHAPES
from rolloutpipe_core.observe.timeline import RoundTimeline
from rolloutpipe_core.observe.timeline_svg import timeline_svg
from rolloutpipe_core.observe.words import fixed, number, percent, seconds

DRAWN_GROUPS = 10_000
"""Groups of the newest rounds that have pictures, the newest round in any case: 5 MB of page."""

Column = tuple[str, Callable[[RoundMetrics], str]]
COLUMNS: tuple[Column, ...] = (
    ("round", lambda m: str(m.round)),
    ("sampled by", lambda m: "-" if m.weight_version is None else f"v{m.weight_version}"),
    ("reward", lambda m: fixed(m.reward_mean)),
    ("rollout to train end", lambda m: seconds(m.rollout_to_train_end_s)),
    ("round period", lambda m: seconds(m.round_period_s)),
    ("waiting, Eq. 4", lambda m: percent(m.waiting_ratio_eq4)),
    ("waiting, section 5.1", lambda m: percent(m.waiting_ratio_s51)),
    ("first dispatch", lambda m: seconds(m.first_dispatch_s)),
    ("trainer busy", lambda m: seconds(m.trainer_busy_s)),
    ("updates", lambda m: f"{m.updates}" + (f" ({m.updates_skipped} skipped)" if m.updates_skipped else "")),
    ("groups", lambda m: f"{m.groups}" + (f" ({m.groups_ended} ended)" if m.groups_ended else "")),
    ("mean length", lambda m: number(m.response_length_mean)),
    ("mismatch KL", lambda m: number(m.mismatch_kl, 2)),
)


def report_html(report: Report) -> str:
    """The page's text. It loads nothing: style, script and pictures are inside."""
    rounds = [metrics.round for metrics in report.rounds]
    drawn = _drawn(report)
    shown = [line.round for line, _ in drawn] or [0]
    page = Template((files("rolloutpipe_core.observe") / "report.html").read_text(encoding="utf-8"))
    made = datetime.fromtimestamp(report.made_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return page.substitute(
        title=escape(f"{report.config.run} - RolloutPipe"),
        light=LIGHT,
        dark=DARK,
        shapes=SHAPES,
        hatch=HATCH,
        run=escape(report.config.run),
        subtitle=escape(f"{report.config.schedule.kind} · {len(report.finished)} rounds published"),
        chips="".join(f'<span class="chip">{escape(name)} <b>{escape(v)}</b></span>' for name, v in _facts(report)),
        stop=f'<div class="stop">Stopped: {escape(report.stop_reason)}</div>' if report.stop_reason else "",
        tiles="".join(_tile(*tile) for tile in _tiles(report)),
        reward=_reward_chart(report, rounds),
        first=shown[0],
        middle=shown[len(shown) // 2],
        last=shown[-1],
        steps=len(shown) - 1,
        timeline="" if rounds else "No round was opened yet.",
        charts="".join(_card(*chart) for chart in _charts(report.rounds, rounds)),
        columns="".join(f"<th>{escape(name)}</th>" for name, _ in COLUMNS),
        rows="".join(_row(metrics) for metrics in report.rounds),
        pictures="\n".join(_picture(report.config.run, *pair) for pair in drawn),
        footer=f"Made by rolloutpipe {escape(__version__)}, {made}. Times are the Redis server's.",
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    config, schedule = report.config, report.config.schedule
    source = config.data.path if config.data.source == "jsonl" else config.data.source
    facts = {
        "model": config.model.path,
        "data": source or "",
        "R": schedule.groups_per_round,
        "K": schedule.samples_per_group,
        "B": schedule.update_batch_size,
        "U": schedule.groups_per_update,
        "F_w": schedule.frontier_width if schedule.kind in ("cgp+fgd", "stream") else "-",
        "frontier": schedule.frontier_mode if schedule.kind == "cgp+fgd" else "-",
        "contract": schedule.contract,
        "order": schedule.order,
        "loss": f"{config.loss.kind}, {config.loss.aggregation}",
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "temperature": f"{config.sampling.temperature:g}",
        "slots": config.engine.slots,
        "seed": config.seed,
    }
    return [(name, str(value)) for name, value in facts.items() if value != "-"]


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """(what, value, remark): how the reward moved, then means over the published rounds."""
    done = report.finished
    rewards = [m.reward_mean for m in done if m.reward_mean is not None]
    edge = max(1, min(5, len(rewards) // 2))
    first, last = (fmean(part) if part else None for part in (rewards[:edge], rewards[-edge:]))
    return [
        ("reward, last rounds", fixed(last), f"from {fixed(first)}"),
        ("rollout to train end", seconds(_mean([m.rollout_to_train_end_s for m in done])), "mean"),
        ("round period", seconds(_mean([m.round_period_s for m in done])), "mean"),
        ("waits, Eq. 4", percent(_mean([m.waiting_ratio_eq4 for m in done])), "mean"),
        ("waits, section 5.1", percent(_mean([m.waiting_ratio_s51 for m in done])), "mean"),
        ("first dispatch", seconds(_mean([m.first_dispatch_s for m in done])), "mean"),
        ("groups trained", str(sum(m.groups_trained for m in done)), f"{sum(m.updates for m in done)} updates"),
    ]


def _charts(rounds: Sequence[RoundMetrics], numbers: Sequence[int]) -> list[tuple[str, str, str]]:
    """(title, note, picture) of the small charts."""

    def column(name: str) -> Values:
        return [getattr(metrics, name) for metrics in rounds]

    before = [_times(m.waiting_ratio_eq4, m.rollout_to_train_end_s) for m in rounds]
    waits = [_times(m.waiting_ratio_s51, m.rollout_to_train_end_s) for m in rounds]
    period = [
        Series("first wait", "wait", before),
        Series("compute", "train", [m.trainer_busy_s for m in rounds]),
        Series("later waits", "ready", _less(waits, before)),
        Series("hand-off", "score", _less(column("round_period_s"), column("rollout_to_train_end_s"))),
    ]
    durations = [
        Series("round period", "decode", column("round_period_s")),
        Series("rollout to train end", "train", column("rollout_to_train_end_s")),
        Series("first dispatch", "good", column("first_dispatch_s")),
    ]
    waiting = [
        Series("section 5.1", "decode", column("waiting_ratio_s51")),
        Series("Eq. 4", "train", column("waiting_ratio_eq4")),
    ]
    lengths = [
        Series("longest", "score", column("response_length_max")),
        Series("mean", "decode", column("response_length_mean")),
    ]
    mismatch = [
        Series("largest", "score", column("mismatch_max")),
        Series("mean", "train", column("mismatch_mean")),
        Series("KL", "decode", column("mismatch_kl")),
    ]
    policy = [Series("entropy", "decode", column("entropy")), Series("gradient norm", "train", column("grad_norm"))]
    chart = "nats a token, between the engine's and the trainer's log-probabilities; logarithmic"
    return [
        (
            "Where a round's time goes",
            "the trainer's seconds; hand-off: weights, commit, opening of the round",
            stacked_bars("period", numbers, period, words=seconds),
        ),
        ("Durations", "seconds", line_chart("durations", numbers, durations, words=seconds)),
        (
            "Trainer waiting ratio",
            "share of rollout-to-train-end",
            line_chart("waiting", numbers, waiting, top=1.0, words=percent),
        ),
        ("Response length", "tokens", line_chart("lengths", numbers, lengths)),
        ("Mismatch of engine and trainer", chart, line_chart("mismatch", numbers, mismatch, log=True)),
        ("Policy", "entropy in nats a token; gradient norm before clipping", line_chart("policy", numbers, policy)),
    ]


def _reward_chart(report: Report, numbers: Sequence[int]) -> str:
    bands = [_middle_half(line) for line in report.timelines]
    rewards = Series("reward", "decode", [metrics.reward_mean for metrics in report.rounds])
    low, high = [band[0] for band in bands], [band[1] for band in bands]
    return line_chart("reward", numbers, [rewards], size=WIDE, top=1.0, band=(low, high))


def _middle_half(line: RoundTimeline) -> tuple[float | None, float | None]:
    means = [group.reward_mean for group in line.groups.values() if group.reward_mean is not None]
    if len(means) < 2:
        return (None, None)
    low, _, high = quantiles(means, n=4, method="inclusive")
    return low, high


def _drawn(report: Report) -> list[tuple[RoundTimeline, RoundMetrics]]:
    """The newest rounds, as many as may have pictures."""
    pairs = list(zip(report.timelines, report.rounds, strict=True))
    totals = list(accumulate(len(line.groups) for line, _ in reversed(pairs)))
    count = sum(total <= DRAWN_GROUPS for total in totals)
    return pairs[-max(count, 1) :]


def _picture(run: str, line: RoundTimeline, metrics: RoundMetrics) -> str:
    return f'<template data-round="{line.round}">{timeline_svg(line, metrics, run, standalone=False)}</template>'


def _tile(what: str, value: str, remark: str) -> str:
    return f'<div class="tile"><span>{escape(what)}</span><b>{escape(value)}</b><i>{escape(remark)}</i></div>'


def _card(title: str, note: str, picture: str) -> str:
    return f'<div class="card"><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{picture}</div>'


def _row(metrics: RoundMetrics) -> str:
    cells = "".join(f"<td>{escape(words(metrics))}</td>" for _, words in COLUMNS)
    return f'<tr data-round="{metrics.round}">{cells}</tr>'


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _times(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _less(whole: Values, part: Values) -> Values:
    return [None if a is None or b is None else a - b for a, b in zip(whole, part, strict=True)]
