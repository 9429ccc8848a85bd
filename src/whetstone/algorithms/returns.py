"""What does a step lead to? Backward sums over turns or tokens: the second of the six pieces of credit.

Steps of one run, a trajectory's turns or its action tokens, stand one behind the other under the same index.

Easy to get wrong: the step behind an action token is the next *action* token, whatever the environment wrote between.
Only action tokens are in these columns, so an observation neither stops nor delays a return.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def reward_to_go(
    rewards: Tensor,  # [n] of each step
    run: Tensor,  # [n] ascending: which trajectory the step belongs to
    *,
    discount: float = 1.0,
    stop: Tensor | None = None,
) -> Tensor:  # [n]
    """What each step and those behind it earn; float64.

        G_t = r_t + γ G_{t+1},   G behind the last step of a run 0

    Args:
        discount: γ, a step, in [0, 1].
        stop: [n] where True, nothing flows back across the end of that step: G_t = r_t.

    Raises:
        ValueError: The tensors differ in shape, `run` is not ascending, or the discount is out of range.

    Source: Sutton & Barto 2018, §3.3; `stop`: arXiv:2509.11543 (semi-online returns).
    """
    _check(rewards, run)
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is in [0, 1]: got {discount:g}")
    rewards = rewards.detach().double()
    if len(rewards) == 0 or discount == 0:
        return rewards
    cut = run[1:] != run[:-1] if stop is None else (run[1:] != run[:-1]) | stop[:-1].bool()
    ends = np.append(np.flatnonzero(cut.cpu().numpy()) + 1, len(run))
    lengths = np.diff(ends, prepend=0)
    there = np.arange(lengths.max()) < lengths[:, None]
    rows = np.zeros(there.shape, order="F")
    rows[there] = rewards.cpu().numpy()
    # backward over the steps of all rows at once; `scipy.signal.lfilter` computes the same and takes a second to import
    for step in range(int(lengths.max()) - 2, -1, -1):
        rows[:, step] += discount * rows[:, step + 1]
    return torch.from_numpy(rows[there]).to(rewards.device)


def following(
    values: Tensor,  # [n] of each step
    run: Tensor,  # [n] ascending
    last: Tensor,  # [N] what follows the last step of each run, by the run's index
) -> Tensor:  # [n]
    """The value of the step behind each.

    Source: the V(s_{t+1}) of Schulman et al. 2016, arXiv:1506.02438.
    """
    _check(values, run)
    found = torch.empty_like(values)
    found[:-1] = values[1:]
    ends = last_of(run)
    found[ends] = last.to(found)[run[ends]]
    return found


def one_step_ahead(
    rewards: Tensor,  # [n] of each step
    values: Tensor,  # [n] in front of each step
    run: Tensor,  # [n] ascending
    last: Tensor,  # [N] what follows the last step of each run
    *,
    discount: float = 1.0,
) -> Tensor:  # [n]
    """What each step earns and what is foretold behind it: r_t + γ V_{t+1}; float64.

    Source: Sutton & Barto 2018, §6.1.
    """
    return rewards.double() + discount * following(values.double(), run, last)


def preceding(
    values: Tensor,  # [n] of each step
    run: Tensor,  # [n] ascending
    first: Tensor,  # [n] what stands in front of the first step of a run; read there alone
) -> Tensor:  # [n]
    """The value of the step in front of each.

    Source: the parent of a node on its path, arXiv:2601.06922.
    """
    _check(values, run)
    found = torch.empty_like(values)
    found[1:] = values[:-1]
    begins = torch.ones_like(run, dtype=torch.bool)
    begins[1:] = run[1:] != run[:-1]
    return torch.where(begins, first.to(found), found)


def last_of(run: Tensor) -> Tensor:
    """[n] whether a step is the last of its run.

    Source: where outcomes lie, Schulman et al. 2016, arXiv:1506.02438.
    """
    ends = torch.ones_like(run, dtype=torch.bool)
    ends[:-1] = run[1:] != run[:-1]
    return ends


def _check(x: Tensor, run: Tensor) -> None:
    if x.shape != run.shape:
        raise ValueError(f"one trajectory per step: got {[*x.shape]} and {[*run.shape]}")
    if len(run) > 1 and bool((run[1:] < run[:-1]).any()):
        raise ValueError("the steps of a trajectory stand together, trajectories in ascending order")
