"""Credit of actions with different durations, and partial credit from progress output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import torch

from paper_properties import exact
from paper_properties.episodes import make_episode, make_turn
from whetstone.algorithms.advantage_transforms import duration_weighted
from whetstone.analysis.exact import Figure
from whetstone.chat import tool_result
from whetstone.rewards.gated.milestones import Milestones
from whetstone.trajectory import Task

_SECONDS, _REWARDS = (1, 10), (0.4, 1.0)
"""Seconds and rewards: first the fast poor action, then the slow good one."""


def _finished(probabilities: Sequence[float], workers: int = 1000, seconds: int = 100) -> tuple[list[int], list[float]]:
    """Return the actions that workers finish in a fixed time, and their durations; a worker repeats one action."""
    actions = [
        action
        for action, p in enumerate(probabilities)
        for _ in range(round(p * workers) * seconds // _SECONDS[action])
    ]
    return actions, [float(_SECONDS[action]) for action in actions]


def _gradient(slow: float, *, is_weighted: bool) -> float:
    """Return the summed gradient on the logit of the slow action, per advantage-weighted finished action."""
    actions, durations = _finished((1 - slow, slow))
    advantages = torch.tensor([_REWARDS[action] for action in actions], dtype=torch.float64)
    if is_weighted:
        advantages = duration_weighted(advantages, torch.tensor(durations, dtype=torch.float64))
    return float(sum(a * (float(action) - slow) for a, action in zip(advantages.tolist(), actions, strict=True)))


def _probability_after_ascent(*, is_weighted: bool) -> float:
    """Return the probability of the slow action after 60 steps of normalized gradient ascent from 1/2."""
    slow = 0.5
    for _ in range(60):
        logit = torch.logit(torch.tensor(slow)) + 0.1 * torch.sign(
            torch.tensor(_gradient(slow, is_weighted=is_weighted))
        )
        slow = round(float(torch.sigmoid(logit)), 3)
    return slow


@exact(
    "reinforcement-learning-machine-learning-engineering-agents",
    of=duration_weighted,
    note="two actions and counted samples, without a language model",
)
def durations_as_weights_remove_the_drift_to_fast_actions() -> list[Figure]:
    """Workers that each repeat one action finish ten times more fast actions of reward 0.4 than slow ones of reward 1
    in a fixed time, so the policy drifts to the fast one; with duration weights the gradient is the policy gradient,
    for every policy, and the policy goes to the slow one. If each next action is sampled from the policy, as
    in groups that are sampled completely, frequencies are right without weights, and weights of uncentered rewards
    favor slow actions even if they are worse."""
    gap = 0.0
    for slow in (0.1, 0.25, 0.5, 0.75, 0.9):
        # Σ_x π(x) r(x) d log π(x) / d logit, times the sum of weights: the number of samples
        policy = sum(p * r * (x - slow) for x, (p, r) in enumerate(zip((1 - slow, slow), _REWARDS, strict=True)))
        samples = len(_finished((1 - slow, slow))[0])
        gap = max(gap, abs(_gradient(slow, is_weighted=True) / samples - policy))
    # samples with the frequencies of the policy at π = 1/2, and the slow action is the worse one
    advantages, durations = (
        torch.tensor([0.4, 0.2], dtype=torch.float64),
        torch.tensor([1.0, 10.0], dtype=torch.float64),
    )
    weighted = duration_weighted(advantages, durations)
    centered = duration_weighted(advantages - advantages.mean(), durations)
    plain_gradient, weighted_gradient, centered_gradient = (
        float(each[1] - each[0]) / 4 for each in (advantages, weighted, centered)
    )
    return [
        Figure("gradient on a slow and worse action, each action sampled from the policy", "=", -0.05, plain_gradient),
        Figure("the same with weights, uncentered rewards: the wrong sign", ">", 0.0, weighted_gradient),
        Figure("the same with weights, rewards less their mean", "=", -0.05, centered_gradient),
        Figure("gradient on the slow action without weights, π = 1/2", "<", 0.0, _gradient(0.5, is_weighted=False)),
        Figure("largest difference from the policy gradient", "=", 0.0, gap),
        Figure(
            "probability of the slow action without weights", "<", 0.01, _probability_after_ascent(is_weighted=False)
        ),
        Figure("with weights", ">", 0.99, _probability_after_ascent(is_weighted=True)),
    ]


@exact("reinforcement-learning-machine-learning-engineering-agents", of=Milestones)
def progress_output_ranks_near_misses_above_early_failures() -> list[Figure]:
    """Progress lines in the output of a program rank episodes: early failure, near miss, success; lines that the policy
    wrote itself, that are out of order, or random text earn nothing."""
    task = Task("t", "Fit.", private={"answer": "7", "milestones": [
        {"prints": r"loaded \d+ rows"}, {"prints": r"epoch \d+ done"}, {"prints": r"score 0\.\d+"}]})  # fmt: skip
    reward = Milestones(weight=0.0, partial_credit=0.5)
    full = "loaded 150 rows\nepoch 3 done\nscore 0.93"

    def score(output: str, *, source: str = "train()", answer: str = "?") -> float:
        run = make_turn("", [("python", json.dumps({"code": source}))])
        run = replace(run, observation=(tool_result(output),))
        return asyncio.run(reward(make_episode([run, make_turn(answer)]), task)).value

    return [
        Figure("early failure", "=", 0.0, score("FileNotFoundError")),
        Figure("data loaded", "=", 0.5 / 3, score("loaded 150 rows\nValueError")),
        Figure("near miss: all but the answer", "=", 0.5, score(full)),
        Figure("success", "=", 1.0, score(full, answer="7")),
        Figure("progress lines printed by the policy", "=", 0.0, score(full, source=f"print('''{full}''')")),
        Figure("last line without the first", "=", 0.0, score("score 0.93")),
        Figure("random text", "=", 0.0, score("7a 9 loaded rows epoch done")),
    ]
