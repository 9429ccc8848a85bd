"""Returns that stop where the expert stepped in."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import ui_s1


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    turns, matched = of(1, 0.8, 0.2, 1, 0.5, 1), of(1, 1, 0, 1, 1, 1)
    owner, number = whole(0, 0, 0, 0, 1, 1), whole(0, 1, 2, 3, 0, 1)
    # returns 1.4 .8 .2 1 and 1 1
    found = ui_s1(of(1, 0), turns, owner, whole(0, 0), number, matched)
    assert found.tolist() == near(1.414210, 0.000004, 0.707106, 0.707106, -1.414210, -0.000004)


def test_a_patched_turn_neither_pays_what_came_before_nor_is_paid_by_what_comes_after():
    turns, matched = of(1, 0.8, 0.2, 1, 0, 0, 0, 0), of(1, 1, 0, 1, 1, 1, 1, 1)
    owner, number = whole(0, 0, 0, 0, 1, 1, 1, 1), whole(0, 1, 2, 3, 0, 1, 2, 3)
    found = ui_s1(of(1, 0), turns, owner, whole(0, 0), number, matched, episode_weight=0.0, scale=False)
    # returns 1.4 .8 .2 1 beside a sibling that earned nothing: half of each
    assert found.tolist() == near(0.7, 0.4, 0.1, 0.5, -0.7, -0.4, -0.1, -0.5)


def test_with_every_turn_matched_nothing_stops():
    turns, owner = of(1, 1, 0, 0), whole(0, 0, 1, 1)
    found = ui_s1(of(0, 0), turns, owner, whole(0, 0), whole(0, 1, 0, 1), of(1, 1, 1, 1), discount=1.0, scale=False)
    assert found.tolist() == near(1, 0.5, -1, -0.5)


def test_credit_does_not_flow_back_across_a_patch():
    def first(later, *matched):
        turns = of(0, later, 0, 0)
        owner, number = whole(0, 0, 1, 1), whole(0, 1, 0, 1)
        return ui_s1(of(0, 0), turns, owner, whole(0, 0), number, of(*matched), scale=False)[0].item()

    assert first(1.0, 0, 1, 1, 1) == first(5.0, 0, 1, 1, 1) == 0.0
    assert first(1.0, 1, 0, 1, 1) == first(5.0, 1, 0, 1, 1) == 0.0
    assert (first(1.0, 1, 1, 1, 1), first(5.0, 1, 1, 1, 1)) == (0.25, 1.25)


def test_what_is_only_centred_is_only_centred_on_both_levels():
    # episodes 3 and 0 around 1.5, turns 3 and 0 around 1.5
    found = ui_s1(of(3, 0), of(3, 0), whole(0, 1), whole(0, 0), whole(0, 0), of(1, 1), scale=False)
    assert found.tolist() == near(3, -3)
    found = ui_s1(of(3, 0), of(3, 0), whole(0, 1), whole(0, 0), whole(0, 0), of(1, 1), scale=False, step_weight=0.0)
    assert found.tolist() == near(1.5, -1.5)
