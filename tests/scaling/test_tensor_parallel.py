"""Tensor-parallel ranks compute the updates of one process, and checkpoints are interchangeable."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from support.learners import (
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
from support.models import COMMON, CONFIGS
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import Member
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.learning.token_index import index_groups
from whetstone.policies import Policy, add_adapters, tensor_plan
from whetstone.record.checkpoint import Position, load_checkpoint, save_checkpoint
from whetstone.scaling.distributed_learner.group_passes import GroupPasses
from whetstone.scaling.distributed_learner.shard_passes import Frozen


def of_family(kind):
    """Build the policy of the demo with another architecture: biases, norms of heads, fewer KV heads, caps, windows."""
    config = copy.deepcopy(CONFIGS[kind])
    config.vocab_size, config.intermediate_size, config.max_position_embeddings = 400, 256, 256
    if kind == "qwen3":
        config.attention_bias = True  # also of the attention output, which is not sharded
    torch.manual_seed(0)
    return replace(assembled().policy, model=AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_tensor_parallel_ranks_compute_loss_and_gradient_of_one(two, form):
    assert_same_update(form, two, tensor_parallel=2)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_two_groups_of_two_compute_loss_and_gradient_of_one(four, form):
    assert_same_update(form, four, tensor_parallel=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "phi"])
def test_models_of_other_architectures_are_sharded_by_their_plan(four, kind):
    assert_same_update("shared-prefix", four, tensor_parallel=2, policy=lambda: of_family(kind))


@pytest.mark.slow
def test_embedding_noise_is_that_of_one_process(two):
    assert_same_update("critic", two, "reinforcement.consistency_regularization={}", tensor_parallel=2)


@pytest.mark.slow
def test_groups_have_equally_many_rounds(four):
    small_passes = ["reinforcement.micro_batch_tokens=128", "reinforcement.minibatches=2"]
    assert_same_update("shared-prefix", four, *small_passes, tensor_parallel=2, count=3)


@pytest.mark.slow
def test_checkpoint_of_two_groups_of_two_is_resumed_by_others(two, four, tmp_path):
    batch = UpdateBatch(tuple(groups()), version=0)
    several = together(assembled(), four, together=2, staging=tmp_path / "checkpoints")
    several.update(batch)
    several.end_step()
    path = save_checkpoint(
        tmp_path, several.trainer.policy, several.state_dict(), Position("reinforcement", {"r": 1}, 1)
    )
    stored = FileSystemReader(path / "trainer" / "shards").read_metadata().state_dict_metadata.values()
    sides = {
        tuple(full > part for full, part in zip(each.size, each.chunks[0].sizes, strict=True))
        for each in stored
        if len(each.size) == 2
    }
    assert sides == {(True, False), (True, True)}  # some are sharded along both dimensions
    several.update(batch)
    expected = weights_of(several.trainer)
    for on, width in ((None, 1), (two, 1), (two, 2), (four, 1)):
        policy, state, _ = load_checkpoint(path)
        restored = assembled(policy=policy)
        learner = alone(restored) if on is None else together(restored, on, together=width)
        learner.load_state_dict(state)
        learner.update(batch)
        assert_close(weights_of(learner.trainer), expected)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["one", "two"])
def test_checkpoint_of_others_is_resumed_by_two_groups_of_two(two, four, tmp_path, by):
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
def test_out_of_memory_of_one_rank_is_handled_by_all(two):
    segments = [segment for indexed in index_groups(tuple(groups(size=6))) for segment in indexed.segments]
    cramped_for = ["reinforcement.micro_batch_tokens=160"]
    one, several = alone(assembled(*cramped_for)).trainer, together(assembled(*cramped_for), two, together=2).trainer
    for loss, its in ((plain, plain), (cramped, plain), (plain, plain)):
        several.step(segments, loss)
        one.step(segments, its)
    assert (several.out_of_memory, several.token_budget, one.token_budget) == (1, 80, 160)
    assert_close(weights_of(several), weights_of(one))


@pytest.mark.slow
def test_teacher_that_cannot_be_sharded_is_replicated(two):
    segments = [segment for indexed in index_groups(tuple(groups())) for segment in indexed.segments]
    torch.manual_seed(1)
    teacher = LlamaForCausalLM(LlamaConfig(**{**COMMON, "vocab_size": 400, "num_attention_heads": 1})).eval()
    with pytest.raises(PolicyError):
        tensor_plan(teacher, 2)
    assembled_parts = assembled()
    settings = assembled_parts.resolved.recipe.reinforcement
    frozen = {"teacher": Frozen(teacher, offload=False)}
    passes = GroupPasses(two, assembled_parts.policy, settings, together=2, frozen=frozen, staging=None)
    members = {"teacher": Member("teacher", lambda: Policy(teacher, None))}
    several = ModelTrainer(assembled_parts.policy, settings, members=members, passes=passes)
    one = ModelTrainer(assembled_parts.policy, settings, members=members)
    assert_close(several.logprobs(segments, of="teacher"), one.logprobs(segments, of="teacher"))


def test_plan_names_sharded_weights_and_norms_of_head_subsets():
    torch.manual_seed(0)
    plan = tensor_plan(AutoModelForCausalLM.from_config(CONFIGS["qwen3"]), 2)
    layers = [f"model.layers.{k}" for k in range(2)]
    outputs = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    inputs = ("self_attn.o_proj", "mlp.down_proj")
    assert plan.cuts == {
        **{f"{layer}.{name}": "outputs" for layer in layers for name in outputs},
        **{f"{layer}.{name}": "inputs" for layer in layers for name in inputs},
    }
    assert set(plan.partial) == {f"{layer}.self_attn.{norm}" for layer in layers for norm in ("q_norm", "k_norm")}


def test_adapters_are_sharded_like_their_layers():
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1}))
    add_adapters(model, rank=2, alpha=4.0, target_modules=["q_proj", "o_proj"], dora=False, seed=0)
    cuts = tensor_plan(model, 2).cuts
    before, after = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"
    assert {name: cut for name, cut in cuts.items() if name.startswith((before, after))} == {
        f"{before}.base_layer": "outputs",
        f"{before}.lora_B.default": "outputs",
        f"{after}.base_layer": "inputs",
        f"{after}.lora_A.default": "inputs",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["scale.learner_processes=3"], r"3 processes .* are not divisible by 2"),
        ([], r"has no effect: scale\.learner_processes is 1"),
        (
            ["scale.learner_processes=2", "policy.tiny.num_heads=1"],
            r"2 ranks cannot divide 1 attention heads, 1 key-value heads evenly; use 1",
        ),
        (
            ["scale.learner_processes=2", "policy.tiny.intermediate_size=15"],
            r"2 ranks cannot divide 15 outputs of model\.layers\.\*\.mlp\.gate_proj, .* evenly; use 1",
        ),
        (["scale.learner_processes=2", "policy.lora={rank: 2, dora: true}"], ".*q_proj: DoRA reads whole columns"),
    ],
)
def test_settings_that_ranks_cannot_share_are_refused_in_one_line(changes, message):
    with pytest.raises(RecipeError, match=rf"scale\.learner_tensor_parallel: {message}") as refused:
        assembled("scale.learner_tensor_parallel=2", *changes).check()
    assert "\n" not in str(refused.value)


def test_model_without_a_supported_plan_is_refused_by_its_type():
    with pytest.raises(PolicyError, match="models of type gpt2 have no tensor-parallel plan in Transformers"):
        tensor_plan(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)), 2)
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1}))
    model.tp_plan = {"model.layers.*.self_attn.q_proj": "packed_colwise"}
    with pytest.raises(PolicyError, match=r'q_proj: "packed_colwise"; known are colwise, rowwise, replicated_with_'):
        tensor_plan(model, 2)
    forgetful = AutoModelForCausalLM.from_config(CONFIGS["qwen3"])
    forgetful.tp_plan = {name: style for name, style in forgetful.tp_plan.items() if not name.endswith("k_norm")}
    with pytest.raises(PolicyError, match=r"self_attn\.k_norm\.weight is next to modules that their plan divides"):
        tensor_plan(forgetful, 2)
