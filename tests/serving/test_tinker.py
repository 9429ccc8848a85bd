"""The Tinker API: requests on the wire, the public client, and equality with updates in Whetstone."""

import asyncio
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support.served_policy import Served, at_a_socket, build_assembly
from whetstone.algorithms import LossTerm, TokenLoss
from whetstone.algorithms.objectives import cispo, clipped, gspo
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import RecipeError
from whetstone.learning.losses import POLICY, UpdateLoss
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import add_adapters
from whetstone.policies.shared_weights import clone_trainable
from whetstone.recipe import OptimizerSettings
from whetstone.serving import build_serving_app
from whetstone.serving.tinker import tinker_service
from whetstone.serving.tinker.api_routes import tinker_routes
from whetstone.serving.tinker.protobuf_format import (
    TrainingDatum,
    TrainingRequest,
    decode_message,
    decode_training_request,
    encode_field,
)
from whetstone.serving.tinker.state_files import StateFiles
from whetstone.serving.tinker.tinker_service import TinkerService
from whetstone.serving.tinker.training_client import (
    LORA_ALPHA,
    LOSSES,
    TrainingModel,
    check_training_request,
)

IDS = (5, 6, 7, 8, 9, 10)
STATES = []
"""Folder of the states that the tests save."""
RATE = 1e-2
CONFIG = {"dro": {"beta": 0.3}, "gspo": {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}}
"""Options of the losses that have no neutral default."""


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def make_datum(loss, ids=IDS, seed=0):
    random = np.random.default_rng(seed)
    names = LOSSES[loss][1]
    columns = {name: random.normal(size=len(ids) - 1).astype(np.float32) for name in names}
    if loss == "gspo":
        columns["sequence_ratio_mask"] = np.ones(len(ids) - 1, np.float32)
    if "logprobs" in columns:
        columns["logprobs"] = columns["logprobs"] * 0.3 - 5.7
    return TrainingDatum(ids[:-1], {"target_tokens": np.array(ids[1:]), **columns})


def write_tensor(values):
    values = np.asarray(values)
    dtype = 2 if values.dtype.kind == "i" else 1
    written = values.astype("<i8" if dtype == 2 else "<f4").tobytes()
    return encode_field(1, written) + encode_field(3, dtype) + encode_field(4, len(values))


def write_request(model, seq, loss="cross_entropy", data=None, config=None, *, forward_only=False):
    """Write a request as the client does: options in both maps."""
    parts = [encode_field(1, model), encode_field(2, seq), encode_field(4, loss), encode_field(6, int(forward_only))]
    for name, value in (config or {}).items():
        parts.append(encode_field(5, encode_field(1, name) + encode_field(2, value)))
        parts.append(encode_field(7, encode_field(1, name) + encode_field(2, encode_field(1, value))))
    for datum in data if data is not None else [make_datum(loss)]:
        text = encode_field(1, encode_field(1, np.array(datum.ids, "<i4").tobytes()))
        inputs = [
            encode_field(2, encode_field(1, name) + encode_field(2, write_tensor(values)))
            for name, values in datum.inputs.items()
        ]
        parts.append(encode_field(3, encode_field(1, text) + b"".join(inputs)))
    return b"".join(parts)


@pytest.fixture(scope="module", autouse=True)
def states(tmp_path_factory):
    STATES.append(tmp_path_factory.mktemp("states"))


def with_service(assembly, work):
    """Run `work(call, service)`; `call(path, body)` returns (status, body) and waits for futures."""

    async def run():
        served = Served(assembly)
        service = TinkerService(assembly.policy, served.engine, name="tiny", states=STATES[-1])
        app = build_serving_app(served.server, extra_routes=tinker_routes(served.server, service))
        served.app = app
        async with served.http() as http:

            async def call(path, body=None):
                content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
                answer = await http.post(f"/api/v1/{path}", content=content)
                if answer.status_code == 200 and "request_id" in answer.json():
                    future = {"request_id": answer.json()["request_id"]}
                    answer = await http.post("/api/v1/retrieve_future", json=future)
                    while answer.status_code == 408:
                        answer = await http.post("/api/v1/retrieve_future", json=future)
                is_json = "json" in answer.headers["content-type"]
                return answer.status_code, answer.json() if is_json else answer.content

            result = await work(call, service)
        await service.close()
        await served.close()
        return result

    return asyncio.run(run())


async def open_model(call, **config):
    _, opened = await call("create_session", {"sdk_version": "0.38.0"})
    body = {"session_id": opened["session_id"], "model_seq_id": 0, "base_model": "tiny"}
    status, created = await call("create_model", {**body, "lora_config": {"rank": 4, **config}})
    assert status == 200, created
    return created["model_id"]


def train_in_whetstone(assembly, loss, data, *, steps):
    """Train with `ModelTrainer.step`, and return the adapters."""
    model = clone_trainable(assembly.policy.model)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    add_adapters(model, rank=4, alpha=LORA_ALPHA, target_modules=names, dora=False, seed=0)
    settings = OptimizerSettings(learning_rate=RATE, warmup_fraction=0, max_grad_norm=1e9)
    trainer = ModelTrainer(replace(assembly.policy, model=model, critic=None), settings)
    segments = check_training_request(
        TrainingRequest("m", 1, loss, CONFIG.get(loss, {}), data=data), context_length=768
    )
    columns = {name: [torch.tensor(datum.inputs[name]) for datum in data] for name in LOSSES[loss][1]}
    objectives = {
        "gspo": lambda learner_logprobs, old_logprobs, credit, sequence, turn: gspo(
            learner_logprobs, old_logprobs, credit, sequence, turn, clip_low=0.5, clip_high=1.0
        ),
        "dro": lambda learner_logprobs, old_logprobs, credit: TokenLoss(
            0.15 * (learner_logprobs - old_logprobs) ** 2 - credit * learner_logprobs, {}
        ),
        "ppo": lambda learner_logprobs, old_logprobs, credit: clipped(learner_logprobs, old_logprobs, credit),
        "cispo": lambda learner_logprobs, old_logprobs, credit: cispo(
            learner_logprobs, old_logprobs, credit, min_ratio=0.8, max_ratio=1.2
        ),
        # the gradient of an importance-weighted log-prob is that of the ratio
        "importance_sampling": lambda learner_logprobs, old_logprobs, credit: cispo(
            learner_logprobs, old_logprobs, credit, max_ratio=1e9
        ),
        "cross_entropy": lambda learner_logprobs, old_logprobs, credit: TokenLoss(-credit * learner_logprobs, {}),
    }
    credit = columns["weights"] if loss == "cross_entropy" else columns["advantages"]
    old = columns.get("logprobs", [torch.zeros(len(datum.ids)) for datum in data])
    term = LossTerm(POLICY, objectives[loss], 1.0)
    for _ in range(steps):
        trainer.step(segments, UpdateLoss([term], old=old, columns={"credit": credit}), divisor=1)
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_three_steps_on_the_wire_are_three_steps_of_the_trainer(assembly, loss):
    """Split the batch into two calls as well: gradients of calls are added."""
    data = [make_datum(loss, seed=0), make_datum(loss, (*IDS, 11, 12), seed=1)]

    async def work(call, service):
        id, seq = await open_model(call), 0
        for step in range(3):
            for part in (data[:1], data[1:]) if step else (data,):
                seq += 1
                status, _ = await call("forward_backward", write_request(id, seq, loss, part, CONFIG.get(loss)))
                assert status == 200
            seq += 1
            params = {"learning_rate": RATE, "eps": 1e-8}
            status, result = await call("optim_step", {"model_id": id, "seq_id": seq, "adam_params": params})
            assert "metrics" in result, result
        return service.models[id].state_dict()["weights"]

    weights, expected = with_service(assembly, work), train_in_whetstone(assembly, loss, data, steps=3)
    assert weights.keys() == expected.keys()
    assert all(torch.allclose(weights[name], expected[name], rtol=0, atol=1e-6) for name in expected)
    assert any(p.abs().max() > RATE for name, p in weights.items() if "lora_B" in name)


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"dro"}))
def test_padding_targets_with_weight_0_leave_the_gradient_unchanged(assembly, loss):
    datum = make_datum(loss)
    inputs = {
        name: v if name in ("target_tokens", "logprobs") else np.r_[[0, 0], v[2:]] for name, v in datum.inputs.items()
    }
    results = []
    for targets in (datum.inputs["target_tokens"], np.array([0, 0, *IDS[3:]])):
        model = TrainingModel(assembly.policy, rank=2)
        data = [TrainingDatum(datum.ids, {**inputs, "target_tokens": targets})]
        logprobs, metrics = model.forward_backward(TrainingRequest("m", 1, loss, data=data))
        grads = [p.grad for p in model.policy.trainable_parameters() if p.grad is not None]
        results.append((logprobs[0], metrics["loss:sum"], grads))
    (full, total, grads), (partial, total_padded, grads_padded) = results
    assert np.isnan(partial[:2]).all()
    assert np.allclose(partial[2:], full[2:], atol=1e-6)
    assert total_padded == pytest.approx(total, rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, grads_padded, strict=True))
    assert any(each.abs().max() > 1e-4 for each in grads)


def test_gspo_has_one_ratio_per_sequence_over_its_mask():
    """The ratio is exp((0.2 + 0.4) / 2) = e^0.3, by the two tokens in the mask, for the third token as well."""
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -1.5], requires_grad=True)
    columns = {
        "logprobs": torch.tensor([-1.2, -2.4, -9.0, -1.5]),
        "advantages": torch.tensor([1.0, 2.0, -1.0, 3.0]),
        "sequence_ratio_mask": torch.tensor([1.0, 1.0, 0.0, 1.0]),
        "sequence": torch.tensor([0, 0, 0, 1]),
    }
    loss = LOSSES["gspo"][0](logprobs, columns, clip_low_threshold=0.5, clip_high_threshold=2.0)
    ratio = math.exp(0.3)
    assert torch.allclose(loss, torch.tensor([-ratio, -2 * ratio, ratio, -3.0]))
    loss.sum().backward()
    assert torch.allclose(logprobs.grad, loss.detach())  # the derivative of a ratio is the ratio


def test_a_state_restores_weights_and_optimizer_exactly(assembly):
    data = [make_datum("cross_entropy")]

    async def step(call, id, seq):
        await call("forward_backward", write_request(id, seq, data=data))
        await call("optim_step", {"model_id": id, "seq_id": seq + 1, "adam_params": {"learning_rate": RATE}})

    async def work(call, service):
        id = await open_model(call)
        await step(call, id, 1)
        _, saved = await call("save_weights", {"model_id": id, "seq_id": 3, "path": "one"})
        body = {"session_id": id.split(":")[0], "model_seq_id": 1, "path": saved["path"], "optimizer": True}
        _, loaded = await call("load_weights", body)
        await step(call, id, 4)
        await step(call, loaded["model_id"], 1)
        return [service.models[each].state_dict()["weights"] for each in (id, loaded["model_id"])]

    first, second = with_service(assembly, work)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_saved_states_and_sampler_weights_outlive_the_server(assembly):
    """Save with one server, restore with another, and continue as the first one does."""
    data = [make_datum("cross_entropy")]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": list(IDS)}]}

    async def step(call, id, seq):
        await call("forward_backward", write_request(id, seq, data=data))
        await call("optim_step", {"model_id": id, "seq_id": seq + 1, "adam_params": {"learning_rate": RATE}})

    async def score(call, session, path):
        body = {"session_id": session, "sampling_session_seq_id": 7, "model_path": path}
        status, sampler = await call("create_sampling_session", body)
        assert status == 200, sampler
        body = {"sampling_session_id": sampler["sampling_session_id"], "prompt": prompt, "prompt_logprobs": True}
        _, written = await call("asample", {**body, "sampling_params": {"max_tokens": 1, "seed": 1}})
        return np.frombuffer(decode_message(written)[2][0], "<f4")

    async def first(call, service):
        id = await open_model(call, train_mlp=False)
        await step(call, id, 1)
        body = {"model_id": id, "path": "a.1"}
        _, saved = await call("save_weights", {**body, "seq_id": 3})
        _, sampler = await call("save_weights_for_sampler", {**body, "seq_id": 4})
        logprobs = await score(call, id.split(":")[0], sampler["path"])
        await step(call, id, 5)
        return saved["path"], sampler["path"], logprobs, service.models[id].state_dict()["weights"]

    state, sampler, logprobs, weights = with_service(assembly, first)

    async def second(call, service):
        _, opened = await call("create_session", {"sdk_version": "0.38.0"})
        body = {"session_id": opened["session_id"], "model_seq_id": 0, "path": state, "optimizer": True}
        _, loaded = await call("load_weights", body)
        await step(call, loaded["model_id"], 1)
        assert (await call("weights_info", {"tinker_path": state}))[1]["lora_rank"] == 4
        _, refused = await call("load_weights", {**body, "path": state.replace("a.1", "a.2")})
        repeated = await score(call, opened["session_id"], sampler)
        return repeated, service.models[loaded["model_id"]].state_dict()["weights"], refused

    repeated, restored, refused = with_service(assembly, second)
    assert np.array_equal(logprobs, repeated, equal_nan=True)
    assert weights.keys() == restored.keys()
    assert all(torch.equal(weights[name], restored[name]) for name in weights)
    assert refused["error"].startswith("load_weights: tinker://")
    assert f'is unknown; did you mean "{state}"?' in refused["error"]


def test_a_state_that_cannot_be_read_or_written_is_one_line(assembly, tmp_path):
    states = StateFiles(tmp_path, assembly.policy)
    path = "tinker://00ff:train:0/weights/one"
    states.save(path, {"rank": 1})
    assert states.list_paths() == [path]
    other = StateFiles(tmp_path, TrainingModel(assembly.policy, rank=1).policy)
    with pytest.raises(RefusedError, match=r"load_weights: .*/one belongs to another base model"):
        other.load(path, "load_weights", "weights")
    file = tmp_path / "00ff-train-0" / "weights" / "one.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RefusedError, match=r"load_weights: .*/one is damaged"):
        states.load(path, "load_weights", "weights")
    for name in ("", "..", "a/b", "../../x", "a b"):
        with pytest.raises(RefusedError, match=r"the name .* must have letters"):
            states.check_name(f"tinker://00ff:train:0/weights/{name}")
    (tmp_path / "00ff-train-1").write_text("")
    with pytest.raises(RefusedError, match="cannot be saved"):
        states.save("tinker://00ff:train:1/weights/one", {})
    with pytest.raises(RecipeError, match=r"--tinker-states .*: cannot be created"):
        StateFiles(file / "x", assembly.policy)


def test_samplers_keep_their_weights_while_training_goes_on(assembly):
    async def work(call, service):
        id = await open_model(call)
        session, logprobs = id.split(":")[0], []
        for n in range(2):
            _, sampler = await call(
                "save_weights_for_sampler", {"model_id": id, "seq_id": 3 * n + 1, "sampling_session_seq_id": n}
            )
            assert sampler["sampling_session_id"] == f"{session}:sample:{n}"
            await call("forward_backward", write_request(id, 3 * n + 2))
            await call("optim_step", {"model_id": id, "seq_id": 3 * n + 3, "adam_params": {"learning_rate": 0.1}})
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(IDS)}]}
        for n in (0, 1, 0):
            body = {"sampling_session_id": f"{session}:sample:{n}", "prompt": prompt, "prompt_logprobs": True}
            status, written = await call("asample", {**body, "sampling_params": {"max_tokens": 3, "seed": 1}})
            assert status == 200, written
            fields = decode_message(written)
            logprobs.append(np.frombuffer(fields[2][0], "<f4"))
            tokens = np.frombuffer(decode_message(fields[1][0])[2][0], "<i4")
            assert len(tokens) == 3
        return logprobs

    base, trained, repeated = with_service(assembly, work)
    assert math.isnan(base[0])
    assert np.array_equal(base, repeated, equal_nan=True)
    assert not np.allclose(base[1:], trained[1:])


def test_requests_run_in_their_order_and_a_repeated_one_runs_once(assembly):
    async def work(call, service):
        id = await open_model(call)
        step = call("optim_step", {"model_id": id, "seq_id": 2, "adam_params": {"learning_rate": RATE}})
        late = asyncio.ensure_future(step)
        await asyncio.sleep(0.05)
        assert not late.done()
        first = await call("forward_backward", write_request(id, 1))
        assert await call("forward_backward", write_request(id, 1)) == first
        return (await late)[1]

    assert with_service(assembly, work)["metrics"]["grad_norm:mean"] > 0


def test_two_clients_at_once_train_as_each_alone(assembly):
    def train(count):
        async def one(call, service, seed):
            id = await open_model(call)
            for n in range(2):
                data = [make_datum("cross_entropy", seed=seed)]
                await call("forward_backward", write_request(id, 2 * n + 1, data=data))
                await call("optim_step", {"model_id": id, "seq_id": 2 * n + 2, "adam_params": {}})
            return service.models[id].state_dict()["weights"]

        async def work(call, service):
            return await asyncio.gather(*(one(call, service, seed) for seed in count))

        return with_service(assembly, work)

    for alone, concurrent in zip((train([0])[0], train([1])[0]), train([0, 1]), strict=True):
        assert all(torch.equal(alone[name], concurrent[name]) for name in alone)


def test_a_refused_request_does_not_block_those_after_it(assembly):
    async def work(call, service):
        id = await open_model(call)
        _, refused = await call("forward_backward", write_request(id, 1, "stable_reinforce", [make_datum("ppo")]))
        body = {"model_id": id, "seq_id": 2, "optimizer_params": {"type": "muon"}}
        _, other = await call("optim_step", body)
        status, _ = await call("forward_backward", write_request(id, 3))
        return refused, other, status

    refused, other, status = with_service(assembly, work)
    assert other["error"].startswith("optim_step: has no adam_params; other optimizers than AdamW")
    assert status == 200
    assert refused["category"] == "user"
    assert refused["error"].startswith("forward_backward: loss_fn stable_reinforce is not supported; this server has")


def test_an_unreadable_request_does_not_block_those_after_it(assembly, monkeypatch):
    """Whether its position was read, nothing of it, or it never arrived."""

    async def work(call, service):
        id = await open_model(call)
        cut = await call("forward_backward", write_request(id, 1)[:-3])
        lost = await call("forward_backward", b"\xff\xff")
        waiting = asyncio.ensure_future(call("optim_step", {"model_id": id, "seq_id": 4, "adam_params": {}}))
        step = await call("optim_step", {"model_id": id, "seq_id": 3, "adam_params": {}})
        await waiting
        ahead = asyncio.ensure_future(call("optim_step", {"model_id": id, "seq_id": 6, "adam_params": {}}))
        await asyncio.sleep(0.05)
        assert not ahead.done()
        await call("optim_step", b"[")
        await ahead
        monkeypatch.setattr(tinker_service, "_LOST_SECONDS", 0.05)
        await call("optim_step", {"model_id": id, "seq_id": 8, "adam_params": {}})
        late = await call("forward_backward", write_request(id, 2))
        return cut[1], lost[1], step[1], late[1], service.models[id].next_seq

    monkeypatch.setattr(tinker_service, "_LOST_SECONDS", 1e6)
    cut, lost, step, late, next_seq = with_service(assembly, work)
    assert "the body is no request of tinker 0.38: field" in cut["error"]
    assert "the body is no request of tinker 0.38" in lost["error"]["message"]
    assert step["metrics"]["grad_norm:mean"] == 0
    assert late["error"]["message"].startswith("seq_id 2: arrived after later requests")
    assert next_seq == 9


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("client/config", {"sdk_version": "0.9.0"}, "tinker 0.9.0: this server implements the wire format of 0.38"),
        ("create_session", {"sdk_version": "1.0"}, "pip install 'tinker==0.38.*'"),
        ("create_model", {"base_model": "other/model"}, "base_model other/model is not served; this server has tiny"),
        ("create_model", {"base_model": "tiny"}, "full training is not supported"),
        ("create_model", {"base_model": "tiny", "optimizer_config": {"type": "muon"}}, "optimizer muon is not"),
        ("create_sampling_session", {"model_path": "tinker://a/b"}, "tinker://a/b is unknown"),
        ("save_weights_external", {}, "POST /api/v1/save_weights_external is not supported"),
        ("create_custom_loss", {}, "POST /api/v1/create_custom_loss is not supported"),
        ("retrieve_future", {"request_id": "x"}, "x is unknown"),
        ("forward_backward", b"\xff\xff", "is no request of tinker 0.38"),
        ("optim_step", b"[]", "no JSON object"),
    ],
)
def test_a_call_that_is_not_supported_is_one_line(assembly, path, body, part):
    async def work(call, service):
        return await call(path, body)

    status, answer = with_service(assembly, work)
    line = answer["error"]["message"]
    assert 400 <= status < 500
    assert part in line
    assert "\n" not in line


def change(datum, **inputs):
    return replace(datum, inputs={**datum.inputs, **inputs})


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (TrainingRequest("m", 1, "stable_reinforce"), "loss_fn stable_reinforce is not supported"),
        (TrainingRequest("m", 1, "dro", data=[make_datum("dro")]), "dro requires loss_fn_config"),
        (
            TrainingRequest("m", 1, "gspo", data=[change(make_datum("gspo"), sequence_ratio_mask=np.zeros(5))]),
            "sequence_ratio_mask is 0 everywhere",
        ),
        (
            TrainingRequest(
                "m",
                1,
                "dro",
                CONFIG["dro"],
                data=[change(make_datum("dro"), target_tokens=np.array([0, *IDS[2:]]), advantages=np.zeros(5))],
            ),
            "and not in dro",
        ),
        (TrainingRequest("m", 1, "ppo"), "has no example"),
        (TrainingRequest("m", 1, "ppo", {"beta": 1.0}, data=[make_datum("ppo")]), "no option beta=1.0"),
        (TrainingRequest("m", 1, "ppo", data=[make_datum("cross_entropy")]), "lacks logprobs"),
        (TrainingRequest("m", 1, "cross_entropy", data=[make_datum("ppo")]), "which cross_entropy does not read"),
        (
            TrainingRequest("m", 1, "ppo", data=[change(make_datum("ppo"), advantages=np.zeros(2))]),
            r"data\[0\] advantages has shape \[2\]; expected \[5\]",
        ),
        (
            TrainingRequest("m", 1, "ppo", data=[change(make_datum("ppo"), target_tokens=np.arange(5))]),
            r"target_tokens\[0\] is not the next input token",
        ),
        (TrainingRequest("m", 1, "ppo", data=[TrainingDatum((), {})]), "has 0 input tokens"),
    ],
)
def test_training_data_that_cannot_be_trained_is_refused(request_, part):
    with pytest.raises(RefusedError, match=part):
        check_training_request(request_, context_length=768)


def test_images_and_sparse_tensors_keep_their_place_in_the_order():
    image = encode_field(3, encode_field(1, encode_field(2, encode_field(1, b"png"))))
    sparse = encode_field(2, encode_field(1, "weights") + encode_field(2, encode_field(2, b"")))
    for written, part in ((image, "images and audio"), (encode_field(3, sparse), "weights is a sparse tensor")):
        request = decode_training_request(encode_field(1, "m") + encode_field(2, 7) + written)
        assert request.seq_id == 7
        assert part in request.problem


def test_optimizer_parameters_are_checked(assembly):
    model = TrainingModel(assembly.policy, rank=2)
    with pytest.raises(RefusedError, match='learning_rat is not supported; did you mean "learning_rate"'):
        model.optim_step({"learning_rat": 1.0})
    with pytest.raises(RefusedError, match="beta1 must be a number"):
        model.optim_step({"beta1": "0.9"})
    with pytest.raises(RecipeError, match="has adapters"):
        TinkerService(model.policy, None, name="tiny", states=STATES[-1])


def test_the_public_client_trains_saves_and_samples(assembly):
    tinker = pytest.importorskip("tinker", reason="tinker is not installed: pip install 'tinker==0.38.*'")

    def play(port, service):
        types = tinker.types
        client = tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key="tml-local")
        training = client.create_lora_training_client(base_model="tiny", rank=4).result()
        inputs = {"target_tokens": list(IDS[1:]), "weights": [0.0, 1.0, 1.0, 1.0, 1.0]}
        datum = types.Datum(model_input=types.ModelInput.from_ints(list(IDS[:-1])), loss_fn_inputs=inputs)
        losses = []
        training.optim_step(types.AdamParams(learning_rate=0.5, beta1=0.5, beta2=0.6, eps=1e-3)).result()
        (model,) = service.models.values()
        (group,) = model.passes.optimizers.all_optimizers[0].param_groups
        assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.5, 0.6), 1e-3)
        for _ in range(3):
            computed = training.forward_backward([datum], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            losses.append(computed.result().metrics["loss:sum"])
        custom = training.forward_backward_custom([datum], lambda data, logprobs: (-logprobs[0][1:].sum(), {}))
        losses.append(custom.result().metrics["loss:sum"])
        sampler = training.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints(list(IDS[:2]))
        params = types.SamplingParams(max_tokens=4, seed=3, temperature=1.0)
        sampled = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result().sequences
        scored = sampler.compute_logprobs(types.ModelInput.from_ints([*IDS[:2], *sampled[0].tokens])).result()
        path = training.save_state("one").result().path
        restored = client.create_training_client_from_state_with_optimizer(path).result()
        with pytest.raises(tinker.TinkerError, match="loss_fn stable_reinforce is not supported"):
            restored.forward_backward([datum], "stable_reinforce").result()
        with pytest.MonkeyPatch.context() as damaged:
            unreadable = SimpleNamespace(SerializeToString=lambda: b"\xff\xff")
            damaged.setattr("tinker.resources.training.forward_backward_request_to_proto", lambda request: unreadable)
            with pytest.raises(tinker.TinkerError, match="forward_backward: the body is no request of tinker"):
                restored.forward_backward([datum], "cross_entropy").result()
        restored.optim_step(types.AdamParams(learning_rate=1e-4)).result(timeout=60)
        page = (Path(__file__).parents[2] / "docs" / "guide" / "tinker.md").read_text()
        snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
        for old, new in (
            ("8000", str(port)),
            ("smollm2-135m", "tiny"),
            ('training.get_tokenizer().encode("2 + 3 = 5")', "list(range(5, 11))"),
        ):
            assert old in snippet
            snippet = snippet.replace(old, new)
        exec(compile(snippet, "tinker.md", "exec"), {})
        return losses, sampled, scored

    async def run():
        served = Served(assembly)
        service = TinkerService(assembly.policy, served.engine, name="tiny", states=STATES[-1])
        app = build_serving_app(served.server, extra_routes=tinker_routes(served.server, service))
        async with at_a_socket(app) as port:
            result = await asyncio.to_thread(play, port, service)
        await service.close()
        await served.close()
        return result

    losses, sampled, scored = asyncio.run(run())
    assert losses == sorted(losses, reverse=True)
    assert np.allclose(sampled[0].logprobs, scored[2:], atol=1e-5)
    assert len(sampled) == 2
