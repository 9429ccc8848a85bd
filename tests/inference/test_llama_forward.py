"""The forward pass of the engine equals that of the model, for the models that it supports."""

import asyncio
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig

from support.models import CONFIGS, GROUPED, random_model
from whetstone.inference import GenerateRequest, LocalEngine, Sampling, matmul_is_batch_invariant
from whetstone.inference.forward import SlotForward
from whetstone.inference.llama_forward import find_blocks
from whetstone.policies.adapters import add_adapters
from whetstone.trajectory import TokenSequence

OF_BLOCKS = ("llama", "qwen2", "qwen3", "mistral")


def with_large_weights(model):
    """Random weights large enough for attention and norms to matter, in half precision."""
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers) * 0.3)
    return model.to(torch.bfloat16)


def sample_episodes(model, prompts, *, turns=2, **options):
    """Return [(prompt, generation)] of the last turns of concurrent episodes."""

    async def main():
        engine = LocalEngine(model, context_length=model.config.max_position_embeddings, **options)

        async def episode(i, ids):
            for turn in range(turns):
                prompt = list(ids)
                generation = await engine.generate(
                    GenerateRequest(TokenSequence(ids), Sampling(6 + i % 3, seed=i), str(i))
                )
                ids = [*ids, *generation.tokens, *range(turn, turn + 1 + i % 4)]
            return prompt, generation

        try:
            return await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts)))
        finally:
            await engine.close()

    return asyncio.run(main())


def mean_distance(model, played):
    """Return the mean distance of log-probs from those of a full forward pass in double precision."""
    exact = type(model)(model.config).double().eval()
    exact.load_state_dict(model.state_dict())
    distances = []
    for prompt, generation in played:
        with torch.no_grad():
            logprobs = exact(torch.tensor([[*prompt, *generation.tokens]])).logits[0].log_softmax(-1)
        at = logprobs[len(prompt) - 1 : -1]
        distances += [
            abs(p - row[t].item()) for p, t, row in zip(generation.logprobs, generation.tokens, at, strict=True)
        ]
    return sum(distances) / len(distances)


def siblings(groups, each, length):
    return [[*((7 * g + 3 * j) % 97 for j in range(length)), 90 + i % 7] for g in range(groups) for i in range(each)]


@pytest.mark.parametrize("name", CONFIGS)
def test_supported_models_are_detected_by_their_modules(name):
    assert (find_blocks(random_model(name)) is not None) == (name in OF_BLOCKS)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [5, 70])
def test_half_precision_log_probs_equal_a_full_pass_up_to_rounding(name, length):
    model = with_large_weights(random_model(name))
    own = mean_distance(model, sample_episodes(model, siblings(3, 4, length), rows=8))
    with torch.no_grad():
        ids = torch.tensor(siblings(1, 1, length + 16))
        exact = type(model)(model.config).double().eval()
        exact.load_state_dict(model.state_dict())
        distances = (model(ids).logits.float().log_softmax(-1) - exact(ids).logits.log_softmax(-1)).abs()
        rounding = distances.mean().item()
    assert own < 3 * rounding + 0.01


def test_siblings_have_the_log_probs_of_separate_sequences_up_to_rounding():
    model = with_large_weights(
        AutoModelForCausalLM.from_config(LlamaConfig(**{**GROUPED, "max_position_embeddings": 512})).eval()
    )
    forward = SlotForward(model, rows=9, context_length=512)
    prompt = [(5 * i) % 97 for i in range(300)]
    with torch.inference_mode():
        forward.compute_logits([0], [0], [prompt])
        for row in range(1, 6):
            forward.cache.copy(0, row, 290)
            forward.compute_logits([row], [290], [[row, 7, 8]])
        forward.compute_logits([7], [0], [prompt[:200]])  # and one without a shared prefix
        rows, starts, new = [0, 1, 2, 3, 4, 5, 7], [300, *[293] * 5, 200], [[11], *[[12 + i] for i in range(5)], [17]]
        together = forward.compute_logits(rows, starts, new, is_decode=True)
        alone = [
            forward.compute_logits([r], [s], [n], is_decode=True)[0] for r, s, n in zip(rows, starts, new, strict=True)
        ]
    for one, other in zip(together, alone, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()
    assert len({one.argmax().item() for one in together}) > 1  # they are not all equal


def test_adapters_are_part_of_the_forward_pass():
    pytest.importorskip("peft")
    model = with_large_weights(random_model("llama").float())
    prompts = siblings(2, 4, 70)
    plain = sample_episodes(model, prompts, turns=1)
    add_adapters(model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.to(torch.bfloat16)
    for (prompt, generation), (_, before) in zip(sample_episodes(model, prompts, turns=1), plain, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *generation.tokens]])).logits[0].float()
        right = logits.log_softmax(-1)[len(prompt) - 1, generation.tokens[0]].item()
        assert generation.logprobs[0] == pytest.approx(right, abs=0.35)
        assert generation.logprobs != before.logprobs


def test_new_weights_apply_immediately_in_half_precision():
    model, other = with_large_weights(random_model("llama")), random_model("llama", seed=3).to(torch.bfloat16)

    async def main():
        engine = LocalEngine(model, context_length=96)
        await engine.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(4), "a"))
        await engine.load_weights(dict(other.named_parameters()), 1)
        generation = await engine.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(8), "a"))
        await engine.close()
        return generation

    generation = asyncio.run(main())
    assert mean_distance(other, [([1, 2, 3], generation)]) < 0.05


def test_model_with_a_custom_forward_pass_is_sampled_by_it():
    config = GraniteConfig(**GROUPED, residual_multiplier=0.2, logits_scaling=3.0, embedding_multiplier=5.0)
    torch.manual_seed(0)
    model = with_large_weights(AutoModelForCausalLM.from_config(config).eval())
    assert find_blocks(model) is not None
    with pytest.warns(UserWarning, match="fast forward pass differ from the model.* by its own, slower forward pass"):
        played = sample_episodes(model, siblings(2, 4, 30))
    assert mean_distance(model, played) < 0.1


def row_logits(forward, new, starts, **options):
    """Return the logits of these sequences, computed one after the other."""
    return forward.compute_logits(range(len(new)), starts, new, **options)


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_small_float32_model_has_the_bits_of_its_forward_pass(name):
    model = random_model(name)
    logits = []
    for own in (True, False):
        forward = SlotForward(model, rows=5, context_length=96)
        assert forward._blocks is not None
        if own:
            forward._blocks = None
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("error")
            prompts = [[(5 * i + r) % 97 for i in range(20 + 7 * r)] for r in range(4)]
            lengths = [len(prompt) for prompt in prompts]
            logits_of_prompts = row_logits(forward, prompts, [0] * 4)
            decode_logits = row_logits(forward, [[r] for r in range(4)], lengths, is_decode=True)
            logits.append(
                (
                    logits_of_prompts,
                    decode_logits,
                    row_logits(forward, [[7, 8]] * 4, [n + 1 for n in lengths], everywhere=True),
                )
            )
        assert own or forward._blocks is not None
    assert all(map(torch.equal, *logits))


def large(monkeypatch, heads):
    """Build a model that counts as large, and prompts of eight siblings and four other sequences."""
    monkeypatch.setattr("whetstone.inference.forward.SMALL", 0)
    shape = {**GROUPED, "hidden_size": 16 * heads, "num_attention_heads": heads, "max_position_embeddings": 1024}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**shape, "num_key_value_heads": 2})).eval()
    return SlotForward(with_large_weights(model).float(), rows=16, context_length=1024)


@pytest.mark.skipif(not matmul_is_batch_invariant(), reason="this machine's products depend on the number of rows")
@pytest.mark.parametrize("heads", [2, 6, 8])
def test_float32_siblings_read_their_prompt_once_with_the_bits_of_separate_sequences(monkeypatch, heads):
    forward = large(monkeypatch, heads)
    prompts = [
        [(5 * i) % 97 for i in range(300)],
        [(3 * i) % 97 for i in range(37)],
        [(11 * i) % 97 for i in range(690)],
    ]
    rows, starts, prompt_lengths = list(range(12)), [], []
    with torch.inference_mode():
        for row in rows:
            prompt = prompts[min(2, max(0, row - 9))] if row != 8 else prompts[0][:9]
            if 0 < row < 8:
                forward.cache.copy(0, row, 299)
                forward.compute_logits([row], [299], [prompt[299:]])
            else:
                forward.compute_logits([row], [0], [prompt])
            more = [(row + i) % 97 for i in range(13 * row)]
            for at, token in enumerate(more[-3:]):
                forward.compute_logits([row], [len(prompt) + at], [[token]], is_decode=True, prompts=[len(prompt)])
            starts.append(len(prompt) + len(more[-3:]))
            prompt_lengths.append(len(prompt))
        new = [[row] for row in rows]
        together = forward.compute_logits(rows, starts, new, is_decode=True, prompts=prompt_lengths)
        for some in ([0], [0, 1], [3, 9], [2, 8, 10, 11], [11], rows[:8], [0, 11]):
            named = [[column[row] for row in some] for column in (starts, new, prompt_lengths)]
            repeated = forward.compute_logits(some, named[0], named[1], is_decode=True, prompts=named[2])
            assert torch.equal(repeated, together[some]), some
        separate = forward.compute_logits(rows, starts, new, is_decode=True)  # read without sharing
    assert (separate - together).norm() < 1e-4 * together.norm()
