"""Columns computed by models: old log-probs, reference, teacher and process model log-probs, answer beliefs.

Note:
    Old log-probs are computed with the weights before the step, whichever weights the sampler had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whetstone.algorithms.advantage_transforms import covariances
from whetstone.algorithms.advantages import implicit_rewards
from whetstone.chat import assistant
from whetstone.errors import CreditError
from whetstone.learning.columns.declaration import RunCapabilities, column
from whetstone.learning.logprob_queries import get_turn_context, logprob_query
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Segment, Task, Trajectory

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


def _gold_answer(run: RunCapabilities) -> str | None:
    if "answer" in run.first_task().private:
        return None
    return f'tasks.source "{run.recipe.tasks.source}" has no gold answer (private `answer`)'


def _process_model(run: RunCapabilities) -> str | None:
    return None if run.recipe.implicit_prm is not None else "requires a second model: set implicit_prm: {}"


def _teacher(run: RunCapabilities) -> str | None:
    if run.recipe.teacher is not None:
        return None
    return (
        "set teacher: {path: FOLDER} for a model with the same tokenizer, or teacher: {privileged_context: COLUMN} "
        "for self-distillation"
    )


@column("token", reads_models=True)
def old_logprobs(batch: Columns) -> Tensor:
    """Log-prob of the token under the policy before the step's updates."""
    return batch.order_by_turn(batch.compute_logprobs(batch.segments()))


@column("token", reads_models=True, provided_by="every run; the policy at the start of reinforcement learning")
def reference_logprobs(batch: Columns) -> Tensor:
    """Log-prob of the token under the frozen reference model."""
    return batch.order_by_turn(batch.compute_logprobs(batch.segments(), whose="reference"))


@column("token", reads_models=True, provided_by="`teacher`, a folder or the policy itself", requires=_teacher)
def teacher_logprobs(batch: Columns) -> Tensor:
    """Log-prob under the teacher, in the contexts that the teacher reads."""
    if batch.teacher_reads is not None:
        return _hinted_logprobs(batch, batch.teacher_reads)
    return batch.order_by_turn(batch.compute_logprobs(batch.segments(), whose="teacher"))


def _hinted_logprobs(batch: Columns, reads: Callable[[Trajectory, Task], Trajectory]) -> Tensor:
    """Return [K] log-probs of a teacher that reads the same actions in other contexts.

    Raises:
        CreditError: If the actions differ, or the teacher's context is too long.
    """
    hinted = [IndexedTrajectory.of(h.group, h.number, reads(h.trajectory, h.group.task)) for h in batch.trajectories]
    for entry, hinted_entry in zip(batch.trajectories, hinted, strict=True):
        if _actions(entry) != _actions(hinted_entry):
            raise CreditError(f"{entry.trajectory.id}: the teacher would score other actions than those taken")
        longest = max(map(len, hinted_entry.segments), default=0)
        if longest > batch.context_length:
            limit = f"{longest:,} tokens with the hint, and the model has {batch.context_length:,}"
            raise CreditError(f"{entry.trajectory.id}: the teacher's context is too long: {limit}")
    return batch.order_by_turn(
        batch.compute_logprobs([s for hinted_entry in hinted for s in hinted_entry.segments], whose="teacher"), hinted
    )


def _actions(entry: IndexedTrajectory) -> list[tuple[int, int]]:
    """Return (turn, token) of each action token, turn by turn."""
    ids = (entry.segments[k].tokens.ids[place] for k, place in zip(entry.segment, entry.place, strict=True))
    return list(zip(entry.turn.tolist(), ids, strict=True))


_SECOND = "`implicit_prm`, a second model that is trained"


@column("token", reads_models=True, provided_by=_SECOND, requires=_process_model)
def model_logprobs(batch: Columns) -> Tensor:
    """Log-prob of the token under the process reward model."""
    if batch.scorer is None:
        raise CreditError("model_logprobs: the recipe has no process reward model; set implicit_prm: {}")
    return batch.order_by_turn(batch.scorer.logprobs(batch.segments(), temperature=batch.temperature))


@column("turn", reads_models=True, provided_by=_SECOND, requires=_process_model)
def implicit(batch: Columns) -> Tensor:
    """Implicit process reward: β times the log-ratio of the process model to the policy, summed over the turn."""
    return implicit_rewards(batch["model_logprobs"], batch["old_logprobs"], batch["turn"], len(batch["trajectory"]))


@column(
    "turn",
    reads_models=True,
    provided_by="tasks with a gold answer (private `answer`); costs a forward pass",
    requires=_gold_answer,
)
def answer_beliefs(batch: Columns) -> Tensor:
    """Probability of the gold answer before each turn, as the geometric mean over its tokens; the maximum of several
    answers."""
    assert batch.chat is not None
    queries: list[Segment] = []
    rows: list[int] = []
    for m, (_, entry, t) in enumerate(batch.turns()):
        answers = entry.group.task.private.get("answer")
        if answers is None:
            raise CreditError(f"answer_beliefs: task {entry.group.task.id} has no gold answer (private `answer`)")
        context = get_turn_context(entry, t)
        for answer in answers if isinstance(answers, list | tuple) else [answers]:
            ids = batch.chat.write(assistant(str(answer)), ())
            queries.append(logprob_query(context, ids))
            rows.append(m)
    beliefs = torch.full((len(batch["trajectory"]),), -math.inf, dtype=torch.float64)
    if queries:
        means = [of.cpu().double().mean() for of in batch.compute_logprobs(queries)]
        beliefs.scatter_reduce_(0, torch.tensor(rows), torch.stack(means), "amax")
    return beliefs.exp()


@column("token", reads_models=True)
def covariance_rank(batch: Columns) -> Tensor:
    """Fraction of tokens whose covariance of advantage and log-prob is at least as large; 0 for the largest."""
    covariance = covariances(batch["advantages"], batch["old_logprobs"])
    order = torch.argsort(covariance, descending=True, stable=True)
    rank = torch.empty(len(order), dtype=torch.float64)
    rank[order] = torch.arange(1, len(order) + 1, dtype=torch.float64) / max(1, len(order))
    rank[order[:1]] = 0.0
    return rank
