"""Explains the credit of a trajectory, turn or token, from its reward to its weight in the loss (`whetstone why`).

    reward terms → return → baseline → advantage → transforms → ratio → clipping → push

Everything up to the advantage is read from the record. Ratio, clipping and push need the weights before that update:
those of the nearest preceding checkpoint, after replaying the updates in between.

Note: The push is the derivative of the update's loss by the token's log-prob, including all weights and divisors. Below
0 the update makes the token more probable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, annotated_level, annotated_removal_scope, column_names
from whetstone.analysis.replay_check import RunReplay, UpdateReplayer, refuse_damage
from whetstone.assembly.assembly import RunComponents
from whetstone.errors import RunDirectoryError, did_you_mean
from whetstone.failure_causes import count_causes, find_failure_cause
from whetstone.learning.columns import Columns, collect_columns, is_readable_from_record
from whetstone.learning.credit_assignment import LEVELS, SHAPED_COLUMNS, assign_credit
from whetstone.learning.learner import batch_columns
from whetstone.learning.member_learner import filter_member_groups
from whetstone.learning.model_trainer import get_action_positions
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_index import index_groups, observed_fraction
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.record.reader import RunRecord
from whetstone.tool_calls import compute_tool_statistics
from whetstone.training.train_step import training_groups
from whetstone.trajectory import Group, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """One step in the explanation of a trajectory, from its reward to its advantage."""

    what: str
    """Name of the quantity: `outcome`, `return`, `advantage`, …"""
    value: Any
    """Value of the quantity: a number, or one number per turn."""
    said: str = ""
    """Origin of the value."""


@dataclass(slots=True)
class TokenExplanation:
    """One sampled token of a trajectory, with its part in the update."""

    place: tuple[int, int]
    """(segment index, position in the segment)."""
    turn: int
    """Index of the turn, from 0."""
    text: str
    """Text of the token."""
    sampler_logprob: float
    """Log-prob of the token when it was sampled."""
    version: int
    """Version of the weights that sampled the token."""
    advantage: float
    """Advantage of the token."""
    passes: list[dict[str, float]] = field(default_factory=list)
    """Per forward pass of the update: `ratio`, `clip_fraction`, `weight`, `push` and further objective metrics."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of the credit of one trajectory."""

    id: str
    """Id of the trajectory."""
    task: str
    """Id of its task."""
    update: int
    """Number of the update that used it, from 1."""
    chain: tuple[ExplanationStep, ...]
    """Steps from the reward to the advantage."""
    tokens: tuple[TokenExplanation, ...]
    """Sampled tokens of the trajectory."""
    from_weights: str
    """Description of the weights that ratios and pushes are computed with; empty if there are none."""


class Explainer:
    """Explains the rewards, advantages and token weights of a run (`whetstone why`).

    Args:
        run_dir: Run directory of a run with reinforcement.
        say: Function that reports progress.
    """

    def __init__(self, run_dir: Path, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.run_dir, self.say = run_dir, say

    @cached_property
    def record(self) -> RunRecord:
        """Open the journal of the run, without running code that its recipe names."""
        return RunRecord(self.run_dir, forgotten=refuse_damage)

    @cached_property
    def replay(self) -> RunReplay:
        """Assemble the components of the run's recipe, to recompute credit and updates."""
        return RunReplay(self.run_dir)

    def causes(self) -> dict[str, int]:
        """Count the episodes without a score by cause."""
        return count_causes(self.record.causes)

    def list_trajectories(self, update: int) -> list[tuple[str, float | None, str]]:
        """List the trajectories of an update as (id, reward or None, reason why there is no reward).

        Args:
            update: Number of the update, from 1.

        Raises:
            RunDirectoryError: If the update does not exist.
        """
        return [
            (trajectory.id, None, find_failure_cause(trajectory))
            if trajectory.score is None
            else (trajectory.id, trajectory.score.value, "")
            for number in self._numbers(update - 1)
            for group in (self.record.load(number, Task("", "")),)
            for trajectory in group.trajectories
        ]

    async def explain_trajectory(self, id: str, *, weights: bool = True) -> Explanation:
        """Explain the credit of a trajectory, from its reward to the weight of each token in the loss.

        Args:
            id: Id of the trajectory, such as `group-3/TASK#0`.
            weights: Whether to replay updates for values that depend on the weights.

        Raises:
            RunDirectoryError: If the trajectory does not exist, or no update used it.
        """
        update = self._update_of(id)
        groups = self._groups(update)
        assembly, _ = self.replay.assemblies_at(update)
        reads = {name for _, function in assembly.credit.list_functions() for name in column_names(function)}
        replayer: UpdateReplayer | None = None
        of_models = not is_readable_from_record(reads, collect_columns(assembly.columns))
        if weights or assembly.method.replay or assembly.method.trajectory_filters or of_models:
            replayer = await self._before(update)
        assembly = replayer.assembly if replayer else assembly
        settings = assembly.resolved.recipe.reinforcement
        assert settings is not None  # there are updates
        mixed = await self.replay.mixed_groups(assembly.method, settings, update)
        learned = training_groups(assembly.method, groups, mixed, seed=assembly.resolved.recipe.seed, update=update)
        known = {t.id: t for group in (*groups, *learned) for t in group.trajectories}
        if id not in known:
            raise RunDirectoryError(f"{self.run_dir}: no trajectory {id}{did_you_mean(id, known)}")
        learner = replayer.local_learner(known[id].member) if replayer else None
        spec, trainer = (learner.spec, learner.trainer) if learner else (assembly.learning_spec(settings), None)
        columns = partial(batch_columns, spec, trainer)
        if assembly.resolved.recipe.policies:  # each member has its own update
            names = (known[id].member, "") if known[id].member == assembly.member else (known[id].member,)
            learned = filter_member_groups(learned, names)
        chain, tokens = _credit_of(assembly, learned, known[id], columns)
        origin = ""
        if replayer is not None and trainer is not None and weights and tokens:
            watching = _Watching(id)
            trainer.watch = watching
            await replayer.step()
            watching.assign_values(tokens)
            origin = f"update {update + 1}, from the weights before it"
        return Explanation(id, known[id].task_id, update + 1, tuple(chain), tuple(tokens), origin)

    def _groups(self, update: int) -> list[Group]:
        return [self.replay.load_group(number) for number in self._numbers(update)]

    def _numbers(self, update: int) -> list[int]:
        consumed = self.record.consumed
        if update not in consumed:
            last = max(consumed, default=-1) + 1
            raise RunDirectoryError(f"{self.run_dir}: no update {update + 1} on record; recorded updates: 1 to {last}")
        return consumed[update]

    def _update_of(self, id: str) -> int:
        """Return the index of the update that trained on the group named in a trajectory id."""
        number = id.partition("/")[0].removeprefix("group-")
        source, *places = number.rsplit("-", 2)
        if source in self.replay.before.method.sources and len(places) == 2 and places[0].isdecimal():
            return int(places[0])
        for update, numbers in self.record.consumed.items():
            if number in map(str, numbers):
                return update
        raise RunDirectoryError(
            f"{self.run_dir}: no update used {id}; an id has the form group-3/TASK#0, see `whetstone why RUN --step N`"
        )

    async def _before(self, update: int) -> UpdateReplayer:
        replayer = await self.replay.from_checkpoint(before=update)
        if replayer.done < update:
            self.say(f"replaying updates {replayer.done + 1} to {update}")
        while replayer.done < update:
            await replayer.step()
        return replayer


def _credit_of(
    assembly: RunComponents, groups: Sequence[Group], trajectory: Trajectory, columns_of_batch: Callable[..., Columns]
) -> tuple[list[ExplanationStep], list[TokenExplanation]]:
    """Recompute the credit of a trajectory: (steps from reward to advantage, tokens with their advantages)."""
    settings = assembly.resolved.recipe.reinforcement
    observations = settings is not None and settings.train_on_observations
    indexed = index_groups(groups, observations=observations)
    credit = assign_credit(assembly.credit, indexed, len(groups), columns_of_batch)
    stored = next((t for group in groups for t in group.trajectories if t.id == trajectory.id), None)
    score = trajectory.score
    error = f"; {trajectory.error}" if trajectory.error else ""
    chain = [ExplanationStep("ended", str(trajectory.ended), f"{len(trajectory.turns)} turns{error}")]
    for name, tool in compute_tool_statistics(trajectory.calls).items():
        if tool.error:
            chain.append(ExplanationStep(f"tool: {name}", f"{tool.failed} of {tool.calls} calls failed", tool.error))
    if score is not None:
        chain += [ExplanationStep(f"reward: {name}", value) for name, value in score.parts.items()]
        chain.append(ExplanationStep("outcome", score.value, f'by reward "{assembly.resolved.recipe.reward.name}"'))
        if score.turns is not None:
            chain.append(ExplanationStep("process rewards", list(score.turns), "one per turn"))
    chain.append(ExplanationStep("provenance", str(trajectory.provenance)))
    if trajectory.marks:
        chain.append(ExplanationStep("marks", ", ".join(trajectory.marks)))
    place = next(
        (i for i, indexed in enumerate(credit.columns.trajectories) if indexed.trajectory.id == trajectory.id), None
    )
    if place is None:
        removal = stored.removal if stored is not None else "replaced by a stored one"
        why = str(removal) if removal is not None else "a filter before the baseline"
        return [*chain, ExplanationStep("advantage", None, f"excluded from all statistics and the loss: {why}")], []
    columns, row = credit.columns, _Row(credit.columns, place)
    for level in LEVELS:
        for part, shape in zip(assembly.resolved.recipe.reward_shaping, assembly.credit.shaping, strict=True):
            if annotated_level(shape) == level:
                name = SHAPED_COLUMNS[level]
                chain.append(ExplanationStep(f"shaped {name}", row.of(columns[name], level), f"by {part.name}"))
    chain.append(ExplanationStep("return", row.of(columns["rewards"], "trajectory"), "outcome plus process rewards"))
    group_rows = [
        i for i, indexed in enumerate(columns.trajectories) if indexed.number == columns.trajectories[place].number
    ]
    rewards = columns["rewards"][group_rows]
    spread = f", deviation {rewards.std().item():.6g}" if len(group_rows) > 1 else ""
    chain.append(ExplanationStep("baseline", rewards.mean().item(), f"mean of {_listed(rewards)} of its task{spread}"))
    estimator = assembly.credit.advantage
    reads = [name for name in column_names(estimator) if name not in _INDICES]
    chain += [
        ExplanationStep(f"reads {name}", row.of(columns[name], annotated_level(estimator, name)))
        for name in reads
        if name not in ("rewards", "outcomes")
    ]
    level = annotated_level(estimator)
    name = assembly.resolved.recipe.advantage.name
    read = "advantages" in column_names(assembly.objective)
    unread = "" if read else f'; objective "{assembly.resolved.recipe.objective.name}" does not read it'
    chain.append(
        ExplanationStep("advantage", row.of(credit.estimate.advantages, level), f"by {name}, one per {level}{unread}")
    )
    chain += [
        ExplanationStep(f"critic's target: {head}", row.of(target, annotated_level(estimator, head)))
        for head, target in credit.estimate.targets.items()
    ]
    for part, (advantages, level) in zip(assembly.resolved.recipe.advantage_transforms, credit.modulated, strict=True):
        chain.append(ExplanationStep("modulated", row.of(advantages, level), f"by {part.name}, one per {level}"))
    for filter_name, each in (assembly.credit.filters or {}).items():
        if annotated_removal_scope(each) != "before_baseline":
            counts = columns.call(each)[place].item()
            chain.append(
                ExplanationStep(
                    f"filter {filter_name}", counts, f"weight in the loss ({annotated_removal_scope(each).value})"
                )
            )
    chain.append(ExplanationStep("counts in the loss", credit.loss_weights[place].item(), "0: not trained on"))
    if observations:
        share = observed_fraction([columns.trajectories[place]])
        message = "of the tokens below are tool output and trained nevertheless (train_on_observations)"
        chain.append(ExplanationStep("TRAINED UNMASKED", share, message))
    return chain, _tokens_of(assembly, row, credit.advantages)


_INDICES = frozenset({"group", "trajectory", "turn", "token_trajectory", "turn_index"})


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of one trajectory in the columns of a batch."""

    columns: Columns
    place: int

    def of(self, numbers: Tensor, level: str) -> Any:
        """Return the trajectory's value in a column, or its values per turn or per token.

        Runs of equal values of tokens are merged.
        """
        if level == "trajectory":
            return numbers[self.place].item()
        owner = self.columns["trajectory" if level == "turn" else "token_trajectory"]
        values: list[float] = numbers[owner == self.place].tolist()
        if level == "turn" or len(values) <= 1:
            return values
        return [value for k, value in enumerate(values) if k == 0 or value != values[k - 1]]


def _tokens_of(assembly: RunComponents, row: _Row, advantages: Tensor) -> list[TokenExplanation]:
    row_tokens = row.columns.trajectories[row.place]
    own_advantages = advantages[row.columns["token_trajectory"] == row.place].tolist()
    explanations = []
    for k, place, advantage in zip(row_tokens.segment.tolist(), row_tokens.place.tolist(), own_advantages, strict=True):
        segment = row_tokens.segments[k]
        tokens = segment.tokens
        text = assembly.policy.tokenizer.decode([tokens.ids[place]])
        explanations.append(
            TokenExplanation(
                (segment.index, place),
                segment.turns[place],
                text,
                tokens.logprobs[place],
                tokens.versions[place],
                advantage,
            )
        )
    return explanations


class _Watching:
    """Observer of an update that records its metrics for the tokens of one trajectory."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.seen: list[dict[tuple[int, int], dict[str, float]]] = []
        """Metrics of each forward pass by (segment, position)."""

    def __call__(
        self, segments: Sequence[Segment], outputs: TokenOutputs, micro: MicroBatch, per_token: TokenLoss
    ) -> None:
        begin = 0
        for i, count in zip(micro.indices, micro.counts, strict=True):
            own = slice(begin, begin + count)
            begin += count
            segment = segments[i]
            if segment.trajectory_id != self.id or not count:
                continue
            keys = [(segment.index, place) for place in get_action_positions(segment)]
            noted: dict[tuple[int, int], dict[str, float]] = {key: {} for key in keys}
            values_by_name = {
                "logprob": outputs.logprobs.detach(),
                "loss": per_token.loss.detach(),
                **per_token.metrics,
            }
            for name, values in values_by_name.items():
                for key, value in zip(keys, values[own].tolist(), strict=True):
                    noted[key][name] = value
            self.seen.append(noted)
            if outputs.logprobs.requires_grad:
                outputs.logprobs.register_hook(partial(_note_push, noted, keys, own))  # type: ignore[no-untyped-call]
            else:  # without credit there is no gradient
                _note_push(noted, keys, own, torch.zeros_like(outputs.logprobs))

    def assign_values(self, tokens: Sequence[TokenExplanation]) -> None:
        """Add the recorded metrics of each forward pass to the tokens of the explanation."""
        for noted in self.seen:
            for token in tokens:
                if token.place in noted:
                    token.passes.append(noted[token.place])


def _note_push(noted: dict[Any, dict[str, float]], keys: Sequence[Any], own: slice, gradient: Tensor) -> None:
    for key, value in zip(keys, gradient[own].tolist(), strict=True):
        noted[key]["push"] = value


def _listed(numbers: Tensor) -> str:
    texts = [f"{value:.6g}" for value in numbers.tolist()]
    return " ".join(texts[:12]) + (" …" if len(texts) > 12 else "")
