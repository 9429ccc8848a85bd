"""QLoRA next to LoRA: memory, log-probs, and agreement of engine and learner.

    python -m benchmarks qlora [--model MODEL] [--page FILE] [--json]
    python -m benchmarks qlora --success FOLDER    train both, and compare their success on held-out tasks

Each policy is measured in its own process: memory of its weights and optimizer, the largest resident memory while
sampling and training, log-probs of sampled tokens in engine and learner, and the difference of its log-probs to those
of the unquantized model. The goal is that engine and learner agree as closely with 4-bit weights as without.

`--success` trains the supervised stage of the recipe `smollm2-tools` with each, and evaluates both greedily on the same
tasks. FOLDER has one run per policy; an interrupted run continues, and a finished one is not repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

TEXT = (
    "A laptop trains a small language model on tool calls. The model reads the question, calls the calculator, reads "
    "its result, and answers. After each step the weights change a little, and the next episode is sampled from them."
)
NEW_TOKENS, STEPS = 32, 2
TASKS = 60
"""Held-out tasks of `--success`."""


def measure(model: str, quantization: str | None) -> dict[str, Any]:
    """Measure one policy in this process."""
    import psutil

    from whetstone.algorithms import LossTerm, TokenLoss
    from whetstone.inference import ENGINES, GenerateRequest, Sampling
    from whetstone.learning.losses import POLICY, UpdateLoss
    from whetstone.learning.model_trainer import ModelTrainer
    from whetstone.policies import add_adapters, cast_policy, load_policy, quantize_linears
    from whetstone.recipe import OptimizerSettings
    from whetstone.serving.tinker.training_client import _segment
    from whetstone.trajectory import TokenSequence

    torch.set_num_threads(1)
    policy = load_policy(model, as_stored=True)
    if quantization is not None:
        quantize_linears(policy.model)
    add_adapters(policy.model, rank=16, alpha=32.0, target_modules="all-linear", dora=False, seed=0)
    policy = cast_policy(policy, "float32")
    tensors = {id(t): t for t in (*policy.model.parameters(), *policy.model.buffers())}.values()
    ids = policy.tokenizer.encode(TEXT)
    engine = ENGINES["local"](policy=policy, max_sequences=4)

    async def run() -> Any:
        generation = await engine.generate(GenerateRequest(TokenSequence(ids), Sampling(NEW_TOKENS, seed=1), "one"))
        scored = await engine.score(TokenSequence(ids))
        return generation, scored.logprobs

    began = time.perf_counter()
    generation, logprobs = asyncio.run(run())
    sampled = time.perf_counter() - began
    sequence = [*ids, *generation.tokens]
    with torch.no_grad():
        rows = torch.log_softmax(policy.model(torch.tensor([sequence])).logits[0].float(), -1)
    own = rows[torch.arange(len(sequence) - 1), torch.tensor(sequence[1:])][len(ids) - 1 :]
    mismatch = (own - torch.tensor(generation.logprobs)).abs().max().item()
    trainer = ModelTrainer(policy, OptimizerSettings(learning_rate=1e-3, warmup_fraction=0))

    def likelihood(learner_logprobs: Any, old_logprobs: Any, credit: Any) -> TokenLoss:
        return TokenLoss(-learner_logprobs, {})

    began = time.perf_counter()
    columns = {"credit": [torch.ones(len(sequence) - 1)]}
    for _ in range(STEPS):
        loss = UpdateLoss([LossTerm(POLICY, likelihood, 1.0)], old=[torch.zeros(len(sequence) - 1)], columns=columns)
        trainer.step([_segment(sequence, 0)], loss, divisor=len(sequence) - 1)
    peak = getattr(psutil.Process().memory_info(), "rss", 0)
    return {
        "weights_mib": sum(t.numel() * t.element_size() for t in tensors) / 2**20,
        "resident_mib": peak / 2**20,
        "sampling_seconds": sampled,
        "step_seconds": (time.perf_counter() - began) / STEPS,
        "mismatch": mismatch,
        "logprobs": list(logprobs),
    }


def train_both(folder: Path, model: str, changes: Sequence[str]) -> str:
    """Train and evaluate both policies, and return the comparison as a table."""
    from whetstone.recipe import load_recipe
    from whetstone.reporting import Progress
    from whetstone.training import train

    unused = [f"{key}=null" for key in ("reinforcement", "advantage", "objective", "rollout.group_size")]
    lines = ["| | untrained | after the supervised stage |", "| --- | --- | --- |"]
    for name, title in (("lora", "LoRA"), ("nf4", "QLoRA (nf4)")):
        quantized = ["policy.lora.quantization=nf4"] if name == "nf4" else []
        overrides = [*unused, f"policy.path={model}", f"evaluation.episodes={TASKS}", *quantized, *changes]
        run_dir = folder / name
        resume = (run_dir / "recipe.yaml").is_file()
        run = train(load_recipe("smollm2-tools", overrides), run_dir, resume=resume, progress=Progress(quiet=True))
        cells = [
            f"{100 * each.success:.1f} % ({100 * each.interval[0]:.1f} to {100 * each.interval[1]:.1f})"
            for each in (run.evaluations[stage] for stage in ("untrained", "supervised"))
        ]
        lines.append(
            f"| greedy success, {run.evaluations['supervised'].episodes} tasks, {title} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure both policies and print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="folder or name of a model [smollm2-135m]")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the comparison as a result page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--success", type=Path, metavar="FOLDER", help="train both policies, in this folder")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="recipe keys of --success that differ")
    parser.add_argument("--one", choices=["lora", "nf4"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.success is not None:
        print(train_both(options.success, options.model, options.changes))
        return
    if options.one:
        print(json.dumps(measure(options.model, options.one if options.one == "nf4" else None)))
        return
    began = time.perf_counter()
    results = {}
    for name in ("lora", "nf4"):
        words = [sys.executable, "-m", "benchmarks", "qlora", "--model", options.model, "--one", name]
        process = subprocess.run(words, capture_output=True, text=True)
        if process.returncode:
            sys.exit(f"qlora: {process.stderr.strip().splitlines()[-1] if process.stderr.strip() else 'failed'}")
        results[name] = json.loads(process.stdout.splitlines()[-1])
    lora, nf4 = results["lora"], results["nf4"]
    pairs = list(zip(lora.pop("logprobs"), nf4.pop("logprobs"), strict=True))
    differences = [abs(a - b) for a, b in pairs]
    means = [sum(each) / len(pairs) for each in zip(*pairs, strict=True)]
    measured = {
        **{f"{name}_{key}": value for name, values in results.items() for key, value in values.items()},
        "logprob_difference_mean": sum(differences) / len(differences),
        "logprob_difference_max": max(differences),
        "lora_mean_logprob": means[0],
        "nf4_mean_logprob": means[1],
    }
    result: dict[str, Any] = {
        "name": "qlora",
        "measured": measured,
        "ratios": {
            "weights": lora["weights_mib"] / nf4["weights_mib"],
            "resident": lora["resident_mib"] / nf4["resident_mib"],
            "step_time": lora["step_seconds"] / nf4["step_seconds"],
        },
        "goal": "engine and learner agree to 1e-4",
        "bound": None,
        "machine": f"{platform.processor() or platform.machine()}, PyTorch {torch.__version__}, 1 thread",
        "seconds": time.perf_counter() - began,
    }
    page = write_page(options.model, result, lora, nf4)
    if options.page is not None:
        options.page.write_text(page, encoding="utf-8")
    print(json.dumps(result) if options.json else page)
    sys.exit(max(lora["mismatch"], nf4["mismatch"]) > 1e-4)


def write_page(model: str, result: dict[str, Any], lora: dict[str, float], nf4: dict[str, float]) -> str:
    """Return the result page."""
    measured = result["measured"]
    means = measured["lora_mean_logprob"], measured["nf4_mean_logprob"]
    rows = [
        ("memory of weights and adapters, MiB", "weights_mib", ".0f"),
        ("resident memory of the process after training, MiB", "resident_mib", ".0f"),
        ("largest difference of log-probs, engine to learner", "mismatch", ".1e"),
    ]
    lines = ["# QLoRA next to LoRA", ""]
    lines += [f"`python -m benchmarks qlora --model {Path(model).name}`: rank 16, float32; {result['machine']}.", ""]
    lines += ["| | LoRA | QLoRA (nf4) |", "| --- | --- | --- |"]
    lines += [f"| {title} | {lora[key]:{form}} | {nf4[key]:{form}} |" for title, key, form in rows]
    lines += [
        f"| mean log-prob of an English text | {means[0]:.3f} | {means[1]:.3f} |",
        "",
        f"The log-probs of a token differ by {measured['logprob_difference_mean']:.2f} on average and by "
        f"{measured['logprob_difference_max']:.2f} at most between the unquantized and the 4-bit model.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
