"""Selection of the checkpoint that reinforcement ends with on validation tasks (`reinforcement.keep: best`).

Validation tasks are the held-out tasks of the source that follow the test tasks, so that neither training nor the
final evaluation reads them. The weights at the start of the stage and at each checkpoint are candidates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.inference import load_member_states
from whetstone.recipe import OptimizerSettings, ReinforcementSettings, Resolved
from whetstone.record.checkpoint import KEPT, Position, checkpoint_path, load_checkpoint
from whetstone.record.run_directory import read_json, write_json
from whetstone.reporting import kept_sentence

_STAGE = "reinforcement"
_NAME = re.compile(r"step-(\d{6,})")


def keeps_best(settings: OptimizerSettings) -> bool:
    """Return whether a stage ends with its best checkpoint (`reinforcement.keep: best`)."""
    return isinstance(settings, ReinforcementSettings) and settings.keep == "best"


def check_validation(assembly: RunComponents, resolved: Resolved) -> None:
    """Check that the task source has enough held-out tasks for validation.

    Raises:
        RecipeError: If it has too few.
    """
    settings, stage = resolved.recipe.evaluation, resolved.recipe.reinforcement
    if stage is None or not keeps_best(stage):
        return
    wanted = settings.episodes + settings.validation_episodes
    held_out = len(assembly.source.held_out(wanted))
    if held_out < wanted:
        raise resolved.error(
            "evaluation.validation_episodes",
            f"reinforcement.keep: best needs {settings.episodes} test tasks (evaluation.episodes) and "
            f"{settings.validation_episodes} validation tasks, and the source has {held_out} held-out tasks; reduce "
            "one of them, hold out more tasks, or use keep: last",
        )


def validation_path(run_dir: Path, step: int) -> Path:
    """Return the file with the validation result after a step of reinforcement."""
    return run_dir / "validation" / f"step-{step:06d}.json"


def best_step(run_dir: Path, *, done: int) -> int | None:
    """Return the validated step with the highest success, then reward, then step number.

    If several members play seats, their means decide (`combine_members`).

    Args:
        run_dir: Run directory.
        done: Number of steps made; results of later steps are ignored.

    Returns:
        The step, or None if no step has a validation result.
    """
    ranked = []
    for path in (run_dir / "validation").glob("step-*.json"):
        match, result = _NAME.fullmatch(path.stem), read_json(path)
        if match is None or result is None or int(match[1]) > done:
            continue
        scores = combine_members(result)
        if scores["success"] is not None:
            ranked.append((scores["success"], scores["reward"] or 0.0, int(match[1])))
    return max(ranked)[2] if ranked else None


def combine_members(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return success, interval, reward and number of episodes of a validation.

    If several members play seats, success and reward are means over the members, each in its own seat, and there is no
    interval. A mean is None if a member has no scored episode.

    Args:
        result: Stored `Evaluation`; may be empty.
    """
    names = ("success", "interval", "reward", "episodes")
    members = list((result.get("members") or {}).values())
    if not members:
        return {name: result.get(name) for name in names}
    means = {
        name: None if any(each[name] is None for each in members) else fmean(each[name] for each in members)
        for name in ("success", "reward")
    }
    return {**means, "interval": None, "episodes": sum(each["episodes"] for each in members)}


def best_checkpoint(run_dir: Path, position: Position) -> set[Path]:
    """Return the best checkpoint up to a position of the run, as a set.

    The set is empty without a validation result.
    """
    done = position.done.get(_STAGE, 0)
    best = best_step(run_dir, done=done)
    return set() if best is None else {checkpoint_path(run_dir, position.steps - done + best)}


def select_checkpoint(
    run_dir: Path, assembly: RunComponents, position: Position, *, report: Callable[[str], None]
) -> bool:
    """Record which checkpoint a finished stage keeps, and load it if it is not the last one.

    Args:
        run_dir: Run directory.
        assembly: Receives the weights of the kept checkpoint and the state of the method's components.
        position: Position at the end of the stage.
        report: Receives one line with the result.

    Returns:
        Whether the weights have changed.

    Raises:
        RunDirectoryError: If the checkpoint is damaged.
    """
    done = position.done[_STAGE]
    best = best_step(run_dir, done=done)
    if best is None:  # no validation episode was scored
        return False
    results = {step: read_json(validation_path(run_dir, step)) or {} for step in (best, done)}
    path = checkpoint_path(run_dir, position.steps - done + best)
    selected: dict[str, Any] = {"step": best, "of": done, "checkpoint": path.name}
    for name, step in {"validation": best, "last": done}.items():
        selected[name] = combine_members(results[step])
    write_json(run_dir / KEPT, selected)
    report(kept_sentence(selected))
    if best != done:
        policy, state, saved = load_checkpoint(
            path, trust_remote_code=assembly.resolved.recipe.policy.trust_remote_code
        )
        assembly.policy.model.load_state_dict(policy.model.state_dict())
        assembly.method.load_state(saved.memory or {})
        load_member_states(assembly.members, state)
    return best != done
