"""The ledger's history against the commit chain: both must tell the same story of every committed round.

Events are streamed; the facts of a round are dropped when it is published, so memory holds the open rounds only.
What Redis lost with its last second and a commit mended is counted, not reported: absence proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rolloutpipe_core.domain import GroupState, RoundState, WeightVersion
from rolloutpipe_core.ledger.events import (
    Event,
    GroupMoved,
    RoleTaken,
    RoundMoved,
    UpdateSealed,
    VersionPublished,
)
from rolloutpipe_core.ledger.records import NOT_COMMITTED
from rolloutpipe_core.observe.audit.model import Audit, Chain, CommittedRound, Ending, Membership


@dataclass(slots=True)
class GroupFacts:
    """What the ledger last said of a group."""

    state: GroupState
    attempt: int
    reason: str
    replaces: str = ""  # the filtered group in whose place it was drawn
    claim: tuple[int, int] | None = None  # (update, place)
    announced: dict[int, tuple[str, WeightVersion]] = field(default_factory=dict)  # attempt -> (sha256, sampled by)


@dataclass(slots=True)
class RoundFacts:
    opened: Mapping[str, str] | None = None  # None: the ledger does not reach back to its opening
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    seals: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # update -> (groups, samples, tokens)


class HistoryCheck:
    """Takes events one by one and compares each round with its commit when it is published."""

    def __init__(self, chain: Chain, audit: Audit) -> None:
        self._chain = chain
        self._audit = audit
        self._versions = chain.versions
        self._open: dict[int, RoundFacts] = {}
        self._closed: set[int] = set()
        self._trainer = ""  # the actor that holds the trainer's role; "" = not told yet

    def add(self, event: Event) -> None:
        self._audit.events += 1
        if self._trainer and event.actor.startswith("trainer-") and not isinstance(event, RoleTaken):
            self._check_actor(event)
        match event:
            case RoleTaken(role="trainer"):
                self._trainer = event.actor
            case VersionPublished():
                self._check_version(event)
            case GroupMoved(round=round) if round in self._closed:
                self._audit.report("moved-after-publish", event.group, f"became {event.after} ({event.id})")
            case GroupMoved():
                _group_moved(self._facts(event.round), event)
            case UpdateSealed():
                self._facts(event.round).seals[event.update] = (event.groups, event.samples, event.tokens)
            case RoundMoved(after=RoundState.OPEN):
                self._open[event.round] = RoundFacts(opened=event.details)
            case RoundMoved(after=RoundState.PUBLISHED):
                self._close(event.round)

    def finish(self) -> None:
        """Judge what was not published: nothing of it may count as trained."""
        for round in sorted(self._open):
            if round < len(self._chain.rounds):
                # Committed but not yet published is how every round passes; not so once a later one was.
                if round < max(self._closed, default=-1):
                    self._close(round)
                continue
            for group, facts in self._open[round].groups.items():
                if facts.state is GroupState.TRAINED:
                    self._audit.report("trained-uncommitted", group, f"round {round} has no commit")

    def _facts(self, round: int) -> RoundFacts:
        return self._open.setdefault(round, RoundFacts())

    def _close(self, round: int) -> None:
        facts = self._open.pop(round, None)
        self._closed.add(round)
        if facts is None or round >= len(self._chain.rounds):
            return  # a version without a commit is reported where it was published
        commit = self._chain.rounds[round]
        if facts.opened is not None:
            self._audit.rounds_in_ledger += 1
            self._check_opening(commit, self._chain.cursor_before(round), facts.opened)
            self._check_drawn(commit, facts, int(facts.opened["groups"]))
            self._check_completeness(commit, facts)
        for member in commit.trained:
            if member.group in facts.groups:
                self._check_member(commit, member, facts.groups[member.group])
        for end in commit.ended:
            if end.group in facts.groups:
                self._check_ending(end, facts.groups[end.group])
        for update, seal in facts.seals.items():
            if commit.updates.get(update) != seal:
                what = f"sealed with {seal} (groups, samples, tokens), committed with {commit.updates.get(update)}"
                self._audit.report("ledger-seal", f"round {round} update {update}", what)

    def _check_actor(self, event: Event) -> None:
        if event.actor != self._trainer:
            self._audit.report("fenced-actor", event.id, f"{event.actor} acted while {self._trainer} held the role")

    def _check_version(self, event: VersionPublished) -> None:
        number = event.version.number
        versions = self._versions
        if number >= len(versions):
            self._audit.report("version-uncommitted", str(event.version), f"no commit makes version {number}")
        elif versions[number] != event.version:
            self._audit.report("version-other", str(event.version), f"the chain has {versions[number]}")
        elif (event.commit, event.commit_sha) != self._chain.commit_of(number):
            what = f"published with {event.commit} ({event.commit_sha}), the chain has {self._chain.commit_of(number)}"
            self._audit.report("version-commit", str(event.version), what)

    def _check_opening(self, commit: CommittedRound, cursor: int, opened: Mapping[str, str]) -> None:
        pairs = {
            "version": str(commit.sampled.number),
            "version_sha": commit.sampled.sha,
            "cohort_sha": commit.cohort_sha,
            "cursor": str(cursor),
            "data_fingerprint": commit.data_fingerprint,
        }
        for name, value in pairs.items():
            if opened.get(name) != value:
                what = f"{name} was {opened.get(name)} when it opened, the chain says {value}"
                self._audit.report("ledger-opening", f"round {commit.round}", what)
        wanted = int(opened["groups_per_update"])
        for update, (groups, _, _) in sorted(commit.updates.items()):
            last = update == len(commit.updates) - 1
            if groups > wanted or (groups < wanted and not last):
                self._audit.report("update-size", f"{commit.key} update {update}", f"{groups} groups, U is {wanted}")

    def _check_completeness(self, commit: CommittedRound, facts: RoundFacts) -> None:
        """Every group of the round is in its commit once, and no other, but for those of a history that Redis lost."""
        put_aside = {group for group, told in facts.groups.items() if told.reason == NOT_COMMITTED}
        for group in sorted(facts.groups.keys() - commit.groups - put_aside):
            self._audit.report("group-missing", group, f"neither trained nor ended in {commit.key}")
        for group in sorted(commit.groups - facts.groups.keys()):
            self._audit.report("group-unknown", group, f"in {commit.key}, but the ledger never created it")

    def _check_drawn(self, commit: CommittedRound, facts: RoundFacts, first: int) -> None:
        """A group behind the `first` ones replaces one that was filtered, and no two replace the same."""
        for group, count in sorted(Counter(told.replaces for told in facts.groups.values() if told.replaces).items()):
            if count > 1:
                self._audit.report("group-drawn", group, f"{count} groups were drawn in its place")
        drawn, filtered = len(commit.groups) - first, sum(end.state == GroupState.FILTERED for end in commit.ended)
        if drawn > filtered:
            what = f"{drawn} groups were drawn besides the first {first}, but {filtered} filtered"
            self._audit.report("group-drawn", f"round {commit.round}", what)

    def _check_member(self, commit: CommittedRound, member: Membership, facts: GroupFacts) -> None:
        if facts.state is not GroupState.TRAINED:
            self._audit.report("ledger-state", member.group, f"{facts.state} in the ledger, trained in {commit.key}")
        if facts.claim is None:
            self._audit.groups_mended += 1
        elif facts.claim != (member.update, member.place):
            what = f"assigned to (update, place) {facts.claim}, committed at {(member.update, member.place)}"
            self._audit.report("ledger-assignment", member.group, what)
        if member.attempt not in facts.announced:
            return  # its announcement was lost, so nothing is left to compare
        attempt, (sha256, sampled) = max(facts.announced.items())
        if (attempt, sha256) != (member.attempt, member.sha256):
            what = f"attempt {attempt} with sha256 {sha256} was announced, the commit has attempt "
            self._audit.report("ledger-object", member.group, f"{what}{member.attempt} with {member.sha256}")
        if sampled != commit.sampled:
            self._audit.report("ledger-version", member.group, f"sampled by {sampled}, round by {commit.sampled}")

    def _check_ending(self, end: Ending, facts: GroupFacts) -> None:
        if (facts.state.value, facts.reason) != (end.state, end.reason):
            what = f"{facts.state} ({facts.reason}) in the ledger, {end.state} ({end.reason}) in its commit"
            self._audit.report("ledger-state", end.group, what)


def check_history(events: Iterable[Event], chain: Chain, audit: Audit) -> None:
    """Stream the ledger past the chain."""
    check = HistoryCheck(chain, audit)
    for event in events:
        check.add(event)
    check.finish()


def check_registry(registry: Iterable[WeightVersion], chain: Chain, audit: Audit) -> None:
    """Rollout loads what the registry says: each of its versions is the chain's."""
    versions = chain.versions
    for version in registry:
        if version.number >= len(versions) or versions[version.number] != version:
            audit.report("registry", str(version), "the registry holds a version that is in no commit")


def _group_moved(facts: RoundFacts, event: GroupMoved) -> None:
    told = GroupFacts(event.after, event.attempt, event.reason, event.details.get("replaces", ""))
    group = facts.groups.setdefault(event.group, told)
    group.state, group.attempt, group.reason = event.after, event.attempt, event.reason
    details = event.details
    match event.after:
        case GroupState.DEFERRED:
            group.claim = None
        case GroupState.QUEUED if event.before is GroupState.CLAIMED:
            # All assignments of the round were taken back.
            facts.seals.clear()
            group.claim = None
        case GroupState.QUEUED:
            sampled = WeightVersion(int(details["weight_version"]), details["weights_sha"])
            group.announced[event.attempt] = details["sha256"], sampled
        case GroupState.CLAIMED:
            group.claim = (int(details["update"]), int(details["update_index"]))
