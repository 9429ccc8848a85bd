"""MatchTIR reward: matches the tool calls of an episode to gold calls.

    similarity of each call to each gold call → assignment → a reward for each call → the mean over a turn's calls

Note: A call repeated five times is not five good calls. Each gold call is assigned once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment, root
from scipy.special import logsumexp

from whetstone.rewards.answers.exact_number import exact_number
from whetstone.rewards.calls.canonical import list_calls, same_value
from whetstone.rewards.protocol import Reward, needs_private, provides
from whetstone.trajectory import Score, Task, Trajectory

Calls = Sequence[tuple[str, Mapping[str, Any]]]
"""(name, arguments) of each call; an empty name matches any tool."""


@provides("process_rewards", "action_rewards", "matched", "progress")
@needs_private("calls")
async def matched_calls(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_number,
    assignment: Literal["greedy", "optimal", "transport"] = "greedy",
) -> Score:
    """Score the outcome, and each turn by how well its calls match the task's gold calls.

    Gold calls are `task.private["calls"]`: mappings with `arguments` and optionally `name`. The score has these
    columns:

    - `process_rewards`: the mean reward of a turn's calls; for a final answer, 1 if it is right, else 0.
    - `action_rewards`: the fraction of gold calls that were made.
    - `matched`: 1 if all of a turn's calls are new gold calls, or the answer is right.
    - `progress`: the fraction of gold calls made before each turn.

    Args:
        outcome: Reward that determines whether the answer is right.
        assignment: Assignment of calls to gold calls; see `assign_rewards`.
    """
    correct = await outcome(trajectory, task)
    if correct.invalid:
        return correct
    gold = [(str(call.get("name", "")), call["arguments"]) for call in task.private["calls"]]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    turns: list[int] = []
    for call in list_calls(trajectory):
        calls.append((call.name, call.arguments))
        turns.append(call.turn)
    similarity = np.array([[call_similarity(call, other) for other in gold] for call in calls]).reshape(
        len(calls), len(gold)
    )
    rewards = assign_rewards(similarity, how=assignment)
    exact = assign_rewards((similarity == 1).astype(float), how="greedy") == 1
    count = len(trajectory.turns)
    per_turn, matched, progress = [0.0] * count, [0.0] * count, [0.0] * count
    for number in range(count):
        indices = [k for k, turn in enumerate(turns) if turn == number]
        progress[number] = float(exact[[k for k, turn in enumerate(turns) if turn < number]].sum()) / max(1, len(gold))
        if indices:
            per_turn[number], matched[number] = float(rewards[indices].mean()), float(exact[indices].all())
    if count and not trajectory.turns[-1].message.tool_calls:
        per_turn[-1] = matched[-1] = correct.value
    fraction = float(exact.sum()) / max(1, len(gold))
    parts = {**correct.parts, "action_rewards": fraction}
    signals = {"matched": tuple(matched), "progress": tuple(progress)}
    return Score(correct.value, parts, tuple(per_turn), correct.success, signals)


def call_similarity(call: tuple[str, Mapping[str, Any]], gold: tuple[str, Mapping[str, Any]]) -> float:
    """Compute the similarity of a call to a gold call, in [0, 1]: 1 for equal calls, 0 for different tools.

        (1 + |names ∩| / |names ∪| + values that are equal) / (2 + |gold arguments|)

    Source: Qu et al. 2026 (MatchTIR), arXiv:2601.10712, and its code.
    """
    (name, arguments), (gold_name, wanted) = call, gold
    if gold_name and name.lower() != gold_name.lower():
        return 0.0
    names, gold_names = Counter(arguments.keys()), Counter(wanted.keys())
    union = (names | gold_names).total()
    overlap = (names & gold_names).total() / union if union else 1.0
    equal = sum(key in arguments and same_value(arguments[key], value) for key, value in wanted.items())
    return float((1 + overlap + equal) / (2 + len(wanted)))


def assign_rewards(
    similarity: np.ndarray, *, how: Literal["greedy", "optimal", "transport"] = "greedy", regularization: float = 0.1
) -> np.ndarray:
    """Assign rewards to P calls, [P], from their similarity [P, Q] to Q gold calls.

    - `greedy` takes the most similar pairs first, each call and gold call once, as MatchTIR's code does under the name
      of an optimal matching.
    - `optimal` maximizes the sum of similarities.
    - `transport` distributes each call over gold calls by entropic optimal transport with uniform marginals, at most
      1/P per call.

    Args:
        similarity: [P, Q] similarity of each call to each gold call.
        how: Assignment method.
        regularization: Entropy regularization ε of `transport`.

    Source: Qu et al. 2026 (MatchTIR), arXiv:2601.10712, §3.2, and its code.
    """
    count, goals = similarity.shape
    rewards = np.zeros(count)
    if not count or not goals:
        return rewards
    if how == "transport":
        return np.asarray((_transport(similarity, regularization) * similarity).sum(1))
    if how == "optimal":
        rows, columns = linear_sum_assignment(similarity, maximize=True)
        rewards[rows] = similarity[rows, columns]
        return rewards
    taken: set[int] = set()
    for place in np.argsort(-similarity, axis=None, kind="stable"):
        row, column = divmod(int(place), goals)
        if similarity[row, column] > 0 and rewards[row] == 0 and column not in taken:
            rewards[row] = similarity[row, column]
            taken.add(column)
    return rewards


def _transport(similarity: np.ndarray, regularization: float) -> np.ndarray:
    """Compute the Sinkhorn transport plan exp((S + a + b) / ε) with uniform marginals.

    Near-diagonal plans take tens of thousands of scaling steps; after a hundred, the equations are solved directly.
    """
    count, goals = similarity.shape
    scaled = similarity / regularization
    a, b = np.zeros(count), np.zeros(goals)
    for _ in range(100):
        a = -np.log(count) - logsumexp(scaled + b, axis=1)
        b = -np.log(goals) - logsumexp(scaled + a[:, None], axis=0)

    def plan(free: np.ndarray) -> np.ndarray:  # one potential is free, since only their sum counts
        return np.asarray(np.exp(scaled + free[:count, None] + np.append(free[count:], b[-1])))

    def miss(free: np.ndarray) -> np.ndarray:
        current = plan(free)
        return np.concatenate([current.sum(1) - 1 / count, current.sum(0)[:-1] - 1 / goals])

    solved = root(miss, np.concatenate([a, b[:-1]]), tol=1e-13)
    return plan(solved.x)
