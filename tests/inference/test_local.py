"""The engine's numbers are those of one plain forward pass, whatever else is in the batch."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests_models import CONFIGS, random_model
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.inference import LocalEngine, Sampling


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return random_model(request.param)


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


def without_waiting(generation):
    return replace(generation, queue_seconds=0.0)


@pytest.mark.parametrize("options", [{}, {"rows": 3}, {"rows": 40, "prefill_tokens": 7}], ids=str)
def test_bit_for_bit_the_same_whatever_the_company_the_evictions_and_the_pieces(model, options):
    async def episode(engine, i):
        drawn, ids = [], [5] * 20 + prompts(14)[i]
        for turn in range(3):
            sampling = Sampling(4 + i % 3, temperature=0.5 + i % 3, seed=9 * i + turn)
            drawn.append(without_waiting(await engine.generate(ids, sampling, episode=str(i))))
            ids = [*ids, *drawn[-1].tokens, *range(turn, turn + 1 + i % 4)]
        return drawn

    async def alone(engine):
        return [await episode(engine, i) for i in range(14)]

    async def together(engine):
        return await asyncio.gather(*(episode(engine, i) for i in range(14)))

    assert run(model, alone) == run(model, together, **options)


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
