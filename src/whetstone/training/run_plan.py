"""The plan of a run: its recipe, its directory, and the receivers of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whetstone.recipe import Resolved
from whetstone.record.mirror import Mirror
from whetstone.reporting import Progress
from whetstone.reporting.trackers import TrackerDispatcher
from whetstone.training.permission import Ask


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Inputs of one run directory: a whole run, a stage of several, or an ablation.

    `train` creates the plan of the whole run; plans of stages and ablations are derived from it by `derive_plan`.
    """

    resolved: Resolved
    """Recipe of the run."""
    run_dir: Path
    """Run directory that is filled."""
    progress: Progress
    """Progress display."""
    feed: TrackerDispatcher
    """Passes metrics to the trackers of the whole run."""
    resume: bool = False
    """Whether the run in `run_dir` continues from its last checkpoint."""
    on_metrics: Callable[[Mapping[str, Any]], None] | None = None
    """Receives each row of `metrics.jsonl`."""
    reuse_from: Sequence[Path] = ()
    """Run directories whose warm-ups and stages are reused if all that determines them is identical."""
    continues: bool = False
    """Whether a resumed run whose recipe differs continues with the new recipe."""
    mirror: Mirror | None = None
    """Second directory that receives a copy of the run."""
    ask: Ask | None = None
    """Requests permission for tools with side effects; None refuses them."""
    accept_changes: bool | None = None
    """Whether edited custom code is accepted; None for a stage or an ablation, whose code is that of the whole run."""

    accept_inputs: bool = False
    """Whether edited files with tasks and data are accepted."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the plan of a whole run."""
        return self.accept_changes is not None

    def derive_plan(self, resolved: Resolved, run_dir: Path, **changes: Any) -> RunPlan:
        """Return the plan of a stage or an ablation, which resumes if its directory has a recipe.

        Args:
            resolved: Recipe of the stage or ablation.
            run_dir: Its run directory.
            changes: Further fields to replace.
        """
        resume = (run_dir / "recipe.yaml").is_file()
        own: dict[str, Any] = {"resume": resume, "continues": False, "mirror": None, "accept_changes": None}
        return replace(self, resolved=resolved, run_dir=run_dir, **{**own, **changes})
