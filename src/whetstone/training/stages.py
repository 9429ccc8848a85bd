"""What happens in a step of each stage?

    supervised:     ask the expert for episodes → imitate the tokens it wrote
    reinforcement:  sample groups → credit → objective → update

Easy to get wrong: groups come back in the order they finish, which depends on timing. They are put back into
the order of their tasks before anything is computed, so that a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from whetstone.algorithms import supervised
from whetstone.arithmetic_thread import in_arithmetic_thread
from whetstone.evaluation import Evaluation, evaluation_of
from whetstone.inference import Engine
from whetstone.recipe import SupervisedSettings, TrainingSettings
from whetstone.rollout import Collector, Independent
from whetstone.seeding import derive_seed
from whetstone.training.assembly import Assembly
from whetstone.training.credit import Credited, credited, credited_by_critic
from whetstone.training.learner import Learner, action_tokens
from whetstone.training.losses import UpdateLoss
from whetstone.trajectory import Author, Group, Segment, Task, Trajectory


async def supervised_step(
    assembly: Assembly, learner: Learner, settings: SupervisedSettings, *, step: int
) -> tuple[dict[str, float], list[Trajectory]]:
    """Step number `step`, from 0: fresh demonstrations, one update. (metrics, demonstrations)

    A demonstration that does not reach the answer is left out and counted.
    """
    began = time.perf_counter()
    shown = await _demonstrated(assembly, step * settings.batch_size, settings.batch_size)
    segments = [segment for trajectory in shown if trajectory.solved for segment in trajectory.segments()]
    sampled = time.perf_counter()
    metrics = await in_arithmetic_thread(learner.update, segments, lambda outputs, _: supervised(outputs.logprobs))
    learner.optimizers.advance()
    now = time.perf_counter()
    metrics["loss/supervised"] = metrics.get("loss", float("nan"))
    metrics |= {
        "demonstrations/left_out": 1 - fmean(trajectory.solved for trajectory in shown),
        "time/rollout": sampled - began,
        "time/update": now - sampled,
        "throughput/tokens_per_second": sum(map(len, segments)) / (now - began),
    }
    return metrics, shown


async def _demonstrated(assembly: Assembly, first: int, count: int) -> list[Trajectory]:
    """The expert's episodes of so many tasks from `first` on."""
    collector = assembly.collector(assembly.expert_actor(), seed=derive_seed(assembly.resolved.recipe.seed, "expert"))
    tasks = [assembly.demonstrated.task(first + i) for i in range(count)]
    return list(await asyncio.gather(*(collector.sample(task, index=0) for task in tasks)))


async def reinforcement_step(
    assembly: Assembly,
    learner: Learner,
    engine: Engine,
    settings: TrainingSettings,
    *,
    step: int,
    first_task: int,
    watched: Callable[[Collector], None] = lambda collector: None,
) -> tuple[dict[str, float], list[Group]]:
    """Step number `step`, from 0: sample, give credit, update. (metrics, groups)

    Args:
        first_task: The index of the first training task of the whole stage.
        watched: Told of the collector before it begins, for whoever shows its status.
    """
    recipe = assembly.resolved.recipe
    began = time.perf_counter()
    actor = assembly.policy_actor(engine, temperature=recipe.rollout.temperature)
    collector = assembly.collector(actor, seed=derive_seed(recipe.seed, "rollout", step), name=f"step-{step + 1}/")
    watched(collector)
    first = first_task + step * settings.tasks_per_step
    tasks = [assembly.source.task(first + i) for i in range(settings.tasks_per_step)]
    groups = _in_order([group async for group in collector.groups(tasks, assembly.strategy)], tasks)
    shown: list[Segment] = []
    if settings.imitation is not None:
        count = settings.imitation.batch_size
        trajectories = await _demonstrated(assembly, first_task + step * count, count)
        shown = [segment for trajectory in trajectories if trajectory.solved for segment in trajectory.segments()]
    sampled = time.perf_counter()
    metrics = describe_groups(groups)
    metrics |= await in_arithmetic_thread(_learn, assembly, learner, groups, shown, settings)
    learner.optimizers.advance()
    weights = dict(learner.policy.model.named_parameters())
    await engine.load_weights(weights, engine.version + 1)
    now = time.perf_counter()
    tokens = sum(trajectory.action_tokens for group in groups for trajectory in group.trajectories)
    metrics |= {
        "time/rollout": sampled - began,
        "time/update": now - sampled,
        "episode/retried": float(collector.status().retried),
        "throughput/tokens_per_second": tokens / (now - began),
        "throughput/episodes_per_second": sum(len(group.trajectories) for group in groups) / (now - began),
    }
    return metrics, groups


async def evaluate(
    assembly: Assembly,
    engine: Engine,
    *,
    episodes: int,
    samples: int,
    temperature: float,
    seed: int,
    heard: Callable[[Group], None] = lambda group: None,
    watched: Callable[[Collector], None] = lambda collector: None,
) -> tuple[Evaluation, list[Group]]:
    """Success on held-out tasks, in the order of the source. (evaluation, groups)

    Args:
        heard: Called with each group as it finishes.
        watched: Told of the collector before it begins, for whoever shows its status.
    """
    collector = assembly.collector(
        assembly.policy_actor(engine, temperature=temperature), seed=derive_seed(seed, "evaluation")
    )
    watched(collector)
    tasks = assembly.source.held_out(episodes)
    groups = []
    async for group in collector.groups(tasks, Independent(group_size=samples)):
        heard(group)
        groups.append(group)
    groups = _in_order(groups, tasks)
    return evaluation_of(groups, temperature=temperature), groups


def _in_order(groups: Sequence[Group], tasks: Sequence[Task]) -> list[Group]:
    """As their tasks stand; where one stands twice, as its trajectories are named."""
    order = {task.id: i for i, task in enumerate(tasks)}
    return sorted(groups, key=lambda group: (order[group.task.id], [t.id for t in group.trajectories[:1]]))


def _learn(
    assembly: Assembly,
    learner: Learner,
    groups: Sequence[Group],
    shown: Sequence[Segment],
    settings: TrainingSettings,
) -> dict[str, float]:
    """One update per minibatch and epoch, each with its share of the groups.

    Args:
        shown: Demonstrations to imitate in the same updates.
    """
    recipe = assembly.resolved.recipe
    temperature, critic = recipe.rollout.temperature, recipe.critic
    if critic is None:
        by_group = credited(assembly, groups)
    else:
        by_group = credited_by_critic(learner, groups, critic, temperature=temperature)
    shares = [
        [each for group in by_group[i :: settings.minibatches] for each in group] for i in range(settings.minibatches)
    ]
    divisors = [sum(action_tokens(each.segment) for each in share) for share in shares]
    if settings.reference_kl == 0 and critic is None:
        # a segment without credit has loss and gradient exactly 0: it counts in the divisor and is not computed
        shares = [[each for each in share if any(each.segment.advantages or ())] for share in shares]
    batches = [_Batch.of(share, shown[i :: settings.minibatches]) for i, share in enumerate(shares)]
    for i, (batch, divisor) in enumerate(zip(batches, divisors, strict=True)):
        batch.divisor = divisor or sum(map(action_tokens, batch.segments))
        if i > 0:  # the first update's old policy is the one being differentiated: the pass itself finds its log-probs
            batch.old = learner.logprobs(batch.segments, temperature=temperature)
        if settings.reference_kl > 0:
            batch.reference = learner.logprobs(batch.segments, temperature=temperature, reference=True)
    totals: dict[str, list[float]] = {}
    for epoch in range(settings.epochs):
        for i, batch in enumerate(batches):
            loss = UpdateLoss(
                assembly.objective,
                batch.old,
                first=epoch == i == 0,
                reference=batch.reference,
                reference_weight=settings.reference_kl,
                targets=batch.targets,
                value_weight=critic.weight * batch.per(batch.predictions) if critic is not None else 0.0,
                imitation_weight=settings.imitation.weight * batch.per(batch.imitated) if settings.imitation else 0.0,
            )
            update = learner.update(batch.segments, loss, temperature=temperature, divisor=batch.divisor)
            for name, value in update.items():
                totals.setdefault(name, []).append(value)
    metrics = {name: fmean(values) for name, values in totals.items() if not name.startswith("sampler/")}
    # after the first update the learner is no longer the policy that sampled, so only its first pass can tell
    return metrics | {name: values[0] for name, values in totals.items() if name.startswith("sampler/")}


@dataclass(slots=True)
class _Batch:
    """What one update learns from; lists are per segment."""

    segments: list[Segment]
    targets: list[Tensor] | None
    old: list[Tensor]
    reference: list[Tensor] | None = None
    divisor: int = 1
    """Tokens the loss is divided by."""

    @classmethod
    def of(cls, share: Sequence[Credited], shown: Sequence[Segment]) -> _Batch:
        """The policy's own segments, then demonstrations."""
        segments = [*(each.segment for each in share), *shown]
        targets = [each.target for each in share if each.target is not None]
        nothing = [torch.full((action_tokens(segment),), torch.nan) for segment in shown]
        return cls(segments, [*targets, *nothing] if targets else None, [torch.empty(0)] * len(segments))

    @property
    def predictions(self) -> int:
        """How many values the critic is to foretell."""
        return sum(int((~target.isnan()).sum()) for target in self.targets or ())

    @property
    def imitated(self) -> int:
        """How many tokens an expert wrote."""
        return sum(author is Author.EXPERT for segment in self.segments for author in segment.tokens.authors)

    def per(self, count: int) -> float:
        """What turns a sum over the divisor into a mean over `count`."""
        return self.divisor / max(1, count)


def describe_groups(groups: Sequence[Group]) -> dict[str, float]:
    """What the episodes of a step came to, as metrics."""
    came_to = evaluation_of(groups, temperature=1.0)
    rewards = [reward for group in groups for reward in group.rewards]
    metrics = {
        "reward/mean": fmean(rewards) if rewards else float("nan"),
        "episode/success": came_to.success,
        "episode/turns": came_to.turns,
        "episode/tool_calls": came_to.tool_calls,
        "episode/action_tokens": came_to.action_tokens,
        "episode/invalid": float(came_to.invalid),
        "group/without_tokens": float(sum(not any(t.action_tokens for t in group.trajectories) for group in groups)),
        "group/zero_variance_fraction": fmean(len(set(group.rewards)) <= 1 for group in groups),
    }
    if came_to.well_formed_calls is not None:
        metrics["tools/well_formed_fraction"] = came_to.well_formed_calls
    metrics |= {f"success/{kind}": rate.success for kind, rate in came_to.kinds.items() if rate.episodes}
    metrics |= {f"ended/{reason}": share for reason, share in came_to.ended.items()}
    metrics |= {f"reward/{name}": value for name, value in came_to.parts.items()}
    return metrics
