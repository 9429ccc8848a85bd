"""Continuing a run with another recipe: more steps, another learning rate, another batch size.

A change applies after the last step on record: updates that were made before a kill are repeated with the recipe that
they had. It is stored in `changes.json` of the run; `recipe.yaml` then holds the new recipe. A run that is killed after
a change continues to the same weights.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from whetstone.atomic_write import convert_save_errors
from whetstone.errors import RunDirectoryError
from whetstone.learning.optimizer import rate_after
from whetstone.recipe import Resolved, list_stages
from whetstone.recipe.resume_changes import FIXED, Era, RecipeChange, find_effect, find_stage, format_override
from whetstone.recipe.settings import SAMPLES, STAGE_KINDS
from whetstone.record import RunRecord, latest_checkpoint, read_json
from whetstone.record.checkpoint import read_position
from whetstone.record.run_directory import Differences, read_changes, run_eras, write_recipe
from whetstone.reporting import Journal
from whetstone.training.stopping import stopping_reason

_NO_START = frozenset({"policy", "chat"})
"""Keys that a run from a checkpoint cannot change either."""
_MAX_SHOWN = 80
"""Maximum characters of a value in a message."""


def change_run(
    run_dir: Path, resolved: Resolved, stored: Resolved, different: Differences, *, log: Callable[[str], None]
) -> None:
    """Record that a run continues with another recipe after its last recorded step.

    Args:
        run_dir: Run directory.
        resolved: Recipe with which the run continues.
        stored: Recipe of the run so far.
        different: Keys that differ and affect results.
        log: Receives lines that describe the change.

    Raises:
        RunDirectoryError: If a key cannot change, or the change has no effect. The message has the command for a new
            run.
    """
    if list_stages(stored) or list_stages(resolved):
        refuse_change(run_dir, next(iter(different)), different, "cannot change in a chain of stages")
    stage, step, record = _last_step(run_dir, stored)
    stages = list(stored.recipe.own_stages)
    for key in different:
        kind = find_stage(key)
        if kind is not None and STAGE_KINDS.index(kind) > STAGE_KINDS.index(stage):
            continue  # the stage has not started
        if find_effect(key) == FIXED or kind == key:
            refuse_change(run_dir, key, different, "cannot change in a run")
        if kind is not None and kind != stage:
            refuse_change(run_dir, key, different, f"cannot change: the stage {kind} is finished")
    settings = resolved.recipe.own_stages.get(stage)
    if settings is not None and settings.steps < step:
        raise RunDirectoryError(
            f"{run_dir}: {stage}.steps={settings.steps}: {step} steps are made already; set at least {step}"
        )
    if stage == stages[-1] and list(resolved.recipe.own_stages)[-1] == stage and settings is not None:
        ended = stopping_reason(Journal(run_dir).read(), stage, settings, done=step)
        if ended is not None:
            raise RunDirectoryError(
                f"{run_dir}: {', '.join(different)}: no effect, since {stage} ended after step {step}, by {ended}; "
                f"also set {stage}.steps to more than {step} (or {stage}.until, {stage}.budget if they ended it)"
            )
    following = max(record.admitted, default=-1) + 1
    change = RecipeChange(stage, step, dict(different), following, round(time.time(), 3))
    _reopen(run_dir, stage, step)
    write_recipe(run_dir, resolved, [*read_changes(run_dir), change])
    log(f"{run_dir}: the recipe changes {change}")
    before = stored.recipe.own_stages[stage]
    if settings is not None and any(find_effect(key) == "schedule" for key in different):
        earlier = f"{rate_after(step, before):.3g} with" if step < before.steps else "no step of"
        rate = rate_after(step, settings)
        log(f"the learning rate of step {step + 1} of {stage} is {rate:.3g} ({earlier} the earlier recipe)")


def era_of(run_dir: Path, resolved: Resolved) -> Era:
    """Return the recipe that the next step of a run uses, and the change that ends it.

    Args:
        run_dir: Run directory.
        resolved: Current recipe, for a run whose recipe has not changed.
    """
    if not read_changes(run_dir):
        return Era(resolved)
    path = latest_checkpoint(run_dir)
    done = read_position(path).done if path is not None else {}
    return next(era for era in run_eras(run_dir) if era.end is None or not era.end.is_reached(done))


def refuse_change(run_dir: Path, key: str, different: Mapping[str, tuple[Any, Any]], problem: str) -> None:
    """Refuse to change a key of a run; the message has the command for a new run from the last checkpoint.

    Args:
        run_dir: Run directory.
        key: Key that cannot change.
        different: (old, new) value of every changed key.
        problem: Reason, a predicate such as "cannot change in a run".

    Raises:
        RunDirectoryError: Always.
    """
    old, new = different[key]
    start = "" if key.partition(".")[0] in _NO_START else f" start_from={run_dir}"
    overrides = " ".join(shlex.quote(f"{name}={format_override(value)}") for name, (_, value) in different.items())
    count = 2
    while (other := run_dir.with_name(f"{run_dir.name}-{count}")).exists():
        count += 1
    command = f"whetstone train {run_dir / 'recipe.yaml'}{start} {overrides} --run-dir {other}"
    where = "from this checkpoint" if start else "with it"
    before, after = (shorten(format_override(value), _MAX_SHOWN, placeholder="…") for value in (old, new))
    raise RunDirectoryError(f"{run_dir}: {key} {problem} (from {before} to {after}); a new run {where}: {command}")


def _last_step(run_dir: Path, stored: Resolved) -> tuple[str, int, RunRecord]:
    """Return stage and number of the last step on record, and the record of sampled groups."""
    record = RunRecord(run_dir)
    path = latest_checkpoint(run_dir)
    position = read_position(path) if path is not None else None
    stages = list(stored.recipe.own_stages)
    stage = position.stage if position is not None and position.stage else stages[0]
    step = position.done.get(stage, 0) if position is not None else 0
    sampled = stages[-1] if stages[-1] in SAMPLES else None
    updates = max(record.updated, default=-1) + 1
    if sampled is not None and record.admitted and (sampled != stage or updates > step):
        return sampled, updates, record
    return stage, step, record


def _reopen(run_dir: Path, stage: str, step: int) -> None:
    """Keep the last evaluation of a finished stage as an evaluation after that step, and remove the summary."""
    for folder, prefix, suffix in (("evaluations", "", ".json"), ("trajectories", "evaluation-", ".jsonl")):
        path = run_dir / folder / f"{prefix}{stage}{suffix}"
        if path.is_file():
            with convert_save_errors(path):
                path.replace(path.with_name(f"{prefix}{stage}-{step:06d}{suffix}"))
    summary = run_dir / "summary.json"
    if read_json(summary) is not None:
        with convert_save_errors(summary):
            summary.unlink()
