"""How are episodes sampled by an SGLang server? By its native `/generate`, ids in and ids out.

    SGLangEngine(address="http://127.0.0.1:30000")

Written after SGLang's documented interface (0.5) and tested against a stand-in that answers as it is documented: **no
real server was ever tried**. It is asked once how it does before a run depends on it: `engine_check.py`.

Easy to get wrong: SGLang's log-probs are after the temperature and before cuts and bias, so ways of drawing that cut
are refused; and its prefix cache is of whatever weights were there, so `extra_key` keeps versions apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.exchange import Question, Reply, label_of, labels_of
from whetstone.inference.protocol import EngineAbilities, InFlight, Sampling, Weights
from whetstone.inference.served import ServedEngine
from whetstone.inference.server_process import as_flags

_ADAPTER = "adapter"
_PAUSES: dict[str, str] = {"continue": "in_place", "recompute": "retract"}


class SGLangEngine(ServedEngine):
    """An engine that asks an SGLang server, one that is there or one that it starts.

    It dies with its server; `restarting_engine(SGLangEngine, ...)` has another take its place.

    Arguments are those of `ServedEngine`.
    """

    server = "SGLang"
    of_the_draw_by = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
    abilities = EngineAbilities(
        entropies=False,
        model_logprobs=False,
        forced_tokens=False,
        logit_bias=False,
        seeds=False,
        constraints=False,
        top_logprobs=False,
    )

    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        needed = {"model_path": model, "host": "127.0.0.1", "port": port, "enable_lora": self._lora}
        return [python, "-m", "sglang.launch_server", *as_flags({**needed, **options})]

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """See `ReadsText.tokenize`."""
        await self._ready()
        read = await self.at.told("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
        return tuple(read["tokens"])

    async def _connect(self) -> str:
        described = await self.at.told("GET", "/get_model_info")
        if "model_path" not in described:
            raise self.at.strange("is none: /get_model_info names no model_path")
        configured = await self.at.told("GET", "/get_server_info")
        length = configured.get("context_length") or configured.get("max_req_input_len")
        if length is None:
            raise self.at.strange("does not say how long its context is; start it with --context-length")
        self.context_length = int(length)
        await self.find_what_logprobs_are(temperature=1e-4)  # its log-probs are before cuts
        return str(described.get("weight_version") or "")

    def _check(self, sampling: Sampling) -> None:
        super()._check(sampling)
        cut = sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias
        if cut and sampling.temperature > 0:
            raise self.at.strange(
                "gives no log-probs after bias and cuts; draw without top_k, top_p, min_p and logit_bias"
            )

    async def _draw(self, question: Question) -> Reply:
        body = {
            "rid": question.id,
            "input_ids": question.tokens,
            "sampling_params": _sampling(question.sampling),
            "return_logprob": True,
            "logprob_start_len": -1 if question.score_from is None else question.score_from - 1,
            "extra_key": question.cache,
            **({"lora_path": _ADAPTER} if self._with_adapter else {}),
        }
        read = await self.at.told("POST", "/generate", body)
        try:
            return self._reply(read, question)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said = f"answered what is no completion ({type(error).__name__}: {error})"
            raise InfrastructureError(f"the SGLang server at {self.at.address} {said}") from None

    def _reply(self, read: Mapping[str, Any], question: Question) -> Reply:
        said = read["meta_info"]
        if said.get("output_token_logprobs") is None:
            raise self.at.strange("gives no log-probs")
        drawn = [(int(token), float(logprob)) for logprob, token, *_ in said["output_token_logprobs"]]
        finish: Literal["stop", "length", "abort"] = said["finish_reason"]["type"]
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"finish_reason {finish!r}")
        prompt: tuple[float, ...] = ()
        if question.score_from is not None:
            count = len(question.tokens) - question.score_from
            scored = said["input_token_logprobs"][-count:]  # the first of all has no log-prob
            if [int(token) for _, token, *_ in scored] != list(question.tokens[question.score_from :]):
                raise ValueError("the log-probs of the prompt are of other tokens")
            prompt = tuple(float(logprob) for logprob, *_ in scored)
        return Reply(
            tuple(token for token, _ in drawn),
            tuple(logprob for _, logprob in drawn),
            finish,
            labels_of(said.get("weight_versions"), len(drawn), otherwise=said.get("weight_version")),
            int(said["prompt_tokens"]),
            int(said.get("cached_tokens") or 0),
            prompt,
        )

    async def _abort(self, id: str) -> None:
        await self.at.ask("POST", "/abort_request", {"rid": id})

    async def _load(self, weights: Weights, version: int) -> None:
        folder = await self._write(weights, version)
        if self._lora:
            if self._with_adapter:
                await self._changed("/unload_lora_adapter", {"lora_name": _ADAPTER})
            await self._changed("/load_lora_adapter", {"lora_name": _ADAPTER, "lora_path": folder})
            self._with_adapter = True
            await self.at.told("POST", "/update_weight_version", {"new_version": label_of(version)})
            return
        # keys of other weights have another `extra_key`, so nothing has to be flushed for what is under way
        body = {"model_path": folder, "weight_version": label_of(version), "flush_cache": False}
        await self._changed("/update_weights_from_disk", body)

    async def _changed(self, path: str, body: Mapping[str, Any]) -> None:
        answer = await self.at.ask("POST", path, body)
        try:
            read = answer.json()
            done = answer.status < 300 and read.get("success") is not False
        except (ValueError, AttributeError):
            read, done = {}, False
        if not done:
            said = str(read.get("message") or read.get("error_message") or answer.text)
            raise EngineError(f"weights could not be loaded: {path}: {' '.join(said.split())[:300]}")

    async def _pause(self, in_flight: InFlight) -> None:
        await self.at.told("POST", "/pause_generation", {"mode": _PAUSES[in_flight]})

    async def _resume(self, in_flight: InFlight) -> None:
        if in_flight == "recompute":
            await self.at.ask("POST", "/flush_cache")
        await self.at.told("POST", "/continue_generation", {})


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """As SGLang names it; no seed."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,  # what ends an answer is said by the chat
        "skip_special_tokens": False,
        "no_stop_trim": True,
        **({"stop": list(sampling.stop_strings)} if sampling.stop_strings else {}),
    }
