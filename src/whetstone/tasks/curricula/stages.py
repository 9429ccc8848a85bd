"""Easy tasks first, hard ones later, and a few of the earlier ones among them.

Easy to get wrong: success jumps from stage to stage, since the tasks do; the stage is in the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from whetstone.plugins import OptionError
from whetstone.tasks.curricula.drawing import drawn
from whetstone.tasks.protocol import Source

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def stage_of(length: int) -> str:
    """A task's stage by the turns an expert needs: easy up to 3, medium up to 7, hard.

    Source: CRAFT-GUI 2025, arXiv:2508.11360; the cuts are ours.
    """
    return "easy" if length <= 3 else "medium" if length <= 7 else "hard"


def split_of(plain: bool, with_tool: bool) -> str:
    """What a question is for, by whether it is solved without the tool, and with it.

    Source: Tool-Star 2025, arXiv:2505.16410, as remembered there.
    """
    if plain:
        return "imitate_plain"
    return "imitate_tool" if with_tool else "reinforce"


class StagedTasks:
    """One stage of tasks after the other, each until its steps are made or it is mostly solved (CRAFT-GUI, Tool-Star).

    One stage of all tags is drawing at random.

    Source: CRAFT-GUI 2025, arXiv:2508.11360; Tool-Star 2025, arXiv:2505.16410; replay and when a stage
    ends are ours.

    Args:
        stages: The values of the tag in each stage.
        max_updates_per_stage: Maximum number of updates per stage; the last stage has no end.
        by: The tag.
        solved: Mean success over `window` updates at which a stage ends early; above 1: never.
        replay: Share of tasks of earlier stages.
        window: Updates.
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
            raise OptionError("stages", "one stage or more, each with one value of the tag or more")
        if max_updates_per_stage < 1:
            raise OptionError("max_updates_per_stage", f"one update or more, got {max_updates_per_stage}")
        if not 0 <= replay < 1:
            raise OptionError("replay", f"0 or more and below 1, got {replay:g}")
        self.stages, self.by = [list(map(str, stage)) for stage in stages], by
        self.max_updates_per_stage = max_updates_per_stage
        self.solved, self.replay, self.window = solved, replay, window
        self.stage = 0
        self.began = 0
        self.recent: list[float] = []

    def check(self, source: Source, first: int) -> None:
        """Whether there are tasks for every stage.

        Raises:
            TaskError: Of one there are none.
        """
        for stage in self.stages:
            for wanted in stage:
                drawn(source, first, Random(wanted), self.by, wanted)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """See `Curriculum`."""
        of_stage = self.stages[self.stage]
        if self.stage and draw.random() < self.replay:
            of_stage = [value for stage in self.stages[: self.stage] for value in stage]
        wanted = draw.choice(of_stage)
        return drawn(source, first, draw, self.by, wanted)

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        success = [
            float(t.solved)
            for group in heard.groups
            if group.task.tags.get(self.by) in self.stages[self.stage]
            for t in group.counted
            if "started_later" not in t.marks
        ]
        if success:
            self.recent = [*self.recent, fmean(success)][-self.window :]
        mastered = len(self.recent) == self.window and fmean(self.recent) >= self.solved
        if self.stage + 1 < len(self.stages) and (mastered or heard.step - self.began >= self.max_updates_per_stage):
            self.stage, self.began, self.recent = self.stage + 1, heard.step, []

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"stage": self.stage, "began": self.began, "recent": self.recent}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.stage, self.began, self.recent = state["stage"], state["began"], list(state["recent"])

    def metrics(self) -> dict[str, float]:
        """Which stage it is, from 0."""
        return {"stage": float(self.stage)}
