"""What happens in a step of each stage?

    supervised:     ask the expert for episodes, or a file → imitate the tokens they wrote
    pretraining:    windows of text → imitate every token
    reinforcement:  groups from the stream → credit → objective → update (`reinforcement.py`)

Easy to get wrong: groups come back in the order they finish, which depends on timing. They are put back into
the order in which they were started before anything is computed, so that a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from whetstone.assembly.assembly import Assembly
from whetstone.assembly.own_data import demonstrations_of, texts_of
from whetstone.causes import Beginning, cause_of, counted_causes
from whetstone.compute_thread import run_in_compute_thread
from whetstone.evaluation import effective_samples, evaluation_of
from whetstone.inference import Engine, publish
from whetstone.learning.protocol import Learner
from whetstone.recipe import PretrainingSettings, Recipe, ReinforcementSettings, SupervisedSettings
from whetstone.rollout import Plan
from whetstone.seeding import derive_seed
from whetstone.tool_calls import tool_metrics
from whetstone.tools.threads import run_in_turn
from whetstone.training.stage import WithoutSampling
from whetstone.trajectory import Costs, EndReason, Group, Segment, Task, Trajectory

_DISTURBED_RETRIES = 2
"""How often a demonstration is played again in which a sandbox, tool or server failed."""


class Supervised(WithoutSampling):
    """The warm-up, one update of fresh demonstrations a call."""

    def __init__(
        self,
        assembly: Assembly,
        learner: Learner,
        engine: Engine,
        settings: SupervisedSettings,
        *,
        done: int = 0,
        fault: FaultRecorder = lambda kind, text, *, episode: None,
    ) -> None:
        super().__init__(learner, engine, Beginning("demonstrations", "solved its task"), done=done)
        self.assembly, self.settings, self.fault = assembly, settings, fault
        data = settings.data
        self._drawn = None if data is None else demonstrations_of(assembly, data, "supervised.data")

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """The next update, as metrics. A demonstration that does not reach the answer is left out and counted.

        Raises:
            NothingScoredError: None of the first few dozen reached it.
        """
        began = time.perf_counter()
        count = self.settings.batch_size
        first = self.done * count
        if self._drawn is None:
            demonstrations = await demonstrated(self.assembly, first, count)
            demonstrations.record_faults(self.fault)
        else:
            demonstrations = Demonstrations(tuple(self._drawn.episode(first + i) for i in range(count)))
        shown = demonstrations.episodes
        for trajectory in shown:
            self.beginning.see(None if trajectory.solved else cause_of(trajectory))
        self.causes = counted_causes(cause_of(trajectory) for trajectory in shown if not trajectory.solved)
        segments = demonstrations.segments
        sampled = time.perf_counter()
        self.updating_since = sampled
        metrics = await imitate(self.learner, self.engine, segments)
        self.updating_since = None
        self.done += 1
        now = time.perf_counter()
        metrics |= {"loss/supervised": metrics["loss/total"]} if "loss/total" in metrics else {}
        metrics |= {
            "demonstrations/skipped_fraction": 1 - fmean(trajectory.solved for trajectory in shown),
            **demonstrations.metrics,
            "time/rollout": sampled - began,
            "time/update": now - sampled,
            "throughput/tokens_per_second": sum(map(len, segments)) / (now - began),
        }
        return metrics


class Pretraining(WithoutSampling):
    """Plain text, one update of windows a call."""

    def __init__(
        self, assembly: Assembly, learner: Learner, engine: Engine, settings: PretrainingSettings, *, done: int = 0
    ) -> None:
        super().__init__(learner, engine, Beginning("texts", "could be read"), done=done)
        self.settings, self._texts = settings, texts_of(assembly, settings)

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """The next update, as metrics."""
        began = time.perf_counter()
        count = self.settings.batch_size
        segments = [self._texts.segment(self.done * count + i) for i in range(count)]
        self.updating_since = began
        metrics = await imitate(self.learner, self.engine, segments)
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


async def imitate(learner: Learner, engine: Engine, segments: Sequence[Segment]) -> dict[str, float]:
    """One update on these, and its weights to the engine; what it came to."""
    metrics = (await run_in_compute_thread(learner.imitate, segments)).metrics
    learner.end_step()
    await publish(learner.weights(), engine, engine.version + 1)
    return metrics


class FaultRecorder(Protocol):
    """Writes a fault to the journal of a run; see `RunStore.fault`."""

    def __call__(self, kind: str, text: str, /, *, episode: str) -> None:
        """Record it."""
        ...


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Episodes of an expert, or of a file."""

    episodes: tuple[Trajectory, ...] = ()
    retried: int = 0
    """Attempts that were played again because a server, sandbox or tool failed."""

    @property
    def segments(self) -> list[Segment]:
        """Segments to imitate: those of the episodes that solved their tasks."""
        return [segment for trajectory in self.episodes if trajectory.solved for segment in trajectory.segments()]

    @property
    def lost(self) -> list[Trajectory]:
        """Episodes that failed in every attempt, and not because of the expert."""
        return [trajectory for trajectory in self.episodes if not trajectory.ended.valid]

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of attempts and episodes that failures took."""
        return {"demonstrations/retried": float(self.retried), "demonstrations/lost": float(len(self.lost))}

    def record_faults(self, record: FaultRecorder) -> None:
        """Record the episodes that are lost."""
        for trajectory in self.lost:
            record(str(trajectory.ended), cause_of(trajectory), episode=trajectory.id)


async def demonstrated(assembly: Assembly, first: int, count: int) -> Demonstrations:
    """Play the expert's episodes of `count` tasks, starting at `first`.

    An episode in which a sandbox, tool or server failed is played again, so that a run learns from the same
    demonstrations as one that nothing disturbed.
    """
    collector = assembly.collector(assembly.expert_actor())
    seed = derive_seed(assembly.resolved.recipe.seed, "expert")
    tasks = [await run_in_turn(assembly.demonstrated.task, first + i) for i in range(count)]
    num_repeated = 0

    async def played(task: Task) -> Trajectory:
        nonlocal num_repeated
        trajectory = await collector.sample(Plan(task, seed))
        for _ in range(_DISTURBED_RETRIES):
            if not _was_disturbed(trajectory):
                break
            attempt = await collector.sample(Plan(task, seed))
            num_repeated += attempt.solved or not trajectory.ended.valid
            trajectory = attempt
        return trajectory

    episodes = await asyncio.gather(*map(played, tasks))
    return Demonstrations(tuple(episodes), num_repeated + collector.status().retried)


def _was_disturbed(trajectory: Trajectory) -> bool:
    """Whether something other than the expert can have kept an episode from its end."""
    failed = any(call.outcome in ("tool_error", "tool_failed", "timeout") for call in trajectory.calls)
    return not trajectory.solved and (not trajectory.ended.valid or trajectory.ended is EndReason.TIMEOUT or failed)


def first_task(recipe: Recipe) -> int:
    """The index of reinforcement's first training task, behind those the warm-up had."""
    warm_up = recipe.supervised
    return warm_up.steps * warm_up.batch_size if warm_up is not None and warm_up.data is None else 0


async def imitated(assembly: Assembly, settings: ReinforcementSettings, *, update: int) -> Demonstrations:
    """Play the demonstrations imitated in an update of reinforcement; none if the recipe asks for none."""
    if settings.imitation is None:
        return Demonstrations()
    count = settings.imitation.batch_size
    return await demonstrated(assembly, first_task(assembly.resolved.recipe) + update * count, count)


def costs_of(groups: Sequence[Group]) -> dict[str, float]:
    """What was spent on a group in the mean, whatever became of it."""
    each = [group.costs for group in groups] or [Costs()]
    return {
        "cost_per_group/sampled_tokens": fmean(costs.sampled_tokens for costs in each),
        "cost_per_group/reused_tokens": fmean(costs.reused_tokens for costs in each),
        "cost_per_group/tool_calls": fmean(costs.tool_calls for costs in each),
        "cost_per_group/environment_steps": fmean(costs.environment_steps for costs in each),
    }


def spent_on(groups: Sequence[Group]) -> dict[str, float]:
    """Sum the costs of all groups of a step, including those that did not count; budgets limit their sum.

    Only episodes that the policy plays in this run count, in an environment (`sampled`) or with a model of one
    (`imagined`).
    """
    played = [t for group in groups for t in group.trajectories if t.provenance.is_fresh]
    return {
        "cost_per_step/episodes": float(len(played)),
        "cost_per_step/sampled_tokens": float(sum(group.costs.sampled_tokens for group in groups)),
        "cost_per_step/tool_calls": float(sum(group.costs.tool_calls for group in groups)),
    }


def describe_groups(groups: Sequence[Group]) -> dict[str, float]:
    """What the episodes of a step came to, as metrics; greedy ones are not of the policy as it is sampled."""
    groups = [replace(group, trajectories=tuple(t for t in group.trajectories if not t.greedy)) for group in groups]
    came_to = evaluation_of(groups, temperature=1.0)
    rewards = [reward for group in groups for reward in group.rewards]
    scored = [group.rewards for group in groups if group.rewards]
    metrics = {
        "episode/invalid": float(came_to.invalid),
        "episode/invalid_fraction": came_to.invalid / max(1, came_to.episodes + came_to.invalid),
        "group/empty": float(sum(not any(t.action_tokens for t in group.trajectories) for group in groups)),
    }
    if rewards:  # else nothing is known of any of it
        metrics |= {
            "reward/mean": fmean(rewards),
            "episode/reward_min": min(rewards),
            "episode/reward_max": max(rewards),
            "episode/success": came_to.success,
            "episode/effective_samples": effective_samples(groups),
            "episode/turns": came_to.turns,
            "episode/tool_calls": came_to.tool_calls,
            "episode/action_tokens": came_to.action_tokens,
            "episode/context_resets": fmean(
                sum(turn.opens_segment for turn in t.turns[1:]) for group in groups for t in group.trajectories
            ),
            "group/zero_variance_fraction": fmean(len(set(of)) <= 1 for of in scored),
        }
    metrics |= tool_metrics(came_to.tools)
    if came_to.well_formed_calls is not None:
        metrics["tools/well_formed_fraction"] = came_to.well_formed_calls
    metrics |= {f"success/{kind}": rate.success for kind, rate in came_to.kinds.items() if rate.episodes}
    metrics |= {f"end_reason/{reason}": share for reason, share in came_to.ended.items()}
    metrics |= {f"reward/{name}": value for name, value in came_to.parts.items()}
    if came_to.incomplete:
        metrics["reward/missing_component_fraction"] = came_to.incomplete / max(1, came_to.episodes)
    played = [t for group in groups for t in group.trajectories]
    marks = Counter(mark for t in played for mark in set(t.marks))
    metrics |= {f"flag/{mark}": count / len(played) for mark, count in sorted(marks.items())}
    return metrics
