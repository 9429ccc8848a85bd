"""Implicit rewards, and their credit."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms.advantages import implicit_rewards, oprl


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


IMPLICIT, OWNER, GROUP = of(0.1, 0.2, -0.05, 0.05), whole(0, 0, 1, 1), whole(0, 0)


def said(**options):
    return oprl(of(1, 0), IMPLICIT, OWNER, GROUP, **options).tolist()


def test_what_the_model_finds_likelier():
    gaps = of(1.5, 0.5, 4.0, -1.0, 1.0)
    found = implicit_rewards(gaps, torch.zeros(5), whole(0, 0, 1, 2, 3), 5)
    assert found.tolist() == near(0.1, 0.2, -0.05, 0.05, 0)
    # token log-ratios .4 −.2 1
    assert implicit_rewards(of(0.4, -0.2, 1), torch.zeros(3), whole(0, 0, 0), 1).tolist() == near(0.06)
    # .05 · (−1 + 1.5 − .5 + 2)
    assert implicit_rewards(of(-1, -0.5), of(-1.5, -2), whole(0, 0), 1).tolist() == near(0.1)
    narrow = torch.tensor([0.1]), torch.tensor([0.7])
    assert implicit_rewards(*narrow, whole(0), 1).tolist() == [0.05 * (narrow[0].item() - narrow[1].item())]


def test_leave_one_out_on_both_levels():
    assert said(rescale=False) == near(1.033333, 1.166667, -1.166667, -1.033333)
    assert said() == near(1.166666, 1.833329, -1.833329, -1.166666)


def test_z_on_both_levels():
    assert said(center="mean", scale="set", rescale=False) == near(0.947298, 1.908065, -1.908065, -0.947298)


def test_one_trajectory_has_nobody_to_be_compared_with():
    for options in ({"baseline": "first"}, {"baseline": "first", "center": "mean"}):
        found = oprl(of(1), of(0.1, 0.4), whole(0, 0), whole(0), rescale=False, **options)
        assert found.tolist() == [0, 0]
    # a third alone beside the pair changes nothing for them
    both = oprl(
        of(0, 0, 0),
        of(0.1, 0.2, -0.05, 0.05, 9),
        whole(0, 0, 1, 1, 2),
        whole(3, 3, -1),
        rescale=False,
        baseline="first",
    )
    assert both.tolist() == near(0.15, 0.35, -0.15, 0.05, 0)


def test_a_baseline_without_a_scale_is_not_asked_for_one():
    with pytest.raises(ValueError, match="unscaled"):
        said(baseline="first", scale="set")


def test_the_codes_baseline_of_first_turns():
    found = oprl(of(0, 0), IMPLICIT, OWNER, GROUP, rescale=False, baseline="first")
    assert found.tolist() == near(0.15, 0.35, -0.15, 0.05)


def test_of_three_first_turns_the_others_mean_is_one_and_a_half_times_as_far():
    # first turns .1 −.05 .25, mean .1, times 3/2; or once
    turns, owner, group = of(0.1, 0.2, -0.05, 0.05, 0.25), whole(0, 0, 1, 1, 2), whole(0, 0, 0)
    found = oprl(of(0, 0, 0), turns, owner, group, rescale=False, baseline="first")
    assert found.tolist() == near(0, 0.15, -0.225, -0.075, 0.225)
    found = oprl(of(0, 0, 0), turns, owner, group, rescale=False, baseline="first", center="mean")
    assert found.tolist() == near(0, 0.1, -0.15, -0.05, 0.15)
