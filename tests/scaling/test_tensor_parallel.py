"""Ranks that compute each layer together learn what one process learns, and go on from one another's checkpoints."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests_learners import (
    FORMS,
    alone,
    assembled,
    assert_close,
    assert_same_update,
    cramped,
    groups,
    plain,
    together,
    weights_of,
)
from tests_models import COMMON, CONFIGS
from whetstone.errors import PolicyError, RecipeError
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.policies import add_adapters, tensor_plan
from whetstone.record.checkpoint import Position, load_checkpoint, save_checkpoint
from whetstone.scaling.learners.group_passes import GroupPasses
from whetstone.scaling.learners.shard_passes import Frozen


def of_family(kind):
    """The demo's policy with another model: biases, norms of heads, fewer key-value heads, caps, windows."""
    config = copy.deepcopy(CONFIGS[kind])
    config.vocab_size, config.intermediate_size, config.max_position_embeddings = 400, 256, 256
    if kind == "qwen3":
        config.attention_bias = True  # of the output of attention, too, which is whole
    torch.manual_seed(0)
    return replace(assembled().policy, model=AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_that_share_each_layer_have_the_loss_and_gradient_of_one(two, form):
    assert_same_update(form, two, tensor_parallel=2)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_groups_of_two_have_the_loss_and_gradient_of_one(four, form):
    assert_same_update(form, four, tensor_parallel=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "phi"])
def test_models_of_other_families_are_shared_as_their_plans_say(four, kind):
    assert_same_update("shared-prefix", four, tensor_parallel=2, policy=lambda: of_family(kind))


@pytest.mark.slow
def test_noise_on_embeddings_is_that_of_one_process(two):
    assert_same_update("critic", two, "reinforcement.consistency_regularization={}", tensor_parallel=2)


@pytest.mark.slow
def test_groups_compute_as_many_rounds_as_one_another(four):
    small_passes = ["reinforcement.micro_batch_tokens=128", "reinforcement.minibatches=2"]
    assert_same_update("shared-prefix", four, *small_passes, tensor_parallel=2, count=3)


@pytest.mark.slow
def test_what_two_groups_of_two_saved_others_go_on_from(two, four, tmp_path):
    batch = UpdateBatch(tuple(groups()), version=0)
    several = together(assembled(), four, together=2, staging=tmp_path / "checkpoints")
    several.update(batch)
    several.end_step()
    path = save_checkpoint(
        tmp_path, several.trainer.policy, several.state_dict(), Position("reinforcement", {"r": 1}, 1)
    )
    stored = FileSystemReader(path / "trainer" / "shards").read_metadata().state_dict_metadata.values()
    sides = {
        tuple(whole > part for whole, part in zip(each.size, each.chunks[0].sizes, strict=True))
        for each in stored
        if len(each.size) == 2
    }
    assert sides == {(True, False), (True, True)}  # some are cut along both sides
    several.update(batch)
    expected = weights_of(several.trainer)
    for on, width in ((None, 1), (two, 1), (two, 2), (four, 1)):
        policy, state, _ = load_checkpoint(path)
        again = assembled(policy=policy)
        learner = alone(again) if on is None else together(again, on, together=width)
        learner.load_state_dict(state)
        learner.update(batch)
        assert_close(weights_of(learner.trainer), expected)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["one", "two"])
def test_what_others_saved_two_groups_of_two_go_on_from(two, four, tmp_path, by):
    batch = UpdateBatch(tuple(groups()), version=0)
    first = alone(assembled()) if by == "one" else together(assembled(), two, staging=tmp_path)
    first.update(batch)
    policy = replace(first.trainer.policy, model=copy.deepcopy(first.trainer.policy.model))
    several = together(assembled(policy=policy), four, together=2)
    several.load_state_dict(first.state_dict())
    first.update(batch)
    several.update(batch)
    assert_close(weights_of(several.trainer), weights_of(first.trainer))


@pytest.mark.slow
def test_memory_of_one_rank_of_a_group_is_the_decision_of_all(two):
    segments = [segment for held in index_groups(tuple(groups(size=6))) for segment in held.segments]
    cramped_for = ["reinforcement.micro_batch_tokens=160"]
    one, several = alone(assembled(*cramped_for)).trainer, together(assembled(*cramped_for), two, together=2).trainer
    for loss, its in ((plain, plain), (cramped, plain), (plain, plain)):
        several.step(segments, loss)
        one.step(segments, its)
    assert (several.out_of_memory, several.token_budget, one.token_budget) == (1, 80, 160)
    assert_close(weights_of(several), weights_of(one))


@pytest.mark.slow
def test_a_teacher_that_cannot_be_shared_is_whole_on_each_rank(two):
    segments = [segment for held in index_groups(tuple(groups())) for segment in held.segments]
    torch.manual_seed(1)
    teacher = LlamaForCausalLM(LlamaConfig(**{**COMMON, "vocab_size": 400, "num_attention_heads": 1})).eval()
    with pytest.raises(PolicyError):
        tensor_plan(teacher, 2)
    given = assembled()
    settings = given.resolved.recipe.reinforcement
    frozen = {"teacher": Frozen(teacher, offload=False)}
    passes = GroupPasses(two, given.policy, settings, together=2, frozen=frozen, staging=None)
    several = ModelTrainer(given.policy, settings, teacher=teacher, passes=passes)
    one = ModelTrainer(given.policy, settings, teacher=teacher)
    assert_close(several.logprobs(segments, of="teacher"), one.logprobs(segments, of="teacher"))


def test_a_plan_names_what_is_cut_and_the_norms_that_see_some_heads():
    torch.manual_seed(0)
    found = tensor_plan(AutoModelForCausalLM.from_config(CONFIGS["qwen3"]), 2)
    layers = [f"model.layers.{k}" for k in range(2)]
    outputs = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    inputs = ("self_attn.o_proj", "mlp.down_proj")
    assert found.cuts == {
        **{f"{layer}.{name}": "outputs" for layer in layers for name in outputs},
        **{f"{layer}.{name}": "inputs" for layer in layers for name in inputs},
    }
    assert set(found.partial) == {f"{layer}.self_attn.{norm}" for layer in layers for norm in ("q_norm", "k_norm")}


def test_adapters_are_cut_as_the_layers_they_stand_beside():
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1}))
    add_adapters(model, rank=2, alpha=4.0, target_modules=["q_proj", "o_proj"], dora=False, seed=0)
    cuts = tensor_plan(model, 2).cuts
    before, behind = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"
    assert {name: cut for name, cut in cuts.items() if name.startswith((before, behind))} == {
        f"{before}.base_layer": "outputs",
        f"{before}.lora_B.default": "outputs",
        f"{behind}.base_layer": "inputs",
        f"{behind}.lora_A.default": "inputs",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["scale.learner_processes=3"], r"3 processes .* are not groups of 2; it must divide them"),
        ([], r"has no effect: scale\.learner_processes is 1"),
        (
            ["scale.learner_processes=2", "policy.tiny.num_heads=1"],
            r"2 ranks cannot share 1 attention heads, 1 key-value heads evenly; 1 could",
        ),
        (
            ["scale.learner_processes=2", "policy.tiny.intermediate_size=15"],
            r"2 ranks cannot share 15 outputs of model\.layers\.\*\.mlp\.gate_proj, .* evenly; 1 could",
        ),
        (["scale.learner_processes=2", "policy.lora={rank: 2, dora: true}"], ".*q_proj: DoRA reads whole columns"),
    ],
)
def test_what_ranks_cannot_share_is_refused_in_a_line(changes, said):
    with pytest.raises(RecipeError, match=rf"scale\.learner_tensor_parallel: {said}") as refused:
        assembled("scale.learner_tensor_parallel=2", *changes).check()
    assert "\n" not in str(refused.value)


def test_a_model_without_a_plan_or_with_another_is_refused_by_its_type():
    with pytest.raises(PolicyError, match="models of type gpt2 have no plan in Transformers"):
        tensor_plan(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)), 2)
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1}))
    model.tp_plan = {"model.layers.*.self_attn.q_proj": "packed_colwise"}
    with pytest.raises(PolicyError, match=r'q_proj: "packed_colwise"; known are colwise, rowwise, replicated_with_'):
        tensor_plan(model, 2)
    forgetful = AutoModelForCausalLM.from_config(CONFIGS["qwen3"])
    forgetful.tp_plan = {name: style for name, style in forgetful.tp_plan.items() if not name.endswith("k_norm")}
    with pytest.raises(PolicyError, match=r"self_attn\.k_norm\.weight stands beside what their plan divides"):
        tensor_plan(forgetful, 2)
