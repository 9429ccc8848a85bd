"""Engine with an SGLang server: its native `/generate`, token ids in and token ids out.

    SGLangEngine(address="http://127.0.0.1:30000")

Written for SGLang's documented interface (0.5) and tested with a mock server that responds as documented: **no real
server was ever tried**. A run checks it once before it depends on it: `engine_check.py`.

Note:
    SGLang's log-probs are after the temperature and before truncation and bias, so sampling parameters that truncate
    are rejected. Its prefix cache does not depend on the weights, so `extra_key` separates versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.protocol import EngineCapabilities, InFlight, Sampling, Weights
from whetstone.inference.server_engine import ServerEngine
from whetstone.inference.server_process import as_flags
from whetstone.inference.server_types import ServerRequest, ServerResponse, token_labels, version_label

_ADAPTER = "adapter"
_PAUSES: dict[str, str] = {"continue": "in_place", "recompute": "retract"}


class SGLangEngine(ServerEngine):
    """Engine with an SGLang server, an existing one or one that it starts.

    It dies with its server; `build_restarting_engine(SGLangEngine, ...)` adds restarts. See `ServerEngine` for the
    arguments.
    """

    server = "SGLang"
    load_metrics = (("sglang:token_usage",), ("sglang:num_queue_reqs",), ())
    load_metrics_by = "start it with --enable-metrics"
    of_the_draw_by = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
    capabilities = EngineCapabilities(
        entropies=False,
        model_logprobs=False,
        forced_tokens=False,
        logit_bias=False,
        seeds=False,
        constraints=False,
        top_logprobs=False,
    )

    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        needed = {
            "model_path": model,
            "host": "127.0.0.1",
            "port": port,
            "enable_lora": self._lora,
            "enable_metrics": True,
        }
        return [python, "-m", "sglang.launch_server", *as_flags({**needed, **options})]

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text by the server's tokenizer; see `HasTokenizer.tokenize`."""
        await self._ready()
        read = await self.at.request_json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        return tuple(read["tokens"])

    async def _connect(self) -> str:
        described = await self.at.request_json("GET", "/get_model_info")
        if "model_path" not in described:
            raise self.at.build_error("is not SGLang: /get_model_info has no model_path")
        configured = await self.at.request_json("GET", "/get_server_info")
        length = configured.get("context_length") or configured.get("max_req_input_len")
        if length is None:
            raise self.at.build_error("reports no context length; start it with --context-length")
        self.context_length = int(length)
        await self.find_what_logprobs_are(temperature=1e-4)  # its log-probs are before cuts
        return str(described.get("weight_version") or "")

    def _check(self, sampling: Sampling) -> None:
        super()._check(sampling)
        cut = sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias
        if cut and sampling.temperature > 0:
            raise self.at.build_error(
                "returns no log-probs after bias and truncation; sample without top_k, top_p, min_p and logit_bias"
            )

    async def _draw(self, question: ServerRequest) -> ServerResponse:
        body = {
            "rid": question.id,
            "input_ids": question.tokens,
            "sampling_params": _sampling(question.sampling),
            "return_logprob": True,
            "logprob_start_len": -1 if question.score_from is None else question.score_from - 1,
            "extra_key": question.cache,
            **({"lora_path": _ADAPTER} if self._with_adapter else {}),
        }
        read = await self.at.request_json("POST", "/generate", body)
        try:
            return self._reply(read, question)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            problem = f"returned an invalid completion ({type(error).__name__}: {error})"
            raise InfrastructureError(f"the SGLang server at {self.at.address} {problem}") from None

    def _reply(self, read: Mapping[str, Any], question: ServerRequest) -> ServerResponse:
        meta = read["meta_info"]
        if meta.get("output_token_logprobs") is None:
            raise self.at.build_error("returns no log-probs; check that no proxy removes them")
        drawn = [(int(token), float(logprob)) for logprob, token, *_ in meta["output_token_logprobs"]]
        finish: Literal["stop", "length", "abort"] = meta["finish_reason"]["type"]
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"finish_reason {finish!r}")
        prompt: tuple[float, ...] = ()
        if question.score_from is not None:
            count = len(question.tokens) - question.score_from
            scored = meta["input_token_logprobs"][-count:]  # the first of all has no log-prob
            if [int(token) for _, token, *_ in scored] != list(question.tokens[question.score_from :]):
                raise ValueError("the log-probs of the prompt belong to other tokens")
            prompt = tuple(float(logprob) for logprob, *_ in scored)
        return ServerResponse(
            tuple(token for token, _ in drawn),
            tuple(logprob for _, logprob in drawn),
            finish,
            token_labels(meta.get("weight_versions"), len(drawn), otherwise=meta.get("weight_version")),
            int(meta["prompt_tokens"]),
            int(meta.get("cached_tokens") or 0),
            prompt,
        )

    async def _abort(self, id: str) -> None:
        await self.at.request("POST", "/abort_request", {"rid": id})

    async def _load(self, weights: Weights, version: int) -> None:
        folder = await self._write(weights, version)
        if self._lora:
            if self._with_adapter:
                await self._changed("/unload_lora_adapter", {"lora_name": _ADAPTER})
            await self._changed("/load_lora_adapter", {"lora_name": _ADAPTER, "lora_path": folder})
            self._with_adapter = True
            await self.at.request_json("POST", "/update_weight_version", {"new_version": version_label(version)})
            return
        # keys of other weights have another `extra_key`, so requests in flight need no flush
        body = {"model_path": folder, "weight_version": version_label(version), "flush_cache": False}
        await self._changed("/update_weights_from_disk", body)

    async def _changed(self, path: str, body: Mapping[str, Any]) -> None:
        answer = await self.at.request("POST", path, body)
        try:
            read = answer.json()
            done = answer.status < 300 and read.get("success") is not False
        except (ValueError, AttributeError):
            read, done = {}, False
        if not done:
            text = str(read.get("message") or read.get("error_message") or answer.text)
            raise EngineError(f"weights could not be loaded: {path}: {' '.join(text.split())[:300]}")

    async def _pause(self, in_flight: InFlight) -> None:
        await self.at.request_json("POST", "/pause_generation", {"mode": _PAUSES[in_flight]})

    async def _resume(self, in_flight: InFlight) -> None:
        if in_flight == "recompute":
            await self.at.request("POST", "/flush_cache")
        await self.at.request_json("POST", "/continue_generation", {})


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Convert sampling parameters to the names of SGLang; seeds are not sent."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,  # stop tokens are set by the chat template
        "skip_special_tokens": False,
        "no_stop_trim": True,
        **({"stop": list(sampling.stop_strings)} if sampling.stop_strings else {}),
    }
