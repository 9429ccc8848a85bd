"""Dynamics gap between a simulated and a real environment, estimated by two discriminators (H2O).

    u = log P_sim(s' | s, a) / P_real(s' | s, a)
      = log-odds of "simulated" for (s, a, s')  −  log-odds of "simulated" for (s, a)

Note:
    A state that occurs in only one environment is no error of the dynamics; the second log-odds subtract it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from whetstone.learning.token_index import IndexedTrajectory

_BUCKETS = 256
"""Number of hash buckets for words, for each of state, action and observation."""
_NEWTON_STEPS = 8
"""Number of Newton steps of each regression."""
_LARGEST = 10.0
"""Maximum absolute gap, in nats: a discriminator that separates perfectly has infinite log-odds."""


def dynamics_gaps(simulated: Sequence[IndexedTrajectory], real: Sequence[IndexedTrajectory]) -> Tensor:
    """Estimate the dynamics gap of each simulated turn, in nats, within [−10, 10].

    The gap is 0 if the dynamics are equal. Both discriminators are logistic regressions on the words of a turn, fitted
    on each call, so they have no state. In the paper they are networks on states and actions of a robot.

    Args:
        simulated: Trajectories of the simulated environment, with M turns.
        real: Trajectories of the real environment.

    Returns:
        [M] gaps; 0 if one of the environments has no turns.

    Source: Niu et al. 2022 (H2O), arXiv:2206.13464, eq. 9 and 10.
    """
    simulated_features, real_features = _features(simulated), _features(real)
    if not len(simulated_features) or not len(real_features):
        return torch.zeros(len(simulated_features), dtype=torch.float64)
    before = slice(0, 2 * _BUCKETS)
    with_answer = log_odds(simulated_features, real_features)
    without = log_odds(simulated_features[:, before], real_features[:, before])
    return (with_answer - without).clamp(-_LARGEST, _LARGEST)


def log_odds(positives: Tensor, negatives: Tensor, *, ridge: float = 1.0) -> Tensor:
    """Estimate the log-odds that a row belongs to `positives` rather than `negatives`.

    The estimator is logistic regression with a ridge penalty, fitted by Newton's method. Both sides have the same total
    weight.

    Args:
        positives: [S, D] features.
        negatives: [R, D] features.
        ridge: Weight of the penalty on squared coefficients.

    Returns:
        [S] log-odds of the rows of `positives`.
    """
    x = torch.cat([positives, negatives])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    y = torch.cat([torch.ones(len(positives)), torch.zeros(len(negatives))]).to(x)
    counts = torch.cat([torch.full((len(side),), 0.5 * len(x) / len(side)) for side in (positives, negatives)]).to(x)
    weights, keeps = torch.zeros(x.shape[1], dtype=x.dtype), ridge * torch.eye(x.shape[1], dtype=x.dtype)
    keeps[-1, -1] = 1e-6  # the offset is free
    for _ in range(_NEWTON_STEPS):
        p = (x @ weights).sigmoid()
        slope = x.T @ (counts * (p - y)) + keeps @ weights
        weights = weights - torch.linalg.solve(x.T @ ((counts * p * (1 - p)).unsqueeze(1) * x) + keeps, slope)
    return (x @ weights)[: len(positives)]


def _features(trajectories: Sequence[IndexedTrajectory]) -> Tensor:
    """Count words before each turn, of its action and of its observation: [M, 3 · buckets]."""
    rows = []
    for entry in trajectories:
        trajectory = entry.trajectory
        for t, turn in enumerate(trajectory.turns):
            context = trajectory.opening if t == 0 else trajectory.turns[t - 1].observation
            action = turn.message.text, *(f"{call.name} {call.arguments}" for call in turn.message.tool_calls)
            results = (message.text for message in turn.observation)
            rows.append(torch.cat([_words(" ".join(part)) for part in ((m.text for m in context), action, results)]))
    return torch.stack(rows) if rows else torch.zeros(0, 3 * _BUCKETS, dtype=torch.float64)


def _words(text: str) -> Tensor:
    counts = torch.zeros(_BUCKETS, dtype=torch.float64)
    for word in text.split():
        counts[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % _BUCKETS] += 1
    return counts.clamp(max=3)
