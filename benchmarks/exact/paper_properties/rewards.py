"""Rewards: order of outcomes, matching against brute force, efficiency at equal correctness."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paper_properties import exact
from paper_properties.episodes import make_episode, make_searches, make_turn
from whetstone.analysis.exact import Figure
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.calls.canonical import Call
from whetstone.rewards.calls.matched_calls import assign_rewards
from whetstone.rewards.calls.tool_rl import call_correctness, tool_rl
from whetstone.rewards.efficiency.cost_aware import cost_aware
from whetstone.rewards.efficiency.ikea import ikea
from whetstone.rewards.efficiency.otc import Otc, call_efficiency
from whetstone.rewards.efficiency.self_aware import self_aware
from whetstone.rewards.efficiency.user_preferences import UserPreferences
from whetstone.rewards.gated.tool_star import tool_star
from whetstone.trajectory import Score, Task, Trajectory

QUESTION = Task("t", "?", {"answer": "7"})


def _score(reward: Any, trajectory: Trajectory, task: Task = QUESTION, **options: Any) -> Score:
    score: Score = asyncio.run(reward(trajectory, task, **options))
    return score


def _wrong(searches: int) -> Trajectory:
    return make_episode([*(make_turn("", [("search", "{}")]) for _ in range(searches)), make_turn("8")])


@exact("otc", of=(Otc, call_efficiency))
def fewest_calls_pay_most() -> list[Figure]:
    """The factor is 1 at the fewest calls with which a right answer of the group was found and smaller for
    every other number; a wrong answer earns 0, however few its calls."""
    others = [call_efficiency(m, n, smooth=4.0) for n in range(1, 8) for m in range(16) if m != n]
    episodes = [make_searches(1), make_searches(3), _wrong(0)]
    paid = asyncio.run(Otc(outcome=exact_match).compared(episodes, QUESTION))
    return [
        Figure("factor at the fewest calls", "=", 1.0, min(call_efficiency(n, n, smooth=4.0) for n in range(1, 8))),
        Figure("largest factor elsewhere", "<", 1.0, max(others)),
        Figure("right with one call", "=", 1.0, paid[0].value),
        # sin(3π / 4)
        Figure("right with three calls", "=", math.sin(3 * math.pi / 4), paid[1].value),
        Figure("wrong without a call", "=", 0.0, paid[2].value),
    ]


@exact("ikea", of=ikea)
def search_pays_only_for_what_is_not_known() -> list[Figure]:
    """A right answer pays most without a search and more than any wrong one with searches; a wrong answer pays
    more if it was searched for."""
    right = [_score(ikea, make_searches(count)).value for count in range(5)]
    wrong = [_score(ikea, _wrong(count)).value for count in range(5)]
    return [
        Figure("right without a search", "=", 1.6, right[0]),
        Figure("right after one of three searches", "=", 1.4, right[1]),
        Figure("least of right, bound: most of wrong", ">", max(wrong), min(right)),
        Figure("wrong after a search", "=", 0.05, wrong[1]),
        Figure("wrong without one", "=", 0.0, wrong[0]),
    ]


@exact("router-r1", of=cost_aware)
def cost_decides_among_right_answers_only() -> list[Figure]:
    """A right answer pays less the more it costs, never less than a wrong one, and a wrong one pays the same at
    any cost."""

    def paid(text: str, cost: float) -> float:
        episode = make_episode([make_turn("", [("model", "{}")], cost=cost), make_turn(text)])
        return _score(cost_aware, episode, budget=10.0, weight=0.5).value

    return [
        Figure("right at a tenth of the budget", "=", 0.95, paid("7", 1.0)),
        Figure("right at the budget and beyond", "=", 0.5, paid("7", 40.0)),
        Figure("difference of wrong answers at cost 0 and 40", "=", 0.0, paid("8", 0.0) - paid("8", 40.0)),
    ]


@exact("toolorchestra", of=UserPreferences)
def wishes_decide_among_right_answers_only() -> list[Figure]:
    """Among right answers the preferred tool pays more; a wrong one pays 0, whatever it prefers."""
    reward = UserPreferences(outcome=exact_match, prefer={"cheap": 1.0, "dear": -1.0})
    episodes = [make_episode([make_turn("", [(name, "{}")]), make_turn(text)])
                for name, text in (("cheap", "7"), ("dear", "7"), ("cheap", "8"))]  # fmt: skip
    cheap, dear, wrong = (score.value for score in asyncio.run(reward.compared(episodes, QUESTION)))
    # columns scaled to 0..1: cheap 1 and dear -1, plus 1 and the sum of dislikes
    return [
        Figure("right with the preferred tool", "=", 3.0, cheap),
        Figure("right with the disliked tool", "=", 1.0, dear),
        Figure("wrong with the preferred tool", "=", 0.0, wrong),
    ]


@exact("smart", of=self_aware)
def known_tasks_pay_less_with_a_tool() -> list[Figure]:
    """If the task is solved without tools, a right answer with one pays half; if not, both pay the same."""

    def paid(rate: float, searches: int) -> float:
        return _score(
            self_aware, make_searches(searches), Task("t", "?", {"answer": "7", "pass_rate_without_tools": rate})
        ).value

    return [
        Figure("known, with a tool", "=", 0.5, paid(0.9, 1)),
        Figure("known, without", "=", 1.0, paid(0.9, 0)),
        Figure("unknown, with a tool", "=", 1.0, paid(0.1, 1)),
    ]


@exact("tool-star", of=tool_star)
def tiers_count_one_after_the_other() -> list[Figure]:
    """Tiers are in order: unreadable calls, wrong, right, right with both tools; the bonus needs a right
    answer."""

    def paid(tools: Sequence[str], text: str) -> float:
        episode = make_episode([*(make_turn("", [(tool, "{}")]) for tool in tools), make_turn(text)])
        return _score(tool_star, episode, tools=["search", "python"]).value

    return [
        Figure("right with both tools", "=", 1.1, paid(["search", "python"], "7")),
        Figure("right with one", "=", 1.0, paid(["search"], "7")),
        Figure("wrong with both", "=", 0.0, paid(["search", "python"], "8")),
    ]


@exact("matchtir", of=assign_rewards)
def assignment_is_the_best_of_all() -> list[Figure]:
    """The optimal assignment of calls to gold calls reaches the largest sum over all permutations, on 200
    tables of similarities; the greedy one of the released code, the default, reaches at most that."""
    random, gap, excess, below = np.random.default_rng(0), 0.0, 0.0, 0
    for _ in range(200):
        table = random.integers(0, 11, (4, 4)) / 10
        best = max(sum(table[k, order[k]] for k in range(4)) for order in itertools.permutations(range(4)))
        gap = max(gap, abs(best - float(assign_rewards(table, how="optimal").sum())))
        greedy = float(assign_rewards(table, how="greedy").sum())
        excess, below = max(excess, greedy - best), below + (greedy < best - 1e-9)
    repeated = assign_rewards(np.ones((5, 1)), how="greedy")
    return [
        Figure("largest gap to the best of 24 permutations", "=", 0.0, gap),
        Figure("largest excess of the greedy assignment", "=", 0.0, excess),
        Figure("tables of 200 on which the greedy one is below the best", ">", 0, below),
        Figure("paid for one gold call made five times", "=", 1.0, float(repeated.sum())),
    ]


@exact("toolrl", of=(call_correctness, tool_rl))
def partly_right_calls_are_told_apart() -> list[Figure]:
    """Names, parameter names and values are paid separately, so that nearer calls pay more, where exact match
    pays the least for all of them."""
    gold = Call("find", {"city": "Rome", "day": "Monday"})
    calls = [
        Call("weather", {"city": "Rome", "day": "Monday"}),
        Call("find", {"town": "Rome"}),
        Call("find", {"city": "Rome", "date": "Monday"}),
        Call("find", {"city": "Rome", "day": "Sunday"}),
        gold,
    ]
    paid = [call_correctness([call], [gold]) for call in calls]
    task = Task("t", "?", {"calls": [{"name": "find", "arguments": {"city": "Rome", "day": "Monday"}}]})
    episode = make_episode([make_turn("", [("find", json.dumps({"city": "Rome", "day": "Sunday"}))]), make_turn("7")])
    exact_value = _score(tool_rl, episode, task, match="exact").parts["correctness"]
    # 6 (J(names) + J(keys) + equal values) / 4 - 3
    return [
        Figure("another tool", "=", -3.0, paid[0]),
        Figure("tool right, parameters not", "=", 6 * 1 / 4 - 3, paid[1]),
        Figure("one of two parameters (1 + 1/3 + 1)", "=", 6 * (1 + 1 / 3 + 1) / 4 - 3, paid[2]),
        Figure("one value wrong", "=", 6 * 3 / 4 - 3, paid[3]),
        Figure("all right", "=", 3.0, paid[4]),
        Figure("one value wrong, exact match", "=", -3.0, exact_value),
    ]  # fmt: skip
