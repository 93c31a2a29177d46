"""Evidence of small rounds."""

from collections.abc import Callable
from typing import Any

import pytest

from rolloutpipe_core.certify.evidence import RoundEvidence, RunEvidence
from rolloutpipe_core.domain import Group

RoundMaker = Callable[..., RoundEvidence]


@pytest.fixture
def make_round() -> RoundMaker:
    """`make_round(group, ...)`: round 12 with these groups; keywords replace its other fields."""

    def make(*groups: Group, **changes: Any) -> RoundEvidence:
        fields: dict[str, Any] = {"round": 12, "ended": {}, "weights": "a" * 64, "state": "b" * 64}
        return RoundEvidence(groups=groups, **(fields | changes))

    return make


def as_run(*rounds: RoundEvidence, genesis: str = "0" * 64) -> RunEvidence:
    return RunEvidence("walk", genesis, rounds)
