"""Role-wise advantages: each role is normalized separately."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import dr_mas, group_relative, mars, role_normalized


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_two_players_of_two_games():
    # player 0: returns 1.1 1 1, −1 −1, mean .22; player 1: −1 −1, 1.2 1.1 1, mean .26
    turns = of(0.1, 0, 1, 0, -1, 0, -1, 0.1, 0.1, 1)
    owner = integers(0, 0, 0, 1, 1, 2, 2, 3, 3, 3)
    advantages = mars(turns, owner, integers(0, 0, 1, 1))
    assert advantages.tolist() == near(0.88, 0.78, 0.78, -1.22, -1.22, -1.26, -1.26, 0.94, 0.84, 0.74)


def test_player_with_one_trajectory_gives_zero():
    assert mars(of(1, 0, 1), integers(0, 0, 1), integers(0, 1)).tolist() == [0.0] * 3


def test_agents_of_a_team_have_separate_scales():
    rewards, roles = of(1, 0, 1, 0, 0.2, 0.2, 0.4, 0), integers(0, 0, 0, 0, 1, 1, 1, 1)
    task = integers(*[0] * 8)
    advantages = dr_mas(rewards, task, roles)
    assert advantages[:4].tolist() == near(0.866024, -0.866024, 0.866024, -0.866024)
    assert advantages[4:].tolist() == near(0, 0, 1.224737, -1.224737)
    assert group_relative(rewards, task)[6].item() == pytest.approx(0.117851, abs=1e-5)  # the value with pooling


def test_attacker_and_defender_are_normalized_separately():
    # attacker: two tokens at 2, one at −2; defender: two at −2, two at 2
    rewards = of(0, 2, -2, 0, -2, 0, 2)
    owner, roles = integers(0, 0, 1, 2, 2, 3, 3), integers(0, 0, 1, 1)
    result = role_normalized(rewards, owner, roles)
    assert result.tolist() == near(0.707107, 0.707107, -1.414214, -1, -1, 1, 1)
    together = role_normalized(rewards, owner, integers(0, 0, 0, 0))
    assert together[[0, 2]].tolist() == near(0.866025, -1.154701)


def test_returns_of_a_role_can_be_scaled():
    # role 0: returns 2 and 0 and 1, mean 1, deviation 1; role 1: 3 and 3 and 0, mean 2, deviation √3
    turns, owner, roles = of(2, 0, 1, 0, 3, 0), integers(0, 1, 2, 3, 3, 4), integers(0, 0, 0, 1, 1)
    third = 1 / 3**0.5
    assert mars(turns, owner, roles, scale=True).tolist() == near(1, -1, 0, third, third, -2 * third)
    assert mars(turns, owner, roles, scale=True, epsilon=1.0).tolist() == near(
        0.5, -0.5, 0, *[1 / (3**0.5 + 1)] * 2, -2 / (3**0.5 + 1)
    )
    assert mars(turns, owner, roles).tolist() == near(1, -1, 0, 1, 1, -2)


def test_nearly_equal_returns_of_a_role_give_small_advantages():
    # ±1e-5 from their mean: a variance of 1e-10 counts as 1e-8
    result = role_normalized(of(2e-5, 0), integers(0, 1), integers(0, 0))
    assert result.tolist() == near(0.1, -0.1)


def test_discount_counts_the_tokens_of_a_role():
    # returns ½ 1 and 0: mean ½, population variance 1/6
    result = role_normalized(of(0, 1, 0), integers(0, 0, 1), integers(0, 0), discount=0.5)
    assert result.tolist() == near(0, 0.5 * 6**0.5, -0.5 * 6**0.5)
