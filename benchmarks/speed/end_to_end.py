"""Throughput of complete training steps in episodes per second, against TRL's GRPOTrainer with tools.

Both sides have the same policy of a million parameters after a warm-up, tokenizer, prompts, calculator, reward and
temperature, with 8 prompts of 8 episodes each. A step samples, runs the tools, computes rewards and updates. The sides
alternate.

Differences: TRL limits the total tokens of an episode, Whetstone the tokens per turn and the number of turns; both
limits are rarely reached (see `sampled_tokens`). TRL computes one turn of all episodes before the next turn of any.
Each side uses its default normalization of the loss.

    python -m benchmarks end_to_end --model FOLDER      the same with a pretrained model that knows the Hermes format
    python -m benchmarks end_to_end --keep FILE         store each step as a line; an interrupted run resumes

A pretrained model must use ChatML and be warmed up on the calculator (`whetstone export RUN --merged`). It is trained
without adapters, in a precision that suits model and machine; TRL's weights have the same precision, which is faster
than its mixed precision. Its prompts describe two tools, so that they are long. Each block of a side then runs in a
separate process, so that peak memory is measured per side; `--prompts 2` makes steps a quarter as long.

Requires TRL: pip install -e '.[bench]'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from learner import read_memory, reset_peak_memory
from turns import Turns
from whetstone.assembly import RunComponents, assemble
from whetstone.assembly.members import learner_for
from whetstone.chat import user
from whetstone.compute_thread import run_in_compute_thread
from whetstone.garbage import collect_seldom
from whetstone.policies import Policy, in_dtype, load_policy
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.record.run_store import RunStore
from whetstone.reporting import Progress
from whetstone.tools.arithmetic_tools import calculator, pocket_calculator
from whetstone.training import train
from whetstone.training.reinforcement import Reinforcement
from whetstone.trajectory import Score, Task, Trajectory

PROMPTS, GROUP, TURNS, TURN_TOKENS = 8, 8, 4, 48
PRETRAINED_ROWS = 8
"""Batch size of TRL's updates with a pretrained model, limited by memory."""
RATE = 1e-5
_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}<|user|>RESULT{{ m['content'] }}/RESULT<|end|>"
    "{% else %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% for call in m.get('tool_calls') or [] %}CALL{% endfor %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# TRL never shows a call of the model's own again, it only asks that a template could
_CALL = "{{ call['function']['name'] }}({{ call['function']['arguments'] | tojson }})"
TEMPLATES = {
    "compact": _TEMPLATE.replace("/RESULT", "</result>").replace("RESULT", "<result>").replace("CALL", _CALL),
    "hermes": _TEMPLATE.replace("/RESULT", "\n</tool_response>")
    .replace("RESULT", "<tool_response>\n")
    .replace("CALL", _CALL),
}
"""Chat template that renders a conversation as Whetstone's format does, and marks calls and results."""
CHATML = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m['content'] }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    f"{{% for call in m.get('tool_calls') or [] %}}{_CALL}{{% endfor %}}<|im_end|>\n{{% endif %}}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Chat template for a pretrained model."""
_CALLS: dict[str, dict[str, Any]] = {
    "compact": {
        "open": "<call>pocket_calculator(",
        "close_pattern": r"\)</call>\s*",
        "content": "text",
        "transform": {
            "type": "function",
            "function": {"name": "pocket_calculator", "arguments": {"expression": "{content}"}},
        },
    },
    "hermes": {
        "open": "<tool_call>",
        "close_pattern": r"</tool_call>\s*",
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
}
OVERRIDES = [
    "ablations=null",
    "reward=end_to_end:parity",
    "policy.tiny={vocab_size: 512, hidden_size: 128, num_layers: 4, num_heads: 4, intermediate_size: 384, "
    "context_length: 512}",
    "tasks.kinds={product_then_sum: 1, sum_then_product: 1}",
    f"environment.max_turns={TURNS}",
    "evaluation.episodes=32",
]
WARM_UP = [
    "supervised.steps=320",
    "reward=exact_number",
    "reinforcement=null",
    "rollout=null",
    "advantage=null",
    "objective=null",
]
PRETRAINED = ["environment.tools=[pocket_calculator, calculator]"]
REINFORCEMENT = [
    "supervised=null",
    "policy.tiny=null",
    f"rollout.max_new_tokens={TURN_TOKENS}",
    f"rollout.group_size={GROUP}",
    "reinforcement.optimizer=adamw",
    "reinforcement.steps=10000",
    f"reinforcement.learning_rate={RATE}",
]


def compute_parity(text: str) -> float:
    """Return a cheap reward that rarely is equal within a group, so that both sides compute gradients."""
    return float(sum(map(ord, text)) % 2)


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """Return the reward for Whetstone."""
    return Score(compute_parity(trajectory.final_text.strip()))


def train_warm_up(format: str, folder: Path) -> Path:
    """Train a policy that calls the tool and return its model folder; an existing run is reused or resumed."""
    if not (folder / "summary.json").is_file():
        resolved = load_recipe("demo", [*OVERRIDES, *WARM_UP, f"chat.format={format}"])
        train(resolved, folder, resume=(folder / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None  # training saves one at its end
    return checkpoint


StepCallback = Callable[[dict[str, float]], None]
"""Callback for each measured step: seconds, sampled tokens, mean reward and peak MiB of the process; for Whetstone
also the seconds of sampling and the fraction of groups with equal rewards."""


class WhetstoneSide:
    """Complete training steps of Whetstone."""

    def __init__(self, format: str, model: Path, folder: Path, *, prompts: int, pretrained: bool) -> None:
        overrides = [*OVERRIDES, *(PRETRAINED if pretrained else []), *REINFORCEMENT, f"chat.format={format}"]
        overrides.append(f"reinforcement.tasks_per_step={prompts}")
        resolved = load_recipe("demo", [*overrides, f"policy.path={model}"])
        self.resolved, self.folder, self.prompts = resolved, folder, prompts
        self.assembly: RunComponents | None = None

    async def block(self, steps: int, warm: int, on_step: StepCallback) -> None:
        """Run `steps` measured steps after `warm` unmeasured ones."""
        settings = self.resolved.recipe.reinforcement
        assert settings is not None
        if self.assembly is None:
            self.assembly = await run_in_compute_thread(assemble, self.resolved)
            learner = await run_in_compute_thread(learner_for, self.assembly, settings, None)
            engine = await run_in_compute_thread(self.assembly.build_engine)
            store = RunStore(self.folder, groups_per_file=self.prompts)
            self.work = Reinforcement(self.assembly, learner, engine, settings, store=store, base_version=0)
        for step in range(steps + warm):
            began = time.perf_counter()
            metrics = await self.work.step()
            seconds = time.perf_counter() - began
            tokens = metrics["episode/action_tokens"] * self.prompts * GROUP
            if step >= warm:
                step_figures = {
                    "seconds": seconds,
                    "tokens": tokens,
                    "reward": metrics["reward/mean"],
                    "peak": read_memory("VmHWM"),
                }
                # groups with equal rewards are computed, but have no gradient
                on_step(
                    step_figures
                    | {"sampling": metrics["time/rollout"], "flat": metrics["group/zero_variance_fraction"]}
                )


class TrlSide:
    """Complete training steps of TRL's GRPOTrainer."""

    def __init__(
        self, format: str, model: Path, described: str, tasks: list[Task], *, prompts: int, pretrained: bool
    ) -> None:
        from datasets import Dataset

        self.format, self.model, self.pretrained, self.episodes = format, model, pretrained, prompts * GROUP
        self.rows_a_pass = PRETRAINED_ROWS if pretrained else self.episodes
        system = {"role": "system", "content": described}
        self.prompts = [[system, {"role": "user", "content": task.prompt}] for task in tasks]
        self.rows = Dataset.from_list([{"prompt": prompt} for prompt in self.prompts])

    def policy(self) -> Policy:
        """Load the policy with the tokenizer settings that TRL requires."""
        policy = load_policy(self.model)
        if self.pretrained:
            model: Any = policy.model
            model.to(in_dtype(model.num_parameters(), "auto", policy.device))
        policy.tokenizer.chat_template = CHATML if self.pretrained else TEMPLATES[self.format]
        begin, end = (
            ("<|im_start|>assistant\n", r"<\|im_end\|>\s*") if self.pretrained else ("<|assistant|>", r"<\|end\|>\s*")
        )
        policy.tokenizer.response_template = {
            "defaults": {"role": "assistant"},
            "start_anchor": begin,
            "fields": {
                "tool_calls": {**_CALLS[self.format], "repeats": True},
                "content": {"close_pattern": end, "content": "text"},
            },
        }
        return policy

    def prompt(self) -> tuple[int, ...]:
        """Return the first prompt as TRL renders it."""
        rendered = self.policy().tokenizer.apply_chat_template(
            self.prompts[0], add_generation_prompt=True, return_dict=False
        )
        return tuple(rendered)

    def block(self, steps: int, warm: int, on_step: StepCallback) -> None:
        """Run `steps` measured steps after `warm` unmeasured ones."""
        import torch
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        policy, episodes = self.policy(), self.episodes

        class Clock(TrainerCallback):  # type: ignore[misc]
            """Callback that measures the seconds between the ends of successive steps."""

            before, done = 0.0, 0

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.before = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                now = time.perf_counter()
                tokens = trainer._metrics["train"]["completions/mean_length"][-1] * episodes
                earned = trainer._metrics["train"]["reward"][-1]
                self.done += 1
                if self.done > warm:
                    seconds = now - self.before
                    on_step({"seconds": seconds, "tokens": tokens, "reward": earned, "peak": read_memory("VmHWM")})
                self.before = time.perf_counter()

        def reward(completions: list[Any], **_: Any) -> list[float]:
            return [compute_parity(completion[-1].get("content", "").strip()) for completion in completions]

        with tempfile.TemporaryDirectory() as folder:
            settings = GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=self.rows_a_pass,
                gradient_accumulation_steps=self.episodes // self.rows_a_pass,
                num_generations=GROUP,
                max_completion_length=TURNS * TURN_TOKENS,
                max_tool_calling_iterations=TURNS - 1,
                temperature=1.0,
                beta=0.0,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                max_steps=steps + warm,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = GRPOTrainer(
                model=policy.model,
                reward_funcs=reward,
                args=settings,
                train_dataset=self.rows,
                processing_class=policy.tokenizer,
                tools=[pocket_calculator, calculator] if self.pretrained else [pocket_calculator],
                callbacks=[Clock()],
            )
            torch.manual_seed(0)
            with contextlib.redirect_stdout(sys.stderr):  # TRL prints its own summary
                trainer.train()


class Sides:
    """Both sides, with the same policy, prompts and tools.

    Args:
        model: A pretrained model; None for a small one with a warm-up.
        kept: Folder of policies after warm-up; existing ones are reused.
    """

    def __init__(
        self, format: str, folder: Path, *, prompts: int, model: Path | None, warm_up_folder: Path | None
    ) -> None:
        warm = (warm_up_folder or folder) / f"warm-{format}"
        used, pretrained = model if model is not None else train_warm_up(format, warm), model is not None
        self.whetstone = WhetstoneSide(format, used, folder / "run", prompts=prompts, pretrained=pretrained)
        assembly = assemble(self.whetstone.resolved)
        specs = assembly.environment().toolset.specs  # type: ignore[attr-defined]
        described, tasks = assembly.chat.format.describe(specs), [assembly.source.task(i) for i in range(64)]
        self.trl = TrlSide(format, used, described, tasks, prompts=prompts, pretrained=pretrained)
        rendered = self.trl.prompt()
        if rendered != tuple(assembly.chat.open([user(self.trl.prompts[0][1]["content"])], specs).ids):
            raise AssertionError("the two sides show different prompts")
        self.prompt_tokens = len(rendered)

    async def block(self, side: str, steps: int, warm: int, on_step: StepCallback) -> None:
        """Run `steps` measured steps of one side after `warm` unmeasured ones."""
        reset_peak_memory()
        if side == "whetstone":
            with collect_seldom():  # as `train` does
                await self.whetstone.block(steps, warm, on_step)
        else:
            # both sides compute in the same thread: two thread pools would halve the speed of each
            await run_in_compute_thread(self.trl.block, steps, warm, on_step)


SIDES = ("whetstone", "trl")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Number of steps in a block of a side."""

    steps: int
    """Measured steps."""
    warm: int
    """Unmeasured steps before them."""


def list_missing_steps(turns: Turns, blocks: int, lengths: dict[str, Lengths]) -> Iterator[tuple[str, Lengths]]:
    """Yield (side, missing steps of its block), alternating; missing steps are counted at each iteration."""
    for block in range(1, blocks + 1):
        for side, length in lengths.items():
            missing = block * length.steps - len(turns.of(side))
            if missing > 0:
                yield side, replace(length, steps=min(length.steps, missing))


async def measure(turns: Turns, sides: Sides, blocks: int, lengths: dict[str, Lengths]) -> None:
    """Measure both sides alternately."""
    for side, left in list_missing_steps(turns, blocks, lengths):
        await sides.block(side, left.steps, left.warm, functools.partial(turns.add, side))


def measure_apart(turns: Turns, blocks: int, lengths: dict[str, Lengths], arguments: list[str]) -> None:
    """Measure both sides alternately, each block in a separate process."""
    for side, left in list_missing_steps(turns, blocks, lengths):
        words = [sys.executable, __file__, *arguments, "--side", side]
        words += ["--steps", str(left.steps), "--warm", str(left.warm)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            turns.add(side, json.loads(line))
        if process.wait():
            sys.exit(f"{side}: its process ended with {process.returncode}")


def _print_step(step: dict[str, float]) -> None:
    print(json.dumps(step), file=sys.__stdout__, flush=True)  # TRL's own output is redirected


def summarize(turns: Turns, episodes: int) -> tuple[dict[str, Any], float]:
    """Return (figures per side, throughput of Whetstone relative to TRL)."""
    measured: dict[str, Any] = {}
    for side in SIDES:
        steps = turns.of(side)
        rates = [episodes / step["seconds"] for step in steps]
        measured[side] = {
            "episodes_per_second": [min(rates), statistics.median(rates), max(rates)],
            "seconds_a_step": [step["seconds"] for step in steps],
            "sampled_tokens": statistics.mean(step["tokens"] for step in steps),
            "reward": statistics.mean(step["reward"] for step in steps),
            "peak_mib": max(step["peak"] for step in steps),
        }
    whetstone, trl = (measured[side]["episodes_per_second"][1] for side in SIDES)
    return measured, whetstone / trl


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="measured steps per block")
    parser.add_argument("--warm", type=int, default=1, help="unmeasured steps before them, per block")
    parser.add_argument("--trl-steps", type=int, help="--steps for TRL, whose steps can take minutes")
    parser.add_argument("--trl-warm", type=int, help="--warm for TRL")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"prompts per step, each with {GROUP} episodes")
    parser.add_argument("--keep", type=Path, help="file of steps; stored ones are reused")
    parser.add_argument("--model", type=Path, help="folder of a pretrained model that knows the Hermes format")
    parser.add_argument("--warm-ups", type=Path, help="folder of policies after warm-up; existing ones are reused")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        import trl  # noqa: F401
    except ImportError:
        sys.exit("TRL is not installed: pip install -e '.[bench]'")
    began = time.perf_counter()
    if arguments.side is not None:
        with tempfile.TemporaryDirectory() as folder:
            sides = Sides("hermes", Path(folder), prompts=arguments.prompts, model=arguments.model, warm_up_folder=None)
            asyncio.run(sides.block(arguments.side, arguments.steps, arguments.warm, _print_step))
        return
    measured, ratios = {}, {}
    trl_lengths = [
        arguments.trl_steps or arguments.steps,
        arguments.warm if arguments.trl_warm is None else arguments.trl_warm,
    ]
    lengths = dict(zip(SIDES, (Lengths(arguments.steps, arguments.warm), Lengths(*trl_lengths)), strict=True))
    ratio_names = {"compact": "vs_trl", "hermes": "vs_trl_long_prompt"}
    for format, key in ratio_names.items() if arguments.model is None else [("hermes", "vs_trl_pretrained")]:
        model = str(arguments.model) if arguments.model is not None else None
        turns = Turns(
            arguments.keep, {"bench": "end-to-end", "format": format, "model": model, "prompts": arguments.prompts}
        )
        if arguments.model is not None:
            words = ["--model", str(arguments.model), "--prompts", str(arguments.prompts)]
            measure_apart(turns, arguments.blocks, lengths, words)
        else:
            with tempfile.TemporaryDirectory() as folder:
                sides = Sides(
                    format, Path(folder), prompts=arguments.prompts, model=None, warm_up_folder=arguments.warm_ups
                )
                asyncio.run(measure(turns, sides, arguments.blocks, lengths))
        measured[format], ratios[key] = summarize(turns, arguments.prompts * GROUP)
        print(f"{format}: {ratios[key]:.2f} times TRL", file=sys.stderr)
    result = {
        "name": "end-to-end",
        "measured": measured,
        "ratios": ratios,
        "goal": "vs_trl 3, vs_trl_long_prompt 5, vs_trl_pretrained 5",
        "bound": "the time the model's own arithmetic takes for the tokens sampled and trained",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for format, of_format in measured.items():
        for side, of in of_format.items():
            low, middle, high = of["episodes_per_second"]
            print(
                f"{format:<8} {side:<10} {middle:6.2f} episodes/s ({low:.2f} to {high:.2f}), "
                f"{of['sampled_tokens']:,.0f} tokens sampled per step, peak memory {of['peak_mib']:,.0f} MiB"
            )
    for name, ratio in ratios.items():
        print(f"{name:<20} {ratio:6.2f}")


if __name__ == "__main__":
    main()
