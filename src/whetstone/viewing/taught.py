"""What does a stage on demonstrations, pairs or texts train, token by token? Made again, as the stage makes it.

Easy to get wrong: nothing of this is on disk. The recipe's own parts make it, so they are run; and they are asked for
the very draws of the stage, not for the next ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from whetstone.assembly import Assembly, assemble
from whetstone.assembly.own_data import demonstrations_of, preferences_of, texts_of
from whetstone.chat.api.asked import RefusedError
from whetstone.record import run_recipe
from whetstone.tools.plain_text import plain
from whetstone.training.supervised import demonstrated
from whetstone.trajectory import Segment, Trajectory

STAGES = ("pretraining", "supervised", "preference")
MOST_SHOWN = 20


class Taught:
    """What stages of one run train.

    Args:
        run_dir: The run; its recipe's parts are made when something is first asked for.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._alone = threading.Lock()
        self._drawn: dict[str, Callable[[int, int], list[dict[str, Any]]]] = {}

    @cached_property
    def assembly(self) -> Assembly:
        """The parts of its recipe."""
        return assemble(run_recipe(self.run_dir))

    def shown(self, stage: str, first: int, count: int) -> list[dict[str, Any]]:
        """Draws `first` and on of a stage: `title` and `segments`, each of `texts` and whether each is `trained`.

        Raises:
            RefusedError: The run has no such stage, or it shows nothing.
            WhetstoneError: Its parts or data cannot be made.
        """
        if stage not in STAGES:
            raise RefusedError(f"no stage on data: {stage[:40]}; there are {', '.join(STAGES)}")
        if first < 0 or not 0 < count <= MOST_SHOWN:
            raise RefusedError(f"from 0 on, 1 to {MOST_SHOWN} at once")
        with self._alone:
            if stage not in self._drawn:
                self._drawn[stage] = self._drawing(stage)
            return self._drawn[stage](first, count)

    def _drawing(self, stage: str) -> Callable[[int, int], list[dict[str, Any]]]:
        recipe = self.assembly.resolved.recipe
        settings = recipe.own_stages.get(stage)
        if settings is None:
            raise RefusedError(f"this run has no stage {stage}", status=404)
        if recipe.pretraining is not None and stage == "pretraining":
            texts = texts_of(self.assembly, recipe.pretraining)
            return lambda first, count: [
                self._told(f"text {first + k}", [texts.segment(first + k)]) for k in range(count)
            ]
        if recipe.preference is not None and stage == "preference":
            pairs = preferences_of(self.assembly, recipe.preference)
            return lambda first, count: [
                self._of(f"pair {first + k}", trajectory)
                for k in range(count)
                for trajectory in pairs.group(first + k).trajectories
            ]
        assert recipe.supervised is not None
        if recipe.supervised.data is not None:
            drawn = demonstrations_of(self.assembly, recipe.supervised.data, "supervised.data")
            return lambda first, count: [
                self._of(f"demonstration {first + k}", drawn.episode(first + k)) for k in range(count)
            ]
        return self._by_expert

    def _by_expert(self, first: int, count: int) -> list[dict[str, Any]]:
        played = asyncio.run(demonstrated(self.assembly, first, count)).episodes
        return [self._of(f"demonstration {first + k}", trajectory) for k, trajectory in enumerate(played)]

    def _of(self, title: str, trajectory: Trajectory) -> dict[str, Any]:
        left_out = "" if trajectory.score is None or trajectory.score.success is not False else ", left out: unsolved"
        value = f", reward {trajectory.score.value:g}" if trajectory.score is not None else ""
        return self._told(f"{title}: task {trajectory.task_id}{value}{left_out}", trajectory.segments())

    def _told(self, title: str, segments: Sequence[Segment]) -> dict[str, Any]:
        decode = self.assembly.policy.tokenizer.decode
        return {
            "title": plain(title),
            "segments": [
                {
                    "texts": [plain(decode([id])) for id in segment.tokens.ids],
                    "trained": list(segment.action_mask),
                }
                for segment in segments
            ],
        }
