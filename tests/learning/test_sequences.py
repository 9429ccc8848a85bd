"""What is one number for a trajectory is one number for it, in however many segments and passes its tokens lie."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from tests_passes import recorder
from tests_small import SMALL
from whetstone.algorithms import LossTerm, columns_of, token_weights
from whetstone.algorithms.corrections import geometric, sequence_masked, sequence_truncated
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
    made = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64, seed=3)
    made.model.double()
    return made


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
    """(loss, gradients, metrics) as an update of the learner has them."""
    learner = recorder(tiny(), OptimizerSettings(micro_batch_tokens=budget))
    old = [now - torch.tensor(gaps) for now, gaps in zip(learner.logprobs(SEGMENTS), APART, strict=True)]
    loss = UpdateLoss([LossTerm("policy", objective, correction=correction)], old, weights=weights_of(mode))
    loss.compute_whole(SEGMENTS, lambda to: learner.show(SEGMENTS, to))
    metrics = learner.step(SEGMENTS, loss)
    return metrics["loss/total"], learner.passes.kept, metrics


def weights_of(mode):
    if mode is None:
        return None
    lengths = {"a": 6, "b": 6, "c": 1}
    said = dict(zip(lengths, (token_weights(torch.tensor([6, 6, 1]), mode) * 13).tolist(), strict=True))
    return [said[segment.trajectory_id] for segment in SEGMENTS]


def at_once(objective, correction, mode=None):
    """The same as one graph over all tokens."""
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
    found = objective(*(known[name] for name in columns_of(objective))).loss
    if correction is not None:
        found = found * correction(*(known[name] for name in columns_of(correction)))
    loss = (found * torch.tensor(weight, dtype=torch.float64)).sum() / len(old)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def wide(learner_logprobs, old_logprobs, advantages, sequence, turn):
    return gspo(learner_logprobs, old_logprobs, advantages, sequence, turn, **WIDE)


def coupled(learner_logprobs, old_logprobs, advantages, sequence):
    """Somebody's own: tokens of a trajectory have a gradient in each other's loss."""
    sums = torch.zeros(int(sequence.max()) + 1, dtype=learner_logprobs.dtype).index_add(0, sequence, learner_logprobs)
    return clipped(learner_logprobs, old_logprobs, advantages * sums[sequence].exp())


OBJECTIVES = {"gspo": gspo, "wide": wide, "gmpo": gmpo, "coupled": coupled, "clipped": clipped}
CORRECTIONS = {"none": None, "truncated": sequence_truncated, "masked": sequence_masked, "geometric": geometric}


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradient_are_those_of_all_tokens_at_once(objective, correction, budget):
    loss, kept, _ = by_learner(OBJECTIVES[objective], CORRECTIONS[correction], budget)
    expected, gradients = at_once(OBJECTIVES[objective], CORRECTIONS[correction])
    assert loss == pytest.approx(expected, rel=1e-6)
    for ours, theirs in zip(kept, gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("mode", ["sequence_mean", "sequence_sum"])
def test_ways_to_aggregate_weigh_the_same_sequences(mode):
    loss, kept, _ = by_learner(wide, None, 12, mode)
    expected, gradients = at_once(wide, None, mode)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(kept, gradients, strict=True))


def test_a_ratio_is_that_of_all_tokens_of_a_trajectory():
    # "a": mean of .12 .03 .05 −.2 −.1 −.05 = −.025, e^−.025 = .9753; its halves alone would say 1.069 and .890
    _, _, metrics = by_learner(wide, None, 1)
    mean_b, mean_c = (0.02 - 0.03 - 0.3 + 0.2 + 0.01 + 0.02) / 6, 0.4
    expected = (6 * math.exp(-0.025) + 6 * math.exp(mean_b) + math.exp(mean_c)) / 13
    assert metrics["policy/ratio"] == pytest.approx(expected, abs=1e-5)


# -- in a run


def turn(number, context, action, *, opens):
    """A turn; what was drawn is called a bit likelier than this model finds anything, so that ratios are not 1."""
    drawn = Tokens.sampled(
        action, logprobs=[-4.0 - 0.1 * k for k in range(len(action))], versions=[0] * len(action),
        entropies=[0.0] * len(action),
    )  # fmt: skip
    return Turn(Tokens.written(context, Author.ENVIRONMENT), drawn, assistant(str(number)), opens_segment=opens)


def groups(*rewards):
    """A task a list of rewards; every trajectory is told anew in its second turn, so it lies in two segments."""
    made = []
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
        made.append(Group(Task(f"t{g}", "x"), tuple(paths), number=g))
    return made


def learned(sampled, *changes, budget=4096):
    """What a step says of these groups, and the weights behind it."""
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
    found = learner.update(UpdateBatch(tuple(sampled), version=0))
    return found.metrics, [p.detach().clone() for p in assembly.policy.model.parameters()]


KEPT = ["importance_correction={name: sequence_truncated, high: 1.3}"]


@pytest.mark.parametrize("changes", [["objective=gspo"], ["objective=gmpo"], ["objective=clipped", *KEPT]])
def test_in_a_run_it_does_not_matter_which_segments_share_a_pass(changes):
    many = [*changes, "reinforcement.minibatches=1", "reinforcement.epochs=2", "aggregation=sequence_mean"]
    metrics, weights = learned(groups([1.0, 0.0], [0.0, 0.0]), *many, budget=1000)
    apart, others = learned(groups([1.0, 0.0], [0.0, 0.0]), *many, budget=1)
    for name in ("loss/total", "policy/ratio", "policy/update_kl", "policy/clip_fraction", "policy/entropy"):
        assert metrics[name] == pytest.approx(apart[name], rel=1e-4), name
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights, others, strict=True))


def test_step_metrics_are_over_all_action_tokens_whoever_has_credit():
    alone, _ = learned(groups([1.0, 0.0]))
    equal, _ = learned(groups([0.0, 0.0]))
    both, _ = learned(groups([1.0, 0.0], [0.0, 0.0]))
    # 14 action tokens a group; the second task's tokens are others, so what is said of them is, too
    second, _ = learned([replace(groups([1.0, 0.0], [1.0, 0.0])[1], number=0)])
    for name in ("policy/entropy", "policy/ratio", "policy/update_kl", "sampler/mismatch_mean", "sampler/mismatch_kl"):
        assert both[name] == pytest.approx((alone[name] + second[name]) / 2, rel=1e-5), name
        assert equal[name] == pytest.approx(alone[name], rel=1e-5), name
    assert alone["policy/entropy"] != pytest.approx(second["policy/entropy"], rel=1e-6)
    assert (equal["update/tokens"], both["update/tokens"]) == (14, 28)
    assert (equal["update/skipped_fraction"], both["update/skipped_fraction"]) == (1, 0)


@pytest.mark.parametrize("changes", [[], ["aggregation=sequence_mean"], ["reinforcement.reference_kl=0.1"]])
def test_the_loss_that_is_reported_is_the_one_that_is_optimised(changes):
    sampled = groups([1.0, 0.0], [0.0, 0.0])
    off = ["advantage={name: group_relative, scale: false}", *changes]
    # ratios are 1, so the objective is minus each token's advantage: ±1/2, over all 28 tokens
    metrics, _ = learned(sampled, *off)
    assert metrics["loss/total"] == pytest.approx(0.0, abs=1e-6)
    metrics, _ = learned([replace(sampled[0], trajectories=(longer(sampled[0]), sampled[0].trajectories[1]))], *off)
    per_token = {(): 0.5 * (7 - 9) / 16, ("aggregation=sequence_mean",): 0.0}.get(tuple(changes), 0.5 * (7 - 9) / 16)
    assert metrics["loss/total"] == pytest.approx(per_token, abs=1e-6)


def longer(group):
    """The first trajectory of a group with two more tokens in its last turn."""
    first = group.trajectories[0]
    last = turn(1, first.turns[1].context.ids, [*first.turns[1].action.ids, 13, 14], opens=True)
    return replace(first, turns=(first.turns[0], last))


def test_sampler_and_learner_are_compared_on_every_token_that_was_drawn():
    sampled = groups([1.0, 0.0], [0.0, 0.0])
    metrics, _ = learned(sampled)
    resolved = load_recipe("demo", [*(c for c in SMALL if not c.startswith("supervised.")), "supervised=null"])
    learner = ModelTrainer(assemble(resolved).policy, resolved.recipe.reinforcement)
    segments = [s for group in sampled for t in group.trajectories for s in t.segments()]
    ours = torch.cat(learner.logprobs(segments))
    drawn = torch.tensor([x for s in segments for x in s.tokens.logprobs if not math.isnan(x)])
    assert metrics["sampler/mismatch_mean"] == pytest.approx((ours - drawn).abs().mean().item(), rel=1e-5)
    assert metrics["sampler/mismatch_max"] == pytest.approx((ours - drawn).abs().max().item(), rel=1e-5)
    agreeing, at = [], 0
    for group in sampled:
        paths = []
        for path in group.trajectories:
            turns = []
            for turn_ in path.turns:
                n = len(turn_.action)
                exact = ours[at : at + n].tolist()
                turns.append(replace(turn_, action=replace(turn_.action, logprobs=tuple(exact))))
                at += n
            paths.append(replace(path, turns=tuple(turns)))
        agreeing.append(replace(group, trajectories=tuple(paths)))
    assert learned(agreeing)[0]["sampler/mismatch_max"] < 1e-5
    assert learned(agreeing)[0]["policy/ratio"] == pytest.approx(1.0)


def test_minibatches_report_the_mismatch_of_all_their_tokens():
    whole, _ = learned(groups([1.0, 0.0], [0.0, 1.0]))
    halves, _ = learned(groups([1.0, 0.0], [0.0, 1.0]), "reinforcement.minibatches=2", "reinforcement.epochs=2")
    for name in ("sampler/mismatch_mean", "sampler/mismatch_max", "sampler/mismatch_kl"):
        assert halves[name] == pytest.approx(whole[name], rel=1e-5)


def test_a_preference_loss_is_reported_as_it_is():
    metrics, _ = learned(groups([1.0, 0.0]), "objective=dpo", "advantage=null")
    assert metrics["loss/total"] == pytest.approx(math.log(2), abs=1e-5)  # before anything moved
