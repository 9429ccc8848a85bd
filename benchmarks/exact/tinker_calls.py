"""Calls of the client `tinker` to `whetstone serve --tinker`: accepted, equal to Whetstone's trainer, or refused.

    python -m benchmarks tinker_calls [--model MODEL] [--page FILE] [--json]

Every public method of the client's four classes is called once. Training calls make three optimizer steps, save the
state, and compare its adapters with those of `ModelTrainer` on the same data; custom losses are compared with the
built-in one that they equal. The goal is that no call fails in another way than by a refusal with its name. Requires
`tinker` 0.38 in the environment of Whetstone.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whetstone.algorithms import LossTerm, TokenLoss
from whetstone.inference.server_process import free_port
from whetstone.learning.losses import POLICY, UpdateLoss
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import add_adapters, load_policy
from whetstone.recipe import OptimizerSettings
from whetstone.serving.tinker.protobuf_format import TrainingDatum, TrainingRequest
from whetstone.serving.tinker.training_client import LORA_ALPHA, LOSSES, check_training_request

RANK, STEPS, RATE, SEED = 4, 3, 1e-3, 0
TOLERANCE = 1e-6
TEXTS = ("The capital of France is Paris.", "2 + 3 = 5, and 3 + 2 = 5 too.")
REFUSALS = ("stable_reinforce",)
CONFIG = {"dro": {"beta": 0.05}}
"""Options of losses that require some."""
CLASSES = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient")
_SKIPPED = {"create", "holder", "from_sampler_handle", "get_telemetry", "on_queue_state_change", "get_console_url"}
"""Methods that send no request, or only ones that other rows have."""
UNSENT = {
    "RestClient.get_billing_usage": "needs an account of the hosted service",
    "RestClient.get_external_weights_urls": "the client accepts only weights of save_weights_external",
    "RestClient.search_sessions": "needs an account of the hosted service",
    "RestClient.whoami": "the client requires another kind of credential",
}
"""Methods that the client itself ends before it sends a request."""


def make_data(tokenizer: Any, loss: str) -> list[TrainingDatum]:
    """Return one example per text, with random inputs of the loss."""
    data = []
    for seed, text in enumerate(TEXTS):
        ids = tokenizer.encode(text)
        random = np.random.default_rng(seed)
        columns = {name: random.normal(size=len(ids) - 1).astype(np.float32) for name in LOSSES[loss][1]}
        if "logprobs" in columns:
            columns["logprobs"] = columns["logprobs"] * 0.3 - 3
        if "sequence_ratio_mask" in columns:
            columns["sequence_ratio_mask"] = np.ones(len(ids) - 1, np.float32)
        data.append(TrainingDatum(tuple(ids[:-1]), {"target_tokens": np.array(ids[1:]), **columns}))
    return data


def train_in_whetstone(model: str, loss: str) -> dict[str, torch.Tensor]:
    """Return the adapters after the same steps of `ModelTrainer`."""
    policy = load_policy(model)
    policy.model.requires_grad_(False)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    add_adapters(policy.model, rank=RANK, alpha=LORA_ALPHA, target_modules=names, dora=False, seed=SEED)
    settings = OptimizerSettings(learning_rate=RATE, warmup_fraction=0, max_grad_norm=1e9)
    trainer = ModelTrainer(replace(policy, critic=None), settings)
    data = make_data(policy.tokenizer, loss)
    segments = check_training_request(
        TrainingRequest("m", 1, loss, CONFIG.get(loss, {}), data=data), context_length=policy.context_length
    )
    columns = {name: [torch.tensor(datum.inputs[name]) for datum in data] for name in LOSSES[loss][1]}
    credit = columns["weights"] if loss == "cross_entropy" else columns["advantages"]
    old = columns.get("logprobs", [torch.zeros(len(datum.ids)) for datum in data])

    def objective(learner_logprobs: torch.Tensor, old_logprobs: torch.Tensor, credit: torch.Tensor) -> TokenLoss:
        ratio = (learner_logprobs - old_logprobs).exp()
        losses = {
            "cross_entropy": lambda: -credit * learner_logprobs,
            "importance_sampling": lambda: -ratio * credit,
            "ppo": lambda: -torch.minimum(ratio * credit, ratio.clamp(0.8, 1.2) * credit),
            "cispo": lambda: -ratio.clamp(0.8, 1.2).detach() * credit * learner_logprobs,
            "dro": lambda: 0.025 * (learner_logprobs - old_logprobs) ** 2 - credit * learner_logprobs,
        }
        return TokenLoss(losses[loss](), {})

    def sequence_objective(
        learner_logprobs: torch.Tensor, old_logprobs: torch.Tensor, credit: torch.Tensor, sequence: torch.Tensor
    ) -> TokenLoss:
        parts = []
        for each in range(int(sequence.max()) + 1):
            change = (learner_logprobs - old_logprobs)[sequence == each]
            ratio = (change - change.detach() + change.detach().mean()).exp()
            parts.append(
                -torch.minimum(ratio * credit[sequence == each], ratio.clamp(0.9997, 1.0004) * credit[sequence == each])
            )
        return TokenLoss(torch.cat(parts), {})

    term = LossTerm(POLICY, sequence_objective if loss == "gspo" else objective, 1.0)
    for _ in range(STEPS):
        trainer.step(segments, UpdateLoss([term], old=old, columns={"credit": credit}), divisor=1)
    return {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}


class Calls:
    """Rows of the table: each call with its outcome.

    Args:
        model: Name or folder of the model.
        address: URL of the server.
        states: Folder of the server's saved states.
    """

    def __init__(self, model: str, address: str, states: Path) -> None:
        import tinker

        self.tinker, self.types, self.model, self.states = tinker, tinker.types, model, states
        self.rows: list[tuple[str, str, str]] = []
        self.called: set[str] = set()
        self.service = tinker.ServiceClient(base_url=address, api_key="tml-local")
        self.trained = dict[str, dict[str, torch.Tensor]]()

    def try_call(self, name: str, call: Callable[[], Any], *, note: str = "") -> Any:
        """Make a call, and add its row."""
        self.called.add(name.partition("(")[0])
        try:
            value = call()
            value = value.result() if hasattr(value, "result") else value
        except Exception as error:
            if name in UNSENT and not is_refusal(str(error)):
                self.rows.append((name, "not sent", UNSENT[name]))
                return None
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = re.search(r"[\"']message[\"']: [\"'](.*?)[\"'][,}]", str(error), re.DOTALL)
            self.rows.append(
                (
                    name,
                    "refused" if is_refusal(str(error)) else "FAILED",
                    message[1] if message else line.removeprefix("Request failed: ").removesuffix(" for request"),
                )
            )
            return None
        self.rows.append((name, "accepted", note))
        return value

    def new_client(self) -> Any:
        """Return a new training client."""
        return self.service.create_lora_training_client(base_model=self.model, rank=RANK, seed=SEED).result()

    def data(self, loss: str) -> list[Any]:
        """Return the examples as the client's `Datum`."""
        return [
            self.types.Datum(
                model_input=self.types.ModelInput.from_ints(list(datum.ids)),
                loss_fn_inputs={
                    name: self.types.TensorData.from_numpy(
                        values.astype(np.int64 if name == "target_tokens" else np.float32)
                    )
                    for name, values in datum.inputs.items()
                },
            )
            for datum in make_data(self.tokenizer, loss)
        ]

    def check_training(self, loss: str, update: Callable[[Any], Any], name: str) -> None:
        """Train, and compare the saved adapters with those of Whetstone's trainer."""
        client = self.new_client()

        def train() -> float:
            for _ in range(STEPS):
                update(client).result()
                params = self.types.AdamParams(learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-8)
                client.optim_step(params).result()
            path = client.save_state("compared").result().path
            session, kind, last = path.removeprefix("tinker://").split("/")
            file = self.states / session.replace(":", "-") / kind / f"{last}.pt"
            weights = torch.load(file, weights_only=True)["weights"]
            if loss not in self.trained:
                self.trained[loss] = train_in_whetstone(self.model, loss)
            expected = self.trained[loss]
            assert weights.keys() == expected.keys()
            return max(float((weights[each] - expected[each]).abs().max()) for each in expected)

        difference = self.try_call(name, train)
        if difference is not None:
            self.rows.pop()
            outcome = "equal" if difference <= TOLERANCE else "FAILED"
            self.rows.append((name, outcome, f"largest difference {difference:.1e}"))

    def run(self) -> None:
        """Make all calls."""
        service = self.service
        self.try_call("ServiceClient.get_server_capabilities", service.get_server_capabilities)
        client = self.try_call("ServiceClient.create_lora_training_client", self.new_client)
        self.tokenizer = self.try_call("TrainingClient.get_tokenizer", client.get_tokenizer)
        self.try_call("TrainingClient.get_info", client.get_info)
        for loss in LOSSES:
            self.check_training(
                loss,
                lambda each, loss=loss: each.forward_backward(self.data(loss), loss, CONFIG.get(loss)),  # type: ignore[misc]
                f"TrainingClient.forward_backward({loss})",
            )
        self.called.add("TrainingClient.optim_step")
        self.rows.append(("TrainingClient.optim_step", "equal", "three steps of AdamW in each row above"))
        for loss in REFUSALS:
            name = f"TrainingClient.forward_backward({loss})"
            self.try_call(name, lambda loss=loss: client.forward_backward(self.data("ppo"), loss))  # type: ignore[misc]
        self.try_call("TrainingClient.forward", lambda: client.forward(self.data("cross_entropy"), "cross_entropy"))

        def weighted(data: Any, logprobs: Any) -> Any:
            weights = [each.loss_fn_inputs["weights"].to_torch() for each in data]
            return -sum((w * each).sum() for w, each in zip(weights, logprobs, strict=True)), {}

        self.check_training(
            "cross_entropy",
            lambda each: each.forward_backward_custom(self.data("cross_entropy"), weighted),
            "TrainingClient.forward_backward_custom",
        )

        def handled(logprobs: Any, weights: Any) -> Any:
            return -(logprobs * weights).sum(), {}

        self.try_call(
            "ServiceClient.create_custom_loss",
            lambda: service.create_custom_loss(handled, input_ranks={"logprobs": 1, "weights": 1}),
        )
        state = self.try_call("TrainingClient.save_state", lambda: client.save_state("one")).path
        self.try_call("TrainingClient.load_state", lambda: client.load_state(state))
        self.try_call("TrainingClient.load_state_with_optimizer", lambda: client.load_state_with_optimizer(state))
        for name in ("create_training_client_from_state", "create_training_client_from_state_with_optimizer"):
            self.try_call(f"ServiceClient.{name}", lambda name=name: getattr(service, name)(state))  # type: ignore[misc]
        os.environ["TINKER_PROJECT_ID"] = "project"
        self.try_call("ServiceClient.copy_weights", lambda: service.copy_weights(state))
        saved = self.try_call(
            "TrainingClient.save_weights_for_sampler", lambda: client.save_weights_for_sampler("two")
        ).path
        self.try_call("TrainingClient.save_weights_external", lambda: client.save_weights_external("three"))
        self.try_call(
            "TrainingClient.save_weights_and_get_sampling_client", client.save_weights_and_get_sampling_client
        )
        self.try_call("TrainingClient.create_sampling_client", lambda: client.create_sampling_client(saved))
        sampler = self.try_call(
            "ServiceClient.create_sampling_client", lambda: service.create_sampling_client(model_path=saved)
        )
        self.sample(sampler)
        rest = self.try_call("ServiceClient.create_rest_client", service.create_rest_client)
        self.call_rest(rest, state)
        self.try_call("ServiceClient.close", lambda: service.close("success"))

    def sample(self, sampler: Any) -> None:
        """Make the calls of a sampling client; sampled log-probs must equal scored ones."""
        types = self.types
        prompt = types.ModelInput.from_ints(self.tokenizer.encode(TEXTS[0]))
        params = types.SamplingParams(max_tokens=8, temperature=1.0, seed=1)
        sampled = self.try_call(
            "SamplingClient.sample", lambda: sampler.sample(prompt=prompt, num_samples=2, sampling_params=params)
        )
        first = sampled.sequences[0]
        extended = types.ModelInput.from_ints([*prompt.to_ints(), *first.tokens])
        scored = self.try_call("SamplingClient.compute_logprobs", lambda: sampler.compute_logprobs(extended))
        difference = np.abs(np.array(scored[-len(first.tokens) :]) - np.array(first.logprobs)).max()
        self.rows[-1] = (
            self.rows[-1][0],
            "accepted",
            f"differs from the sampled log-probs by {difference:.1e} at most",
        )
        for option in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
            self.try_call(
                f"SamplingClient.sample({option}=1)",
                lambda option=option: sampler.sample(prompt, 1, params, **{option: 1}),  # type: ignore[misc]
            )
        for name in ("get_tokenizer", "get_base_model", "get_sampler_handle"):
            self.try_call(f"SamplingClient.{name}", getattr(sampler, name))

    def call_rest(self, rest: Any, state: str) -> None:
        """Call every method of the REST client, with paths, ids and texts as their parameters."""
        examples: dict[str, Any] = {
            "training_run_id": "run",
            "checkpoint_id": "weights/one",
            "session_id": "s",
            "project_id": "p",
        }
        examples |= {"tinker_path": state, "sampler_id": "s", "query": "q", "ttl_seconds": 60, "model_id": "m"}
        for name, method in public_methods(type(rest)):
            required = [
                each.name
                for each in list(inspect.signature(method).parameters.values())[1:]
                if each.default is inspect.Parameter.empty and each.kind is not inspect.Parameter.VAR_KEYWORD
            ]
            values = {each: examples.get(each, state if "path" in each else "x") for each in required}
            self.try_call(f"RestClient.{name}", lambda name=name, values=values: getattr(rest, name)(**values))  # type: ignore[misc]


def is_refusal(text: str) -> bool:
    """Return whether an error of the client has a line of the server, such as `… is not supported`."""
    return any(part in text for part in ("not supported", "has no option", "is unknown", "must have letters"))


def public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class of the client; `…_async` twins make the same requests."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and not name.endswith("_async") and name not in _SKIPPED:
            yield name, method


def measure(model: str) -> Calls:
    """Serve a model, and make all calls."""
    from tinker.lib.public_interfaces import RestClient

    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", model, "--name", model, "--tinker", "--tinker-states", folder, "--port", str(port)]
        server = subprocess.Popen(
            [sys.executable, "-m", "whetstone", *words, "--access-log", "off"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if " at http" in line:
                    break
            calls = Calls(model, f"http://127.0.0.1:{port}", Path(folder))
            calls.run()
        finally:
            server.terminate()
            server.wait(60)
    kinds = {**{name: getattr(calls.tinker, name) for name in CLASSES[:3]}, "RestClient": RestClient}
    for kind, owner in kinds.items():
        for name, _ in public_methods(owner):
            if f"{kind}.{name}" not in calls.called:
                calls.rows.append((f"{kind}.{name}", "FAILED", "is not called by this benchmark"))
    return calls


def write_page(calls: Calls, options: argparse.Namespace, seconds: float) -> str:
    """Return the result page."""
    import tinker

    counts = {kind: sum(row[1] == kind for row in calls.rows) for kind in ("accepted", "equal", "refused", "FAILED")}
    lines = [
        "# Calls of the Tinker client",
        "",
        f"Client `tinker` {tinker.__version__}, model {Path(options.model).name}, rank {RANK}, {STEPS} optimizer "
        f"steps; {platform.machine()}, PyTorch {torch.__version__}, {seconds:.0f} seconds.",
        "",
        f"`python -m benchmarks tinker_calls`: {counts['equal']} calls equal Whetstone's trainer to {TOLERANCE:.0e}, "
        f"{counts['accepted']} are accepted, {counts['refused']} are refused by name, {counts['FAILED']} fail.",
        "Methods without a request, and the `_async` twins of these methods, are left out.",
        "",
        "| call | outcome | detail |",
        "| --- | --- | --- |",
    ]
    for name, outcome, detail in calls.rows:
        short = re.sub(r"tinker://\S+?/(weights|sampler_weights)/", r"tinker://…/\1/", detail).replace("|", "\\|")
        short = re.sub(r"[0-9a-f]{32}(:train:\d+)?", "RUN", short)
        short = short.replace(options.model, Path(options.model).name)
        lines.append(f"| `{name}` | {outcome} | {short[:160]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make all calls and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="folder or name of a model [smollm2-135m]")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table as a result page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    began = time.perf_counter()
    if not Path(options.model).is_dir():
        from whetstone.policies import resolve_model_folder

        options.model = str(resolve_model_folder(options.model))
    calls = measure(options.model)
    seconds = time.perf_counter() - began
    page = write_page(calls, options, seconds)
    if options.page is not None:
        options.page.write_text(page, encoding="utf-8")
    counts = {kind: sum(row[1] == kind for row in calls.rows) for kind in ("accepted", "equal", "refused", "FAILED")}
    if options.json:
        print(
            json.dumps(
                {
                    "name": "tinker_calls",
                    "measured": {**counts, "rows": calls.rows},
                    "ratios": {"answered": 1 - counts["FAILED"] / len(calls.rows)},
                    "goal": "no call fails in another way than by a refusal",
                    "bound": None,
                    "machine": platform.processor() or platform.machine(),
                    "seconds": seconds,
                }
            )
        )
    else:
        print(page)
    sys.exit(counts["FAILED"] > 0)


if __name__ == "__main__":
    main()
