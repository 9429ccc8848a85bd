"""Ragged batches, trees and masks: equal numbers as nested Python and as the columns of estimators.

Nested: a list of trajectories (dicts), each with `turns` (dicts), each with `tokens` (dicts). Naive implementations
read the nested form, tested ones the columns.
"""

import inspect
import math

import torch
from hypothesis import strategies as st

NUMBER = st.sampled_from([0.0, 0.0, 1.0, 1.0, -1.0, 0.5, 0.1, -0.3, 2.0])
UNIT = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.9, 1.0])
LOG = st.floats(-3, -0.01)
CRITICS = ("values", "twin_values", "potentials", "contributions", "action_values", "twin_action_values")
SLOW = ("slow_values", "slow_twin_values", "slow_action_values", "slow_twin_action_values")


@st.composite
def tokens(draw):
    return {
        "token_values": draw(NUMBER),
        "entropies": draw(st.floats(0, 2)),
        "old_logprobs": draw(LOG),
        "reference_logprobs": draw(LOG),
        "model_logprobs": draw(LOG),
    }


@st.composite
def turns(draw, node):
    fields = {name: draw(UNIT) for name in (*CRITICS, *SLOW, "answer_beliefs", "progress")}
    return fields | {
        "process_rewards": draw(NUMBER),
        "state_keys": draw(st.integers(0, 2)),
        "tags": draw(st.integers(-1, 1)),
        "matched": draw(st.integers(0, 1)),
        "grounded": draw(st.integers(0, 1)),
        "implicit": draw(st.floats(-1, 1)),
        "calls": draw(st.integers(0, 1)),
        "first_attempt": draw(st.integers(0, 1)),
        "node": node,
        "tokens": draw(st.lists(tokens(), max_size=3)),
    }


@st.composite
def batches(draw, forks=True):
    """Sample trajectories of one to three tasks: some are forks, some single, some without a turn."""
    trajectories, nodes = [], 0
    for group in range(draw(st.integers(1, 3))):
        siblings = []
        hardness = draw(st.sampled_from([0.5, 1.0, 3.0]))
        for _ in range(draw(st.integers(1, 4))):
            path = []
            if forks and siblings and draw(st.booleans()):
                parent = draw(st.sampled_from(siblings))
                path = parent["turns"][: draw(st.integers(0, len(parent["turns"])))]
            for _ in range(draw(st.integers(0, 3))):
                path = [*path, draw(turns(nodes))]
                nodes += 1
            trajectory = {
                "group": group,
                "turns": path,
                "outcomes": draw(NUMBER),
                "hardness": hardness,
                "greedy_rewards": draw(NUMBER),
                "action_rewards": draw(NUMBER),
                "roles": draw(st.integers(0, 1)),
                **{f"last_{name}": draw(UNIT) for name in ("token_values", *CRITICS, *SLOW)},
            }
            siblings.append(trajectory)
        trajectories += siblings
    return trajectories


def columns(batch):
    """Return every column that an estimator can read, by name."""
    by_name = {}
    turn_list = [(i, t, turn) for i, tr in enumerate(batch) for t, turn in enumerate(tr["turns"])]
    token_list = [(m, i, tok) for m, (i, _, turn) in enumerate(turn_list) for tok in turn["tokens"]]

    def put(name, numbers, is_integer=False):
        by_name[name] = torch.tensor(list(numbers), dtype=torch.long if is_integer else torch.float64)

    for name in ("outcomes", "hardness", "greedy_rewards", "action_rewards"):
        put(name, (tr[name] for tr in batch))
    for name in ("token_values", *CRITICS, *SLOW):
        put(f"last_{name}", (tr[f"last_{name}"] for tr in batch))
    put("group", (tr["group"] for tr in batch), is_integer=True)
    put("roles", (tr["roles"] for tr in batch), is_integer=True)
    put("rewards", map(earned, batch))
    put("lengths", (sum(len(turn["tokens"]) for turn in tr["turns"]) for tr in batch))
    put("trajectory", (i for i, _, _ in turn_list), is_integer=True)
    put("turn_index", (t for _, t, _ in turn_list), is_integer=True)
    put("nodes", (turn["node"] for _, _, turn in turn_list), is_integer=True)
    for name in (*CRITICS, *SLOW, "answer_beliefs", "progress", "process_rewards", "implicit", "matched", "grounded",
                 "first_attempt"):  # fmt: skip
        put(name, (turn[name] for _, _, turn in turn_list))
    for name in ("state_keys", "tags"):
        put(name, (turn[name] for _, _, turn in turn_list), is_integer=True)
    put("turn_rewards", (r for tr in batch for r in turn_rewards(tr)))
    put("turn_entropies", (mean([k["entropies"] for k in turn["tokens"]]) for _, _, turn in turn_list))
    put("turn", (m for m, _, _ in token_list), is_integer=True)
    put("token_trajectory", (i for _, i, _ in token_list), is_integer=True)
    put("call_tokens", (turn_list[m][2]["calls"] for m, _, _ in token_list))
    put("token_rewards", (r for tr in batch for r in token_rewards(tr)))
    for name in ("token_values", "entropies", "old_logprobs", "reference_logprobs", "model_logprobs"):
        put(name, (tok[name] for _, _, tok in token_list))
    return by_name


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else math.nan


def earned(trajectory):
    return trajectory["outcomes"] + sum(turn["process_rewards"] for turn in trajectory["turns"])


def turn_rewards(trajectory):
    rewards = [turn["process_rewards"] for turn in trajectory["turns"]]
    if rewards:
        rewards[-1] += trajectory["outcomes"]
    return rewards


def token_rewards(trajectory):
    """Place rewards on the last action token of each turn, and the outcome on the last of all."""
    rewards = []
    for turn in trajectory["turns"]:
        count = len(turn["tokens"])
        rewards += [turn["process_rewards"] if k == count - 1 else 0.0 for k in range(count)]
    if rewards:
        rewards[-1] += trajectory["outcomes"]
    return rewards


def call_with_columns(function, by_name, **options):
    """Call a function with the columns of its parameter names."""
    parameters = inspect.signature(function).parameters.values()
    return function(*(by_name[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), **options)


def advantages_of(result):
    """Return the advantages of an estimator with or without targets."""
    return getattr(result, "advantages", result)


def of(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def integers(*numbers):
    return torch.tensor(numbers, dtype=torch.long)


def of_ratios(function, ratios, advantages, *, old=1.0, **options):
    """Return (values, gradients, metrics) of an objective on tokens with these ratios to the old policy."""
    learner = (of(*ratios) * old).log().requires_grad_()
    loss = function(learner, torch.full_like(learner, old).log().detach(), of(*advantages), **options)
    loss.loss.sum().backward()
    return loss.loss.tolist(), learner.grad.tolist(), loss.metrics
