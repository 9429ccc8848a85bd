"""Where does a simulated world differ from the real one? Two discriminators tell, by what stood before a turn, what was
done, and what came back.

    u = log P_sim(s' | s, a) / P_real(s' | s, a)
      = log-odds of "simulated" for (s, a, s')  −  log-odds of "simulated" for (s, a)

Easy to get wrong: that a state is seen in one world alone is no fault of its dynamics; the second log-odds take it off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from whetstone.learning.token_index import IndexedTrajectory

_BUCKETS = 256
"""Words are counted into so many, for each of state, action and answer."""
_NEWTON_STEPS = 8
_LARGEST = 10.0
"""Of a gap, in nats: a discriminator that is sure has no finite opinion."""


def dynamics_gaps(simulated: Sequence[IndexedTrajectory], real: Sequence[IndexedTrajectory]) -> Tensor:
    """[M] how far the simulated world is off at each of its turns, in nats, within [−10, 10]; 0 where they are alike.

    Both discriminators are logistic regressions on the words of a turn, fitted anew to these turns, so that nothing of
    them is to be kept. By analogy: there they are networks on states and actions of a robot.

    Args:
        simulated: Trajectories of the simulated world.
        real: Of the real one.

    Source: Niu et al. 2022 (H2O), arXiv:2206.13464, eq. 9 and 10.
    """
    ours, theirs = _features(simulated), _features(real)
    if not len(ours) or not len(theirs):
        return torch.zeros(len(ours), dtype=torch.float64)
    before = slice(0, 2 * _BUCKETS)
    with_answer = log_odds(ours, theirs)
    without = log_odds(ours[:, before], theirs[:, before])
    return (with_answer - without).clamp(-_LARGEST, _LARGEST)


def log_odds(ours: Tensor, theirs: Tensor, *, ridge: float = 1.0) -> Tensor:
    """[S] log-odds of each of `ours` [S, D] being one of them rather than of `theirs` [R, D], as likely beforehand.

    Logistic regression with a ridge on its weights, each side counting the same in all, by Newton's method.
    """
    x = torch.cat([ours, theirs])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    y = torch.cat([torch.ones(len(ours)), torch.zeros(len(theirs))]).to(x)
    counts = torch.cat([torch.full((len(side),), 0.5 * len(x) / len(side)) for side in (ours, theirs)]).to(x)
    weights, keeps = torch.zeros(x.shape[1], dtype=x.dtype), ridge * torch.eye(x.shape[1], dtype=x.dtype)
    keeps[-1, -1] = 1e-6  # the offset is free
    for _ in range(_NEWTON_STEPS):
        p = (x @ weights).sigmoid()
        slope = x.T @ (counts * (p - y)) + keeps @ weights
        weights = weights - torch.linalg.solve(x.T @ ((counts * p * (1 - p)).unsqueeze(1) * x) + keeps, slope)
    return (x @ weights)[: len(ours)]


def _features(trajectories: Sequence[IndexedTrajectory]) -> Tensor:
    """[M, 3 · buckets] words of what stood before each turn, of what was done, of what came back."""
    rows = []
    for held in trajectories:
        played = held.trajectory
        for t, turn in enumerate(played.turns):
            seen = played.opening if t == 0 else played.turns[t - 1].observation
            done = turn.message.text, *(f"{call.name} {call.arguments}" for call in turn.message.tool_calls)
            came = (message.text for message in turn.observation)
            rows.append(torch.cat([_words(" ".join(part)) for part in ((m.text for m in seen), done, came)]))
    return torch.stack(rows) if rows else torch.zeros(0, 3 * _BUCKETS, dtype=torch.float64)


def _words(text: str) -> Tensor:
    counts = torch.zeros(_BUCKETS, dtype=torch.float64)
    for word in text.split():
        counts[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % _BUCKETS] += 1
    return counts.clamp(max=3)
