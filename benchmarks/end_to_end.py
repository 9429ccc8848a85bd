"""How many episodes a second does one whole training step make, against TRL's GRPOTrainer with tools?

The same warmed-up policy of a million parameters, tokenizer, prompts, calculator, reward and temperature on both
sides, 8 prompts with 8 episodes each; a step samples, runs the tools, rewards and updates. The sides take turns.

What differs: TRL ends an episode after so many tokens in all, Whetstone after so many a turn and so many turns,
both set so that hardly any episode meets them (`sampled_tokens` tells); TRL computes a turn of all episodes before
the next of any. Each side's own defaults stand for the loss's normalisation.

    python benchmarks/end_to_end.py --model FOLDER      the same with a pretrained model that knows the Hermes format

A pretrained model is one that has ChatML and was warmed up on the calculator (`whetstone export RUN --merged`); it is
computed and trained whole, in what suits it and the machine. Its prompts describe two tools, so that they are long.

Needs TRL: pip install -e '.[bench]'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.assembly import Assembly, assemble
from whetstone.assembly.auxiliary_models import learner_for
from whetstone.chat import user
from whetstone.compute_thread import run_in_compute_thread
from whetstone.policies import Policy, load_policy
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
    "policy.tiny={vocabulary: 512, hidden: 128, layers: 4, heads: 4, intermediate: 384, context_length: 512}",
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
    f"reinforcement.tasks_per_step={PROMPTS}",
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
    """A policy that calls the tool, as a model folder; one that is there is taken."""
    if not (folder / "summary.json").is_file():
        resolved = load_recipe("demo", [*OVERRIDES, *WARM_UP, f"chat.format={format}"])
        train(resolved, folder, progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None  # training saves one at its end
    return checkpoint


class Ours:
    """Whole training steps of Whetstone."""

    def __init__(self, format: str, model: Path, folder: Path, *, pretrained: bool) -> None:
        given = [*OVERRIDES, *(PRETRAINED if pretrained else []), *REINFORCEMENT, f"chat.format={format}"]
        resolved = load_recipe("demo", [*given, f"policy.path={model}"])
        self.resolved, self.folder = resolved, folder
        self.assembly: Assembly | None = None

    async def block(self, steps: int, warm: int = 1) -> list[dict[str, float]]:
        """`steps` steps behind `warm` that warm up: seconds and sampled tokens of each."""
        settings = self.resolved.recipe.reinforcement
        assert settings is not None
        if self.assembly is None:
            self.assembly = await run_in_compute_thread(assemble, self.resolved)
            learner = await run_in_compute_thread(learner_for, self.assembly, settings, None)
            engine = await run_in_compute_thread(self.assembly.engine)
            store = RunStore(self.folder, groups_per_file=PROMPTS)
            self.work = Reinforcement(self.assembly, learner, engine, settings, store=store, base_version=0)
        told = []
        for _ in range(steps + warm):
            began = time.perf_counter()
            metrics = await self.work.step()
            seconds = time.perf_counter() - began
            tokens = metrics["episode/action_tokens"] * PROMPTS * GROUP
            told.append({"seconds": seconds, "tokens": tokens, "reward": metrics["reward/mean"]})
            print(f"whetstone: {seconds:.1f} s, {tokens:.0f} tokens", file=sys.stderr)
        return told[warm:]


class Theirs:
    """Whole training steps of TRL's GRPOTrainer."""

    def __init__(self, format: str, model: Path, described: str, tasks: list[Task], *, pretrained: bool) -> None:
        from datasets import Dataset

        self.format, self.model, self.pretrained = format, model, pretrained
        self.rows_a_pass = PRETRAINED_ROWS if pretrained else PROMPTS * GROUP
        system = {"role": "system", "content": described}
        self.prompts = [[system, {"role": "user", "content": task.prompt}] for task in tasks]
        self.rows = Dataset.from_list([{"prompt": prompt} for prompt in self.prompts])

    def policy(self) -> Policy:
        """The warmed-up policy, as TRL wants its tokenizer."""
        policy = load_policy(self.model)
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

    def block(self, steps: int, warm: int = 1) -> list[dict[str, float]]:
        """`steps` steps behind `warm` that warm up: seconds and sampled tokens of each."""
        import torch
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        policy = self.policy()
        told: list[dict[str, float]] = []

        class Clock(TrainerCallback):  # type: ignore[misc]
            """Seconds from the end of a step to the end of the next."""

            before = 0.0

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.before = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                now = time.perf_counter()
                tokens = trainer._metrics["train"]["completions/mean_length"][-1] * PROMPTS * GROUP
                earned = trainer._metrics["train"]["reward"][-1]
                told.append({"seconds": now - self.before, "tokens": tokens, "reward": earned})
                print(f"trl: {now - self.before:.1f} s, {tokens:.0f} tokens", file=sys.stderr)
                self.before = now

        def reward(completions: list[Any], **_: Any) -> list[float]:
            return [parity_of(said[-1].get("content", "").strip()) for said in completions]

        with tempfile.TemporaryDirectory() as folder:
            settings = GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=self.rows_a_pass,
                gradient_accumulation_steps=PROMPTS * GROUP // self.rows_a_pass,
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
        return told[warm:]


async def measure(
    format: str, blocks: int, steps: int, warm: int, kept: Path | None = None, given: Path | None = None
) -> dict[str, Any]:
    """Both sides, in turn; with a pretrained model where one is given."""
    with tempfile.TemporaryDirectory() as folder:
        warm_up = (kept or Path(folder)) / f"warm-{format}"
        model = given if given is not None else await asyncio.to_thread(warmed_up, format, warm_up)
        ours = Ours(format, model, Path(folder) / "run", pretrained=given is not None)
        await ours.block(0, warm)
        assert ours.assembly is not None
        specs = ours.assembly.environment().toolset.specs  # type: ignore[attr-defined]
        described = ours.assembly.chat.format.describe(specs)
        tasks = [ours.assembly.source.task(i) for i in range(64)]
        theirs = Theirs(format, model, described, tasks, pretrained=given is not None)
        if theirs.prompt() != tuple(ours.assembly.chat.open([user(theirs.prompts[0][1]["content"])], specs).ids):
            raise AssertionError("the two sides show different prompts")
        measured: dict[str, Any] = {"prompt_tokens": len(theirs.prompt())}
        found: dict[str, list[dict[str, float]]] = {"whetstone": [], "trl": []}
        for _ in range(blocks):
            found["whetstone"] += await ours.block(steps, warm)
            # both multiply in the same thread: with two pools of helpers each would be half as fast
            found["trl"] += await run_in_compute_thread(theirs.block, steps, warm)
    for name, told in found.items():
        rates = sorted(PROMPTS * GROUP / step["seconds"] for step in told)
        measured[name] = {
            "episodes_per_second": [rates[0], statistics.median(rates), rates[-1]],
            "seconds_a_step": statistics.median(step["seconds"] for step in told),
            "sampled_tokens": statistics.mean(step["tokens"] for step in told),
            "reward": statistics.mean(step["reward"] for step in told),
        }
    return measured


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="in each block")
    parser.add_argument("--warm", type=int, default=1, help="steps before those that are measured, in each block")
    parser.add_argument("--model", type=Path, help="a folder with a pretrained model that knows the Hermes format")
    parser.add_argument("--warm-ups", type=Path, help="where warmed-up policies are kept, and taken from")
    arguments = parser.parse_args()
    try:
        import trl  # noqa: F401
    except ImportError:
        sys.exit("TRL is not installed: pip install -e '.[bench]'")
    began = time.perf_counter()
    measured, ratios = {}, {}
    asked = (("compact", "vs_trl"), ("hermes", "vs_trl_long_prompt"))
    for format, key in asked if arguments.model is None else (("hermes", "vs_trl_pretrained"),):
        measured[format] = asyncio.run(
            measure(format, arguments.blocks, arguments.steps, arguments.warm, arguments.warm_ups, arguments.model)
        )
        sides = (measured[format][name]["episodes_per_second"][1] for name in ("whetstone", "trl"))
        ratios[key] = next(sides) / next(sides)
        print(f"{format}: {ratios[key]:.2f} times TRL", file=sys.stderr)
    told = {
        "name": "end-to-end",
        "measured": measured,
        "ratios": ratios,
        "goal": "vs_trl 5",
        "bound": "the time the model's own arithmetic takes for the tokens sampled and trained",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    for format, sides_of in measured.items():
        print(f"{format}, prompts of {sides_of['prompt_tokens']} tokens")
        for name in ("whetstone", "trl"):
            of = sides_of[name]
            low, middle, high = of["episodes_per_second"]
            print(
                f"  {name:<10} {middle:6.1f} episodes/s ({low:.1f} to {high:.1f}), "
                f"{of['seconds_a_step']:.2f} s a step, "
                f"{of['sampled_tokens']:,.0f} tokens sampled a step"
            )
    for name, ratio in ratios.items():
        print(f"{name:<20} {ratio:6.2f}")


if __name__ == "__main__":
    main()
