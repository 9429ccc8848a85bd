"""Faults of inference servers: timeouts, deaths, other versions, weights or tokenizers, each with a one-line error."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.inference_servers import (
    GENERATION_PATHS,
    VLLM,
    SGLang,
    delay_weights,
    ignore_weights,
    interpreter,
    keep_stale_prefixes,
    served,
)
from whetstone.errors import EngineError, InfrastructureError, RecipeError
from whetstone.inference import (
    EngineCapabilities,
    GenerateRequest,
    LocalEngine,
    RestartingEngine,
    Sampling,
    SGLangEngine,
    VLLMEngine,
    WeightFolder,
    build_restarting_engine,
    check_capabilities,
    check_engine,
)
from whetstone.inference.engine_check import check_weight_sync
from whetstone.inference.engine_factory import ENGINES
from whetstone.inference.server_types import read_metrics
from whetstone.policies import build_tiny, load_policy, save_policy
from whetstone.policies.adapters import add_adapters, load_adapters
from whetstone.trajectory import TokenSequence

PROMPT = [40, 41, 42, 43] * 20
GENERATE = "/inference/v1/generate"
KINDS = [(VLLM, VLLMEngine), (SGLang, SGLangEngine)]


def saved(path, *, text="Compute 12+3 with the calculator. The answer is 4.", seed=3):
    policy = build_tiny([text] * 3, hidden=64, heads=2, layers=2, intermediate=96, context_length=512, seed=seed)
    save_policy(policy, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("policy"))


def named(folder, *, times=1.0):
    return {name: times * tensor.detach() for name, tensor in load_policy(folder).model.named_parameters()}


def play(engine, what):
    async def main():
        try:
            return await what(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def some(engine, **how):
    return await engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(4, **how), "a"))


class FaultyAnswers:
    """Applies a fault to N answers of a path, from its third on: the connection requests two."""

    def __init__(self, path, fault, *, times=1, before=1):
        self.path, self.fault, self.left, self.before = path, fault, times, before

    def __call__(self, path, answer):
        if path != self.path:
            return answer
        if self.before:
            self.before -= 1
            return answer
        if not self.left:
            return answer
        self.left -= 1
        return self.fault(answer) if callable(self.fault) else self.fault


# ------------------------------------------------------------ weight sync


@pytest.mark.parametrize(("kind", "engine_class"), KINDS)
def test_request_that_ends_before_the_sync_is_confirmed_keeps_its_versions(folder, kind, engine_class):
    with served(kind, folder) as server:
        began, ended, answer = threading.Event(), threading.Event(), server.answer

        def answer_in_turn(path, body, query):
            if path in GENERATION_PATHS:
                began.set()
            reply = answer(path, body, query)
            if path in GENERATION_PATHS:
                ended.set()
            elif path in ("/update_weight_version", "/update_weights_from_disk"):
                ended.wait(60)
                time.sleep(0.5)  # the engine receives the tokens first
            return reply

        async def what(engine):
            await engine.score(TokenSequence(PROMPT))
            began.clear()
            ended.clear()
            server.answer = answer_in_turn
            request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), "a")))
            await asyncio.to_thread(began.wait, 60)
            await engine.load_weights(named(folder, times=1.1), 1, in_flight="continue")
            return await request, await some(engine)

        during, after = play(engine_class(address=server.url, detokenize=str), what)
    assert list(during.versions) == sorted(during.versions)
    assert set(during.versions) <= {0, 1}
    assert set(after.versions) == {1}


# ------------------------------------------------------------ timeouts, deaths, invalid answers


def test_late_answer_fails_only_its_request(folder):
    async def what(engine):
        with pytest.raises(InfrastructureError, match=r"did not respond: ReadTimeout: no answer within 1 s"):
            await some(engine)
        assert engine.alive
        engine.at.seconds = 60  # on a busy machine the next answer can be late too
        return await some(engine), engine.statistics

    with served(VLLM, folder, faults=FaultyAnswers(GENERATE, 2.5)) as server:
        generation, statistics = play(VLLMEngine(address=server.url, seconds=1), what)
    assert len(generation.tokens) == 4
    assert (statistics.requests, statistics.failed) == (1, 1)


def test_healthy_server_continues_after_a_failed_request(folder):
    async def what(engine):
        with pytest.raises(InfrastructureError, match=r"responded to /inference/v1/generate with 500: no"):
            await some(engine)
        return await some(engine)

    with served(VLLM, folder, faults=FaultyAnswers(GENERATE, 500)) as server:
        assert len(play(VLLMEngine(address=server.url), what).tokens) == 4


def test_unhealthy_server_is_dead(folder):
    async def what(engine):
        await some(engine)
        server.healthy = False
        with pytest.raises(InfrastructureError, match="500"):
            await some(engine)
        assert not engine.alive

    with served(VLLM, folder, faults=FaultyAnswers(GENERATE, 500, before=2)) as server:
        play(VLLMEngine(address=server.url), what)


def test_unreachable_server_is_one_line():
    async def what(engine):
        with pytest.raises(
            InfrastructureError, match=r"^no vLLM server responds at http://127.0.0.1:9; check the address"
        ):
            await some(engine)
        assert not engine.alive

    play(VLLMEngine(address="http://127.0.0.1:9"), what)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        {},
        [],
        {"choices": []},
        {"choices": [{}], "usage": {}},
        {"choices": [{"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1.0}]}, "finish_reason": "stop"}]},
        {"choices": [{"token_ids": ["x"], "logprobs": {"content": [{"logprob": 1}]}, "finish_reason": "stop"}]},
    ],
)
def test_invalid_answer_is_one_line(folder, answer):
    async def what(engine):
        with pytest.raises((InfrastructureError, EngineError), match="the vLLM server at http") as raised:
            await some(engine)
        assert "\n" not in str(raised.value)
        return await some(engine)

    with served(VLLM, folder, faults=FaultyAnswers(GENERATE, lambda _: answer)) as server:
        assert len(play(VLLMEngine(address=server.url), what).tokens) == 4


# ------------------------------------------------------------ other versions and models


def test_server_without_token_ids_is_too_old(folder):
    def without(answer):
        answer["choices"][0].pop("token_ids")
        return answer

    faults = FaultyAnswers("/v1/completions", without, times=9, before=0)
    with (
        served(VLLM, folder, lacks=[GENERATE], faults=faults) as server,
        pytest.raises(EngineError, match=r"returns no token ids: it is older than vLLM 0.10.2"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_server_without_logprobs_is_refused(folder):
    def without(answer):
        answer["choices"][0]["logprobs"] = None
        return answer

    with (
        served(VLLM, folder, faults=FaultyAnswers(GENERATE, without, times=9, before=0)) as server,
        pytest.raises(EngineError, match="returns no log-probs"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_server_other_than_vllm_is_refused(folder):
    with (
        served(VLLM, folder, lacks=[GENERATE, "/v1/completions"]) as server,
        pytest.raises(EngineError, match=r"is not vLLM: it has neither /inference/v1/generate nor /v1/completions"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_server_with_raw_logprobs_refuses_other_sampling(folder):
    async def what(engine):
        generation = await some(engine)
        for how in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9}, {"logit_bias": {5: 1.0}}):
            with pytest.raises(EngineError, match="start it with --logprobs-mode processed_logprobs"):
                await some(engine, **how)
        return generation, await some(engine, temperature=0)

    with served(VLLM, folder, raw=True) as server:
        generation, greedy = play(VLLMEngine(address=server.url), what)
    assert generation.logprobs == generation.model_logprobs
    assert greedy.logprobs == (0.0,) * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacks", "in_flight", "message"),
    [
        ("/collective_rpc", "drain", "cannot load weights; start it with VLLM_SERVER_DEV_MODE=1"),
        ("/pause", "continue", "cannot load weights with in_flight: continue; use drain"),
    ],
)
def test_unsupported_weight_update_names_the_remedy(folder, lacks, in_flight, message):
    async def what(engine):
        request = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(300), "a")))
        await asyncio.sleep(0.2)
        with pytest.raises(EngineError, match=message):
            await engine.load_weights(named(folder), 1, in_flight=in_flight)
        return await request, await some(engine)

    with served(VLLM, folder, lacks=[lacks]) as server:
        before, after = play(VLLMEngine(address=server.url), what)
    assert len(before.tokens) == 300
    assert after.versions == (0,) * 4


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_invalid_weights_are_one_line(folder, kind, engine):
    async def what(engine):
        with pytest.raises(EngineError, match=r"weights could not be loaded: .*odd"):
            await engine.load_weights({"odd": torch.ones(3)}, 1)

    with served(kind, folder) as server:
        play(engine(address=server.url), what)


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_weights_changed_by_another_run_are_detected(folder, kind, engine):
    async def what(engine):
        await engine.load_weights(named(folder), 1)
        await some(engine)
        server.label("somebody-else")
        with pytest.raises(InfrastructureError, match='samples from weights "somebody-else"'):
            await some(engine)
        assert not engine.alive

    with served(kind, folder) as server:
        play(engine(address=server.url), what)


def test_restarted_server_receives_the_last_weights(folder, tmp_path):
    async def what(engine):
        await engine.load_weights(named(folder, times=1.5), 4)
        expected = (await engine.score(TokenSequence(PROMPT))).logprobs
        first = WeightFolder(parent=tmp_path)
        await asyncio.to_thread(server.load, first.write(named(folder), 0))
        server.label("default")
        with pytest.raises(InfrastructureError, match='samples from weights "default"'):
            await some(engine)
        repeated = (await engine.score(TokenSequence(PROMPT))).logprobs
        return expected, repeated, (await some(engine)).versions, engine.restarts

    with served(VLLM, folder) as server:
        expected, repeated, versions, restarts = play(build_restarting_engine(VLLMEngine, address=server.url), what)
    assert list(repeated) == pytest.approx(list(expected), abs=1e-5)
    assert versions == (4,) * 4
    assert restarts == 1


# ------------------------------------------------------------ servers that the engine starts


@pytest.mark.slow
def test_killed_server_is_restarted_with_the_last_weights(folder, tmp_path):
    python, messages = interpreter(tmp_path, words=f"echo $$ >> {tmp_path}/pids"), []

    async def what(engine):
        await engine.load_weights(named(folder, times=1.5), 4)
        expected = (await engine.score(TokenSequence(PROMPT))).logprobs
        requests = [
            asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), str(i))))
            for i in range(8)
        ]
        await asyncio.sleep(0.1)
        os.kill(int((tmp_path / "pids").read_text().split()[-1]), signal.SIGKILL)
        ended = await asyncio.gather(*requests, return_exceptions=True)
        generation = await some(engine)
        return expected, ended, generation, (await engine.score(TokenSequence(PROMPT))).logprobs, engine.restarts

    engine = build_restarting_engine(
        VLLMEngine,
        python=python,
        model=folder,
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        heard=messages.append,
    )
    expected, ended, generation, repeated, restarts = play(engine, what)
    assert {type(one) for one in ended} == {InfrastructureError}
    assert generation.versions == (4,) * 4
    assert list(repeated) == pytest.approx(list(expected), abs=1e-5)
    assert (restarts, len(messages)) == (1, 1)
    for pid in (tmp_path / "pids").read_text().split():
        assert not running(int(pid))


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it can end while it is read
        return False


def test_server_that_does_not_start_reports_the_cause(folder, tmp_path):
    python = interpreter(tmp_path, words='echo "ValueError: no such device" >&2; exit 3')
    message = r"^the vLLM server exited before it responded: ValueError: no such device$"
    with pytest.raises(EngineError, match=message):
        play(build_restarting_engine(VLLMEngine, python=python, model=folder), some)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("options", "words"), [({}, "--dtype bfloat16"), ({"dtype": "half"}, "--dtype half")])
def test_started_server_has_the_precision_of_the_policy(folder, tmp_path, engine, options, words):
    python = interpreter(tmp_path, words=f'echo "$@" > {tmp_path}/asked; exit 3')
    policy = replace(load_policy(folder), dtype=torch.bfloat16)
    with pytest.raises(EngineError, match="exited before it responded"):
        play(ENGINES[engine](policy=policy, max_sequences=2, python=python, options=options), some)
    arguments = (tmp_path / "asked").read_text()
    assert words in arguments
    assert arguments.count("--dtype") == 1


def test_missing_interpreter_is_one_line(folder):
    with pytest.raises(EngineError, match="/no/python: no such interpreter"):
        play(VLLMEngine(python="/no/python", model=folder), some)


def test_server_ends_with_a_killed_run(folder, tmp_path):
    python = interpreter(tmp_path, words=f"echo $$ > {tmp_path}/pid; sleep 600")
    script = f"""
        from whetstone.inference.server_process import ServerProcess
        import time
        ServerProcess([{python!r}], environment={{}})
        time.sleep(600)
    """
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    finally:
        run.kill()
        run.wait()
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not running(pid))
    assert not running(pid)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("engine", [VLLMEngine, SGLangEngine])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `address`"),
        ({"address": "http://x", "python": "y"}, "either `address`"),
        ({"python": "y"}, "requires a `model` folder"),
    ],
)
def test_invalid_options_are_one_line(engine, options, message):
    with pytest.raises(EngineError, match=message):
        engine(**options)


# ------------------------------------------------------------ weights as a folder


def test_folder_of_weights_is_deleted(folder, tmp_path):
    weights = WeightFolder(parent=tmp_path)
    first = weights.write(named(folder), 1)
    second = weights.write(named(folder), 2)
    assert (first.exists(), second.exists()) == (False, True)
    weights.close()
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_share_memory_are_written_once(tmp_path):
    tensor = torch.ones(2, 2)
    weights = WeightFolder(parent=tmp_path)
    path = weights.write({"a": tensor, "b": tensor}, 1)
    assert (path / "model.safetensors").stat().st_size < 200


def test_tied_head_is_written(folder, tmp_path):
    weights = WeightFolder(parent=tmp_path)
    tensors = load_file(weights.write(named(folder), 1) / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_full_disk_is_one_line(folder, small_disk):
    with pytest.raises(EngineError, match=r"could not be written to .*weights_folder"):
        WeightFolder(parent=small_disk).write(named(folder), 1)


def test_adapters_are_written_as_peft_reads_them(folder, tmp_path):
    model, repeated = load_policy(folder).model, load_policy(folder).model
    add_adapters(model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    weights = WeightFolder(parent=tmp_path, lora_alpha=8.0)
    path = weights.write(dict(model.named_parameters()), 1)
    load_adapters(repeated, path)
    ids = torch.tensor([PROMPT])
    assert torch.allclose(model(ids).logits, repeated(ids).logits, atol=1e-5)
    assert not (path / "model.safetensors").exists()


def test_weights_without_adapters_are_refused(folder, tmp_path):
    model = load_policy(folder).model
    add_adapters(model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=0)
    with pytest.raises(EngineError, match=r"the weights contain adapters .*set `lora_alpha`"):
        WeightFolder(parent=tmp_path).write(dict(model.named_parameters()), 1)
    with pytest.raises(EngineError, match="the weights contain no adapters"):
        WeightFolder(parent=tmp_path, lora_alpha=8.0).write(named(folder), 1)


# ------------------------------------------------------------ capabilities and checks


def test_recipe_that_requires_a_missing_capability_is_refused():
    needed = {"seeds": "reinforcement.deterministic: true"}
    check_capabilities(LocalEngine.capabilities, needed, engine="local")
    message = (
        r"reinforcement.deterministic: true requires reproducible sampling by seed, which engine vllm does not support"
    )
    with pytest.raises(RecipeError, match=message):
        check_capabilities(VLLMEngine.capabilities, needed, engine="vllm")
    assert LocalEngine.capabilities == EngineCapabilities()


@pytest.mark.parametrize(("kind", "engine", "preemptions"), [(*KINDS[0], 3), (*KINDS[1], 0)])
def test_load_is_that_of_the_metrics_of_the_server(folder, kind, engine, preemptions):
    async def what(engine):
        before = await engine.measure_load()
        await some(engine)
        return before, await engine.measure_load()

    with served(kind, folder) as server:
        before, after = play(build_restarting_engine(engine, address=server.url), what)
    assert (before.waiting, before.preemptions) == (0, preemptions)
    assert 0 < before.kv_usage < after.kv_usage < 1  # the connection samples, too


def test_prefixes_that_a_server_has_lost_count_as_preempted(folder):
    async def what(engine):
        lost = []
        for episode, number in (("a", 80), ("a", 90), ("a", 100), ("b", 80), ("a", 110)):
            server.engine._rows.invalidate_prefixes(keep=False) if number == 100 else None
            await engine.generate(GenerateRequest(TokenSequence((PROMPT * 2)[:number]), Sampling(1), episode))
            lost.append((await engine.measure_load()).preemptions - 3)
        await engine.load_weights(named(folder), 1)
        await engine.generate(GenerateRequest(TokenSequence((PROMPT * 2)[:120]), Sampling(1), "a"))
        return lost, (await engine.measure_load()).preemptions - 3

    with served(VLLM, folder) as server:
        lost, after_weights = play(VLLMEngine(address=server.url), what)
    assert lost == [0, 0, 1, 1, 1]
    assert after_weights == 1  # all keys are computed again, as they must be


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_server_without_metrics_is_refused_for_an_adaptive_limit(folder, kind, engine):
    with (
        served(kind, folder, lacks=["/metrics"]) as server,
        pytest.raises(
            EngineError, match=r"reports no load at /metrics .* auto requires; start it with.*, or set a num"
        ),
    ):
        play(engine(address=server.url), lambda engine: engine.measure_load())


def test_samples_of_one_metric_are_summed_and_fractions_are_not():
    text = '# TYPE a gauge\na_total{e="0"} 2\na_total{e="1"} 3 1700000\nusage{x="}"} 0.5\nusage 0.25\nodd\nb nan\n'
    assert read_metrics(text) == {"a_total": 5.0, "usage": 0.5}


def findings(engine, policy):
    return {finding.name: finding for finding in play(engine, lambda engine: check_engine(engine, policy))}


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_valid_engine_passes_every_check(folder, kind, engine):
    with served(kind, folder) as server:
        result = findings(build_restarting_engine(engine, address=server.url), load_policy(folder))
    assert {name: finding.passed for name, finding in result.items()} == {
        "log-probs": True, "tokenizer": True, "prefix cache": True, "weights": True
    }  # fmt: skip


def test_local_engine_passes_every_supported_check(folder):
    policy = load_policy(folder)
    before = {name: tensor.clone() for name, tensor in policy.model.named_parameters()}
    engine = RestartingEngine(lambda version: LocalEngine(policy.model, context_length=512, version=version))
    assert [finding.passed for finding in findings(engine, policy).values()] == [True, None, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.named_parameters())


def test_another_model_is_detected(folder, tmp_path):
    with served(VLLM, saved(tmp_path, seed=9)) as server:
        result = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert result["log-probs"].passed is False
    assert "another model, other weights or a lower precision" in result["log-probs"].text


def test_another_tokenizer_is_detected(folder, tmp_path):
    other = saved(tmp_path, text="quite other words than those of the policy, whose ids are not the same at all")
    with served(VLLM, other) as server:
        result = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert result["tokenizer"].passed is False
    assert "they differ at token" in result["tokenizer"].text


SYNC_FAULTS = [
    (ignore_weights, "have no effect: log-probs are still those of the weights before"),
    (partial(delay_weights, requests=3), "are applied late: the server confirmed them"),
    (keep_stale_prefixes, "are mixed with those before: a cached prompt has keys of the old weights"),
]


def checked_sync(engine, policy, **how):
    return play(engine, lambda engine: check_weight_sync(engine, policy, **how))


@pytest.mark.parametrize(("break_server", "cause"), SYNC_FAULTS)
@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_each_fault_of_the_weight_sync_has_its_cause(folder, kind, engine, break_server, cause):
    with served(kind, folder) as server:
        break_server(server)
        finding = checked_sync(engine(address=server.url), load_policy(folder), late_seconds=0.5)
    assert finding.passed is False
    assert cause in finding.text


def test_weights_that_are_not_restored_are_detected(folder):
    with served(VLLM, folder) as server:
        load = server.load
        server.load = lambda folder: load(folder) if not server.loaded else None
        finding = checked_sync(VLLMEngine(address=server.url), load_policy(folder), late_seconds=0)
    assert finding.passed is False
    assert finding.text.startswith("are not restored: those sent last have no effect")


def test_server_that_has_other_weights_before_the_change_is_detected(folder):
    policy = load_policy(folder)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter *= 1.5
    with served(VLLM, folder) as server:
        finding = checked_sync(VLLMEngine(address=server.url), policy)
    assert finding.passed is False
    assert "are not those of the policy: log-probs differ by" in finding.text


def test_adapters_that_start_at_zero_are_perturbed_enough(folder):
    policy = load_policy(folder)
    add_adapters(policy.model, rank=2, alpha=2.0, target_modules=["q_proj"], dora=False, seed=0)
    before = {name: tensor.clone() for name, tensor in policy.model.named_parameters()}
    engine = RestartingEngine(lambda version: LocalEngine(policy.model, context_length=512, version=version))
    assert checked_sync(engine, policy).passed
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.named_parameters())


def test_requests_wait_while_another_task_holds_the_engine(folder):
    order = []

    async def what(engine):
        async def others(number):
            await some(engine)
            order.append(number)

        first = asyncio.create_task(others(1))
        await asyncio.sleep(0)
        async with engine.hold_requests():
            assert order == [1]  # the request in flight has finished
            second = asyncio.create_task(others(2))
            await some(engine)
            order.append("held")
        await asyncio.gather(first, second)

    policy = load_policy(folder)
    play(RestartingEngine(lambda version: LocalEngine(policy.model, context_length=512)), what)
    assert order == [1, "held", 2]


def test_two_clients_of_a_server_share_no_cached_prefix(folder):
    keys = []
    with served(VLLM, folder) as server:
        for _ in range(2):
            play(VLLMEngine(address=server.url), some)
            keys.append(server.asked[-1][1]["cache_salt"])
    assert keys[0] != keys[1]


def test_partial_weight_updates_are_detected(folder):
    def in_part(path):
        weights = load_file(Path(path) / "model.safetensors")
        server.loaded += 1
        mixed = named(folder) | {name: tensor for name, tensor in weights.items() if "layers.1" in name}
        server.within(server.engine.load_weights(mixed, server.loaded))

    with served(VLLM, folder) as server:
        server.load = in_part
        finding = checked_sync(VLLMEngine(address=server.url), load_policy(folder), late_seconds=0)
    assert finding.passed is False
    assert "are loaded in part" in finding.text


def test_disabled_prefix_cache_is_detected(folder):
    def uncached(path, answer):
        if path == GENERATE:
            answer["usage"]["prompt_tokens_details"] = None
        return answer

    with served(VLLM, folder, faults=uncached) as server:
        result = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert result["prefix cache"].passed is False
