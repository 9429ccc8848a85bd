"""Why is this number what it is? One trajectory, turn or token, from its reward to its weight in the loss.

    reward terms → return → what it is compared with → advantage → what changed it → ratio → clipped → push

Up to the advantage all comes from the record. Ratio, clipping and push need the weights of that update: they are those
of the nearest checkpoint in front of it, with the updates between made again.

Easy to get wrong: the push is the derivative of the update's loss in the token's log-prob, all weights and divisors in
it. Below 0 the update makes the token likelier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, columns_of, level_of, removal_scope_of
from whetstone.analysis.replay import Replay, UpdateReplayer, mixed_groups, refuse_damage
from whetstone.assembly.assembly import Assembly
from whetstone.causes import cause_of, counted_causes
from whetstone.errors import RunDirectoryError, did_you_mean
from whetstone.learning.columns import Columns, by_name, from_record
from whetstone.learning.credit import LEVELS, REWARDS_OF, give_credit
from whetstone.learning.learner import batch_columns
from whetstone.learning.model_trainer import action_places
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_index import index_groups, observed_fraction
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.record.reader import RunRecord
from whetstone.tool_calls import tool_statistics
from whetstone.training.train_step import as_learned
from whetstone.trajectory import Group, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """One link of the chain."""

    what: str
    """`outcome`, `return`, `advantage`, …"""
    value: Any
    """A number, or one a turn."""
    said: str = ""
    """Where it comes from."""


@dataclass(slots=True)
class TokenExplanation:
    """One action token, as an update saw it."""

    place: tuple[int, int]
    """(segment, place in it)."""
    turn: int
    text: str
    sampler_logprob: float
    version: int
    advantage: float
    passes: list[dict[str, float]] = field(default_factory=list)
    """For each update that read it: ratio, clip_fraction, weight, push and what else the objective reports."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A trajectory, explained."""

    id: str
    task: str
    update: int
    """Which update took it, from 1."""
    chain: tuple[ExplanationStep, ...]
    tokens: tuple[TokenExplanation, ...]
    from_weights: str
    """Which weights ratios and pushes are of; empty where there are none."""


class Explainer:
    """Explains numbers of one run.

    Args:
        run_dir: Of a run with reinforcement.
        say: Told what takes a while.
    """

    def __init__(self, run_dir: Path, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.run_dir, self.say = run_dir, say

    @cached_property
    def record(self) -> RunRecord:
        """What the run wrote down; reading it runs nothing of its recipe."""
        return RunRecord(self.run_dir, forgotten=refuse_damage)

    @cached_property
    def replay(self) -> Replay:
        """The run with the parts its recipe names, for what is computed again."""
        return Replay(self.run_dir)

    def causes(self) -> dict[str, int]:
        """Why episodes have no score: by cause, how many."""
        return counted_causes(self.record.causes)

    def trajectories(self, update: int) -> list[tuple[str, float | None, str]]:
        """(id, reward, why there is none) of those an update took; updates count from 1.

        Raises:
            RunDirectoryError: There was no such update.
        """
        return [
            (trajectory.id, None, cause_of(trajectory))
            if trajectory.score is None
            else (trajectory.id, trajectory.score.value, "")
            for number in self._numbers(update - 1)
            for group in (self.record.load(number, Task("", "")),)
            for trajectory in group.trajectories
        ]

    async def explain(self, id: str, *, weights: bool = True) -> Explanation:
        """Everything about a trajectory.

        Args:
            weights: Whether to make updates again for what depends on them.

        Raises:
            RunDirectoryError: There is no such trajectory, or no update took it.
        """
        update = self._update_of(id)
        groups = self._groups(update)
        assembly, _ = self.replay.assemblies_at(update)
        reads = {name for _, function in assembly.credit.every() for name in columns_of(function)}
        again: UpdateReplayer | None = None
        of_models = not from_record(reads, by_name(assembly.columns))
        if weights or assembly.method.replay or assembly.method.trajectory_filters or of_models:
            again = await self._before(update)
        assembly = again.assembly if again else assembly
        settings = assembly.resolved.recipe.reinforcement
        assert settings is not None  # there are updates
        mixed = await mixed_groups(assembly.method, settings, self.record, update)
        learned = as_learned(assembly.method, groups, mixed, seed=assembly.resolved.recipe.seed, update=update)
        known = {t.id: t for group in (*groups, *learned) for t in group.trajectories}
        if id not in known:
            raise RunDirectoryError(f"{self.run_dir}: no trajectory {id}{did_you_mean(id, known)}")
        columns = partial(batch_columns, assembly.learning_spec(settings), again.learner.trainer if again else None)
        chain, tokens = _credit_of(assembly, learned, known[id], columns)
        said = ""
        if again is not None and weights and tokens:
            watching = _Watching(id)
            again.learner.trainer.watch = watching
            await again.step()
            watching.tell(tokens)
            said = f"update {update + 1}, from the weights in front of it"
        return Explanation(id, known[id].task_id, update + 1, tuple(chain), tuple(tokens), said)

    def _groups(self, update: int) -> list[Group]:
        return [self.replay.group(number) for number in self._numbers(update)]

    def _numbers(self, update: int) -> list[int]:
        consumed = self.record.consumed
        if update not in consumed:
            last = max(consumed, default=-1) + 1
            raise RunDirectoryError(f"{self.run_dir}: no update {update + 1} on record; there are 1 to {last}")
        return consumed[update]

    def _update_of(self, id: str) -> int:
        """Which update took the group whose number a trajectory's id begins with, or drew it from stored ones."""
        number = id.partition("/")[0].removeprefix("group-")
        source, *places = number.rsplit("-", 2)
        if source in self.replay.before.method.sources and len(places) == 2 and places[0].isdecimal():
            return int(places[0])
        for update, numbers in self.record.consumed.items():
            if number in map(str, numbers):
                return update
        raise RunDirectoryError(
            f"{self.run_dir}: no update took {id}; ids look like group-3/TASK#0, see whetstone why RUN --step N"
        )

    async def _before(self, update: int) -> UpdateReplayer:
        again = await self.replay.from_checkpoint(before=update)
        if again.done < update:
            self.say(f"making updates {again.done + 1} to {update} again")
        while again.done < update:
            await again.step()
        return again


def _credit_of(
    assembly: Assembly, groups: Sequence[Group], trajectory: Trajectory, columns_of_batch: Callable[..., Columns]
) -> tuple[list[ExplanationStep], list[TokenExplanation]]:
    """The chain from rewards to advantages, and the tokens with theirs."""
    settings = assembly.resolved.recipe.reinforcement
    observations = settings is not None and settings.train_on_observations
    held = index_groups(groups, observations=observations)
    given = give_credit(assembly.credit, held, len(groups), columns_of_batch)
    there = next((t for group in groups for t in group.trajectories if t.id == trajectory.id), None)
    score = trajectory.score
    error = f"; {trajectory.error}" if trajectory.error else ""
    chain = [ExplanationStep("ended", str(trajectory.ended), f"{len(trajectory.turns)} turns{error}")]
    for name, tool in tool_statistics(trajectory.calls).items():
        if tool.error:
            chain.append(ExplanationStep(f"tool: {name}", f"{tool.failed} of {tool.calls} calls failed", tool.error))
    if score is not None:
        chain += [ExplanationStep(f"reward: {name}", value) for name, value in score.parts.items()]
        chain.append(ExplanationStep("outcome", score.value, f'by reward "{assembly.resolved.recipe.reward.name}"'))
        if score.turns is not None:
            chain.append(ExplanationStep("process rewards", list(score.turns), "one a turn"))
    chain.append(ExplanationStep("provenance", str(trajectory.provenance)))
    if trajectory.marks:
        chain.append(ExplanationStep("marks", ", ".join(trajectory.marks)))
    place = next((i for i, held in enumerate(given.columns.held) if held.trajectory.id == trajectory.id), None)
    if place is None:
        removal = there.removal if there is not None else "a stored one took its place"
        why = str(removal) if removal is not None else "a filter before the baseline"
        return [*chain, ExplanationStep("advantage", None, f"in no statistic and in no loss: {why}")], []
    columns, row = given.columns, _Row(given.columns, place)
    for level in LEVELS:
        for part, shape in zip(assembly.resolved.recipe.reward_shaping, assembly.credit.shaping, strict=True):
            if level_of(shape) == level:
                name = REWARDS_OF[level]
                chain.append(ExplanationStep(f"shaped {name}", row.of(columns[name], level), f"by {part.name}"))
    chain.append(
        ExplanationStep("return", row.of(columns["rewards"], "trajectory"), "outcome and process rewards together")
    )
    mates = [i for i, held in enumerate(columns.held) if held.number == columns.held[place].number]
    rewards = columns["rewards"][mates]
    spread = f", deviation {rewards.std().item():.6g}" if len(mates) > 1 else ""
    chain.append(ExplanationStep("baseline", rewards.mean().item(), f"mean of {_listed(rewards)} of its task{spread}"))
    estimator = assembly.credit.advantage
    reads = [name for name in columns_of(estimator) if name not in _INDICES]
    chain += [
        ExplanationStep(f"reads {name}", row.of(columns[name], level_of(estimator, name)))
        for name in reads
        if name not in ("rewards", "outcomes")
    ]
    level = level_of(estimator)
    name = assembly.resolved.recipe.advantage.name
    read = "advantages" in columns_of(assembly.objective)
    unread = "" if read else f'; objective "{assembly.resolved.recipe.objective.name}" does not read it'
    chain.append(
        ExplanationStep("advantage", row.of(given.said.advantages, level), f"by {name}, one a {level}{unread}")
    )
    chain += [
        ExplanationStep(f"critic's target: {head}", row.of(target, level_of(estimator, head)))
        for head, target in given.said.targets.items()
    ]
    for part, (advantages, level) in zip(assembly.resolved.recipe.advantage_transforms, given.modulated, strict=True):
        chain.append(ExplanationStep("modulated", row.of(advantages, level), f"by {part.name}, one a {level}"))
    for filter_name, each in (assembly.credit.filters or {}).items():
        if removal_scope_of(each) != "before_baseline":
            counts = columns.ask(each)[place].item()
            chain.append(
                ExplanationStep(
                    f"filter {filter_name}", counts, f"counts so much in the loss ({removal_scope_of(each).value})"
                )
            )
    chain.append(ExplanationStep("counts in the loss", given.kept[place].item(), "0: trained on nothing"))
    if observations:
        share = observed_fraction([columns.held[place]])
        said = "of the tokens below were written by tools and are trained all the same (train_on_observations)"
        chain.append(ExplanationStep("TRAINED UNMASKED", share, said))
    return chain, _tokens_of(assembly, row, given.advantages)


_INDICES = frozenset({"group", "trajectory", "turn", "token_trajectory", "turn_index"})


@dataclass(frozen=True, slots=True)
class _Row:
    """One trajectory among columns."""

    columns: Columns
    place: int

    def of(self, numbers: Tensor, level: str) -> Any:
        """Its number, or its numbers one a turn; of tokens, the first of each run that is equal."""
        if level == "trajectory":
            return numbers[self.place].item()
        owner = self.columns["trajectory" if level == "turn" else "token_trajectory"]
        mine: list[float] = numbers[owner == self.place].tolist()
        if level == "turn" or len(mine) <= 1:
            return mine
        return [value for k, value in enumerate(mine) if k == 0 or value != mine[k - 1]]


def _tokens_of(assembly: Assembly, row: _Row, advantages: Tensor) -> list[TokenExplanation]:
    held = row.columns.held[row.place]
    mine = advantages[row.columns["token_trajectory"] == row.place].tolist()
    found = []
    for k, place, advantage in zip(held.segment.tolist(), held.place.tolist(), mine, strict=True):
        segment = held.segments[k]
        tokens = segment.tokens
        text = assembly.policy.tokenizer.decode([tokens.ids[place]])
        found.append(
            TokenExplanation(
                (segment.index, place),
                segment.turns[place],
                text,
                tokens.logprobs[place],
                tokens.versions[place],
                advantage,
            )
        )
    return found


class _Watching:
    """Notes what an update does with the tokens of one trajectory."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.seen: list[dict[tuple[int, int], dict[str, float]]] = []
        """For each pass, by (segment, place), what was reported."""

    def __call__(
        self, segments: Sequence[Segment], outputs: TokenOutputs, micro: MicroBatch, per_token: TokenLoss
    ) -> None:
        begin = 0
        for i, count in zip(micro.indices, micro.counts, strict=True):
            mine = slice(begin, begin + count)
            begin += count
            segment = segments[i]
            if segment.trajectory_id != self.id or not count:
                continue
            keys = [(segment.index, place) for place in action_places(segment)]
            noted: dict[tuple[int, int], dict[str, float]] = {key: {} for key in keys}
            said = {"logprob": outputs.logprobs.detach(), "loss": per_token.loss.detach(), **per_token.metrics}
            for name, values in said.items():
                for key, value in zip(keys, values[mine].tolist(), strict=True):
                    noted[key][name] = value
            self.seen.append(noted)
            if outputs.logprobs.requires_grad:
                outputs.logprobs.register_hook(partial(_note_push, noted, keys, mine))  # type: ignore[no-untyped-call]
            else:  # without credit there is none
                _note_push(noted, keys, mine, torch.zeros_like(outputs.logprobs))

    def tell(self, tokens: Sequence[TokenExplanation]) -> None:
        """Hand what was noted to the tokens it is of."""
        for noted in self.seen:
            for token in tokens:
                if token.place in noted:
                    token.passes.append(noted[token.place])


def _note_push(noted: dict[Any, dict[str, float]], keys: Sequence[Any], mine: slice, gradient: Tensor) -> None:
    for key, value in zip(keys, gradient[mine].tolist(), strict=True):
        noted[key]["push"] = value


def _listed(numbers: Tensor) -> str:
    shown = [f"{value:.6g}" for value in numbers.tolist()]
    return " ".join(shown[:12]) + (" …" if len(shown) > 12 else "")
