"""How is a recipe of several stages run? As a chain of runs, each begun with the weights the one before ended with.

    runs/shop/stages/1-pretraining/   2-supervised/   3-preference/   4-reinforcement/

Each is a run directory like any other: it is evaluated, resumed, reported, replayed by itself. So a kill costs no more
than in a run of one stage, and a stage that another chain has made already, under the same recipe from the same
weights and the same data, is taken from there.

Easy to get wrong: a stage that is taken from elsewhere must be the same to the last key and the last byte of what it
read, and so must all before it. It stands in the run as a link, through which nothing may be written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import Assembly
from whetstone.assembly.own_data import check_data, with_learning
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.evaluation.stage_results import last_evaluation, numbers_of, read_stage_results
from whetstone.policies import Policy, export_policy, merged
from whetstone.recipe import NamedStage, Resolved
from whetstone.recipe.stages import REWARD_MODEL
from whetstone.record import kept_checkpoint, read_json, write_json
from whetstone.record.inputs import inputs_of, together
from whetstone.reporting import Progress
from whetstone.training.final import final_policy
from whetstone.training.handed_on import remembering
from whetstone.training.kept import check_validation
from whetstone.training.made_already import copy_evaluation
from whetstone.training.reward_model import MODEL, fit_reward_model

_MADE = "stage.json"
"""In the folder of a stage that is over: what decided it (`key`), and a digest of all that was read (`read`)."""
Train = Callable[[Resolved, Path, Sequence[Path]], object]
"""(a recipe of one stage, its run directory, the stage before it) → nothing; the run is there"""


def run_stages(
    stages: Sequence[NamedStage],
    run_dir: Path,
    train: Train,
    *,
    also: Sequence[Path] = (),
    progress: Progress,
    there: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Run what is not there yet.

    Args:
        train: Runs or goes on with one stage.
        also: Run directories whose stages may be taken where they are the same.
        there: Told of the folder of each stage, in their order, once it is run.

    Returns:
        A summary of the whole, as of a run.
    """
    before: Path | None = None
    key = read = ""
    made: dict[str, Path] = {}
    policies: list[Path] = []
    """Of the stages so far, those that are runs."""
    told: list[dict[str, Any]] = []
    for stage in stages:
        key = _key(key, stage)
        read = together({"before": read, **inputs_of(stage.resolved)})
        folder = run_dir / "stages" / stage.name
        if read_json(folder / _MADE) != (made_of := {"key": key, "read": read}):
            if folder.is_symlink():  # to a stage of another run, which this one is no longer
                folder.unlink()
            found = None if folder.is_dir() else _made_already(stage, key, read, also, say=progress.say)
            if found is not None:
                progress.say(f"stage {stage.name}: taken from {found}")
                _take(found, folder)
            else:
                progress.say(f"stage {stage.name}  ({folder})")
                resolved = _behind(stage, before, made, run_dir)
                if not resolved.recipe.init_state_from and (known := remembering(resolved, policies)):
                    resolved = resolved.with_changes({"init_state_from": known})
                if stage.kind == REWARD_MODEL:
                    _score(resolved, folder, stage.name, progress)
                else:
                    train(resolved, folder, [before] if before is not None else [])
                write_json(folder / _MADE, made_of)
        there(folder)
        summary = read_json(folder / "summary.json")
        told.append({"name": stage.name, "folder": folder, "reused": folder.is_symlink(), "summary": summary})
        if stage.kind == REWARD_MODEL:
            made[stage.name] = folder / MODEL
        else:
            before = made[stage.name] = folder
            policies.append(folder)
    trained = [each for each in told if "evaluations" in each["summary"]]
    _shown(trained, run_dir)
    listed = [_entry(each) for each in told]
    scorers = {each["name"]: each["summary"] for each in told if each not in trained}
    return _summary(trained) | {"stages": listed, "reward_models": scorers}


def _take(made: Path, folder: Path) -> None:
    """Make the stage of another run one of this run: a link, so that its weights and records are there once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(os.path.relpath(made.resolve(), folder.parent.resolve()), target_is_directory=True)


def _score(resolved: Resolved, folder: Path, name: str, progress: Progress) -> None:
    """A stage that trains a scorer, and no policy."""
    if (folder / MODEL).is_dir():  # it was made, and a kill came before that was written down
        shutil.rmtree(folder / MODEL)
    folder.mkdir(parents=True, exist_ok=True)
    told = fit_reward_model(resolved, folder, say=progress.say)
    progress.say(
        f"{name}: puts {told['accuracy']:.1%} of the pairs of {told['tried_on']} tasks it did not see in order"
    )
    write_json(folder / "summary.json", told)


def _shown(told: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    """Evaluations of the stages, as evaluations of the whole."""
    copy_evaluation(told[0]["folder"], "untrained", run_dir, "untrained")
    for each in told:
        copy_evaluation(each["folder"], list(each["summary"]["evaluations"])[-1], run_dir, each["name"])


def _entry(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a stage in `summary.json`, with its result if its run trained a policy."""
    entry = {"name": stage["name"], "folder": f"stages/{stage['name']}", "reused": stage["reused"]}
    trained = "evaluations" in stage["summary"]
    results = read_stage_results(stage["summary"]) if trained else []
    return {**results[-1].to_json(), **entry} if results else entry


def _key(before: str, stage: NamedStage) -> str:
    """Names a stage by its recipe and those of all before it."""
    decided = stage.resolved.with_changes({"title": None, "paper": None, "trackers": None, "scale": None}).dump()
    return hashlib.sha256(f"{before}\n{stage.new_adapters}\n{decided}".encode()).hexdigest()


def _made_already(
    stage: NamedStage, key: str, read: str, also: Sequence[Path], *, say: Callable[[str], None]
) -> Path | None:
    for other in also:
        for folder in sorted((other / "stages").glob("*")):
            told = read_json(folder / _MADE) or {}
            if told.get("key") != key or not (folder / "summary.json").is_file():
                continue
            if told.get("read") == read:
                return folder
            kept = "read" in told
            why = "what it or a stage before it read is another" if kept else "a version made it that kept no digests"
            say(f"stage {stage.name}: {folder} is not taken: {why}")
    return None


def _behind(stage: NamedStage, before: Path | None, made: Mapping[str, Path], run_dir: Path) -> Resolved:
    """The stage's recipe, with the weights the stage before ended with and the episodes of those it reads."""
    names = {key: f"{key}.from_stage" if key.endswith(".data") else f"{key}.stage" for key in stage.reads}
    read: dict[str, str | None] = dict.fromkeys(names.values())
    read |= {f"{key}.path": str(made[name]) for key, name in stage.reads.items()}
    if before is None:
        return stage.resolved.with_changes(read)
    checkpoint = kept_checkpoint(before)
    if checkpoint is None:
        raise RunDirectoryError(f"{before}: no checkpoint that can be read")
    if stage.new_adapters:
        begins = run_dir / "stages" / f"{stage.name}-begins"
        if not begins.is_dir():
            export_policy(merged(final_policy(before), "float32"), begins)
        checkpoint = begins
    given = {"policy.path": str(checkpoint), "policy.tiny": None, "policy.revision": None, "start_from": None, **read}
    return stage.resolved.with_changes(given)


def _summary(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = told[0]["summary"], told[-1]["summary"]
    evaluations = {"untrained": next(iter(first["evaluations"].values()))}
    evaluations |= {each["name"]: last_evaluation(each["summary"]) for each in told}
    causes: dict[str, int] = {}
    for each in told:
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
        "failed": {"episodes": sum(each["summary"]["failed"]["episodes"] for each in told), "causes": causes},
        "skipped_rows": {
            f"{each['name']}: {key}": count
            for each in told
            for key, count in each["summary"].get("skipped_rows", {}).items()
        },
        "overlap": [
            {**entry, "sentence": f"{each['name']}: {entry['sentence']}"}
            for each in told
            for entry in each["summary"].get("overlap", [])
        ],
        "ends": {each["name"]: end for each in told for end in each["summary"].get("ends", {}).values()},
        "seconds": {each["name"]: sum(each["summary"]["seconds"].values()) for each in told},
        "throughput": {each["name"]: value for each in told for value in each["summary"]["throughput"].values()},
        "parameters": last["parameters"],
        "policy": first["policy"],
        "method": last["method"],
    }


def check_stages(stages: Sequence[NamedStage], assemble: Callable[[Resolved, Policy | None], Assembly]) -> None:
    """See that every stage can be made, before the first is run.

    Raises:
        WhetstoneError: One cannot; the message says which.
    """
    loaded: list[tuple[Any, Policy]] = []
    for stage in stages:
        recipe = stage.resolved.recipe
        decides = (recipe.policy, recipe.chat, recipe.tasks, recipe.environment, recipe.critic)
        policy = next((policy for decided, policy in loaded if decided == decides), None)
        try:
            scorers = {key: "exact_match" for key in stage.reads if not key.endswith(".data")}  # nor are they
            made = assemble(with_learning(stage.resolved.with_changes(scorers)), policy).check()
            check_validation(made, stage.resolved)
            loaded += [(decides, made.policy)] if policy is None else []
            if not any(key.endswith(".data") for key in stage.reads):  # else it is not there yet
                check_data(made, stage.resolved)
        except WhetstoneError as error:
            raise type(error)(f"stage {stage.name}: {error}") from None
