"""What have engines behind servers in common? Who is under way, which weights they are drawn from, what was done.

    generate → (weights are not just changing) → one question to the server → tokens, log-probs, versions
    load_weights → a folder → the server reads it → a label that its answers carry from then on

What a server's protocol is called stands in a class of its own (`vllm.py`, `sglang.py`).

Easy to get wrong: the server, not the clock, says which weights drew a token. And a server that came up again behind
the same address has weights of long ago: an answer whose label is none of ours is refused.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from whetstone.errors import EngineError, InfrastructureError, PromptTooLong
from whetstone.inference.abilities import check_media
from whetstone.inference.connection import Connection
from whetstone.inference.exchange import Question, Reply, given_by, is_plain, label_of, until_stop
from whetstone.inference.piecewise import generate_in_pieces
from whetstone.inference.protocol import (
    EngineAbilities,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    Sampling,
    Scores,
    Weights,
)
from whetstone.inference.restarting import RestartingEngine
from whetstone.inference.server_process import ServerProcess, free_port
from whetstone.inference.weight_folder import WeightFolder
from whetstone.tokens import TokenSequence

_SECONDS_BETWEEN_ABORTS = 0.2
_PROBED = 6
"""Tokens that are drawn to see what log-probs are."""
_SURE = 1e-3
"""A log-prob above minus this is of a draw that was certain."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A generation or scoring nobody has answered yet."""

    id: str = field(default_factory=lambda: uuid4().hex)
    aborted: bool = False
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Look again whether there is still something to wait for."""


class ServedEngine(ABC):
    """An engine whose model is held by a server, one that is there or one that it starts.

    Args:
        address: Where a server is: `http://127.0.0.1:8000`. None: one is started.
        python: The interpreter of an environment with the server's package, for one that is started.
        model: The model folder it is started with.
        port: Where it listens; 0: at one that is free.
        options: More words of its command line: `{"max_model_len": 4096}`.
        environment: Variables it is given.
        key: What it was started with as its API's key.
        weights: The folder, and what adapters are scaled by, where only those are handed over.
        seconds: How long one answer may take.
        start_seconds: How long it may take to start.
        detokenize: Token ids → text, for stop strings.
        version: The policy version of the weights it has.

    Raises:
        EngineError: Both an address and an interpreter, or neither, or no model.
    """

    server: str
    """What kind of server it is, for messages."""
    abilities = EngineAbilities(
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
            raise EngineError(f"{name}: either `address`, of a server that is there, or `python`, to start one")
        if python is not None and model is None:
            raise EngineError(f"{name}: `python` starts a server, which needs the folder of a `model`")
        self._lora = weights is not None and weights.lora_alpha is not None
        self._with_adapter = False
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
        """Tokens the server's model can have in view; 0 before it was asked."""
        self.of_the_draw = True
        """Whether the log-probs it gives are those of the draw, after temperature and cuts; else the model's."""
        self._detokenize = detokenize
        self._folder = weights or WeightFolder()
        self._labels: dict[str, int] = {}
        self._connecting = asyncio.Lock()
        self._connected = False
        self._changing = asyncio.Lock()
        self._held = False
        """Whether nothing new may start, as weights are being changed."""
        self._under_way: dict[str, set[_UnderWay]] = defaultdict(set)
        self._count_under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._aborting: set[asyncio.Task[None]] = set()
        self._statistics = EngineStatistics()
        self._busy_since = 0.0

    # ------------------------------------------------------------ the protocol

    @property
    def statistics(self) -> EngineStatistics:
        """What was done so far. A server does not say how many steps it made, nor how long anybody waited."""
        busy = time.perf_counter() - self._busy_since if self._count_under_way else 0.0
        return replace(self._statistics, busy_seconds=self._statistics.busy_seconds + busy)

    @property
    def alive(self) -> bool:
        """Whether it can answer."""
        return self.at.alive

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`. `Sampling.seed` has no effect; with `on_tokens` the answer is requested in pieces.

        Raises:
            EngineError: The server does not support these sampling parameters.
        """
        check_media(request.prompt, self.abilities, engine=self.server)
        await self._ready()
        length, sampling = len(request.prompt), request.sampling
        if not 0 < length < self.context_length:
            raise PromptTooLong(f"{length} tokens of prompt in a context of {self.context_length} leave no room")
        self._check(sampling)
        room = min(sampling.max_new_tokens, self.context_length - length)
        fitting = replace(request, sampling=replace(sampling, max_new_tokens=room))
        if request.on_tokens is None:
            return await self._generate_whole(fitting)
        return await generate_in_pieces(self._generate_whole, fitting, request.on_tokens, detokenize=self._detokenize)

    async def _generate_whole(self, request: GenerateRequest) -> Generation:
        prompt, sampling = request.prompt, request.sampling
        room = sampling.max_new_tokens
        given, ended = given_by(sampling, room)
        async with self._counted(request.episode) as own:
            if own.aborted:
                return _nothing_drawn()
            question = Question(
                own.id,
                (*prompt.ids, *given),
                replace(sampling, forced=(), max_new_tokens=max(1, room - len(given))),
                score_from=len(prompt) if given else None,
                cache=str(self.version),
            )
            version = self.version
            reply = await self._asked(question)
            if ended is not None:  # nothing was left to draw: the server draws one token at least, which is nobody's
                reply = replace(reply, tokens=(), logprobs=(), labels=(), finish=ended)
            return self._generation(given, reply, sampling, asked_under=version)

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """See `Engine.score`. Entropies are NaN, and there must be room for one more token: a server samples one."""
        check_media(tokens, self.abilities, engine=self.server)
        if not 1 <= start < len(tokens):
            raise ValueError(f"start: from 1 to the last of {len(tokens)} tokens, got {start}")
        await self._ready()
        if len(tokens) >= self.context_length:
            raise PromptTooLong(
                f"{len(tokens)} tokens to score in a context of {self.context_length}, of which a server needs one"
            )
        async with self._counted("") as own:
            question = Question(own.id, tokens.ids, Sampling(1), score_from=start, cache=str(self.version))
            reply = await self._asked(question)
            self._versions(reply.labels, self.version)
            return Scores(reply.prompt_logprobs, (math.nan,) * len(reply.prompt_logprobs))

    def abort(self, episode: str) -> None:
        """See `Engine.abort`."""
        for own in self._under_way.get(episode, ()):
            if not own.aborted:
                own.aborted = True
                own.go.set()
                task = asyncio.ensure_future(self._abort_until_it_ends(own, episode))
                self._aborting.add(task)
                task.add_done_callback(self._aborting.discard)

    def forget(self, episode: str) -> None:
        """See `Engine.forget`. A server drops the keys that were used longest ago by itself."""
        return

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """See `Engine.load_weights`.

        Raises:
            EngineError: The server does not take them.
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
        """See `Engine.close`. A server that was started is ended."""
        self.at.dead = self.at.dead or "the engine is closed"
        self._wake()
        for task in tuple(self._aborting):
            task.cancel()
        await self.at.close()
        self._folder.close()

    # ------------------------------------------------------------ what a kind of server says in its own words

    @abstractmethod
    def _command(self, python: str, model: str, port: int, options: Mapping[str, Any]) -> list[str]:
        """Words that start a server with what the engine needs; `options` come last and so win."""

    def _variables(self) -> dict[str, str]:
        """What a server that is started is given, unless the caller says otherwise."""
        return {}

    @abstractmethod
    async def _connect(self) -> str:
        """See what the server is and can; sets `context_length`. Returns the label of its weights."""

    @abstractmethod
    async def _draw(self, question: Question) -> Reply:
        """Ask it."""

    @abstractmethod
    async def _abort(self, id: str) -> None:
        """End a question early."""

    @abstractmethod
    async def _load(self, weights: Weights, version: int) -> None:
        """Have the server take weights, and label what it draws from them."""

    @abstractmethod
    async def _pause(self, in_flight: InFlight) -> None:
        """Freeze what is under way."""

    @abstractmethod
    async def _resume(self, in_flight: InFlight) -> None:
        """Let it go on, over its old keys or over new ones."""

    # ------------------------------------------------------------ for them

    async def find_what_logprobs_are(self, **certain: Any) -> None:
        """Learn whether log-probs are the draw's or the model's, by draws that are certain and models that are not.

        Args:
            certain: What makes a draw certain.

        Raises:
            EngineError: It gives none.
        """
        sampling = Sampling(_PROBED, **(certain or {"top_k": 1}))
        reply = await self._draw(Question(uuid4().hex, (0,), sampling, cache="probe"))
        # behind the first id alone all may be equally likely: that one is left out
        self.of_the_draw = all(logprob > -_SURE for logprob in reply.logprobs[1:])

    # ------------------------------------------------------------ inside

    async def _ready(self) -> None:
        """Started, connected, and with the weights last given."""
        if not self.alive:
            raise InfrastructureError(self.at.dead)
        if self._connected:
            return
        async with self._connecting:
            if self._connected:
                return
            try:
                await self.at.until_it_answers(again=self._folder.answered)
                self._labels = {await self._connect(): self.version}
            except InfrastructureError as error:
                self.at.die(str(error))
                raise
            if self._folder.path is not None:
                await self._load({}, self._folder.version)
                self._labels = {label_of(self._folder.version): self._folder.version}
                self.version = self._folder.version
            self._connected = self._folder.answered = True

    @asynccontextmanager
    async def _counted(self, episode: str) -> AsyncIterator[_UnderWay]:
        """One more under way, from when weights are not just changing."""
        own = _UnderWay()
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

    async def _asked(self, question: Question) -> Reply:
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
        try:
            await self._load(weights, version)
            self._labels = {**(self._labels if moving else {}), label_of(version): version}
            self.version = version
        finally:
            if moving and self.alive:
                await self._resume(in_flight)

    async def _write(self, weights: Weights, version: int) -> str:
        """A folder with the weights, or with those last given where there are none."""
        if weights:
            return str(await asyncio.to_thread(self._folder.write, weights, version))
        assert self._folder.path is not None
        return str(self._folder.path)

    async def _abort_until_it_ends(self, own: _UnderWay, episode: str) -> None:
        """A server that has not yet heard of a question cannot end it, so it is told again."""
        while own in self._under_way.get(episode, ()) and self.alive:
            try:
                await self._abort(own.id)
            except (InfrastructureError, EngineError):
                return  # the question itself says what is wrong
            await asyncio.sleep(_SECONDS_BETWEEN_ABORTS)

    def _check(self, sampling: Sampling) -> None:
        """See that log-probs of such a draw are to be had.

        Raises:
            EngineError: They are not.
        """
        if sampling.stop_strings and self._detokenize is None:
            raise ValueError("stop_strings: this engine was made without detokenize and cannot read text")
        if sampling.forced and not is_plain(sampling):
            raise self.at.strange("gives log-probs of forced tokens only at temperature 1, with neither bias nor cuts")
        if not self.of_the_draw and sampling.temperature not in (0, 1):
            raise self.at.strange(
                f"gives the model's log-probs, which at temperature {sampling.temperature:g} are not those of the draw"
                f"; {self.of_the_draw_by}"
            )
        if not self.of_the_draw and sampling.temperature == 1 and not is_plain(sampling):
            raise self.at.strange(f"gives the model's log-probs, not those after bias and cuts; {self.of_the_draw_by}")

    of_the_draw_by: str
    """What has a server give log-probs of the draw."""

    def _generation(
        self,
        given: Sequence[int],
        reply: Reply,
        sampling: Sampling,
        *,
        asked_under: int,
    ) -> Generation:
        tokens, model = (*given, *reply.tokens), (*reply.prompt_logprobs, *reply.logprobs)
        if sampling.temperature == 0:
            known = not (sampling.logit_bias or sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0)
            logprobs = (0.0,) * len(tokens)
        else:
            known, logprobs = is_plain(sampling), model
        versions = (asked_under,) * len(given) + self._versions(reply.labels, asked_under)
        kept = until_stop(tokens, sampling, self._detokenize)
        return Generation(
            tokens=tokens[:kept],
            logprobs=logprobs[:kept],
            entropies=(math.nan,) * kept,
            versions=versions[:kept],
            finish=reply.finish if kept == len(tokens) else "stop",
            model_logprobs=(model if known else (math.nan,) * len(tokens))[:kept],
        )

    def _versions(self, labels: Sequence[str | None], asked_under: int) -> tuple[int, ...]:
        versions = tuple(asked_under if label is None else self._labels.get(label, -1) for label in labels)
        strange = [label for label, version in zip(labels, versions, strict=True) if version < asked_under]
        if strange:
            self.at.die(
                f'the {self.server} server at {self.at.address} draws from weights "{strange[0]}", not from those '
                "it was given last: it was started again, or another run changes them, too"
            )
            raise InfrastructureError(self.at.dead)
        return versions


def restarting_engine(
    make: Callable[..., ServedEngine],
    *,
    heard: Callable[[str], None] = lambda line: None,
    begin: Weights | None = None,
    weights_folder: str | None = None,
    lora_alpha: float | None = None,
    **options: Any,
) -> RestartingEngine:
    """An engine behind a server that is made again where it dies, with the weights last given.

    Args:
        make: `VLLMEngine` or `SGLangEngine`.
        heard: Told in a line of each restart.
        begin: Weights it is given before its first draw, as version 0; None: it draws from its own until then.
        weights_folder: Where weights are written for the server to read; None: in memory.
        lora_alpha: Only adapters are handed over, and scaled by this over their rank.
        options: What else it is made with.

    Raises:
        EngineError: The options contradict each other.
    """
    folder = WeightFolder(parent=weights_folder, lora_alpha=lora_alpha)
    if begin is not None:
        folder.write(begin, 0)
    return RestartingEngine(lambda version: make(weights=folder, version=version, **options), heard=heard)


def _nothing_drawn() -> Generation:
    return Generation((), (), (), (), "abort")
