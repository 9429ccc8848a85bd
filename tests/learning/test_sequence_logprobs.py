"""Losses on sums of log-probs have the gradient of one graph, for any division into micro-batches."""

import copy
from dataclasses import replace

import pytest
import torch

from support.forward_passes import recorder
from whetstone.algorithms import LossTerm
from whetstone.algorithms.objectives import dpo, refuel, step_dpo
from whetstone.algorithms.returns import reward_to_go
from whetstone.chat import assistant, user
from whetstone.learning.columns import Columns
from whetstone.learning.learner import _by_coefficients
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.sequence_logprobs import build_sequence_logprobs, compute_coefficients
from whetstone.learning.token_index import index_groups
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn


def turn(number, context, action):
    sampled = Tokens.from_samples(
        action, logprobs=[-1.0] * len(action), versions=[0] * len(action), entropies=[0.0] * len(action)
    )
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), sampled, assistant("x"), opens_segment=number == 0)


def forest():
    """Build two tasks; in the first the second trajectory forks from the first after its first turn."""
    stem, other = turn(0, [1, 2, 3], [4, 5]), turn(0, [1, 2, 3], [9])
    alone = turn(0, [7, 8], [4, 4, 4]), turn(0, [7, 8], [6])
    paths = {
        "a": (stem, turn(1, [6], [7, 8])),
        "b": (stem, turn(1, [6], [10])),
        "c": (other, turn(1, [11], [12, 13])),
        "d": (alone[0],),
        "e": (alone[1],),
    }
    rewards = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0, "e": 1.0}
    trajectories = {
        name: Trajectory(name, "t", (user("x"),), turns, EndReason.TERMINATED, score=Score(rewards[name]))
        for name, turns in paths.items()
    }
    tasks = Task("t", "x"), Task("u", "x")
    return [
        Group(tasks[0], (trajectories["a"], trajectories["b"], trajectories["c"])),
        Group(tasks[1], (trajectories["d"], trajectories["e"])),
    ]


def policy():
    tiny = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)
    tiny.model.double()
    return tiny


def by_learner(objective, level, budget):
    learner = recorder(policy(), OptimizerSettings(micro_batch_tokens=budget))
    columns = Columns(index_groups(forest()), learner=learner)
    placed = [(i, k) for i, trajectory in enumerate(columns.trajectories) for k in range(len(trajectory.segments))]
    segments = [columns.trajectories[i].segments[k] for i, k in placed]
    now = learner.logprobs(segments)
    before = [of - 0.3 * torch.arange(len(of)) for of in now]
    per_token, value, _ = compute_coefficients(
        objective, build_sequence_logprobs(columns, placed, level), {"learner": now, "old": before, "reference": before}
    )
    tokens = sum(map(len, now))
    shares = [torch.full((len(of),), 5 * value / tokens) for of in now]
    of_tokens = {"coefficients": [5 * of for of in per_token], "shares": shares}
    loss = UpdateLoss([LossTerm("policy", _by_coefficients)], now, columns=of_tokens)
    assert learner.step(segments, loss, divisor=5)["loss/total"] == pytest.approx(value)
    return value, learner.passes.kept, columns, segments, before


def logprobs(model, segments):
    values = []
    for s in segments:
        wanted = [i for i in range(1, len(s)) if s.action_mask[i]]
        logits = model(torch.tensor([s.tokens.ids]), use_cache=False).logits[0, [i - 1 for i in wanted]]
        values.append(torch.log_softmax(logits, -1)[range(len(wanted)), [s.tokens.ids[i] for i in wanted]])
    return values


@pytest.mark.parametrize("budget", [1, 12, 100])
def test_gradients_of_pairs_of_trajectories(budget):
    value, gradients, columns, segments, before = by_learner(dpo, "trajectory", budget)
    model = copy.deepcopy(policy().model)
    sums = torch.stack([of.sum() for of in logprobs(model, segments)])
    reference = torch.stack([of.sum() for of in before])
    keys, lengths = torch.arange(5), torch.tensor([len(of) for of in before])
    expected = dpo(sums, reference, columns["rewards"], columns["group"], keys, lengths).loss
    expected.backward()
    assert value == pytest.approx(expected.item())
    for actual, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(actual, parameter.grad, atol=1e-6)


@pytest.mark.parametrize("objective", [step_dpo, refuel])
@pytest.mark.parametrize("budget", [1, 100])
def test_gradients_of_turns_of_a_tree(objective, budget):
    value, gradients, columns, segments, before = by_learner(objective, "turn", budget)
    model = copy.deepcopy(policy().model)
    now = logprobs(model, segments)
    # siblings: first turns of a task, and turns after the same turn; a shared turn counts once
    units = {
        "stem": (0, slice(0, 2), "t"), "other": (2, slice(0, 1), "t"), "a1": (0, slice(2, 4), "stem"),
        "b1": (1, slice(2, 3), "stem"), "c1": (2, slice(1, 3), "other"), "d": (3, slice(0, 3), "u"),
        "e": (4, slice(0, 1), "u"),
    }  # fmt: skip
    to_come = reward_to_go(columns["turn_rewards"], columns["trajectory"])
    returns = dict(zip(("a0", "a1", "b0", "b1", "c0", "c1", "d", "e"), to_come.tolist(), strict=True))
    returns |= {"stem": (returns["a0"] + returns["b0"]) / 2, "other": returns["c0"]}
    sums = torch.stack([now[i][places].sum() for i, places, _ in units.values()])
    old = torch.stack([before[i][places].sum() for i, places, _ in units.values()])
    rewards = torch.tensor([returns[name] for name in units], dtype=torch.float64)
    parents = list(dict.fromkeys(parent for *_, parent in units.values()))
    group = torch.tensor([parents.index(parent) for *_, parent in units.values()])
    if objective is refuel:
        expected = refuel(sums, old, rewards, group).loss
    else:
        count = torch.ones(len(units))
        expected = step_dpo(sums, old, rewards, group, torch.arange(len(units)), count).loss
    expected.backward()
    assert value == pytest.approx(expected.item())
    for actual, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(actual, parameter.grad, atol=1e-6)


def test_update_without_pairs_has_zero_gradient():
    groups = forest()
    equal = [replace(g, trajectories=tuple(replace(t, score=Score(1.0)) for t in g.trajectories)) for g in groups]
    columns = Columns(index_groups(equal))
    placed = [(i, k) for i, trajectory in enumerate(columns.trajectories) for k in range(len(trajectory.segments))]
    sums = build_sequence_logprobs(columns, placed, "trajectory")
    nothing = [torch.zeros(len(unit)) for unit in sums.unit]
    per_token, value, metrics = compute_coefficients(dpo, sums, {"learner": nothing, "reference": nothing})
    assert value == 0
    assert metrics == {"preference/pairs": 0.0}
    assert all((of == 0).all() for of in per_token)
