"""Loss terms: every term has the value and gradient of a naive implementation, and bad terms are refused."""

import asyncio
import math
import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import support.loss_terms as custom
from support.small import SMALL, TEACHING
from whetstone.algorithms import (
    LossTerm,
    clipped,
    clipped_value,
    entropy_smoothing,
    reference_kl,
    supervised,
    truncated,
)
from whetstone.algorithms.objectives import first_attempt_kl, policy_consistency, value_consistency
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.loss_expansion import cosine_weight, expand_loss_terms
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.recipe import CriticSettings, ReinforcementSettings, load_recipe
from whetstone.rollout import GroupPlan, Independent

POSITIVE = st.floats(0.01, 3.0)
NAMES = (
    "policy", "reference_kl", "first_attempt_kl", "entropy", "consistency", "squared_drift", "value",
    "value_consistency", "imitation",
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    weights=st.fixed_dictionaries(dict.fromkeys(NAMES, POSITIVE)),
    options=st.fixed_dictionaries(
        {
            "clip": st.floats(0.05, 0.5),
            "band": st.floats(0.05, 0.5),
            "strength": st.floats(0.0, 4.0),
            "cap": st.floats(0.5, 3.0),
            "value_clip": st.floats(0.05, 0.5),
            "power": st.floats(1.5, 3.0),
        }
    ),
)
def test_values_and_gradients_of_terms_equal_loops_over_floats(seed, counts, weights, options):
    draw, total = torch.Generator().manual_seed(seed), sum(counts)

    def numbers(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    def flags(share):
        return torch.rand(total, generator=draw) < share

    now, perturbed = (-numbers(total).abs() - 0.1 for _ in range(2))
    old, sampler, reference = (now + 0.3 * numbers(total) for _ in range(3))
    entropies, usual = (numbers(total).abs() + 0.1 for _ in range(2))
    values, old_values, perturbed_values, targets = (numbers(total, 2) for _ in range(4))
    targets[flags(0.3), 0] = math.nan
    turns, advantages, expert = torch.arange(total), numbers(total), flags(0.3)
    per_segment = (torch.rand(2, len(counts), generator=draw) + 0.1).double()
    leaves = [x.requires_grad_() for x in (now, perturbed, entropies, values)]
    usual[flags(0.2)] = math.nan
    first = flags(0.5).double()

    terms = [
        LossTerm("policy", partial(clipped, clip_low=options["clip"], clip_high=options["clip"]), weights["policy"],
                 correction=partial(truncated, high=options["cap"])),
        LossTerm("reference_kl", reference_kl, weights["reference_kl"]),
        LossTerm("first_attempt_kl", first_attempt_kl, weights["first_attempt_kl"]),
        LossTerm("entropy", partial(entropy_smoothing, low=1 - options["band"], high=1 + options["band"], size=1.0,
                                    strength=options["strength"]), weights["entropy"]),
        LossTerm("consistency", policy_consistency, weights["consistency"]),
        LossTerm("squared_drift", partial(custom.squared_drift, power=options["power"]), weights["squared_drift"],
                 "all"),
        LossTerm("value", partial(clipped_value, clip=options["value_clip"]), weights["value"], "critic"),
        LossTerm("value_consistency", value_consistency, weights["value_consistency"], "critic"),
        LossTerm("imitation", supervised, weights["imitation"], "expert"),
    ]  # fmt: skip

    def split(column):
        return list(torch.split(column.detach(), counts))

    loss = UpdateLoss(
        terms,
        split(old),
        columns={
            "reference_logprobs": split(reference),
            "first_attempt": split(first),
            "critic_targets": split(targets),
            "old_critic_values": split(old_values),
        },
        weights=per_segment[0].tolist(),
        critic_weights=per_segment[1].tolist(),
        usual_entropies=usual.detach(),
    )
    micro = custom.Micro(counts, sampler=sampler.detach(), advantages=advantages, expert=expert, turns=turns)
    outputs = TokenOutputs(now, entropies, values, perturbed=TokenOutputs(perturbed, entropies, perturbed_values))
    result = loss(outputs, micro)
    gradients = torch.autograd.grad(result.loss.sum(), leaves, allow_unused=True, materialize_grads=True)

    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    columns = {
        "now": now, "old": old, "sampler": sampler, "advantage": advantages, "reference": reference, "first": first,
        "entropy": entropies, "usual": usual, "perturbed": perturbed, "expert": expert, "scale": per_segment[0][owner],
        "critic_scale": per_segment[1][owner], "values": values, "targets": targets, "old_values": old_values,
        "perturbed_values": perturbed_values,
    }  # fmt: skip
    naive = custom.naive_update({name: column.tolist() for name, column in columns.items()}, weights, options)
    assert result.loss.sum().item() == pytest.approx(naive.loss, rel=1e-9, abs=1e-9)
    for name in NAMES:
        expected = naive.by_term.get(name, 0.0)
        assert result.metrics[f"loss/{name}"].sum().item() == pytest.approx(expected, rel=1e-9, abs=1e-9), name
    for gradient, kind in zip(gradients, ("logprobs", "perturbed", "entropies", "values"), strict=True):
        expected = torch.zeros_like(gradient)
        for place, slope in getattr(naive, kind).items():
            expected[place] = slope
        assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-9), kind


def test_metrics_of_a_term_are_those_of_its_tokens():
    terms = [LossTerm("policy", clipped), LossTerm("imitation", supervised, 0.5, "expert")]
    now = torch.tensor([-1.0, -2.0, -3.0])
    micro = custom.Micro([3], sampler=now, advantages=torch.ones(3), expert=torch.tensor([False, False, True]),
                         turns=torch.zeros(3, dtype=torch.long))  # fmt: skip
    result = UpdateLoss(terms, [now])(TokenOutputs(now, now), micro)
    assert result.metrics["loss/imitation"].tolist() == [0.0, 0.0, 1.5]
    assert result.metrics["policy/token_probability"].isnan().tolist() == [True, True, False]
    assert result.metrics["loss/policy"].tolist() == [-1.0, -1.0, 0.0]
    assert result.loss.tolist() == [-1.0, -1.0, 1.5]


def test_a_weight_can_follow_half_a_cosine_and_options_a_schedule():
    weight = cosine_weight(0.4, 0.2, 10)
    term = LossTerm("x", custom.squared_drift, weight, scheduled={"power": lambda step, position: 1.0 + position})
    assert [term.resolve(step, 0).weight for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert term.resolve(5, 0, scale=10).weight == pytest.approx(3.0)
    assert term.resolve(0, 2).function.keywords == {"power": 3.0}


def test_settings_are_short_forms_of_terms():
    chosen = ReinforcementSettings(
        reference_kl=0.1, first_attempt_kl=0.2, entropy={"weight": 0.3, "band": 0.2},
        consistency_regularization={"policy": 0.4, "value": 0.5}, imitation={"weight": 0.25, "mixed": True},
    )  # fmt: skip
    added = LossTerm("mine", custom.squared_drift)
    terms = expand_loss_terms(chosen, clipped, critic=CriticSettings(weight=2.0), added=[added])
    resolved = {term.name: (term.resolve(0, 0).weight, term.over) for term in terms}
    assert resolved == {
        "policy": (0.75, "sampled"), "reference_kl": (0.1, "sampled"), "first_attempt_kl": (0.2, "sampled"),
        "entropy": (0.3, "sampled"), "consistency": (0.4, "sampled"), "mine": (1.0, "sampled"),
        "value": (2.0, "critic"), "value_consistency": (1.0, "critic"), "imitation": (0.25, "expert"),
    }  # fmt: skip
    assert [term.name for term in expand_loss_terms(ReinforcementSettings(), clipped)] == ["policy"]


def small(*overrides):
    return load_recipe("demo", [*SMALL, "ablations=null", TEACHING, *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss_terms=[reference_kll]"], 'loss_terms.0: no loss term.*did you mean "reference_kl"'),
        (["loss_terms=[dpo]"], "loss_terms.0: no loss term"),
        (["loss_terms=['support.loss_terms:of_nothing']"], r"loss_terms.0: of_nothing reads unheard_of.*@provides"),
        (["loss_terms=['support.loss_terms:of_values']"], "reads critic_values.* set critic: {}"),
        (["loss_terms=['support.loss_terms:of_noise']"], "reads perturbed_logprobs.*consistency_regularization: {}"),
        (["loss_terms=[on_policy_distillation]"], "loss_terms.0: .*teacher_logprobs.*set teacher"),
        (["loss_terms=['support.loss_terms:averaged']"], r"loss term \(averaged\): 8 losses are expected"),
        (["loss_terms=[entropy, entropy]"], 'loss_terms.1: "entropy" is listed twice'),
        (["loss_terms=[reference_kl]", "reinforcement.reference_kl=0.1"], 'add a loss "reference_kl" already'),
        (["loss_terms=[{name: entropy, over: critic}]"], "loss_terms.0.over: critic: there are no critics"),
        (["loss_terms=[{name: supervised, over: expert}]"], "loss_terms.0.over: expert: .*reinforcement.imitation"),
        (["loss_terms=[{name: entropy, over: some}]"], "loss_terms.0.over"),
        (["loss_terms=[{name: reference_kl, estimator: k7}]"], "loss_terms.0.estimator"),
        (["loss_terms=[{name: entropy, weight: {start: 1}}]"], "loss_terms.0.weight"),
    ],
)
def test_a_term_that_cannot_be_computed_is_refused_in_one_line(overrides, message):
    with pytest.raises(RecipeError) as failure:
        assemble(small(*overrides)).check()
    line = str(failure.value)
    assert re.search(message, line), line
    assert "\n" not in line


def updated(*overrides):
    assembly = assemble(small("rollout.group_size=3", "reinforcement.max_mismatch_kl=.inf", *overrides))
    chosen = assembly.resolved.recipe.reinforcement
    learner = LocalLearner(ModelTrainer(assembly.policy, chosen), assembly.learning_spec(chosen))

    async def sample():
        engine = LocalEngine(assembly.policy.model, context_length=assembly.policy.context_length)
        try:
            collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
            return await collector.group(
                GroupPlan(assembly.source.task(0), seed=3, name="group-0/"), Independent(group_size=3)
            )
        finally:
            await engine.close()

    group = asyncio.run(sample())
    metrics = learner.update(UpdateBatch((group,))).metrics
    return metrics, [p.detach().clone() for p in assembly.policy.model.parameters()]


def test_a_term_of_a_recipe_is_that_of_its_short_form_and_a_custom_one_is_reported():
    short, weights = updated("reinforcement.entropy={weight: 0.01}")
    named, same = updated("loss_terms=[{name: entropy, weight: 0.01}]")
    assert short["loss/entropy"] == named["loss/entropy"] < 0
    assert all(torch.equal(one, other) for one, other in zip(weights, same, strict=True))
    metrics, _ = updated("loss_terms=[{name: 'support.loss_terms:rewarded', weight: 0.5}]")
    assert "loss/rewarded" in metrics
    assert metrics["loss/total"] == pytest.approx(metrics["loss/policy"] + metrics["loss/rewarded"])
