"""Base class of engines with an inference server: requests in flight, policy versions, statistics, chunked streaming.

    generate → (wait for a weight sync) → one request to the server → tokens, log-probs, versions
    load_weights → a folder → the server reads it → a label that its responses have from then on

Subclasses implement the protocol of a kind of server (`vllm.py`, `sglang.py`).

Note:
    The server, not the clock, determines which weights sampled a token. A server that was restarted at the same address
    has old weights, so a response with an unknown label is rejected.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from whetstone.errors import EngineError, InfrastructureError, PromptTooLong
from whetstone.inference.engine_capabilities import check_media
from whetstone.inference.protocol import (
    EngineCapabilities,
    EngineLoad,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    OnTokens,
    Sampling,
    Scores,
    Weights,
)
from whetstone.inference.restarting_engine import RestartingEngine
from whetstone.inference.server_connection import Connection
from whetstone.inference.server_process import ServerProcess, free_port
from whetstone.inference.server_types import (
    ServerRequest,
    ServerResponse,
    apply_forced_tokens,
    is_plain,
    length_until_stop,
    read_metrics,
    version_label,
)
from whetstone.inference.weight_transfer import WeightFolder
from whetstone.tokens import TokenSequence

_SECONDS_BETWEEN_ABORTS = 0.2
"""Interval at which an abort is repeated, in seconds."""
_PROBED = 6
"""Number of tokens sampled to detect which log-probs the server returns."""
_SHORTEST_PREFIX = 64
"""Smallest prefix in tokens whose loss is counted: a server caches whole blocks."""
_SURE = 1e-3
"""Absolute value up to which the log-prob of a sample counts as certain."""


@dataclass(slots=True, eq=False)
class _InFlightRequest:
    """Generation or scoring that a caller waits for."""

    id: str = field(default_factory=lambda: uuid4().hex)
    aborted: bool = False
    """Whether the caller aborted the request."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to check again whether the request still has to wait for a weight sync."""


class ServerEngine(ABC):
    """Abstract engine whose model is in an inference server; see `Engine`.

    The server is an existing one (`address`) or one that the engine starts (`python`). It is connected on the first
    request. The engine dies with its server; `build_restarting_engine` adds restarts.

    Args:
        address: URL of an existing server, such as `http://127.0.0.1:8000`; None: one is started.
        python: Interpreter of a Python environment with the server's package, to start a server; None: `address` is
            used.
        model: Model folder of a server that is started.
        port: Port of a server that is started; 0 picks a free one.
        options: Further command-line options of a server that is started: `{"max_model_len": 4096}`.
        environment: Environment variables of a server that is started.
        key: API key of the server; empty: none.
        weights: Folder for weight sync, with the LoRA alpha if only adapters are transferred.
        seconds: Timeout of one request, in seconds.
        start_seconds: Timeout of the start, in seconds.
        detokenize: Decodes token ids to text; required for stop strings.
        version: Policy version of the server's weights.

    Raises:
        EngineError: If both `address` and `python` are given, or neither, or `python` without `model`.
    """

    server: str
    """Name of the kind of server, for messages."""
    load_metrics: tuple[Sequence[str], Sequence[str], Sequence[str]]
    """Names of the metrics at `/metrics`, each with its older names: used fraction of the KV cache, waiting requests,
    preempted sequences."""
    load_metrics_by: str
    """How to start a server that has these metrics, for messages."""
    capabilities = EngineCapabilities(
        entropies=False, model_logprobs=False, forced_tokens=False, seeds=False, constraints=False, top_logprobs=False
    )

    def __init__(
        self,
        *,
        address: str | None = None,
        python: str | None = None,
        model: Path | str | None = None,
        port: int = 0,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        key: str = "",
        weights: WeightFolder | None = None,
        seconds: float = 600.0,
        start_seconds: float = 900.0,
        detokenize: Callable[[Sequence[int]], str] | None = None,
        version: int = 0,
    ) -> None:
        name = self.server.lower()
        if (address is None) == (python is None):
            raise EngineError(f"{name}: set either `address` (existing server) or `python` (interpreter to start one)")
        if python is not None and model is None:
            raise EngineError(f"{name}: `python` starts a server, which requires a `model` folder")
        self._lora = weights is not None and weights.lora_alpha is not None
        self._with_adapter = False
        self._salt = uuid4().hex
        """Part of the key of cached prefixes: another run has other weights of the same version."""
        port = port or free_port()
        start = None
        if python is not None:
            words = self._command(python, str(model), port, options or {})
            start = functools.partial(ServerProcess, words, environment={**self._variables(), **(environment or {})})
        self.at = Connection(
            self.server,
            address=(address or f"http://127.0.0.1:{port}").rstrip("/"),
            start=start,
            key=key,
            seconds=seconds,
            start_seconds=start_seconds,
        )
        self.version = version
        self.context_length = 0
        """Context length of the server's model, in tokens; 0 before the connection."""
        self.of_the_draw = True
        """Whether the server returns log-probs of the sampling distribution, after temperature and truncation, rather
        than the model's."""
        self._detokenize = detokenize
        self._folder = weights or WeightFolder()
        self._labels: dict[str, int] = {}
        self._connecting = asyncio.Lock()
        self._connected = False
        self._changing = asyncio.Lock()
        self._held = False
        """Whether new requests must wait for a weight sync in progress."""
        self._under_way: dict[str, set[_InFlightRequest]] = defaultdict(set)
        self._count_under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._prefixes: dict[str, tuple[str, int]] = {}
        """Key of the prefix cache and number of tokens of the last request of each episode in progress."""
        self._num_lost = 0
        """Number of requests whose prefix should have been in the cache of the server and was not."""
        self._aborting: set[asyncio.Task[None]] = set()
        self._statistics = EngineStatistics()
        self._busy_since = 0.0

    # ------------------------------------------------------------ the protocol

    @property
    def statistics(self) -> EngineStatistics:
        """Counters since the engine was created.

        `steps`, `queue_seconds`, `evictions` and `rows` stay 0: servers do not report them.
        """
        busy = time.perf_counter() - self._busy_since if self._count_under_way else 0.0
        return replace(self._statistics, busy_seconds=self._statistics.busy_seconds + busy)

    @property
    def alive(self) -> bool:
        """Whether the server can respond; see `Connection.alive`."""
        return self.at.alive

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a continuation of a prompt on the server; see `Engine.generate`.

        `Sampling.seed` has no effect. With `on_tokens`, the answer is requested in chunks.

        Raises:
            PromptTooLong: If the prompt leaves no room in the context.
            EngineError: If the server does not support the sampling parameters, or media.
            InfrastructureError: If the server does not respond.
        """
        check_media(request.prompt, self.capabilities, engine=self.server)
        await self._ready()
        length, sampling = len(request.prompt), request.sampling
        if not 0 < length < self.context_length:
            raise PromptTooLong(f"{length} prompt tokens fill the context of {self.context_length}; shorten the prompt")
        self._check(sampling)
        room = min(sampling.max_new_tokens, self.context_length - length)
        fitting = replace(request, sampling=replace(sampling, max_new_tokens=room))
        if request.on_tokens is None:
            return await self._generate_whole(fitting)
        return await generate_in_chunks(self._generate_whole, fitting, request.on_tokens, detokenize=self._detokenize)

    async def _generate_whole(self, request: GenerateRequest) -> Generation:
        prompt, sampling = request.prompt, request.sampling
        room = sampling.max_new_tokens
        forced, ended = apply_forced_tokens(sampling, room)
        async with self._counted(request.episode) as own:
            if own.aborted:
                return Generation((), (), (), (), "abort")
            question = ServerRequest(
                own.id,
                (*prompt.ids, *forced),
                replace(sampling, forced=(), max_new_tokens=max(1, room - len(forced))),
                score_from=len(prompt) if forced else None,
                cache=self._cache_key,
            )
            version = self.version
            reply = await self._send(question)
            self._note_prefix(request.episode, question, reply)
            if ended is not None:  # nothing left to sample, but the server samples at least one token
                reply = replace(reply, tokens=(), logprobs=(), labels=(), finish=ended)
            return self._generation(forced, reply, sampling, asked_under=version)

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Compute log-probs of given tokens on the server; see `Engine.score`.

        Entropies are NaN. The tokens must leave room for one more token, since a server samples at least one.
        """
        check_media(tokens, self.capabilities, engine=self.server)
        if not 1 <= start < len(tokens):
            raise ValueError(
                f"start: must be from 1 to {len(tokens) - 1}, the last of {len(tokens)} tokens, got {start}"
            )
        await self._ready()
        if len(tokens) >= self.context_length:
            raise PromptTooLong(
                f"{len(tokens)} tokens to score leave no room in the context of {self.context_length} tokens, of "
                "which a server needs one; shorten the text"
            )
        async with self._counted("") as own:
            question = ServerRequest(own.id, tokens.ids, Sampling(1), score_from=start, cache=self._cache_key)
            reply = await self._send(question)
            self._versions(reply.labels, self.version)
            return Scores(reply.prompt_logprobs, (math.nan,) * len(reply.prompt_logprobs))

    async def measure_load(self) -> EngineLoad:
        """Return the load by the server's metrics; see `ReportsLoad`.

        Episodes that wait for tools use no room by these metrics. Their lost prefixes, which the server computes again
        in the next turn, are counted with the preempted sequences.

        Raises:
            EngineError: If the server has no metrics, or not those that are required.
        """
        await self._ready()
        response = await self.at.request("GET", "/metrics")
        if response.status >= 500:
            raise InfrastructureError(self.at.describe_response("/metrics", response))
        samples = read_metrics(response.text) if response.status < 300 else {}
        values = [next((samples[name] for name in names if name in samples), None) for names in self.load_metrics]
        usage, waiting, preemptions = values
        if usage is None or waiting is None:
            raise self.at.build_error(
                f"reports no load at /metrics ({self.load_metrics[0][0]}), which rollout.max_in_flight: auto requires; "
                f"{self.load_metrics_by}, or set a number"
            )
        return EngineLoad(min(1.0, usage), int(waiting), int(preemptions or 0) + self._num_lost)

    def abort(self, episode: str) -> None:
        """Abort the requests of an episode on the server; see `Engine.abort`."""
        for own in self._under_way.get(episode, ()):
            if not own.aborted:
                own.aborted = True
                own.go.set()
                task = asyncio.ensure_future(self._abort_until_it_ends(own, episode))
                self._aborting.add(task)
                task.add_done_callback(self._aborting.discard)

    def forget(self, episode: str) -> None:
        """Forget the length of an episode's prefix; a server evicts the least recently used keys by itself.

        See `Engine.forget`.
        """
        self._prefixes.pop(episode, None)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Transfer weights to the server; see `Engine.load_weights`.

        New requests wait until the server has loaded them.

        Raises:
            EngineError: If the server rejects the weights.
        """
        async with self._changing:
            await self._ready()
            self._held = True
            try:
                if in_flight == "drain":
                    await self._idle.wait()
                await self._put(weights, version, in_flight)
            finally:
                self._held = False
                self._wake()

    async def close(self) -> None:
        """Close the connection, and end the server if this engine started it; see `Engine.close`."""
        self.at.dead = self.at.dead or "the engine is closed"
        self._wake()
        for task in tuple(self._aborting):
            task.cancel()
        await self.at.close()
        self._folder.close()

    # ------------------------------------------------------------ protocol of a kind of server

    @abstractmethod
    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        """Return the command line that starts a server with all flags that the engine requires.

        `options` come last, so they take precedence.
        """

    def _variables(self) -> dict[str, str]:
        """Return default environment variables of a server that the engine starts."""
        return {}

    @abstractmethod
    async def _connect(self) -> str:
        """Check the kind of server, set `context_length`, and return the label of its weights."""

    @abstractmethod
    async def _draw(self, question: ServerRequest) -> ServerResponse:
        """Send a request to the server and return its response."""

    @abstractmethod
    async def _abort(self, id: str) -> None:
        """Abort the request with this identifier."""

    @abstractmethod
    async def _load(self, weights: Weights, version: int) -> None:
        """Transfer weights to the server, under the label of their policy version."""

    @abstractmethod
    async def _pause(self, in_flight: InFlight) -> None:
        """Pause the requests in flight before a weight sync."""

    @abstractmethod
    async def _resume(self, in_flight: InFlight) -> None:
        """Resume the paused requests, with their old KV cache or a recomputed one (`recompute`)."""

    # ------------------------------------------------------------ for subclasses

    async def find_what_logprobs_are(self, **certain: Any) -> None:
        """Detect whether the server returns log-probs of the sampling distribution or of the model.

        A few tokens are sampled with parameters under which every sample is certain: log-probs of the sampling
        distribution are then 0. The result is stored in `of_the_draw`.

        Args:
            certain: Sampling parameters that make a sample certain; defaults to `top_k=1`.

        Raises:
            EngineError: If the server returns no log-probs.
        """
        sampling = Sampling(_PROBED, **(certain or {"top_k": 1}))
        reply = await self._draw(ServerRequest(uuid4().hex, (0,), sampling, cache="probe"))
        # after only the first id all tokens may be equally likely: that one is skipped
        self.of_the_draw = all(logprob > -_SURE for logprob in reply.logprobs[1:])

    # ------------------------------------------------------------ inside

    async def _ready(self) -> None:
        """Start the server and connect, on the first call.

        A new server receives the weights last loaded.
        """
        if not self.alive:
            raise InfrastructureError(self.at.dead)
        if self._connected:
            return
        async with self._connecting:
            if self._connected:
                return
            try:
                await self.at.wait_until_ready(is_restart=self._folder.answered)
                self._labels = {await self._connect(): self.version}
            except InfrastructureError as error:
                self.at.mark_dead(str(error))
                raise
            if self._folder.path is not None:
                await self._load({}, self._folder.version)
                self._labels = {version_label(self._folder.version): self._folder.version}
                self.version = self._folder.version
            self._connected = self._folder.answered = True

    @asynccontextmanager
    async def _counted(self, episode: str) -> AsyncIterator[_InFlightRequest]:
        """Count a request as in flight for the duration of the block, after a weight sync in progress."""
        own = _InFlightRequest()
        self._under_way[episode].add(own)
        entered = False
        try:
            while self._held and not own.aborted and self.alive:
                own.go.clear()
                await own.go.wait()
            if not self.alive:
                raise InfrastructureError(self.at.dead)
            if not self._count_under_way:
                self._busy_since = time.perf_counter()
            self._count_under_way += 1
            entered = True
            self._idle.clear()
            yield own
            self._count(requests=1)
        except (InfrastructureError, EngineError):
            self._count(failed=1)
            raise
        finally:
            self._under_way[episode].discard(own)
            if not self._under_way[episode]:
                del self._under_way[episode]
            if entered:
                self._leave()

    def _note_prefix(self, episode: str, question: ServerRequest, reply: ServerResponse) -> None:
        """Count a request whose episode has lost most of its keys; nothing counts if the server reports none."""
        key, length = self._prefixes.get(episode, ("", 0))
        is_long = length >= _SHORTEST_PREFIX and self._statistics.cached_tokens > 0
        self._num_lost += key == question.cache and is_long and reply.cached_tokens < length // 2
        self._prefixes[episode] = question.cache, len(question.tokens)

    @property
    def _cache_key(self) -> str:
        return f"{self._salt}-{self.version}"

    def _wake(self) -> None:
        for own in (own for of_episode in self._under_way.values() for own in of_episode):
            own.go.set()

    def _leave(self) -> None:
        self._count_under_way -= 1
        if not self._count_under_way:
            self._count(busy_seconds=time.perf_counter() - self._busy_since)
            self._idle.set()

    def _count(self, **more: float) -> None:
        known = self._statistics
        self._statistics = replace(known, **{name: getattr(known, name) + value for name, value in more.items()})

    async def _send(self, question: ServerRequest) -> ServerResponse:
        reply = await self._draw(question)
        self._count(
            prefill_tokens=reply.prompt_tokens - reply.cached_tokens,
            cached_tokens=reply.cached_tokens,
            decode_tokens=len(reply.tokens),
        )
        return reply

    async def _put(self, weights: Weights, version: int, in_flight: InFlight) -> None:
        moving = in_flight != "drain" and self._count_under_way > 0
        if moving:
            await self._pause(in_flight)
        before = self._labels
        self._labels = {**before, version_label(version): version}  # a request can end before `_load` returns
        try:
            await self._load(weights, version)
        except BaseException:
            self._labels = before
            raise
        else:
            if not moving:
                self._labels = {version_label(version): version}
            self.version = version
        finally:
            if moving and self.alive:
                await self._resume(in_flight)

    async def _write(self, weights: Weights, version: int) -> str:
        """Write weights to the transfer folder and return its path.

        If `weights` is empty, the folder of the last transfer is returned.
        """
        if weights:
            return str(await asyncio.to_thread(self._folder.write, weights, version))
        assert self._folder.path is not None
        return str(self._folder.path)

    async def _abort_until_it_ends(self, own: _InFlightRequest, episode: str) -> None:
        """Repeat the abort of a request until the request ends.

        A server cannot abort a request that it has not yet received.
        """
        while own in self._under_way.get(episode, ()) and self.alive:
            try:
                await self._abort(own.id)
            except (InfrastructureError, EngineError):
                return  # the request itself reports the error
            await asyncio.sleep(_SECONDS_BETWEEN_ABORTS)

    def _check(self, sampling: Sampling) -> None:
        """Check that the server returns exact log-probs for these sampling parameters.

        Raises:
            EngineError: If the server does not.
            ValueError: If stop strings are given without `detokenize`.
        """
        if sampling.stop_strings and self._detokenize is None:
            raise ValueError("stop_strings: this engine cannot decode text; create it with `detokenize`")
        if sampling.forced and not is_plain(sampling):
            raise self.at.build_error(
                "returns log-probs of forced tokens only at temperature 1, without bias and truncation"
            )
        if not self.of_the_draw and sampling.temperature not in (0, 1):
            raise self.at.build_error(
                f"returns the model's log-probs, which at temperature {sampling.temperature:g} are not those of the "
                f"sampling distribution; {self.of_the_draw_by}"
            )
        if not self.of_the_draw and sampling.temperature == 1 and not is_plain(sampling):
            raise self.at.build_error(
                f"returns the model's log-probs, before bias and truncation; {self.of_the_draw_by}"
            )

    of_the_draw_by: str
    """How to start a server that returns log-probs of the sampling distribution, for messages."""

    def _generation(
        self,
        forced: Sequence[int],
        reply: ServerResponse,
        sampling: Sampling,
        *,
        asked_under: int,
    ) -> Generation:
        """Build the result of a request from forced tokens and the response.

        Args:
            forced: Forced tokens at the start of the answer.
            reply: Response of the server.
            sampling: Sampling parameters of the request.
            asked_under: Policy version at the time of the request.
        """
        tokens, model = (*forced, *reply.tokens), (*reply.prompt_logprobs, *reply.logprobs)
        if sampling.temperature == 0:
            known = not (sampling.logit_bias or sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0)
            logprobs = (0.0,) * len(tokens)
        else:
            known, logprobs = is_plain(sampling), model
        versions = (asked_under,) * len(forced) + self._versions(reply.labels, asked_under)
        length = length_until_stop(tokens, sampling, self._detokenize)
        return Generation(
            tokens=tokens[:length],
            logprobs=logprobs[:length],
            entropies=(math.nan,) * length,
            versions=versions[:length],
            finish=reply.finish if length == len(tokens) else "stop",
            model_logprobs=(model if known else (math.nan,) * len(tokens))[:length],
        )

    def _versions(self, labels: Sequence[str | None], asked_under: int) -> tuple[int, ...]:
        """Return the policy version of each label; mark the server dead if a label is unknown or too old."""
        versions = tuple(asked_under if label is None else self._labels.get(label, -1) for label in labels)
        strange = [label for label, version in zip(labels, versions, strict=True) if version < asked_under]
        if strange:
            self.at.mark_dead(
                f'the {self.server} server at {self.at.address} samples from weights "{strange[0]}", not from '
                "those loaded last: it was restarted, or another run also loads weights"
            )
            raise InfrastructureError(self.at.dead)
        return versions


def build_restarting_engine(
    make: Callable[..., ServerEngine],
    *,
    heard: Callable[[str], None] = lambda line: None,
    begin: Weights | None = None,
    weights_folder: str | None = None,
    lora_alpha: float | None = None,
    **options: Any,
) -> RestartingEngine:
    """Create an engine for a server that is restarted after it dies, with the weights last loaded.

    Args:
        make: `VLLMEngine` or `SGLangEngine`.
        heard: Called with one line at each restart.
        begin: Weights of policy version 0, transferred before the first request; None: the server samples from its own
            until the first weight sync.
        weights_folder: Parent folder for weight transfer; None: in memory.
        lora_alpha: LoRA alpha. With it, only adapters are transferred; None: all weights are.
        options: Further arguments of `make`; see `ServerEngine`.

    Raises:
        EngineError: If the options contradict each other, or the weights cannot be written.
    """
    folder = WeightFolder(parent=weights_folder, lora_alpha=lora_alpha)
    if begin is not None:
        folder.write(begin, 0)
    return RestartingEngine(lambda version: make(weights=folder, version=version, **options), heard=heard)


_PIECES = (1, 2, 4, 8, 16, 32)
"""Chunk sizes in tokens: small at first, so that the first token arrives soon; then larger, for few requests."""


async def generate_in_chunks(
    generate: Callable[[GenerateRequest], Awaitable[Generation]],
    request: GenerateRequest,
    on_tokens: OnTokens,
    *,
    detokenize: Callable[[Sequence[int]], str] | None,
) -> Generation:
    """Generate an answer in chunks, for streaming from a server that returns only complete answers.

    Each chunk is the continuation of those before. `on_tokens` is called after every chunk except the last; if it
    returns True, the finish reason is `abort`.

    Args:
        generate: Sends one request to the server.
        request: Request whose `max_new_tokens` fits the context; its seed has no effect.
        on_tokens: Receives all tokens sampled so far.
        detokenize: Decodes token ids to text, for stop strings, which can extend over two chunks.
    """
    sampling = request.sampling
    generation = Generation((), (), (), (), "length")
    sizes = iter(_PIECES)
    size = max(next(sizes), len(sampling.forced))
    while generation.finish == "length" and (left := sampling.max_new_tokens - len(generation.tokens)) > 0:
        chunk_sampling = replace(
            sampling, max_new_tokens=min(size, left), forced=() if generation.tokens else sampling.forced
        )
        prompt = request.prompt + TokenSequence(generation.tokens)
        generation += await generate(replace(request, prompt=prompt, sampling=chunk_sampling))
        length = length_until_stop(generation.tokens, sampling, detokenize)
        if length < len(generation.tokens):
            generation = replace(generation[:length], finish="stop")
        elif (
            generation.finish == "length"
            and len(generation.tokens) < sampling.max_new_tokens
            and on_tokens(generation.tokens)
        ):
            generation = replace(generation, finish="abort")
        size = next(sizes, size)
    return generation
