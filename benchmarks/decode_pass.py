"""Where does one decode pass spend its time? Operations of PyTorch, added up over passes of 64 rows.

Eight rows a prompt of `--length` tokens, each with eighty of its own at most; a pass draws one more token for every
row. Told are milliseconds a pass and a draw, and shares of the profiler's time.

    python benchmarks/decode_pass.py                    a model of a million parameters, one thread
    python benchmarks/decode_pass.py --model FOLDER     a pretrained one, in what suits it and the machine, all threads
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
from engine import GROUP, SEQUENCES, model_of, pretrained, prompts
from whetstone.inference import Sampling
from whetstone.inference.compiled import Compiled
from whetstone.inference.forward import RowForward
from whetstone.inference.sampling import draw

_KINDS = {
    "products": {"aten::mm", "aten::addmm"},
    "attention": {"aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax", "attend"},
    "writing keys": {"aten::index_copy_", "aten::_index_put_impl_"},
    "compiled but attention": {"add_and_norm", "turn", "gate"},
}
_COMPILED = ("attend", "add_and_norm", "turn", "gate")
"""Functions the profiler does not see by itself."""


class Decoding:
    """64 rows behind their prompts.

    Args:
        model: A causal language model.
        length: Tokens of each prompt.
    """

    def __init__(self, model: Any, length: int) -> None:
        self.forward = RowForward(model, rows=SEQUENCES, context_length=length + 128)
        self.length, self.done = length, 0
        self.samplings = [Sampling(128, seed=i) for i in range(SEQUENCES)]
        asked = prompts(length, 1)
        with torch.inference_mode():
            for first in range(0, SEQUENCES, GROUP):
                self.forward.logits([first], [0], [asked[first][:-1]])
                for sibling in range(first + 1, first + GROUP):
                    self.forward.cache.copy(first, sibling, length - 1)
            self.forward.logits(range(SEQUENCES), [length - 1] * SEQUENCES, [ids[-1:] for ids in asked])
        self.tokens = [[1 + i] for i in range(SEQUENCES)]

    @torch.inference_mode()
    def steps(self, count: int) -> list[tuple[float, float]]:
        """(seconds of the pass, seconds of the draw) of each."""
        found = []
        for _ in range(count):
            began = time.perf_counter()
            at, rows = [self.length + self.done] * SEQUENCES, range(SEQUENCES)
            logits = self.forward.logits(rows, at, self.tokens, drawn=True, prompts=[self.length] * SEQUENCES)
            passed = time.perf_counter()
            drawn = draw(logits, self.samplings, [self.done] * SEQUENCES, [None] * SEQUENCES)
            self.tokens = [[row.token] for row in drawn.rows()]
            self.done += 1
            found.append((passed - began, time.perf_counter() - passed))
        return found


@contextlib.contextmanager
def compiled_functions_seen() -> Iterator[None]:
    """As long as the block lasts, the profiler is told of them."""
    plain = {name: vars(Compiled)[name] for name in _COMPILED}

    def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with record_function(name):
                return function(*args)

        return call

    for name, function in plain.items():
        setattr(Compiled, name, told(name, function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(Compiled, name, function)


def shares_of(decoding: Decoding, count: int) -> dict[str, float]:
    """Kinds of operations and the rest, as shares of the profiler's time."""
    with compiled_functions_seen(), profile(activities=[ProfilerActivity.CPU]) as seen:
        decoding.steps(count)
    spent = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    whole = sum(spent.values())
    shares = {kind: sum(spent.get(name, 0.0) for name in names) / whole for kind, names in _KINDS.items()}
    return shares | {"all else": 1 - sum(shares.values())}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", help="a folder with a pretrained model")
    parser.add_argument("--length", type=int, help="tokens of a prompt [60; 250 with a pretrained model]")
    given = parser.parse_args()
    began = time.perf_counter()
    length = given.length or (60 if given.model is None else 250)
    if given.model is None:
        torch.set_num_threads(1)
        model: Any = model_of(length + 128)
    else:
        model = pretrained(given.model, "auto")
    decoding = Decoding(model, length)
    decoding.steps(8)
    seconds = decoding.steps(24)
    told = {
        "name": "decode pass",
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "pass_milliseconds": 1e3 * statistics.median(passed for passed, _ in seconds),
        "draw_milliseconds": 1e3 * statistics.median(drew for _, drew in seconds),
        "shares": shares_of(decoding, 16),
        **circumstances(began),
    }
    if given.json:
        print(json.dumps(told))
        return
    print(f"{told['pass_milliseconds']:.1f} ms a pass, {told['draw_milliseconds']:.1f} a draw; {told['dtype']}")
    for kind, share in told["shares"].items():
        print(f"{kind:<22} {share:6.1%}")


if __name__ == "__main__":
    main()
