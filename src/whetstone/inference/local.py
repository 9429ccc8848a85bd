"""How are many episodes sampled at once without a server? One model, one batch that requests join and leave.

Between two decode steps new requests enter and finished ones go. An episode keeps its row of keys and values
between turns, so a turn computes only its new tokens. When rows run out the one that rested longest is
given away; its episode pays a prefill, nothing else.

Easy to get wrong: keys computed under old weights must not serve new ones. Loading weights forgets them all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.inference.cache import RowCache
from whetstone.inference.protocol import Generation, Sampling, Weights
from whetstone.inference.sampling import draw, uniforms


@dataclass(slots=True, eq=False)
class _Request:
    """A generation under way."""

    prompt: tuple[int, ...]
    sampling: Sampling
    episode: str
    result: asyncio.Future[Generation]
    asked: float
    row: int = -1
    queue_seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    """What a row of the cache holds."""

    episode: str | None = None
    ids: tuple[int, ...] = ()
    busy: bool = False
    used: int = 0
    """When it last served, as a count; the smallest is given away first."""


class LocalEngine:
    """An engine in this process, for any Transformers causal language model.

    Args:
        model: The model to draw from. It may be the one in training: the engine only reads it.
        context_length: Tokens the model can have in view.
        rows: Episodes whose keys are kept, and how many can run at once.
        prefill_tokens: New prompt tokens computed in one pass at most; longer queues are taken in pieces.
    """

    def __init__(
        self, model: torch.nn.Module, *, context_length: int, rows: int = 256, prefill_tokens: int = 8192
    ) -> None:
        self.model, self.context_length, self.prefill_tokens = model, context_length, prefill_tokens
        self.version = 0
        self._device = next(model.parameters()).device
        self._cache = RowCache(int(model.config.num_hidden_layers), rows)  # type: ignore[union-attr, arg-type]
        self._rows = [_Row() for _ in range(rows)]
        self._row_of: dict[str, int] = {}
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._loop_task: asyncio.Task[None] | None = None
        # one thread for good: each new thread would bring its own pool of arithmetic threads
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._clock = 0
        self._closed = False

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """See `Engine.generate`."""
        if self._closed:
            raise InfrastructureError("the engine is closed")
        if not 0 < len(prompt) < self.context_length:
            raise PromptTooLong(f"{len(prompt)} tokens of prompt in a context of {self.context_length} leave no room")
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        request = _Request(tuple(prompt), sampling, episode, result, time.perf_counter())
        self._waiting.append(request)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._serve())
        return await result

    def forget(self, episode: str) -> None:
        """See `Engine.forget`."""
        row = self._row_of.pop(episode, None)
        if row is not None:
            self._rows[row].episode = None

    async def load_weights(self, weights: Weights, version: int) -> None:
        """See `Engine.load_weights`. Tensors that are the model's own already are not copied.

        Raises:
            InfrastructureError: Requests are running; here weights change between episodes only.
        """
        if self._running or self._waiting:
            raise InfrastructureError("weights cannot change while requests are running")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if weights[name].data_ptr() != parameter.data_ptr():
                    parameter.copy_(weights[name])
        for row in self._rows:
            row.ids = ()
        self.version = version

    async def close(self) -> None:
        """See `Engine.close`."""
        self._closed = True
        for request in (*self._waiting, *self._running):
            if not request.result.done():
                request.result.set_exception(InfrastructureError("the engine was closed"))
        if self._loop_task is not None:
            await asyncio.wait([self._loop_task])
        self._thread.shutdown()

    async def _serve(self) -> None:
        """Step until there is nothing left to do; each step in a thread, so that tools run meanwhile."""
        await asyncio.sleep(0)  # let everyone who is ready join the first batch
        while self._waiting or self._running:
            self._drop_cancelled()
            joining = self._admit()
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._step, joining)
            except Exception as error:  # the requests in the batch fail; the engine lives on
                failure = InfrastructureError(f"the engine failed: {type(error).__name__}: {error}")
                for request in self._running:
                    self._rows[request.row].busy, self._rows[request.row].ids = False, ()
                    if not request.result.done():
                        request.result.set_exception(failure)
                self._running = []
            self._hand_over_finished()
            await asyncio.sleep(0)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.result.done()]
        for request in [r for r in self._running if r.result.done()]:
            self._rest(request)

    def _admit(self) -> list[_Request]:
        """Give waiting requests a row, in the order they came, as far as rows and the prefill budget go."""
        joining: list[_Request] = []
        budget = self.prefill_tokens
        while self._waiting:
            request = self._waiting[0]
            row = self._row_for(request.episode)
            if row is None:
                break
            held = self._rows[row]
            known = held.ids if held.episode == request.episode else ()
            # the last token is always computed: its logits give the first draw
            shared = _common_prefix(known, request.prompt[:-1])
            budget -= len(request.prompt) - shared
            if budget < 0 and joining:
                break
            self._waiting.pop(0)
            if held.episode is not None and held.episode != request.episode:
                self._row_of.pop(held.episode, None)
            held.episode, held.ids, held.busy = request.episode, request.prompt[:shared], True
            self._row_of[request.episode] = row
            request.row, request.queue_seconds = row, time.perf_counter() - request.asked
            joining.append(request)
        self._running += joining
        return joining

    def _row_for(self, episode: str) -> int | None:
        """The episode's own row, a free one, or the one that rested longest; None where all are busy."""
        if episode in self._row_of and not self._rows[self._row_of[episode]].busy:
            return self._row_of[episode]
        resting = [i for i, row in enumerate(self._rows) if not row.busy]
        return min(resting, key=lambda i: (self._rows[i].episode is not None, self._rows[i].used, i), default=None)

    @torch.inference_mode()
    def _step(self, joining: list[_Request]) -> None:
        """Prefill those who join, draw their first token; then one more token for everyone."""
        if joining:
            joining.sort(key=lambda request: request.row)
            new = [request.prompt[len(self._rows[request.row].ids) :] for request in joining]
            self._draw_next(joining, new)
        going_on = [request for request in self._running if not self._finished(request)]
        if going_on:
            going_on.sort(key=lambda request: request.row)
            self._draw_next(going_on, [(request.tokens[-1],) for request in going_on])

    def _draw_next(self, requests: list[_Request], new: Sequence[Sequence[int]]) -> None:
        """Feed each request its new tokens and draw the one that follows."""
        width = max(map(len, new))
        ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in new], device=self._device)
        rows = torch.tensor([request.row for request in requests], device=self._device)
        starts = torch.tensor([len(self._rows[request.row].ids) for request in requests], device=self._device)
        lasts = torch.tensor([len(tokens) - 1 for tokens in new], device=self._device)
        logits = self._logits(ids, rows, starts, lasts)
        if not torch.isfinite(logits).all():
            raise FloatingPointError("the model's logits are not finite")
        drawn = draw(
            logits,
            torch.tensor([request.sampling.temperature for request in requests], device=self._device),
            uniforms(
                np.array([request.sampling.seed for request in requests], dtype=np.uint64),
                np.array([len(request.tokens) for request in requests], dtype=np.uint64),
            ).to(self._device),
        )
        columns = zip(drawn.tokens.tolist(), drawn.logprobs.tolist(), drawn.entropies.tolist(), strict=True)
        for request, tokens, (token, logprob, entropy) in zip(requests, new, columns, strict=True):
            self._rows[request.row].ids += tuple(tokens)
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.entropies.append(entropy)
            request.versions.append(self.version)

    def _logits(self, ids: Tensor, rows: Tensor, starts: Tensor, lasts: Tensor) -> Tensor:
        """[B, V] logits behind the last new token of each row."""
        self._cache.aim(rows, starts, ids.shape[1])
        # rows end at different places: logits are computed at those places only, not along the whole width
        places, which = torch.unique(lasts, return_inverse=True)
        # Transformers' SDPA path takes a ready four-dimensional mask as it is
        output: Any = self.model(
            input_ids=ids,
            attention_mask=self._cache.mask(),
            position_ids=self._cache.places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=places,
        )
        logits: Tensor = output.logits
        return logits[torch.arange(len(ids), device=ids.device), which]

    def _finished(self, request: _Request) -> bool:
        return (
            request.result.done()
            or (bool(request.tokens) and request.tokens[-1] in request.sampling.stop_ids)
            or len(request.tokens) >= request.sampling.max_new_tokens
            or len(request.prompt) + len(request.tokens) >= self.context_length
        )

    def _hand_over_finished(self) -> None:
        for request in [r for r in self._running if self._finished(r)]:
            self._rest(request)
            if request.result.done():
                continue
            stopped = request.tokens[-1] in request.sampling.stop_ids
            request.result.set_result(
                Generation(
                    tuple(request.tokens),
                    tuple(request.logprobs),
                    tuple(request.entropies),
                    tuple(request.versions),
                    "stop" if stopped else "length",
                    request.queue_seconds,
                )
            )

    def _rest(self, request: _Request) -> None:
        self._clock += 1
        row = self._rows[request.row]
        row.busy, row.used = False, self._clock
        self._running.remove(request)


def _common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    """How many first ids two sequences share."""
    limit = min(len(held), len(wanted))
    if held[:limit] == wanted[:limit]:
        return limit
    return next(i for i in range(limit) if held[i] != wanted[i])
