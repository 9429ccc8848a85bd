"""Speed and memory of an update, against a padded Transformers step without shared prefixes.

Tool episodes in groups of 8: 250 prompt tokens that the group shares, then 25 to 65 tokens per episode, actions and
observations alternating. The reference is a plain Transformers step: sequences padded to the longest, logits only for
positions after the prompt, the same loss, clipping and AdamW, with the fastest of several batch sizes. Forked trees of
depth 4 are trained as trees and as the flat list of their branches. The gradients of both sides are compared.

    python -m benchmarks learner --model FOLDER      the same with a pretrained model, without adapters
    python -m benchmarks learner --keep FILE         store each measurement as a line; an interrupted run resumes
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


def vocabulary_size(size: str) -> int:
    """Return the vocabulary size of a model size, or of the model in a folder."""
    return int(SIZES[size]["vocab_size"] if size in SIZES else AutoConfig.from_pretrained(size).vocab_size)


def build_model(size: str) -> Any:
    """Build a model of a size with fixed random weights, or load the model in a folder, in float32."""
    if size not in SIZES:
        return AutoModelForCausalLM.from_pretrained(size, dtype=torch.float32)
    torch.manual_seed(0)
    heads = HEADS[size]
    shape = SIZES[size]
    config = LlamaConfig(
        **shape, num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=True, pad_token_id=0
    )
    return LlamaForCausalLM(config)


def build_segment(ids: Sequence[int], mask: Sequence[bool], advantage: float) -> Segment:
    """Build a segment as a rollout returns it, with constant log-probs."""
    n = len(ids)
    tokens = Tokens(tuple(ids), (Author.POLICY,) * n, (-1.0,) * n, (0,) * n, (math.nan,) * n)
    return Segment("t", 0, tokens, tuple(mask), (0,) * n, tuple(advantage * m for m in mask))


def sample_turns(numbers: random.Random, vocabulary: int, length: int) -> tuple[list[int], list[bool]]:
    """Return actions of about 12 tokens, each but the last followed by an observation of about 6."""
    ids: list[int] = []
    mask: list[bool] = []
    while len(ids) < length:
        for trained, count in ((True, numbers.randint(8, 16)), (False, numbers.randint(4, 8))):
            ids += [numbers.randrange(vocabulary) for _ in range(count)]
            mask += [trained] * count
    mask = mask[:length]
    mask[-4:] = [True] * 4
    return ids[:length], mask


def build_groups(size: str, count: int) -> list[Segment]:
    """Build episodes in groups that share a prompt."""
    numbers, vocabulary = random.Random(0), vocabulary_size(size)
    segments = []
    for _ in range(count):
        prompt = [numbers.randrange(vocabulary) for _ in range(PROMPT)]
        for k in range(GROUP):
            ids, mask = sample_turns(numbers, vocabulary, numbers.randint(25, 65))
            segments.append(build_segment([*prompt, *ids], [False] * PROMPT + mask, 1.0 - 2 * k / (GROUP - 1)))
    return segments


def build_forks(size: str, count: int, *, prompt: int = 100, turn: int = 45, depth: int = 4) -> list[Segment]:
    """Build binary trees of turns: 16 branches of four turns after a prompt."""
    numbers, vocabulary = random.Random(1), vocabulary_size(size)
    segments = []
    for _ in range(count):
        level = [([numbers.randrange(vocabulary) for _ in range(prompt)], [False] * prompt)]
        for _ in range(depth):
            level = [
                (ids + more, mask + trained)
                for ids, mask in level
                for more, trained in (sample_turns(numbers, vocabulary, turn) for _ in range(2))
            ]
        segments += [build_segment(ids, mask, 1.0 - 2 * k / (len(level) - 1)) for k, (ids, mask) in enumerate(level)]
    return segments


class Padded:
    """Reference: one optimizer step on padded sequences."""

    def __init__(self, model: Any, rows: int, *, computes_all_logits: bool = False) -> None:
        self.model, self.rows, self.computes_all_logits = model.train(), rows, computes_all_logits
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=SETTINGS.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def gradient(self, segments: Sequence[Segment]) -> None:
        """Accumulate the gradient of all sequences in micro-batches."""
        divisor = sum(sum(s.action_mask[1:]) for s in segments)
        for begin in range(0, len(segments), self.rows):
            chosen = segments[begin : begin + self.rows]
            width = max(map(len, chosen))
            ids = torch.tensor([[*s.tokens.ids, *[0] * (width - len(s))] for s in chosen])
            attention_mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in chosen])
            mask = torch.tensor([[*s.action_mask, *[False] * (width - len(s))] for s in chosen])
            credit = torch.tensor([[*(s.advantages or ()), *[0.0] * (width - len(s))] for s in chosen])
            num_logits = width if self.computes_all_logits else width - int(mask.any(0).nonzero()[0]) + 1
            logits = self.model(ids, attention_mask=attention_mask, use_cache=False, logits_to_keep=num_logits).logits
            logp = torch.log_softmax(logits[:, :-1].float(), -1)
            num_logits -= 1
            chosen_logp = logp.gather(2, ids[:, -num_logits:].unsqueeze(2)).squeeze(2)
            per_token = clipped(chosen_logp, chosen_logp.detach(), credit[:, -num_logits:]).loss
            ((per_token * mask[:, -num_logits:]).sum() / divisor).backward()  # type: ignore[no-untyped-call]

    def step(self, segments: Sequence[Segment]) -> None:
        """Run one update."""
        self.gradient(segments)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class GradientPasses(LocalPasses):
    """Forward passes that keep the gradient instead of applying it."""

    def apply(self) -> dict[str, float]:
        """See `ForwardPasses.apply`."""
        return {}


def surrogate(outputs: Any, micro: Any) -> Any:
    """Return the clipped surrogate at ratio 1."""
    return clipped(outputs.logprobs, outputs.logprobs.detach(), micro.advantages)


def build_learner(size: str, kind: type[LocalPasses] = LocalPasses, *, share: bool = True) -> ModelTrainer:
    """Build a learner in a precision that suits model and machine."""
    policy = cast_policy(Policy(build_model(size), None), "auto")
    settings = SETTINGS.model_copy(update={"prefix_sharing": share})
    return ModelTrainer(policy, settings, passes=kind(policy, settings))


def build_reference(size: str, rows: int, *, computes_all_logits: bool = False) -> Padded:
    """Build the reference with computation and weights in the same precision."""
    model = build_model(size)
    return Padded(
        model.to(in_dtype(model.num_parameters(), "auto", model.device)), rows, computes_all_logits=computes_all_logits
    )


def measure_seconds(action: Callable[[], Any]) -> float:
    """Return the seconds of an action."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure_alternately(
    sample_turns: Turns, actions: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Measure actions alternately, so that noise affects all; return sorted seconds, including stored ones."""
    missing = [name for name in actions if len(sample_turns.of(name)) < repeats]
    for name in missing:
        actions[name]()  # warm-up
    for turn in range(repeats):
        for name in missing:
            if len(sample_turns.of(name)) <= turn:
                sample_turns.add(name, measure_seconds(actions[name]))
    return {name: sorted(sample_turns.of(name)) for name in actions}


def compare_gradients(size: str, segments: Sequence[Segment]) -> float:
    """Return the difference of both gradients, relative to their norm."""
    learner, reference = build_learner(size, GradientPasses), build_reference(size, 8)
    learner.step(segments, surrogate)
    reference.gradient(segments)
    pairs = list(zip(learner.policy.model.parameters(), reference.model.parameters(), strict=True))
    distance = math.sqrt(sum((a.grad - b.grad).norm().item() ** 2 for a, b in pairs))
    return distance / math.sqrt(sum(b.grad.norm().item() ** 2 for _, b in pairs))


def find_fastest_batch(sample_turns: Turns, size: str, segments: Sequence[Segment]) -> int:
    """Return the batch size with which the reference is fastest."""
    peers = {f"{rows} rows": build_reference(size, rows) for rows in PEER_ROWS.get(size, (4, 8))}
    steps = {name: functools.partial(peer.step, segments) for name, peer in peers.items()}
    timed = measure_alternately(sample_turns, steps, 2 if size in SIZES else 1)
    return int(min(timed, key=lambda name: timed[name][0]).split()[0])


def compare_sides(
    sample_turns: Turns, size: str, repeats: int, *, forked: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return (figures, ratios) for a model size."""
    segments = build_groups(size, GROUPS.get(size, 2))
    rows = find_fastest_batch(sample_turns, size, segments)
    learner, peer = build_learner(size), build_reference(size, rows)
    sides = {"ours": lambda: learner.step(segments, surrogate), "padded": lambda: peer.step(segments)}
    timed = measure_alternately(sample_turns, sides, repeats)
    metrics = learner.step(segments, surrogate)
    measured = {
        "parameters": sum(p.numel() for p in peer.model.parameters()),
        "peer_rows": rows,
        "tokens_per_second": {name: rates(segments, values) for name, values in timed.items()},
        "shared_fraction": metrics["update/shared_fraction"],
        "flops_utilisation": metrics["throughput/mfu"],
    }
    ratios = {"vs_padded": statistics.median(timed["padded"]) / statistics.median(timed["ours"])}
    measured["gradients_apart"] = compare_gradients(size, segments)
    if forked:
        trees = build_forks(size, 4 if size == "1m" else 1)
        tree, flat = build_learner(size), build_learner(size, share=False)
        sides = {"tree": lambda: tree.step(trees, surrogate), "flat": lambda: flat.step(trees, surrogate)}
        timed = measure_alternately(sample_turns, sides, repeats)
        measured["forked_tokens_per_second"] = {name: rates(trees, values) for name, values in timed.items()}
        ratios["tree_vs_flat"] = statistics.median(timed["flat"]) / statistics.median(timed["tree"])
    return measured, ratios


def rates(segments: Sequence[Segment], values: Sequence[float]) -> list[float]:
    """Return tokens of the segments per second: lowest, median, highest."""
    tokens = sum(map(len, segments))
    return [tokens / s for s in (values[-1], statistics.median(values), values[0])]


def measure_memory(size: str, side: str) -> dict[str, float]:
    """Return the memory of a process before a step, and its peak, in MiB."""
    segments = build_groups(size, 2)
    if side == "ours":
        run: Callable[[], object] = functools.partial(build_learner(size).step, segments, surrogate)
    else:
        run = functools.partial(build_reference(size, 8, computes_all_logits=side == "padded_whole").step, segments)
    reset_peak_memory()
    before = read_memory("VmRSS")
    run()
    return {"before": before, "peak": read_memory("VmHWM")}


def reset_peak_memory() -> None:
    """Reset the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def read_memory(what: str) -> float:
    """Return the memory of this process (VmRSS) or its peak (VmHWM), in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", help="folder of a pretrained model")
    parser.add_argument("--keep", type=Path, help="file of measurements; stored ones are reused")
    parser.add_argument("--without-forks", action="store_true", help="skip trees")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(measure_memory(arguments.model or "20m", arguments.memory_of)))
        return
    began = time.perf_counter()
    measured: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for size in SIZES if arguments.model is None else (arguments.model,):
        suffix = "" if size in ("1m", arguments.model) else f"_{size}"
        sample_turns = Turns(arguments.keep, {"bench": "learner", "size": size, "threads": torch.get_num_threads()})
        measured[size], of_size = compare_sides(
            sample_turns, size, arguments.repeats, forked=not arguments.without_forks
        )
        ratios |= {f"{name}{suffix}": ratio for name, ratio in of_size.items()}
        figures = ", ".join(f"{name} {ratio:.2f}" for name, ratio in of_size.items())
        print(f"{size}: {figures}, difference of gradients {measured[size]['gradients_apart']:.1e}", file=sys.stderr)
    for side in ("ours", "padded", "padded_whole"):
        command = [sys.executable, __file__, "--memory-of", side]
        command += [] if arguments.model is None else ["--model", arguments.model]
        measured.setdefault("memory_mib", {})[side] = json.loads(subprocess.check_output(command))
    step_memory = {name: of["peak"] - of["before"] for name, of in measured["memory_mib"].items()}
    ratios["memory"] = step_memory["padded"] / step_memory["ours"]
    ratios["memory_whole"] = step_memory["padded_whole"] / step_memory["ours"]
    print(f"memory of a step: {ratios['memory']:.2f} times less", file=sys.stderr)
    result = {
        "name": "learner",
        "measured": measured,
        "ratios": ratios,
        "goal": "vs_padded 3, tree_vs_flat 2",
        "bound": "the tokens saved: 3.9 times in groups, 3.1 times in trees",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for size in (size for size in measured if size != "memory_mib"):
        for kind in ("tokens_per_second", "forked_tokens_per_second"):
            if kind not in measured[size]:
                continue
            for name, (low, middle, high) in measured[size][kind].items():
                print(f"{size:<4} {name:<10} {kind:<26} {middle:9,.0f}  ({low:,.0f} to {high:,.0f})")
    for name, of in measured["memory_mib"].items():
        step_memory, held_before = of["peak"] - of["before"], of["before"]
        print(f"{arguments.model or '20m'}  {name:<14} a step needs {step_memory:7,.0f} MiB over {held_before:,.0f}")
    for name, ratio in ratios.items():
        print(f"{name:<24} {ratio:7.2f}")


if __name__ == "__main__":
    main()
