"""Models of every architecture are sampled and trained with their own results, or refused in one line."""

import asyncio
import math

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, Qwen2Config, Qwen2ForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from architectures import CONTEXT, examine, tiny_model
from support.models import GROUPED, random_model
from whetstone.errors import PolicyError
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.inference.forward_choice import choose_forward
from whetstone.inference.hf_cache import DecodeMode, HFCacheForward
from whetstone.learning.token_outputs import TokenForward
from whetstone.policies import masks_are_known, run_reference_forward, softmax_with_sinks
from whetstone.trajectory import TokenSequence


@pytest.mark.filterwarnings("ignore:.*sampled slower", "ignore:.*cannot be learned")
@pytest.mark.parametrize(
    ("kind", "engine", "learner"),
    [
        pytest.param("deepseek_v3", "rows", "tree", id="latent attention"),
        pytest.param("gpt_oss", "rows", "tree", id="sinks"),
        pytest.param("lfm2", "own cache (pieces)", "padded", id="hybrid"),
        pytest.param("mamba", "own cache (single)", "padded", id="state space"),
    ],
)
def test_each_computation_has_the_results_of_the_model(kind, engine, learner):
    result = examine(kind, layers=2, tokens=3)
    assert (result.outcome, result.engine, result.learner) == ("exact", engine, learner), result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_no_causal_model_of_transformers_is_computed_incorrectly(kind):
    result = examine(kind)
    if result.outcome == "not tried":
        pytest.skip(f"no tiny {kind}: {result.said}")
    assert result.outcome in ("exact", "refused"), result
    assert "\n" not in result.said


def test_bidirectional_model_is_refused_in_one_line():
    config = BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    torch.manual_seed(0)
    model = BertLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5
    with pytest.raises(PolicyError, match="is not causal"):
        TokenForward(model)

    async def main():
        engine = LocalEngine(model, context_length=CONTEXT)
        await engine.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(4), "a"))

    with pytest.raises(PolicyError, match="is not causal"):
        asyncio.run(main())


def test_attention_sink_takes_its_fraction():
    # e⁰ : e⁰ : e^{ln 2} = 1 : 1 : 2, so half of it goes to the sink
    shares = softmax_with_sinks(torch.zeros(1, 1, 2), torch.tensor([[[math.log(2)]]]))
    assert shares.flatten().tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.filterwarnings("ignore")
def test_recomputed_sequence_has_the_same_logits():
    model = random_model("llama")
    plain = run_reference_forward(model)
    forward = HFCacheForward(model, feeding=DecodeMode("whole"))
    ids = plain.sequences[0]
    with torch.no_grad():
        forward.compute_logits([3], [0], [ids[:5]])
        recomputed = forward.compute_logits([3], [5], [ids[5:9]], everywhere=True)[0]
    assert plain.relative_error(0, 5, recomputed) < 1
    assert plain.relative_error(0, 5, recomputed.roll(1, 0)) > 1


def test_undeclared_window_is_detected_at_any_length():
    config = Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=70_000, max_window_layers=0)
    model = Qwen2ForCausalLM(config)
    assert masks_are_known(model)
    for layer in model.model.layers:  # it is only in the mask
        layer.self_attn.sliding_window = None
    assert not masks_are_known(model)


@pytest.mark.slow
def test_slower_computation_is_reported_in_one_line():
    model = tiny_model("lfm2", seed=5)
    model.config.initializer_range = 0.0321  # none that was examined before in this process
    with pytest.warns(UserWarning, match=r"lfm2: .* sampled slower: each sequence with the model's own cache"):
        choose_forward(model, rows=1, context_length=CONTEXT)
    with pytest.warns(UserWarning, match="lfm2 cannot be trained as prefix trees: segments in padded rows"):
        assert not TokenForward(model).shares
