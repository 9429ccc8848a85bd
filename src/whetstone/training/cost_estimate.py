"""Cost of a run before it starts: updates, episodes, tool calls, judge requests, time and memory.

Without a trial, the number of updates and episodes follows from the recipe, and one tool call per turn is assumed. A
trial (`trial.py`) measures the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from whetstone.assembly.memory_estimate import MemoryShare, estimate_memory_shares
from whetstone.assembly.task_components import build_source
from whetstone.environments import ENVIRONMENTS
from whetstone.plugins import get_component_options
from whetstone.recipe import (
    DistillationSettings,
    OptimizerSettings,
    ReinforcementSettings,
    Resolved,
    SamplingSettings,
    SupervisedSettings,
    list_stages,
)

EVALUATION = "evaluations"
"""Name of the row of all evaluations of a run."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """Number of updates and episodes of a stage, or of the evaluations of a run."""

    name: str
    """Name of the row: the stage, with the name of its ablation; or `evaluations`."""
    updates: int
    """Number of optimizer steps."""
    episodes: int
    """Number of episodes that are played, including demonstrations of an expert."""
    key: str = ""
    """Name of the stage without that of an ablation, by which measured rates are found."""
    is_scored: bool = True
    """Whether the reward scores its episodes."""
    max_turns: int = 0
    """Maximum number of turns of its episodes."""


@dataclass(frozen=True, slots=True)
class StageRates:
    """Measured cost per update and episode of a stage."""

    seconds_per_update: float = 0.0
    """Duration of a step, including sampling, in seconds."""
    seconds_per_episode: float = 0.0
    """Duration of an episode of an evaluation, in seconds."""
    calls_per_episode: float = 0.0
    """Mean number of tool calls per episode."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Measurements of a short trial of a run, from `run_trial`."""

    rates: dict[str, StageRates]
    """Rates by name of the stage; those of evaluations have the name `evaluations`."""
    start_seconds: float
    """Time from the start of a run to its first evaluation, in seconds."""
    requests_per_episode: float
    """Mean number of judge requests per scored episode."""
    dollars_per_episode: float
    """Mean price of the judge requests per scored episode, in the currency of `prompt_price`."""
    seconds: float
    """Duration of the trial, in seconds."""
    updates: dict[str, int] = field(default_factory=dict)
    """Number of measured updates, by name of the stage."""
    error: str = ""
    """Reason why the remaining stages have no measured updates; empty if all have."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Estimated cost of a stage."""

    name: str
    """Name of the stage, `evaluations`, or `total`."""
    updates: int
    """Number of optimizer steps."""
    episodes: int
    """Number of episodes that are played."""
    tool_calls: int
    """Number of tool calls; without a trial, one per turn is assumed."""
    judge_requests: float
    """Number of requests to judges."""
    dollars: float | None = None
    """Price of the judge requests, in the currency of `prompt_price`; None without a trial."""
    seconds: float | None = None
    """Duration in seconds; None without a trial."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """Estimated cost of a run, from `estimate_cost`."""

    stages: Sequence[StageCost]
    """Cost of each stage, of all evaluations, and of ablations."""
    memory: Sequence[MemoryShare]
    """Estimated memory by device and part."""
    start_seconds: float | None
    """Time for loading before the first evaluation, in seconds; None without a trial."""
    trial: TrialResult | None
    """Result of the trial; None: no trial was made."""
    calls_per_turn: int = 1
    """Maximum number of tool calls of a turn."""

    @property
    def total(self) -> StageCost:
        """Sum over all stages, including the time for loading.

        Seconds and dollars are None if they are unknown for a stage.
        """
        parts = self.stages
        seconds = [part.seconds for part in parts if part.seconds is not None]
        dollars = [part.dollars for part in parts if part.dollars is not None]
        return StageCost(
            "total",
            sum(part.updates for part in parts),
            sum(part.episodes for part in parts),
            sum(part.tool_calls for part in parts),
            sum(part.judge_requests for part in parts),
            sum(dollars) if len(dollars) == len(parts) else None,
            sum(seconds, self.start_seconds or 0.0) if len(seconds) == len(parts) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON: `stages`, `total`, `memory` (bytes by device and part) and `trial`."""
        return {
            "stages": [asdict(stage) for stage in self.stages],
            "total": asdict(self.total),
            "memory": [
                {"device": str(share.device), "part": share.what, "bytes": share.bytes, "held": share.is_permanent}
                for share in self.memory
            ],
            "trial": None if self.trial is None else asdict(self.trial),
        }


def run_work(resolved: Resolved) -> list[StageWork]:
    """Return the updates and episodes of all stages, evaluations and ablations of a run."""
    work: list[StageWork] = []
    for stage in list_stages(resolved):
        work += _stage_work(stage.resolved, stage.name)
    work = _merge_evaluations(work) or list(_stage_work(resolved))
    for name, changes in resolved.recipe.ablations.items():
        parts = run_work(resolved.with_changes({"ablations": None, **changes}))
        work += [replace(part, name=f"ablation {name}: {part.name}") for part in parts]
    return work


def _merge_evaluations(work: Sequence[StageWork]) -> list[StageWork]:
    """Return the work with one row for all evaluations."""
    evaluations = [part for part in work if part.key == EVALUATION]
    stages = [part for part in work if part.key != EVALUATION]
    if evaluations:
        stages.append(replace(evaluations[0], episodes=sum(part.episodes for part in evaluations)))
    return stages


def count_episodes(resolved: Resolved) -> int:
    """Return the number of episodes of a run, including evaluations and without ablations."""
    return sum(part.episodes for part in _stage_work(resolved))


def count_evaluation(resolved: Resolved) -> int:
    """Return the number of episodes of one evaluation: held-out tasks times samples."""
    settings = resolved.recipe.evaluation
    tasks = build_source(resolved, "tasks", resolved.recipe.tasks.options).held_out(settings.episodes)
    return len(tasks) * settings.samples


def estimate_cost(resolved: Resolved, *, judges: int, trial: TrialResult | None = None) -> RunCost:
    """Estimate updates, episodes, tool calls, judge requests, time and memory of a run.

    Args:
        resolved: Recipe.
        judges: Number of judges of the reward. Without a trial, one request per judge and scored episode is assumed.
        trial: Measured rates; None: only counts that follow from the recipe.
    """
    stages = [_stage_cost(part, judges, trial) for part in run_work(resolved)]
    memory = estimate_memory_shares(resolved, trains=True)
    start = None if trial is None else trial.start_seconds
    return RunCost(stages, memory, start, trial, max_calls_per_turn(resolved))


def max_calls_per_turn(resolved: Resolved) -> int:
    """Return the maximum number of tool calls per turn.

    It is the recipe's option, or the default of the environment.
    """
    settings = resolved.recipe.environment
    limit = (settings.model_extra or {}).get("max_calls_per_turn")
    if limit is not None:
        return int(limit)
    environment = ENVIRONMENTS.get(settings.name)
    option = get_component_options(environment).get("max_calls_per_turn") if environment is not None else None
    return option.default if option is not None and isinstance(option.default, int) else 1


def _stage_work(resolved: Resolved, name: str = "") -> Iterator[StageWork]:
    recipe = resolved.recipe
    evaluated = count_evaluation(resolved) * (1 + len(recipe.own_stages))
    for kind, stage in recipe.own_stages.items():
        is_scored = isinstance(stage, ReinforcementSettings | SamplingSettings | DistillationSettings)
        max_turns = max_turns_of_stage(resolved, stage)
        yield StageWork(name or kind, stage.steps, _played(resolved, stage), name or kind, is_scored, max_turns)
        interval = recipe.evaluation.interval_steps
        if isinstance(stage, ReinforcementSettings) and interval:
            evaluated += stage.steps // interval * recipe.evaluation.interval_episodes
    yield StageWork(EVALUATION, 0, evaluated, EVALUATION, max_turns=recipe.environment.max_turns)


def max_turns_of_stage(resolved: Resolved, stage: OptimizerSettings) -> int:
    """Return the maximum number of turns of the episodes of a stage; demonstrations can have their own.

    Args:
        resolved: Recipe of the stage.
        stage: Settings of the stage.
    """
    own = stage.max_turns if isinstance(stage, SupervisedSettings) and stage.data is None else None
    return own or resolved.recipe.environment.max_turns


def _played(resolved: Resolved, stage: OptimizerSettings) -> int:
    if isinstance(stage, SupervisedSettings):
        return stage.steps * stage.batch_size if stage.data is None else 0
    if isinstance(stage, ReinforcementSettings | SamplingSettings | DistillationSettings):
        return stage.steps * stage.tasks_per_step * resolved.recipe.rollout.group_size
    return 0


def _stage_cost(part: StageWork, judges: int, trial: TrialResult | None) -> StageCost:
    scored = part.episodes if part.is_scored else 0
    if trial is None:
        calls = part.episodes * part.max_turns
        return StageCost(part.name, part.updates, part.episodes, calls, scored * judges)
    rates = trial.rates.get(part.key)
    if rates is None:
        return StageCost(part.name, part.updates, part.episodes, 0, scored * trial.requests_per_episode)
    return StageCost(
        part.name,
        part.updates,
        part.episodes,
        round(part.episodes * rates.calls_per_episode),
        scored * trial.requests_per_episode,
        scored * trial.dollars_per_episode,
        part.updates * rates.seconds_per_update + part.episodes * rates.seconds_per_episode,
    )
