"""How many episodes a second does one whole training step make, against TRL's GRPOTrainer with tools?

The same warmed-up policy of a million parameters, tokenizer, prompts, calculator, reward and temperature on both
sides, 8 prompts with 8 episodes each; a step samples, runs the tools, rewards and updates. The sides take turns.

What differs: TRL ends an episode after so many tokens in all, Whetstone after so many a turn and so many turns,
both set so that hardly any episode meets them (`sampled_tokens` tells); TRL computes a turn of all episodes before
the next of any. Each side's own defaults stand for the loss's normalisation.

    python benchmarks/end_to_end.py --model FOLDER      the same with a pretrained model that knows the Hermes format
    python benchmarks/end_to_end.py --keep FILE         each step a line; one that was stopped goes on

A pretrained model is one that has ChatML and was warmed up on the calculator (`whetstone export RUN --merged`); it is
computed and trained whole, in what suits it and the machine (TRL's weights are held in that, too, which is quicker than
its mixed precision). Its prompts describe two tools, so that they are long. Each block of a side is a process of its
own then, so that the memory a step takes can be told; `--prompts 2` makes steps a quarter as long.

Needs TRL: pip install -e '.[bench]'
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
from learner import forget_peak, held
from turns import Turns
from whetstone.assembly import Assembly, assemble
from whetstone.assembly.members import learner_for
from whetstone.chat import user
from whetstone.compute_thread import run_in_compute_thread
from whetstone.policies import Policy, in_dtype, load_policy
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.record.store import RunStore
from whetstone.reporting import Progress
from whetstone.tools.arithmetic import calculator, pocket_calculator
from whetstone.training import train
from whetstone.training.reinforcement import Reinforcement
from whetstone.trajectory import Score, Task, Trajectory

PROMPTS, GROUP, TURNS, TURN_TOKENS = 8, 8, 4, 48
PRETRAINED_ROWS = 8
"""Episodes TRL updates from at a time with a pretrained model: all at once would take all memory."""
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
"""Show a conversation as Whetstone does with this format, and know calls and answers as such."""
CHATML = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m['content'] }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    f"{{% for call in m.get('tool_calls') or [] %}}{_CALL}{{% endfor %}}<|im_end|>\n{{% endif %}}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The same for a pretrained model."""
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


def parity_of(text: str) -> float:
    """Cheap, and rarely the same for a whole group, so that both sides always have something to learn."""
    return float(sum(map(ord, text)) % 2)


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """The reward on our side."""
    return Score(parity_of(trajectory.final_text.strip()))


def warmed_up(format: str, folder: Path) -> Path:
    """A policy that calls the tool, as a model folder; one that is there is taken, or gone on with."""
    if not (folder / "summary.json").is_file():
        resolved = load_recipe("demo", [*OVERRIDES, *WARM_UP, f"chat.format={format}"])
        train(resolved, folder, resume=(folder / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None  # training saves one at its end
    return checkpoint


Heard = Callable[[dict[str, float]], None]
"""Told of each step that counts: its seconds, sampled tokens, mean reward, and the most MiB the process held so far;
of ours also the seconds of sampling, and which share of groups earned the same in all episodes."""


class Ours:
    """Whole training steps of Whetstone."""

    def __init__(self, format: str, model: Path, folder: Path, *, prompts: int, pretrained: bool) -> None:
        given = [*OVERRIDES, *(PRETRAINED if pretrained else []), *REINFORCEMENT, f"chat.format={format}"]
        given.append(f"reinforcement.tasks_per_step={prompts}")
        resolved = load_recipe("demo", [*given, f"policy.path={model}"])
        self.resolved, self.folder, self.prompts = resolved, folder, prompts
        self.assembly: Assembly | None = None

    async def block(self, steps: int, warm: int, heard: Heard) -> None:
        """`steps` steps behind `warm` that warm up."""
        settings = self.resolved.recipe.reinforcement
        assert settings is not None
        if self.assembly is None:
            self.assembly = await run_in_compute_thread(assemble, self.resolved)
            learner = await run_in_compute_thread(learner_for, self.assembly, settings, None)
            engine = await run_in_compute_thread(self.assembly.engine)
            store = RunStore(self.folder, groups_per_file=self.prompts)
            self.work = Reinforcement(self.assembly, learner, engine, settings, store=store, base_version=0)
        for step in range(steps + warm):
            began = time.perf_counter()
            metrics = await self.work.step()
            seconds = time.perf_counter() - began
            tokens = metrics["episode/action_tokens"] * self.prompts * GROUP
            if step >= warm:
                told = {"seconds": seconds, "tokens": tokens, "reward": metrics["reward/mean"], "peak": held("VmHWM")}
                # groups whose episodes all earned the same are computed, not differentiated
                heard(told | {"sampling": metrics["time/rollout"], "flat": metrics["group/zero_variance_fraction"]})


class Theirs:
    """Whole training steps of TRL's GRPOTrainer."""

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
        """The warmed-up policy, as TRL wants its tokenizer."""
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
        """The first prompt as TRL shows it."""
        shown = self.policy().tokenizer.apply_chat_template(
            self.prompts[0], add_generation_prompt=True, return_dict=False
        )
        return tuple(shown)

    def block(self, steps: int, warm: int, heard: Heard) -> None:
        """`steps` steps behind `warm` that warm up."""
        import torch
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        policy, episodes = self.policy(), self.episodes

        class Clock(TrainerCallback):  # type: ignore[misc]
            """Seconds from the end of a step to the end of the next."""

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
                    heard({"seconds": seconds, "tokens": tokens, "reward": earned, "peak": held("VmHWM")})
                self.before = time.perf_counter()

        def reward(completions: list[Any], **_: Any) -> list[float]:
            return [parity_of(said[-1].get("content", "").strip()) for said in completions]

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
            with contextlib.redirect_stdout(sys.stderr):  # it prints a summary of its own
                trainer.train()


class Sides:
    """Both sides, with the same policy, prompts and tools.

    Args:
        model: A pretrained model; None: a small one is warmed up.
        kept: Where warmed-up policies are kept, and taken from.
    """

    def __init__(self, format: str, folder: Path, *, prompts: int, model: Path | None, kept: Path | None) -> None:
        warm = (kept or folder) / f"warm-{format}"
        used, pretrained = model if model is not None else warmed_up(format, warm), model is not None
        self.ours = Ours(format, used, folder / "run", prompts=prompts, pretrained=pretrained)
        assembly = assemble(self.ours.resolved)
        specs = assembly.environment().toolset.specs  # type: ignore[attr-defined]
        described, tasks = assembly.chat.format.describe(specs), [assembly.source.task(i) for i in range(64)]
        self.theirs = Theirs(format, used, described, tasks, prompts=prompts, pretrained=pretrained)
        shown = self.theirs.prompt()
        if shown != tuple(assembly.chat.open([user(self.theirs.prompts[0][1]["content"])], specs).ids):
            raise AssertionError("the two sides show different prompts")
        self.prompt_tokens = len(shown)

    async def block(self, side: str, steps: int, warm: int, heard: Heard) -> None:
        """`steps` steps of one behind `warm`."""
        forget_peak()
        if side == "whetstone":
            await self.ours.block(steps, warm, heard)
        else:
            # both multiply in the same thread: with two pools of helpers each would be half as fast
            await run_in_compute_thread(self.theirs.block, steps, warm, heard)


SIDES = ("whetstone", "trl")


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many steps a block of a side has."""

    steps: int
    """That count."""
    warm: int
    """Before them."""


def still_to_do(turns: Turns, blocks: int, lengths: dict[str, Lengths]) -> Iterator[tuple[str, Lengths]]:
    """(side, what is missing of its block), the sides in turn. Looked at when it is asked for."""
    for block in range(1, blocks + 1):
        for side, whole in lengths.items():
            missing = block * whole.steps - len(turns.of(side))
            if missing > 0:
                yield side, replace(whole, steps=min(whole.steps, missing))


async def measure(turns: Turns, sides: Sides, blocks: int, lengths: dict[str, Lengths]) -> None:
    """Both sides, in turn."""
    for side, left in still_to_do(turns, blocks, lengths):
        await sides.block(side, left.steps, left.warm, functools.partial(turns.add, side))


def measure_apart(turns: Turns, blocks: int, lengths: dict[str, Lengths], asked: list[str]) -> None:
    """Both sides in turn, each block a process of its own."""
    for side, left in still_to_do(turns, blocks, lengths):
        words = [sys.executable, __file__, *asked, "--side", side]
        words += ["--steps", str(left.steps), "--warm", str(left.warm)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            turns.add(side, json.loads(line))
        if process.wait():
            sys.exit(f"{side}: its process ended with {process.returncode}")


def _printed(step: dict[str, float]) -> None:
    print(json.dumps(step), file=sys.__stdout__, flush=True)  # TRL's own words go elsewhere


def summed_up(turns: Turns, episodes: int) -> tuple[dict[str, Any], float]:
    """(what was measured, how many times as quick ours is)"""
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
    ours, theirs = (measured[side]["episodes_per_second"][1] for side in SIDES)
    return measured, ours / theirs


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="in each block")
    parser.add_argument("--warm", type=int, default=1, help="steps before those that are measured, in each block")
    parser.add_argument("--trl-steps", type=int, help="as --steps, of TRL alone, whose steps may take minutes")
    parser.add_argument("--trl-warm", type=int, help="as --warm, of TRL alone")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"of a step, each with {GROUP} episodes")
    parser.add_argument("--keep", type=Path, help="where steps are kept, and taken from")
    parser.add_argument("--model", type=Path, help="a folder with a pretrained model that knows the Hermes format")
    parser.add_argument("--warm-ups", type=Path, help="where warmed-up policies are kept, and taken from")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        import trl  # noqa: F401
    except ImportError:
        sys.exit("TRL is not installed: pip install -e '.[bench]'")
    began = time.perf_counter()
    if given.side is not None:
        with tempfile.TemporaryDirectory() as folder:
            sides = Sides("hermes", Path(folder), prompts=given.prompts, model=given.model, kept=None)
            asyncio.run(sides.block(given.side, given.steps, given.warm, _printed))
        return
    measured, ratios = {}, {}
    theirs = [given.trl_steps or given.steps, given.warm if given.trl_warm is None else given.trl_warm]
    lengths = dict(zip(SIDES, (Lengths(given.steps, given.warm), Lengths(*theirs)), strict=True))
    asked = {"compact": "vs_trl", "hermes": "vs_trl_long_prompt"}
    for format, key in asked.items() if given.model is None else [("hermes", "vs_trl_pretrained")]:
        model = str(given.model) if given.model is not None else None
        turns = Turns(given.keep, {"bench": "end-to-end", "format": format, "model": model, "prompts": given.prompts})
        if given.model is not None:
            words = ["--model", str(given.model), "--prompts", str(given.prompts)]
            measure_apart(turns, given.blocks, lengths, words)
        else:
            with tempfile.TemporaryDirectory() as folder:
                sides = Sides(format, Path(folder), prompts=given.prompts, model=None, kept=given.warm_ups)
                asyncio.run(measure(turns, sides, given.blocks, lengths))
        measured[format], ratios[key] = summed_up(turns, given.prompts * GROUP)
        print(f"{format}: {ratios[key]:.2f} times TRL", file=sys.stderr)
    told = {
        "name": "end-to-end",
        "measured": measured,
        "ratios": ratios,
        "goal": "vs_trl 3, vs_trl_long_prompt 5, vs_trl_pretrained 5",
        "bound": "the time the model's own arithmetic takes for the tokens sampled and trained",
        **circumstances(began),
    }
    if given.json:
        print(json.dumps(told))
        return
    for format, of_format in measured.items():
        for side, of in of_format.items():
            low, middle, high = of["episodes_per_second"]
            print(
                f"{format:<8} {side:<10} {middle:6.2f} episodes/s ({low:.2f} to {high:.2f}), "
                f"{of['sampled_tokens']:,.0f} tokens sampled a step, at most {of['peak_mib']:,.0f} MiB held"
            )
    for name, ratio in ratios.items():
        print(f"{name:<20} {ratio:6.2f}")


if __name__ == "__main__":
    main()
