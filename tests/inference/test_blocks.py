"""In half precision an engine computes from blocks what the model computes itself, and knows where it does not."""

import asyncio
import math
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig

from tests_models import CONFIGS, GROUPED, random_model
from whetstone.inference import LocalEngine, Sampling
from whetstone.inference.blocks import blocks_of
from whetstone.inference.forward import RowForward
from whetstone.policies.adapters import add_adapters

OF_BLOCKS = ("llama", "qwen2", "qwen3", "mistral")


def lively(model):
    """Random weights large enough for attention and norms to matter, in half precision."""
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers) * 0.3)
    return model.to(torch.bfloat16)


def drawn_by(model, prompts, *, turns=2, **options):
    """[(prompt, generation)] of episodes that run at once, the last turn's."""

    async def main():
        engine = LocalEngine(model, context_length=model.config.max_position_embeddings, **options)

        async def episode(i, ids):
            for turn in range(turns):
                asked = list(ids)
                drawn = await engine.generate(ids, Sampling(6 + i % 3, seed=i), episode=str(i))
                ids = [*ids, *drawn.tokens, *range(turn, turn + 1 + i % 4)]
            return asked, drawn

        try:
            return await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts)))
        finally:
            await engine.close()

    return asyncio.run(main())


def mean_distance(model, played):
    """How far the log-probs are from those of a full pass of the model in double precision, in the mean."""
    exact = type(model)(model.config).double().eval()
    exact.load_state_dict(model.state_dict())
    apart = []
    for prompt, drawn in played:
        with torch.no_grad():
            logprobs = exact(torch.tensor([[*prompt, *drawn.tokens]])).logits[0].log_softmax(-1)
        at = logprobs[len(prompt) - 1 : -1]
        apart += [abs(p - row[t].item()) for p, t, row in zip(drawn.logprobs, drawn.tokens, at, strict=True)]
    return sum(apart) / len(apart)


def siblings(groups, each, length):
    return [[*((7 * g + 3 * j) % 97 for j in range(length)), 90 + i % 7] for g in range(groups) for i in range(each)]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_models_that_are_made_of_blocks_are_told_by_their_modules(name):
    assert (blocks_of(random_model(name)) is not None) == (name in OF_BLOCKS)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [5, 70])
def test_log_probs_in_half_precision_are_those_of_a_full_pass_up_to_its_rounding(name, length):
    model = lively(random_model(name))
    own = mean_distance(model, drawn_by(model, siblings(3, 4, length), rows=8))
    with torch.no_grad():
        ids = torch.tensor(siblings(1, 1, length + 16))
        exact = type(model)(model.config).double().eval()
        exact.load_state_dict(model.state_dict())
        apart = (model(ids).logits.float().log_softmax(-1) - exact(ids).logits.log_softmax(-1)).abs()
        rounding = apart.mean().item()
    assert own < 3 * rounding + 0.01


def test_siblings_draw_what_each_would_alone_up_to_rounding():
    model = lively(AutoModelForCausalLM.from_config(LlamaConfig(**{**GROUPED, "max_position_embeddings": 512})).eval())
    forward = RowForward(model, rows=9, context_length=512)
    prompt = [(5 * i) % 97 for i in range(300)]
    with torch.inference_mode():
        forward.logits([0], [0], [prompt])
        for row in range(1, 6):
            forward.cache.copy(0, row, 290)
            forward.logits([row], [290], [[row, 7, 8]])
        forward.logits([7], [0], [prompt[:200]])  # and one that shares nothing
        rows, starts, new = [0, 1, 2, 3, 4, 5, 7], [300, *[293] * 5, 200], [[11], *[[12 + i] for i in range(5)], [17]]
        together = forward.logits(rows, starts, new, drawn=True)
        alone = [forward.logits([r], [s], [n], drawn=True)[0] for r, s, n in zip(rows, starts, new, strict=True)]
    for one, other in zip(together, alone, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()
    assert len({one.argmax().item() for one in together}) > 1  # they are not all alike


def test_adapters_are_part_of_what_is_computed():
    pytest.importorskip("peft")
    model = lively(random_model("llama").float())
    prompts = siblings(2, 4, 70)
    plain = drawn_by(model, prompts, turns=1)
    add_adapters(model, rank=4, alpha=8.0, targets="all-linear", dora=False, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.to(torch.bfloat16)
    for (prompt, drawn), (_, before) in zip(drawn_by(model, prompts, turns=1), plain, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *drawn.tokens]])).logits[0].float()
        right = logits.log_softmax(-1)[len(prompt) - 1, drawn.tokens[0]].item()
        assert drawn.logprobs[0] == pytest.approx(right, abs=0.35)
        assert drawn.logprobs != before.logprobs


def test_new_weights_are_drawn_from_at_once_in_half_precision():
    model, other = lively(random_model("llama")), random_model("llama", seed=3).to(torch.bfloat16)

    async def main():
        engine = LocalEngine(model, context_length=96)
        await engine.generate([1, 2, 3], Sampling(4), episode="a")
        await engine.load_weights(dict(other.named_parameters()), 1)
        drawn = await engine.generate([1, 2, 3], Sampling(8), episode="a")
        await engine.close()
        return drawn

    drawn = asyncio.run(main())
    assert mean_distance(other, [([1, 2, 3], drawn)]) < 0.05


def test_a_model_that_computes_otherwise_in_the_same_modules_is_sampled_by_its_own_pass():
    config = GraniteConfig(**GROUPED, residual_multiplier=0.2, logits_scaling=3.0, embedding_multiplier=5.0)
    torch.manual_seed(0)
    model = lively(AutoModelForCausalLM.from_config(config).eval())
    assert blocks_of(model) is not None
    with pytest.warns(UserWarning, match="logits are not those of its blocks .* by its own, slower forward pass"):
        played = drawn_by(model, siblings(2, 4, 30))
    assert mean_distance(model, played) < 0.1


def test_a_model_in_float32_keeps_its_own_pass():
    forward = RowForward(random_model("llama"), rows=2, context_length=96)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isfinite(forward.logits([0], [0], [[1, 2, 3]]).sum().item())
    assert forward._blocks is None
