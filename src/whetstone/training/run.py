"""Runs a recipe: its stages (`single_run.py`, or `stages.py` for several), its ablations, and the report.

A `RunPlan` has all inputs of a run. Stages and ablations run by plans that are derived from the plan of the whole run.

Note:
    Trackers receive the metrics of the whole run: a run of several stages has one feed, and ablations have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import assemble
from whetstone.assembly.memory_estimate import check_fits
from whetstone.assembly.trackers import build_trackers
from whetstone.errors import RunDirectoryError
from whetstone.evaluation.continual_learning import format_transfer
from whetstone.evaluation.stage_results import last_evaluation
from whetstone.own_loop import run_sync
from whetstone.recipe import (
    NamedStage,
    Recipe,
    Resolved,
    list_stages,
    load_recipe,
)
from whetstone.record.finding import is_run
from whetstone.record.mirror import open_mirror
from whetstone.record.run_directory import (
    ORIGIN,
    Differences,
    check_inputs,
    open_run_directory,
    read_changes,
    read_json,
    run_recipe,
    write_json,
)
from whetstone.reporting import (
    Progress,
    write_report,
)
from whetstone.reporting.trackers import TrackerDispatcher
from whetstone.training.changed_resume import change_run, era_of
from whetstone.training.evaluation_suites import find_suite_stage
from whetstone.training.interruption import Interrupted
from whetstone.training.model_revisions import pin_choices
from whetstone.training.permission import Ask, permit_run, training_parts
from whetstone.training.run_plan import RunPlan
from whetstone.training.run_provenance import check_custom_code, record_environment
from whetstone.training.single_run import SingleRun
from whetstone.training.stage_cache import reuse_evaluation, reuse_warm_up
from whetstone.training.stages import check_stages, run_stages
from whetstone.training.summary import RunSummary

_SECONDS_WHEN_STOPPED = 10.0
"""Seconds that an interrupted run waits for its trackers."""


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
    """Run all stages of a recipe, and its ablations; return the summary of the run.

    Works inside a running event loop, as in a notebook.

    Args:
        recipe: A recipe as for `load_recipe`; with `resume`, also a run directory, whose own recipe is used.
        run_dir: Run directory; None: `runs/` and the recipe's name.
        resume: Whether to continue the run in `run_dir` from its last checkpoint; a finished run is only reported. A
            run whose recipe was given lambdas or local functions continues only in the process that has them.
        changes: `key=value` overrides of the recipe of a run directory that apply from its last checkpoint on, such as
            `reinforcement.steps=200`; require `resume`. See `docs/guide/continuing.md`.
        on_metrics: Called after each step with its row of `metrics.jsonl`; not for ablations.
        progress: Progress display; None: a bar in a terminal or notebook, else lines.
        reuse_from: Run directories whose warm-ups and stages are reused if they are identical to those of this run.
            Reuse is reported and does not change results.
        ask: Asks for permission to call tools that change something, if the recipe does not give it
            (`environment.allow_effects`); None refuses.
        accept_changes: Whether to resume although custom code of the run (rewards, tools, estimators), or a file with
            tasks or data, was edited. The change is recorded in `environment.json`.

    Raises:
        Interrupted: If the process was interrupted; the run is saved and can be resumed.
        WhetstoneError: If a recipe, file or folder is invalid, or a file cannot be saved.
    """
    resolved, own = _recipe_of(recipe, run_dir, resume, changes)
    resolved.check_variables()
    run_dir = own or (Path(run_dir) if run_dir is not None else Path("runs") / resolved.name)
    progress = progress or Progress()
    feed = TrackerDispatcher(build_trackers(resolved), run_dir, resolved.to_dict(), warn=progress.say)
    try:
        plan = RunPlan(
            resolved,
            run_dir,
            progress,
            feed,
            resume=resume,
            on_metrics=on_metrics,
            reuse_from=reuse_from,
            continues=own is not None,
            mirror=open_mirror(resolved, run_dir, resume=resume, log=progress.say),
            ask=ask,
            accept_changes=accept_changes,
            accept_inputs=accept_changes,
        )
        summary = run_plan(plan)
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
    """Return the recipe of a run, and the run directory if `recipe` is one, else None."""
    if not isinstance(recipe, str | Path) or not is_run(Path(recipe)):
        if changes:
            raise RunDirectoryError(
                "changes: apply only to a run directory, but a recipe was given; put the keys into the recipe"
            )
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


def run_plan(plan: RunPlan) -> RunSummary:
    """Run the stages and the ablations of a plan, and write the report.

    Args:
        plan: Plan of a whole run, a stage or an ablation.

    Raises:
        Interrupted: If the process was interrupted; the run is saved.
    """
    plan = _prepare(plan)
    resolved, run_dir = plan.resolved, plan.run_dir
    if (run_dir / "live").is_dir():
        raise RunDirectoryError(
            f"{run_dir}: holds a run of `whetstone live`, which the command that started it continues; for a new run "
            f"from it, set start_from={run_dir} and another --run-dir"
        )
    stages = list_stages(resolved)
    if not stages and not resolved.recipe.own_stages:
        raise resolved.error("live", "has no training stage; `whetstone live` trains while it serves")
    if plan.is_whole:
        for name in resolved.recipe.evaluation.suites:
            find_suite_stage(resolved, name, [stage.name for stage in stages] or list(resolved.recipe.own_stages))
    if not stages and not (plan.resume and (run_dir / "summary.json").is_file()):  # before any data is read
        check_fits(resolved, trains=resolved.recipe.sampling is None)
    keeping = plan.mirror.upload_periodically() if plan.mirror is not None else contextlib.nullcontext()
    change = partial(_change, plan) if plan.continues else None
    opened = open_run_directory(run_dir, resolved, resume=plan.resume, change=change, accept_changes=plan.accept_inputs)
    with opened, keeping:
        summary = _read_summary(plan)
        if summary is None:
            try:
                if stages:
                    summary = _run_stages(plan, stages)
                else:
                    reuse_warm_up(resolved, run_dir, plan.reuse_from, log=plan.progress.say)
                    reuse_evaluation(resolved, run_dir, plan.reuse_from, log=plan.progress.say)
                    while summary is None:
                        run = SingleRun(era_of(run_dir, resolved), plan)
                        summary = run_sync(run.run, ask_to_stop=run.ask_to_stop)
            except Interrupted as stop:
                message = f"stopped; {run_dir} is saved, `whetstone train {run_dir} --resume` continues it"
                raise Interrupted(message, signal=stop.signal) from None
            write_json(run_dir / "summary.json", summary)
        for name, changes in resolved.recipe.ablations.items():
            if name not in summary["ablations"]:
                summary["ablations"][name] = _run_ablation(plan, name, changes)
                write_json(run_dir / "summary.json", summary)
        for line in format_transfer(summary["suites"]) if summary.get("suites") and plan.is_whole else ():
            plan.progress.say(line)
        write_report(run_dir)
    return RunSummary.read(run_dir)


def _prepare(plan: RunPlan) -> RunPlan:
    """Return the plan with measured choices pinned, and with permission for the real calls of a whole run.

    Raises:
        RecipeError: If nothing permits them.
    """
    run_dir, say = plan.run_dir, plan.progress.say
    for note in plan.resolved.notes:
        say(note)
    if plan.resume and not (run_dir / "recipe.yaml").is_file():
        say(f"{run_dir}: no run to resume; a new one is started")
    resolved = pin_choices(plan.resolved, run_dir, resume=plan.resume)
    # a directory that has a run already is refused when it is claimed
    is_over = (run_dir / ("summary.json" if plan.resume else "recipe.yaml")).is_file()
    if plan.is_whole and not is_over:
        resolved = permit_run(resolved, training_parts(resolved), ask=plan.ask, log=say, measured=run_dir)
    return replace(plan, resolved=resolved)


def _change(plan: RunPlan, stored: Resolved, different: Differences) -> None:
    """Continue a run with a recipe that differs from the stored one."""
    if plan.accept_changes is False:
        check_custom_code(plan.run_dir, plan.resolved)
        check_inputs(plan.run_dir, plan.resolved, log=plan.progress.say)  # before the change is recorded
    change_run(plan.run_dir, plan.resolved, stored, different, log=plan.progress.say)


def _suggest_more_steps(plan: RunPlan) -> str:
    """Return the command that continues a finished run, after a semicolon; "" for a chain of stages."""
    stages = list(plan.resolved.recipe.own_stages.items())
    if list_stages(plan.resolved) or not stages:
        return ""
    kind, settings = stages[-1]
    return f"; `whetstone train {plan.run_dir} --resume {kind}.steps={2 * settings.steps}` doubles its steps"


def _read_summary(plan: RunPlan) -> dict[str, Any] | None:
    """Return the summary of a finished run, or None after checking the inputs of an unfinished one."""
    run_dir, say = plan.run_dir, plan.progress.say
    summary = read_json(run_dir / "summary.json") if plan.resume else None
    is_finished = summary is not None and set(summary["ablations"]) >= set(plan.resolved.recipe.ablations)
    if summary is not None and is_finished:
        say(f"{run_dir}: this run is finished{_suggest_more_steps(plan)}")
        for stage in summary.get("stages", [{}]):
            plan.feed.follow_run(run_dir / stage.get("folder", ""))
    elif plan.resume:
        check_inputs(run_dir, plan.resolved, log=say, accept_changes=plan.accept_inputs)
    if plan.accept_changes is not None and not is_finished:
        record_environment(run_dir, plan.resolved, accept_changes=plan.accept_changes, report=say)
    return summary


def _run_ablation(plan: RunPlan, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Run an ablation, and return its entry in `summary.json`."""
    say = plan.progress.say
    overrides = plan.resolved.to_dict()["ablations"][name]
    say(f"ablation: {name}  ({', '.join(f'{k}={v}' for k, v in overrides.items())})")
    variant = plan.resolved.with_changes({"ablations": None, **changes})
    folder = plan.run_dir / "ablations" / name
    untracked = TrackerDispatcher({}, folder, {}, warn=say)
    ablation = plan.derive_plan(
        variant, folder, feed=untracked, on_metrics=None, reuse_from=[plan.run_dir], continues=True
    )
    if not ablation.resume and read_changes(plan.run_dir):
        say(f"ablation {name}: has the current recipe from its first step on; that of the run changed")
    summary = run_plan(ablation).written
    return {
        "after": last_evaluation(summary),
        "overrides": overrides,
        "seconds": sum(summary["seconds"].values()),
    }


def _run_stages(plan: RunPlan, stages: Sequence[NamedStage]) -> dict[str, Any]:
    """Run the stages of a plan that has several, each in its own directory, and return their summary."""

    def run_stage(stage: Resolved, folder: Path, before: Sequence[Path]) -> object:
        return run_plan(plan.derive_plan(stage, folder, reuse_from=before))

    check_stages(stages, assemble)
    summary = run_stages(
        stages, plan.run_dir, run_stage, also=plan.reuse_from, progress=plan.progress, on_stage=plan.feed.follow_run
    )
    return summary | {"recipe": plan.resolved.name, "title": plan.resolved.recipe.title or plan.resolved.name}
