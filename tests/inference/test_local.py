"""The engine's numbers are those of one plain forward pass, whatever else is in the batch."""

import asyncio
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, Qwen3Config

from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.inference import LocalEngine, Sampling
from whetstone.inference.sampling import draw, uniforms

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
CONFIGS = {
    "llama": LlamaConfig(**COMMON, num_key_value_heads=2),
    "qwen3": Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=8),
    "gpt_neox": GPTNeoXConfig(**COMMON),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()


def run(model, play, **options):
    async def main():
        engine = LocalEngine(model, context_length=96, **options)
        try:
            return await play(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def full_pass(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)


def check(model, prompt, generation, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *generation.tokens]])).logits[0] / temperature
    logprobs = torch.log_softmax(logits, -1)
    for i, token in enumerate(generation.tokens):
        at = logprobs[len(prompt) + i - 1]
        assert generation.logprobs[i] == pytest.approx(at[token].item(), abs=1e-4)
        assert generation.entropies[i] == pytest.approx(-(at.exp() * at).sum().item(), abs=1e-4)


def prompts(n):
    return [[(7 * i + 3 * j) % 97 for j in range(3 + i % 9)] for i in range(n)]


def test_logprobs_and_entropies_are_those_of_a_full_pass_over_turns_of_many_episodes(model):
    async def play(engine):
        async def episode(i, ids):
            turns = []
            for turn in range(3):
                drawn = await engine.generate(ids, Sampling(5 + i % 3, temperature=0.8, seed=i), episode=str(i))
                turns.append((list(ids), drawn))
                ids = [*ids, *drawn.tokens, *range(turn, turn + 1 + i % 4)]
            return turns

        return await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts(12))))

    for turns in run(model, play, rows=5):  # fewer rows than episodes: rows change hands between turns
        for prompt, drawn in turns:
            check(model, prompt, drawn, temperature=0.8)


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_company(model):
    async def alone(engine):
        return [await engine.generate(p, Sampling(8, seed=i), episode=str(i)) for i, p in enumerate(prompts(9))]

    async def together(engine):
        return await asyncio.gather(
            *(engine.generate(p, Sampling(8, seed=i), episode=str(i)) for i, p in enumerate(prompts(9)))
        )

    assert [g.tokens for g in run(model, alone)] == [g.tokens for g in run(model, together)]


def test_greedy_takes_the_likeliest_token_and_is_certain_of_it(model):
    prompt = prompts(1)[0]
    drawn = run(model, lambda e: e.generate(prompt, Sampling(6, temperature=0), episode="a"))
    ids = list(prompt)
    for token in drawn.tokens:
        assert token == full_pass(model, ids)[-1].argmax().item()
        ids.append(token)
    assert drawn.logprobs == (0.0,) * 6


def test_a_stop_token_ends_and_is_returned(model):
    prompt = prompts(1)[0]
    free = run(model, lambda e: e.generate(prompt, Sampling(6, temperature=0), episode="a"))
    stop = free.tokens[2]
    stopped = run(
        model, lambda e: e.generate(prompt, Sampling(6, temperature=0, stop_ids=frozenset({stop})), episode="a")
    )
    first = free.tokens.index(stop)
    assert (stopped.tokens, stopped.finish) == (free.tokens[: first + 1], "stop")
    assert free.finish == "length"


def test_the_context_is_never_exceeded_and_a_prompt_that_fills_it_is_refused(model):
    drawn = run(model, lambda e: e.generate([1] * 90, Sampling(50), episode="a"))
    assert (len(drawn.tokens), drawn.finish) == (6, "length")
    with pytest.raises(PromptTooLong, match="96 tokens of prompt in a context of 96"):
        run(model, lambda e: e.generate([1] * 96, Sampling(5), episode="a"))


def test_new_weights_are_drawn_from_at_once_and_old_keys_are_forgotten(model):
    prompt = prompts(1)[0]
    torch.manual_seed(1)
    other = AutoModelForCausalLM.from_config(model.config).eval()
    copy = AutoModelForCausalLM.from_config(model.config).eval()
    copy.load_state_dict(model.state_dict())

    async def play(engine):
        await engine.generate(prompt, Sampling(4, seed=1), episode="a")
        await engine.load_weights(dict(other.named_parameters()), 7)
        return await engine.generate(prompt, Sampling(4, seed=1), episode="a")

    drawn = run(copy, play)
    assert drawn.versions == (7,) * 4
    check(other, prompt, drawn)


def test_a_failing_batch_fails_its_requests_and_the_engine_lives_on(model):
    async def play(engine):
        weight = next(model.parameters())
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(math.nan)
        with pytest.raises(InfrastructureError, match="logits are not finite"):
            await engine.generate([1, 2], Sampling(3), episode="a")
        with torch.no_grad():
            weight.copy_(kept)
        return await engine.generate([1, 2], Sampling(3), episode="a")

    check(model, [1, 2], run(model, play))


def test_a_cancelled_request_frees_its_row(model):
    async def play(engine):
        lost = asyncio.ensure_future(engine.generate([1, 2], Sampling(60), episode="a"))
        await asyncio.sleep(0.05)
        lost.cancel()
        return await asyncio.wait_for(engine.generate([3, 4], Sampling(3), episode="b"), 20)

    assert len(run(model, play, rows=1).tokens) == 3


def test_a_closed_engine_refuses(model):
    async def play(engine):
        await engine.close()
        await engine.generate([1], Sampling(1), episode="a")

    with pytest.raises(InfrastructureError, match="closed"):
        run(model, play)


def test_draws_follow_the_distribution_and_never_take_what_is_impossible():
    logits = torch.tensor([[math.log(0.7), math.log(0.2), math.log(0.1), -math.inf]]).repeat(20_000, 1)
    numbers = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, dtype=np.uint64))
    drawn = draw(logits, torch.ones(20_000), numbers)
    shares = torch.bincount(drawn.tokens, minlength=4) / 20_000
    assert torch.allclose(shares, torch.tensor([0.7, 0.2, 0.1, 0.0]), atol=0.015)
    # 0.7 ln 0.7 + 0.2 ln 0.2 + 0.1 ln 0.1 = −0.801819
    assert drawn.entropies[0].item() == pytest.approx(0.801819, abs=1e-5)


def test_uniforms_are_uniform_over_seeds_and_over_places():
    for seeds, places in ((np.arange(10_000), np.zeros(10_000)), (np.full(10_000, 3), np.arange(10_000))):
        numbers = uniforms(seeds.astype(np.uint64), places.astype(np.uint64))
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts = torch.histc(numbers, bins=10, min=0, max=1)
        assert ((counts - 1000).abs() < 130).all()  # four standard deviations of a bin are 120


@pytest.mark.parametrize("wrong", [{"temperature": -0.1}, {"max_new_tokens": 0}])
def test_impossible_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match="or more, got"):
        Sampling(**{"max_new_tokens": 1, **wrong})
