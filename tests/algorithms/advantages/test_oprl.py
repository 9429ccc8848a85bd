"""OPRL: implicit step rewards and their advantages."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms.advantages import implicit_rewards, oprl


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


IMPLICIT, OWNER, GROUP = of(0.1, 0.2, -0.05, 0.05), integers(0, 0, 1, 1), integers(0, 0)


def advantages_of_batch(**options):
    return oprl(of(1, 0), IMPLICIT, OWNER, GROUP, **options).tolist()


def test_implicit_rewards_are_scaled_log_ratios():
    gaps = of(1.5, 0.5, 4.0, -1.0, 1.0)
    result = implicit_rewards(gaps, torch.zeros(5), integers(0, 0, 1, 2, 3), 5)
    assert result.tolist() == near(0.1, 0.2, -0.05, 0.05, 0)
    # token log-ratios .4 −.2 1
    assert implicit_rewards(of(0.4, -0.2, 1), torch.zeros(3), integers(0, 0, 0), 1).tolist() == near(0.06)
    # .05 · (−1 + 1.5 − .5 + 2)
    assert implicit_rewards(of(-1, -0.5), of(-1.5, -2), integers(0, 0), 1).tolist() == near(0.1)
    narrow = torch.tensor([0.1]), torch.tensor([0.7])
    assert implicit_rewards(*narrow, integers(0), 1).tolist() == [0.05 * (narrow[0].item() - narrow[1].item())]


def test_leave_one_out_on_both_levels():
    assert advantages_of_batch(rescale=False) == near(1.033333, 1.166667, -1.166667, -1.033333)
    assert advantages_of_batch() == near(1.166666, 1.833329, -1.833329, -1.166666)


def test_z_scores_on_both_levels():
    assert advantages_of_batch(center="mean", scale="set", rescale=False) == near(
        0.947298, 1.908065, -1.908065, -0.947298
    )


def test_single_trajectory_has_no_baseline():
    for options in ({"baseline": "first"}, {"baseline": "first", "center": "mean"}):
        result = oprl(of(1), of(0.1, 0.4), integers(0, 0), integers(0), rescale=False, **options)
        assert result.tolist() == [0, 0]
    # a third trajectory in its own group changes nothing for the pair
    both = oprl(
        of(0, 0, 0),
        of(0.1, 0.2, -0.05, 0.05, 9),
        integers(0, 0, 1, 1, 2),
        integers(3, 3, -1),
        rescale=False,
        baseline="first",
    )
    assert both.tolist() == near(0.15, 0.35, -0.15, 0.05, 0)


def test_rescale_requires_a_scale():
    with pytest.raises(ValueError, match="unscaled"):
        advantages_of_batch(baseline="first", scale="set")


def test_baseline_of_first_turns_of_the_released_code():
    result = oprl(of(0, 0), IMPLICIT, OWNER, GROUP, rescale=False, baseline="first")
    assert result.tolist() == near(0.15, 0.35, -0.15, 0.05)


def test_leave_one_out_of_three_first_turns_is_three_halves_of_the_mean_baseline():
    # first turns .1 −.05 .25, mean .1, times 3/2; or once
    turns, owner, group = of(0.1, 0.2, -0.05, 0.05, 0.25), integers(0, 0, 1, 1, 2), integers(0, 0, 0)
    result = oprl(of(0, 0, 0), turns, owner, group, rescale=False, baseline="first")
    assert result.tolist() == near(0, 0.15, -0.225, -0.075, 0.225)
    result = oprl(of(0, 0, 0), turns, owner, group, rescale=False, baseline="first", center="mean")
    assert result.tolist() == near(0, 0.1, -0.15, -0.05, 0.15)
