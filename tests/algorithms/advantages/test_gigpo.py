"""GiGPO: worked numbers of both levels, and the reduction to GRPO without shared states."""

import pytest
import torch
from hypothesis import given

from support.batches import batches, call_with_columns, columns, integers, of
from whetstone.algorithms.advantages import gigpo, group_relative, similar_states


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


KEYS = integers(0, 1, 2, 0, 1, 1, 3, 0, 2)
TURNS = of(0, 0, 10, 0, 0, 0, 0, 0, 10)
OWNER = integers(0, 0, 0, 1, 1, 1, 1, 2, 2)
REWARDS, GROUP = of(10, 0, 10), integers(0, 0, 0)


def advantages_of_batch(**options):
    return gigpo(REWARDS, TURNS, OWNER, GROUP, KEYS, **options).tolist()


def test_worked_numbers_centered():
    first, second, third = (
        (6.183333, 9.666667, 3.333333),
        (-12.841667, -9.833333, -9.833333, -6.666667),
        (6.658333, 3.333333),
    )
    assert advantages_of_batch() == near(*first, *second, *third)


def test_worked_numbers_over_deviations():
    first, second, third = (
        (1.109764, 1.732050, 0.577350),
        (-2.308264, -1.732051, -1.732051, -1.154700),
        (1.198500, 0.577350),
    )
    assert advantages_of_batch(scale=True) == near(*first, *second, *third)


def test_worked_numbers_counted_by_turns():
    of_episode = [4.444444] * 3 + [-5.555556] * 4 + [4.444444] * 2
    assert advantages_of_batch(weight="turn", step_weight=0.0) == near(*of_episode)
    scaled = [0.843274] * 3 + [-1.054092] * 4 + [0.843274] * 2
    assert advantages_of_batch(weight="turn", step_weight=0.0, scale=True) == near(*scaled)


@given(batch=batches(forks=False))
def test_without_repeated_states_it_is_grpo(batch):
    batch_columns = columns(batch)
    batch_columns["state_keys"] = torch.arange(len(batch_columns["trajectory"]))
    expected = group_relative(batch_columns["rewards"], batch_columns["group"])[batch_columns["trajectory"]]
    assert torch.allclose(call_with_columns(gigpo, batch_columns, scale=True), expected)


def test_states_of_different_tasks_are_distinct():
    alone = gigpo(of(1, 0), of(1, 0), integers(0, 1), integers(0, 1), integers(5, 5))
    assert alone.tolist() == [0.0, 0.0]


def test_similar_states_join_the_first_similar_state():
    texts = ["You are in the kitchen.", "You are in the kitchen!", "A door.", "You are in the kitchen."]
    assert similar_states(texts, integers(0, 0, 0, 1), threshold=0.9) == [0, 0, 1, 2]
    assert similar_states(texts, integers(0, 0, 0, 0), threshold=1.0) == [0, 1, 2, 0]


def test_default_similarity_threshold_is_95_percent_of_characters():
    # 2 · 22 of 46 characters match: .957; 2 · 9 of 20: .9
    assert similar_states(["You are in the kitchen.", "You are in the kitchen!"], integers(0, 0)) == [0, 0]
    assert similar_states(["the hall 1", "the hall 2"], integers(0, 0)) == [0, 1]


def test_each_turn_requires_one_observation():
    with pytest.raises(ValueError, match="longer"):
        similar_states(["A door."], integers(0, 0))
