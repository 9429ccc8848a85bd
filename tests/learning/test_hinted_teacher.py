"""A teacher with a hint scores the sampled tokens of the student, in contexts that differ only by the hint."""

from dataclasses import replace

import pytest
import torch

from support.episodes import CHAT, call, collected, in_order
from whetstone.chat import assistant
from whetstone.chat.formats import Compact
from whetstone.environments import ToolEnvironment
from whetstone.errors import CreditError
from whetstone.inference import Member
from whetstone.learning.columns import Columns
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.token_index import index_groups
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings
from whetstone.rollout.context_transforms.insert_text import prepend_to_task
from whetstone.rollout.relabel_context import WithHint
from whetstone.rollout.strategies import Independent
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Task

TOOLS = tuple(ToolEnvironment(tools=[pocket_calculator]).toolset.specs)
TASK = Task("t", "Compute 12*34", {"answer": 408, "solution": "Multiply, then say the product.", "nothing": None})


def policy(context_length=2000):
    markers = Compact.markers
    tiny = build_tiny(
        ["Compute 12*34"] * 9, markers=markers, hidden=8, heads=1, layers=1, context_length=context_length, seed=3
    )
    tiny.model.double()
    return tiny


def group():
    answers = [in_order(call("12*34"), call("408+0"), assistant("408")), in_order(assistant("9"))]
    trajectories = [collected(Independent(group_size=1), speak, task=TASK).trajectories[0] for speak in answers]
    complete = collected(Independent(group_size=2), answers[0], task=TASK)
    return replace(complete, trajectories=tuple(replace(t, id=f"g/{k}") for k, t in enumerate(trajectories)))


def columns(hint, *, learner_policy=None):
    own = learner_policy or policy()
    members = {"teacher": Member("teacher", lambda: own)}
    trainer = ModelTrainer(own, OptimizerSettings(micro_batch_tokens=300), members=members)
    return Columns(index_groups([group()]), learner=trainer, chat=CHAT, teacher_reads=WithHint(hint, CHAT, TOOLS))


def naive_logprobs(trajectory, hint, model):
    """Compute the log-prob of each action token ([K]) by a separate forward pass over its context."""
    logprobs, context = [], CHAT.open(prepend_to_task(trajectory.opening, hint), TOOLS)
    for turn in trajectory.turns:
        for place, token in enumerate(turn.action.ids):
            before = torch.tensor([[*context.ids, *turn.action.ids[:place]]])
            with torch.no_grad():
                logprobs.append(model(input_ids=before).logits[0, -1].double().log_softmax(-1)[token].item())
        context = CHAT.extend(context, turn.action.ids, turn.observation)
    return logprobs


def test_every_token_is_scored_after_the_hint():
    teacher = policy()
    batch = columns("solution", learner_policy=teacher)
    logprobs = batch["teacher_logprobs"]
    wanted = [p for t in group().trajectories for p in naive_logprobs(t, TASK.private["solution"], teacher.model)]
    assert logprobs.tolist() == pytest.approx(wanted, abs=1e-9)
    assert not torch.allclose(logprobs, batch["old_logprobs"])  # the hint changes the log-probs


def test_policy_as_its_teacher_without_a_hint_has_its_own_log_probs():
    for hint in ("nothing", lambda task, trajectory: None):
        batch = columns(hint)
        torch.testing.assert_close(batch["teacher_logprobs"], batch["old_logprobs"], rtol=0, atol=0)


def test_contexts_differ_only_by_the_hint():
    reads = WithHint("solution", CHAT, TOOLS)
    for trajectory in group().trajectories:
        hinted = reads(trajectory, TASK)
        (plain_segment,), (hinted_segment,) = trajectory.segments(), hinted.segments()
        plain_text, hinted_text = (
            CHAT.tokenizer.decode(plain_segment.tokens.ids),
            CHAT.tokenizer.decode(hinted_segment.tokens.ids),
        )
        assert hinted_text.replace(f"{TASK.private['solution']}\n\n", "") == plain_text
        assert [turn.action for turn in hinted.turns] == [turn.action for turn in trajectory.turns]


def test_hint_can_depend_on_the_episode():
    calls = []

    def correction(task, trajectory):
        calls.append((task.id, trajectory.id))
        return "Use the calculator." if trajectory.id == "g/1" else None

    batch = columns(correction)
    distance = (batch["teacher_logprobs"] - batch["old_logprobs"]).abs()
    first = len(batch.trajectories[0])
    assert distance[:first].max() < 1e-12  # another packing, so equal up to rounding
    assert distance[first:].max() > 1e-6
    assert calls == [("t", "g/0"), ("t", "g/1")]


def test_missing_column_and_full_context_are_reported():
    with pytest.raises(CreditError, match="task t has no private `proof`; it has answer, nothing, solution"):
        columns("proof")["teacher_logprobs"]
    longest = max(len(segment) for trajectory in group().trajectories for segment in trajectory.segments())
    with pytest.raises(CreditError, match="the teacher's context is too long"):
        columns("solution", learner_policy=policy(context_length=longest))["teacher_logprobs"]
