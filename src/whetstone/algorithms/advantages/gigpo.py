"""GiGPO: groups of turns that start in the same state, within the groups of GRPO.

Note: The key of a state is the bare observation, without history or a counter of steps, and states of
different tasks are never the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from torch import Tensor

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, normalize_in_sets
from whetstone.algorithms.returns import reward_to_go
from whetstone.bounded_types import NotNegative, Share


def gigpo(
    rewards: PerTrajectory,
    turn_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    state_keys: PerTurn,
    *,
    discount: Share = 0.95,
    step_weight: NotNegative = 1.0,
    scale: bool = False,
    weight: Literal["trajectory", "turn"] = "trajectory",
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute GRPO advantages plus advantages among turns that start in the same state (GiGPO).

        A_it = (S_i − mean of the task) + ω (G_it − mean over turns of the task from the same state)

    each over its deviation with `scale`. A state seen once adds 0; without states seen twice it is GRPO.

    Use it if episodes of a task come through the same states: games, web pages, tool results.

    Args:
        rewards: [N] total reward per trajectory.
        turn_rewards: [M] reward per turn; the last turn includes the outcome.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        state_keys: [M] equal exactly for turns from the same state; by default the observation before the turn.
        discount: γ of the returns, per turn.
        step_weight: Weight ω of the advantages among turns from the same state.
        scale: Divide both parts by the deviations of their sets (`mean_std` in the paper's code).
        weight: Unit of the episode statistics: with `turn`, long trajectories count more, as in the code.
        epsilon: Added to deviations.

    Source: Feng et al. 2025, arXiv:2505.10978, §4, and its code.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    task = group[trajectory]
    if weight == "turn":
        of_episode = normalize_in_sets(rewards[trajectory], task, scale=by, epsilon=epsilon)
    else:
        of_episode = normalize_in_sets(rewards, group, scale=by, epsilon=epsilon)[trajectory]
    to_come = reward_to_go(turn_rewards, trajectory, discount=discount)
    of_step = normalize_in_sets(to_come, combine_keys(task, state_keys), scale=by, epsilon=epsilon)
    return of_episode + step_weight * of_step


def similar_states(observations: Sequence[str], task: Tensor, *, threshold: float = 0.95) -> list[int]:
    """Return [M] keys that are equal for similar observations.

    In order, each turn joins the first cluster of its task with a similar first member; otherwise it starts a cluster.

    Args:
        observations: [M] text at the start of each turn.
        task: [M] index of the task of each turn.
        threshold: Minimum `difflib` ratio, in (0, 1]; 1 is equality.

    Source: Feng et al. 2025, arXiv:2505.10978, and the similarity variant of its code.
    """
    clusters: dict[float, list[tuple[int, str]]] = {}
    keys: list[int] = []
    known = 0
    for text, of in zip(observations, task.tolist(), strict=True):
        members = clusters.setdefault(of, [])
        key = next((k for k, first in members if SequenceMatcher(None, text, first).ratio() >= threshold), None)
        if key is None:
            key, known = known, known + 1
            members.append((key, text))
        keys.append(key)
    return keys
