"""Servers that are late, dead, of another version, with other weights or another tokenizer: a line for each."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests_servers import VLLM, SGLang, interpreter, served
from whetstone.errors import EngineError, InfrastructureError, RecipeError
from whetstone.inference import (
    EngineAbilities,
    GenerateRequest,
    LocalEngine,
    RestartingEngine,
    Sampling,
    SGLangEngine,
    VLLMEngine,
    WeightFolder,
    check_engine,
    require,
    restarting_engine,
)
from whetstone.inference.factory import ENGINES
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


class Faulty:
    """Does something to so many answers of a path, from its third on: two are asked when a connection is made."""

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


# ------------------------------------------------------------ late, dead, torn


def test_one_that_answers_late_fails_that_question_alone(folder):
    async def what(engine):
        with pytest.raises(InfrastructureError, match=r"did not answer: ReadTimeout: no answer within 1 s"):
            await some(engine)
        assert engine.alive
        engine.at.seconds = 60  # on a busy machine the next answer may be late, too
        return await some(engine), engine.statistics

    with served(VLLM, folder, faults=Faulty(GENERATE, 2.5)) as server:
        drawn, statistics = play(VLLMEngine(address=server.url, seconds=1), what)
    assert len(drawn.tokens) == 4
    assert (statistics.requests, statistics.failed) == (1, 1)


def test_one_that_fails_a_question_goes_on_where_its_health_is_good(folder):
    async def what(engine):
        with pytest.raises(InfrastructureError, match=r"answered /inference/v1/generate with 500: no"):
            await some(engine)
        return await some(engine)

    with served(VLLM, folder, faults=Faulty(GENERATE, 500)) as server:
        assert len(play(VLLMEngine(address=server.url), what).tokens) == 4


def test_one_whose_health_is_bad_is_dead(folder):
    async def what(engine):
        await some(engine)
        server.healthy = False
        with pytest.raises(InfrastructureError, match="500"):
            await some(engine)
        assert not engine.alive

    with served(VLLM, folder, faults=Faulty(GENERATE, 500, before=2)) as server:
        play(VLLMEngine(address=server.url), what)


def test_nobody_at_the_address_is_a_line():
    async def what(engine):
        with pytest.raises(InfrastructureError, match=r"^no vLLM server answers at http://127.0.0.1:9$"):
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
def test_an_answer_that_is_none_is_a_line(folder, answer):
    async def what(engine):
        with pytest.raises((InfrastructureError, EngineError), match="the vLLM server at http") as raised:
            await some(engine)
        assert "\n" not in str(raised.value)
        return await some(engine)

    with served(VLLM, folder, faults=Faulty(GENERATE, lambda _: answer)) as server:
        assert len(play(VLLMEngine(address=server.url), what).tokens) == 4


# ------------------------------------------------------------ other than it was said to be


def test_one_without_token_ids_is_too_old(folder):
    def without(answer):
        answer["choices"][0].pop("token_ids")
        return answer

    faults = Faulty("/v1/completions", without, times=9, before=0)
    with (
        served(VLLM, folder, lacks=[GENERATE], faults=faults) as server,
        pytest.raises(EngineError, match=r"returns no token ids: it is older than vLLM 0.10.2"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_one_without_logprobs_is_refused(folder):
    def without(answer):
        answer["choices"][0]["logprobs"] = None
        return answer

    with (
        served(VLLM, folder, faults=Faulty(GENERATE, without, times=9, before=0)) as server,
        pytest.raises(EngineError, match="gives no log-probs"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_what_is_no_vllm_is_refused(folder):
    with (
        served(VLLM, folder, lacks=[GENERATE, "/v1/completions"]) as server,
        pytest.raises(EngineError, match=r"is none: it has neither /inference/v1/generate nor /v1/completions"),
    ):
        play(VLLMEngine(address=server.url), some)


def test_one_that_gives_the_models_logprobs_refuses_draws_they_are_not_of(folder):
    async def what(engine):
        drawn = await some(engine)
        for how in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9}, {"logit_bias": {5: 1.0}}):
            with pytest.raises(EngineError, match="start it with --logprobs-mode processed_logprobs"):
                await some(engine, **how)
        return drawn, await some(engine, temperature=0)

    with served(VLLM, folder, raw=True) as server:
        drawn, greedy = play(VLLMEngine(address=server.url), what)
    assert drawn.logprobs == drawn.model_logprobs
    assert greedy.logprobs == (0.0,) * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lacks", "in_flight", "said"),
    [
        ("/collective_rpc", "drain", "takes no weights; start it with VLLM_SERVER_DEV_MODE=1"),
        ("/pause", "continue", "cannot change weights by in_flight: continue; drain it"),
    ],
)
def test_one_that_cannot_change_weights_so_says_what_would_let_it(folder, lacks, in_flight, said):
    async def what(engine):
        under_way = asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(300), "a")))
        await asyncio.sleep(0.2)
        with pytest.raises(EngineError, match=said):
            await engine.load_weights(named(folder), 1, in_flight=in_flight)
        return await under_way, await some(engine)

    with served(VLLM, folder, lacks=[lacks]) as server:
        before, after = play(VLLMEngine(address=server.url), what)
    assert len(before.tokens) == 300
    assert after.versions == (0,) * 4


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_weights_that_do_not_fit_are_a_line_for_a_person(folder, kind, engine):
    async def what(engine):
        with pytest.raises(EngineError, match=r"weights could not be loaded: .*odd"):
            await engine.load_weights({"odd": torch.ones(3)}, 1)

    with served(kind, folder) as server:
        play(engine(address=server.url), what)


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_weights_that_another_run_changed_are_noticed(folder, kind, engine):
    async def what(engine):
        await engine.load_weights(named(folder), 1)
        await some(engine)
        server.label("somebody-else")
        with pytest.raises(InfrastructureError, match='draws from weights "somebody-else"'):
            await some(engine)
        assert not engine.alive

    with served(kind, folder) as server:
        play(engine(address=server.url), what)


def test_one_that_came_up_again_with_its_first_weights_is_given_the_last(folder, tmp_path):
    async def what(engine):
        await engine.load_weights(named(folder, times=1.5), 4)
        expected = (await engine.score(TokenSequence(PROMPT))).logprobs
        first = WeightFolder(parent=tmp_path)
        await asyncio.to_thread(server.load, first.write(named(folder), 0))
        server.label("default")
        with pytest.raises(InfrastructureError, match='draws from weights "default"'):
            await some(engine)
        again = (await engine.score(TokenSequence(PROMPT))).logprobs
        return expected, again, (await some(engine)).versions, engine.restarts

    with served(VLLM, folder) as server:
        expected, again, versions, restarts = play(restarting_engine(VLLMEngine, address=server.url), what)
    assert list(again) == pytest.approx(list(expected), abs=1e-5)
    assert versions == (4,) * 4
    assert restarts == 1


# ------------------------------------------------------------ one that we start


@pytest.mark.slow
def test_one_we_start_is_made_again_with_the_last_weights_when_it_is_killed(folder, tmp_path):
    python, said = interpreter(tmp_path, words=f"echo $$ >> {tmp_path}/pids"), []

    async def what(engine):
        await engine.load_weights(named(folder, times=1.5), 4)
        expected = (await engine.score(TokenSequence(PROMPT))).logprobs
        under_way = [
            asyncio.create_task(engine.generate(GenerateRequest(TokenSequence(PROMPT), Sampling(400), str(i))))
            for i in range(8)
        ]
        await asyncio.sleep(0.1)
        os.kill(int((tmp_path / "pids").read_text().split()[-1]), signal.SIGKILL)
        ended = await asyncio.gather(*under_way, return_exceptions=True)
        drawn = await some(engine)
        return expected, ended, drawn, (await engine.score(TokenSequence(PROMPT))).logprobs, engine.restarts

    engine = restarting_engine(
        VLLMEngine,
        python=python,
        model=folder,
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        heard=said.append,
    )
    expected, ended, drawn, again, restarts = play(engine, what)
    assert {type(one) for one in ended} == {InfrastructureError}
    assert drawn.versions == (4,) * 4
    assert list(again) == pytest.approx(list(expected), abs=1e-5)
    assert (restarts, len(said)) == (1, 1)
    for pid in (tmp_path / "pids").read_text().split():
        assert not running(int(pid))


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return False


def test_one_that_does_not_start_says_why(folder, tmp_path):
    python = interpreter(tmp_path, words='echo "ValueError: no such device" >&2; exit 3')
    said = r"^the vLLM server ended before it answered: ValueError: no such device$"
    with pytest.raises(EngineError, match=said):
        play(restarting_engine(VLLMEngine, python=python, model=folder), some)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("options", "words"), [({}, "--dtype bfloat16"), ({"dtype": "half"}, "--dtype half")])
def test_one_we_start_computes_in_the_numbers_of_the_policy(folder, tmp_path, engine, options, words):
    python = interpreter(tmp_path, words=f'echo "$@" > {tmp_path}/asked; exit 3')
    policy = replace(load_policy(folder), dtype=torch.bfloat16)
    with pytest.raises(EngineError, match="ended before it answered"):
        play(ENGINES[engine](policy=policy, max_sequences=2, python=python, options=options), some)
    asked = (tmp_path / "asked").read_text()
    assert words in asked
    assert asked.count("--dtype") == 1


def test_no_interpreter_is_a_line(folder):
    with pytest.raises(EngineError, match="/no/python: no Python there"):
        play(VLLMEngine(python="/no/python", model=folder), some)


def test_a_server_does_not_outlive_a_run_that_is_killed(folder, tmp_path):
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


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("engine", [VLLMEngine, SGLangEngine])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either `address`"),
        ({"address": "http://x", "python": "y"}, "either `address`"),
        ({"python": "y"}, "needs the folder of a `model`"),
    ],
)
def test_options_that_say_nothing_or_too_much_are_a_line(engine, options, said):
    with pytest.raises(EngineError, match=said):
        engine(**options)


# ------------------------------------------------------------ weights as a folder


def test_nothing_is_left_of_the_folder(folder, tmp_path):
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


def test_a_head_that_is_tied_is_written_too(folder, tmp_path):
    weights = WeightFolder(parent=tmp_path)
    held = load_file(weights.write(named(folder), 1) / "model.safetensors")
    assert torch.equal(held["lm_head.weight"], held["model.embed_tokens.weight"])


def test_no_room_for_weights_is_a_line(folder, small_disk):
    with pytest.raises(EngineError, match=r"could not be written to .*weights_folder"):
        WeightFolder(parent=small_disk).write(named(folder), 1)


def test_adapters_are_written_as_peft_reads_them(folder, tmp_path):
    model, again = load_policy(folder).model, load_policy(folder).model
    add_adapters(model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    weights = WeightFolder(parent=tmp_path, lora_alpha=8.0)
    path = weights.write(dict(model.named_parameters()), 1)
    load_adapters(again, path)
    ids = torch.tensor([PROMPT])
    assert torch.allclose(model(ids).logits, again(ids).logits, atol=1e-5)
    assert not (path / "model.safetensors").exists()


def test_adapters_that_nobody_scales_are_refused(folder, tmp_path):
    model = load_policy(folder).model
    add_adapters(model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=0)
    with pytest.raises(EngineError, match=r"the weights hold adapters .*`lora_alpha` says how"):
        WeightFolder(parent=tmp_path).write(dict(model.named_parameters()), 1)
    with pytest.raises(EngineError, match="the weights hold no adapters"):
        WeightFolder(parent=tmp_path, lora_alpha=8.0).write(named(folder), 1)


# ------------------------------------------------------------ abilities and checks


def test_a_recipe_that_needs_what_an_engine_lacks_is_refused():
    needed = {"seeds": "reinforcement.deterministic: true"}
    require(LocalEngine.abilities, needed, engine="local")
    said = r"reinforcement.deterministic: true needs draws that a seed decides, which engine vllm does not give"
    with pytest.raises(RecipeError, match=said):
        require(VLLMEngine.abilities, needed, engine="vllm")
    assert LocalEngine.abilities == EngineAbilities()


def findings(engine, policy):
    return {finding.name: finding for finding in play(engine, lambda engine: check_engine(engine, policy))}


@pytest.mark.parametrize(("kind", "engine"), KINDS)
def test_a_good_engine_passes_every_check(folder, kind, engine):
    with served(kind, folder) as server:
        found = findings(restarting_engine(engine, address=server.url), load_policy(folder))
    assert {name: finding.good for name, finding in found.items()} == {
        "log-probs": True, "tokenizer": True, "prefix cache": True, "weights": True
    }  # fmt: skip


def test_the_local_engine_passes_every_check_it_can(folder):
    policy = load_policy(folder)
    before = {name: tensor.clone() for name, tensor in policy.model.named_parameters()}
    engine = RestartingEngine(lambda version: LocalEngine(policy.model, context_length=512, version=version))
    assert [finding.good for finding in findings(engine, policy).values()] == [True, None, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.named_parameters())


def test_another_model_is_noticed(folder, tmp_path):
    with served(VLLM, saved(tmp_path, seed=9)) as server:
        found = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert found["log-probs"].good is False
    assert "another model, other weights or a coarse precision" in found["log-probs"].said


def test_another_tokenizer_is_noticed(folder, tmp_path):
    other = saved(tmp_path, text="quite other words than those of the policy, whose ids are not the same at all")
    with served(VLLM, other) as server:
        found = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert found["tokenizer"].good is False
    assert "they part at token" in found["tokenizer"].said


def test_weights_that_do_not_arrive_are_noticed(folder):
    with served(VLLM, folder) as server:
        server.load = lambda folder: setattr(server, "loaded", server.loaded)
        found = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert found["weights"].good is False
    assert "do not arrive" in found["weights"].said


def test_weights_that_arrive_in_part_are_noticed(folder):
    def in_part(path):
        weights = load_file(Path(path) / "model.safetensors")
        server.loaded += 1
        kept = named(folder) | {name: tensor for name, tensor in weights.items() if "layers.1" in name}
        server.within(server.engine.load_weights(kept, server.loaded))

    with served(VLLM, folder) as server:
        server.load = in_part
        found = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert found["weights"].good is False
    assert "arrive in part" in found["weights"].said


def test_a_cache_that_is_off_is_noticed(folder):
    def uncached(path, answer):
        if path == GENERATE:
            answer["usage"]["prompt_tokens_details"] = None
        return answer

    with served(VLLM, folder, faults=uncached) as server:
        found = findings(VLLMEngine(address=server.url), load_policy(folder))
    assert found["prefix cache"].good is False
