"""Monte Carlo outcomes mixed with one-step TD, in the forms of the paper and of the released code."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import digirl, one_step_td, webrl


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def advantage_of_turn(function, now, ahead, reward, **options):
    """Return the advantage of a turn before a last turn whose return is its reward."""
    ended = ahead is None
    values = of(now) if ended else of(now, ahead)
    rewards = of(reward) if ended else of(0, reward)
    owner = integers(*[0] * len(values))
    return function(rewards, values, of(0), values, of(0), owner, **options).advantages[0].item()


def test_as_released():
    # V .4 → .6, reward 0: 0.15
    assert advantage_of_turn(digirl, 0.4, 0.6, 0) == 1
    assert advantage_of_turn(webrl, 0.4, 0.6, 0) == 1
    # V .6 → .6: −0.05
    assert advantage_of_turn(digirl, 0.6, 0.6, 0) == 0
    assert advantage_of_turn(webrl, 0.6, 0.6, 0) == -0.6
    # V .5 → end, r 1, MC 1: 1.45
    assert advantage_of_turn(digirl, 0.5, None, 1) == 1
    assert advantage_of_turn(webrl, 0.5, None, 1) == 1


def test_the_step_cost_discards_uneventful_turns_of_failed_episodes():
    assert advantage_of_turn(digirl, 0.5, 0.46, 0) == 0
    assert advantage_of_turn(digirl, 0.5, 0.52, 0, step_cost=0.01) == 1


def test_as_written():
    # (1 − w)(0 + .6 − .4) + w (0.9 · 1 − .4)
    assert advantage_of_turn(one_step_td, 0.4, 0.6, 1, weight=0.25) == pytest.approx(0.75 * 0.2 + 0.25 * 0.5)
    assert advantage_of_turn(one_step_td, 0.4, 0.6, 1, weight=0.0) == pytest.approx(0.2)


def test_minimum_of_the_twin_critics_is_used():
    result = one_step_td(of(0, 1), of(0.9, 0.2), of(0), of(0.4, 0.6), of(0), integers(0, 0), weight=0.0).advantages
    assert result.tolist() == near(0.2 - 0.4, 1 - 0.2)


def test_zero_advantage_is_kept_by_webrl_and_discarded_by_digirl():
    # V 0 → ½, reward 0: ½ − ½
    assert advantage_of_turn(webrl, 0.0, 0.5, 0, step_cost=0.5) == 1
    assert advantage_of_turn(digirl, 0.0, 0.5, 0, step_cost=0.5) == 0


@pytest.mark.parametrize("function", [digirl, one_step_td, webrl])
def test_both_critics_are_trained_on_future_success(function):
    credit = function(of(0, 1, 0, 0), of(0, 0, 0, 0), of(0, 0), of(0, 0, 0, 0), of(0, 0), integers(0, 0, 1, 1))
    assert credit.targets["values"].tolist() == credit.targets["twin_values"].tolist() == [1, 1, 0, 0]
