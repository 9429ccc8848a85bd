"""Rewards in other forms: numbers as scores, and functions with the signatures of TRL and verl."""

import asyncio
import math
import sys
import types

import numpy as np
import pytest
import torch

from support.rewards import episode, turn
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError
from whetstone.rewards import REWARDS, make_reward, score_trajectory
from whetstone.rewards.adapting import to_score
from whetstone.trajectory import EndReason, Score, Task

TASK = Task("t", "Compute 2 + 3", {"answer": "5", "level": 2})
TALK = Task("t", [{"role": "user", "content": "Compute 2 + 3"}], {"answer": "5"})


@pytest.fixture
def judged():
    """Score an episode with a function that a recipe names."""
    module = types.ModuleType("rewards_of_a_user")
    sys.modules[module.__name__] = module

    def judge(function, message="5", task=TASK, **options):
        module.reward = function
        reward = make_reward({"name": f"{module.__name__}:reward", **options}, REWARDS)
        played = episode(*message) if isinstance(message, tuple) else episode(message)
        return asyncio.run(score_trajectory(reward, played, task))

    yield judge
    del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.5, Score(0.5, success=False)),
        (1, Score(1.0, success=True)),
        (True, Score(1.0, success=True)),
        (False, Score(0.0, success=False)),
        (np.float32(0.25), Score(0.25, success=False)),
        (np.bool_(True), Score(1.0, success=True)),
        (torch.tensor(0.5), Score(0.5, success=False)),
        (torch.tensor(1.0, requires_grad=True), Score(1.0, success=True)),
        (Score(0.3, {"a": 1.0}), Score(0.3, {"a": 1.0})),
    ],
)
def test_number_that_a_reward_returns_is_a_score(judged, value, score):
    def plain(trajectory, task):
        return value

    async def waits(trajectory, task):
        return value

    class Holds:
        def __call__(self, trajectory, task):
            return value

    assert to_score(value) == score
    assert judged(plain).score == judged(waits).score == judged(Holds).score == score


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "rewards_of_a_user:reward returned None; return a number, or Score(value, success=…)"),
        (math.nan, "rewards_of_a_user:reward returned nan; return a number"),
        (torch.tensor(math.inf), "rewards_of_a_user:reward returned inf; return a number"),
        ([1.0], "returned [1.0], and a reward scores one episode; return a number"),
        (np.array([1.0, 2.0]), "and a reward scores one episode; return a number"),
        ("yes", "returned 'yes'; return a number"),
    ],
)
def test_value_that_is_no_number_is_reported_with_the_remedy(judged, value, message):
    async def reward(trajectory, task):
        return value

    result = judged(reward)
    assert (result.score, result.ended) == (None, EndReason.ERROR)
    assert message in result.error
    assert "\n" not in result.error


def test_number_is_a_score_inside_a_composed_reward():
    async def half(trajectory, task):
        return 0.5

    module = types.ModuleType("rewards_of_terms")
    module.half = half
    sys.modules[module.__name__] = module
    named = {"name": "composed", "terms": {"a": {"name": "rewards_of_terms:half", "weight": 2}, "b": "exact_match"}}
    result = asyncio.run(score_trajectory(make_reward(named, REWARDS), episode("5"), TASK))
    assert result.score.value == 2 * 0.5 + 1  # twice a half, and the right answer


def test_signature_of_trl_receives_lists_of_one(judged):
    def reward(prompts, completions, answer, level, **kwargs):
        assert (prompts, level) == (["Compute 2 + 3"], [2])
        assert kwargs["trainer_state"] is None
        return [float(completion == right) for completion, right in zip(completions, answer, strict=True)]

    assert judged(reward).score == Score(1.0, success=True)
    assert judged(reward, "6").score == Score(0.0, success=False)


def test_signature_of_trl_receives_messages_if_the_prompt_is_a_list(judged):
    def reward(completions, **kwargs):
        (completion,) = completions
        assert kwargs["prompts"] == [[{"role": "user", "content": "Compute 2 + 3"}]]
        assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
        return [float(completion[-1]["content"] == "5")]

    async def waits(completions, **kwargs):
        return reward(completions, **kwargs)

    played = (turn("", ("price", {"item": "tea"}), back=["4"]), "5")
    assert judged(reward, played, TALK).score == judged(waits, played, TALK).score == Score(1.0, success=True)


def test_signature_of_trl_can_have_options_and_can_say_that_it_does_not_apply(judged):
    def reward(completions, weight=1.0, **kwargs):
        return [weight] if completions[0] else [None]

    assert judged(reward, weight=0.25).score.value == 0.25
    assert "does not apply" in judged(reward, "").error
    with pytest.raises(OptionError, match='wieght: no such option; did you mean "weight"'):
        judged(reward, wieght=1.0)


def test_signature_of_verl_receives_ground_truth_and_returns_a_number_or_a_mapping(judged):
    def number(data_source, solution_str, ground_truth, extra_info=None):
        return float(solution_str == ground_truth and data_source == "gsm8k" and extra_info == {"index": 3})

    def mapping(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
        return {"score": 0.7, "acc": True, "length": len(solution_str)}

    private = {"ground_truth": "5", "data_source": "gsm8k", "extra_info": {"index": 3}}
    assert judged(number, "5", Task("t", "?", private)).score == Score(1.0, success=True)
    assert judged(mapping).score == Score(0.7, {"acc": 1.0, "length": 1.0}, success=True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda completions, solution: [1.0],
            "reads solution, which the task does not have (its private data has answer",
        ),
        (lambda completions: [1.0, 0.0], "returned 2 rewards for one completion"),
        (lambda completions: None, "returned None; return a number"),
        (lambda solution_str, ground_truth: {"reward": 1.0}, 'returned a mapping without "score"'),
    ],
)
def test_wrong_use_of_a_signature_is_reported(judged, function, message):
    result = judged(function)
    assert (result.score, message in result.error) == (None, True)


@pytest.mark.parametrize("function", [lambda: 1.0, lambda one: 1.0, lambda one, two, three: 1.0])
def test_parameters_that_fit_no_signature_are_refused_with_the_signatures(judged, function):
    with pytest.raises(RecipeError, match=r'reward "rewards_of_a_user:reward" takes .*async def f\(trajectory, task\)'):
        judged(function)
