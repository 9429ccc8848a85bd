"""Steps of supervised fine-tuning and pretraining, and metrics of groups.

    supervised:     episodes of the expert, or of a file → train on the tokens of their actions
    pretraining:    windows of text → train on every token
    reinforcement:  groups from the stream → advantages → objective → update (`reinforcement.py`)

Note:
    Groups finish in an order that depends on timing. They are sorted by the order of their start before anything is
    computed, so that a run depends only on its seed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.stage_datasets import read_demonstrations, read_texts
from whetstone.compute_thread import run_in_compute_thread
from whetstone.data.policy_limits import PolicyLimits
from whetstone.evaluation import effective_samples, summarize_episodes
from whetstone.failure_causes import StartupFailureMonitor, count_causes, find_failure_cause
from whetstone.inference import Engine, sync_weights
from whetstone.learning.protocol import Learner
from whetstone.recipe import PretrainingSettings, Recipe, ReinforcementSettings, SupervisedSettings
from whetstone.rollout import GroupPlan
from whetstone.rollout.early_stopping import estimate_early_stopping
from whetstone.seeding import derive_seed
from whetstone.tool_calls import compute_tool_metrics
from whetstone.tools.thread_runner import run_in_turn
from whetstone.training.stage import WithoutSampling
from whetstone.trajectory import Costs, EndReason, Group, Segment, Task, Trajectory

_DISTURBED_RETRIES = 2
"""Maximum number of retries of a demonstration in which a sandbox, tool or server failed."""


class Supervised(WithoutSampling):
    """Supervised fine-tuning stage (warm-up); each call of `step` makes one update.

    Created by `SingleRun`.

    Args:
        assembly: Components of the run.
        learner: Learner of the policy.
        engine: Engine that receives the weights after each update.
        settings: Settings of the stage; without `data`, an expert plays the demonstrations.
        done: Number of steps made before.
        fault: Records episodes of the expert that are lost.
    """

    def __init__(
        self,
        assembly: RunComponents,
        learner: Learner,
        engine: Engine,
        settings: SupervisedSettings,
        *,
        done: int = 0,
        fault: FaultRecorder = lambda kind, text, *, episode: None,
    ) -> None:
        super().__init__(learner, engine, StartupFailureMonitor("demonstrations", "solved its task"), done=done)
        self.assembly, self.settings, self.fault = assembly, settings, fault
        data = settings.data
        self._drawn = None if data is None else read_demonstrations(assembly, data, "supervised.data")

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next update on demonstrations and return its metrics.

        Demonstrations that did not solve their task are left out and counted, unless `supervised.solved_only` is false.

        Args:
            budget_share: Not used: the stage has no budget.

        Raises:
            NothingScoredError: If none of the first few dozen demonstrations can be trained on.
        """
        began = time.perf_counter()
        count = self.settings.batch_size
        first = self.done * count
        if self._drawn is None:
            demonstrations = await sample_demonstrations(self.assembly, first, count)
            demonstrations = replace(demonstrations, solved_only=self.settings.solved_only)
            demonstrations.record_faults(self.fault)
            if not self.done:
                report_limits(self.assembly, "supervised", demonstrations)
        else:
            demonstrations = DemonstrationBatch(tuple(self._drawn.get_episode(first + i) for i in range(count)))
        episodes = demonstrations.episodes
        trained = {trajectory.id for trajectory in demonstrations.trained_episodes}
        causes = [None if each.id in trained else find_failure_cause(each) for each in episodes]
        for cause in causes:
            self.beginning.record_result(cause)
        self.causes = count_causes(cause for cause in causes if cause is not None)
        segments = demonstrations.segments
        sampled = time.perf_counter()
        self.updating_since = sampled
        metrics = await imitate_segments(self.learner, self.engine, segments)
        self.updating_since = None
        self.done += 1
        now = time.perf_counter()
        metrics |= {"loss/supervised": metrics["loss/total"]} if "loss/total" in metrics else {}
        metrics |= {
            "demonstrations/skipped_fraction": 1 - len(demonstrations.trained_episodes) / len(episodes),
            **demonstrations.metrics,
            "time/rollout": sampled - began,
            "time/update": now - sampled,
            "throughput/tokens_per_second": sum(map(len, segments)) / (now - began),
        }
        return metrics


class Pretraining(WithoutSampling):
    """Continued pretraining stage on plain text; each call of `step` makes one update.

    Created by `SingleRun`.

    Args:
        assembly: Components of the run.
        learner: Learner of the policy.
        engine: Engine that receives the weights after each update.
        settings: Settings of the stage, with the data.
        done: Number of steps made before.
    """

    def __init__(
        self, assembly: RunComponents, learner: Learner, engine: Engine, settings: PretrainingSettings, *, done: int = 0
    ) -> None:
        super().__init__(learner, engine, StartupFailureMonitor("texts", "could be read"), done=done)
        self.settings, self._texts = settings, read_texts(assembly, settings)

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next update on windows of text and return its metrics.

        Args:
            budget_share: Not used: the stage has no budget.
        """
        began = time.perf_counter()
        count = self.settings.batch_size
        segments = [self._texts.get_segment(self.done * count + i) for i in range(count)]
        self.updating_since = began
        metrics = await imitate_segments(self.learner, self.engine, segments)
        self.updating_since = None
        self.done += 1
        now = time.perf_counter()
        metrics |= {"loss/pretraining": metrics["loss/total"]} if "loss/total" in metrics else {}
        metrics |= {
            "data/epoch": self.done * count / len(self._texts),
            "time/update": now - began,
            "throughput/tokens_per_second": sum(map(len, segments)) / (now - began),
        }
        return metrics


async def imitate_segments(learner: Learner, engine: Engine, segments: Sequence[Segment]) -> dict[str, float]:
    """Make one supervised update, sync the weights to the engine, and return the metrics.

    Args:
        learner: Learner of the policy.
        engine: Engine that receives the weights as its next version.
        segments: Segments whose action tokens are trained on.
    """
    metrics = (await run_in_compute_thread(learner.imitate, segments)).metrics
    learner.end_step()
    await sync_weights(learner.weights(), engine, engine.version + 1)
    return metrics


class FaultRecorder(Protocol):
    """Function that writes a fault to the journal of a run; see `RunStore.record_fault`."""

    def __call__(self, kind: str, text: str, /, *, episode: str) -> None:
        """Record a fault.

        Args:
            kind: Kind of the fault, such as an end reason.
            text: Cause in one line.
            episode: Id of the episode.
        """
        ...


@dataclass(frozen=True, slots=True)
class DemonstrationBatch:
    """Demonstrations of one update: episodes of an expert, or of a file."""

    episodes: tuple[Trajectory, ...] = ()
    """Episodes, including those that did not solve their task."""
    retried: int = 0
    """Number of attempts that were repeated because a server, sandbox or tool failed."""
    solved_only: bool = True
    """Whether only episodes that solved their task are trained; otherwise all that were scored."""

    @property
    def trained_episodes(self) -> list[Trajectory]:
        """Episodes to train on."""
        return [each for each in self.episodes if each.solved or (not self.solved_only and each.score is not None)]

    @property
    def segments(self) -> list[Segment]:
        """Segments of the episodes to train on."""
        return [segment for trajectory in self.trained_episodes for segment in trajectory.segments()]

    @property
    def lost(self) -> list[Trajectory]:
        """Episodes that failed in every attempt for reasons other than the expert."""
        return [trajectory for trajectory in self.episodes if not trajectory.ended.valid]

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of retried attempts and of lost episodes, as metrics."""
        return {"demonstrations/retried": float(self.retried), "demonstrations/lost": float(len(self.lost))}

    def record_faults(self, record: FaultRecorder) -> None:
        """Record a fault for each lost episode."""
        for trajectory in self.lost:
            record(str(trajectory.ended), find_failure_cause(trajectory), episode=trajectory.id)


async def sample_demonstrations(assembly: RunComponents, first: int, count: int) -> DemonstrationBatch:
    """Play the expert's episodes of `count` tasks, starting at task `first`.

    An episode in which a sandbox, tool or server failed is repeated, so that a run trains on the same demonstrations as
    an undisturbed run.

    Args:
        assembly: Components of the run, with the expert.
        first: Index of the first task.
        count: Number of tasks.
    """
    collector = assembly.build_demonstration_collector()
    seed = derive_seed(assembly.resolved.recipe.seed, "expert")
    tasks = [await run_in_turn(assembly.demonstration_source.task, first + i) for i in range(count)]
    num_repeated = 0

    async def played(task: Task) -> Trajectory:
        nonlocal num_repeated
        trajectory = await collector.sample(GroupPlan(task, seed))
        for _ in range(_DISTURBED_RETRIES):
            if not _was_disturbed(trajectory):
                break
            attempt = await collector.sample(GroupPlan(task, seed))
            num_repeated += attempt.solved or not trajectory.ended.valid
            trajectory = attempt
        return trajectory

    episodes = await asyncio.gather(*map(played, tasks))
    return DemonstrationBatch(tuple(episodes), num_repeated + collector.status().retried)


def report_limits(assembly: RunComponents, key: str, demonstrations: DemonstrationBatch) -> None:
    """Report which limits of the policy the expert's episodes exceed, of those that are trained.

    Args:
        assembly: Components of the run.
        key: Recipe key of the demonstrations, for the message.
        demonstrations: Demonstrations of the first update.
    """
    limits = PolicyLimits.of_recipe(assembly.resolved.recipe).add(demonstrations.trained_episodes)
    for problem in limits.find_problems(f"{key} (episodes of the expert)"):
        assembly.say(str(problem))


def _was_disturbed(trajectory: Trajectory) -> bool:
    """Return whether an episode failed for reasons that may not be the expert's."""
    failed = any(call.outcome in ("tool_error", "tool_failed", "timeout") for call in trajectory.calls)
    return not trajectory.solved and (not trajectory.ended.valid or trajectory.ended is EndReason.TIMEOUT or failed)


def first_task(recipe: Recipe) -> int:
    """Return the index of the first training task of reinforcement, after those of the warm-up."""
    warm_up = recipe.supervised
    return warm_up.steps * warm_up.batch_size if warm_up is not None and warm_up.data is None else 0


async def sample_imitation(
    assembly: RunComponents, settings: ReinforcementSettings, *, update: int
) -> DemonstrationBatch:
    """Play the demonstrations that an update of reinforcement imitates.

    Args:
        assembly: Components of the run.
        settings: Settings of the stage; without `imitation`, the batch is empty.
        update: Number of the update, from 0.
    """
    if settings.imitation is None:
        return DemonstrationBatch()
    count = settings.imitation.batch_size
    first = first_task(assembly.resolved.recipe) + update * count
    demonstrations = await sample_demonstrations(assembly, first, count)
    if not update:
        report_limits(assembly, "reinforcement.imitation", demonstrations)
    return demonstrations


def cost_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the mean costs per group, including discarded episodes, as metrics."""
    each = [group.costs for group in groups] or [Costs()]
    return {
        "cost_per_group/sampled_tokens": fmean(costs.sampled_tokens for costs in each),
        "cost_per_group/reused_tokens": fmean(costs.reused_tokens for costs in each),
        "cost_per_group/tool_calls": fmean(costs.tool_calls for costs in each),
        "cost_per_group/environment_steps": fmean(costs.environment_steps for costs in each),
    }


def step_cost_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the total costs of a step, including rejected groups, which budgets limit.

    Only episodes that the policy plays in this run count: in an environment (`sampled`) or in a model of one
    (`imagined`).
    """
    played = [t for group in groups for t in group.trajectories if t.provenance.is_fresh]
    return {
        "cost_per_step/episodes": float(len(played)),
        "cost_per_step/sampled_tokens": float(sum(group.costs.sampled_tokens for group in groups)),
        "cost_per_step/tool_calls": float(sum(group.costs.tool_calls for group in groups)),
    }


def staleness_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Return the mean and maximum policy lag of the groups' tokens, in updates.

    Args:
        groups: Groups of an update.
        version: Policy version of the update.

    Returns:
        Metrics; empty if no token has a version.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    versions = [v for t in trajectories for turn in t.turns for v in turn.action.versions if v >= 0]
    if not versions:
        return {}
    ages = [version - each for each in versions]
    return {"policy/staleness_mean": sum(ages) / len(ages), "policy/staleness_max": float(max(ages))}


def describe_groups(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a step's episodes: rewards, success, lengths, tools, end reasons.

    Greedy episodes are ignored.
    """
    groups = [replace(group, trajectories=tuple(t for t in group.trajectories if not t.greedy)) for group in groups]
    result = summarize_episodes(groups, temperature=1.0)
    rewards = [reward for group in groups for reward in group.rewards]
    scored = [group.rewards for group in groups if group.rewards]
    metrics = {
        "episode/invalid": float(result.invalid),
        "episode/invalid_fraction": result.invalid / max(1, result.episodes + result.invalid),
        "group/empty": float(sum(not any(t.action_tokens for t in group.trajectories) for group in groups)),
    }
    if rewards:  # otherwise no episode has a score
        metrics |= {
            "reward/mean": fmean(rewards),
            "episode/reward_min": min(rewards),
            "episode/reward_max": max(rewards),
            "episode/success": result.success,
            "episode/effective_samples": effective_samples(groups),
            "episode/turns": result.turns,
            "episode/tool_calls": result.tool_calls,
            "episode/action_tokens": result.action_tokens,
            "episode/context_resets": fmean(
                sum(turn.opens_segment for turn in t.turns[1:]) for group in groups for t in group.trajectories
            ),
            "group/zero_variance_fraction": fmean(len(set(of)) <= 1 for of in scored),
        }
    metrics |= compute_tool_metrics(result.tools)
    if result.well_formed_calls is not None:
        metrics["tools/well_formed_fraction"] = result.well_formed_calls
    metrics |= {f"success/{kind}": rate.success for kind, rate in result.kinds.items() if rate.episodes}
    metrics |= {f"end_reason/{reason}": share for reason, share in result.ended.items()}
    metrics |= {f"reward/{name}": value for name, value in result.parts.items()}
    if result.incomplete:
        metrics["reward/missing_component_fraction"] = result.incomplete / max(1, result.episodes)
    played = [t for group in groups for t in group.trajectories]
    metrics |= {f"early_stopping/{name}": value for name, value in estimate_early_stopping(played).items()}
    marks = Counter(mark.partition(":")[0] for t in played for mark in set(t.marks))
    metrics |= {f"flag/{mark}": count / len(played) for mark, count in sorted(marks.items())}
    return metrics
