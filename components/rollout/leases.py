"""Keeps this worker's leases alive from a thread of its own, which the decode loop cannot starve."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.rollout import Lease, RolloutLedger


class LeaseKeeper:
    """Renews every held lease at a third of its length; `on_lost` is called from the thread."""

    def __init__(self, ledger: RolloutLedger, lease_s: float, on_lost: Callable[[Lease], None]) -> None:
        self._ledger = ledger
        self._period_s = lease_s / 3
        self._on_lost = on_lost
        self._held: dict[str, tuple[int, Lease]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def hold(self, round: int, lease: Lease) -> None:
        with self._lock:
            self._held[lease.group] = (round, lease)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._held.pop(lease.group, None)

    @property
    def held(self) -> list[Lease]:
        with self._lock:
            return [lease for _, lease in self._held.values()]

    def renew(self) -> None:
        """Renew all leases once, and report the lost ones."""
        with self._lock:
            held = list(self._held.values())
        for round in {round for round, _ in held}:
            leases = {lease.group: lease for its_round, lease in held if its_round == round}
            for group in self._ledger.renew(round, list(leases.values())):
                self._on_lost(leases[group])

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            try:
                self.renew()
            except RolloutPipeError:
                continue  # an outage ends the service through its own calls; the lease then runs out by itself
