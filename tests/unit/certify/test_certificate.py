from rolloutpipe_core.certify.certificate import PACKAGES, machine


def test_the_machine_says_what_the_bits_depend_on():
    told = machine()
    assert set(PACKAGES) < told.keys()
    assert told["torch"][0].isdigit()
    assert told["cpu"]
    assert "avx2" in told["vector_units"] or "asimd" in told["vector_units"]
