import hashlib

import pytest

from rolloutpipe_core.data.prompts import PromptSet, cohort, cohort_sha, fingerprint, order
from rolloutpipe_core.domain import Prompt


def test_order_is_a_fixed_sequence_of_permutations():
    # Worked out apart from the code: rows sorted by blake2b-128("rolloutpipe/order/7/<epoch>/<row>").
    assert [order(7, 5, place) for place in range(10)] == [3, 1, 2, 4, 0, 3, 4, 2, 1, 0]


@pytest.mark.parametrize("rows", [1, 2, 17, 1000])
def test_each_epoch_takes_every_row_once(rows):
    for epoch in range(3):
        taken = [order(1, rows, epoch * rows + place) for place in range(rows)]
        assert sorted(taken) == list(range(rows))


def test_epochs_and_seeds_differ():
    first, second = cohort(1, 1000, 0, 1000), cohort(1, 1000, 1000, 1000)
    assert first != second
    assert first != cohort(2, 1000, 0, 1000)


def test_cohorts_tile_the_order_across_an_epochs_end():
    whole = cohort(7, 5, 0, 12)
    assert cohort(7, 5, 0, 4) + cohort(7, 5, 4, 4) + cohort(7, 5, 8, 4) == whole
    assert cohort(7, 5, 3, 4) == [4, 0, 3, 4]


def test_order_spreads_over_places():
    # Row 0 of 10 lands at each place 100 times in 1000 epochs on average; six deviations are 57.
    places = [cohort(0, 10, 10 * epoch, 10).index(0) for epoch in range(1000)]
    assert all(43 <= places.count(place) <= 157 for place in range(10))


def test_cohort_sha_is_that_of_the_json_array():
    assert cohort_sha(["a-000001", "b-000002"]) == "3be9203c44acf798fcca653b3a83f2f57b2d389605946cc460c15ec5d67df856"
    assert cohort_sha([]) == hashlib.sha256(b"[]").hexdigest()
    assert cohort_sha(["a", "b"]) != cohort_sha(["b", "a"])
    assert cohort_sha(["a,b"]) != cohort_sha(["a", "b"])


def test_fingerprint_is_that_of_the_canonical_rows():
    row = Prompt(id="a-0", answer="4", text="2+2")
    canonical = b'{"answer":"4","id":"a-0","messages":null,"metadata":{},"text":"2+2"}\n'
    assert fingerprint([row]) == hashlib.sha256(canonical).hexdigest()
    assert fingerprint([row]) == "a15446a54438e7414da7925248495ba6d07f2952cc3bcf57f302eb5ae19d89af"


@pytest.mark.parametrize(
    "other",
    [
        [Prompt(id="a-1", answer="4", text="2+2")],
        [Prompt(id="a-0", answer="5", text="2+2")],
        [Prompt(id="a-0", answer="4", text="2+2 ")],
        [Prompt(id="a-0", answer="4", messages=({"role": "user", "content": "2+2"},))],
        [Prompt(id="a-0", answer="4", text="2+2", metadata={"hops": "1"})],
        [],
    ],
)
def test_fingerprint_sees_every_field(other):
    assert fingerprint(other) != fingerprint([Prompt(id="a-0", answer="4", text="2+2")])


def test_prompt_set_is_a_sequence():
    rows = [Prompt(id=str(i), answer="", text="") for i in range(3)]
    prompts = PromptSet(rows, fingerprint="f")
    assert len(prompts) == 3
    assert prompts[1] is rows[1]
    assert list(prompts[1:]) == rows[1:]
    assert prompts.fingerprint == "f"
