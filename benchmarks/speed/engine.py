"""Sampling speed of the local engine, against `generate` called per turn and against a bare decode loop.

Three-turn tool episodes: 64 sequences in groups of 8 that share a prompt, a model of a million parameters,
actions of 16 to 48 tokens. `generate` prefills the full conversation at every turn and waits for the longest
action, as batch rollouts do; `vs_generate_equal` is its best case, with 32 tokens per action. The bare loop decodes 64
sequences from a static KV cache without other work. All alternate in one run; ratios are of medians.

    python -m benchmarks engine --model FOLDER      the same episodes with a pretrained model
    python -m benchmarks engine --keep FILE         store each measurement as a line; an interrupted run resumes

A pretrained model is computed in a precision that suits model and machine (`policy.dtype: auto`), or in `--dtype`, by
the engine and by vLLM. With a model, `vs_vllm` is also measured if WHETSTONE_VLLM_PYTHON names an interpreter with
vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache

from circumstances import circumstances
from turns import Turns
from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference import GenerateRequest, LocalEngine, Sampling
from whetstone.policies.precision import Precision, in_dtype
from whetstone.trajectory import TokenSequence

SEQUENCES, GROUP, TURNS = 64, 8, 3
OBSERVED = 16
"""Tokens of the observation after an action."""


def build_model(context: int) -> LlamaForCausalLM:
    """Build a randomly initialized model with 0.9 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def pretrained(folder: str, dtype: Precision) -> Any:
    """Load a pretrained model without end tokens."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.to(in_dtype(model.num_parameters(), dtype, model.device))
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    return model


def prompts(length: int, draw: int) -> list[list[int]]:
    """Return [64] prompts of a length, equal within a group up to the last token, and different in each sample."""
    numbers = torch.Generator().manual_seed(draw)
    shared = [torch.randint(1, 384, (length,), generator=numbers).tolist() for _ in range(SEQUENCES // GROUP)]
    return [[*shared[i // GROUP][:-1], 1 + i] for i in range(SEQUENCES)]


def action_lengths(draw: int, *, equal: bool) -> list[list[int]]:
    """Return the tokens of each action, [turn][sequence], 32 on average."""
    numbers = random.Random(draw)
    return [[32 if equal else numbers.randint(16, 48) for _ in range(SEQUENCES)] for _ in range(TURNS)]


async def with_engine(engine: LocalEngine, length: int, draw: int, lengths: list[list[int]]) -> float:
    """Return the seconds of the engine for all turns of new prompts."""

    async def episode(number: int, ids: list[int]) -> None:
        name = f"{draw}/{number}"
        for turn in range(TURNS):
            sampling = Sampling(lengths[turn][number], seed=10 * number + turn)
            sampled = await engine.generate(GenerateRequest(TokenSequence(ids), sampling, name))
            ids = [*ids, *sampled.tokens, *range(2, 2 + OBSERVED)]
        engine.forget(name)

    began = time.perf_counter()
    await asyncio.gather(*(episode(i, ids) for i, ids in enumerate(prompts(length, draw))))
    return time.perf_counter() - began


@torch.inference_mode()
def with_generate(model: LlamaForCausalLM, length: int, draw: int, lengths: list[list[int]]) -> float:
    """Return the seconds of `generate`, with the full conversation per turn, padded on the left."""
    rows = prompts(length, draw)
    began = time.perf_counter()
    for turn in range(TURNS):
        width, longest = max(map(len, rows)), max(lengths[turn])
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        sampled = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=longest, min_new_tokens=longest
        )[:, width:].tolist()
        rows = [
            [*row, *tokens[:count], *range(2, 2 + OBSERVED)]
            for row, tokens, count in zip(rows, sampled, lengths[turn], strict=True)
        ]
    return time.perf_counter() - began


@torch.inference_mode()
def bare_decoding(model: LlamaForCausalLM, length: int, steps: int) -> float:
    """Return the seconds of `steps` bare decode steps of 64 sequences after the prompt."""
    cache = StaticCache(config=model.config, max_cache_len=length + steps)
    ids = torch.tensor(prompts(length, 0))
    logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    began = time.perf_counter()
    for _ in range(steps):
        distribution = torch.log_softmax(logits.float(), -1)
        tokens = torch.multinomial(distribution.exp(), 1)
        distribution.gather(1, tokens).squeeze(1).tolist()
        tokens.squeeze(1).tolist()
        logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return time.perf_counter() - began


def engine_decoding(model: LlamaForCausalLM, context: int, length: int, steps: int) -> float:
    """Return the seconds of the engine for the same decode steps, from the first token of all sequences to the last."""

    async def main() -> float:
        engine = LocalEngine(model, context_length=context, rows=SEQUENCES)

        async def sample_all(count: int) -> None:
            await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(TokenSequence(ids), Sampling(count, seed=i), str(i)))
                    for i, ids in enumerate(prompts(length, 0))
                )
            )

        await sample_all(1)  # prefills the prompts; the next call computes one of their tokens again
        began = time.perf_counter()
        await sample_all(steps)
        seconds = time.perf_counter() - began
        await engine.close()
        return seconds

    return asyncio.run(main())


def second_turn(model: LlamaForCausalLM, context: int, length: int, new: int) -> float:
    """Return the seconds of the second turn of one sequence, with `new` new tokens after a prompt."""

    async def main() -> float:
        engine = LocalEngine(model, context_length=context, rows=4)
        ids = prompts(length, 0)[0]
        sampled = await engine.generate(GenerateRequest(TokenSequence(ids), Sampling(1), "a"))
        ids = [*ids, *sampled.tokens, *[3 + i % 300 for i in range(new)]]
        began = time.perf_counter()
        await engine.generate(GenerateRequest(TokenSequence(ids), Sampling(1), "a"))
        seconds = time.perf_counter() - began
        await engine.close()
        return seconds

    return asyncio.run(main())


class Vllm:
    """vLLM in a separate interpreter, with the same episodes.

    Its workers wait in busy loops, so they are stopped while other engines are measured.

    Args:
        python: The interpreter.
        folder: The model.
        context: Context length in tokens.
        dtype: Data type of the computation.
    """

    def __init__(self, python: str, folder: str, context: int, dtype: str) -> None:
        # vLLM reserves one core by default
        cores = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}", "VLLM_CPU_KVCACHE_SPACE": "2"}
        command = [python, str(Path(__file__).with_name("vllm_episodes.py")), folder, str(context), dtype]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **cores},
            start_new_session=True,
        )
        self._answer()
        os.killpg(self._process.pid, signal.SIGSTOP)

    def seconds(self, length: int, draw: int, lengths: list[list[int]]) -> float:
        """Return the seconds for all turns."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        request = {"prompts": prompts(length, draw), "lengths": lengths, "observed": OBSERVED, "draw": draw}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        elapsed = float(self._answer())
        os.killpg(self._process.pid, signal.SIGSTOP)
        return elapsed

    def close(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # other lines are log messages
            if line.startswith("seconds "):
                return line.removeprefix("seconds ")
        sys.exit("vLLM ended")


async def against_generate(
    turns: Turns,
    case: str,
    length: int,
    repeats: int,
    *,
    equal: bool,
    model: Any = None,
    vllm: Vllm | None = None,
    generate_repeats: int,
) -> None:
    """Measure tokens per second of engine, `generate` and vLLM alternately; `generate`, the slowest, less often."""
    done = len(turns.of(f"engine{case}"))
    if done >= repeats and len(turns.of(f"generate{case}")) >= generate_repeats:
        return
    context = length + TURNS * (48 + OBSERVED) + 16
    model = model or build_model(context)
    engine = LocalEngine(model, context_length=context, rows=SEQUENCES)
    await with_engine(engine, length, 0, [[4] * SEQUENCES] * TURNS)  # warms up
    if vllm is not None:
        vllm.seconds(length, 0, [[4] * SEQUENCES] * TURNS)
    for draw in range(1, max(repeats, generate_repeats) + 1):
        lengths = action_lengths(draw, equal=equal)
        tokens = sum(map(sum, lengths))
        if len(turns.of(f"engine{case}")) < draw <= repeats:
            turns.add(f"engine{case}", tokens / await with_engine(engine, length, draw, lengths))
            if vllm is not None:
                turns.add(f"vllm{case}", tokens / vllm.seconds(length, draw, lengths))
        if len(turns.of(f"generate{case}")) < draw <= generate_repeats:
            # both compute in the same thread: two thread pools would halve the speed of each
            seconds = await run_in_compute_thread(with_generate, model, length, draw, lengths)
            turns.add(f"generate{case}", tokens / seconds)
    await engine.close()


def against_bare_loop(turns: Turns, model: Any, repeats: int, steps: int) -> None:
    """Measure tokens per second of decoding only, alternately."""
    for _ in range(len(turns.of("bare_loop")), repeats):
        turns.add("engine_decoding", SEQUENCES * steps / engine_decoding(model, 250 + 2 * steps, 250, steps))
        bare = asyncio.run(run_in_compute_thread(bare_decoding, model, 250, steps))
        turns.add("bare_loop", SEQUENCES * steps / bare)


def with_pretrained(
    folder: str, repeats: int, generate_repeats: int, bare_repeats: int, dtype: Precision, keep: Path | None
) -> dict[str, Any]:
    """Measure episodes with prompts of 250 tokens, and decoding only."""
    model = pretrained(folder, dtype)
    computed_in = str(model.dtype).removeprefix("torch.")
    turns = Turns(keep, {"bench": "engine", "model": folder, "dtype": computed_in, "threads": torch.get_num_threads()})
    python = os.environ.get("WHETSTONE_VLLM_PYTHON")
    missing = len(turns.of("engine")) < repeats
    vllm = Vllm(python, folder, 512, computed_in) if python is not None and missing else None
    playing = against_generate(
        turns, "", 250, repeats, equal=False, model=model, vllm=vllm, generate_repeats=generate_repeats
    )
    asyncio.run(playing)
    if vllm is not None:
        vllm.close()
    against_bare_loop(turns, model, bare_repeats, 32)
    sides = {"vs_vllm": ("engine", "vllm"), "vs_generate": ("engine", "generate")}
    sides["vs_bare_loop"] = ("engine_decoding", "bare_loop")
    ratios = {name: ratio for name, pair in sides.items() if (ratio := turns.ratio(*pair)) is not None}
    name = f"engine, a pretrained model in {computed_in}"
    return {"name": name, "measured": turns.spans(), "ratios": ratios, "goal": "vs_generate 4, vs_vllm 1"}


def with_small(repeats: int, keep: Path | None) -> dict[str, Any]:
    """Measure the model of a million parameters: episodes with several prompt lengths, decoding, and second turns."""
    turns = Turns(keep, {"bench": "engine", "model": None, "threads": torch.get_num_threads()})
    ratios: dict[str, float] = {}
    cases = {"vs_generate": (250, False), "vs_generate_32": (32, False), "vs_generate_1000": (1000, False)}
    cases |= {"vs_generate_equal": (250, True)}
    for key, (length, equal) in cases.items():
        case = key.removeprefix("vs_generate")
        asyncio.run(against_generate(turns, case, length, repeats, equal=equal, generate_repeats=repeats))
        ratios[key] = turns.ratio(f"engine{case}", f"generate{case}") or math.nan
        print(f"prompt of {length}: {ratios[key]:.1f} times generate", file=sys.stderr)
    steps = 128
    against_bare_loop(turns, build_model(250 + 2 * steps), repeats, steps)
    ratios["vs_bare_loop"] = turns.ratio("engine_decoding", "bare_loop") or math.nan
    print(f"decoding: {ratios['vs_bare_loop']:.2f} of the bare loop", file=sys.stderr)
    model = build_model(4096)
    line = {}
    for new in (1, 64, 256, 1024):
        line[new] = 1000 * statistics.median(second_turn(model, 4096, 1000, new) for _ in range(repeats))
    return {
        "name": "engine",
        "measured": {**turns.spans(), "second_turn_milliseconds_by_new_tokens": line},
        "ratios": ratios,
        "goal": "vs_generate 4 (250-token prompt) and 8 (1,000), vs_bare_loop 0.8",
        "bound": "the bare loop: the same model's forward pass and one draw, nothing else",
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="file of measurements; stored ones are reused")
    parser.add_argument("--model", help="folder of a pretrained model")
    parser.add_argument("--dtype", default="auto", choices=get_args(Precision), help="data type of a pretrained model")
    parser.add_argument(
        "--generate-repeats", type=int, default=5, help="measurements of `generate` with a pretrained model"
    )
    parser.add_argument(
        "--bare-repeats", type=int, default=5, help="measurements of the bare loop with a pretrained model"
    )
    arguments = parser.parse_args()
    began = time.perf_counter()
    result = (
        with_small(arguments.repeats, arguments.keep)
        if arguments.model is None
        else with_pretrained(
            arguments.model,
            arguments.repeats,
            arguments.generate_repeats,
            arguments.bare_repeats,
            arguments.dtype,
            arguments.keep,
        )
    )
    if arguments.json:
        print(json.dumps({**result, **circumstances(began)}))
        return
    measured = result["measured"]
    for name, (low, middle, high) in ((n, v) for n, v in measured.items() if isinstance(v, list)):
        print(f"{name:<28} tokens/s {middle:9,.1f}  ({low:,.1f} to {high:,.1f})")
    for name, ratio in result["ratios"].items():
        print(f"{name:<36}  {ratio:9.2f}")
    for new, milliseconds in measured.get("second_turn_milliseconds_by_new_tokens", {}).items():
        print(f"second turn, {new:>4} new tokens after 1,000: {milliseconds:7.1f} ms")


if __name__ == "__main__":
    main()
