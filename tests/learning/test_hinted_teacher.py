"""A teacher who reads a hint scores the very tokens the student sampled, in contexts that differ by the hint alone."""

from dataclasses import replace

import pytest
import torch

from tests_episodes import CHAT, call, collected, in_order
from whetstone.chat import assistant
from whetstone.chat.formats import Compact
from whetstone.environments import ToolEnvironment
from whetstone.errors import CreditError
from whetstone.learning.columns import Columns
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.token_index import index_groups
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings
from whetstone.rollout.context_transforms.note import noted
from whetstone.rollout.rereading import WithHint
from whetstone.rollout.strategies import Independent
from whetstone.tools import pocket_calculator
from whetstone.trajectory import Task

TOOLS = tuple(ToolEnvironment(tools=[pocket_calculator]).toolset.specs)
TASK = Task("t", "Compute 12*34", {"answer": 408, "solution": "Multiply, then say the product.", "nothing": None})


def policy(context_length=2000):
    markers = Compact.markers
    made = build_tiny(
        ["Compute 12*34"] * 9, markers=markers, hidden=8, heads=1, layers=1, context_length=context_length, seed=3
    )
    made.model.double()
    return made


def group():
    said = [in_order(call("12*34"), call("408+0"), assistant("408")), in_order(assistant("9"))]
    found = [collected(Independent(group_size=1), speak, task=TASK).trajectories[0] for speak in said]
    whole = collected(Independent(group_size=2), said[0], task=TASK)
    return replace(whole, trajectories=tuple(replace(t, id=f"g/{k}") for k, t in enumerate(found)))


def columns(hint, *, made=None):
    trainer = ModelTrainer(made or policy(), OptimizerSettings(micro_batch_tokens=300), own_teacher=True)
    return Columns(index_groups([group()]), learner=trainer, chat=CHAT, teacher_reads=WithHint(hint, CHAT, TOOLS))


def naively(trajectory, hint, model):
    """[K] each action token's log-prob by a forward pass of its own over everything before it."""
    found, context = [], CHAT.open(noted(trajectory.opening, hint), TOOLS)
    for turn in trajectory.turns:
        for place, token in enumerate(turn.action.ids):
            before = torch.tensor([[*context.ids, *turn.action.ids[:place]]])
            with torch.no_grad():
                found.append(model(input_ids=before).logits[0, -1].double().log_softmax(-1)[token].item())
        context = CHAT.extend(context, turn.action.ids, turn.observation)
    return found


def test_every_token_is_scored_behind_the_hint():
    made = policy()
    batch = columns("solution", made=made)
    told = batch["teacher_logprobs"]
    wanted = [p for t in group().trajectories for p in naively(t, TASK.private["solution"], made.model)]
    assert told.tolist() == pytest.approx(wanted, abs=1e-9)
    assert not torch.allclose(told, batch["old_logprobs"])  # the hint makes a difference


def test_without_a_hint_the_teacher_that_is_the_policy_says_what_the_policy_says():
    for hint in ("nothing", lambda task, trajectory: None):
        batch = columns(hint)
        torch.testing.assert_close(batch["teacher_logprobs"], batch["old_logprobs"], rtol=0, atol=0)


def test_contexts_differ_by_the_hint_alone():
    reads = WithHint("solution", CHAT, TOOLS)
    for trajectory in group().trajectories:
        hinted = reads(trajectory, TASK)
        (ours,), (theirs,) = trajectory.segments(), hinted.segments()
        said, read = CHAT.tokenizer.decode(ours.tokens.ids), CHAT.tokenizer.decode(theirs.tokens.ids)
        assert read.replace(f"{TASK.private['solution']}\n\n", "") == said
        assert [turn.action for turn in hinted.turns] == [turn.action for turn in trajectory.turns]


def test_a_hint_may_tell_of_the_episode_itself():
    told = []

    def correction(task, trajectory):
        told.append((task.id, trajectory.id))
        return "Use the calculator." if trajectory.id == "g/1" else None

    batch = columns(correction)
    apart = (batch["teacher_logprobs"] - batch["old_logprobs"]).abs()
    first = len(batch.held[0])
    assert apart[:first].max() < 1e-12  # packed otherwise, so not to the last bit
    assert apart[first:].max() > 1e-6
    assert told == [("t", "g/0"), ("t", "g/1")]


def test_a_missing_column_and_a_full_context_are_said():
    with pytest.raises(CreditError, match="task t has no private `proof`; it has answer, nothing, solution"):
        columns("proof")["teacher_logprobs"]
    longest = max(len(segment) for trajectory in group().trajectories for segment in trajectory.segments())
    with pytest.raises(CreditError, match="the teacher has no room: with its hint it would read"):
        columns("solution", made=policy(context_length=longest))["teacher_logprobs"]
