"""Rewards reach the tokens they are meant for: by comparison, and from a critic over turns or tokens."""

from dataclasses import replace

import pytest
import torch

from tests_segments import segment
from whetstone.chat import assistant, user
from whetstone.policies import build_tiny, critic_for
from whetstone.recipe import CriticSettings, OptimizerSettings
from whetstone.training import Learner
from whetstone.training.credit import credited_by_critic
from whetstone.trajectory import Author, EndReason, Group, Removal, Score, Task, Tokens, Trajectory, Turn


def turn(number, context, action):
    sampled = Tokens.sampled(
        action, logprobs=[-1.0] * len(action), versions=[0] * len(action), entropies=[0.0] * len(action)
    )
    return Turn(Tokens.written(context, Author.ENVIRONMENT), sampled, assistant("x"), opens_segment=number == 0)


def trajectory(name, score, **changes):
    turns = (turn(0, [1, 2, 3], [4, 5]), turn(1, [6], [7, 8, 9]))
    made = Trajectory(name, "t", (user("x"),), turns, EndReason.TERMINATED, score=score)
    return replace(made, **changes)


def group(*scores, **changes):
    made = tuple(trajectory(str(k), score, **changes) for k, score in enumerate(scores))
    return Group(Task("t", "x"), made)


class Foretelling(Learner):
    """A learner whose critic says what it is told."""

    def values(self, segments, *, temperature=1.0):
        return [torch.tensor([0.5, 9.0, 0.6, 9.0, 9.0]) for _ in segments]


def learner(kind=Learner):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    return kind(replace(policy, critic=critic_for(policy.model)), OptimizerSettings())


def critic(**changes):
    return CriticSettings(**{"discount": 0.95, "trace": 0.9, "whiten": False, **changes})


def test_a_turns_critic_is_asked_at_its_first_token_and_credit_goes_to_all_of_them():
    ((made,),) = credited_by_critic(
        learner(Foretelling), [group(Score(1.0, turns=(0.1, 0.0)))], critic(), temperature=1.0
    )
    # δ₂ = 1 − 0.6;  δ₁ = 0.1 + 0.95 · 0.6 − 0.5
    last = 0.4
    first = 0.17 + 0.95 * 0.9 * last
    assert made.segment.advantages == pytest.approx([0, 0, 0, first, first, 0, last, last, last])
    assert made.target[[0, 2]].tolist() == pytest.approx([first + 0.5, 1.0])
    assert made.target[[1, 3, 4]].isnan().all()


def test_a_tokens_critic_is_asked_at_every_token():
    ((made,),) = credited_by_critic(
        learner(Foretelling), [group(Score(1.0))], critic(level="token", discount=1.0, trace=1.0), temperature=1.0
    )
    assert [made.segment.advantages[k] for k in (3, 4, 6, 7, 8)] == pytest.approx([0.5, -8.0, 0.4, -8.0, -8.0])
    assert made.target.tolist() == pytest.approx([1.0] * 5)


def test_whitening_is_over_the_turns_of_all_trajectories():
    made = credited_by_critic(
        learner(Foretelling), [group(Score(1.0), Score(0.0))], critic(whiten=True), temperature=1.0
    )[0]
    per_turn = torch.tensor([each.segment.advantages[k] for each in made for k in (3, 6)])
    assert per_turn.mean().item() == pytest.approx(0, abs=1e-6)
    assert per_turn.std().item() == pytest.approx(1, abs=1e-4)


def test_what_is_removed_from_training_gets_no_credit():
    removed = group(Score(1.0), removal=Removal.LOSS_ONLY)
    assert credited_by_critic(learner(Foretelling), [removed, group()], critic(), temperature=1.0) == [[], []]


def test_a_critic_that_is_trained_foretells_what_it_was_told():
    made = learner()
    with torch.no_grad():  # states that differ, as a trained model's do
        made.policy.model.get_input_embeddings().weight.mul_(50)
    batch = [segment([1, 2, 3], [0, 1, 1]), segment([7, 8, 9], [0, 1, 1])]
    targets = torch.tensor([1.0, 1.0, -1.0, -1.0])

    def loss(outputs, micro):
        from whetstone.algorithms import squared_value

        wanted = torch.cat([targets[2 * i : 2 * i + 2] for i in micro.indices])
        return squared_value(outputs.values, wanted)

    before = [p.clone() for p in made.policy.model.parameters()]
    made.settings = made.settings.model_copy(update={"max_gradient_norm": 100.0})
    made.optimizers._optimizers[0].param_groups[0]["lr"] = 0.0  # set anew at each update
    made.optimizers._peaks = [[0.05]]
    losses = [made.update(batch, loss)["loss"] for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    # its gradient stops in front of the policy's own layers
    assert all(torch.equal(a, b) for a, b in zip(before, made.policy.model.parameters(), strict=True))
    assert made.values(batch)[0].tolist() == pytest.approx([1.0, 1.0], abs=0.5)
