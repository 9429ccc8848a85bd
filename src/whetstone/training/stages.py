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
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, reference_kl, supervised
from whetstone.arithmetic_thread import in_arithmetic_thread
from whetstone.evaluation import Evaluation, evaluation_of
from whetstone.inference import Engine
from whetstone.recipe import SupervisedSettings, TrainingSettings
from whetstone.rollout import Collector, Independent
from whetstone.seeding import derive_seed
from whetstone.training.assembly import Assembly
from whetstone.training.learner import Learner, LossOf, action_tokens
from whetstone.training.packing import MicroBatch
from whetstone.training.token_outputs import TokenOutputs
from whetstone.trajectory import Group, Segment, Task, Trajectory


async def supervised_step(
    assembly: Assembly, learner: Learner, settings: SupervisedSettings, *, step: int
) -> tuple[dict[str, float], list[Trajectory]]:
    """Step number `step`, from 0: fresh demonstrations, one update. (metrics, demonstrations)

    A demonstration that does not reach the answer is left out and counted.
    """
    began = time.perf_counter()
    collector = assembly.collector(assembly.expert_actor(), seed=derive_seed(assembly.resolved.recipe.seed, "expert"))
    first = step * settings.batch_size
    tasks = [assembly.demonstrated.task(first + i) for i in range(settings.batch_size)]
    shown = await asyncio.gather(*(collector.sample(task, index=0) for task in tasks))
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
    return metrics, list(shown)


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
    sampled = time.perf_counter()
    metrics = describe_groups(groups)
    metrics |= await in_arithmetic_thread(_learn, assembly, learner, groups, settings)
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


def credited(assembly: Assembly, groups: Sequence[Group]) -> list[list[Segment]]:
    """The segments of each group with their advantages; trajectories removed from training have none."""
    counted = [(g, trajectory) for g, group in enumerate(groups) for trajectory in group.counted]
    rewards = torch.tensor([t.score.value if t.score else 0.0 for _, t in counted], dtype=torch.float64)
    advantages: Tensor = assembly.advantage(rewards, torch.tensor([g for g, _ in counted]))
    segments: list[list[Segment]] = [[] for _ in groups]
    for (g, trajectory), advantage in zip(counted, advantages.tolist(), strict=True):
        if trajectory.removal is None:
            segments[g] += [_with_credit(segment, advantage) for segment in trajectory.segments()]
    return segments


def _with_credit(segment: Segment, advantage: float) -> Segment:
    return replace(segment, advantages=tuple(advantage if trained else 0.0 for trained in segment.action_mask))


def _learn(
    assembly: Assembly, learner: Learner, groups: Sequence[Group], settings: TrainingSettings
) -> dict[str, float]:
    """One update per minibatch and epoch, each with its share of the groups."""
    temperature = assembly.resolved.recipe.rollout.temperature
    by_group = credited(assembly, groups)
    shares = [by_group[i :: settings.minibatches] for i in range(settings.minibatches)]
    minibatches = [[segment for group in share for segment in group] for share in shares]
    divisors = [sum(map(action_tokens, batch)) for batch in minibatches]
    holds_on = settings.reference_kl > 0
    if not holds_on:
        # a segment without credit has loss and gradient exactly 0: it counts in the divisor and is not computed
        minibatches = [[segment for segment in batch if any(segment.advantages or ())] for batch in minibatches]
    old: list[list[Tensor] | None] = [
        # in the first update the old policy is the one being differentiated: its log-probs come from the same pass
        learner.logprobs(batch, temperature=temperature) if i > 0 else None
        for i, batch in enumerate(minibatches)
    ]
    anchors = [
        learner.logprobs(batch, temperature=temperature, reference=True) if holds_on else None for batch in minibatches
    ]
    totals: dict[str, list[float]] = {}
    for _ in range(settings.epochs):
        for i, (batch, divisor, anchor) in enumerate(zip(minibatches, divisors, anchors, strict=True)):
            first, before = old[i] is None, old[i] or [torch.empty(0)] * len(batch)
            old[i] = before
            loss_of = _policy_loss(assembly, settings, before, anchor, first=first)
            for name, value in learner.update(batch, loss_of, temperature=temperature, divisor=divisor).items():
                totals.setdefault(name, []).append(value)
    metrics = {name: fmean(values) for name, values in totals.items() if not name.startswith("sampler/")}
    # after the first update the learner is no longer the policy that sampled, so only its first pass can tell
    return metrics | {name: values[0] for name, values in totals.items() if name.startswith("sampler/")}


def _policy_loss(
    assembly: Assembly,
    settings: TrainingSettings,
    old: list[Tensor],
    reference: list[Tensor] | None,
    *,
    first: bool = False,
) -> LossOf:
    """The recipe's objective, and the pull towards the reference where there is one.

    Args:
        old: [A] log-probs of each segment before this step's updates.
        reference: [A] log-probs of each segment under the reference.
        first: Nothing was updated since: `old` is what the pass itself finds, and is written here.
    """

    def loss_of(outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        if first:
            parts = torch.split(outputs.logprobs.detach(), list(micro.counts))
            for i, part in zip(micro.indices, parts, strict=True):
                old[i] = part
        before = torch.cat([old[i] for i in micro.indices])
        loss: TokenLoss = assembly.objective(outputs.logprobs, before, micro.advantages)
        if reference is None:
            return loss
        pull = reference_kl(outputs.logprobs, torch.cat([reference[i] for i in micro.indices]))
        return TokenLoss(loss.loss + settings.reference_kl * pull.loss, {**loss.metrics, **pull.metrics})

    return loss_of


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
        "group/zero_variance_fraction": fmean(len(set(group.rewards)) <= 1 for group in groups),
    }
    if came_to.well_formed_calls is not None:
        metrics["tools/well_formed_fraction"] = came_to.well_formed_calls
    metrics |= {f"success/{kind}": rate.success for kind, rate in came_to.kinds.items() if rate.episodes}
    metrics |= {f"ended/{reason}": share for reason, share in came_to.ended.items()}
    metrics |= {f"reward/{name}": value for name, value in came_to.parts.items()}
    return metrics
