"""Choices that a run makes once at its start and stores in its recipe: commits of hub models, and precisions.

A resumed run keeps these choices, also on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.assembly.memory_estimate import estimate_policy_size
from whetstone.assembly.placement import policy_device
from whetstone.policies import fast_dtype, in_dtype, is_hub_name, resolve_model_folder
from whetstone.policies.precision import SMALL
from whetstone.recipe import Resolved
from whetstone.recipe.settings import STAGE_KINDS
from whetstone.record import run_recipe
from whetstone.record.starting import resolve_start
from whetstone.training.carry_state import checkpoints_with_state


def pin_choices(resolved: Resolved, run_dir: Path, *, resume: bool) -> Resolved:
    """Return the recipe with the commits of hub models and the chosen precisions written into it.

    Commits are written to `policy.revision`, and as `owner/model@commit` for teachers, frozen models and models in
    seats. Precisions replace `policy.dtype: auto` of large models and `optimizer: muon`.

    Args:
        resolved: Recipe of the run.
        run_dir: Run directory.
        resume: Whether the run in `run_dir` is resumed; the choices in its recipe are then kept.

    Raises:
        PolicyError: If the hub has no such model, or cannot be reached.
    """
    began = run_recipe(run_dir) if resume and (run_dir / "recipe.yaml").is_file() else None
    if began is not None and resolved.recipe.environment.allow_effects is None:
        permitted = began.recipe.environment.allow_effects  # a resumed run does not ask again
        resolved = resolved.with_changes({"environment.allow_effects": permitted}) if permitted else resolved
    resolved = _with_start(resolved, began)
    commits = _commits(resolved, began)
    resolved = resolved.with_changes(commits) if commits else resolved
    precisions = _precisions(resolved, began)
    return resolved.with_changes(precisions) if precisions else resolved


def _with_start(resolved: Resolved, began: Resolved | None) -> Resolved:
    """Return the recipe with the checkpoint of `start_from` written into it.

    A resumed run keeps its checkpoint.
    """
    start, stored = resolved.recipe.start_from, began.recipe.start_from if began is not None else None
    if start is None or start == stored:
        return resolved
    if stored is not None:
        place = Path(stored.path)
        if Path(start.path) in (place, place.parent.parent) and start.step in (None, stored.step):
            resolved = resolved.with_changes({"start_from": {"path": stored.path, "what": start.what}})
    resolved = resolve_start(resolved)
    start = resolved.recipe.start_from
    assert start is not None
    if start.what == "all" and not resolved.recipe.init_state_from:
        return resolved.with_changes({"init_state_from": checkpoints_with_state(resolved, [Path(start.path)])})
    return resolved


def _precisions(resolved: Resolved, began: Resolved | None) -> dict[str, Any]:
    """Return the changes that replace `auto` precisions by the stored ones, or else by the faster ones."""
    changes: dict[str, Any] = {}
    recipe, stored = resolved.recipe, began.recipe if began is not None else None
    if recipe.policy.dtype == "auto":
        size = estimate_policy_size(recipe) if stored is None else None
        if stored is not None:
            changes["policy.dtype"] = stored.policy.dtype
        elif size is not None and size.parameters >= SMALL:
            dtype = in_dtype(size.parameters, "auto", policy_device(resolved))
            changes["policy.dtype"] = str(dtype).removeprefix("torch.")
    for kind, stage in recipe.own_stages.items():
        if stage.optimizer == "muon":
            before = stored.own_stages.get(kind) if stored is not None else None
            has_muon = before is not None and before.optimizer.startswith("muon")
            changes[f"{kind}.optimizer"] = before.optimizer if before and has_muon else _fast_muon(resolved)
    if any(_has_muon(stage) for stage in recipe.stages):
        muon = next((m for stage in stored.stages if (m := _muon_of(stage))), None) if stored is not None else None
        muon = muon or _fast_muon(resolved)
        changes["stages"] = [_with_muon(stage, muon) for stage in recipe.stages]
    return {key: value for key, value in changes.items() if value != "auto"}


def _fast_muon(resolved: Resolved) -> str:
    return f"muon_{fast_dtype(policy_device(resolved))}".replace("torch.", "")


def _settings_of(stage: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of one entry of `stages` by kind."""
    return {kind: stage[kind] for kind in STAGE_KINDS if isinstance(stage.get(kind), Mapping)}


def _muon_of(stage: Mapping[str, Any]) -> str | None:
    """Return the optimizer of one entry of `stages` if it is Muon in a stored precision."""
    optimizers = (str(settings.get("optimizer", "")) for settings in _settings_of(stage).values())
    return next((name for name in optimizers if name.startswith("muon_")), None)


def _has_muon(stage: Mapping[str, Any]) -> bool:
    return any(settings.get("optimizer") == "muon" for settings in _settings_of(stage).values())


def _with_muon(stage: Mapping[str, Any], optimizer: str) -> dict[str, Any]:
    chosen = {
        kind: {**settings, "optimizer": optimizer}
        for kind, settings in _settings_of(stage).items()
        if settings.get("optimizer") == "muon"
    }
    return {**stage, **chosen}


def _commits(resolved: Resolved, began: Resolved | None) -> dict[str, Any]:
    """Return the changes that name hub models by commit."""
    known = {_unpinned(name): name for _, name in _others(began)} if began is not None else {}
    trusted = resolved.recipe.policy.trust_remote_code
    changes = {
        key: known.get(name) or f"{name}@{resolve_model_folder(name, trust_remote_code=trusted).name}"
        for key, name in _others(resolved)
        if is_hub_name(name) and "@" not in name
    }
    policy = resolved.recipe.policy
    if policy.path is not None and is_hub_name(policy.path):
        before = began.recipe.policy if began is not None else None
        if before is not None and policy.revision is None and before.path == policy.path and before.revision:
            changes["policy.revision"] = before.revision
        else:
            folder = resolve_model_folder(policy.path, revision=policy.revision, trust_remote_code=trusted)
            changes["policy.revision"] = folder.name
    return changes


def _others(resolved: Resolved) -> list[tuple[str, str]]:
    """Return (key, model) of each model other than the policy."""
    recipe = resolved.recipe
    seats = recipe.rollout.strategy.options.get("frozen")
    models = [(f"rollout.strategy.frozen.{role}", str(name)) for role, name in dict(seats or {}).items()]
    models += [(f"models.{name}.path", each.path) for name, each in recipe.models.items() if each.path is not None]
    teacher = recipe.teacher.path if recipe.teacher is not None else None
    return [("teacher.path", teacher), *models] if teacher is not None else models


def _unpinned(name: str) -> str:
    return name.partition("@")[0]
