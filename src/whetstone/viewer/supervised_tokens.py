"""Supervised tokens: the tokens that a stage on demonstrations, pairs or texts trains, recomputed from the recipe.

Note:
    These tokens are not stored. The components of the recipe run to compute them, with the samples of the stage rather
    than new ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from whetstone.assembly import RunComponents, assemble
from whetstone.assembly.stage_datasets import read_demonstrations, read_preferences, read_texts
from whetstone.chat.api.requests import RefusedError
from whetstone.record import run_recipe
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.training.supervised import sample_demonstrations
from whetstone.trajectory import Segment, Trajectory

STAGES = ("pretraining", "supervised", "preference")
MAX_SHOWN = 20


class SupervisedTokens:
    """Recomputes the tokens that the supervised stages of a run train, for the page `data` of the viewer.

    Args:
        run_dir: The run directory; the components of its recipe are built at the first request.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._lock = threading.Lock()
        self._samplers: dict[str, Callable[[int, int], list[dict[str, Any]]]] = {}

    @cached_property
    def assembly(self) -> RunComponents:
        """Build the components of the run's recipe at the first access, without training."""
        return assemble(run_recipe(self.run_dir))

    def get_samples(self, stage: str, first: int, count: int) -> list[dict[str, Any]]:
        """Return consecutive samples of a stage, in the order of training.

        Args:
            stage: Name of the stage.
            first: Index of the first sample, from 0.
            count: Number of samples.

        Returns:
            Per sample a `title` and `segments`, each with the `texts` of its tokens and whether they are `trained`.

        Raises:
            RefusedError: The run has no such stage, or an argument is out of range.
            WhetstoneError: The components or data of the recipe cannot be built.
        """
        if stage not in STAGES:
            raise RefusedError(f"stage: no stage {stage[:40]!r} with training data; allowed: {', '.join(STAGES)}")
        if first < 0 or not 0 < count <= MAX_SHOWN:
            raise RefusedError(f"first: must be at least 0; count: must be from 1 to {MAX_SHOWN}")
        with self._lock:
            if stage not in self._samplers:
                self._samplers[stage] = self._build_sampler(stage)
            return self._samplers[stage](first, count)

    def _build_sampler(self, stage: str) -> Callable[[int, int], list[dict[str, Any]]]:
        recipe = self.assembly.resolved.recipe
        settings = recipe.own_stages.get(stage)
        if settings is None:
            raise RefusedError(f"this run has no stage {stage}", status=404)
        if recipe.pretraining is not None and stage == "pretraining":
            texts = read_texts(self.assembly, recipe.pretraining)
            return lambda first, count: [
                self._to_json(f"text {first + k}", [texts.get_segment(first + k)]) for k in range(count)
            ]
        if recipe.preference is not None and stage == "preference":
            pairs = read_preferences(self.assembly, recipe.preference)
            return lambda first, count: [
                self._trajectory_to_json(f"pair {first + k}", trajectory)
                for k, group in enumerate(asyncio.run(pairs.groups(first, count)))
                for trajectory in group.trajectories
            ]
        assert recipe.supervised is not None
        if recipe.supervised.data is not None:
            drawn = read_demonstrations(self.assembly, recipe.supervised.data, "supervised.data")
            return lambda first, count: [
                self._trajectory_to_json(f"demonstration {first + k}", drawn.get_episode(first + k))
                for k in range(count)
            ]
        return self._play_expert

    def _play_expert(self, first: int, count: int) -> list[dict[str, Any]]:
        played = asyncio.run(sample_demonstrations(self.assembly, first, count)).episodes
        return [
            self._trajectory_to_json(f"demonstration {first + k}", trajectory) for k, trajectory in enumerate(played)
        ]

    def _trajectory_to_json(self, title: str, trajectory: Trajectory) -> dict[str, Any]:
        omission = "" if trajectory.score is None or trajectory.score.success is not False else ", left out: unsolved"
        value = f", reward {trajectory.score.value:g}" if trajectory.score is not None else ""
        return self._to_json(f"{title}: task {trajectory.task_id}{value}{omission}", trajectory.segments())

    def _to_json(self, title: str, segments: Sequence[Segment]) -> dict[str, Any]:
        decode = self.assembly.policy.tokenizer.decode
        return {
            "title": sanitize_text(title),
            "segments": [
                {
                    "texts": [sanitize_text(decode([id])) for id in segment.tokens.ids],
                    "trained": list(segment.action_mask),
                }
                for segment in segments
            ],
        }
