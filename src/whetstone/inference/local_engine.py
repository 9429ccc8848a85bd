"""Continuous batching in this process: one model, one batch that requests join and leave.

    waiting → (a slot is free) → running: prefill in chunks, then token by token → finished

Requests join and leave between two decode steps. A step first computes a chunk of unfinished prompts, then one token
for all other requests, so a long prompt delays the others only briefly. With a small model, prefill takes as long for
one prompt as for twenty. New requests therefore wait a few steps for others: until their total waiting time equals the
delay that the prefill causes to running requests. All scheduling happens on the event loop, between steps. The steps
run in a thread, so tools, rewards and timers continue meanwhile.

Note:
    Keys computed under old weights must not serve new sequences (`kv_slots.py`), and the logits of a token must not
    depend on the other sequences (`forward.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whetstone.compute_thread import run_engine_steps, run_in_compute_thread
from whetstone.errors import InfrastructureError, PolicyError, PromptTooLong
from whetstone.inference.engine_capabilities import check_media
from whetstone.inference.forward import SlotForward
from whetstone.inference.forward_choice import Forward, choose_forward
from whetstone.inference.kv_cache import bytes_per_token
from whetstone.inference.kv_slots import KVSlots
from whetstone.inference.protocol import (
    EngineCapabilities,
    EngineLoad,
    EngineStatistics,
    GenerateRequest,
    Generation,
    InFlight,
    Scores,
    Weights,
)
from whetstone.inference.request import Request, complement_sampled
from whetstone.inference.sampling import sample_tokens
from whetstone.policies import (
    has_float64,
    vocabulary_size,
)
from whetstone.tokens import TokenSequence

_LONGEST_WAIT = 8
"""Maximum time that a request waits for others, as a multiple of the shortest recent prefill."""
_LOOKED_AT = 64
"""Maximum number of waiting requests whose waiting times are summed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """New weights that the engine loads between two steps."""

    weights: Weights
    version: int
    in_flight: InFlight
    done: asyncio.Future[None]
    """Set when the weights are loaded."""


class LocalEngine:
    """Inference engine in this process, for any Transformers causal language model; see `Engine`.

    Created by the engine factory `local` for a recipe with `engine: local`.

    Args:
        model: Model to sample from. It can be the model in training: the engine only reads its parameters.
        context_length: Context length of the model, in tokens.
        rows: Number of KV slots: the maximum number of requests that run concurrently, and of episodes whose keys are
            cached.
        cache_bytes: Maximum size of the KV cache in bytes, which can lower `rows`; None: unlimited.
        prefill_tokens: Maximum number of prompt tokens computed per step.
        max_waiting: Maximum number of queued requests; further callers wait until one leaves the queue. None:
            unlimited.
        detokenize: Decodes token ids to text; required for stop strings.
        version: Policy version of the model's current weights.

    Raises:
        ValueError: If the KV cache of one sequence exceeds `cache_bytes`.
    """

    capabilities = EngineCapabilities()
    """All capabilities except media."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        context_length: int,
        rows: int = 256,
        cache_bytes: int | None = None,
        prefill_tokens: int = 4096,
        max_waiting: int | None = None,
        detokenize: Callable[[Sequence[int]], str] | None = None,
        version: int = 0,
    ) -> None:
        if cache_bytes is not None:
            each = bytes_per_token(model) * context_length
            if cache_bytes < each:
                raise ValueError(
                    f"cache_bytes: {cache_bytes:,} is too small for one sequence; {context_length} tokens take {each:,}"
                )
            rows = min(rows, cache_bytes // each)
        self.context_length, self.prefill_tokens = context_length, prefill_tokens
        self.version = version
        self._model, self._row_count = model, rows
        self._chosen: Forward | None = None
        self._draws_where_it_computes = has_float64(next(model.parameters()).device)
        self._vocabulary = vocabulary_size(model)
        self._detokenize = detokenize
        self._rows = KVSlots(rows)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._updates: deque[_Update] = deque()
        self._room = None if max_waiting is None else asyncio.Semaphore(max_waiting)
        self._statistics = EngineStatistics(rows=rows)
        self._serving: asyncio.Task[None] | None = None
        self._scorings = itertools.count()
        self._pass_seconds = 0.0
        """Duration of the shortest recent prefill, in seconds; 0 before the first."""
        self._interrupted = False
        self._closed = False
        self._streamer = TokenStreamer()

    @property
    def statistics(self) -> EngineStatistics:
        """Counters since the engine was created; see `Engine.statistics`."""
        return replace(self._statistics, evictions=self._rows.evictions)

    @property
    def alive(self) -> bool:
        """Whether the engine can respond: True until it is closed."""
        return not self._closed

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a continuation of a prompt in the shared batch; see `Engine.generate`."""
        length, sampling = len(request.prompt), request.sampling
        if not 0 < length < self.context_length:
            raise PromptTooLong(f"{length} prompt tokens fill the context of {self.context_length}; shorten the prompt")
        self._check_ids((*request.prompt.ids, *sampling.forced))
        if sampling.stop_strings and self._detokenize is None:
            raise ValueError("stop_strings: this engine cannot decode text; create it with `detokenize`")
        return await self._submit(request.prompt, request.episode, length, request)  # type: ignore[no-any-return]

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Compute log-probs and entropies of given tokens in the shared batch; see `Engine.score`."""
        if not 1 <= start < len(tokens):
            raise ValueError(
                f"start: must be from 1 to {len(tokens) - 1}, the last of {len(tokens)} tokens, got {start}"
            )
        if len(tokens) > self.context_length:
            raise PromptTooLong(
                f"{len(tokens)} tokens to score exceed the context of {self.context_length} tokens; shorten the text"
            )
        self._check_ids(tokens.ids)
        return await self._submit(tokens, f"score {next(self._scorings)}", start)  # type: ignore[no-any-return]

    def abort(self, episode: str) -> None:
        """End the generations of an episode before their next token; see `Engine.abort`."""
        for request in (*self._waiting, *self._running):
            if request.episode == episode and request.finish is None:
                request.finish = "abort"
        self._interrupted = True

    def forget(self, episode: str) -> None:
        """Release the KV slot of a finished episode; see `Engine.forget`."""
        self._rows.release_slot(episode)

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Load weights between two steps; see `Engine.load_weights`.

        Parameters that already share memory with the model's are not copied.
        """
        self._check_open()
        update = _Update(weights, version, in_flight, asyncio.get_running_loop().create_future())
        self._updates.append(update)
        self._interrupted = True
        self._wake()
        await update.done

    async def measure_load(self) -> EngineLoad:
        """Return the load by the slots of episodes in progress; see `ReportsLoad`."""
        return self._rows.measure_load(len(self._waiting))

    async def sleep(self) -> None:
        """Free the KV cache until the next request; see `SupportsSleep.sleep`."""
        if self._waiting or self._running:
            return
        self._rows.invalidate_prefixes(keep=False)
        if self._chosen is not None:
            await run_in_compute_thread(self._chosen.release)

    async def close(self) -> None:
        """Stop the engine and fail all pending requests; see `Engine.close`."""
        self._closed = self._interrupted = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._fail_all(InfrastructureError("the engine was closed"))

    # ------------------------------------------------------------ on the event loop

    @property
    def _forward(self) -> Forward:
        assert self._chosen is not None  # nothing is served before
        return self._chosen

    def _fail_all(self, error: Exception) -> None:
        for request in (*self._waiting, *self._running):
            _fail(request.result, error)
        for update in self._updates:
            _fail(update.done, error)

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError("the engine is closed")

    def _check_ids(self, ids: Sequence[int]) -> None:
        low, high = min(ids), max(ids)
        if low < 0 or high >= self._vocabulary:
            raise ValueError(
                f"token id {low if low < 0 else high} is outside the model's vocabulary of {self._vocabulary}; "
                "use the model's own tokenizer"
            )

    async def _submit(
        self, tokens: TokenSequence, episode: str, start: int, generation: GenerateRequest | None = None
    ) -> Any:
        """Queue a generation, or a scoring if `generation` is None, and wait for its result."""
        check_media(tokens, self.capabilities, engine="local")
        self._check_open()
        arrival = time.perf_counter()
        if self._room is not None:
            await self._room.acquire()
            self._check_open()
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ids = list(tokens.ids)
        keys = list(tokens.keys) if tokens.media else ids
        computed_keys = complement_sampled(keys, () if generation is None else generation.sampled_spans)
        self._waiting.append(Request(ids, keys, computed_keys, episode, result, arrival, start, generation))
        self._wake()
        try:
            return await result
        except asyncio.CancelledError:
            self._interrupted = True  # its slot can be released
            raise

    def _wake(self) -> None:
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        """Serve until no request is left; an internal error fails all waiting requests."""
        try:
            await self._serve_all()
        except PolicyError as error:  # the model cannot be sampled
            self._closed = True
            self._fail_all(error)
        except Exception as error:
            self._closed = True
            self._fail_all(InfrastructureError(f"the engine failed: {type(error).__name__}: {error}"))
            context = {"message": "the local engine failed with an internal error", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _serve_all(self) -> None:
        if self._chosen is None:  # in the thread that computes: the forward passes are compared there
            self._chosen = await run_in_compute_thread(
                choose_forward, self._model, rows=self._row_count, context_length=self.context_length
            )
            self._rows.share = isinstance(self._chosen, SlotForward)
            if not self._rows.share:  # the chunk size changes the last bits of a state
                self.prefill_tokens = sys.maxsize
        await asyncio.sleep(0)  # let all ready requests join the first batch
        while not self._closed and (self._waiting or self._running or self._updates):
            self._interrupted = False
            self._finish_ended()
            await self._load_what_is_due()
            copies = list(self._admit())
            if not self._running:
                continue
            try:
                await run_engine_steps(self._steps, copies, asyncio.get_running_loop())
            except Exception as error:  # the requests in the batch fail; the engine lives on
                failure = InfrastructureError(f"the engine failed: {type(error).__name__}: {error}")
                for request in self._running:
                    request.error = request.error or failure
            self._finish_ended()
            await asyncio.sleep(0)

    def _admit(self) -> Iterator[tuple[int, int, int]]:
        """Assign KV slots to waiting requests in order of arrival.

        Yields (source slot, target slot, number of tokens) of each cached prefix to copy.
        """
        if any(update.in_flight == "drain" for update in self._updates) or not self._should_admit():
            return
        later: list[Request] = []
        while self._waiting:
            request = self._waiting[0]
            # tokens to score must be computed; for a generation that is the last token, for its logits
            usable = request.start - 1
            taken = self._rows.allocate_slot(request.episode, request.keys, request.computed_keys, usable)
            if taken == "full":
                break
            self._waiting.popleft()
            if isinstance(taken, str):
                later.append(request)
                continue
            row, copied = taken
            if copied is not None:
                yield copied[0].number, row.number, copied[1]
            request.row, request.queue_seconds = row, time.perf_counter() - request.arrival
            if self._room is not None:
                self._room.release()
            self._running.append(request)
            self._count(cached_tokens=len(row.keys), queue_seconds=request.queue_seconds)
        self._waiting.extendleft(reversed(later))
        self._running.sort(key=_row_number)

    def _should_admit(self) -> bool:
        """Return whether a slot is available and waiting requests have waited long enough for others.

        Also called in the thread that computes the steps.
        """
        waiting = list(self._waiting)[:_LOOKED_AT]
        if not waiting or not self._rows.has_vacant_slot:
            return False
        now = time.perf_counter()
        waited = sum(now - request.arrival for request in waiting)
        longest = now - waiting[0].arrival
        held_up = self._pass_seconds * len(self._running)
        return waited >= held_up or longest >= _LONGEST_WAIT * self._pass_seconds

    async def _load_what_is_due(self) -> None:
        """Load the new weights that are due between two steps, in the order of the calls.

        With `drain`, loading waits until no request runs. An error is returned to the caller of `load_weights`.
        """
        while self._updates and not (self._updates[0].in_flight == "drain" and self._running):
            update = self._updates.popleft()
            try:
                await run_in_compute_thread(self._forward.load, update.weights)
            except Exception as error:
                _fail(update.done, InfrastructureError(f"weights could not be loaded: {type(error).__name__}: {error}"))
                continue
            self.version = update.version
            self._rows.invalidate_prefixes(keep=update.in_flight == "continue")
            if update.in_flight == "recompute":
                for request in self._running:
                    request.mark_for_recomputation()
            if not update.done.done():
                update.done.set_result(None)

    def _finish_ended(self) -> None:
        """Return the results of finished requests to their callers, and mark their slots idle."""
        for request in [r for r in self._waiting if r.is_ended]:
            self._waiting.remove(request)
            if self._room is not None:
                self._room.release()
            if not request.result.done():
                request.result.set_result(request.build_result())
        ended = [request for request in self._running if request.is_ended]
        if not ended:
            return
        self._running = [request for request in self._running if not request.is_ended]
        for request in ended:
            assert request.row is not None
            if request.error is not None:
                self._rows.clear_slot(request.row)
                _fail(request.result, request.error)
            elif not request.result.done():
                request.result.set_result(request.build_result())
            if request.sampling is None:
                self._rows.release_slot(request.episode)
            self._rows.mark_idle(request.row)
        failed = sum(request.error is not None for request in ended)
        self._count(requests=len(ended) - failed, failed=failed)

    def _count(self, **more: float) -> None:
        known = self._statistics
        self._statistics = replace(known, **{name: getattr(known, name) + value for name, value in more.items()})

    # ------------------------------------------------------------ in the thread

    @torch.inference_mode()
    def _steps(self, copies: Sequence[tuple[int, int, int]], loop: asyncio.AbstractEventLoop) -> None:
        """Run decode steps until a request finishes or the event loop is needed.

        Args:
            copies: (source slot, target slot, number of tokens) of each cached prefix to copy first.
            loop: Event loop for streaming callbacks.
        """
        for source, target, length in copies:
            assert isinstance(self._forward, SlotForward)  # others share nothing
            self._forward.cache.copy(source, target, length)
        while True:
            began = time.perf_counter()
            wanted = [(*request.next_piece(), request) for request in self._running if not request.is_ended]
            prompts = [(size, request) for size, drawn, request in wanted if not drawn]
            computed = self._prefill(prompts) if prompts else 0
            # requests whose prompt is complete continue in the same step
            speaking = [request for request in self._running if not request.is_ended and request.next_piece()[1]]
            if speaking:
                self._draw(speaking, self._feed(speaking, [1] * len(speaking), is_decode=True))
            self._count(
                busy_seconds=time.perf_counter() - began,
                prefill_tokens=computed,
                decode_tokens=len(speaking),
                steps=bool(speaking),
            )
            self._streamer.schedule_callbacks(self._running, loop)
            if self._interrupted or any(request.is_ended for request in self._running) or self._should_admit():
                return

    def _prefill(self, wanted: Sequence[tuple[int, Request]]) -> int:
        """Compute prompt chunks up to the token budget of a step, oldest request first.

        After a complete prompt the first token is sampled, or a scoring is finished.

        Args:
            wanted: (number of tokens in the next chunk, request) of every unfinished prompt.

        Returns:
            The number of computed tokens.
        """
        budget = self.prefill_tokens
        pieces: list[tuple[int, Request]] = []
        for size, request in sorted(wanted, key=lambda piece: piece[1].arrival):
            if budget > 0:
                pieces.append((min(size, budget), request))
                budget -= pieces[-1][0]
        for batch in _batches_by_width(pieces):
            began = time.perf_counter()
            requests, sizes = [request for _, request in batch], [size for size, _ in batch]
            if requests[0].sampling is None:
                self._score(requests, sizes)
            else:
                self._draw(requests, self._feed(requests, sizes))
            took = time.perf_counter() - began
            # the minimum is the cost of a prefill; it may grow, so that one outlier does not decide for ever
            self._pass_seconds = min(took, 1.05 * self._pass_seconds) if self._pass_seconds else took
        return self.prefill_tokens - budget

    def _feed(
        self, requests: Sequence[Request], sizes: Sequence[int], *, is_decode: bool = False, everywhere: bool = False
    ) -> Tensor:
        """Feed the next tokens of each request to its slot, and record them there.

        Args:
            requests: [B] requests, in the order of their slots.
            sizes: [B] number of tokens to feed.
            is_decode: Whether each token was sampled.
            everywhere: Whether to return logits after every token.

        Returns:
            Logits as `SlotForward.compute_logits` returns them.
        """
        rows = [request.row for request in requests if request.row is not None]
        starts = [len(row.keys) for row in rows]
        spans = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        new = [request.ids[span] for request, span in zip(requests, spans, strict=True)]
        numbers = [row.number for row in rows]
        prompts = [row.prompt for row in rows] if is_decode else None
        logits = self._forward.compute_logits(
            numbers, starts, new, is_decode=is_decode, prompts=prompts, everywhere=everywhere
        )
        for request, row, span in zip(requests, rows, spans, strict=True):
            keys = request.keys[span]
            if not is_decode and row.prompt == len(row.computed_keys):
                row.prompt += len(keys)
            row.keys += keys
            row.computed_keys += [~key for key in keys] if is_decode else keys
        return logits

    def _draw(self, requests: Sequence[Request], logits: Tensor) -> None:
        """Sample the next token of each request whose tokens are all computed.

        A request with non-finite logits fails.

        Args:
            requests: [B] requests.
            logits: [B, V] logits after the last computed token of each request.
        """
        complete = [i for i, request in enumerate(requests) if request.num_uncomputed == 0]
        if len(complete) < len(requests):
            requests, logits = [requests[i] for i in complete], logits[complete]
        if not complete:
            return
        samplings = [request.sampling for request in requests if request.sampling is not None]
        if not self._draws_where_it_computes:
            logits = logits.cpu()
        places, allowed = (
            [len(request.logprobs) for request in requests],
            [request.allowed_tokens for request in requests],
        )
        drawn = sample_tokens(logits, samplings, places, allowed)
        sound = torch.isfinite(logits.amax(-1)).tolist()  # NaN and infinity come through the maximum
        for request, token, is_sound in zip(requests, drawn.iterate_tokens(), sound, strict=True):
            if not is_sound:
                self._fail_nonfinite(request)
                continue
            request.add_token(token, self.version, context_length=self.context_length)
            if request.finish != "stop" and request.sampling is not None and request.sampling.stop_strings:
                assert self._detokenize is not None
                request.stop_at_strings(self._detokenize)

    def _score(self, requests: Sequence[Request], sizes: Sequence[int]) -> None:
        """Feed a chunk of each scoring; store log-probs and entropies of the tokens that follow."""
        starts = [len(request.row.keys) for request in requests if request.row is not None]
        logits = self._feed(requests, sizes, everywhere=True)
        for request, start, size, row in zip(requests, starts, sizes, logits, strict=True):
            first = max(request.start - 1, start)
            last = min(start + size, len(request.ids) - 1)
            if first < last:
                distribution = torch.log_softmax(row[first - start : last - start].float(), dim=-1)
                if not torch.isfinite(distribution.amax(-1)).all():
                    self._fail_nonfinite(request)
                    continue
                following = torch.tensor(request.ids[first + 1 : last + 1], device=row.device)
                request.logprobs += distribution.gather(1, following.unsqueeze(1)).squeeze(1).tolist()
                request.entropies += (-(distribution.exp() * distribution.clamp_min(-1e4)).sum(-1)).tolist()
            if request.num_uncomputed == 0:
                request.finish = "stop"

    def _fail_nonfinite(self, request: Request) -> None:
        """Fail a request with non-finite logits and wipe its slot.

        Other requests are not affected.
        """
        request.error = InfrastructureError("the model's logits are not finite")
        if request.row is not None:
            self._forward.cache.wipe_slot(request.row.number)


def _batches_by_width(pieces: Sequence[tuple[int, Request]]) -> Iterator[list[tuple[int, Request]]]:
    """Yield batches of prompt chunks with less than half padding, each in the order of slots.

    Generations and scorings are in separate batches.
    """
    for scoring in (False, True):
        left = sorted((p for p in pieces if (p[1].sampling is None) == scoring), key=lambda piece: -piece[0])
        while left:
            batch = [piece for piece in left if 2 * piece[0] > left[0][0]]
            left = left[len(batch) :]
            yield sorted(batch, key=lambda piece: _row_number(piece[1]))


def _row_number(request: Request) -> int:
    assert request.row is not None
    return request.row.number


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


_MIN_INTERVAL_SECONDS = 0.05
"""Minimum time between two callbacks of a generation, in seconds."""
_MAX_CALLBACKS_PER_SECOND = 300
"""Maximum number of callbacks of all generations together, per second."""


class TokenStreamer:
    """Calls `on_tokens` of running generations on the event loop, rate-limited.

    The callback of a generation receives its first token immediately and later ones at intervals: with sixty clients, a
    callback per token costs more than sampling the tokens. Created by `LocalEngine`.
    """

    def __init__(self) -> None:
        self._is_scheduled = False
        self._last = 0.0

    def schedule_callbacks(self, running: Sequence[Request], loop: asyncio.AbstractEventLoop) -> None:
        """Schedule the due `on_tokens` callbacks on the event loop.

        Called after each step, in the thread that computes it.

        Args:
            running: Requests in progress.
            loop: Event loop of the callers.
        """
        if self._is_scheduled:
            return
        due = [request for request in running if request.has_unstreamed]
        if not due:
            return
        now = time.perf_counter()
        if now >= self._last + max(_MIN_INTERVAL_SECONDS, len(due) / _MAX_CALLBACKS_PER_SECOND):
            self._last = now
        else:
            due = [request for request in due if not request.streamed]
        if due:
            self._is_scheduled = True
            loop.call_soon_threadsafe(self._stream, due)

    def _stream(self, due: Sequence[Request]) -> None:
        self._is_scheduled = False
        for request in due:
            if request.has_unstreamed:
                request.stream()
