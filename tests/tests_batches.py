"""Ragged batches, trees and masks: the same numbers as nested Python and as the columns estimators read.

Nested: a list of trajectories (dicts), each with `turns` (dicts), each with `tokens` (dicts). Naive implementations
read that; the ones under test read columns.
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
    made = {name: draw(UNIT) for name in (*CRITICS, *SLOW, "answer_beliefs", "progress")}
    return made | {
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
    """Trajectories of one to three tasks, some forked from their siblings, some alone, some without a turn."""
    made, nodes = [], 0
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
        made += siblings
    return made


def columns(batch):
    """Every column an estimator may ask for, by name."""
    found = {}
    turn_list = [(i, t, turn) for i, tr in enumerate(batch) for t, turn in enumerate(tr["turns"])]
    token_list = [(m, i, tok) for m, (i, _, turn) in enumerate(turn_list) for tok in turn["tokens"]]

    def put(name, numbers, whole=False):
        found[name] = torch.tensor(list(numbers), dtype=torch.long if whole else torch.float64)

    for name in ("outcomes", "hardness", "greedy_rewards", "action_rewards"):
        put(name, (tr[name] for tr in batch))
    for name in ("token_values", *CRITICS, *SLOW):
        put(f"last_{name}", (tr[f"last_{name}"] for tr in batch))
    put("group", (tr["group"] for tr in batch), whole=True)
    put("roles", (tr["roles"] for tr in batch), whole=True)
    put("rewards", map(earned, batch))
    put("lengths", (sum(len(turn["tokens"]) for turn in tr["turns"]) for tr in batch))
    put("trajectory", (i for i, _, _ in turn_list), whole=True)
    put("turn_index", (t for _, t, _ in turn_list), whole=True)
    put("nodes", (turn["node"] for _, _, turn in turn_list), whole=True)
    for name in (*CRITICS, *SLOW, "answer_beliefs", "progress", "process_rewards", "implicit", "matched", "grounded",
                 "first_attempt"):  # fmt: skip
        put(name, (turn[name] for _, _, turn in turn_list))
    for name in ("state_keys", "tags"):
        put(name, (turn[name] for _, _, turn in turn_list), whole=True)
    put("turn_rewards", (r for tr in batch for r in turn_rewards(tr)))
    put("turn_entropies", (mean([k["entropies"] for k in turn["tokens"]]) for _, _, turn in turn_list))
    put("turn", (m for m, _, _ in token_list), whole=True)
    put("token_trajectory", (i for _, i, _ in token_list), whole=True)
    put("call_tokens", (turn_list[m][2]["calls"] for m, _, _ in token_list))
    put("token_rewards", (r for tr in batch for r in token_rewards(tr)))
    for name in ("token_values", "entropies", "old_logprobs", "reference_logprobs", "model_logprobs"):
        put(name, (tok[name] for _, _, tok in token_list))
    return found


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else math.nan


def earned(trajectory):
    return trajectory["outcomes"] + sum(turn["process_rewards"] for turn in trajectory["turns"])


def turn_rewards(trajectory):
    found = [turn["process_rewards"] for turn in trajectory["turns"]]
    if found:
        found[-1] += trajectory["outcomes"]
    return found


def token_rewards(trajectory):
    """On the last action token of each turn; of turns without one, nothing, and the outcome on the last of all."""
    found = []
    for turn in trajectory["turns"]:
        count = len(turn["tokens"])
        found += [turn["process_rewards"] if k == count - 1 else 0.0 for k in range(count)]
    if found:
        found[-1] += trajectory["outcomes"]
    return found


def asked(function, found, **options):
    """What `function` says of these columns: each parameter is the column of its name."""
    parameters = inspect.signature(function).parameters.values()
    return function(*(found[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), **options)


def advantages_of(said):
    """The advantages of an estimator, whether or not it says targets too."""
    return getattr(said, "advantages", said)


def of(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def whole(*numbers):
    return torch.tensor(numbers, dtype=torch.long)


def of_ratios(function, ratios, advantages, *, old=1.0, **options):
    """(values, gradients, metrics) of an objective on tokens with these ratios to the old policy."""
    learner = (of(*ratios) * old).log().requires_grad_()
    found = function(learner, torch.full_like(learner, old).log().detach(), of(*advantages), **options)
    found.loss.sum().backward()
    return found.loss.tolist(), learner.grad.tolist(), found.metrics
