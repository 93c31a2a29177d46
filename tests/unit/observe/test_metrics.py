import urllib.request
from contextlib import closing
from socket import socket

from prometheus_client import CollectorRegistry, generate_latest

from rolloutpipe_core.observe.metrics import RunCollector, serve_metrics
from rolloutpipe_core.observe.status import build_status

SERVICE = {"role": "trainer", "name": "trainer-x", "host": "a", "pid": "7", "doing": "", "seen_ms": "99800"}
WAITING = {**SERVICE, "waiting_for": "a group", "waiting_since_ms": "98500", "deadline_ms": "398500"}


def status():
    run = {"state": "active", "version": "3", "round": "3"}
    round = {"state": "generating", "n_queued": "2"}
    return build_status("walk", run, round, [], [WAITING], fifo_depth=5, pending=2, now_ms=100_000)


def test_a_scrape_reads_the_status_anew():
    seen = []
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: seen.append(1) or status()))
    assert not seen
    text = generate_latest(registry).decode()
    assert len(seen) == 1
    for line in (
        'rolloutpipe_active{run="walk"} 1.0',
        'rolloutpipe_weight_version{run="walk"} 3.0',
        'rolloutpipe_fifo_depth{run="walk"} 5.0',
        'rolloutpipe_groups{run="walk",state="queued"} 2.0',
        'rolloutpipe_service_waiting_seconds{role="trainer",run="walk",service="trainer-x"} 1.5',
    ):
        assert line in text
    assert 'rolloutpipe_reward_mean{run="walk"}' not in text  # nothing is scored yet


def test_served_on_loopback_until_stopped():
    with closing(socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop = serve_metrics(status, port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"rolloutpipe_fifo_depth" in answer.read()
    finally:
        stop()
