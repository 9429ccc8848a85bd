"""Baselines and scales over sets."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.sets import deviation, joint_keys, normalised, set_mean, set_std, sets_of


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_a_key_from_several_is_equal_where_all_are():
    key = joint_keys(whole(0, 0, 1, 1, 0), whole(5, 6, 5, 5, 5))
    assert key[0] == key[4] != key[1]
    assert key[2] == key[3] != key[0]


def test_set_mean_and_set_std():
    x, keys = of(1, 3, 5, 5), whole(0, 0, 7, 7)
    assert set_mean(x, keys).tolist() == [2, 2, 5, 5]
    assert set_std(x, keys).tolist() == near(2**0.5, 2**0.5, 0, 0)
    assert set_std(x, keys, ddof=0).tolist() == near(1, 1, 0, 0)


def test_deviation_of_all():
    assert deviation(of(1, 0, 0.5, 0)).item() == pytest.approx(0.478714, abs=1e-5)
    assert deviation(of(1, 0, 0.5, 0), ddof=0).item() == pytest.approx(0.414578, abs=1e-5)
    assert deviation(of(3)).item() == deviation(of(0.1, 0.1, 0.1)).item() == 0


def test_normalised_by_set_and_batch():
    x, keys = of(1, 0, 0.5, 0), whole(0, 0, 0, 0)
    assert normalised(x, keys, ddof=0).tolist() == near(1.507553, -0.904532, 0.301511, -0.904532)
    assert normalised(x, keys, scale="batch").tolist() == near(*normalised(x, keys).tolist())


def test_a_set_of_one_is_zero_or_raw():
    assert normalised(of(3, 1, 0), whole(0, 1, 1)).tolist() == near(0, 0.707106, -0.707106)
    assert normalised(of(3, 1, 0), whole(0, 1, 1), singleton="raw").tolist() == near(3, 0.707106, -0.707106)


def test_noise_of_the_arithmetic_is_no_signal():
    x = torch.full((5,), 0.1, dtype=torch.float64)
    x[0] += 1e-10
    assert normalised(x, torch.zeros(5)).tolist() == [0.0] * 5


def test_one_key_for_each_number():
    with pytest.raises(ValueError, match="one group per reward"):
        normalised(of(1, 2), whole(0))


def test_counting_numbers_are_sets_as_they_are_and_others_are_numbered():
    of_counting, count = sets_of(whole(0, 2, 2))
    assert (of_counting.tolist(), count.tolist()) == ([0, 2, 2], [1, 0, 2])
    of_others, count = sets_of(whole(-7, 900, 900))
    assert (of_others.tolist(), count.tolist()) == ([0, 1, 1], [1, 2])
    assert sets_of(of(0.5, 0.25))[0].tolist() == [1, 0]


def test_a_set_that_nobody_is_in_disturbs_nobody():
    assert set_mean(of(1, 3), whole(1, 1)).tolist() == [2, 2]
    assert normalised(of(1, 3), whole(1, 1), scale="none").tolist() == [-1, 1]


def test_a_scale_that_there_is_not():
    with pytest.raises(ValueError, match="scale is set, batch or none: got 'sets'"):
        normalised(of(1, 3), whole(1, 1), scale="sets")
