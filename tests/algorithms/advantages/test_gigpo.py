"""The worked numbers of two levels, and what it becomes without shared states."""

import pytest
import torch
from hypothesis import given

from tests_batches import asked, batches, columns, of, whole
from whetstone.algorithms.advantages import gigpo, group_relative, similar_states


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


KEYS = whole(0, 1, 2, 0, 1, 1, 3, 0, 2)
TURNS = of(0, 0, 10, 0, 0, 0, 0, 0, 10)
OWNER = whole(0, 0, 0, 1, 1, 1, 1, 2, 2)
REWARDS, GROUP = of(10, 0, 10), whole(0, 0, 0)


def said(**options):
    return gigpo(REWARDS, TURNS, OWNER, GROUP, KEYS, **options).tolist()


def test_centred():
    first, second, third = (
        (6.183333, 9.666667, 3.333333),
        (-12.841667, -9.833333, -9.833333, -6.666667),
        (6.658333, 3.333333),
    )
    assert said() == near(*first, *second, *third)


def test_over_deviations():
    first, second, third = (
        (1.109764, 1.732050, 0.577350),
        (-2.308264, -1.732051, -1.732051, -1.154700),
        (1.198500, 0.577350),
    )
    assert said(scale=True) == near(*first, *second, *third)


def test_counted_by_turns():
    of_episode = [4.444444] * 3 + [-5.555556] * 4 + [4.444444] * 2
    assert said(weight="turn", step_weight=0.0) == near(*of_episode)
    scaled = [0.843274] * 3 + [-1.054092] * 4 + [0.843274] * 2
    assert said(weight="turn", step_weight=0.0, scale=True) == near(*scaled)


@given(batch=batches(forks=False))
def test_without_states_that_come_twice_it_is_grpo(batch):
    found = columns(batch)
    found["state_keys"] = torch.arange(len(found["trajectory"]))
    expected = group_relative(found["rewards"], found["group"])[found["trajectory"]]
    assert torch.allclose(asked(gigpo, found, scale=True), expected)


def test_states_of_different_tasks_are_never_the_same():
    alone = gigpo(of(1, 0), of(1, 0), whole(0, 1), whole(0, 1), whole(5, 5))
    assert alone.tolist() == [0.0, 0.0]


def test_states_nearly_alike_join_the_first_of_their_kind():
    texts = ["You are in the kitchen.", "You are in the kitchen!", "A door.", "You are in the kitchen."]
    assert similar_states(texts, whole(0, 0, 0, 1), threshold=0.9) == [0, 0, 1, 2]
    assert similar_states(texts, whole(0, 0, 0, 0), threshold=1.0) == [0, 1, 2, 0]


def test_by_default_states_are_nearly_alike_that_share_nineteen_of_twenty_characters():
    # 2 · 22 of 46 characters match: .957; 2 · 9 of 20: .9
    assert similar_states(["You are in the kitchen.", "You are in the kitchen!"], whole(0, 0)) == [0, 0]
    assert similar_states(["the hall 1", "the hall 2"], whole(0, 0)) == [0, 1]


def test_each_turn_began_from_one_observation():
    with pytest.raises(ValueError, match="longer"):
        similar_states(["A door."], whole(0, 0))
