"""Control episodes of early stopping: a random fraction of stopped episodes continues, to measure its costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from whetstone.rollout.protocol import CONTINUED
from whetstone.trajectory import Trajectory


def estimate_early_stopping(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Estimate the turns that each early-stopping rule saves, and the successes that it loses, per stopped episode.

        NAME_saved_turns = mean over controls of (turns − turns at the stop),   NAME_lost_success = their success rate

    Controls are a random part of the episodes that met the rule (mark `NAME_continued:TURNS`), so both are unbiased for
    the stopped ones. Without a control of a rule its estimates are missing. Episodes without a score do not count.

    Args:
        trajectories: Finished and scored episodes.

    Source: ActiveVLN 2025, arXiv:2509.12618 (early stopping); the estimate from controls is an addition.
    """
    saved: defaultdict[str, list[int]] = defaultdict(list)
    lost: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        for mark in trajectory.marks:
            name, is_control, turns = mark.partition(CONTINUED)
            if is_control and trajectory.score is not None:
                saved[name].append(len(trajectory.turns) - int(turns))
                lost[name].append(trajectory.solved)
    return {f"{name}_saved_turns": fmean(counts) for name, counts in saved.items()} | {
        f"{name}_lost_success": fmean(outcomes) for name, outcomes in lost.items()
    }
