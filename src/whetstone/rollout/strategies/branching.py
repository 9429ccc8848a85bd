"""Branching rollouts: episodes fork at turns with a high entropy.

    roots → turn by turn, path by path in the order of their start: fork at this turn? → forks, further roots

Paths keep running while forks are decided, so no path waits for a slow sibling; a fork starts after finished turns.
Forks share their parent's turns, which are not sampled again.

The published code starts one further episode at a time once all paths have ended. Here the same fraction starts as at
first; one at a time, a group would take as long as all of them in sequence.

Note:
    The fastest path must not decide the use of the slots. Decisions are made in a fixed order, and each has a separate
    random number.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from whetstone.rollout.protocol import Roller, Running
from whetstone.trajectory import Group, Task, Turn

Measured = Literal["after_tool", "before_tool"]


@dataclass(slots=True)
class _Path:
    """Running episode of a group, with the state of its fork decisions."""

    running: Running
    first: float = math.nan
    """Entropy of the first turn of the root episode."""
    in_a_row: int = 0
    """Number of consecutive turns with a fork."""


def turn_entropy(
    turn: Turn, *, tokens: int = 20, statistic: Literal["mean", "sum"] = "mean", scale: float = 1.0
) -> float:
    """Compute the entropy of the first tokens of a turn, divided by `scale`; 0 if the engine returned none.

    The papers' text takes the mean over the tokens; their code the sum over them, of the ten most likely continuations,
    over log |V|.

    Args:
        turn: Turn with the entropies of its sampled tokens.
        tokens: Number of first tokens that are measured.
        statistic: Mean or sum over these tokens.
        scale: Divisor, such as log |V|.

    Source: ARPO 2025, arXiv:2507.19849, and its code.
    """
    known = [entropy for entropy in turn.action.entropies[:tokens] if not math.isnan(entropy)]
    if not known:
        return 0.0
    return sum(known) / (len(known) if statistic == "mean" else 1) / scale


async def sample_branches(
    task: Task,
    roller: Roller,
    roots: Sequence[Running],
    *,
    size: int,
    probability: Callable[[float, int], float],
    entropy: Callable[[Turn], float],
    beam: int = 2,
    measured: Measured = "after_tool",
) -> Group:
    """Sample a group of `size` trajectories that fork from root episodes at turns after a tool result.

    Args:
        task: Task of the group.
        roller: Sampling interface of the group.
        roots: Started root episodes.
        size: Number of trajectories of the group, including the roots.
        probability: Function (entropy above that of the root's first turn, number of consecutive forked turns) → fork
            probability.
        entropy: Function that returns the entropy of a turn.
        beam: Maximum number of paths that continue from one turn, including the original one.
        measured: Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, as in the papers,
            or `before_tool`, the turn with the tool call, as in their code.
    """
    paths = [_Path(root) for root in roots]
    wave, level = list(paths), 1
    while len(paths) < size:
        active = []
        for path in wave:
            turn = await path.running.turn(level)
            before = await path.running.turn(level - 1)
            if turn is not None and before is not None:
                active.append((path, before, turn))
        if not active:  # no path is running: start the same fraction of new roots as at first
            fresh = math.ceil((size - len(paths)) * len(roots) / size)
            wave, level = [_Path(roller.begin(task, index=len(paths) + k)) for k in range(fresh)], 1
            paths += wave
            continue
        for path, before, turn in active:
            if math.isnan(path.first):
                path.first = entropy(before)
            if not before.message.tool_calls or len(paths) == size:
                continue  # only after a tool result
            more = entropy(turn if measured == "after_tool" else before) - path.first
            chance = probability(more, path.in_a_row)
            number = paths.index(path)
            parted = False
            for trial in range(beam - 1):
                draw = roller.episode_key.random("branch", number, level, trial).random()
                if len(paths) < size and draw < chance:
                    running = roller.begin(task, index=len(paths), parent=path.running, turns=level)
                    paths.append(_Path(running, path.first, path.in_a_row + 1))
                    wave.append(paths[-1])
                    parted = True
            path.in_a_row = path.in_a_row + 1 if parted else 0
        level += 1
    return Group(task, tuple(await asyncio.gather(*(path.running.trajectory() for path in paths))))
