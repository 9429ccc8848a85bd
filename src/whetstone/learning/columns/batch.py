"""A batch as columns, by name: one number a trajectory, a turn, or an action token.

    groups that count → trajectories [N] → turns [M] → action tokens [K], each behind the other

Columns are made when they are asked for: log-probs, beliefs and values cost a forward pass, the rest is read.

Easy to get wrong: action tokens stand turn by turn here, whatever segments hold them; `scattered` takes numbers back to
where their tokens lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import Level, columns_of
from whetstone.algorithms.objectives import pessimistic
from whetstone.algorithms.returns import last_of
from whetstone.chat import Chat
from whetstone.errors import CreditError
from whetstone.learning.columns.built_in import COLUMN_BUILDERS
from whetstone.learning.columns.declaration import Column
from whetstone.learning.columns.values import kind_of_head
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.probes import behind, probe
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Segment, Task, Trajectory


class Columns:
    """A batch as columns.

    Args:
        held: Its trajectories, group by group.
        learner: Gives log-probs and values, under the weights before the update.
        temperature: What the sampler divided its logits by.
        chat: Writes gold answers as tokens.
        roles: The task tag that names the role a trajectory is played in, beside its seat; None: the seat alone.
        scorer: A process model, for implicit rewards.
        teacher_reads: An episode of a task as the teacher reads it; None: as the policy did.
        draw: Where chance comes from, the same for the same step of a run.
        added: Columns beside ours, by name.
        believed: [T] what of an ensemble [N, T] of critics is believed; None: the least.
    """

    def __init__(
        self,
        held: Sequence[IndexedTrajectory],
        *,
        learner: ModelTrainer | None = None,
        temperature: float = 1.0,
        chat: Chat | None = None,
        roles: str | None = None,
        scorer: ModelTrainer | None = None,
        teacher_reads: Callable[[Trajectory, Task], Trajectory] | None = None,
        draw: torch.Generator | None = None,
        added: Mapping[str, Column] | None = None,
        believed: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.held, self.temperature, self.chat, self.roles, self.scorer = held, temperature, chat, roles, scorer
        self.draw, self.teacher_reads = draw, teacher_reads
        self._learner, self._believed = learner, believed or pessimistic
        self._declared = {**COLUMN_BUILDERS, **added} if added else COLUMN_BUILDERS
        self._made: dict[str, Tensor] = {}
        self._making: list[str] = []
        self._readers: dict[str, set[str]] = {}
        """By name of a column, those that were made of it."""
        self._values: dict[str, Tensor] | None = None
        self._last_values: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """The column of this name, on the CPU; numbers in float64.

        Raises:
            CreditError: Nothing in the batch gives it.
        """
        made = self.made(name)
        if made is not None:
            return made
        if name in self._making:
            raise CreditError(f"column {name} reads itself: {' → '.join([*self._making, name])}")
        self._making.append(name)
        try:
            self._made[name] = self._make(name)
        finally:
            self._making.pop()
        return self._made[name]

    def made(self, name: str) -> Tensor | None:
        """The column of this name where somebody asked for it or put it there; None where nobody did."""
        if self._making:
            self._readers.setdefault(name, set()).add(self._making[-1])
        return self._made.get(name)

    def count(self, level: Level) -> int:
        """How many trajectories, turns or action tokens there are."""
        if level == "trajectory":
            return len(self.held)
        return sum(len(held.trajectory.turns) if level == "turn" else len(held) for held in self.held)

    def replaced(self, name: str, column: Tensor) -> None:
        """Put numbers that were made over in the place of those read; what was made of them is made anew."""
        for readers in self._readers.values():
            readers.discard(name)
        stale = [name]
        while stale:
            readers = self._readers.pop(stale.pop(), set())
            stale += readers
            for reader in readers:
                self._made.pop(reader, None)
        self._made[name] = column

    def ask(self, function: Callable[..., Any], **given: Tensor) -> Any:
        """What a function of columns says; `given` take the place of columns of their names."""
        return function(*(given[name] if name in given else self[name] for name in columns_of(function)))

    def spread(self, numbers: Tensor, level: Level, to: Level) -> Tensor:
        """Numbers of one level at a finer one: every turn of a trajectory, every token of a turn has the same."""
        if level == to:
            return numbers
        if level == "trajectory":
            return numbers[self["trajectory" if to == "turn" else "token_trajectory"]]
        if level == "turn" and to == "token":
            return numbers[self["turn"]]
        raise ValueError(f"numbers of a {level} cannot become those of a {to}")

    def per_token(self, name: str) -> Tensor:
        """Return [K] a column at every action token: that of its turn or trajectory if it is not one per token."""
        declared = self._declared.get(name)
        if declared is not None:
            return self.spread(self[name], declared.level, "token")
        numbers = self[name]
        if name == "advantages":
            return numbers
        scores = (each.trajectory.score for each in self.held)
        of_turns = any(score is not None and name in score.signals for score in scores)
        return self.spread(numbers, "turn" if of_turns else "trajectory", "token")

    def at_actions(self, numbers: Tensor) -> list[list[Tensor]]:
        """Per trajectory and segment, [A] numbers [K] of action tokens in the order they lie in it."""
        parts = torch.split(numbers, [len(held) for held in self.held])
        return [
            [mine[torch.from_numpy(held.segment == k)] for k in range(len(held.segments))]
            for held, mine in zip(self.held, parts, strict=True)
        ]

    def scattered(self, numbers: Tensor) -> list[list[Tensor]]:
        """Per trajectory and segment, [T] numbers [K] of action tokens where their tokens lie; 0 elsewhere."""
        found = []
        for held, at_actions in zip(self.held, self.at_actions(numbers), strict=True):
            rows = [torch.zeros(len(segment), dtype=numbers.dtype) for segment in held.segments]
            for k, row in enumerate(rows):
                row[torch.from_numpy(held.place[held.segment == k])] = at_actions[k]
            found.append(rows)
        return found

    def _make(self, name: str) -> Tensor:
        declared = self._declared.get(name)
        if declared is None:
            return torch.tensor(list(self.of_reward(name)), dtype=torch.float64)
        return self._numbers(declared, declared.build(self))

    def _numbers(self, column: Column, said: Any) -> Tensor:
        """What a column's function returned, on the CPU.

        Raises:
            CreditError: It is not one number for each of its level.
        """
        dtype = torch.long if column.index else torch.float64
        if not isinstance(said, Iterable):
            raise CreditError(f"column {column.name} returned {type(said).__name__}, not numbers")
        numbers = said.detach().cpu() if isinstance(said, Tensor) else list(said)  # its own errors are not ours
        try:
            found = torch.as_tensor(numbers, dtype=dtype)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise CreditError(f"column {column.name} returned what is not numbers: {error}") from None
        count = self.count(column.level)
        if found.shape != (count,):
            shape = "×".join(map(str, found.shape)) or "a single"
            asked = f"not one for each {column.level} ({count})"
            raise CreditError(f"column {column.name} returned {shape} numbers, {asked}")
        return found

    def turns(self) -> Iterable[tuple[int, IndexedTrajectory, int]]:
        """(number of its trajectory, the trajectory, number of the turn) of every turn."""
        for i, held in enumerate(self.held):
            for t in range(len(held.trajectory.turns)):
                yield i, held, t

    def of_tokens(self, read: Callable[[int, IndexedTrajectory], np.ndarray]) -> Tensor:
        """[K] from [A] numbers of each trajectory."""
        parts = [read(i, held) for i, held in enumerate(self.held)]
        return torch.from_numpy(np.concatenate([*parts, np.empty(0, dtype=parts[0].dtype if parts else float)]))

    def of_reward(self, name: str) -> Iterable[float]:
        """A signal of the reward, one a turn, or a part of its score, one a trajectory."""
        scores = [held.trajectory.score for held in self.held]
        if any(score is not None and name in score.signals for score in scores):
            for held in self.held:
                score = held.trajectory.score
                if score is None or name not in score.signals:
                    raise CreditError(f"{held.trajectory.id}: the reward says no {name} of its turns")
                yield from score.signals[name]
            return
        for held in self.held:
            score = held.trajectory.score
            if score is None or name not in score.parts:
                raise CreditError(f"{held.trajectory.id}: neither the run nor its reward gives {name}")
            yield score.parts[name]

    def segments(self) -> list[Segment]:
        """All segments of the batch, trajectory by trajectory."""
        return [segment for held in self.held for segment in held.segments]

    def logprobs_of(
        self, segments: Sequence[Segment], *, of: Literal["policy", "reference", "teacher"] = "policy"
    ) -> list[Tensor]:
        """[A] log-probs of each segment's action tokens, in their order.

        Raises:
            CreditError: There is no model.
        """
        return self._model.logprobs(segments, temperature=self.temperature, of=of)

    def in_order(self, per_segment: Sequence[Tensor], held_as: Sequence[IndexedTrajectory] | None = None) -> Tensor:
        """[K] or [K, H] of values per segment [A, …], turn by turn.

        Args:
            held_as: The trajectories as somebody else read them, whose segments these are; None: those of the batch.
        """
        found, begin = [], 0
        for held in self.held if held_as is None else held_as:
            mine = per_segment[begin : begin + len(held.segments)]
            begin += len(held.segments)
            if mine:
                found.append(torch.cat(list(mine)).cpu().double()[torch.from_numpy(held.order)])
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)

    @property
    def context_length(self) -> int:
        """Tokens the model can have in view."""
        return self._model.policy.context_length

    @property
    def _model(self) -> ModelTrainer:
        if self._learner is None:
            asked = f" for {' → '.join(self._making)}" if self._making else ""
            raise CreditError(f"there is no model here{asked}; a column that asks one says reads_models=True")
        return self._learner

    @property
    def heads(self) -> tuple[str, ...]:
        """What critics foretell."""
        return self._learner.heads if self._learner is not None else ()

    @property
    def probabilities(self) -> bool:
        """Whether critics say probabilities of success."""
        critic = self._learner.policy.critic if self._learner is not None else None
        return critic is not None and critic.probabilities

    def head(self, name: str) -> Tensor:
        """[K] what a critic's head says in front of each action token; of an ensemble, what is believed."""
        members = self.members(name)
        return members[0] if len(members) == 1 else self._believed(members)

    def members(self, name: str) -> Tensor:
        """[N, K] what each member of an ensemble says there; of `values#2` that one alone."""
        if self._values is None:
            said = self.in_order(self._model.values(self.segments(), temperature=self.temperature))
            self._values = {head: said[:, h] if said.ndim == 2 else said for h, head in enumerate(self._model.heads)}
        return torch.stack([self._values[head] for head in self._members(name)])

    def _members(self, name: str) -> list[str]:
        return [head for head in self._model.heads if name in (head, kind_of_head(head))]

    def asked_at(self, where: str) -> Tensor:
        """[K] at which action tokens a critic is asked: the first of each turn, its last, or every one."""
        turn = self["turn"]
        if where == "every":
            return torch.ones_like(turn, dtype=torch.bool)
        if where == "last":
            return last_of(turn)
        found = torch.ones_like(turn, dtype=torch.bool)
        found[1:] = turn[1:] != turn[:-1]
        return found

    def last_head(self, name: str) -> Tensor:
        """[N] what a head says behind the last turn where a limit cut the episode short; 0 where it was over."""
        if self._last_values is None:
            cut = [i for i, held in enumerate(self.held) if held.trajectory.ended.cut_short and len(held)]
            length = self._model.policy.context_length
            probes = [probe(behind(self.held[i]).sequence[: length - 1], (0,)) for i in cut]
            said = self._model.values(probes, temperature=self.temperature)
            zeros = torch.zeros(len(self.held), dtype=torch.float64)
            self._last_values = {head: zeros.clone() for head in self._model.heads}
            for i, values in zip(cut, said, strict=True):
                for h, head in enumerate(self._model.heads):
                    self._last_values[head][i] = values[0, h].cpu().double()
        members = torch.stack([self._last_values[head] for head in self._members(name)])
        return members[0] if len(members) == 1 else self._believed(members)
