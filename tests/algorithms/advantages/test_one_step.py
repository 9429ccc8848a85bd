"""Monte-Carlo outcome and one step ahead, as written and as released."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import digirl, one_step_td, webrl


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def said(function, now, ahead, reward, **options):
    """Of a turn that is followed by another, whose reward is what its return is."""
    ended = ahead is None
    values = of(now) if ended else of(now, ahead)
    rewards = of(reward) if ended else of(0, reward)
    owner = whole(*[0] * len(values))
    return function(rewards, values, of(0), values, of(0), owner, **options).advantages[0].item()


def test_as_released():
    # V .4 → .6, nothing earned: 0.15
    assert said(digirl, 0.4, 0.6, 0) == 1
    assert said(webrl, 0.4, 0.6, 0) == 1
    # V .6 → .6: −0.05
    assert said(digirl, 0.6, 0.6, 0) == 0
    assert said(webrl, 0.6, 0.6, 0) == -0.6
    # V .5 → end, r 1, MC 1: 1.45
    assert said(digirl, 0.5, None, 1) == 1
    assert said(webrl, 0.5, None, 1) == 1


def test_the_step_cost_discards_uneventful_turns_of_failed_episodes():
    assert said(digirl, 0.5, 0.46, 0) == 0
    assert said(digirl, 0.5, 0.52, 0, step_cost=0.01) == 1


def test_as_written():
    # (1 − w)(0 + .6 − .4) + w (0.9 · 1 − .4)
    assert said(one_step_td, 0.4, 0.6, 1, weight=0.25) == pytest.approx(0.75 * 0.2 + 0.25 * 0.5)
    assert said(one_step_td, 0.4, 0.6, 1, weight=0.0) == pytest.approx(0.2)


def test_the_smaller_of_the_twins_is_believed():
    result = one_step_td(of(0, 1), of(0.9, 0.2), of(0), of(0.4, 0.6), of(0), whole(0, 0), weight=0.0).advantages
    assert result.tolist() == near(0.2 - 0.4, 1 - 0.2)


def test_a_turn_that_brings_just_what_it_costs_was_worth_it_to_webrl_and_not_to_digirl():
    # V 0 → ½, nothing earned: ½ − ½
    assert said(webrl, 0.0, 0.5, 0, step_cost=0.5) == 1
    assert said(digirl, 0.0, 0.5, 0, step_cost=0.5) == 0


@pytest.mark.parametrize("function", [digirl, one_step_td, webrl])
def test_both_learn_whether_anything_is_to_come(function):
    said = function(of(0, 1, 0, 0), of(0, 0, 0, 0), of(0, 0), of(0, 0, 0, 0), of(0, 0), whole(0, 0, 1, 1))
    assert said.targets["values"].tolist() == said.targets["twin_values"].tolist() == [1, 1, 0, 0]
