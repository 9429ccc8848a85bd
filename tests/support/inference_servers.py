"""Servers with the APIs of vLLM and SGLang for a local model; response fields were recorded from vLLM 0.32.

python support/inference_servers.py --model FOLDER --port 8000

Started this way, it replaces `python -m vllm.entrypoints.openai.api_server`.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from safetensors.torch import load_file

from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.policies import load_policy
from whetstone.trajectory import TokenSequence

REMARKS = {"completion_tokens_details": None}


class ModelServer:
    """A local model with an HTTP API.

    Args:
    folder: Folder of the policy.
    lacks: Paths that do not exist.
    raw: Whether log-probs are those of the model instead of the sampling distribution.
    faults: Changes of responses: a function of (path, response) that returns a response, a status or a delay.
    """

    def __init__(self, folder, *, port=0, lacks=(), raw=False, faults=lambda path, answer: answer):
        self.policy = load_policy(folder)
        self.lacks, self.raw, self.faults = set(lacks), raw, faults
        self.asked, self.labels, self.loaded, self.healthy = [], {0: "default"}, 0, True
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.engine = LocalEngine(
            self.policy.model, context_length=self.policy.context_length, detokenize=self.policy.tokenizer.decode
        )
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.do_POST()

            def do_POST(self):
                size = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                url = urlparse(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                status, reply = outer.answer(url.path, body, query)
                written = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(written)))
                self.end_headers()
                self.wfile.write(written)

            def log_message(self, *_):
                pass

            def handle(self):
                with contextlib.suppress(ConnectionError):  # the client disconnected
                    super().handle()

        class Http(ThreadingHTTPServer):
            request_queue_size = 256  # many concurrent clients

        self.http = Http(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def answer(self, path, body, query):
        self.asked.append((path, body, query))
        if path in ("/health", "/health_generate"):
            return (200 if self.healthy else 503), b""
        known = {name: route for name, route in self.routes().items() if name not in self.lacks}
        if path == "/openapi.json" and path in known:
            return 200, {"paths": {name: {} for name in known}}
        if path not in known:
            return 404, {"detail": "Not Found"}
        try:
            reply = known[path](body, query)
        except Exception as error:
            reply = 500, {"error": {"message": f"{type(error).__name__}: {error}", "code": 500}}
        status, reply = reply if isinstance(reply, tuple) else (200, reply)
        reply = self.faults(path, reply)
        if isinstance(reply, float):
            time.sleep(reply)
            return 200, {}
        if isinstance(reply, int):
            return reply, {"error": {"message": "no", "code": reply}}
        return status, reply

    def within(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def refused(self, ids, room):
        """Return a refusal in the format of vLLM."""
        vocabulary = self.policy.model.get_input_embeddings().num_embeddings
        for token in ids:
            if token >= vocabulary:
                return 400, {"error": {"message": f"Token id {token} is out of vocabulary", "code": 400}}
        if len(ids) + room > self.policy.context_length:
            return 400, {"error": {"message": f"The decoder prompt (length {len(ids)}) is longer", "code": 400}}
        return None

    def drawn(self, ids, sampling, name):
        before = self.engine.statistics.cached_tokens
        drawn = self.within(self.engine.generate(GenerateRequest(TokenSequence(ids), sampling, name)))
        return drawn, self.engine.statistics.cached_tokens - before

    def scored(self, ids):
        return [None, *self.within(self.engine.score(TokenSequence(ids))).logprobs] if len(ids) > 1 else [None]

    def reported_logprobs(self, drawn, temperature):
        return drawn.model_logprobs if self.raw or temperature == 0 else drawn.logprobs

    def spans(self, drawn):
        spans = []
        for place, version in enumerate(drawn.versions):
            label = self.labels[version]
            if spans and spans[-1]["version"] == label:
                spans[-1]["end"] = place + 1
            else:
                spans.append({"version": label, "start": place, "end": place + 1})
        return spans

    def load(self, folder):
        self.loaded += 1
        self.labels[self.loaded] = self.labels[self.loaded - 1]
        weights = load_file(Path(folder) / "model.safetensors")
        names = dict(self.policy.model.named_parameters())
        assert "lm_head.weight" in weights or "model.embed_tokens.weight" not in weights, "vLLM would keep its old head"
        weights.pop("lm_head.weight", None)
        for name, tensor in weights.items():
            if name not in names or names[name].shape != tensor.shape:
                raise ValueError(f"There is no module or parameter named {name} of shape {[*tensor.shape]}")
        self.within(self.engine.load_weights(weights, self.loaded, in_flight="continue"))

    def label(self, label):
        self.labels[self.loaded] = label

    def metrics(self, usage, waiting, **more):
        load = self.within(self.engine.measure_load())
        values = {usage: load.kv_usage, waiting: load.waiting, **more}
        lines = [f'{name}{{engine="0",model_name="policy"}} {value}' for name, value in values.items()]
        return "\n".join(["# HELP a line of text", *lines, 'other_bucket{le="+Inf"} NaN', ""]).encode()


def ignore_weights(server):
    """Let a server confirm new weights without loading them."""
    server.load = lambda folder: None


def delay_weights(server, *, requests):
    """Let a server sample some requests from the old weights after it confirmed new ones."""
    load, waiting, answer = server.load, [], server.answer

    def answer_late(path, body, query):
        if path in GENERATION_PATHS:
            for entry in waiting:
                entry[1] -= 1
            while waiting and waiting[0][1] < 0:
                load(waiting.pop(0)[0])
        return answer(path, body, query)

    def keep_folder(folder):
        waiting.append([shutil.copytree(folder, tempfile.mkdtemp(), dirs_exist_ok=True), requests])

    server.load, server.answer = keep_folder, answer_late


def keep_stale_prefixes(server):
    """Let a server use cached prefixes after its weights changed."""

    def load(folder):
        weights = load_file(Path(folder) / "model.safetensors")
        server.loaded += 1
        server.labels[server.loaded] = server.labels[server.loaded - 1]

        async def copy_weights():
            for name, parameter in server.policy.model.named_parameters():
                parameter.data.copy_(weights[name])
            server.engine.version = server.loaded

        server.within(copy_weights())

    server.load = load


GENERATION_PATHS = ("/inference/v1/generate", "/v1/completions", "/generate")


class VLLM(ModelServer):
    """vLLM 0.32 in its development mode, with --enable-scale-out."""

    def routes(self):
        return {
            "/openapi.json": None,
            "/version": lambda *_: {"version": "0.32.0"},
            "/v1/models": lambda *_: {
                "object": "list",
                "data": [{"id": "policy", "object": "model", "max_model_len": self.policy.context_length}],
            },
            "/tokenize": self.tokenize,
            "/inference/v1/generate": self.generate,
            "/v1/completions": self.completions,
            "/inference/v1/abort_requests": self.abort,
            "/abort_requests": self.abort,
            "/pause": lambda *_: {"status": "paused"},
            "/resume": lambda *_: {"status": "resumed"},
            "/reset_prefix_cache": lambda *_: {"success": True},
            "/weight_info": lambda *_: {"weight_version": self.labels[self.loaded]},
            "/update_weight_version": self.update_version,
            "/collective_rpc": self.rpc,
            "/metrics": lambda *_: self.metrics(
                "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", **{"vllm:num_preemptions_total": 3.0}
            ),
        }

    def tokenize(self, body, query):
        ids = self.policy.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        return {"count": len(ids), "max_model_len": self.policy.context_length, "tokens": ids, "token_strs": None}

    def update_version(self, body, query):
        self.label(body["new_version"])
        return {"success": True, "new_version": body["new_version"]}

    def rpc(self, body, query):
        assert body["method"] == "reload_weights"
        try:
            self.load(body["kwargs"]["weights_path"])
        except (ValueError, OSError, AssertionError) as error:
            self.healthy = False  # the worker of vLLM does not survive it
            text = f"Call to collective_rpc method failed: Worker failed with error '{error}'"
            return 500, {"error": {"message": text, "type": "InternalServerError", "param": None, "code": 500}}
        return {"results": [None]}

    def abort(self, body, query):
        for name in body["request_ids"]:
            inner = name.removeprefix("generate-tokens-").removeprefix("cmpl-").removesuffix("-0")
            self.loop.call_soon_threadsafe(self.engine.abort, inner)
        return 200, b""

    def sampling(self, parameters):
        return Sampling(
            parameters["max_tokens"],
            temperature=parameters["temperature"],
            top_k=parameters["top_k"],
            top_p=parameters["top_p"],
            min_p=parameters["min_p"],
            stop_ids=frozenset(parameters["stop_token_ids"]),
            stop_strings=tuple(parameters.get("stop", ())),
            logit_bias={int(token): bias for token, bias in parameters.get("logit_bias", {}).items()},
            seed=time.perf_counter_ns() % 2**32,
        )

    def usage(self, ids, generated, cached):
        return {
            "prompt_tokens": len(ids),
            "total_tokens": len(ids) + len(generated.tokens),
            "completion_tokens": len(generated.tokens),
            "prompt_tokens_details": {
                "cached_tokens": cached,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            },
            **REMARKS,
        }

    def prompt_logprobs(self, ids, parameters):
        if parameters.get("prompt_logprobs") is None:
            return None
        return [
            None if logprob is None else {str(token): {"logprob": logprob, "rank": 1, "decoded_token": None}}
            for token, logprob in zip(ids, self.scored(ids), strict=True)
        ]

    def generate(self, body, query):
        assert "seed" not in body["sampling_params"]
        ids, parameters = body["token_ids"], body["sampling_params"]
        if refused := self.refused(ids, 1):
            return refused
        generated, cached = self.drawn(ids, self.sampling(parameters), body["request_id"])
        content = [
            {
                "token_id": token,
                "logprob": max(-9999.0, logprob),
                "rank": 1,
                "top_logprobs": [{"token_id": token, "logprob": max(-9999.0, logprob), "rank": 1}],
            }
            for token, logprob in zip(
                generated.tokens, self.reported_logprobs(generated, parameters["temperature"]), strict=True
            )
        ]
        return {
            "request_id": f"generate-tokens-{body['request_id']}",
            "model": "policy",
            "created": 1795385258,
            "usage": self.usage(ids, generated, cached),
            "prompt_logprobs": self.prompt_logprobs(ids, parameters),
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": generated.finish,
                    "stop_reason": None,
                    "token_ids": list(generated.tokens),
                    "routed_experts": None,
                    "sampling_mask": None,
                    "weight_versions": self.spans(generated),
                    "logprobs": {"content": content},
                }
            ],
        }

    def completions(self, body, query):
        assert "seed" not in body
        ids = body["prompt"]
        if refused := self.refused(ids, 1):
            return refused
        generated, cached = self.drawn(ids, self.sampling(body), body["request_id"])
        texts = [self.policy.tokenizer.decode([token]) for token in generated.tokens]
        logprobs = [max(-9999.0, logprob) for logprob in self.reported_logprobs(generated, body["temperature"])]
        return {
            "id": f"cmpl-{body['request_id']}",
            "object": "text_completion",
            "created": 1795385288,
            "model": "policy",
            "choices": [
                {
                    "index": 0,
                    "text": "".join(texts),
                    "logprobs": {
                        "text_offset": [0] * len(texts),
                        "token_logprobs": logprobs,
                        "tokens": texts,
                        "top_logprobs": None,
                    },
                    "finish_reason": generated.finish,
                    "stop_reason": None,
                    "token_ids": list(generated.tokens),
                    "prompt_logprobs": self.prompt_logprobs(ids, body),
                    "prompt_token_ids": ids,
                }
            ],
            "usage": self.usage(ids, generated, cached),
        }


class SGLang(ModelServer):
    """The documented native API of SGLang."""

    def routes(self):
        return {
            "/get_model_info": lambda *_: {"model_path": "policy", "weight_version": self.labels[self.loaded]},
            "/get_server_info": lambda *_: {"context_length": self.policy.context_length},
            "/tokenize": lambda body, _: {
                "tokens": self.policy.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
            },
            "/generate": self.generate,
            "/abort_request": self.abort,
            "/pause_generation": lambda *_: {"status": "ok"},
            "/continue_generation": lambda *_: {"status": "ok"},
            "/flush_cache": lambda *_: (200, b"Cache flushed."),
            "/update_weights_from_disk": self.update,
            "/metrics": lambda *_: self.metrics("sglang:token_usage", "sglang:num_queue_reqs"),
        }

    def abort(self, body, query):
        self.loop.call_soon_threadsafe(self.engine.abort, body["rid"])
        return 200, b""

    def update(self, body, query):
        try:
            self.load(body["model_path"])
        except (ValueError, OSError) as error:
            return 400, {"success": False, "message": str(error), "num_paused_requests": 0}
        self.label(body["weight_version"])
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def generate(self, body, query):
        ids, parameters = body["input_ids"], body["sampling_params"]
        assert not {"seed", "sampling_seed"} & set(parameters)
        if refused := self.refused(ids, 1):
            return refused
        sampling = Sampling(
            parameters["max_new_tokens"],
            temperature=parameters["temperature"],
            stop_ids=frozenset(parameters["stop_token_ids"]),
            stop_strings=tuple(parameters.get("stop", ())),
            seed=time.perf_counter_ns() % 2**32,
        )
        generated, cached = self.drawn(ids, sampling, body["rid"])
        logprobs = self.reported_logprobs(generated, parameters["temperature"])
        start = body["logprob_start_len"]
        scored = self.scored(ids) if start >= 0 else []
        return {
            "text": self.policy.tokenizer.decode(generated.tokens),
            "output_ids": list(generated.tokens),
            "meta_info": {
                "id": body["rid"],
                "finish_reason": {"type": generated.finish},
                "prompt_tokens": len(ids),
                "completion_tokens": len(generated.tokens),
                "cached_tokens": cached,
                "weight_version": self.labels[self.loaded],
                "weight_versions": self.spans(generated),
                "input_token_logprobs": [
                    [logprob, token, None] for token, logprob in list(zip(ids, scored, strict=False))[max(0, start) :]
                ],
                "output_token_logprobs": [
                    [logprob, token, None] for token, logprob in zip(generated.tokens, logprobs, strict=True)
                ],
            },
        }


@contextlib.contextmanager
def served(kind, folder, **options):
    """Serve during a block."""
    server = kind(folder, **options)
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        server.within(server.engine.close())
        server.loop.call_soon_threadsafe(server.loop.stop)


def interpreter(folder, *, words=""):
    """Write a substitute for the interpreter of an environment with vLLM; it ignores most of its arguments."""
    path = Path(folder) / "python"
    path.write_text(f'#!/bin/sh\n{words}\nexec {sys.executable} {__file__} "$@"\n')
    path.chmod(0o755)
    return str(path)


if __name__ == "__main__":
    words = sys.argv
    VLLM(words[words.index("--model") + 1], port=int(words[words.index("--port") + 1])).http.serve_forever()
