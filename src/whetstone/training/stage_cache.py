"""Reuse of warm-ups and evaluations of another run with the same settings and the same input files.

A warm-up is copied as a checkpoint. The run continues as after an interruption, with the same weights as if it had
trained the warm-up itself.

Note:
    The evaluations of a warm-up are copied with it. They depend on further settings: the reward, the environment and
    the context of the agent.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whetstone.atomic_write import new_folder, write_text
from whetstone.errors import WhetstoneError
from whetstone.recipe import Resolved
from whetstone.recipe.variables import without_secrets
from whetstone.record import checkpoint_path, kept_checkpoint, read_json, run_recipe
from whetstone.record.checkpoint import read_position, verify_checkpoint
from whetstone.record.input_digests import input_digests, select_inputs
from whetstone.record.run_directory import run_inputs
from whetstone.reporting import Journal
from whetstone.training.evaluation_loop import member_file

_DECIDE = (
    "seed", "policy", "chat", "tasks", "environment", "models", "reward", "engine", "learner", "supervised", "critic",
    "evaluation",
)  # fmt: skip
_SAMPLING = frozenset(
    {"strategy", "budget_allocation", "start_states", "replay", "trajectory_filters", "dynamic_sampling", "group_size"}
)
"""Keys of `rollout` that affect neither a warm-up nor an evaluation."""
_NOT_EVALUATED = ("seed", "supervised", "critic")
_DECIDE_ALL = frozenset({*_DECIDE, "rollout"})
_EVALUATED = _DECIDE_ALL - {*_NOT_EVALUATED, "policy"}
_AT_EVALUATION = {"context_transforms", "stops", "rewrites", "environment_wrapper"}
"""Kinds of components that are used at evaluation; see `MethodComponents.at_evaluation`."""
_MADE = ("untrained", "supervised")


def reuse_warm_up(resolved: Resolved, run_dir: Path, reuse_from: Sequence[Path], *, log: Callable[[str], None]) -> None:
    """Copy the identical warm-up of another run, if this run has not started and one exists.

    Args:
        resolved: Recipe of the run.
        run_dir: Run directory.
        reuse_from: Run directories to search.
        log: Receives one line about the reused run.
    """
    recipe = resolved.recipe
    if recipe.supervised is None or recipe.reinforcement is None or (run_dir / "checkpoints").exists():
        return
    wanted, steps = _decided(resolved), recipe.supervised.steps
    for other in reuse_from:
        checkpoint = checkpoint_path(other, steps)
        if (
            other == run_dir
            or not _is_there(other, checkpoint)
            or _decided_there(other) != wanted
            or verify_checkpoint(checkpoint) is not None
            or not _read_the_same(other, resolved, _DECIDE_ALL, f"the warm-up of {other}", log)
        ):
            continue
        for name in _MADE:
            copy_evaluation(other, name, run_dir, name)
        rows = [row for row in Journal(other).read() if row.get("stage") == "supervised"]
        write_text(run_dir / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        (run_dir / "checkpoints").mkdir()
        with new_folder(checkpoint_path(run_dir, steps)) as aside:
            shutil.copytree(checkpoint, aside, dirs_exist_ok=True)
        log(f"reusing the warm-up of {other} (identical settings and inputs)")
        return


def reuse_evaluation(
    resolved: Resolved, run_dir: Path, reuse_from: Sequence[Path], *, log: Callable[[str], None]
) -> None:
    """Copy the last evaluation of the run whose final weights this run starts with.

    All settings of the evaluation except the seed must be equal.

    Args:
        resolved: Recipe of the run.
        run_dir: Run directory.
        reuse_from: Run directories to search.
        log: Receives one line if an evaluation is not reused because digests are missing.
    """
    if resolved.recipe.policy.path is None or (run_dir / "evaluations").exists():
        return
    began = Path(resolved.recipe.policy.path)
    for other in reuse_from:
        summary = read_json(other / "summary.json")
        if summary is None or began.parent != other / "checkpoints" or kept_checkpoint(other) != began:
            continue
        is_same = _evaluated(run_recipe(other)) == _evaluated(resolved) and _remembers_alike(began, resolved)
        if is_same and _read_the_same(other, resolved, _EVALUATED, f"the last evaluation of {other}", log):
            copy_evaluation(other, list(summary["evaluations"])[-1], run_dir, "untrained")
            return


def _remembers_alike(began: Path, resolved: Resolved) -> bool:
    """Return whether stateful components have the same state at this evaluation as at the earlier one."""
    known = {name.partition(".")[0] for name in read_position(began).memory or {}}
    return str(began) in resolved.recipe.init_state_from or not known & _AT_EVALUATION


def _evaluated(resolved: Resolved) -> dict[str, Any]:
    """Return the settings that affect an evaluation, apart from the weights."""
    without = {**dict.fromkeys(_NOT_EVALUATED), "policy": resolved.recipe.policy.dtype}
    return {**_decided(resolved), **without}


def copy_evaluation(source_run: Path, name: str, run_dir: Path, called: str) -> None:
    """Copy the result and the trajectories of an evaluation from another run.

    The episodes of every member of `policies` are copied.

    Args:
        source_run: Run directory to copy from.
        name: Name of the evaluation there.
        run_dir: Run directory to copy to.
        called: Name of the evaluation in this run.
    """
    files = list(zip(_evaluation(source_run, name), _evaluation(run_dir, called), strict=True))
    result = read_json(files[0][0]) or {}
    for member in list(result.get("members") or {})[1:]:  # the first has the file without a name
        file = f"{member_file(f'evaluation-{name}', member)}.jsonl"
        copied = f"{member_file(f'evaluation-{called}', member)}.jsonl"
        files.append((source_run / "trajectories" / file, run_dir / "trajectories" / copied))
    for folder in (source_run / "evaluations" / "suites").glob("*"):
        files += [
            (source_run / below / file.format(name), run_dir / below / file.format(called))
            for below, file in ((Path("evaluations", "suites", folder.name), "{}.json"),
                                (Path("trajectories", "suites", folder.name), "evaluation-{}.jsonl"))
            if (source_run / below / file.format(name)).is_file()
        ]  # fmt: skip
    for source, target in files:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _evaluation(run_dir: Path, name: str) -> tuple[Path, Path]:
    return run_dir / "evaluations" / f"{name}.json", run_dir / "trajectories" / f"evaluation-{name}.jsonl"


def _is_there(other: Path, checkpoint: Path) -> bool:
    files = [file for name in _MADE for file in _evaluation(other, name)]
    return checkpoint.is_dir() and (other / "metrics.jsonl").is_file() and all(map(Path.is_file, files))


def _read_the_same(
    other: Path, resolved: Resolved, sections: frozenset[str], what: str, log: Callable[[str], None]
) -> bool:
    """Return whether the input files of these recipe sections are identical to those of the other run."""
    before = run_inputs(other)
    if before is None:
        log(f"{what} is not reused: an earlier version stored no digests of its inputs")
        return False
    return select_inputs(before, sections) == select_inputs(input_digests(resolved), sections)


def _decided_there(other: Path) -> dict[str, Any] | None:
    try:
        return _decided(run_recipe(other))
    except WhetstoneError:
        return None


def _decided(resolved: Resolved) -> dict[str, Any]:
    written = without_secrets(resolved.to_dict())
    rollout = {key: value for key, value in written["rollout"].items() if key not in _SAMPLING}
    return {**{key: written[key] for key in _DECIDE}, "rollout": rollout}
