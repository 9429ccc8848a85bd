"""Runs recipes with several stages: a chain of runs, each of which starts with the final weights of the previous one.

    runs/shop/stages/1-pretraining/   2-supervised/   3-preference/   4-reinforcement/

Each stage is a normal run directory that can be evaluated, resumed, reported and replayed separately. An interruption
therefore costs no more than in a run of one stage. A finished stage of another chain with the same recipe, weights and
data is reused.

Note:
    A reused stage must be identical in every key and in every byte of its inputs, and so must all stages before it. The
    run contains it as a symbolic link, through which nothing may be written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.stage_datasets import as_reinforcement, check_data
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.evaluation.stage_results import last_evaluation, numbers_of, read_stage_results
from whetstone.policies import Policy, export_policy, merge_adapters
from whetstone.recipe import NamedStage, Resolved
from whetstone.recipe.stage_recipes import REWARD_MODEL
from whetstone.record import kept_checkpoint, read_json, write_json
from whetstone.record.input_digests import combined_digest, input_digests
from whetstone.reporting import Progress
from whetstone.training.carry_state import latest_checkpoints_with_state
from whetstone.training.evaluation_suites import summarize_suites
from whetstone.training.final_checkpoint import final_policy
from whetstone.training.kept import check_validation
from whetstone.training.reward_model import MODEL, fit_reward_model
from whetstone.training.stage_cache import copy_evaluation

_MADE = "stage.json"
"""File in the folder of a finished stage: a digest of its settings (`key`) and of its inputs (`read`)."""
Train = Callable[[Resolved, Path, Sequence[Path]], object]
"""(recipe of one stage, its run directory, run directories of earlier stages) → creates the run."""


def run_stages(
    stages: Sequence[NamedStage],
    run_dir: Path,
    train: Train,
    *,
    also: Sequence[Path] = (),
    progress: Progress,
    on_stage: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Run the stages of a chain that are not finished, and summarize the chain.

    Args:
        stages: Stages in order.
        run_dir: Directory of the whole run.
        train: Runs or resumes one stage.
        also: Run directories whose identical stages may be reused.
        progress: Progress display.
        on_stage: Called with the folder of each stage, in order, once it is finished.

    Returns:
        Summary of the chain, in the format of a run's `summary.json`.

    Raises:
        WhetstoneError: If a stage fails.
    """
    before: Path | None = None
    key = read = ""
    folders: dict[str, Path] = {}
    policies: list[Path] = []
    """Folders of the stages so far that train a policy."""
    finished: list[dict[str, Any]] = []
    for stage in stages:
        key = _key(key, stage)
        read = combined_digest({"before": read, **input_digests(stage.resolved)})
        folder = run_dir / "stages" / stage.name
        if read_json(folder / _MADE) != (made_of := {"key": key, "read": read}):
            if folder.is_symlink():  # an outdated link to a stage of another run
                folder.unlink()
            reusable = None if folder.is_dir() else _find_reusable(stage, key, read, also, say=progress.say)
            if reusable is not None:
                progress.say(f"stage {stage.name}: reused from {reusable}")
                _take(reusable, folder)
            else:
                progress.say(f"stage {stage.name}  ({folder})")
                resolved = _resolve_inputs(stage, before, folders, run_dir)
                if not resolved.recipe.init_state_from and (known := latest_checkpoints_with_state(resolved, policies)):
                    resolved = resolved.with_changes({"init_state_from": known})
                if stage.kind == REWARD_MODEL:
                    _score(resolved, folder, stage.name, progress)
                else:
                    train(resolved, folder, [before] if before is not None else [])
                write_json(folder / _MADE, made_of)
        on_stage(folder)
        summary = read_json(folder / "summary.json")
        finished.append({"name": stage.name, "folder": folder, "reused": folder.is_symlink(), "summary": summary})
        if stage.kind == REWARD_MODEL:
            folders[stage.name] = folder / MODEL
        else:
            before = folders[stage.name] = folder
            policies.append(folder)
    trained = [each for each in finished if "evaluations" in each["summary"]]
    _copy_evaluations(trained, run_dir)
    listed = [_entry(each) for each in finished]
    scorers = {each["name"]: each["summary"] for each in finished if each not in trained}
    suites = summarize_suites(stages[0].resolved, run_dir, [each["name"] for each in trained])
    return _summary(trained) | {"stages": listed, "reward_models": scorers} | ({"suites": suites} if suites else {})


def _take(source: Path, folder: Path) -> None:
    """Reuse the stage of another run by a symbolic link, so that its weights and records are stored once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(os.path.relpath(source.resolve(), folder.parent.resolve()), target_is_directory=True)


def _score(resolved: Resolved, folder: Path, name: str, progress: Progress) -> None:
    """Run a stage that trains a reward model, and no policy."""
    if (folder / MODEL).is_dir():  # the process was killed after training, before this was recorded
        shutil.rmtree(folder / MODEL)
    folder.mkdir(parents=True, exist_ok=True)
    result = fit_reward_model(resolved, folder, say=progress.say)
    progress.say(f"{name}: puts {result['accuracy']:.1%} of the pairs of {result['tried_on']} held-out tasks in order")
    write_json(folder / "summary.json", result)


def _copy_evaluations(stages: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    """Copy the evaluations of the stages to the whole run."""
    copy_evaluation(stages[0]["folder"], "untrained", run_dir, "untrained")
    for each in stages:
        copy_evaluation(each["folder"], list(each["summary"]["evaluations"])[-1], run_dir, each["name"])


def _entry(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a stage in `summary.json`, with its result if its run trained a policy."""
    entry = {"name": stage["name"], "folder": f"stages/{stage['name']}", "reused": stage["reused"]}
    trained = "evaluations" in stage["summary"]
    results = read_stage_results(stage["summary"]) if trained else []
    return {**results[-1].to_json(), **entry} if results else entry


def _key(before: str, stage: NamedStage) -> str:
    """Return a digest of the recipes of a stage and of all stages before it."""
    decided = stage.resolved.with_changes({"title": None, "paper": None, "trackers": None, "scale": None}).dump()
    return hashlib.sha256(f"{before}\n{stage.new_adapters}\n{decided}".encode()).hexdigest()


def _find_reusable(
    stage: NamedStage, key: str, read: str, also: Sequence[Path], *, say: Callable[[str], None]
) -> Path | None:
    for other in also:
        for folder in sorted((other / "stages").glob("*")):
            stored = read_json(folder / _MADE) or {}
            if stored.get("key") != key or not (folder / "summary.json").is_file():
                continue
            if stored.get("read") == read:
                return folder
            has_digest = "read" in stored
            why = (
                "its inputs or those of an earlier stage differ"
                if has_digest
                else "an earlier version stored no digests"
            )
            say(f"stage {stage.name}: {folder} is not reused: {why}")
    return None


def _resolve_inputs(stage: NamedStage, before: Path | None, folders: Mapping[str, Path], run_dir: Path) -> Resolved:
    """Return the recipe of a stage with the paths of its inputs.

    Inputs are the final weights of the previous stage, and data of the stages that it reads.
    """
    names = {key: f"{key}.from_stage" if key.endswith(".data") else f"{key}.stage" for key in stage.reads}
    read: dict[str, str | None] = dict.fromkeys(names.values())
    read |= {f"{key}.path": str(folders[name]) for key, name in stage.reads.items()}
    if before is None:
        return stage.resolved.with_changes(read)
    checkpoint = kept_checkpoint(before)
    if checkpoint is None:
        raise RunDirectoryError(
            f"{before}: no checkpoint that can be read; delete this folder to train its stage again"
        )
    if stage.new_adapters:
        begins = run_dir / "stages" / f"{stage.name}-begins"
        if not begins.is_dir():
            export_policy(merge_adapters(final_policy(before), "float32"), begins)
        checkpoint = begins
    changes = {"policy.path": str(checkpoint), "policy.tiny": None, "policy.revision": None, "start_from": None, **read}
    return stage.resolved.with_changes(changes)


def _summary(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = stages[0]["summary"], stages[-1]["summary"]
    evaluations = {"untrained": next(iter(first["evaluations"].values()))}
    evaluations |= {each["name"]: last_evaluation(each["summary"]) for each in stages}
    causes: dict[str, int] = {}
    for each in stages:
        for cause, count in each["summary"]["failed"]["causes"].items():
            causes[cause] = causes.get(cause, 0) + count
    return {
        "recipe": last["recipe"],
        "seed": first["seed"],
        "untrained": numbers_of(evaluations["untrained"]),
        "evaluations": evaluations,
        "during": {},
        "kept": last.get("kept"),
        "ablations": {},
        "failed": {"episodes": sum(each["summary"]["failed"]["episodes"] for each in stages), "causes": causes},
        "skipped_rows": {
            f"{each['name']}: {key}": count
            for each in stages
            for key, count in each["summary"].get("skipped_rows", {}).items()
        },
        "overlap": [
            {**entry, "sentence": f"{each['name']}: {entry['sentence']}"}
            for each in stages
            for entry in each["summary"].get("overlap", [])
        ],
        "ends": {each["name"]: end for each in stages for end in each["summary"].get("ends", {}).values()},
        "seconds": {each["name"]: sum(each["summary"]["seconds"].values()) for each in stages},
        "throughput": {each["name"]: value for each in stages for value in each["summary"]["throughput"].values()},
        "parameters": last["parameters"],
        "policy": first["policy"],
        "method": last["method"],
    }


def check_stages(stages: Sequence[NamedStage], assemble: Callable[[Resolved, Policy | None], RunComponents]) -> None:
    """Check that every stage can be assembled, before the first one runs.

    Args:
        stages: Stages in order.
        assemble: Assembles the components of a recipe for a policy; None: the recipe's policy.

    Raises:
        WhetstoneError: If a stage is invalid; the message names the stage.
    """
    loaded: list[tuple[Any, Policy]] = []
    for stage in stages:
        recipe = stage.resolved.recipe
        decides = (recipe.policy, recipe.chat, recipe.tasks, recipe.environment, recipe.critic)
        policy = next((policy for decided, policy in loaded if decided == decides), None)
        try:
            scorers = {
                key: "exact_match" for key in stage.reads if not key.endswith(".data")
            }  # reward models of earlier stages do not exist yet
            assembly = assemble(as_reinforcement(stage.resolved.with_changes(scorers)), policy).check()
            check_validation(assembly, stage.resolved)
            loaded += [(decides, assembly.policy)] if policy is None else []
            if not any(key.endswith(".data") for key in stage.reads):  # otherwise the data does not exist yet
                check_data(assembly, stage.resolved)
        except WhetstoneError as error:
            raise type(error)(f"stage {stage.name}: {error}") from None
