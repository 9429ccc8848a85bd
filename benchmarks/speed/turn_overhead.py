"""Processor time per turn that Whetstone adds to engine and tool, in episodes of 8, 32 and 128 turns, next to TRL.

    python -m benchmarks turn_overhead [--model MODEL] [--page FILE] [--json]

The engine returns scripted tool calls at once, and the tool multiplies two numbers; all calls differ, so that no cache
of turns helps. The rest is measured: rendering and tokenizing of results, parsing of calls, the episode loop, the
journal with one record per turn, and the stored trajectories. TRL's part is `GRPOTrainer._generate` with the same
tokens: it renders, tokenizes, parses and calls the same tool, but stores nothing. The model is never computed; only the
tokenizer of `--model` is used. The time per turn should not depend on the number of turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from circumstances import circumstances
from end_to_end import OVERRIDES, PRETRAINED, REINFORCEMENT, TrlSide
from whetstone.assembly import RunComponents, assemble
from whetstone.chat import ToolCall, assistant
from whetstone.garbage import collect_seldom
from whetstone.inference import GenerateRequest, Generation
from whetstone.policies import load_policy
from whetstone.recipe import load_recipe
from whetstone.record.run_store import RunStore
from whetstone.rollout import Independent, make_plans
from whetstone.trajectory import EndReason, Score, Task, Trajectory

LENGTHS = (8, 32, 128)
CONTEXT = 1 << 15
"""Maximum number of tokens of an episode, above the longest one."""
IN_FLIGHT = 16
"""Number of concurrent episodes, the same for all lengths: few episodes cost more per turn."""


def save_small_model(tokenizer_of: str, folder: Path) -> None:
    """Save a model with little to load, a long context and the tokenizer of another model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load_policy(tokenizer_of).tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Script:
    """Scripted actions: a call in each turn, and an answer in the last; every call is written once.

    Args:
        assembly: Components whose chat writes the actions.
        turns: Number of turns of an episode.
        episodes: Number of episodes.
        numbers: Source of unequal numbers.
    """

    def __init__(self, assembly: RunComponents, turns: int, episodes: int, numbers: itertools.count[int]) -> None:
        specs = assembly.environment().toolset.specs  # type: ignore[attr-defined]
        chat, self.turns = assembly.chat, turns
        calls = []
        for number in itertools.islice(numbers, (turns - 1) * episodes):
            call = ToolCall("pocket_calculator", json.dumps({"expression": f"{number}*{number + 7}"}))
            calls.append(chat.write(assistant(f"First I multiply {number} and {number + 7}.", call), specs))
        self.answer = chat.write(assistant("The answer is 12."), specs)
        self.calls = iter(calls)

    def next_action(self, turn: int) -> tuple[int, ...]:
        """Return the tokens of the action with this number in its episode, from 0."""
        return self.answer if turn == self.turns - 1 else next(self.calls)


class ScriptedEngine:
    """Engine that returns the actions of a script at once."""

    def __init__(self, script: Script) -> None:
        self.script, self.turns = script, Counter[str]()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Engine.generate`."""
        tokens = self.script.next_action(self.turns[request.episode])
        self.turns[request.episode] += 1
        zeros = (0.0,) * len(tokens)
        return Generation(tokens, zeros, zeros, (0,) * len(tokens), "stop", model_logprobs=zeros)

    def forget(self, episode: str) -> None:
        """See `Engine.forget`."""


class Clock:
    """Processor seconds of parts of a run, by name."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Measure all calls of a method that is no coroutine."""
        inner: Callable[..., Any] = getattr(owner, method)

        def measured(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return inner(*arguments, **options)
            finally:
                self.seconds[part] += time.process_time() - began  # type: ignore[assignment]

        setattr(owner, method, measured)


async def no_reward(trajectory: Trajectory, task: Task) -> Score:
    """Return no reward."""
    return Score(0.0)


async def play(assembly: RunComponents, tasks: Sequence[Task], script: Script) -> dict[str, float]:
    """Play and store one episode per task; return the processor seconds per turn, in all and of parts."""
    with tempfile.TemporaryDirectory() as folder:
        store, clock = RunStore(Path(folder), groups_per_file=64), Clock()
        chat = assembly.chat
        for owner, method, part in (
            (chat, "extend", "render and tokenize"),
            (chat, "read", "parse"),
            (store, "add", "record turns"),
            (store, "store_group", "store trajectories"),
        ):
            clock.watch(owner, method, part)
        actor = assembly.policy_actor(ScriptedEngine(script), temperature=1.0)  # type: ignore[arg-type]
        collector = replace(assembly.build_collector(actor, record=store), reward=no_reward, max_in_flight=IN_FLIGHT)
        began = time.process_time()
        async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=1)):
            store.store_group(group)
            (trajectory,) = group.trajectories
            if len(trajectory.turns) != script.turns or trajectory.ended != EndReason.TERMINATED:
                raise AssertionError(f"{len(trajectory.turns)} turns, {trajectory.ended}: {trajectory.error}")
        spent = time.process_time() - began
        store.close()
        for method in ("extend", "read"):
            delattr(chat, method)
    parts = {**clock.seconds, "loop, tool and the rest": spent - sum(clock.seconds.values())}
    count = len(tasks) * script.turns
    return {"all": spent / count, **{name: seconds / count for name, seconds in parts.items()}}


def build_trl_trainer(side: TrlSide, folder: Path) -> Any:
    """Build TRL's trainer with the tool."""
    from trl import GRPOConfig, GRPOTrainer

    from whetstone.tools.arithmetic_tools import calculator, pocket_calculator

    policy = side.policy()
    settings = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, per_device_train_batch_size=2, num_generations=2,
        max_completion_length=CONTEXT - 1024, max_tool_calling_iterations=max(LENGTHS), beta=0.0, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=side.rows,
        processing_class=policy.tokenizer,
        tools=[pocket_calculator, calculator],
    )


def generate_in_trl(trainer: Any, prompts: Sequence[Any], script: Script) -> float:
    """Generate one episode per prompt with TRL's tool loop; return the processor seconds per turn."""
    turn = itertools.count()

    def generate(prompt_ids: Sequence[Any], *_: Any, **__: Any) -> tuple[list[list[int]], list[list[float]]]:
        number = next(turn) % script.turns
        sampled = [list(script.next_action(number)) for _ in prompt_ids]
        return sampled, [[0.0] * len(each) for each in sampled]

    trainer._generate_single_turn = generate
    tools = {tool.__name__: tool for tool in trainer.tools}
    began = time.process_time()
    for first in range(0, len(prompts), IN_FLIGHT):
        batch = list(prompts[first : first + IN_FLIGHT])
        trainer._sync_tool_dicts, trainer._async_tool_dicts = [tools] * len(batch), [{}] * len(batch)
        trainer._generate(batch)
    spent = time.process_time() - began
    if next(turn) != script.turns * -(-len(prompts) // IN_FLIGHT):
        raise AssertionError("TRL sampled another number of turns")
    return spent / (len(prompts) * script.turns)


def measure(model: str, repeats: int, total: int) -> dict[int, dict[str, list[float]]]:
    """Return the processor seconds per turn of each repeat, by number of turns and by part; TRL's as part `TRL`."""
    numbers = itertools.count(1000)
    seconds: dict[int, dict[str, list[float]]] = {turns: {} for turns in LENGTHS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_small_model(model, folder / "model")
        overrides = [*OVERRIDES, *PRETRAINED, *REINFORCEMENT, "chat.format=hermes", "rollout.max_new_tokens=256"]
        overrides += [f"policy.path={folder / 'model'}", f"environment.max_turns={max(LENGTHS)}"]
        # processor time is measured: a process that is suspended for minutes must not end its episodes
        overrides += ["environment.timeout_seconds=100000", "environment.turn_timeout_seconds=none"]
        assembly = assemble(load_recipe("demo", overrides))
        tasks = [replace(assembly.source.task(i), id=str(i)) for i in range(total // min(LENGTHS))]
        try:
            import trl  # noqa: F401
        except ImportError:
            print("TRL is not installed and left out: pip install -e '.[bench]'", file=sys.stderr)
            trainer = None
        else:
            specs = assembly.environment().toolset.specs  # type: ignore[attr-defined]
            side = TrlSide(
                "hermes", folder / "model", assembly.chat.format.describe(specs), tasks, prompts=1, pretrained=True
            )
            trainer = build_trl_trainer(side, folder)
        for number, turns in enumerate((LENGTHS[0], *LENGTHS * repeats)):  # the first measurement is a warm-up
            count = total // turns
            with collect_seldom():
                spent = asyncio.run(play(assembly, tasks[:count], Script(assembly, turns, count, numbers)))
                if trainer is not None:
                    script = Script(assembly, turns, count, numbers)
                    spent["TRL"] = generate_in_trl(trainer, side.prompts[:count], script)
            for part, value in spent.items() if number else ():
                seconds[turns].setdefault(part, []).append(value)
    return seconds


def write_page(result: dict[str, Any]) -> str:
    """Return the result page."""
    measured = result["measured"]
    parts = list(measured[str(LENGTHS[0])])
    lines = [
        "# Overhead per turn",
        "",
        f"`python -m benchmarks turn_overhead`: processor time per turn in µs, medians of {result['repeats']} "
        f"repeats of {result['turns']} turns; tokenizer of {result['model']}; {result['machine']['processor']}.",
        "",
        f"| turns per episode | {' | '.join(map(str, LENGTHS))} | ratio |",
        "| --- |" + " --- |" * (len(LENGTHS) + 1),
    ]
    for part in parts:
        values = [measured[str(turns)][part] for turns in LENGTHS]
        name = {"all": "Whetstone, all", "TRL": "TRL, without storage"}.get(part, f"- {part}")
        lines.append(f"| {name} | {' | '.join(f'{v * 1e6:,.0f}' for v in values)} | {values[-1] / values[0]:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="model with the tokenizer [smollm2-135m]")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each length [5]")
    parser.add_argument("--turns", type=int, default=2048, help="turns of a measurement, in all its episodes [2048]")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the figures as a result page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    began = time.perf_counter()
    seconds = measure(options.model, options.repeats, options.turns)
    medians = {str(n): {part: statistics.median(each) for part, each in of.items()} for n, of in seconds.items()}
    first, last = (medians[str(turns)] for turns in (LENGTHS[0], LENGTHS[-1]))
    ratios = {"growth": last["all"] / first["all"]}
    if "TRL" in first:
        ratios |= {"growth_trl": last["TRL"] / first["TRL"]}
        ratios |= {f"vs_trl_{n}": medians[str(n)]["TRL"] / medians[str(n)]["all"] for n in LENGTHS}
    result = {
        "name": "turn_overhead",
        "measured": medians,
        "ratios": ratios,
        "goal": "growth of the time per turn from 8 to 128 turns 1.2",
        "bound": "1: the same time per turn",
        "model": Path(options.model).name,
        "repeats": options.repeats,
        "turns": options.turns,
        **circumstances(began),
    }
    page = write_page(result)
    if options.page is not None:
        options.page.write_text(page, encoding="utf-8")
    print(json.dumps(result) if options.json else page)


if __name__ == "__main__":
    main()
