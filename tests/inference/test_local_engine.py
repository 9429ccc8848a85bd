"""The local engine has the numbers of one plain forward pass, independent of other requests in the batch."""

import asyncio
import copy
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.models import CONFIGS, random_model
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.inference import GenerateRequest, LocalEngine, Sampling, matmul_is_batch_invariant
from whetstone.trajectory import TokenSequence


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


async def until(condition):
    while not condition():  # noqa: ASYNC110 (the engine counts in another thread)
        await asyncio.sleep(0)


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


def test_logprobs_and_entropies_equal_a_full_pass_over_turns_of_many_episodes(model):
    async def play(engine):
        async def episode(i, ids):
            turns = []
            for turn in range(3):
                sampled = await engine.generate(
                    GenerateRequest(TokenSequence(ids), Sampling(5 + i % 3, temperature=0.8, seed=i), str(i))
                )
                turns.append((list(ids), sampled))
                ids = [*ids, *sampled.tokens, *range(turn, turn + 1 + i % 4)]
            return turns

        return await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts(12))))

    for turns in run(model, play, rows=5):  # fewer slots than episodes: slots change owners between turns
        for prompt, sampled in turns:
            check(model, prompt, sampled, temperature=0.8)


def without_waiting(generation):
    return replace(generation, queue_seconds=0.0)


@pytest.mark.skipif(
    not matmul_is_batch_invariant(),
    reason="this processor's matrix products round by the number of rows; run on x86 with PyTorch's own wheel",
)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow, id="{}"),
        pytest.param({"rows": 3}, id="few"),
        pytest.param({"rows": 40, "prefill_tokens": 7}, marks=pytest.mark.slow, id="pieces"),
    ],
)
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_results_are_bit_identical_for_any_batch_evictions_and_chunks(model, options, is_large, monkeypatch):
    if is_large:  # siblings read their shared prefix once
        monkeypatch.setattr("whetstone.inference.forward.SMALL", 0)

    async def episode(engine, i):
        generated, spans, ids = [], [], [5] * 20 + prompts(14)[i]
        for turn in range(3):
            sampling = Sampling(4 + i % 3, temperature=0.5 + i % 3, seed=9 * i + turn)
            sampled = await engine.generate(GenerateRequest(TokenSequence(ids), sampling, str(i), sampled_spans=spans))
            generated.append(without_waiting(sampled))
            spans = [*spans, (len(ids), len(ids) + len(sampled.tokens))]
            ids = [*ids, *sampled.tokens, *range(turn, turn + 1 + i % 4)]
        return generated

    async def alone(engine):
        return [await episode(engine, i) for i in range(14)]

    async def together(engine):
        return await asyncio.gather(*(episode(engine, i) for i in range(14)))

    assert run(model, alone) == run(model, together, **options)


def test_greedy_takes_the_most_likely_token_with_log_prob_0(model):
    prompt = prompts(1)[0]
    sampled = run(model, lambda e: e.generate(GenerateRequest(TokenSequence(prompt), Sampling(6, temperature=0), "a")))
    ids = list(prompt)
    for token in sampled.tokens:
        assert token == full_pass(model, ids)[-1].argmax().item()
        ids.append(token)
    assert sampled.logprobs == (0.0,) * 6


def test_stop_token_ends_the_generation_and_is_returned(model):
    prompt = prompts(1)[0]
    free = run(model, lambda e: e.generate(GenerateRequest(TokenSequence(prompt), Sampling(6, temperature=0), "a")))
    stop = free.tokens[2]
    stopped = run(
        model,
        lambda e: e.generate(
            GenerateRequest(TokenSequence(prompt), Sampling(6, temperature=0, stop_ids=frozenset({stop})), "a")
        ),
    )
    first = free.tokens.index(stop)
    assert (stopped.tokens, stopped.finish) == (free.tokens[: first + 1], "stop")
    assert free.finish == "length"


def test_context_is_never_exceeded_and_a_prompt_that_fills_it_is_refused(model):
    sampled = run(model, lambda e: e.generate(GenerateRequest(TokenSequence([1] * 90), Sampling(50), "a")))
    assert (len(sampled.tokens), sampled.finish) == (6, "length")
    with pytest.raises(PromptTooLong, match="96 prompt tokens fill the context of 96"):
        run(model, lambda e: e.generate(GenerateRequest(TokenSequence([1] * 96), Sampling(5), "a")))


def test_new_weights_apply_immediately_and_old_keys_are_discarded(model):
    prompt = prompts(1)[0]
    torch.manual_seed(1)
    other = AutoModelForCausalLM.from_config(model.config).eval()
    updated = copy.deepcopy(model)

    async def play(engine):
        await engine.generate(GenerateRequest(TokenSequence(prompt), Sampling(4, seed=1), "a"))
        await engine.load_weights(dict(other.named_parameters()), 7)
        return await engine.generate(GenerateRequest(TokenSequence(prompt), Sampling(4, seed=1), "a"))

    sampled = run(updated, play)
    assert sampled.versions == (7,) * 4
    check(other, prompt, sampled)


def test_failing_batch_fails_its_requests_and_the_engine_continues(model):
    async def play(engine):
        weight = next(model.parameters())
        original = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(math.nan)
        with pytest.raises(InfrastructureError, match="logits are not finite"):
            await engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(3), "a"))
        with torch.no_grad():
            weight.copy_(original)
        return await engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(3), "a"))

    check(model, [1, 2], run(model, play))


def test_canceled_request_frees_its_slot(model):
    async def play(engine):
        lost = asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(60), "a")))
        await asyncio.sleep(0.05)
        lost.cancel()
        return await asyncio.wait_for(engine.generate(GenerateRequest(TokenSequence([3, 4]), Sampling(3), "b")), 20)

    assert len(run(model, play, rows=1).tokens) == 3


def test_a_closed_engine_refuses(model):
    async def play(engine):
        await engine.close()
        await engine.generate(GenerateRequest(TokenSequence([1]), Sampling(1), "a"))

    with pytest.raises(InfrastructureError, match="closed"):
        run(model, play)


def test_request_with_nonfinite_logits_fails_without_affecting_others(model):
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.get_input_embeddings().weight[13] = math.nan  # a sequence with this token has no finite logits
    if broken.get_output_embeddings().weight is broken.get_input_embeddings().weight:
        broken.lm_head.weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())

    async def play(engine):
        requests = [
            engine.generate(GenerateRequest(TokenSequence([1, 2, 13 if i == 1 else 14]), Sampling(3), str(i)))
            for i in range(4)
        ]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        return answers, [
            await engine.generate(GenerateRequest(TokenSequence([5, 6]), Sampling(4, seed=i), f"{i} later"))
            for i in range(4)
        ]

    answers, later = run(broken, play, rows=2)
    assert [isinstance(answer, InfrastructureError) for answer in answers] == [False, True, False, False]
    for generation in later:
        check(model, [5, 6], generation)


def test_shared_prompt_of_a_group_is_computed_once(model):
    shared = [(5 * i) % 97 for i in range(40)]

    async def play(engine):
        await asyncio.gather(
            *(engine.generate(GenerateRequest(TokenSequence([*shared, i]), Sampling(2), str(i))) for i in range(8))
        )
        return engine.statistics

    statistics = run(model, play)
    assert statistics.prefill_tokens == 41 + 7  # one complete prompt, and the different token seven times
    assert statistics.cached_tokens == 7 * 40
    assert statistics.cache_hit_rate == pytest.approx(280 / 328)


@pytest.mark.skipif(
    not matmul_is_batch_invariant(),
    reason="this processor's matrix products round by the number of rows; run on x86 with PyTorch's own wheel",
)
def test_fork_is_bit_identical_with_and_without_the_slot_of_its_parent(model):
    prompt = [5] * 20 + [7, 8, 9]

    async def forked(engine, *, is_parent_cached, is_forced=False):
        parent = await engine.generate(GenerateRequest(TokenSequence(prompt), Sampling(40, seed=3), "parent"))
        if not is_parent_cached:  # others take all slots
            engine.forget("parent")
            await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(TokenSequence([i] * 30), Sampling(2, seed=i), str(i)))
                    for i in range(3)
                )
            )
        if is_forced:  # equal tokens that were written and not sampled share no keys of decoding
            await engine.generate(GenerateRequest(TokenSequence([*prompt, *parent.tokens]), Sampling(1), "given"))
        ids, spans = [*prompt, *parent.tokens, 1, 2, 3], [(len(prompt), len(prompt) + len(parent.tokens))]
        return without_waiting(
            await engine.generate(GenerateRequest(TokenSequence(ids), Sampling(8, seed=4), "fork", sampled_spans=spans))
        )

    cached = run(model, lambda engine: forked(engine, is_parent_cached=True), rows=3)
    assert cached == run(model, lambda engine: forked(engine, is_parent_cached=False), rows=3)
    assert cached == run(model, lambda engine: forked(engine, is_parent_cached=False, is_forced=True), rows=3)


def test_statistics_count_every_token(model):
    async def play(engine):
        async def episode(i, ids):
            prompt_tokens, sampled = 0, 0
            for turn in range(3):
                generation = await engine.generate(
                    GenerateRequest(TokenSequence(ids), Sampling(3 + i % 4, seed=i), str(i))
                )
                prompt_tokens, sampled = prompt_tokens + len(ids), sampled + len(generation.tokens)
                ids = [*ids, *generation.tokens, *range(turn, turn + 3)]
            return prompt_tokens, sampled

        sums = await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts(12))))
        return [sum(column) for column in zip(*sums, strict=True)], engine.statistics

    (prompt_tokens, sampled), statistics = run(model, play)
    assert statistics.requests == 36
    assert statistics.prefill_tokens + statistics.cached_tokens == prompt_tokens
    assert statistics.decode_tokens == sampled - 36  # the first token of each comes with its prompt
    assert 0 < statistics.slot_occupancy <= 1


def test_scores_equal_a_full_pass_and_use_the_cached_prefix(model):
    ids = [(5 * i) % 97 for i in range(50)]

    async def play(engine):
        full = await engine.score(TokenSequence(ids))
        parts = await asyncio.gather(*(engine.score(TokenSequence(ids), start=start) for start in (30, 45, 49)))
        return full, parts, engine.statistics

    full, parts, statistics = run(model, play)
    at = full_pass(model, ids)
    right = [at[i - 1, ids[i]].item() for i in range(1, 50)]
    assert full.logprobs == pytest.approx(right, abs=1e-4)
    assert full.entropies[10] == pytest.approx(-(at[10].exp() * at[10]).sum().item(), abs=1e-4)
    for start, part in zip((30, 45, 49), parts, strict=True):
        assert part.logprobs == pytest.approx(right[start - 1 :], abs=1e-4)
    assert statistics.cached_tokens == 29 + 44 + 48


@pytest.mark.parametrize("start", [0, 5])
def test_invalid_start_of_a_score_is_refused(model, start):
    with pytest.raises(ValueError, match="start: must be from 1 to 4, the last of 5 tokens"):
        run(model, lambda e: e.score(TokenSequence([1, 2, 3, 4, 5]), start=start))


def test_stop_strings_end_a_generation_across_token_boundaries(model):
    prompt = prompts(1)[0]
    free = run(model, lambda e: e.generate(GenerateRequest(TokenSequence(prompt), Sampling(8, temperature=0), "a")))

    def detokenize(ids):
        return "".join(f"<{i}>" for i in ids)

    text = detokenize(free.tokens)
    stop = text[
        text.index(">") : text.index(">") + 3
    ]  # starts in the text of the first token and ends in that of the second
    stopped = run(
        model,
        lambda e: e.generate(
            GenerateRequest(TokenSequence(prompt), Sampling(8, temperature=0, stop_strings=(stop,)), "a")
        ),
        detokenize=detokenize,
    )
    assert (stopped.tokens, stopped.finish) == (free.tokens[:2], "stop")
    with pytest.raises(ValueError, match="stop_strings"):
        run(model, lambda e: e.generate(GenerateRequest(TokenSequence(prompt), Sampling(8, stop_strings=("x",)), "a")))


def test_forced_tokens_come_first_with_their_log_probs(model):
    sampled = run(
        model,
        lambda e: e.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(6, forced=(50, 51), seed=4), "a")),
    )
    assert sampled.tokens[:2] == (50, 51)
    check(model, [1, 2, 3], sampled)


def test_log_probs_are_those_of_the_sampling_distribution_and_of_the_model(model):
    sampling = Sampling(6, temperature=0.7, top_k=5, logit_bias={7: 2.0}, seed=3)
    sampled = run(model, lambda e: e.generate(GenerateRequest(TokenSequence([1, 2, 3]), sampling, "a")))
    at = full_pass(model, [1, 2, 3, *sampled.tokens])
    for i, token in enumerate(sampled.tokens):
        logits = at[2 + i].clone()
        assert sampled.model_logprobs[i] == pytest.approx(logits[token].item(), abs=1e-4)
        logits[7] += 2.0
        top = (logits / 0.7).topk(5)
        assert token in top.indices
        right = torch.log_softmax(top.values, -1)[top.indices.tolist().index(token)].item()
        assert sampled.logprobs[i] == pytest.approx(right, abs=1e-4)


def test_aborted_generation_returns_its_tokens(model):
    async def play(engine):
        request = asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(90), "a")))
        await until(lambda: engine.statistics.decode_tokens >= 3)
        engine.abort("a")
        return await asyncio.wait_for(request, 20)

    sampled = run(model, play)
    assert sampled.finish == "abort"
    assert 3 < len(sampled.tokens) < 90
    check(model, [1, 2], sampled)


def test_cancellation_during_a_prefill_does_not_affect_others(model):
    async def play(engine):
        long = asyncio.ensure_future(
            engine.generate(GenerateRequest(TokenSequence(list(range(80))), Sampling(5), "long"))
        )
        other = asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence([9, 9]), Sampling(30), "other")))
        await until(lambda: 0 < engine.statistics.prefill_tokens < 80)
        long.cancel()
        generation = await other
        repeated = await engine.generate(GenerateRequest(TokenSequence(list(range(80))), Sampling(5), "again"))
        return long.cancelled(), generation, repeated

    cancelled, generation, repeated = run(model, play, prefill_tokens=4)
    assert cancelled
    check(model, [9, 9], generation)
    check(model, list(range(80)), repeated)


def test_long_prompt_is_prefilled_in_chunks_while_others_decode(model):
    async def play(engine):
        other = asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence([9, 9]), Sampling(20), "other")))
        await asyncio.sleep(0.01)
        long = asyncio.ensure_future(
            engine.generate(GenerateRequest(TokenSequence(list(range(90))), Sampling(1), "long"))
        )
        done, _ = await asyncio.wait([other, long], return_when=asyncio.FIRST_COMPLETED)
        await long
        return other in done

    assert run(model, play, prefill_tokens=2)  # 45 chunks; twenty tokens are sampled meanwhile


def test_requests_beyond_the_queue_limit_wait_outside(model):
    async def play(engine):
        requests = [
            asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence([1, i]), Sampling(3, seed=i), str(i))))
            for i in range(12)
        ]
        most = 0
        while not all(one.done() for one in requests):
            most = max(most, len(engine._waiting))
            await asyncio.sleep(0)
        return most, [one.result() for one in requests]

    most, sampled = run(model, play, rows=2, max_waiting=3)
    assert most <= 3
    assert [len(generation.tokens) for generation in sampled] == [3] * 12


def test_cache_budget_limits_the_slots_and_must_hold_one_sequence(model):
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    each = 2 * config.num_hidden_layers * heads * 8 * 4 * 96  # keys and values, layers, heads, width, bytes, tokens
    assert run(model, lambda e: e.generate(GenerateRequest(TokenSequence([1]), Sampling(1), "a")), cache_bytes=3 * each)
    assert LocalEngine(model, context_length=96, cache_bytes=3 * each).statistics.rows == 3
    with pytest.raises(ValueError, match=f"cache_bytes: .* too small for one sequence; 96 tokens take {each:,}"):
        LocalEngine(model, context_length=96, cache_bytes=each - 1)


def test_unknown_token_is_refused_before_the_queue(model):
    with pytest.raises(ValueError, match="token id 97 is outside the model's vocabulary of 97"):
        run(model, lambda e: e.generate(GenerateRequest(TokenSequence([1, 97]), Sampling(1), "a")))


@pytest.mark.parametrize("in_flight", ["drain", "continue", "recompute"])
def test_weight_updates_in_flight_follow_their_mode(model, in_flight):
    other, updated = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)

    async def play(engine):
        request = asyncio.ensure_future(
            engine.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(60, seed=1), "a"))
        )
        await until(lambda: engine.statistics.decode_tokens >= 5)
        await engine.load_weights(dict(other.named_parameters()), 1, in_flight=in_flight)
        was_done = request.done()
        return (
            was_done,
            await request,
            await engine.generate(GenerateRequest(TokenSequence([1, 2, 3]), Sampling(8, seed=1), "new")),
        )

    was_done, sampled, new = run(updated, play)
    assert was_done == (in_flight == "drain")
    assert set(sampled.versions) == ({0} if in_flight == "drain" else {0, 1})
    assert list(sampled.versions) == sorted(sampled.versions)
    check(other, [1, 2, 3], new)
    old, fresh = (full_pass(m, [1, 2, 3, *sampled.tokens]) for m in (model, other))
    of_new = [
        abs(p - fresh[2 + i, t].item()) for i, (p, t) in enumerate(zip(sampled.logprobs, sampled.tokens, strict=True))
    ]
    for i, (logprob, token, version) in enumerate(zip(sampled.logprobs, sampled.tokens, sampled.versions, strict=True)):
        if version == 0:
            assert logprob == pytest.approx(old[2 + i, token].item(), abs=1e-4)
    after = [distance for distance, version in zip(of_new, sampled.versions, strict=True) if version == 1]
    if in_flight == "recompute":
        assert max(after) <= 1e-4
    if in_flight == "continue":  # over the keys of the old weights: the numbers of neither model
        assert max(after) > 1e-4


def test_invalid_weights_are_refused_and_the_old_ones_stay(model):
    async def play(engine):
        with pytest.raises(InfrastructureError, match="weights could not be loaded"):
            await engine.load_weights({}, 5)
        return await engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(3), "a"))

    sampled = run(copy.deepcopy(model), play)
    assert sampled.versions == (0, 0, 0)
    check(model, [1, 2], sampled)


def test_internal_error_of_the_engine_fails_all_requests(model):
    async def play(engine):
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["message"]))
        engine._rows.allocate_slot = None  # a call raises
        with pytest.raises(InfrastructureError, match="the engine failed: TypeError"):
            await asyncio.wait_for(engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(3), "a")), 20)
        with pytest.raises(InfrastructureError, match="closed"):
            await engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(3), "a"))
        return errors

    assert run(model, play) == ["the local engine failed with an internal error"]
