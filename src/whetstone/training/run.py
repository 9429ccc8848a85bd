"""What is a run? The stages of a recipe (`single_run.py`), of other and more stages a chain of such runs (`stages.py`),
and its ablations; and a report of it.

Easy to get wrong: whoever is told of a run is told of the whole. A chain has one tracker, not one a stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import assemble
from whetstone.assembly.memory import check_fits
from whetstone.assembly.trackers import trackers_of
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.stage_results import last_evaluation
from whetstone.recipe import (
    NamedStage,
    Recipe,
    Resolved,
    load_recipe,
    stages_of,
)
from whetstone.record.finding import is_run
from whetstone.record.mirror import Mirror, mirror_of
from whetstone.record.run_directory import (
    ORIGIN,
    Differences,
    check_inputs,
    claimed,
    read_changes,
    read_json,
    run_recipe,
    write_json,
)
from whetstone.reporting import (
    Progress,
    write_report,
)
from whetstone.reporting.trackers import Feed
from whetstone.training.continuing import change_run, era_of
from whetstone.training.interruption import Interrupted
from whetstone.training.made_already import take_first_evaluation, take_warm_up
from whetstone.training.own_loop import run_to_end
from whetstone.training.permission import Ask, permit_run, training_parts
from whetstone.training.pinned import pin_choices
from whetstone.training.provenance import check_custom_code, record_environment
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
    changes: Sequence[str] = (),
    on_metrics: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Progress | None = None,
    reuse_from: Sequence[Path] = (),
    ask: Ask | None = None,
    accept_changes: bool = False,
) -> RunSummary:
    """Run all stages of a recipe, and its ablations. Works where an event loop is running, as in a notebook.

    Args:
        recipe: Same as in `load_recipe`; with `resume`, also a run directory, whose own recipe is used.
        run_dir: Where the run is kept; None: `runs/` and the recipe's name.
        resume: Continue the run in `run_dir` from its last checkpoint; a finished one is only reported. A run whose
            recipe was given lambdas or local functions continues only in the process that has them.
        changes: `key=value` overrides of the recipe of a run directory that apply from its last checkpoint on, such as
            `reinforcement.steps=200`; require `resume`. See `docs/continuing.md`.
        on_metrics: Called after each step with its row of `metrics.jsonl`; an ablation's are not told.
        progress: What a person sees meanwhile; None: a bar in a terminal or notebook, else lines.
        reuse_from: Run directories whose warm-ups and stages are taken where they are what this run would make; what
            was taken is said, and the run comes to the same.
        ask: Asks for permission to call tools that change something, if the recipe does not give it
            (`environment.allow_effects`); None refuses.
        accept_changes: Resume although custom code of the run (rewards, tools, estimators) was edited; the change is
            recorded in `environment.json`.

    Raises:
        Interrupted: The process was asked to stop; the run is saved and can be resumed.
        WhetstoneError: A recipe, file or folder is wrong, or something could not be saved.
    """
    resolved, own = _recipe_of(recipe, run_dir, resume, changes)
    resolved.check_variables()
    run_dir = own or (Path(run_dir) if run_dir is not None else Path("runs") / resolved.name)
    progress = progress or Progress()
    feed = Feed(trackers_of(resolved), run_dir, resolved.stored(), say=progress.say)
    try:
        mirror = mirror_of(resolved, run_dir, resume=resume, say=progress.say)
        permit = partial(_permitted, ask=ask, say=progress.say)
        summary = _trained(
            resolved,
            run_dir,
            progress,
            feed,
            resume,
            on_metrics,
            reuse_from,
            mirror,
            permit,
            accept_changes,
            continues=own is not None,
        )
    except Interrupted:
        feed.close(None, seconds=_SECONDS_WHEN_STOPPED)
        raise
    except BaseException:
        feed.close(None)
        raise
    feed.close(summary.written)
    return summary


def _recipe_of(
    recipe: Resolved | Recipe | Mapping[str, Any] | str | Path,
    run_dir: str | Path | None,
    resume: bool,
    changes: Sequence[str],
) -> tuple[Resolved, Path | None]:
    """Return the recipe of a run, and its directory if `recipe` is one."""
    if not isinstance(recipe, str | Path) or not is_run(Path(recipe)):
        if changes:
            raise RunDirectoryError("changes: require a run directory in the place of the recipe")
        return load_recipe(recipe), None
    own = Path(recipe)
    if run_dir is not None and Path(run_dir).resolve() != own.resolve():
        raise RunDirectoryError(f"{own}: is a run, which stays in its directory; leave out --run-dir {run_dir}")
    if not resume:
        raise RunDirectoryError(
            f"{own}: is a run; add --resume to continue it, or start a new run from it: whetstone train "
            f"{own / 'recipe.yaml'} start_from={own} --run-dir NEW"
        )
    resolved = run_recipe(own).with_overrides(changes)
    return (resolved if (own / ORIGIN).is_file() else replace(resolved, name=own.resolve().name)), own


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
    accept_changes: bool | None = None,
    *,
    continues: bool = False,
) -> RunSummary:
    """Run the stages and ablations; `feed` passes metrics to the trackers of the whole.

    Args:
        accept_changes: See `train`; None for a stage or an ablation, whose code is that of the whole run.
        continues: Whether a resumed run whose recipe differs continues with the new one.
    """
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

    def change(stored: Resolved, different: Differences) -> None:
        if accept_changes is False:
            check_custom_code(run_dir, resolved)
        change_run(run_dir, resolved, stored, different, log=progress.say)

    with claimed(run_dir, resolved, resume=resume, change=change if continues else None), keeping:
        summary = read_json(run_dir / "summary.json") if resume else None
        is_finished = summary is not None and set(summary["ablations"]) >= set(resolved.recipe.ablations)
        if summary is not None and is_finished:
            progress.say(
                f"{run_dir}: this run is finished; `whetstone train {run_dir} --resume KEY.steps=N` adds steps"
            )
            for stage in summary.get("stages", [{}]):
                feed.follow(run_dir / stage.get("folder", ""))
        elif resume:
            check_inputs(run_dir, resolved, say=progress.say)
        if accept_changes is not None and not is_finished:
            record_environment(run_dir, resolved, accept_changes=accept_changes, report=progress.say)
        if summary is None:
            try:
                if stages:
                    summary = _staged(resolved, stages, run_dir, progress, feed, on_metrics, reuse_from)
                else:
                    take_warm_up(resolved, run_dir, reuse_from, say=progress.say)
                    take_first_evaluation(resolved, run_dir, reuse_from, say=progress.say)
                    while summary is None:
                        run = SingleRun(era_of(run_dir, resolved), run_dir, progress, on_metrics, feed)
                        summary = run_to_end(run.play, ask_to_stop=run.ask_to_stop)
            except Interrupted as stop:
                said = f"stopped; {run_dir} is saved, `whetstone train {run_dir} --resume` continues it"
                raise Interrupted(said, signal=stop.signal) from None
            write_json(run_dir / "summary.json", summary)
        overrides = resolved.stored()["ablations"]
        for name, changes in resolved.recipe.ablations.items():
            if name in summary["ablations"]:
                continue
            progress.say(f"ablation: {name}  ({', '.join(f'{k}={v}' for k, v in overrides[name].items())})")
            variant = resolved.with_changes({"ablations": None, **changes})
            there = run_dir / "ablations" / name
            resumed = (there / "recipe.yaml").is_file()
            untold = Feed({}, there, {}, say=progress.say)
            if not resumed and read_changes(run_dir):
                progress.say(f"ablation {name}: has the current recipe from its first step on; that of the run changed")
            outcome = _trained(variant, there, progress, untold, resumed, None, [run_dir], continues=True).written
            seconds = sum(outcome["seconds"].values())
            summary["ablations"][name] = {
                "after": last_evaluation(outcome),
                "overrides": overrides[name],
                "seconds": seconds,
            }
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
