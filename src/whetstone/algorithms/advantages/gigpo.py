"""Which action was better from the same state? Turns that began alike are compared, for free.

Easy to get wrong: the key of a state is the bare observation, without history or a counter of steps, and states of
different tasks are never the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from torch import Tensor

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import reward_to_go
from whetstone.algorithms.sets import joint_keys, normalised
from whetstone.ranges import NotNegative, Share


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
    """The episode against its siblings, and each turn against turns that began in the same state (GiGPO).

        A_it = (S_i − mean of the task) + ω (G_it − mean over turns of the task from the same state)

    each over its deviation with `scale`. A state seen once adds 0; without states seen twice it is GRPO.

    Use it where episodes of a task come through the same states: games, web pages, tool results.

    Args:
        rewards: [N] all a trajectory earned.
        turn_rewards: [M] of each turn, the outcome with the last.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        state_keys: [M] equal exactly where turns began in the same state; by default the observation in front.
        discount: γ of the turns' returns, a turn.
        step_weight: ω.
        scale: Divide both parts by the deviations of their sets (`mean_std` in the paper's code).
        weight: What the episode's statistics count: `turn` lets long trajectories count more, as the code does.
        epsilon: Added to deviations.

    Source: Feng et al. 2025, arXiv:2505.10978, §4, and its code.
    """
    by: Literal["set", "none"] = "set" if scale else "none"
    task = group[trajectory]
    if weight == "turn":
        of_episode = normalised(rewards[trajectory], task, scale=by, epsilon=epsilon)
    else:
        of_episode = normalised(rewards, group, scale=by, epsilon=epsilon)[trajectory]
    to_come = reward_to_go(turn_rewards, trajectory, discount=discount)
    of_step = normalised(to_come, joint_keys(task, state_keys), scale=by, epsilon=epsilon)
    return of_episode + step_weight * of_step


def similar_states(observations: Sequence[str], task: Tensor, *, threshold: float = 0.95) -> list[int]:
    """[M] keys under which observations that are nearly alike are one state.

    Each turn joins the first cluster of its task whose first member is similar enough, in order; else it begins one.

    Args:
        observations: [M] the text each turn began from.
        task: [M]
        threshold: Least `difflib` ratio, in (0, 1]; 1 is equality.

    Source: Feng et al. 2025, arXiv:2505.10978, and the similarity variant of its code.
    """
    clusters: dict[float, list[tuple[int, str]]] = {}
    keys: list[int] = []
    known = 0
    for text, of in zip(observations, task.tolist(), strict=True):
        held = clusters.setdefault(of, [])
        found = next((k for k, first in held if SequenceMatcher(None, text, first).ratio() >= threshold), None)
        if found is None:
            found, known = known, known + 1
            held.append((found, text))
        keys.append(found)
    return keys
