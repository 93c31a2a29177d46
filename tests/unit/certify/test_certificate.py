from datetime import UTC, datetime

import pytest

from rolloutpipe_core.certify.certificate import PACKAGES, certificate, machine
from rolloutpipe_core.certify.certification import Certification, Result
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.store.objects import ObjectStore


def test_the_machine_says_what_the_bits_depend_on():
    told = machine()
    assert set(PACKAGES) < told.keys()
    assert told["torch"][0].isdigit()
    assert told["cpu"]
    assert "avx2" in told["vector_units"] or "asimd" in told["vector_units"]


@pytest.mark.parametrize(("weights", "moved"), [(("a", "a", "a"), False), (("a", "a", "b"), True)])
def test_a_certificate_says_whether_there_were_weights_to_compare(weights, moved):
    """Rewards that are equal within every group give no gradient: version 1 is version 0 under any schedule."""
    config = RunConfig.model_validate({"run": "walk", "model": {"path": "builtin:pointer-walk"}})
    certification = Certification(config, ObjectStore(None, "bucket"))
    certification.results += [
        Result(f"walk-{schedule}", schedule, 1, 2.5, ("s", "s"), weights, (None, None), None, None)
        for schedule in ("serial", "cgp")
    ]
    made = certificate(certification, "1", datetime(2026, 1, 1, tzinfo=UTC))
    assert (made["certified"], made["weights_moved"]) == (True, moved)
