"""Where a simulated world is off, by two discriminators."""

from dataclasses import replace

import pytest
import torch

from tests_episodes import path, turn
from whetstone.learning.dynamics import dynamics_gaps, log_odds
from whetstone.learning.token_index import index_groups
from whetstone.trajectory import Group, Task


def world(answers, asked="look"):
    turns = ([replace(turn(asked, calls=["ok"], observation=answer))] for answer in answers)
    each = (path(str(k), 1.0, played) for k, played in enumerate(turns))
    return index_groups([Group(Task("t", "x"), tuple(each))])


def test_log_odds_of_one_feature_by_hand():
    # both sides alike: no opinion
    same = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert log_odds(same, same).tolist() == pytest.approx([0, 0], abs=1e-9)
    ours = torch.tensor([[1.0]] * 3 + [[0.0]], dtype=torch.float64)
    theirs = torch.tensor([[1.0]] + [[0.0]] * 3, dtype=torch.float64)
    found = log_odds(ours, theirs, ridge=1e-9)
    # P(ours | 1) = 3/4 and P(ours | 0) = 1/4
    assert found.tolist() == pytest.approx([1.098612] * 3 + [-1.098612], abs=1e-5)


def test_how_many_there_are_of_each_side_is_no_evidence():
    rows = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert log_odds(rows, rows.repeat(5, 1)).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_turns_whose_answers_the_real_world_does_not_give_have_the_larger_gap():
    gaps = dynamics_gaps(world(["lamp is on", "error 500"] * 8), world(["lamp is on"] * 16))
    right, wrong = gaps[::2], gaps[1::2]
    assert (wrong > right + 1).all()
    assert (gaps.abs() <= 10).all()


def test_a_state_only_one_world_has_is_no_gap_of_dynamics():
    gaps = dynamics_gaps(world(["same"] * 8, asked="here"), world(["same"] * 8, asked="there"))
    assert gaps.abs().max() < 0.5


def test_with_nothing_real_there_is_no_gap():
    assert dynamics_gaps(world(["a", "b"]), []).tolist() == [0, 0]
