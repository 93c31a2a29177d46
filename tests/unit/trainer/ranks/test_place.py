from __future__ import annotations

import pytest
from rolloutpipe_components.trainer.ranks.place import Place, is_follower, rank_count

from rolloutpipe_core.config.models import TrainerConfig
from rolloutpipe_core.errors import BadInput

TWO = TrainerConfig(data_parallel=2)
ENVIRON = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "ROLLOUTPIPE_RANK_PORT": "29600",
    "ROLLOUTPIPE_RANK_TOKEN": "secret",
}


def test_a_place_is_what_the_environment_says_and_says_it_again() -> None:
    place = Place.read(ENVIRON, TWO)
    assert place == Place(1, 2, 0, "10.0.0.1", 29500, 29600, "secret")
    assert place.environment() == ENVIRON
    assert "secret" not in repr(place)


def test_without_a_rank_there_is_no_place() -> None:
    assert Place.read({}, TWO) is None


def test_one_rank_needs_no_place() -> None:
    assert Place.read({"RANK": "0", "WORLD_SIZE": "1"}, TrainerConfig()) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORLD_SIZE": "3"}, "given: WORLD_SIZE=3; expected: 2, data_parallel x tensor_parallel x pipeline_parallel"),
        ({"WORLD_SIZE": ""}, "given: WORLD_SIZE=; expected: 2"),
        ({"ROLLOUTPIPE_RANK_TOKEN": ""}, "ROLLOUTPIPE_RANK_TOKEN not set; given: RANK=1"),
        ({"MASTER_PORT": "x"}, "not a number; given: MASTER_PORT=x"),
    ],
)
def test_half_a_place_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        Place.read(ENVIRON | change, TWO)
    assert message in str(refused.value)


def test_the_number_of_ranks_is_a_product() -> None:
    assert rank_count(TrainerConfig(kind="megatron", data_parallel=2, tensor_parallel=3, pipeline_parallel=4)) == 24


def test_rank_0_and_a_process_without_a_rank_follow_nobody() -> None:
    assert [is_follower(environ) for environ in ({}, {"RANK": "0"}, {"RANK": "1"})] == [False, False, True]
