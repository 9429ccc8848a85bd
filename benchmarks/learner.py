"""How fast is an update, and how much memory does it take, against a padded step that shares nothing?

Tool episodes in groups of 8: 250 tokens of prompt that the group shares, then 25 to 65 of their own, actions and
answers in turn. The peer is a plain Transformers step: rows padded to the longest, logits for the columns behind
the prompt only, the same loss, clipping and AdamW; of several numbers of rows a pass it is given the fastest.
Forked trees of depth 4 are run as trees and as the flat list of their branches. Both sides' gradients are compared.

    python benchmarks/learner.py --model FOLDER      the same with a pretrained model, whole, in what suits it
    python benchmarks/learner.py --keep FILE         each turn a line; one that was stopped goes on
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from circumstances import circumstances
from turns import Turns
from whetstone.algorithms import clipped
from whetstone.learning.forward_passes import LocalPasses
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy, cast_policy, in_dtype
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Author, Segment, Tokens

GROUP, PROMPT = 8, 250
SETTINGS = OptimizerSettings(steps=100, learning_rate=1e-4, micro_batch_tokens=4096)
SIZES = {
    "1m": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    "20m": {"vocab_size": 32000, "hidden_size": 320, "intermediate_size": 896, "num_hidden_layers": 8},
}
HEADS = {"1m": 4, "20m": 5}
GROUPS = {"1m": 8, "20m": 2}
PEER_ROWS = {"1m": (4, 8, 16, 32), "20m": (4, 8, 16)}


def vocabulary_of(size: str) -> int:
    """How many tokens a model of this size, or in this folder, knows."""
    return int(SIZES[size]["vocab_size"] if size in SIZES else AutoConfig.from_pretrained(size).vocab_size)


def model_of(size: str) -> Any:
    """Random weights of a size, the same each time; or the model in a folder, in float32."""
    if size not in SIZES:
        return AutoModelForCausalLM.from_pretrained(size, dtype=torch.float32)
    torch.manual_seed(0)
    heads = HEADS[size]
    shape = SIZES[size]
    config = LlamaConfig(
        **shape, num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=True, pad_token_id=0
    )
    return LlamaForCausalLM(config)


def segment(ids: Sequence[int], mask: Sequence[bool], advantage: float) -> Segment:
    """What a rollout would hand over, with log-probs that say nothing."""
    n = len(ids)
    tokens = Tokens(tuple(ids), (Author.POLICY,) * n, (-1.0,) * n, (0,) * n, (math.nan,) * n)
    return Segment("t", 0, tokens, tuple(mask), (0,) * n, tuple(advantage * m for m in mask))


def turns(numbers: random.Random, vocabulary: int, length: int) -> tuple[list[int], list[bool]]:
    """Actions of about 12 tokens, each but the last with an answer of about 6."""
    ids: list[int] = []
    mask: list[bool] = []
    while len(ids) < length:
        for trained, count in ((True, numbers.randint(8, 16)), (False, numbers.randint(4, 8))):
            ids += [numbers.randrange(vocabulary) for _ in range(count)]
            mask += [trained] * count
    mask = mask[:length]
    mask[-4:] = [True] * 4
    return ids[:length], mask


def groups(size: str, count: int) -> list[Segment]:
    """Episodes in groups that share a prompt."""
    numbers, vocabulary = random.Random(0), vocabulary_of(size)
    made = []
    for _ in range(count):
        prompt = [numbers.randrange(vocabulary) for _ in range(PROMPT)]
        for k in range(GROUP):
            ids, mask = turns(numbers, vocabulary, numbers.randint(25, 65))
            made.append(segment([*prompt, *ids], [False] * PROMPT + mask, 1.0 - 2 * k / (GROUP - 1)))
    return made


def forks(size: str, count: int, *, prompt: int = 100, turn: int = 45, depth: int = 4) -> list[Segment]:
    """Trees whose every turn parts in two: 16 branches of four turns behind a prompt."""
    numbers, vocabulary = random.Random(1), vocabulary_of(size)
    made = []
    for _ in range(count):
        level = [([numbers.randrange(vocabulary) for _ in range(prompt)], [False] * prompt)]
        for _ in range(depth):
            level = [
                (ids + more, mask + trained)
                for ids, mask in level
                for more, trained in (turns(numbers, vocabulary, turn) for _ in range(2))
            ]
        made += [segment(ids, mask, 1.0 - 2 * k / (len(level) - 1)) for k, (ids, mask) in enumerate(level)]
    return made


class Padded:
    """The peer: one optimiser step on padded rows."""

    def __init__(self, model: Any, rows: int, *, whole: bool = False) -> None:
        self.model, self.rows, self.whole = model.train(), rows, whole
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=SETTINGS.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def gradient(self, segments: Sequence[Segment]) -> None:
        """Backward through all rows, a few at a time."""
        divisor = sum(sum(s.action_mask[1:]) for s in segments)
        for begin in range(0, len(segments), self.rows):
            chosen = segments[begin : begin + self.rows]
            width = max(map(len, chosen))
            ids = torch.tensor([[*s.tokens.ids, *[0] * (width - len(s))] for s in chosen])
            seen = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in chosen])
            mask = torch.tensor([[*s.action_mask, *[False] * (width - len(s))] for s in chosen])
            credit = torch.tensor([[*(s.advantages or ()), *[0.0] * (width - len(s))] for s in chosen])
            kept = width if self.whole else width - int(mask.any(0).nonzero()[0]) + 1
            logits = self.model(ids, attention_mask=seen, use_cache=False, logits_to_keep=kept).logits
            logp = torch.log_softmax(logits[:, :-1].float(), -1)
            kept -= 1
            chosen_logp = logp.gather(2, ids[:, -kept:].unsqueeze(2)).squeeze(2)
            per_token = clipped(chosen_logp, chosen_logp.detach(), credit[:, -kept:]).loss
            ((per_token * mask[:, -kept:]).sum() / divisor).backward()  # type: ignore[no-untyped-call]

    def step(self, segments: Sequence[Segment]) -> None:
        """One update."""
        self.gradient(segments)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Kept(LocalPasses):
    """Forward passes that leave the gradient where it is."""

    def apply(self) -> dict[str, float]:
        """See `ForwardPasses.apply`."""
        return {}


def surrogate(outputs: Any, micro: Any) -> Any:
    """The clipped surrogate at ratio 1."""
    return clipped(outputs.logprobs, outputs.logprobs.detach(), micro.advantages)


def learner_of(size: str, kind: type[LocalPasses] = LocalPasses, *, share: bool = True) -> ModelTrainer:
    """Ours, computed in what suits the model and the machine."""
    policy = cast_policy(Policy(model_of(size), None), "auto")
    settings = SETTINGS.model_copy(update={"prefix_sharing": share})
    return ModelTrainer(policy, settings, passes=kind(policy, settings))


def peer_of(size: str, rows: int, *, whole: bool = False) -> Padded:
    """The peer, computed in the same, and its weights held in it."""
    model = model_of(size)
    return Padded(model.to(in_dtype(model.num_parameters(), "auto", model.device)), rows, whole=whole)


def seconds(action: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(turns: Turns, actions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Sorted seconds of each, one after the other, so that noise falls on all; what is known is not measured again."""
    missing = [name for name in actions if len(turns.of(name)) < repeats]
    for name in missing:
        actions[name]()  # warms up
    for turn in range(repeats):
        for name in missing:
            if len(turns.of(name)) <= turn:
                turns.add(name, seconds(actions[name]))
    return {name: sorted(turns.of(name)) for name in actions}


def difference(size: str, segments: Sequence[Segment]) -> float:
    """How far the two sides' gradients are apart, as a share of their size."""
    ours, theirs = learner_of(size, Kept), peer_of(size, 8)
    ours.step(segments, surrogate)
    theirs.gradient(segments)
    pairs = list(zip(ours.policy.model.parameters(), theirs.model.parameters(), strict=True))
    apart = math.sqrt(sum((a.grad - b.grad).norm().item() ** 2 for a, b in pairs))
    return apart / math.sqrt(sum(b.grad.norm().item() ** 2 for _, b in pairs))


def fastest_rows(turns: Turns, size: str, segments: Sequence[Segment]) -> int:
    """How many rows a pass the peer is fastest with."""
    peers = {f"{rows} rows": peer_of(size, rows) for rows in PEER_ROWS.get(size, (4, 8))}
    steps = {name: functools.partial(peer.step, segments) for name, peer in peers.items()}
    timed = in_turn(turns, steps, 2 if size in SIZES else 1)
    return int(min(timed, key=lambda name: timed[name][0]).split()[0])


def compared(turns: Turns, size: str, repeats: int, *, forked: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """(what was measured, ratios) for a model of this size."""
    segments = groups(size, GROUPS.get(size, 2))
    rows = fastest_rows(turns, size, segments)
    ours, peer = learner_of(size), peer_of(size, rows)
    sides = {"ours": lambda: ours.step(segments, surrogate), "padded": lambda: peer.step(segments)}
    timed = in_turn(turns, sides, repeats)
    metrics = ours.step(segments, surrogate)
    measured = {
        "parameters": sum(p.numel() for p in peer.model.parameters()),
        "peer_rows": rows,
        "tokens_per_second": {name: rates(segments, values) for name, values in timed.items()},
        "shared_fraction": metrics["update/shared_fraction"],
        "flops_utilisation": metrics["throughput/mfu"],
    }
    ratios = {"vs_padded": statistics.median(timed["padded"]) / statistics.median(timed["ours"])}
    measured["gradients_apart"] = difference(size, segments)
    if forked:
        trees = forks(size, 4 if size == "1m" else 1)
        tree, flat = learner_of(size), learner_of(size, share=False)
        sides = {"tree": lambda: tree.step(trees, surrogate), "flat": lambda: flat.step(trees, surrogate)}
        timed = in_turn(turns, sides, repeats)
        measured["forked_tokens_per_second"] = {name: rates(trees, values) for name, values in timed.items()}
        ratios["tree_vs_flat"] = statistics.median(timed["flat"]) / statistics.median(timed["tree"])
    return measured, ratios


def rates(segments: Sequence[Segment], values: Sequence[float]) -> list[float]:
    """Tokens a second, as they stand in the segments: lowest, median, highest."""
    tokens = sum(map(len, segments))
    return [tokens / s for s in (values[-1], statistics.median(values), values[0])]


def memory(size: str, side: str) -> dict[str, float]:
    """Of a process that does one step: MiB held before it, and at most."""
    segments = groups(size, 2)
    if side == "ours":
        run: Callable[[], object] = functools.partial(learner_of(size).step, segments, surrogate)
    else:
        run = functools.partial(peer_of(size, 8, whole=side == "padded_whole").step, segments)
    forget_peak()
    before = held("VmRSS")
    run()
    return {"before": before, "peak": held("VmHWM")}


def forget_peak() -> None:
    """What this process held at most begins anew."""
    Path("/proc/self/clear_refs").write_text("5")


def held(what: str) -> float:
    """MiB of memory this process holds (VmRSS) or held at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", help="a folder with a pretrained model")
    parser.add_argument("--keep", type=Path, help="where turns are kept, and taken from")
    parser.add_argument("--without-forks", action="store_true", help="leave trees out")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(memory(arguments.model or "20m", arguments.memory_of)))
        return
    began = time.perf_counter()
    measured: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for size in SIZES if arguments.model is None else (arguments.model,):
        suffix = "" if size in ("1m", arguments.model) else f"_{size}"
        turns = Turns(arguments.keep, {"bench": "learner", "size": size, "threads": torch.get_num_threads()})
        measured[size], of_size = compared(turns, size, arguments.repeats, forked=not arguments.without_forks)
        ratios |= {f"{name}{suffix}": ratio for name, ratio in of_size.items()}
        said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in of_size.items())
        print(f"{size}: {said}, gradients apart by {measured[size]['gradients_apart']:.1e}", file=sys.stderr)
    for side in ("ours", "padded", "padded_whole"):
        asked = [sys.executable, __file__, "--memory-of", side]
        asked += [] if arguments.model is None else ["--model", arguments.model]
        measured.setdefault("memory_mib", {})[side] = json.loads(subprocess.check_output(asked))
    taken = {name: of["peak"] - of["before"] for name, of in measured["memory_mib"].items()}
    ratios["memory"] = taken["padded"] / taken["ours"]
    ratios["memory_whole"] = taken["padded_whole"] / taken["ours"]
    print(f"memory of a step: {ratios['memory']:.2f} times less", file=sys.stderr)
    told = {
        "name": "learner",
        "measured": measured,
        "ratios": ratios,
        "goal": "vs_padded 3, tree_vs_flat 2",
        "bound": "the tokens saved: 3.9 times in groups, 3.1 times in trees",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    for size in (size for size in measured if size != "memory_mib"):
        for kind in ("tokens_per_second", "forked_tokens_per_second"):
            if kind not in measured[size]:
                continue
            for name, (low, middle, high) in measured[size][kind].items():
                print(f"{size:<4} {name:<10} {kind:<26} {middle:9,.0f}  ({low:,.0f} to {high:,.0f})")
    for name, of in measured["memory_mib"].items():
        taken, held_before = of["peak"] - of["before"], of["before"]
        print(f"{arguments.model or '20m'}  {name:<14} a step takes {taken:7,.0f} MiB over {held_before:,.0f}")
    for name, ratio in ratios.items():
        print(f"{name:<24} {ratio:7.2f}")


if __name__ == "__main__":
    main()
