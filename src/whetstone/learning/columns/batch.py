"""Batch of trajectories as named columns: one number per trajectory, turn or action token.

    counted groups → trajectories [N] → turns [M] → action tokens [K], each in the order of the level above

Columns are computed on the first request: log-probs, beliefs and values cost a forward pass, others are read.

Note:
    Action tokens are ordered by turn here, whatever their segment; `scattered` returns numbers at the positions of
    their tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import Level, column_names
from whetstone.algorithms.objectives import pessimistic_value
from whetstone.chat import Chat
from whetstone.errors import CreditError
from whetstone.learning.columns.built_in import COLUMN_BUILDERS
from whetstone.learning.columns.critics import CriticValues
from whetstone.learning.columns.declaration import Column
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Segment, Task, Trajectory


class Columns:
    """Named columns of a batch, each computed when it is first requested.

    Created by the learner for every step. Estimators and losses receive the columns that their parameters name.

    Args:
        trajectories: Trajectories of the batch, group by group.
        learner: Trainer that computes log-probs and values with the weights before the update; None: only columns that
            need no model are available.
        temperature: Divisor of the logits in sampling.
        chat: Renders gold answers as tokens.
        roles: Task tag with the role in which a trajectory is played, in addition to its seat; None: only the seat.
        scorer: Process reward model, for implicit rewards.
        teacher_reads: Returns an episode of a task as the teacher reads it; None: as the policy did.
        generator: Random number generator, seeded equally for the same step of a run.
        custom: Columns in addition to the built-in ones, by name.
        reduce_ensemble: Reduces the values [N, K] of a critic ensemble to [K]; None: the minimum.
    """

    def __init__(
        self,
        trajectories: Sequence[IndexedTrajectory],
        *,
        learner: ModelTrainer | None = None,
        temperature: float = 1.0,
        chat: Chat | None = None,
        roles: str | None = None,
        scorer: ModelTrainer | None = None,
        teacher_reads: Callable[[Trajectory, Task], Trajectory] | None = None,
        generator: torch.Generator | None = None,
        custom: Mapping[str, Column] | None = None,
        reduce_ensemble: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.trajectories, self.temperature, self.chat, self.roles = trajectories, temperature, chat, roles
        self.generator, self.teacher_reads, self.scorer = generator, teacher_reads, scorer
        self._learner = learner
        self.critics = CriticValues(self, learner, reduce_ensemble or pessimistic_value)
        """Predictions of the critics at the action tokens of the batch."""
        self._declared = {**COLUMN_BUILDERS, **custom} if custom else COLUMN_BUILDERS
        self._made: dict[str, Tensor] = {}
        self._making: list[str] = []
        self._readers: dict[str, set[str]] = {}
        """Columns that were computed from a column, by its name."""

    @property
    def held(self) -> Sequence[IndexedTrajectory]:
        """Deprecated name of `trajectories`; warns when read."""
        warnings.warn("Columns.held: renamed to Columns.trajectories", DeprecationWarning, stacklevel=2)
        return self.trajectories

    def __getitem__(self, name: str) -> Tensor:
        """Return a column by name, on the CPU, in float64 (indices: int64).

        Raises:
            CreditError: If neither the run nor its reward provides the column, or its function returned invalid
                numbers.
        """
        column = self.get_cached(name)
        if column is not None:
            return column
        if name in self._making:
            raise CreditError(
                f"column {name} reads itself: {' → '.join([*self._making, name])}; remove one of these reads"
            )
        self._making.append(name)
        try:
            self._made[name] = self._make(name)
        finally:
            self._making.pop()
        return self._made[name]

    def get_cached(self, name: str) -> Tensor | None:
        """Return a column that was already computed or replaced, or None."""
        if self._making:
            self._readers.setdefault(name, set()).add(self._making[-1])
        return self._made.get(name)

    def count(self, level: Level) -> int:
        """Return the number of items of a level: trajectories, turns or action tokens."""
        if level == "trajectory":
            return len(self.trajectories)
        return sum(len(entry.trajectory.turns) if level == "turn" else len(entry) for entry in self.trajectories)

    def replace(self, name: str, column: Tensor) -> None:
        """Replace a column, as reward shaping does.

        Columns that were computed from the old one are recomputed when they are next requested.

        Args:
            name: Name of the column.
            column: New numbers, one per item of its level.
        """
        for readers in self._readers.values():
            readers.discard(name)
        stale = [name]
        while stale:
            readers = self._readers.pop(stale.pop(), set())
            stale += readers
            for reader in readers:
                self._made.pop(reader, None)
        self._made[name] = column

    def call(self, function: Callable[..., Any], **overrides: Tensor) -> Any:
        """Call a function with the columns that its parameters name.

        Args:
            function: Estimator, shaping function, filter or transform.
            overrides: Columns that replace those of the batch, by name.
        """
        return function(*(overrides[name] if name in overrides else self[name] for name in column_names(function)))

    def expand(self, numbers: Tensor, level: Level, to: Level) -> Tensor:
        """Expand numbers to a finer level: every turn or token gets the number of its trajectory or turn.

        Args:
            numbers: One number per item of `level`.
            level: Level of the numbers.
            to: Level of the result.

        Raises:
            ValueError: If `to` is coarser than `level`.
        """
        if level == to:
            return numbers
        if level == "trajectory":
            return numbers[self["trajectory" if to == "turn" else "token_trajectory"]]
        if level == "turn" and to == "token":
            return numbers[self["turn"]]
        raise ValueError(f"a column per {level} cannot be expanded to the coarser level {to}; aggregate it instead")

    def per_token(self, name: str) -> Tensor:
        """Return a column at every action token, [K].

        A column of another level is expanded from its turn or trajectory.
        """
        declared = self._declared.get(name)
        if declared is not None:
            return self.expand(self[name], declared.level, "token")
        numbers = self[name]
        if name == "advantages":
            return numbers
        scores = (each.trajectory.score for each in self.trajectories)
        of_turns = any(score is not None and name in score.signals for score in scores)
        return self.expand(numbers, "turn" if of_turns else "trajectory", "token")

    def split_by_segment(self, numbers: Tensor) -> list[list[Tensor]]:
        """Split [K] numbers of action tokens into [A] per trajectory and segment."""
        parts = torch.split(numbers, [len(entry) for entry in self.trajectories])
        return [
            [part[torch.from_numpy(entry.segment == k)] for k in range(len(entry.segments))]
            for entry, part in zip(self.trajectories, parts, strict=True)
        ]

    def scatter_to_tokens(self, numbers: Tensor) -> list[list[Tensor]]:
        """Scatter [K] numbers of action tokens to all T tokens of each segment.

        Returns:
            [T] per trajectory and segment; tokens that are not action tokens have 0.
        """
        scattered = []
        for entry, at_actions in zip(self.trajectories, self.split_by_segment(numbers), strict=True):
            rows = [torch.zeros(len(segment), dtype=numbers.dtype) for segment in entry.segments]
            for k, row in enumerate(rows):
                row[torch.from_numpy(entry.place[entry.segment == k])] = at_actions[k]
            scattered.append(rows)
        return scattered

    def _make(self, name: str) -> Tensor:
        declared = self._declared.get(name)
        if declared is None:
            return torch.tensor(list(self.read_reward(name)), dtype=torch.float64)
        return self._numbers(declared, declared.build(self))

    def _numbers(self, column: Column, returned: Any) -> Tensor:
        """Convert the return value of a column's function to a tensor on the CPU.

        Raises:
            CreditError: If it is not one number per item of the column's level.
        """
        dtype = torch.long if column.index else torch.float64
        if not isinstance(returned, Iterable):
            raise CreditError(
                f"column {column.name} returned {type(returned).__name__}, not numbers; return an iterable or a tensor"
            )
        numbers = (
            returned.detach().cpu() if isinstance(returned, Tensor) else list(returned)
        )  # its own errors are not ours
        try:
            column_values = torch.as_tensor(numbers, dtype=dtype)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise CreditError(f"column {column.name} returned values that are not numbers: {error}") from None
        count = self.count(column.level)
        if column_values.shape != (count,):
            shape = "×".join(map(str, column_values.shape)) or "a single"
            expected = f"not one for each {column.level} ({count})"
            raise CreditError(f"column {column.name} returned {shape} numbers, {expected}")
        return column_values

    def turns(self) -> Iterable[tuple[int, IndexedTrajectory, int]]:
        """Yield (index of the trajectory, trajectory, index of the turn) of every turn."""
        for i, entry in enumerate(self.trajectories):
            for t in range(len(entry.trajectory.turns)):
                yield i, entry, t

    def concatenate_tokens(self, read: Callable[[int, IndexedTrajectory], np.ndarray]) -> Tensor:
        """Concatenate the [A] numbers that `read` returns for each trajectory into [K].

        Args:
            read: (index of the trajectory, trajectory) → [A] numbers, turn by turn.
        """
        parts = [read(i, entry) for i, entry in enumerate(self.trajectories)]
        return torch.from_numpy(np.concatenate([*parts, np.empty(0, dtype=parts[0].dtype if parts else float)]))

    def read_reward(self, name: str) -> Iterable[float]:
        """Yield the numbers of a reward signal (one per turn) or of a part of the score (one per trajectory).

        Raises:
            CreditError: If a trajectory has neither.
        """
        scores = [entry.trajectory.score for entry in self.trajectories]
        if any(score is not None and name in score.signals for score in scores):
            for entry in self.trajectories:
                score = entry.trajectory.score
                if score is None or name not in score.signals:
                    raise CreditError(
                        f"{entry.trajectory.id}: the reward has no {name} for its turns; "
                        "the reward must return one number per turn for each episode"
                    )
                yield from score.signals[name]
            return
        for entry in self.trajectories:
            score = entry.trajectory.score
            if score is None or name not in score.parts:
                raise CreditError(
                    f"{entry.trajectory.id}: neither the run nor its reward provides {name}; "
                    "set a reward that does, or declare a column with this name"
                )
            yield score.parts[name]

    def segments(self) -> list[Segment]:
        """Return all segments of the batch, trajectory by trajectory."""
        return [segment for entry in self.trajectories for segment in entry.segments]

    def compute_logprobs(
        self, segments: Sequence[Segment], *, whose: Literal["policy", "reference", "teacher"] = "policy"
    ) -> list[Tensor]:
        """Compute [A] log-probs of each segment's action tokens, in the order of the tokens.

        Args:
            segments: Segments, which need not belong to the batch.
            whose: Model that computes the log-probs.

        Raises:
            CreditError: If no model is available.
        """
        return self.model.logprobs(segments, temperature=self.temperature, of=whose)

    def order_by_turn(
        self, per_segment: Sequence[Tensor], trajectories: Sequence[IndexedTrajectory] | None = None
    ) -> Tensor:
        """Reorder [A, …] values per segment turn by turn, and concatenate them to [K] or [K, H].

        Args:
            per_segment: Values at the action tokens of each segment, trajectory by trajectory.
            trajectories: Trajectories whose segments these are, if another model reads them in other contexts; None:
                those of the batch.
        """
        ordered, start = [], 0
        for entry in self.trajectories if trajectories is None else trajectories:
            own_values = per_segment[start : start + len(entry.segments)]
            start += len(entry.segments)
            if own_values:
                ordered.append(torch.cat(list(own_values)).cpu().double()[torch.from_numpy(entry.order)])
        return torch.cat(ordered) if ordered else torch.empty(0, dtype=torch.float64)

    @property
    def context_length(self) -> int:
        """Context length of the model, in tokens."""
        return self.model.policy.context_length

    @property
    def model(self) -> ModelTrainer:
        """Trainer that computes log-probs and values.

        Raises:
            CreditError: If no model is available; the message names the column that requested one.
        """
        if self._learner is None:
            reader = f" for {' → '.join(self._making)}" if self._making else ""
            raise CreditError(f"no model is available{reader}; declare a column that uses one with reads_models=True")
        return self._learner
