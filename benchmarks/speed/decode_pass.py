"""Time of one decode step by PyTorch operation, summed over steps of 64 sequences.

Eight sequences per prompt of `--length` tokens, each with at most eighty tokens after it; a step samples one token per
sequence. Reported are milliseconds per forward pass and per sampling call, and fractions of the profiler's time.

    python -m benchmarks decode_pass                    a model of a million parameters, one thread
    python -m benchmarks decode_pass --model FOLDER     a pretrained model in a suitable precision, all threads
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from circumstances import circumstances
from engine import GROUP, SEQUENCES, build_model, pretrained, prompts
from whetstone.inference import Sampling
from whetstone.inference.compiled_decoder import CompiledDecoder
from whetstone.inference.forward import SlotForward
from whetstone.inference.sampling import sample_tokens

_KINDS = {
    "products": {"aten::mm", "aten::addmm"},
    "attention": {"aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax"},
    "writing keys": {"aten::index_copy_", "aten::_index_put_impl_"},
    "compiled layers": {"forward"},
    "compiled head": {"head"},
}
_COMPILED = ("forward", "head")
"""Compiled functions, which the profiler does not record."""


class Decoding:
    """64 sequences with prefilled prompts.

    Args:
        model: A causal language model.
        length: Tokens of each prompt.
    """

    def __init__(self, model: Any, length: int) -> None:
        self.forward = SlotForward(model, rows=SEQUENCES, context_length=length + 128)
        self.length, self.done = length, 0
        self.samplings = [Sampling(128, seed=i) for i in range(SEQUENCES)]
        token_ids = prompts(length, 1)
        with torch.inference_mode():
            for first in range(0, SEQUENCES, GROUP):
                self.forward.compute_logits([first], [0], [token_ids[first][:-1]])
                for sibling in range(first + 1, first + GROUP):
                    self.forward.cache.copy(first, sibling, length - 1)
            self.forward.compute_logits(range(SEQUENCES), [length - 1] * SEQUENCES, [ids[-1:] for ids in token_ids])
        self.tokens = [[1 + i] for i in range(SEQUENCES)]

    @torch.inference_mode()
    def steps(self, count: int) -> list[tuple[float, float]]:
        """Run decode steps and return (seconds of the forward pass, seconds of sampling) per step."""
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            at, rows = [self.length + self.done] * SEQUENCES, range(SEQUENCES)
            logits = self.forward.compute_logits(
                rows, at, self.tokens, is_decode=True, prompts=[self.length] * SEQUENCES
            )
            passed = time.perf_counter()
            sampled = sample_tokens(logits, self.samplings, [self.done] * SEQUENCES, [None] * SEQUENCES)
            self.tokens = [[row.token] for row in sampled.iterate_tokens()]
            self.done += 1
            seconds.append((passed - began, time.perf_counter() - passed))
        return seconds


@contextlib.contextmanager
def record_compiled_functions() -> Iterator[None]:
    """Record compiled functions in the profiler within the block."""
    plain = {name: vars(CompiledDecoder)[name] for name in _COMPILED}

    def record_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with record_function(name):
                return function(*args, **options)

        return call

    for name, function in plain.items():
        setattr(CompiledDecoder, name, record_calls(name, function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(CompiledDecoder, name, function)


def measure_fractions(decoding: Decoding, count: int) -> dict[str, float]:
    """Return kind of operation → fraction of the profiler's time, with the rest."""
    with record_compiled_functions(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        decoding.steps(count)
    spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(spent.values())
    shares = {kind: sum(spent.get(name, 0.0) for name in names) / total for kind, names in _KINDS.items()}
    return shares | {"all else": 1 - sum(shares.values())}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", help="folder of a pretrained model")
    parser.add_argument("--length", type=int, help="tokens of a prompt [60; 250 with a pretrained model]")
    arguments = parser.parse_args()
    began = time.perf_counter()
    length = arguments.length or (60 if arguments.model is None else 250)
    if arguments.model is None:
        torch.set_num_threads(1)
        model: Any = build_model(length + 128)
    else:
        model = pretrained(arguments.model, "auto")
    decoding = Decoding(model, length)
    decoding.steps(8)
    seconds = decoding.steps(24)
    result = {
        "name": "decode pass",
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "pass_milliseconds": 1e3 * statistics.median(passed for passed, _ in seconds),
        "draw_milliseconds": 1e3 * statistics.median(sampling_seconds for _, sampling_seconds in seconds),
        "shares": measure_fractions(decoding, 16),
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{result['pass_milliseconds']:.1f} ms per forward pass, {result['draw_milliseconds']:.1f} per sampling call; "
        f"{result['dtype']}"
    )
    for kind, share in result["shares"].items():
        print(f"{kind:<22} {share:6.1%}")


if __name__ == "__main__":
    main()
