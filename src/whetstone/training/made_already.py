"""When is a warm-up made already, and an evaluation? When another run made it under all the keys that decide it,
and the files and folders those name held the same.

A warm-up is taken as a checkpoint of one's own: the run goes on as after a kill, which comes to the same weights as if
it had made the warm-up itself.

Easy to get wrong: its evaluations belong to it, and they depend on more than the warm-up: on the reward, the
environment and what an agent reads.
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
from whetstone.record.checkpoint import damage, position_of
from whetstone.record.inputs import inputs_of, of_keys
from whetstone.record.run_directory import run_inputs
from whetstone.reporting import Journal

_DECIDE = (
    "seed", "policy", "chat", "tasks", "environment", "models", "reward", "engine", "learner", "supervised", "critic",
    "evaluation",
)  # fmt: skip
_SAMPLING = frozenset(
    {"strategy", "budget_allocation", "start_states", "replay", "trajectory_filters", "dynamic_sampling", "group_size"}
)
"""Of `rollout`, what neither a warm-up nor an evaluation reads."""
_NOT_EVALUATED = ("seed", "supervised", "critic")
_DECIDE_ALL = frozenset({*_DECIDE, "rollout"})
_EVALUATED = _DECIDE_ALL - {*_NOT_EVALUATED, "policy"}
_AT_EVALUATION = {"context_transforms", "stops", "rewrites", "environment_wrapper"}
"""Parts of a method that are there then; see `Method.at_evaluation`."""
_MADE = ("untrained", "supervised")


def take_warm_up(resolved: Resolved, run_dir: Path, reuse_from: Sequence[Path], *, say: Callable[[str], None]) -> None:
    """Take the warm-up of another run, where one of these has made the same and this run has not begun.

    Args:
        say: Told which was taken.
    """
    recipe = resolved.recipe
    if recipe.supervised is None or recipe.reinforcement is None or (run_dir / "checkpoints").exists():
        return
    wanted, steps = _decided(resolved), recipe.supervised.steps
    for other in reuse_from:
        made = checkpoint_path(other, steps)
        if (
            other == run_dir
            or not _is_there(other, made)
            or _decided_there(other) != wanted
            or damage(made) is not None
            or not _read_the_same(other, resolved, _DECIDE_ALL, f"the warm-up of {other}", say)
        ):
            continue
        for name in _MADE:
            copy_evaluation(other, name, run_dir, name)
        rows = [row for row in Journal(other).read() if row.get("stage") == "supervised"]
        write_text(run_dir / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        (run_dir / "checkpoints").mkdir()
        with new_folder(checkpoint_path(run_dir, steps)) as aside:
            shutil.copytree(made, aside, dirs_exist_ok=True)
        say(f"the warm-up is taken from {other}, which made the same")
        return


def take_first_evaluation(
    resolved: Resolved, run_dir: Path, reuse_from: Sequence[Path], *, say: Callable[[str], None]
) -> None:
    """Take what another run ended with as what this one begins with, where it begins with those weights and evaluates
    them alike, up to the seed.

    Args:
        say: Told where it is not taken for want of digests.
    """
    if resolved.recipe.policy.path is None or (run_dir / "evaluations").exists():
        return
    began = Path(resolved.recipe.policy.path)
    for other in reuse_from:
        summary = read_json(other / "summary.json")
        if summary is None or began.parent != other / "checkpoints" or kept_checkpoint(other) != began:
            continue
        alike = _evaluated(run_recipe(other)) == _evaluated(resolved) and _remembers_alike(began, resolved)
        if alike and _read_the_same(other, resolved, _EVALUATED, f"the last evaluation of {other}", say):
            copy_evaluation(other, list(summary["evaluations"])[-1], run_dir, "untrained")
            return


def _remembers_alike(began: Path, resolved: Resolved) -> bool:
    """Whether what stands beside the policy when it is evaluated knows what it knew then."""
    known = {name.partition(".")[0] for name in position_of(began).memory or {}}
    return str(began) in resolved.recipe.init_state_from or not known & _AT_EVALUATION


def _evaluated(resolved: Resolved) -> dict[str, Any]:
    """What an evaluation reads beside the weights."""
    without = {**dict.fromkeys(_NOT_EVALUATED), "policy": resolved.recipe.policy.dtype}
    return {**_decided(resolved), **without}


def copy_evaluation(there: Path, name: str, run_dir: Path, called: str) -> None:
    """What an evaluation of another run came to, as one of this run."""
    for source, target in zip(_evaluation(there, name), _evaluation(run_dir, called), strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _evaluation(run_dir: Path, name: str) -> tuple[Path, Path]:
    return run_dir / "evaluations" / f"{name}.json", run_dir / "trajectories" / f"evaluation-{name}.jsonl"


def _is_there(other: Path, checkpoint: Path) -> bool:
    files = [file for name in _MADE for file in _evaluation(other, name)]
    return checkpoint.is_dir() and (other / "metrics.jsonl").is_file() and all(map(Path.is_file, files))


def _read_the_same(
    other: Path, resolved: Resolved, sections: frozenset[str], what: str, say: Callable[[str], None]
) -> bool:
    """Whether the files and folders that these sections name hold what they held for the other run."""
    before = run_inputs(other)
    if before is None:
        say(f"{what} is not taken: a version made it that kept no digests of what it read")
        return False
    return of_keys(before, sections) == of_keys(inputs_of(resolved), sections)


def _decided_there(other: Path) -> dict[str, Any] | None:
    try:
        return _decided(run_recipe(other))
    except WhetstoneError:
        return None


def _decided(resolved: Resolved) -> dict[str, Any]:
    written = without_secrets(resolved.stored())
    rollout = {key: value for key, value in written["rollout"].items() if key not in _SAMPLING}
    return {**{key: written[key] for key in _DECIDE}, "rollout": rollout}
