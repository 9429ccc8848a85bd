"""Sequence-level quantities are computed per trajectory, for any number of segments and forward passes."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from support.forward_passes import recorder
from support.small import SMALL
from whetstone.algorithms import LossTerm, column_names, token_weights
from whetstone.algorithms.importance_sampling import geometric, sequence_masked, sequence_truncated
from whetstone.algorithms.objectives import clipped, gmpo, gspo
from whetstone.assembly.assembly import assemble
from whetstone.chat import assistant, user
from whetstone.learning.learner import LocalLearner
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.policies import build_tiny
from whetstone.recipe import OptimizerSettings, load_recipe
from whetstone.trajectory import Author, EndReason, Group, Score, Segment, Task, Tokens, Trajectory, Turn

WIDE = {"clip_low": 0.2, "clip_high": 0.2}


def tiny():
    tiny = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)
    tiny.model.double()
    return tiny


def piece(name, index, context, action, advantage, turn):
    """A segment whose last tokens were sampled."""
    ids = (*context, *action)
    authors = (Author.ENVIRONMENT,) * len(context) + (Author.POLICY,) * len(action)
    mask = tuple(author is Author.POLICY for author in authors)
    tokens = Tokens(ids, authors, (math.nan,) * len(ids), (0,) * len(ids), (math.nan,) * len(ids))
    return Segment(name, index, tokens, mask, (turn,) * len(ids), tuple(advantage * m for m in mask))


SEGMENTS = [
    piece("a", 0, [1, 2, 3], [4, 5, 6], 1.0, 0),
    piece("b", 0, [1, 2, 3], [9, 8], -0.5, 0),
    piece("a", 1, [11, 12], [13, 14, 15], 1.0, 1),
    piece("c", 0, [21, 22, 23, 24], [25], 0.0, 0),
    piece("b", 1, [31, 32, 33], [34, 35, 36, 37], -0.5, 1),
]
APART = [[0.12, 0.03, 0.05], [0.02, -0.03], [-0.2, -0.1, -0.05], [0.4], [-0.3, 0.2, 0.01, 0.02]]
"""Log-ratios to the old policy; those of "a" have a mean of 0.0667 in one segment and −0.1167 in the other."""


def by_learner(objective, correction, budget, mode=None):
    """Return (loss, gradients, metrics) of an update of the learner."""
    learner = recorder(tiny(), OptimizerSettings(micro_batch_tokens=budget))
    old = [now - torch.tensor(gaps) for now, gaps in zip(learner.logprobs(SEGMENTS), APART, strict=True)]
    loss = UpdateLoss([LossTerm("policy", objective, correction=correction)], old, weights=weights_of(mode))
    loss.compute_whole(SEGMENTS, lambda to: learner.show(SEGMENTS, to))
    metrics = learner.step(SEGMENTS, loss)
    return metrics["loss/total"], learner.passes.kept, metrics


def test_all_segments_are_shown_at_once():
    learner = recorder(tiny(), OptimizerSettings(micro_batch_tokens=8))
    calls = []
    learner.show(SEGMENTS, lambda outputs, micro: calls.append((outputs, micro)))
    ((outputs, micro),) = calls
    expected = learner.logprobs(SEGMENTS)
    assert sorted(micro.indices) == list(range(len(SEGMENTS)))
    for i, logprobs in micro.by_segment(outputs.logprobs):
        assert torch.equal(logprobs, expected[i])


def weights_of(mode):
    if mode is None:
        return None
    lengths = {"a": 6, "b": 6, "c": 1}
    weights = dict(zip(lengths, (token_weights(torch.tensor([6, 6, 1]), mode) * 13).tolist(), strict=True))
    return [weights[segment.trajectory_id] for segment in SEGMENTS]


def at_once(objective, correction, mode=None):
    """Compute the same in one graph over all tokens."""
    model = copy.deepcopy(tiny().model)
    now, advantages, sequence, turn, weight = [], [], [], [], []
    for k, s in enumerate(SEGMENTS):
        wanted = [i for i in range(1, len(s)) if s.action_mask[i]]
        logits = model(torch.tensor([s.tokens.ids]), use_cache=False).logits[0, [i - 1 for i in wanted]]
        now.append(torch.log_softmax(logits, -1)[range(len(wanted)), [s.tokens.ids[i] for i in wanted]])
        advantages += [s.advantages[i] for i in wanted]
        sequence += ["abc".index(s.trajectory_id)] * len(wanted)
        turn += [s.index] * len(wanted)
        weight += [(weights_of(mode) or [1.0] * 5)[k]] * len(wanted)
    logprobs = torch.cat(now)
    old = logprobs.detach() - torch.tensor([gap for gaps in APART for gap in gaps], dtype=torch.float64)
    known = {
        "learner_logprobs": logprobs,
        "old_logprobs": old,
        "sampler_logprobs": old,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "sequence": torch.tensor(sequence),
        "turn": torch.tensor(turn),
    }
    losses = objective(*(known[name] for name in column_names(objective))).loss
    if correction is not None:
        losses = losses * correction(*(known[name] for name in column_names(correction)))
    loss = (losses * torch.tensor(weight, dtype=torch.float64)).sum() / len(old)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def wide(learner_logprobs, old_logprobs, advantages, sequence, turn):
    return gspo(learner_logprobs, old_logprobs, advantages, sequence, turn, **WIDE)


def coupled(learner_logprobs, old_logprobs, advantages, sequence):
    """A custom objective whose token losses have gradients on other tokens of the trajectory."""
    sums = torch.zeros(int(sequence.max()) + 1, dtype=learner_logprobs.dtype).index_add(0, sequence, learner_logprobs)
    return clipped(learner_logprobs, old_logprobs, advantages * sums[sequence].exp())


OBJECTIVES = {"gspo": gspo, "wide": wide, "gmpo": gmpo, "coupled": coupled, "clipped": clipped}
CORRECTIONS = {"none": None, "truncated": sequence_truncated, "masked": sequence_masked, "geometric": geometric}


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradient_equal_those_of_one_graph(objective, correction, budget):
    loss, gradients_by_parameter, _ = by_learner(OBJECTIVES[objective], CORRECTIONS[correction], budget)
    expected, gradients = at_once(OBJECTIVES[objective], CORRECTIONS[correction])
    assert loss == pytest.approx(expected, rel=1e-6)
    for actual, reference in zip(gradients_by_parameter, gradients, strict=True):
        assert torch.allclose(actual, reference, atol=1e-6)


@pytest.mark.parametrize("mode", ["sequence_mean", "sequence_sum"])
def test_aggregation_modes_weigh_the_same_sequences(mode):
    loss, gradients_by_parameter, _ = by_learner(wide, None, 12, mode)
    expected, gradients = at_once(wide, None, mode)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert all(
        torch.allclose(actual, reference, atol=1e-6)
        for actual, reference in zip(gradients_by_parameter, gradients, strict=True)
    )


def test_ratio_is_over_all_tokens_of_a_trajectory():
    # "a": mean of .12 .03 .05 −.2 −.1 −.05 = −.025, e^−.025 = .9753; its halves would have 1.069 and .890
    _, _, metrics = by_learner(wide, None, 1)
    mean_b, mean_c = (0.02 - 0.03 - 0.3 + 0.2 + 0.01 + 0.02) / 6, 0.4
    expected = (6 * math.exp(-0.025) + 6 * math.exp(mean_b) + math.exp(mean_c)) / 13
    assert metrics["policy/ratio"] == pytest.approx(expected, abs=1e-5)


# -- in a run


def turn(number, context, action, *, opens):
    """Build a turn whose stored log-probs are slightly higher than those of the model, so that ratios are not 1."""
    drawn = Tokens.from_samples(
        action, logprobs=[-4.0 - 0.1 * k for k in range(len(action))], versions=[0] * len(action),
        entropies=[0.0] * len(action),
    )  # fmt: skip
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), drawn, assistant(str(number)), opens_segment=opens)


def groups(*rewards):
    """Build one task per list of rewards; the second turn rewrites the context, so each trajectory has two segments."""
    built = []
    for g, of in enumerate(rewards):
        paths = []
        for k, reward in enumerate(of):
            stem = [1 + g, 2, 3]
            turns = (
                turn(0, stem, [4 + k, 5, 6], opens=True),
                turn(1, [*stem, 7, 8 + k], [9, 10, 11 + k, 12], opens=True),
            )
            name = f"group-{g}/t#{k}"
            paths.append(Trajectory(name, "t", (user("x"),), turns, EndReason.TERMINATED, score=Score(reward)))
        built.append(Group(Task(f"t{g}", "x"), tuple(paths), number=g))
    return built


def train(sampled, *changes, budget=4096):
    """Train on these groups; return the metrics and the weights after the step."""
    plain = [change for change in SMALL if not change.startswith("supervised.")]
    steps = [
        f"reinforcement.micro_batch_tokens={budget}",
        "reinforcement.warmup_fraction=0",
        "reinforcement.max_mismatch_kl=.inf",
    ]
    resolved = load_recipe("demo", [*plain, "supervised=null", "ablations=null", *steps, *changes])
    assembly = assemble(resolved)
    settings = resolved.recipe.reinforcement
    learner = LocalLearner(ModelTrainer(assembly.policy, settings), assembly.learning_spec(settings))
    step_metrics = learner.update(UpdateBatch(tuple(sampled), version=0))
    return step_metrics.metrics, [p.detach().clone() for p in assembly.policy.model.parameters()]


KEPT = ["importance_correction={name: sequence_truncated, high: 1.3}"]


@pytest.mark.parametrize("changes", [["objective=gspo"], ["objective=gmpo"], ["objective=clipped", *KEPT]])
def test_division_into_forward_passes_has_no_effect(changes):
    many = [*changes, "reinforcement.minibatches=1", "reinforcement.epochs=2", "aggregation=sequence_mean"]
    metrics, weights = train(groups([1.0, 0.0], [0.0, 0.0]), *many, budget=1000)
    separate, others = train(groups([1.0, 0.0], [0.0, 0.0]), *many, budget=1)
    for name in ("loss/total", "policy/ratio", "policy/update_kl", "policy/clip_fraction", "policy/entropy"):
        assert metrics[name] == pytest.approx(separate[name], rel=1e-4), name
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights, others, strict=True))


def test_step_metrics_are_over_all_action_tokens():
    alone, _ = train(groups([1.0, 0.0]))
    equal, _ = train(groups([0.0, 0.0]))
    both, _ = train(groups([1.0, 0.0], [0.0, 0.0]))
    # 14 action tokens per group; the tokens of the second task differ, so their metrics differ
    second, _ = train([replace(groups([1.0, 0.0], [1.0, 0.0])[1], number=0)])
    for name in ("policy/entropy", "policy/ratio", "policy/update_kl", "sampler/mismatch_mean", "sampler/mismatch_kl"):
        assert both[name] == pytest.approx((alone[name] + second[name]) / 2, rel=1e-5), name
        assert equal[name] == pytest.approx(alone[name], rel=1e-5), name
    assert alone["policy/entropy"] != pytest.approx(second["policy/entropy"], rel=1e-6)
    assert (equal["update/tokens"], both["update/tokens"]) == (14, 28)
    assert (equal["update/skipped_fraction"], both["update/skipped_fraction"]) == (1, 0)


@pytest.mark.parametrize("changes", [[], ["aggregation=sequence_mean"], ["reinforcement.reference_kl=0.1"]])
def test_reported_loss_is_the_optimized_one(changes):
    sampled = groups([1.0, 0.0], [0.0, 0.0])
    off = ["advantage={name: group_relative, scale: false}", *changes]
    # ratios are 1, so the objective is minus each token's advantage: ±1/2, over all 28 tokens
    metrics, _ = train(sampled, *off)
    assert metrics["loss/total"] == pytest.approx(0.0, abs=1e-6)
    metrics, _ = train([replace(sampled[0], trajectories=(longer(sampled[0]), sampled[0].trajectories[1]))], *off)
    per_token = {(): 0.5 * (7 - 9) / 16, ("aggregation=sequence_mean",): 0.0}.get(tuple(changes), 0.5 * (7 - 9) / 16)
    assert metrics["loss/total"] == pytest.approx(per_token, abs=1e-6)


def longer(group):
    """Extend the last turn of the first trajectory of a group by two tokens."""
    first = group.trajectories[0]
    last = turn(1, first.turns[1].context.ids, [*first.turns[1].action.ids, 13, 14], opens=True)
    return replace(first, turns=(first.turns[0], last))


def test_mismatch_is_over_every_sampled_token():
    sampled = groups([1.0, 0.0], [0.0, 0.0])
    metrics, _ = train(sampled)
    resolved = load_recipe("demo", [*(c for c in SMALL if not c.startswith("supervised.")), "supervised=null"])
    learner = ModelTrainer(assemble(resolved).policy, resolved.recipe.reinforcement)
    segments = [s for group in sampled for t in group.trajectories for s in t.segments()]
    logprobs = torch.cat(learner.logprobs(segments))
    drawn = torch.tensor([x for s in segments for x in s.tokens.logprobs if not math.isnan(x)])
    assert metrics["sampler/mismatch_mean"] == pytest.approx((logprobs - drawn).abs().mean().item(), rel=1e-5)
    assert metrics["sampler/mismatch_max"] == pytest.approx((logprobs - drawn).abs().max().item(), rel=1e-5)
    agreeing, at = [], 0
    for group in sampled:
        paths = []
        for path in group.trajectories:
            turns = []
            for turn_ in path.turns:
                n = len(turn_.action)
                exact = logprobs[at : at + n].tolist()
                turns.append(replace(turn_, action=replace(turn_.action, logprobs=tuple(exact))))
                at += n
            paths.append(replace(path, turns=tuple(turns)))
        agreeing.append(replace(group, trajectories=tuple(paths)))
    assert train(agreeing)[0]["sampler/mismatch_max"] < 1e-5
    assert train(agreeing)[0]["policy/ratio"] == pytest.approx(1.0)


def test_minibatches_report_the_mismatch_of_all_tokens():
    one_batch, _ = train(groups([1.0, 0.0], [0.0, 1.0]))
    halves, _ = train(groups([1.0, 0.0], [0.0, 1.0]), "reinforcement.minibatches=2", "reinforcement.epochs=2")
    for name in ("sampler/mismatch_mean", "sampler/mismatch_max", "sampler/mismatch_kl"):
        assert halves[name] == pytest.approx(one_batch[name], rel=1e-5)


def test_preference_loss_is_reported():
    metrics, _ = train(groups([1.0, 0.0]), "objective=dpo", "advantage=null")
    assert metrics["loss/total"] == pytest.approx(math.log(2), abs=1e-5)  # before any update
