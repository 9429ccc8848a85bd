"""Means, deviations and normalization over sets."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.group_statistics import (
    combine_keys,
    index_sets,
    normalize_in_sets,
    set_mean,
    set_std,
    standard_deviation,
)


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_combined_keys_are_equal_if_all_parts_are_equal():
    key = combine_keys(integers(0, 0, 1, 1, 0), integers(5, 6, 5, 5, 5))
    assert key[0] == key[4] != key[1]
    assert key[2] == key[3] != key[0]


def test_worked_numbers_of_means_and_deviations():
    x, keys = of(1, 3, 5, 5), integers(0, 0, 7, 7)
    assert set_mean(x, keys).tolist() == [2, 2, 5, 5]
    assert set_std(x, keys).tolist() == near(2**0.5, 2**0.5, 0, 0)
    assert set_std(x, keys, ddof=0).tolist() == near(1, 1, 0, 0)


def test_standard_deviation_of_all():
    assert standard_deviation(of(1, 0, 0.5, 0)).item() == pytest.approx(0.478714, abs=1e-5)
    assert standard_deviation(of(1, 0, 0.5, 0), ddof=0).item() == pytest.approx(0.414578, abs=1e-5)
    assert standard_deviation(of(3)).item() == standard_deviation(of(0.1, 0.1, 0.1)).item() == 0


def test_normalization_by_set_and_by_batch():
    x, keys = of(1, 0, 0.5, 0), integers(0, 0, 0, 0)
    assert normalize_in_sets(x, keys, ddof=0).tolist() == near(1.507553, -0.904532, 0.301511, -0.904532)
    assert normalize_in_sets(x, keys, scale="batch").tolist() == near(*normalize_in_sets(x, keys).tolist())


def test_set_of_one_gives_zero_or_its_raw_value():
    assert normalize_in_sets(of(3, 1, 0), integers(0, 1, 1)).tolist() == near(0, 0.707106, -0.707106)
    assert normalize_in_sets(of(3, 1, 0), integers(0, 1, 1), singleton="raw").tolist() == near(3, 0.707106, -0.707106)


def test_rounding_noise_gives_zero():
    x = torch.full((5,), 0.1, dtype=torch.float64)
    x[0] += 1e-10
    assert normalize_in_sets(x, torch.zeros(5)).tolist() == [0.0] * 5


def test_keys_of_another_length_are_refused():
    with pytest.raises(ValueError, match="rewards and group must have the same shape"):
        normalize_in_sets(of(1, 2), integers(0))


def test_nonnegative_integers_are_kept_as_sets_and_other_keys_are_numbered():
    of_counting, count = index_sets(integers(0, 2, 2))
    assert (of_counting.tolist(), count.tolist()) == ([0, 2, 2], [1, 0, 2])
    of_others, count = index_sets(integers(-7, 900, 900))
    assert (of_others.tolist(), count.tolist()) == ([0, 1, 1], [1, 2])
    assert index_sets(of(0.5, 0.25))[0].tolist() == [1, 0]


def test_empty_set_has_no_effect():
    assert set_mean(of(1, 3), integers(1, 1)).tolist() == [2, 2]
    assert normalize_in_sets(of(1, 3), integers(1, 1), scale="none").tolist() == [-1, 1]


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale must be set, batch or none, got 'sets'"):
        normalize_in_sets(of(1, 3), integers(1, 1), scale="sets")
