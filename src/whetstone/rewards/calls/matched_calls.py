"""Which calls of an episode were the useful ones? Those that match calls an expert would have made.

    similarity of each call to each gold call → assignment → a reward for each call → the mean over a turn's calls

Easy to get wrong: a call repeated five times is not five good calls. Each gold call is given away once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment, root
from scipy.special import logsumexp

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.calls.canonical import calls_of, same_value
from whetstone.rewards.protocol import Reward, needs_private, provides
from whetstone.trajectory import Score, Task, Trajectory

Calls = Sequence[tuple[str, Mapping[str, Any]]]
"""(name, arguments) of each; an empty name is any tool's."""


@provides("process_rewards", "action_rewards", "matched", "progress")
@needs_private("calls")
async def matched_calls(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_number,
    assignment: Literal["greedy", "optimal", "transport"] = "greedy",
) -> Score:
    """The outcome, and for each turn how well its calls match the task's gold calls.

    `process_rewards`: the mean over a turn's calls of what each was assigned, 1 for an answer that is right, else 0.
    `action_rewards`: the share of gold calls that were made. `matched`: 1 where all of a turn's calls are gold
    calls not made before, or the answer is right. `progress`: the share of gold calls made in front of each turn.

    Gold calls are `task.private["calls"]`: mappings with `arguments` and, where the tool matters, `name`.

    Args:
        outcome: Says whether the answer is right.
        assignment: How calls are assigned to gold ones; see `assigned`.
    """
    correct = await outcome(trajectory, task)
    if correct.invalid:
        return correct
    gold = [(str(call.get("name", "")), call["arguments"]) for call in task.private["calls"]]
    made: list[tuple[str, Mapping[str, Any]]] = []
    turns: list[int] = []
    for call in calls_of(trajectory):
        made.append((call.name, call.arguments))
        turns.append(call.turn)
    similarity = np.array([[call_similarity(call, other) for other in gold] for call in made]).reshape(
        len(made), len(gold)
    )
    rewards = assigned(similarity, how=assignment)
    exact = assigned((similarity == 1).astype(float), how="greedy") == 1
    count = len(trajectory.turns)
    per_turn, matched, progress = [0.0] * count, [0.0] * count, [0.0] * count
    for number in range(count):
        mine = [k for k, turn in enumerate(turns) if turn == number]
        progress[number] = float(exact[[k for k, turn in enumerate(turns) if turn < number]].sum()) / max(1, len(gold))
        if mine:
            per_turn[number], matched[number] = float(rewards[mine].mean()), float(exact[mine].all())
    if count and not trajectory.turns[-1].message.tool_calls:
        per_turn[-1] = matched[-1] = correct.value
    share = float(exact.sum()) / max(1, len(gold))
    parts = {**correct.parts, "action_rewards": share}
    signals = {"matched": tuple(matched), "progress": tuple(progress)}
    return Score(correct.value, parts, tuple(per_turn), correct.success, signals)


def call_similarity(call: tuple[str, Mapping[str, Any]], gold: tuple[str, Mapping[str, Any]]) -> float:
    """How alike two calls are, in [0, 1]; 1 is the same, 0 another tool's.

        (1 + |names ∩| / |names ∪| + values that are equal) / (2 + |gold arguments|)

    Source: Qu et al. 2026 (MatchTIR), arXiv:2601.10712, and its code.
    """
    (name, arguments), (gold_name, wanted) = call, gold
    if gold_name and name.lower() != gold_name.lower():
        return 0.0
    ours, theirs = Counter(arguments.keys()), Counter(wanted.keys())
    union = (ours | theirs).total()
    overlap = (ours & theirs).total() / union if union else 1.0
    equal = sum(key in arguments and same_value(arguments[key], value) for key, value in wanted.items())
    return float((1 + overlap + equal) / (2 + len(wanted)))


def assigned(
    similarity: np.ndarray, *, how: Literal["greedy", "optimal", "transport"] = "greedy", regularisation: float = 0.1
) -> np.ndarray:
    """[P] what each of P calls is given, from its similarity [P, Q] to Q gold calls.

    `greedy` takes the most alike pairs first, each call and gold call once, as MatchTIR's code does under the name of
    an optimal matching; `optimal` maximises the sum; `transport` spreads each call over gold calls by entropic
    transport with uniform marginals, at most 1/P a call.

    Source: Qu et al. 2026 (MatchTIR), arXiv:2601.10712, §3.2, and its code.
    """
    count, goals = similarity.shape
    found = np.zeros(count)
    if not count or not goals:
        return found
    if how == "transport":
        return np.asarray((_transport(similarity, regularisation) * similarity).sum(1))
    if how == "optimal":
        rows, columns = linear_sum_assignment(similarity, maximize=True)
        found[rows] = similarity[rows, columns]
        return found
    taken: set[int] = set()
    for place in np.argsort(-similarity, axis=None, kind="stable"):
        row, column = divmod(int(place), goals)
        if similarity[row, column] > 0 and found[row] == 0 and column not in taken:
            found[row] = similarity[row, column]
            taken.add(column)
    return found


def _transport(similarity: np.ndarray, regularisation: float) -> np.ndarray:
    """The plan exp((S + a + b) / ε) with uniform marginals, which Sinkhorn's scaling comes to in the end.

    Near-diagonal plans take it tens of thousands of steps; from a hundred on, the equations are solved directly.
    """
    count, goals = similarity.shape
    scaled = similarity / regularisation
    a, b = np.zeros(count), np.zeros(goals)
    for _ in range(100):
        a = -np.log(count) - logsumexp(scaled + b, axis=1)
        b = -np.log(goals) - logsumexp(scaled + a[:, None], axis=0)

    def plan(free: np.ndarray) -> np.ndarray:  # one potential is free, since only their sum counts
        return np.asarray(np.exp(scaled + free[:count, None] + np.append(free[count:], b[-1])))

    def miss(free: np.ndarray) -> np.ndarray:
        found = plan(free)
        return np.concatenate([found.sum(1) - 1 / count, found.sum(0)[:-1] - 1 / goals])

    solved = root(miss, np.concatenate([a, b[:-1]]), tol=1e-13)
    return plan(solved.x)
