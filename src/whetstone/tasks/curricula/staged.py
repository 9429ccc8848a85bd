"""Staged curriculum: easy tasks first, hard ones later, with a fraction of earlier ones.

Note:
    The success changes abruptly between stages, since the tasks do; the stage is in the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from whetstone.plugins import OptionError
from whetstone.tasks.curricula.sample_task import sample_task
from whetstone.tasks.protocol import Source

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def stage_by_length(length: int) -> str:
    """Return the stage of a task by the number of an expert's turns.

    `easy` up to 3 turns, `medium` up to 7, else `hard`.

    Source: CRAFT-GUI 2025, arXiv:2508.11360; the thresholds are own choices.
    """
    return "easy" if length <= 3 else "medium" if length <= 7 else "hard"


class StagedTasks:
    """Curriculum of stages, each until it is mostly solved or its updates are done.

    A stage has the tasks with one of its values of a tag. One stage with all values samples uniformly from them.

    Source: CRAFT-GUI 2025, arXiv:2508.11360; Tool-Star 2025, arXiv:2505.16410; replay and the end of a stage are
    additions.

    Args:
        stages: The values of the tag in each stage.
        max_updates_per_stage: Maximum number of updates per stage; the last stage has no end.
        by: Name of the tag.
        solved: Mean success over `window` updates at which a stage ends early; above 1: never.
        replay: Fraction of tasks of earlier stages.
        window: Number of updates of the mean success.
    """

    def __init__(
        self,
        *,
        stages: Sequence[Sequence[str]],
        max_updates_per_stage: int,
        by: str = "kind",
        solved: float = 0.7,
        replay: float = 0.2,
        window: int = 3,
    ) -> None:
        if not stages or not all(stages):
            raise OptionError("stages", "set one or more stages, each with one or more values of the tag")
        if max_updates_per_stage < 1:
            raise OptionError("max_updates_per_stage", f"must be 1 or more, got {max_updates_per_stage}")
        if not 0 <= replay < 1:
            raise OptionError("replay", f"must be 0 or more and below 1, got {replay:g}")
        self.stages, self.by = [list(map(str, stage)) for stage in stages], by
        self.max_updates_per_stage = max_updates_per_stage
        self.solved, self.replay, self.window = solved, replay, window
        self.stage = 0
        self.began = 0
        self.recent: list[float] = []

    def check(self, source: Source, first: int) -> None:
        """Check that the source has tasks for every value of every stage.

        Raises:
            TaskError: If there are none for a value.
        """
        for stage in self.stages:
            for wanted in stage:
                sample_task(source, first, Random(wanted), self.by, wanted)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """Return the index of a task of the current or an earlier stage; see `Curriculum`."""
        of_stage = self.stages[self.stage]
        if self.stage and draw.random() < self.replay:
            of_stage = [value for stage in self.stages[: self.stage] for value in stage]
        wanted = draw.choice(of_stage)
        return sample_task(source, first, draw, self.by, wanted)

    def observe(self, outcome: StepOutcome, /) -> None:
        """Record the success of a step, and start the next stage if due; see `Stateful`."""
        success = [
            float(t.solved)
            for group in outcome.groups
            if group.task.tags.get(self.by) in self.stages[self.stage]
            for t in group.counted
            if "started_later" not in t.marks
        ]
        if success:
            self.recent = [*self.recent, fmean(success)][-self.window :]
        mastered = len(self.recent) == self.window and fmean(self.recent) >= self.solved
        if self.stage + 1 < len(self.stages) and (mastered or outcome.step - self.began >= self.max_updates_per_stage):
            self.stage, self.began, self.recent = self.stage + 1, outcome.step, []

    def state(self) -> dict[str, Any]:
        """Return the stage and its recent success for a checkpoint; see `Stateful`."""
        return {"stage": self.stage, "began": self.began, "recent": self.recent}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stage and its recent success of a checkpoint; see `Stateful`."""
        self.stage, self.began, self.recent = state["stage"], state["began"], list(state["recent"])

    def metrics(self) -> dict[str, float]:
        """Return the index of the current stage, from 0, as the metric `stage`."""
        return {"stage": float(self.stage)}
