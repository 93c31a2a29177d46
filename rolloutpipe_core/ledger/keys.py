"""The Redis keys of one run. The braces keep all of them in one Cluster slot."""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpipe_core.domain import parse_group_id, validate_run_name

CONSUMER_GROUP = "trainer"
CONSUMER = "trainer"  # one name for every trainer incarnation: reading is fenced by the epoch instead


@dataclass(frozen=True, slots=True)
class RunKeys:
    name: str

    def __post_init__(self) -> None:
        validate_run_name(self.name)

    @property
    def prefix(self) -> str:
        return f"rolloutpipe:{{{self.name}}}:"

    @property
    def run(self) -> str:
        """Hash: the run's state, current version, lineage and the trainer's epoch."""
        return self.prefix + "run"

    @property
    def fifo(self) -> str:
        """Stream: the CGP FIFO."""
        return self.prefix + "fifo"

    @property
    def ledger(self) -> str:
        """Stream: the FGD admission ledger and history of everything."""
        return self.prefix + "ledger"

    @property
    def weights(self) -> str:
        """Stream: the published versions."""
        return self.prefix + "weights"

    @property
    def pins(self) -> str:
        """Sorted set by end (server time, ms): `12 3f9a61… reason`, versions whose weights must stay until then."""
        return self.prefix + "pins"

    @property
    def retired(self) -> str:
        """Hash: object sets that are about to be deleted (`weights/3f9a61…`), with when and by whom."""
        return self.prefix + "retired"

    def round(self, round: int) -> str:
        """Hash: one round's state and counters."""
        return f"{self.prefix}round:{round}"

    def open(self, round: int) -> str:
        """Sorted set by submission order: groups not yet serving-complete (O of Eq. 5); its head is the frontier."""
        return f"{self.prefix}round:{round}:open"

    def deferred(self, round: int) -> str:
        """Sorted set by submission order: the open groups that nobody has admitted yet."""
        return f"{self.prefix}round:{round}:deferred"

    def leases(self, round: int) -> str:
        """Sorted set by end of lease (server time, ms): the groups a rollout worker holds."""
        return f"{self.prefix}round:{round}:leases"

    def group(self, group: str) -> str:
        """Hash: one group's present state."""
        return f"{self.prefix}group:{group}"

    @property
    def services(self) -> str:
        """Set: keys of all services that ever were; those that still live have a hash."""
        return self.prefix + "services"

    def service(self, name: str) -> str:
        """Hash that expires: what a live service does and waits for."""
        return f"{self.prefix}service:{name}"

    def of_round(self, round: int) -> list[str]:
        """KEYS[1..7] of every script that changes a round, in the order of `prelude.lua`."""
        return [
            self.run,
            self.ledger,
            self.fifo,
            self.round(round),
            self.open(round),
            self.deferred(round),
            self.leases(round),
        ]

    def of_group(self, group: str) -> list[str]:
        """KEYS[1..8] of every script that changes one group."""
        return [*self.of_round(parse_group_id(group)[0]), self.group(group)]
