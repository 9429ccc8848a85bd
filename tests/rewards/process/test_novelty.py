"""Novelty bonus: worked numbers, checkpoints, and the report of a bonus above the reward."""

import json
import math

import pytest

from support.rewards import episode, score, task, turn
from whetstone.errors import RecipeError
from whetstone.reporting.alarms import find_alarms
from whetstone.rewards import REWARDS, make_reward
from whetstone.rewards.process.novelty import Novelty, embed_words
from whetstone.rollout.protocol import StepOutcome
from whetstone.seeding import derive_random
from whetstone.trajectory import Group

TASK = task("?", answer="Rome")
PATH = episode(turn("", ("go", {}), back=["hall"]), turn("", ("go", {}), back=["cellar"]), "Rome")
LOOP = episode(turn("", ("go", {}), back=["hall"]), turn("", ("go", {}), back=["hall"]), "Rome")


def observe(reward, *episodes):
    scored = [one.__class__(**{**fields(one), "score": score(reward, one, TASK)}) for one in episodes]
    reward.observe(StepOutcome(0, (Group(TASK, tuple(scored), 0),), {}, derive_random("test")))


def fields(one):
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def make(**options):
    return make_reward({"name": "novelty", **options}, REWARDS)


def test_count_bonus_is_the_inverse_root_of_the_visits():
    reward = make(weight=1.0)
    assert score(reward, PATH, TASK).value == 3.0  # 1 for the answer, 1 per new room
    observe(reward, PATH, LOOP)
    # the hall was visited in two episodes, the cellar in one; the last turn has no observation
    assert score(reward, PATH, TASK).parts["novelty"] == pytest.approx(1 / math.sqrt(3) + 1 / math.sqrt(2))
    assert score(reward, PATH, TASK).success


def test_a_state_counts_once_per_episode():
    assert score(make(weight=1.0), LOOP, TASK).parts["novelty"] == 1.0


def test_bonus_per_turn_leaves_the_outcome_unchanged():
    result = score(make(weight=0.5, per_turn=True), PATH, TASK)
    assert (result.value, result.turns) == (1.0, (0.5, 0.5, 0.0))


@pytest.mark.parametrize("measure", ["counts", "random_network", "control"])
def test_restored_reward_gives_the_same_bonus(measure):
    reward, other = make(measure=measure), make(measure=measure)
    observe(reward, PATH, LOOP)
    other.load_state(json.loads(json.dumps(reward.state())))
    assert score(other, PATH, TASK) == score(reward, PATH, TASK)
    assert other.metrics() == reward.metrics()


def test_features_have_length_one():
    assert [float((v := embed_words(text)) @ v) for text in ("", "a b a", "\ud800")] == pytest.approx([1, 1, 1])


def test_bonus_above_the_outcome_is_reported():
    reward = make(weight=2.0)
    observe(reward, PATH)
    metrics = reward.metrics()
    assert metrics["novelty_above_outcome"] == 1.0  # a bonus of 4 for an outcome of 1
    row = {"stage": "reinforcement", "step": 1, "reward/novelty_above_outcome": metrics["novelty_above_outcome"]}
    assert [alarm.name for alarm in find_alarms([row])] == ["novelty above reward"]
    assert find_alarms([{**row, "reward/novelty_above_outcome": 0.1}]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "control", "over": "actions"}, "control compares observations"),
        ({"alternate_steps": -1}, "alternate_steps must be at least 0"),
        ({"weight": -0.1}, "weight"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        make(**options)


def test_alternating_bonus_pauses():
    reward = Novelty(outcome=make_reward("exact_match", REWARDS), weight=1.0, alternate_steps=1)
    observe(reward, PATH)
    assert score(reward, episode(turn("", ("go", {}), back=["attic"]), "Rome"), TASK).value == 1.0
