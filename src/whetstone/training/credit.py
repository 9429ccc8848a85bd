"""Who gets the credit? Rewards become one number for each action token, by comparison or by a critic.

Easy to get wrong: trajectories that are removed from training still count in what the others are compared with,
unless they were removed before the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whetstone.algorithms import gae, whitened
from whetstone.recipe import CriticSettings
from whetstone.training.assembly import Assembly
from whetstone.training.learner import Learner, action_places
from whetstone.trajectory import Group, Removal, Segment, Trajectory


@dataclass(frozen=True, slots=True)
class Credited:
    """A segment and what is to be learned at each of its action tokens."""

    segment: Segment
    """With advantages."""
    target: Tensor | None = None
    """[A] the critic's targets, NaN where it predicts nothing; None without a critic."""


def credited(assembly: Assembly, groups: Sequence[Group]) -> list[list[Credited]]:
    """The segments of each group, with advantages from comparing rewards; removed trajectories have none."""
    counted = [(g, trajectory) for g, group in enumerate(groups) for trajectory in group.counted]
    rewards = torch.tensor([t.score.value if t.score else 0.0 for _, t in counted], dtype=torch.float64)
    advantages: Tensor = assembly.advantage(rewards, torch.tensor([g for g, _ in counted]))
    found: list[list[Credited]] = [[] for _ in groups]
    for (g, trajectory), advantage in zip(counted, advantages.tolist(), strict=True):
        if trajectory.removal is None:
            found[g] += [Credited(_everywhere(segment, advantage)) for segment in trajectory.segments()]
    return found


def credited_by_critic(
    learner: Learner, groups: Sequence[Group], settings: CriticSettings, *, temperature: float
) -> list[list[Credited]]:
    """The segments of each group, with advantages and targets from the critic's values.

    The recurrence runs over turns, or over action tokens, whatever segments hold them. Episodes that a limit cut
    short keep the reward they were given and are taken as over.
    """
    owners = [
        (g, trajectory, segment)
        for g, group in enumerate(groups)
        for trajectory in group.counted
        if trajectory.removal is not Removal.LOSS_ONLY
        for segment in trajectory.segments()
    ]
    values = learner.values([segment for _, _, segment in owners], temperature=temperature)
    steps = [_steps(segment, value, settings.level) for (_, _, segment), value in zip(owners, values, strict=True)]
    by_trajectory: dict[str, list[int]] = {}
    for k, (_, trajectory, _) in enumerate(owners):
        by_trajectory.setdefault(trajectory.id, []).append(k)
    advantages: list[Tensor] = [torch.empty(0)] * len(owners)
    targets: list[Tensor] = [torch.empty(0)] * len(owners)
    for held in by_trajectory.values():
        trajectory = owners[held[0]][1]
        turns = [turn for k in held for turn, _ in steps[k]]
        if not turns:
            continue
        rewards = _rewards(trajectory, turns, settings.level)
        foretold = torch.cat([value for k in held for _, value in steps[k]])
        advantage, target = gae(rewards, foretold, discount=settings.discount, trace=settings.trace)
        for k in held:
            count = len(steps[k])
            advantages[k], advantage = advantage[:count], advantage[count:]
            targets[k], target = target[:count], target[count:]
    if settings.whiten and owners:
        lengths = [len(found) for found in advantages]
        advantages = list(torch.split(whitened(torch.cat(advantages)), lengths))
    found: list[list[Credited]] = [[] for _ in groups]
    for k, (g, _, segment) in enumerate(owners):
        found[g].append(_spread(segment, [turn for turn, _ in steps[k]], advantages[k], targets[k], settings.level))
    return found


def _everywhere(segment: Segment, advantage: float) -> Segment:
    return replace(segment, advantages=tuple(advantage if trained else 0.0 for trained in segment.action_mask))


def _steps(segment: Segment, values: Tensor, level: str) -> list[tuple[int, Tensor]]:
    """(turn, [1] value) of each step of a segment: at each action token, or at the first of each turn."""
    found: list[tuple[int, Tensor]] = []
    for place, value in zip(action_places(segment), values.unsqueeze(1), strict=True):
        turn = segment.turns[place]
        if level == "token" or not found or found[-1][0] != turn:
            found.append((turn, value))
    return found


def _rewards(trajectory: Trajectory, turns: Sequence[int], level: str) -> Tensor:
    """[K] what each step earned: a turn's own reward with its last step, the outcome with the last of all."""
    assert trajectory.score is not None  # only scored trajectories are counted
    earned = torch.zeros(len(turns), dtype=torch.float64)
    for k, turn in enumerate(turns):
        last_of_turn = k + 1 == len(turns) or turns[k + 1] != turn
        if trajectory.score.turns is not None and last_of_turn:
            earned[k] = trajectory.score.turns[turn]
    earned[-1] += trajectory.score.value
    return earned


def _spread(segment: Segment, turns: Sequence[int], advantages: Tensor, targets: Tensor, level: str) -> Credited:
    """From steps to tokens."""
    places = action_places(segment)
    per_token = [0.0] * len(segment)
    target = torch.full((len(places),), torch.nan)
    step = -1
    for k, place in enumerate(places):
        begins = level == "token" or step < 0 or turns[step] != segment.turns[place]
        if begins:
            step += 1
            target[k] = targets[step]
        per_token[place] = advantages[step].item()
    return Credited(replace(segment, advantages=tuple(per_token)), target)
