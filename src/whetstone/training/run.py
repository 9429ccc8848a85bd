"""What is a run? The stages of a recipe (`single_run.py`), of other and more stages a chain of such runs (`stages.py`),
and its ablations; and a report of it.

Easy to get wrong: whoever is told of a run is told of the whole. A chain has one tracker, not one a stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import assemble
from whetstone.assembly.memory import check_fits
from whetstone.assembly.trackers import trackers_of
from whetstone.evaluation.stage_results import last_evaluation
from whetstone.recipe import (
    NamedStage,
    Recipe,
    Resolved,
    load_recipe,
    stages_of,
)
from whetstone.record.mirror import Mirror, mirror_of
from whetstone.record.run_directory import check_inputs, claimed, read_json, write_json
from whetstone.reporting import (
    Progress,
    write_report,
)
from whetstone.reporting.trackers import Feed
from whetstone.training.interruption import Interrupted
from whetstone.training.made_already import take_first_evaluation, take_warm_up
from whetstone.training.own_loop import run_to_end
from whetstone.training.permission import Ask, permit_run, training_parts
from whetstone.training.pinned import pin_choices
from whetstone.training.single_run import SingleRun
from whetstone.training.stages import check_stages, run_stages
from whetstone.training.summary import RunSummary

_SECONDS_WHEN_STOPPED = 10.0
"""How long a run that was asked to stop waits for its trackers."""


def train(
    recipe: Resolved | Recipe | Mapping[str, Any] | str | Path,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    on_metrics: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Progress | None = None,
    reuse_from: Sequence[Path] = (),
    ask: Ask | None = None,
) -> RunSummary:
    """Run all stages of a recipe, and its ablations. Works where an event loop is running, as in a notebook.

    Args:
        recipe: As of `load_recipe`.
        run_dir: Where the run is kept; None: `runs/` and the recipe's name.
        resume: Go on with the run in `run_dir` from its last checkpoint; a finished one is only reported. A run whose
            recipe was given lambdas or local functions goes on in the process that had them alone.
        on_metrics: Called after each step with its row of `metrics.jsonl`; an ablation's are not told.
        progress: What a person sees meanwhile; None: a bar in a terminal or notebook, else lines.
        reuse_from: Run directories whose warm-ups and stages are taken where they are what this run would make; what
            was taken is said, and the run comes to the same.
        ask: Asks for permission to call tools that change something, if the recipe does not give it
            (`environment.allow_effects`); None refuses.

    Raises:
        Interrupted: The process was asked to stop; the run is saved and can be resumed.
        WhetstoneError: A recipe, file or folder is wrong, or something could not be saved.
    """
    resolved = load_recipe(recipe)
    run_dir = Path(run_dir) if run_dir is not None else Path("runs") / resolved.name
    progress = progress or Progress()
    feed = Feed(trackers_of(resolved), run_dir, resolved.recipe.model_dump(mode="json"), say=progress.say)
    try:
        mirror = mirror_of(resolved, run_dir, resume=resume, say=progress.say)
        permit = partial(_permitted, ask=ask, say=progress.say)
        summary = _trained(resolved, run_dir, progress, feed, resume, on_metrics, reuse_from, mirror, permit)
    except Interrupted:
        feed.close(None, seconds=_SECONDS_WHEN_STOPPED)
        raise
    except BaseException:
        feed.close(None)
        raise
    feed.close(summary.written)
    return summary


def _trained(
    resolved: Resolved,
    run_dir: Path,
    progress: Progress,
    feed: Feed,
    resume: bool,
    on_metrics: Callable[[Mapping[str, Any]], None] | None,
    reuse_from: Sequence[Path],
    mirror: Mirror | None = None,
    permit: Callable[[Resolved, Path], Resolved] | None = None,
) -> RunSummary:
    """The run, told to trackers of the whole through `feed`."""
    for note in resolved.notes:
        progress.say(note)
    if resume and not (run_dir / "recipe.yaml").is_file():
        progress.say(f"{run_dir}: no run is there to go on with; one is started")
    resolved = pin_choices(resolved, run_dir, resume=resume)
    is_over = (run_dir / ("summary.json" if resume else "recipe.yaml")).is_file()  # or is refused below
    if permit is not None and not is_over:
        resolved = permit(resolved, run_dir)
    stages = stages_of(resolved)
    if not stages and not resolved.recipe.own_stages:
        raise resolved.error("live", "has no stage beside it to train; `whetstone live` learns while it serves")
    if not stages and not (resume and (run_dir / "summary.json").is_file()):  # before all that it reads is read
        check_fits(resolved, trains=resolved.recipe.sampling is None)
    keeping = mirror.kept() if mirror is not None else contextlib.nullcontext()
    with claimed(run_dir, resolved, resume=resume), keeping:
        summary = read_json(run_dir / "summary.json") if resume else None
        if summary is not None and set(summary["ablations"]) >= set(resolved.recipe.ablations):
            progress.say(f"{run_dir}: this run is finished; this is what it came to")
            for stage in summary.get("stages", [{}]):
                feed.follow(run_dir / stage.get("folder", ""))
        elif resume:
            check_inputs(run_dir, resolved, say=progress.say)
        if summary is None:
            try:
                if stages:
                    summary = _staged(resolved, stages, run_dir, progress, feed, on_metrics, reuse_from)
                else:
                    take_warm_up(resolved, run_dir, reuse_from, say=progress.say)
                    take_first_evaluation(resolved, run_dir, reuse_from, say=progress.say)
                    run = SingleRun(resolved, run_dir, progress, on_metrics, feed)
                    summary = run_to_end(run.play, ask_to_stop=run.ask_to_stop)
            except Interrupted as stop:
                said = f"stopped; {run_dir} is saved, `whetstone train … --resume` goes on with it"
                raise Interrupted(said, signal=stop.signal) from None
            write_json(run_dir / "summary.json", summary)
        for name, changes in resolved.recipe.ablations.items():
            if name in summary["ablations"]:
                continue
            progress.say(f"ablation: {name}  ({', '.join(f'{k}={v}' for k, v in changes.items())})")
            variant = resolved.with_changes({"ablations": None, **changes})
            there = run_dir / "ablations" / name
            resumed = (there / "recipe.yaml").is_file()
            untold = Feed({}, there, {}, say=progress.say)
            outcome = _trained(variant, there, progress, untold, resumed, None, [run_dir]).written
            seconds = sum(outcome["seconds"].values())
            summary["ablations"][name] = {"after": last_evaluation(outcome), "overrides": changes, "seconds": seconds}
            write_json(run_dir / "summary.json", summary)
        write_report(run_dir)
    return RunSummary.read(run_dir)


def _permitted(resolved: Resolved, run_dir: Path, *, ask: Ask | None, say: Callable[[str], None]) -> Resolved:
    """Return the recipe with permission for the real calls of all its stages and ablations.

    Raises:
        RecipeError: Nothing permits them.
    """
    return permit_run(resolved, training_parts(resolved), ask=ask, log=say, measured=run_dir)


def _staged(
    resolved: Resolved,
    stages: Sequence[NamedStage],
    run_dir: Path,
    progress: Progress,
    feed: Feed,
    on_metrics: Callable[[Mapping[str, Any]], None] | None,
    reuse_from: Sequence[Path],
) -> dict[str, Any]:
    """The summary of a run of several stages."""

    def one(stage: Resolved, there: Path, before: Sequence[Path]) -> object:
        resumed = (there / "recipe.yaml").is_file()
        return _trained(stage, there, progress, feed, resumed, on_metrics, before)

    check_stages(stages, assemble)
    summary = run_stages(stages, run_dir, one, also=reuse_from, progress=progress, there=feed.follow)
    return summary | {"recipe": resolved.name, "title": resolved.recipe.title or resolved.name}
