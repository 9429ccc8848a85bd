"""Checks and reports of a run before its first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.assembly.evaluation_overlap import find_overlap
from whetstone.assembly.stage_datasets import find_policy_limit_problems
from whetstone.errors import WhetstoneError
from whetstone.policies import describe_fast_dtype
from whetstone.recipe import Resolved
from whetstone.record.run_directory import OVERLAP, read_json, write_json
from whetstone.training.run_summary import SKIPPED_ROWS


def report_data(run_dir: Path, assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Report skipped rows, demonstrations beyond the policy's limits, and evaluation tasks in the training data."""
    store_skipped_rows(run_dir, assembly, log)
    for problem in find_policy_limit_problems(assembly, resolved):
        log(problem)
    store_overlap(run_dir, assembly, resolved, log)


def store_skipped_rows(run_dir: Path, assembly: RunComponents, log: Callable[[str], None]) -> None:
    """Store and report the numbers of invalid rows that were skipped; a resumed run keeps the stored ones."""
    path, skipped = run_dir / SKIPPED_ROWS, assembly.skipped_rows
    for key, count in skipped.items():
        if not key.endswith("tasks"):  # reported when the tasks are read
            log(f"{key}: {count} invalid rows are skipped ({key}.on_bad_row: skip)")
    if skipped:
        write_json(path, {**(read_json(path) or {}), **skipped})


def store_overlap(run_dir: Path, assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Store and report evaluation tasks that are in the training data, once per run."""
    path = run_dir / OVERLAP
    if path.is_file():
        return
    entries = find_overlap(assembly, resolved)
    for entry in entries:
        log(entry["sentence"])
    if entries:
        write_json(path, entries)


def report_precision(assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Report the precision of Muon's iteration, which the start of the run measured."""
    stages = resolved.recipe.own_stages.values()
    chosen = {stage.optimizer for stage in stages if stage.optimizer.startswith("muon_")}
    if chosen:
        device = assembly.policy.device
        log(f"optimizer: {', '.join(sorted(chosen))} (faster here: {describe_fast_dtype(device)})")


def resume_remedy(run_dir: Path) -> str:
    """Return how a run that stopped by a failure continues."""
    return f"`whetstone train {run_dir} --resume` continues the run when the cause is removed"


def check_ablations(assembly: RunComponents, resolved: Resolved) -> None:
    """Check that the ablations can be trained, before the run is.

    Raises:
        WhetstoneError: One cannot; the message has its name.
    """
    recipe = resolved.recipe
    for name, changes in recipe.ablations.items():
        if not changes:
            raise resolved.error(f"ablations.{name}", "changes nothing; set the keys that are different")
        variant = resolved.with_changes({"ablations": None, **changes})
        other = variant.recipe
        if (other.policy, other.chat, other.critic) == (recipe.policy, recipe.chat, recipe.critic):
            try:
                assemble(variant, assembly.policy).check()
            except WhetstoneError as error:
                raise type(error)(f"ablation {name}: {error}") from None
