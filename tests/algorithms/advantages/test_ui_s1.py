"""UI-S1: returns stop at patched turns."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import ui_s1


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    turns, matched = of(1, 0.8, 0.2, 1, 0.5, 1), of(1, 1, 0, 1, 1, 1)
    owner, number = integers(0, 0, 0, 0, 1, 1), integers(0, 1, 2, 3, 0, 1)
    # returns 1.4 .8 .2 1 and 1 1
    advantages = ui_s1(of(1, 0), turns, owner, integers(0, 0), number, matched)
    assert advantages.tolist() == near(1.414210, 0.000004, 0.707106, 0.707106, -1.414210, -0.000004)


def test_rewards_do_not_cross_a_patched_turn():
    turns, matched = of(1, 0.8, 0.2, 1, 0, 0, 0, 0), of(1, 1, 0, 1, 1, 1, 1, 1)
    owner, number = integers(0, 0, 0, 0, 1, 1, 1, 1), integers(0, 1, 2, 3, 0, 1, 2, 3)
    advantages = ui_s1(of(1, 0), turns, owner, integers(0, 0), number, matched, episode_weight=0.0, scale=False)
    # returns 1.4 .8 .2 1, and a sibling with reward 0: half of each
    assert advantages.tolist() == near(0.7, 0.4, 0.1, 0.5, -0.7, -0.4, -0.1, -0.5)


def test_returns_do_not_stop_if_every_turn_matches():
    turns, owner = of(1, 1, 0, 0), integers(0, 0, 1, 1)
    advantages = ui_s1(
        of(0, 0), turns, owner, integers(0, 0), integers(0, 1, 0, 1), of(1, 1, 1, 1), discount=1.0, scale=False
    )
    assert advantages.tolist() == near(1, 0.5, -1, -0.5)


def test_credit_does_not_propagate_across_a_patch():
    def first(later, *matched):
        turns = of(0, later, 0, 0)
        owner, number = integers(0, 0, 1, 1), integers(0, 1, 0, 1)
        return ui_s1(of(0, 0), turns, owner, integers(0, 0), number, of(*matched), scale=False)[0].item()

    assert first(1.0, 0, 1, 1, 1) == first(5.0, 0, 1, 1, 1) == 0.0
    assert first(1.0, 1, 0, 1, 1) == first(5.0, 1, 0, 1, 1) == 0.0
    assert (first(1.0, 1, 1, 1, 1), first(5.0, 1, 1, 1, 1)) == (0.25, 1.25)


def test_without_scale_both_levels_are_only_centered():
    # episodes 3 and 0 around 1.5, turns 3 and 0 around 1.5
    advantages = ui_s1(of(3, 0), of(3, 0), integers(0, 1), integers(0, 0), integers(0, 0), of(1, 1), scale=False)
    assert advantages.tolist() == near(3, -3)
    advantages = ui_s1(
        of(3, 0), of(3, 0), integers(0, 1), integers(0, 0), integers(0, 0), of(1, 1), scale=False, step_weight=0.0
    )
    assert advantages.tolist() == near(1.5, -1.5)
