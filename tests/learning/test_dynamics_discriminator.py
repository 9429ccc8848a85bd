"""Discriminators that estimate the dynamics gap of a simulated environment."""

from dataclasses import replace

import pytest
import torch

from support.episodes import path, turn
from whetstone.learning.dynamics_discriminator import dynamics_gaps, log_odds
from whetstone.learning.token_index import index_groups
from whetstone.trajectory import Group, Task


def world(answers, action="look"):
    turns = ([replace(turn(action, calls=["ok"], observation=answer))] for answer in answers)
    each = (path(str(k), 1.0, played) for k, played in enumerate(turns))
    return index_groups([Group(Task("t", "x"), tuple(each))])


def test_worked_log_odds_of_one_feature():
    # equal classes: log-odds of 0
    same = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert log_odds(same, same).tolist() == pytest.approx([0, 0], abs=1e-9)
    real = torch.tensor([[1.0]] * 3 + [[0.0]], dtype=torch.float64)
    simulated = torch.tensor([[1.0]] + [[0.0]] * 3, dtype=torch.float64)
    odds = log_odds(real, simulated, ridge=1e-9)
    # P(ours | 1) = 3/4 and P(ours | 0) = 1/4
    assert odds.tolist() == pytest.approx([1.098612] * 3 + [-1.098612], abs=1e-5)


def test_class_sizes_have_no_effect():
    rows = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert log_odds(rows, rows.repeat(5, 1)).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_turns_with_unrealistic_observations_have_the_larger_gap():
    gaps = dynamics_gaps(world(["lamp is on", "error 500"] * 8), world(["lamp is on"] * 16))
    right, wrong = gaps[::2], gaps[1::2]
    assert (wrong > right + 1).all()
    assert (gaps.abs() <= 10).all()


def test_state_of_only_one_environment_is_no_dynamics_gap():
    gaps = dynamics_gaps(world(["same"] * 8, action="here"), world(["same"] * 8, action="there"))
    assert gaps.abs().max() < 0.5


def test_gap_is_zero_without_real_data():
    assert dynamics_gaps(world(["a", "b"]), []).tolist() == [0, 0]
