"""Prometheus: one exporter a run, reading the ledger at each scrape. Off unless it is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rolloutpipe_core.observe.status import Status


class RunCollector(Collector):
    """Turns a status into gauges labelled with the run."""

    def __init__(self, status: Callable[[], Status]) -> None:
        """`status` is called at each scrape; what it raises fails that scrape alone."""
        self._status = status

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing, so that registering needs no Redis."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        status = self._status()
        yield _gauge(status, "active", "1 while the run is active, 0 once it stopped", float(status.state == "active"))
        yield _gauge(status, "weight_version", "newest published weight version", status.version)
        yield _gauge(status, "trainer_epoch", "fencing epoch of the trainer's role", status.trainer_epoch)
        yield _gauge(status, "round", "newest opened round", status.round)
        yield _gauge(status, "updates_sealed", "updates sealed in the newest round", status.updates_sealed)
        yield _gauge(status, "reward_mean", "mean reward of the newest round's scored groups", status.reward_mean)
        yield _gauge(status, "fifo_depth", "FIFO entries not acknowledged", status.fifo_depth)
        yield _gauge(status, "fifo_pending", "FIFO entries read by the trainer, not acknowledged", status.pending)
        groups = _family("groups", "groups of the newest round by state", "state")
        for state, count in status.groups.items():
            groups.add_metric([status.run, state], count)
        yield groups
        seen = _family("service_seen_seconds", "seconds since a service's last heartbeat", "service", "role")
        waiting = _family("service_waiting_seconds", "how long a service has waited; 0: it does not", "service", "role")
        for service in status.services:
            seen.add_metric([status.run, service.name, service.role], service.seen_s)
            waiting.add_metric([status.run, service.name, service.role], service.waiting_s or 0.0)
        yield seen
        yield waiting


def serve_metrics(status: Callable[[], Status], port: int, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve `/metrics` from a thread; returns what stops it. Port 0 is not useful: a scraper must know it."""
    registry = CollectorRegistry()
    registry.register(RunCollector(status))
    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _family(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rolloutpipe_{name}", help, labels=["run", *labels])


def _gauge(status: Status, name: str, help: str, value: float | None) -> GaugeMetricFamily:
    """A gauge without a sample when there is no value yet."""
    family = _family(name, help)
    if value is not None:
        family.add_metric([status.run], value)
    return family
