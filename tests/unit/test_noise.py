import numpy as np
import pytest

from rolloutpipe_core.noise import GumbelStream, gumbel, sample_seed

VOCABULARY = 58  # not a multiple of 4: the last counter of a position is used in part


def test_noise_at_a_position_needs_nothing_before_it() -> None:
    sequential = GumbelStream(7, VOCABULARY).take(20)
    stream = GumbelStream(7, VOCABULARY)
    for position in (13, 0, 19, 4):
        stream.seek(position)
        assert stream.take(1).tobytes() == sequential[position : position + 1].tobytes()


def test_how_many_positions_are_taken_at_once_changes_no_bit() -> None:
    at_once = GumbelStream(7, VOCABULARY).take(12)
    stream = GumbelStream(7, VOCABULARY)
    in_pieces = np.concatenate([stream.take(count) for count in (1, 5, 2, 4)])
    assert in_pieces.tobytes() == at_once.tobytes()


def test_positions_and_seeds_share_no_noise() -> None:
    noise = np.concatenate([GumbelStream(seed, VOCABULARY).take(50) for seed in (1, 2)])
    assert len(np.unique(noise)) == noise.size


def test_every_part_of_the_key_counts() -> None:
    keys = [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
        (0, 0, 1, 1),
        (0, 1, 11, 1),
        (0, 11, 1, 1),
    ]
    seeds = [sample_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 1 << 128 for seed in seeds)


def test_seed_is_the_same_on_every_machine() -> None:
    # blake2b, 16 bytes, of b"rolloutpipe/sample/5/12/34/6", read little-endian.
    assert sample_seed(5, 12, 34, 6) == 0x400A1FA83AD3717617D58A31FC10A46D


def test_mean_and_variance_are_those_of_a_gumbel_variable() -> None:
    noise = GumbelStream(3, 1000).take(1000)
    assert noise.mean() == pytest.approx(0.577216, abs=0.006)  # Euler's constant; 5 deviations of the mean
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)


def test_extremes_are_finite() -> None:
    # -log(-log 2**-54) = -log(37.43) and -log(-log(1 - 2**-53)) = 53 log 2.
    noise = gumbel(np.array([0.0, 1 - 2.0**-53]))
    assert noise == pytest.approx([-3.6225, 36.7368], abs=1e-4)
