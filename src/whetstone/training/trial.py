"""Short trial of a run that measures its rates: seconds per update and episode, tool calls, judge requests.

A policy that is not trained yet samples other episodes than the trained one: it often reaches `max_new_tokens`, and
calls no tools. If a stage imitates an expert first, the lengths of the expert's episodes replace those of the sampled
ones.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.assembly.stage_datasets import as_reinforcement
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import WhetstoneError
from whetstone.own_loop import run_sync
from whetstone.recipe import OptimizerSettings, Recipe, ReinforcementSettings, Resolved, SupervisedSettings, list_stages
from whetstone.reporting import Progress
from whetstone.rewards.judge_usage import find_judges, judge_metrics
from whetstone.rewards.protocol import close_reward
from whetstone.tasks import Expert
from whetstone.training.cost_estimate import EVALUATION, RunCost, StageRates, TrialResult, estimate_cost
from whetstone.training.evaluation_loop import evaluate_policy
from whetstone.training.permission import Ask, Part, permit_run, training_parts
from whetstone.training.run import train
from whetstone.training.supervised import sample_demonstrations
from whetstone.trajectory import Trajectory

TRIAL_SECONDS = 30.0
"""Time after which a trial starts no further update, in seconds."""
_UPDATES = 3
"""Number of updates of each stage in a trial; the first one, which allocates memory, is not measured."""
_EVALUATED, _DEMONSTRATED = 32, 16
"""Maximum number of episodes of an evaluation, and number of demonstrations of an expert."""
_LARGE = 20_000_000
"""Number of parameters from which on fewer episodes are played."""
_LARGE_TASKS, _LARGE_EPISODES = 1, 4
"""Maximum number of tasks per update of a large policy, and number of episodes of its evaluation."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Mean size of a set of episodes, in tokens and tool calls."""

    sampled_tokens: float
    """Number of sampled tokens per episode."""
    tokens: float
    """Number of sampled and read tokens per episode, over all segments."""
    calls: float
    """Number of tool calls per episode."""

    @classmethod
    def of(cls, episodes: Sequence[Trajectory]) -> _Shape:
        return cls(
            fmean(episode.action_tokens for episode in episodes),
            fmean(sum(map(len, episode.segments())) for episode in episodes),
            fmean(len(episode.calls) for episode in episodes),
        )


class _Enough(Exception):
    """Raised when the time of the trial is over."""


def plan_cost(
    resolved: Resolved, *, with_trial: bool, ask: Ask | None = None, notify: Callable[[str], None] = lambda line: None
) -> RunCost:
    """Estimate the cost of a run on this machine.

    Args:
        resolved: Recipe of the run.
        with_trial: Whether a trial measures time, tool calls and price; see `run_trial`.
        ask: Asks for permission to call tools that change something; None refuses.
        notify: Receives the expected number of real calls.

    Raises:
        RecipeError: If the recipe is invalid, or does not permit the calls of the trial.
    """
    judges = len(find_judges(assemble(resolved).reward))
    if not with_trial:
        return estimate_cost(resolved, judges=judges)
    permitted = permit_run(resolved, _trial_parts(resolved), ask=ask, log=notify, whose="the trial")
    return estimate_cost(resolved, judges=judges, trial=run_trial(permitted))


def _trial_parts(resolved: Resolved) -> list[Part]:
    """Return the stages of a trial, and its evaluation and demonstrations, with their numbers of episodes."""
    shorter = resolved.with_changes(_trial_changes(resolved, is_large=False))
    evaluation, warm_up = resolved.recipe.evaluation, resolved.recipe.supervised
    played = (1 + min(evaluation.episodes, _EVALUATED)) * evaluation.samples
    played += _DEMONSTRATED if warm_up is not None and warm_up.data is None else 0
    return [*training_parts(shorter), (shorter, lambda _: played)]


def run_trial(resolved: Resolved, *, seconds: float = TRIAL_SECONDS) -> TrialResult:
    """Measure the rates of a run by a few updates of each stage in a temporary directory.

    Tools, judges and models are called as in the run.

    Args:
        resolved: Recipe of the run.
        seconds: Time after which no further update starts, in seconds.

    Raises:
        WhetstoneError: If the run would fail.
    """
    began = time.perf_counter()
    rates: dict[str, StageRates] = {}
    updates: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="whetstone-trial-") as folder:
        measured = run_sync(lambda: _measure_episodes(resolved))
        rates[EVALUATION] = StageRates(seconds_per_episode=measured.seconds, calls_per_episode=measured.shape.calls)
        rows, error = _short_run(resolved, Path(folder) / "run", measured.is_large, began + seconds)
        for name, kind, recipe in _named_stages(resolved):
            own = [row for row in rows if row["stage"] in (name, kind)]
            updates[name] = len(own)
            if own:
                rates[name] = _rates_of(recipe, kind, own, measured)
    return TrialResult(
        rates, measured.start_seconds, measured.requests, measured.dollars, time.perf_counter() - began, updates, error
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measurements of evaluation episodes, from `_measure_episodes`."""

    shape: _Shape
    """Expected size of the episodes of the trained policy."""
    sampled: _Shape
    """Size of the episodes of the untrained policy."""
    seconds: float
    """Time per episode of an evaluation, in seconds."""
    start_seconds: float
    requests: float
    dollars: float
    is_large: bool


async def _measure_episodes(resolved: Resolved) -> _Measured:
    """Play episodes of an evaluation and of the expert."""
    began = time.perf_counter()
    assembly = await run_in_compute_thread(lambda: assemble(as_reinforcement(resolved)).check())
    engine = await run_in_compute_thread(assembly.build_engine)
    settings = resolved.recipe.evaluation
    is_large = assembly.policy.parameters >= _LARGE
    count = min(settings.episodes, _LARGE_EPISODES if is_large else _EVALUATED)
    options: dict[str, Any] = {"samples": settings.samples, "temperature": settings.temperature}
    options["seed"] = resolved.recipe.seed
    try:
        await evaluate_policy(assembly, engine, episodes=1, **options)  # allocates memory
        started = time.perf_counter()
        before = judge_metrics(assembly.reward)
        _, groups = await evaluate_policy(assembly, engine, episodes=count, **options)
        passed = time.perf_counter() - started
        used = {name: value - before.get(name, 0.0) for name, value in judge_metrics(assembly.reward).items()}
        episodes = [episode for group in groups for episode in group.trajectories if episode.ended.valid]
        sampled = _Shape.of(episodes) if episodes else _Shape(1.0, 1.0, 0.0)
        shape = await _expert_shape(assembly) or sampled
    finally:
        await engine.close()
        await close_reward(assembly.reward)
    played = sum(len(group.trajectories) for group in groups)
    return _Measured(
        shape,
        sampled,
        passed / played * _ratio(shape.sampled_tokens, sampled.sampled_tokens),
        started - began,
        used.get("judge/requests", 0.0) / played,
        used.get("judge/cost", 0.0) / played,
        is_large,
    )


async def _expert_shape(assembly: RunComponents) -> _Shape | None:
    """Return the size of the expert's episodes, if a stage imitates them; None otherwise."""
    warm_up = assembly.resolved.recipe.supervised
    if warm_up is None or warm_up.data is not None or not isinstance(assembly.demonstration_source, Expert):
        return None
    played = await sample_demonstrations(assembly, 0, _DEMONSTRATED)
    solved = [episode for episode in played.episodes if episode.solved]
    return _Shape.of(solved) if solved else None


def _named_stages(resolved: Resolved) -> list[tuple[str, str, Recipe]]:
    """Return name, kind and recipe of each stage."""
    several = [(stage.name, stage.kind, stage.resolved.recipe) for stage in list_stages(resolved)]
    return several or [(kind, kind, resolved.recipe) for kind in resolved.recipe.own_stages]


def _short_run(
    resolved: Resolved, run_dir: Path, is_large: bool, deadline: float
) -> tuple[list[Mapping[str, Any]], str]:
    """Train a few updates of each stage.

    Returns:
        Rows of metrics, and the reason why the run ended early; empty if all updates were made.
    """
    rows: list[Mapping[str, Any]] = []

    def collect(row: Mapping[str, Any]) -> None:
        rows.append(row)
        if time.perf_counter() > deadline:
            raise _Enough

    try:
        shorter = resolved.with_changes(_trial_changes(resolved, is_large=is_large))
        train(shorter, run_dir, progress=Progress(quiet=True), on_metrics=collect)
    except _Enough:
        return rows, f"the time of the trial ({TRIAL_SECONDS:g} s) is over"
    except WhetstoneError as error:
        if not rows:
            raise
        return rows, str(error).replace(f"{run_dir}/", "")
    return rows, ""


def _trial_changes(resolved: Resolved, *, is_large: bool) -> dict[str, Any]:
    """Return the keys of a recipe that a trial changes."""
    changes: dict[str, Any] = {
        "ablations": None,
        "trackers": [],
        "evaluation.episodes": 1,
        "evaluation.interval_steps": None,
    }
    listed = [dict(stage) for stage in resolved.recipe.stages]
    for number, (_, kind, recipe) in enumerate(_named_stages(resolved)):
        shorter = _shorten(recipe.own_stages[kind], is_large)
        if not listed:
            changes |= {f"{kind}.{key}": value for key, value in shorter.items()}
        elif number < len(listed) and kind in listed[number]:
            listed[number][kind] = {**(listed[number][kind] or {}), **shorter}
    if listed:
        changes |= {"stages": listed, "repeat_stages": None}
    return changes


def _shorten(stage: OptimizerSettings, is_large: bool) -> dict[str, int]:
    """Return the changed keys of a stage in a trial."""
    shorter = {"steps": min(stage.steps, _UPDATES)}
    if is_large and isinstance(stage, SupervisedSettings):
        shorter["batch_size"] = min(stage.batch_size, 4 * _LARGE_TASKS)
    if is_large and isinstance(stage, ReinforcementSettings):
        shorter["tasks_per_step"] = min(stage.tasks_per_step, _LARGE_TASKS)
    return shorter


def _rates_of(recipe: Recipe, kind: str, rows: Sequence[Mapping[str, Any]], measured: _Measured) -> StageRates:
    """Return the cost of an update, for the number and the length of the episodes of the run."""
    counted = rows[1:] or rows
    stage = recipe.own_stages[kind]
    rollout = median(float(row.get("time/rollout") or 0.0) for row in counted)
    update = median(float(row.get("time/update") or 0.0) for row in counted)
    if isinstance(stage, ReinforcementSettings):
        played = max(1.0, median(float(row.get("cost_per_step/episodes") or 1.0) for row in counted))
        tokens = median(float(row.get("cost_per_step/sampled_tokens") or 1.0) for row in counted) / played
        wanted = stage.tasks_per_step * recipe.rollout.group_size / played
        longer = _ratio(measured.shape.sampled_tokens, tokens)
        read = _ratio(measured.shape.tokens, measured.sampled.tokens)
        return StageRates(wanted * (rollout * longer + update * read), 0.0, measured.shape.calls)
    share = 1.0
    if isinstance(stage, SupervisedSettings) and measured.is_large:
        share = stage.batch_size / min(stage.batch_size, 4 * _LARGE_TASKS)
    return StageRates(share * (rollout + update), 0.0, measured.shape.calls)


def _ratio(expected: float, sampled: float) -> float:
    return expected / sampled if sampled > 0 else 1.0
