"""What do models make of what was done? Log-probs under the policy and others, and what is made of those.

Easy to get wrong: log-probs of the old policy are those under the weights before the step, whatever the sampler had.
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
from whetstone.learning.probes import context_of, probe
from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Segment, Task, Trajectory

if TYPE_CHECKING:
    from whetstone.learning.columns.batch import Columns


def _gold_answer(run: RunCapabilities) -> str | None:
    if "answer" in run.first_task().private:
        return None
    return f'tasks.source "{run.recipe.tasks.source}" knows no gold answer (private `answer`)'


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
    """Under the policy, before the step's updates."""
    return batch.in_order(batch.logprobs_of(batch.segments()))


@column("token", reads_models=True, provided_by="every run; the policy reinforcement began with")
def reference_logprobs(batch: Columns) -> Tensor:
    """Under the reference."""
    return batch.in_order(batch.logprobs_of(batch.segments(), of="reference"))


@column("token", reads_models=True, provided_by="`teacher`, a folder or the policy itself", requires=_teacher)
def teacher_logprobs(batch: Columns) -> Tensor:
    """Under the teacher, in the contexts it reads."""
    if batch.teacher_reads is not None:
        return _of_hinted(batch, batch.teacher_reads)
    return batch.in_order(batch.logprobs_of(batch.segments(), of="teacher"))


def _of_hinted(batch: Columns, reads: Callable[[Trajectory, Task], Trajectory]) -> Tensor:
    """[K] under a teacher who reads the same actions in other contexts.

    Raises:
        CreditError: They are not the same actions, or there is no room for what the teacher reads.
    """
    told = [IndexedTrajectory.of(h.group, h.number, reads(h.trajectory, h.group.task)) for h in batch.held]
    for ours, theirs in zip(batch.held, told, strict=True):
        if _actions(ours) != _actions(theirs):
            raise CreditError(f"{ours.trajectory.id}: the teacher would score other actions than were taken")
        longest = max(map(len, theirs.segments), default=0)
        if longest > batch.context_length:
            said = f"with its hint it would read {longest:,} tokens, the context is {batch.context_length:,}"
            raise CreditError(f"{ours.trajectory.id}: the teacher has no room: {said}")
    return batch.in_order(batch.logprobs_of([s for held in told for s in held.segments], of="teacher"), told)


def _actions(held: IndexedTrajectory) -> list[tuple[int, int]]:
    """(turn, token) of each action token, turn by turn."""
    ids = (held.segments[k].tokens.ids[place] for k, place in zip(held.segment, held.place, strict=True))
    return list(zip(held.turn.tolist(), ids, strict=True))


_SECOND = "`implicit_prm`, a second model that learns"


@column("token", reads_models=True, provided_by=_SECOND, requires=_process_model)
def model_logprobs(batch: Columns) -> Tensor:
    """Under the process model."""
    if batch.scorer is None:
        raise CreditError("implicit: the recipe has no implicit_prm")
    return batch.in_order(batch.scorer.logprobs(batch.segments(), temperature=batch.temperature))


@column("turn", reads_models=True, provided_by=_SECOND, requires=_process_model)
def implicit(batch: Columns) -> Tensor:
    """Implicit process reward: β times the log-ratio of the process model to the policy, summed over the turn."""
    return implicit_rewards(batch["model_logprobs"], batch["old_logprobs"], batch["turn"], len(batch["trajectory"]))


@column(
    "turn",
    reads_models=True,
    provided_by="tasks with a gold answer (private `answer`); costs a scoring pass",
    requires=_gold_answer,
)
def answer_beliefs(batch: Columns) -> Tensor:
    """Probability of the gold answer in front of each turn; of several answers the likeliest."""
    assert batch.chat is not None
    asked: list[Segment] = []
    rows: list[int] = []
    for m, (_, held, t) in enumerate(batch.turns()):
        answers = held.group.task.private.get("answer")
        if answers is None:
            raise CreditError(f"answer_beliefs: task {held.group.task.id} has no gold answer (private `answer`)")
        context = context_of(held, t)
        for answer in answers if isinstance(answers, list | tuple) else [answers]:
            ids = batch.chat.write(assistant(str(answer)), ())
            asked.append(probe(context, ids))
            rows.append(m)
    beliefs = torch.full((len(batch["trajectory"]),), -math.inf, dtype=torch.float64)
    if asked:
        means = [of.cpu().double().mean() for of in batch.logprobs_of(asked)]
        beliefs.scatter_reduce_(0, torch.tensor(rows), torch.stack(means), "amax")
    return beliefs.exp()


@column("token", reads_models=True)
def covariance_rank(batch: Columns) -> Tensor:
    """The share of tokens whose covariance of credit and log-prob is as large or larger; 0 for the largest."""
    covariance = covariances(batch["advantages"], batch["old_logprobs"])
    order = torch.argsort(covariance, descending=True, stable=True)
    rank = torch.empty(len(order), dtype=torch.float64)
    rank[order] = torch.arange(1, len(order) + 1, dtype=torch.float64) / max(1, len(order))
    rank[order[:1]] = 0.0
    return rank
