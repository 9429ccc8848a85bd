"""Returns: backward sums of rewards over turns or action tokens.

Steps of one run, a trajectory's turns or its action tokens, are consecutive and have the same index.

Note: The step after an action token is the next *action* token, even if observations are in between.
Only action tokens are in these columns, so an observation neither stops nor delays a return.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reward_to_go(
    rewards: Tensor,  # [n] of each step
    run: Tensor,  # [n] index of the step's trajectory, ascending
    *,
    discount: float = 1.0,
    stop: Tensor | None = None,
) -> Tensor:  # [n]
    """Compute the discounted return from each step to the end of its run; float64.

        G_t = r_t + γ G_{t+1},   G = 0 after the last step of a run

    Args:
        discount: γ per step, in [0, 1].
        stop: [n] True for steps that ignore all later rewards: G_t = r_t.

    Raises:
        ValueError: If the tensors differ in shape, `run` is not ascending, or the discount is out of range.

    Source: Sutton & Barto 2018, §3.3; `stop`: arXiv:2509.11543 (semi-online returns).
    """
    _check(rewards, run)
    if not 0 <= discount <= 1:
        raise ValueError(f"discount must be in [0, 1], got {discount:g}")
    rewards = rewards.detach().double()
    if len(rewards) == 0 or discount == 0:
        return rewards
    cut = run[1:] != run[:-1] if stop is None else (run[1:] != run[:-1]) | stop[:-1].bool()
    ends = np.append(np.flatnonzero(cut.cpu().numpy()) + 1, len(run))
    lengths = np.diff(ends, prepend=0)
    is_step = np.arange(lengths.max()) < lengths[:, None]
    rows = np.zeros(is_step.shape, order="F")
    rows[is_step] = rewards.cpu().numpy()
    # backward over the steps of all rows at once; `scipy.signal.lfilter` computes the same and takes a second to import
    for step in range(int(lengths.max()) - 2, -1, -1):
        rows[:, step] += discount * rows[:, step + 1]
    return torch.from_numpy(rows[is_step]).to(rewards.device)


def next_values(
    values: Tensor,  # [n] of each step
    run: Tensor,  # [n] ascending
    last: Tensor,  # [N] value after the last step of each run, by the run's index
) -> Tensor:  # [n]
    """Return the value of the next step of each step.

    Source: the V(s_{t+1}) of Schulman et al. 2016, arXiv:1506.02438.
    """
    _check(values, run)
    shifted = torch.empty_like(values)
    shifted[:-1] = values[1:]
    ends = is_last_step(run)
    shifted[ends] = last.to(shifted)[run[ends]]
    return shifted


def one_step_targets(
    rewards: Tensor,  # [n] of each step
    values: Tensor,  # [n] before each step
    run: Tensor,  # [n] ascending
    last: Tensor,  # [N] value after the last step of each run
    *,
    discount: float = 1.0,
) -> Tensor:  # [n]
    """Compute one-step targets r_t + γ V_{t+1}; float64.

    Source: Sutton & Barto 2018, §6.1.
    """
    return rewards.double() + discount * next_values(values.double(), run, last)


def previous_values(
    values: Tensor,  # [n] of each step
    run: Tensor,  # [n] ascending
    first: Tensor,  # [n] value before the first step of a run; only read at first steps
) -> Tensor:  # [n]
    """Return the value of the previous step of each step.

    Source: the parent of a node on its path, arXiv:2601.06922.
    """
    _check(values, run)
    shifted = torch.empty_like(values)
    shifted[1:] = values[:-1]
    is_first = torch.ones_like(run, dtype=torch.bool)
    is_first[1:] = run[1:] != run[:-1]
    return torch.where(is_first, first.to(shifted), shifted)


def is_last_step(run: Tensor) -> Tensor:
    """Return whether each step is the last of its run, [n].

    Source: the position of outcomes, Schulman et al. 2016, arXiv:1506.02438.
    """
    ends = torch.ones_like(run, dtype=torch.bool)
    ends[:-1] = run[1:] != run[:-1]
    return ends


def _check(x: Tensor, run: Tensor) -> None:
    if x.shape != run.shape:
        raise ValueError(f"steps and run indices must have the same shape, got {[*x.shape]} and {[*run.shape]}")
    if len(run) > 1 and bool((run[1:] < run[:-1]).any()):
        raise ValueError("run indices must be ascending, so that the steps of a trajectory are consecutive")
