from __future__ import annotations

from rolloutpipe_components.trainer.metrics import MetricSums


def test_means_weigh_every_token_alike() -> None:
    metrics = MetricSums()
    metrics.add({"entropy": 6.0, "kl": 1.0}, 2)
    metrics.add({"entropy": 1.0}, 8)
    # (6 + 1) / (2 + 8), where a mean of the two means would be (3 + 0.125) / 2.
    assert metrics.reduced() == {"entropy": 0.7, "kl": 0.5}


def test_maxima() -> None:
    metrics = MetricSums()
    metrics.add_maximum("mismatch_max", -2.0)
    metrics.add_maximum("mismatch_max", -3.0)
    assert metrics.reduced() == {"mismatch_max": -2.0}


def test_nothing_measured() -> None:
    metrics = MetricSums()
    metrics.add({"entropy": 0.0}, 0)
    assert metrics.reduced() == {"entropy": 0.0}


def test_ranks_are_combined_and_what_none_measured_stays_away() -> None:
    first, idle, last = MetricSums(), MetricSums(), MetricSums()
    first.add({"entropy": 6.0, "kl": 1.0}, 2)
    first.add_maximum("mismatch_max", 0.25)
    last.add({"entropy": 1.0}, 8)
    last.add_maximum("mismatch_max", 0.5)
    assert len({len(each.packed()) for each in (first, idle, last)}) == 1
    combined = MetricSums.combined([each.packed() for each in (first, idle, last)])
    assert combined.pairs == {"entropy": (7.0, 10), "kl": (1.0, 2)}
    assert combined.maxima == {"mismatch_max": 0.5}
    assert MetricSums.combined([idle.packed()] * 2) == MetricSums()
