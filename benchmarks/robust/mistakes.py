"""Messages for mistakes of first users, each made in a separate folder with the shop of the README.

Every mistake must give one line with problem and place, an exit code, and no traceback; `results/mistakes.md` lists the
messages.

Note:
    A mistake must not lead to a run that learns nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

RECIPE = """\
policy: {tiny: {vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, \
context_length: 192}}
chat: {format: compact}
tasks: {source: jsonl, path: shop.jsonl, held_out_fraction: 0.5}
environment: {tools: ["shop:price"], max_turns: 2}
reward: "shop:right_price"
rollout: {group_size: 2, max_new_tokens: 4}
evaluation: {episodes: 2}
reinforcement: {steps: 1, tasks_per_step: 2}
"""
TASKS = "".join(f'{{"prompt": "What does {what} cost?", "answer": {cost}}}\n' for what, cost in (
    ("tea", 4), ("rice", 7), ("milk", 2), ("salt", 1)
))  # fmt: skip
SHOP = '''\
import torch
from whetstone.algorithms import TokenLoss
from whetstone.environments import GameObservation
from whetstone.trajectory import Score

PRICES = {"tea": 4, "rice": 7}

def price(item: str) -> int:
    """Price of an item.

    Args:
        item: Its name.
    """
    return PRICES[item]

def unknown(item: "Nope") -> int:
    """Price of an item."""
    return 1

class Till:
    """Needs its size by position."""
    def __init__(self, size):
        self.size = size
    def put(self, thing: str) -> str:
        """Put a thing in."""
        return thing

class Broken(Till):
    """Cannot be made."""
    def __init__(self):
        raise ConnectionError("no till at the desk")

class Empty:
    """Has no method."""

async def right_price(trajectory, task):
    return Score(float(len(trajectory.final_text) % 2), success=False)

async def yes(trajectory, task):
    return None

async def raises(trajectory, task):
    return Score(float(trajectory.final_text))

async def nothing(trajectory, task):
    return Score(float("nan"))

def returns_none(outcomes, group):
    return None

def returns_nan(outcomes, group):
    return outcomes * torch.nan

def too_few(outcomes, group):
    return outcomes[:1]

def divides(outcomes, group):
    return outcomes * (1 / len([]))

def plain_loss(learner_logprobs, advantages):
    return -(learner_logprobs * advantages)

class NoChoice:
    """A curriculum without `choose`."""

class Raises:
    """A curriculum that fails."""
    def choose(self, source, first, number, step, draw):
        return self.indices[number]

class World:
    """A game that fails as it begins."""
    instruction = "Say anything."
    def begin(self, task, seed):
        return GameObservation(task.private["opening"])
    def act(self, command):
        return GameObservation("end", terminated=True)
    def verdict(self):
        return {"success": True}
    def close(self):
        pass

'''


@dataclass(frozen=True)
class Mistake:
    """A mistake, and a part of its expected message."""

    what: str
    command: str
    """Arguments after `whetstone`, in the syntax of a shell."""
    says: str
    """Expected part of the message."""
    code: int = 2
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files in addition to those of the shop, or in their place."""


def _recipe(old: str, new: str) -> dict[str, str]:
    assert old in RECIPE
    return {"shop.yaml": RECIPE.replace(old, new)}


MISTAKES = (
    Mistake("the ending of the file forgotten", "train shop", 'no recipe named "shop"'),
    Mistake("a recipe that is not there", "train shp.yaml", "shp.yaml: no such recipe file"),
    Mistake(
        "a recipe that is not UTF-8", "train shop.yaml", "shop.yaml:1  is not UTF-8", 2, {"shop.yaml": b"title: \xff\n"}
    ),
    Mistake(
        "a recipe that is no YAML",
        "train shop.yaml",
        "shop.yaml:1  not YAML",
        2,
        {"shop.yaml": "chat: {format: compact"},
    ),
    Mistake(
        "a section misspelt in the file",
        "train shop.yaml",
        'shop.yaml:8  reinforcemnt: no such key; did you mean "reinforcement"?',
        2,
        _recipe("reinforcement:", "reinforcemnt:"),
    ),
    Mistake(
        "a section misspelt on the command line",
        "train shop.yaml reinforcemnt.steps=3",
        'command line (reinforcemnt.steps=3)  reinforcemnt: no such key; did you mean "reinforcement"?',
    ),
    Mistake("a key misspelt", "train shop.yaml reinforcement.stepps=3", 'no such key; did you mean "steps"?'),
    Mistake(
        "a word for a number",
        "train shop.yaml reinforcement.steps=many",
        "reinforcement.steps: input should be a valid integer",
    ),
    Mistake(
        "a word for a section",
        "train shop.yaml chat=compact",
        "chat: a mapping is expected, got 'compact'; keys below it are format",
    ),
    Mistake(
        "a recipe extended that is not there",
        "train shop.yaml",
        "shop.yaml  extends: no recipe named",
        2,
        {"shop.yaml": "extends: shopp\n"},
    ),
    Mistake("an estimator misspelt", "train shop.yaml advantage=gigppo", 'did you mean "gigpo"?'),
    Mistake(
        "groups of one for an estimator that compares",
        "train shop.yaml rollout.group_size=1",
        "a group of one has no effect",
    ),
    Mistake(
        "a key without effect",
        "train shop.yaml aggregation.tokens=10",
        "has no effect: only aggregation.mode: constant",
    ),
    Mistake(
        "an ablation with a misspelt key",
        "train shop.yaml 'ablations={a: {reinforcement.stepps: 3}}'",
        "reinforcement.stepps: no such key",
    ),
    Mistake(
        "an optimiser whose package is missing",
        "train shop.yaml reinforcement.optimizer=adamw_8bit",
        "adamw_8bit needs bitsandbytes: pip install",
    ),
    Mistake(
        "more updates than groups",
        "train shop.yaml reinforcement.minibatches=9",
        "9 updates require at least as many groups, got 2",
    ),
    Mistake(
        "a model by its name on the hub",
        "train shop.yaml policy.tiny=null policy.path=Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen2.5-0.5B",
    ),
    Mistake(
        "a folder without a model",
        "train shop.yaml policy.tiny=null policy.path=empty",
        "empty",
        2,
        {"empty/notes.txt": ""},
    ),
    Mistake(
        "a task file that is not there",
        "train shop.yaml tasks.path=shopp.jsonl",
        'no such task file (tasks.path); did you mean "shop.jsonl"?',
    ),
    Mistake(
        "a task that is no JSON",
        "train shop.yaml",
        "shop.jsonl:5  not JSON",
        2,
        {"shop.jsonl": TASKS + "{'prompt': 1}\n"},
    ),
    Mistake(
        "a key of a task misspelt",
        "train shop.yaml",
        "shop.jsonl:1  ",
        2,
        {"shop.jsonl": TASKS.replace('"answer"', '"anwser"')},
    ),
    Mistake("a single task", "train shop.yaml", "add a second task", 2, {"shop.jsonl": TASKS.splitlines()[0] + "\n"}),
    Mistake(
        "prompts longer than the context",
        "train shop.yaml policy.tiny.context_length=16",
        "no prompt leaves room for an answer",
    ),
    Mistake(
        "a tool whose module is not there",
        "train shop.yaml 'environment.tools=[\"shpo:price\"]'",
        "No module named 'shpo'",
    ),
    Mistake(
        "a tool misspelt",
        "train shop.yaml 'environment.tools=[\"shop:prise\"]'",
        'shop has no prise; did you mean "price"?',
    ),
    Mistake(
        "a tool with a type that is not there",
        "train shop.yaml 'environment.tools=[\"shop:unknown\"]'",
        "name 'Nope' is not defined",
    ),
    Mistake(
        "a tool that asks for an argument by position",
        "train shop.yaml 'environment.tools=[\"shop:Till\"]'",
        "size is a positional argument",
    ),
    Mistake(
        "a tool that cannot be made", "train shop.yaml 'environment.tools=[\"shop:Broken\"]'", "no till at the desk"
    ),
    Mistake("a class without a method for a tool", "train shop.yaml 'environment.tools=[\"shop:Empty\"]'", "Empty"),
    Mistake(
        "an MCP server that is not there",
        "train shop.yaml 'environment.tools=[{name: mcp, command: [no-such-server]}]'",
        "no program no-such-server",
    ),
    Mistake(
        "a database that is none",
        "train shop.yaml 'environment.tools=[{name: sql, url: shop.yaml}]'",
        "shop.yaml is not a SQLite database",
    ),
    Mistake("a reward misspelt", "train shop.yaml reward=exact_mach", 'did you mean "exact_match"?'),
    Mistake(
        "a reward that returns nothing", "train shop.yaml reward=shop:yes", "shop:yes returned None; return a number"
    ),
    Mistake(
        "a reward that raises",
        "train shop.yaml reward=shop:raises",
        "none of 2 episodes could be scored: the reward failed: shop.py:43 (raises): ValueError",
    ),
    Mistake("a reward that is NaN", "train shop.yaml reward=shop:nothing", "it returned nan as value"),
    Mistake("a reward for data the tasks do not have", "train shop.yaml reward=milestones", "'milestones'"),
    Mistake(
        "a pattern that is none",
        "train shop.yaml 'reward={name: pattern, pattern: \"[\"}'",
        "is not a regular expression",
    ),
    Mistake("a verdict of tools that have none", "train shop.yaml reward=verdict", "none has verdict()"),
    Mistake(
        "a judge that does not answer",
        "train shop.yaml 'reward={name: rules, rules: [Be right.], judge: {name: endpoint, url: \"http://127.0.0.1:9/v1\",'"
        "' model: m}}'",
        "the request to the model at",
    ),
    Mistake(
        "an advantage that returns nothing",
        "train shop.yaml advantage=shop:returns_none",
        "advantage (returns_none) returned NoneType",
    ),
    Mistake(
        "an advantage that is NaN",
        "train shop.yaml advantage=shop:returns_nan",
        "advantage (returns_nan): 4 of 4 values are not finite",
    ),
    Mistake(
        "an advantage of too few numbers",
        "train shop.yaml advantage=shop:too_few",
        "returned 1 numbers, not one for each trajectory (4)",
    ),
    Mistake(
        "an advantage that raises", "train shop.yaml advantage=shop:divides", "shop.py:58 (divides): ZeroDivisionError"
    ),
    Mistake(
        "an objective that returns a tensor",
        "train shop.yaml objective=shop:plain_loss",
        "objective (plain_loss) returned Tensor, not TokenLoss",
    ),
    Mistake(
        "a curriculum without a choice",
        "train shop.yaml curriculum=shop:NoChoice",
        'curriculum "shop:NoChoice" has no choose',
    ),
    Mistake(
        "a curriculum that raises",
        "train shop.yaml curriculum=shop:Raises",
        "AttributeError: 'Raises' object has no attribute 'indices'",
    ),
    Mistake(
        "a world that raises",
        "train shop.yaml environment.tools=null environment.name=shop:World environment.actions=text reward=verdict",
        "KeyError: 'opening'",
    ),
    Mistake("a world of tasks that are not its own", "train frozen-lake tasks.source=sokoban", "sokoban"),
    Mistake(
        "a Gymnasium world that is not there",
        "environments check gymnasium id=my_gym:Shop-v0",
        "No module named 'my_gym'",
    ),
    Mistake(
        "imitation without an expert",
        "train shop.yaml reinforcement.imitation={}",
        'reinforcement.imitation: the source "jsonl" has no expert',
    ),
    Mistake(
        "an expert prefix without an expert",
        "train shop.yaml 'rollout.start_states={name: expert_prefix, anneal_updates: 3}'",
        "rollout.start_states: needs an expert, and the task source has none",
    ),
    Mistake(
        "self-play in a world of one seat",
        "train shop.yaml 'rollout.strategy={name: self_play, roles: [a, b]}'",
        "it has only one",
    ),
    Mistake(
        "a folder that holds something else",
        "train shop.yaml --run-dir notes",
        "is not empty and holds no run",
        2,
        {"notes/todo.txt": "-"},
    ),
    Mistake("a folder that cannot be written", "train shop.yaml --run-dir /proc/run", "cannot be saved"),
    Mistake("a run that is not there", "evaluate runs/shop", "runs/shop: neither a run nor a recipe is there"),
    Mistake(
        "a file for a folder",
        "evaluate shop.yaml --output-dir shop.yaml",
        "shop.yaml: is a file; an evaluation is kept in a folder",
    ),
    Mistake("a model without an address", "evaluate shop.yaml --model gpt", "--model: requires --policy http://"),
    Mistake(
        "an address without a server",
        "evaluate shop.yaml --policy http://127.0.0.1:9/v1 --model m",
        "the request to the model at",
        1,
    ),
    Mistake("an expert who is not there", "rollout shop.yaml --expert", '--expert: the source "jsonl" has no expert'),
    Mistake("a single contender", "compare shop.yaml", "compare needs two or more contenders"),
    Mistake("a contender misspelt", "compare shop.yaml advantage=group_relative,gigppo", 'did you mean "gigpo"?'),
    Mistake(
        "a budget in a unit that is none",
        "compare shop.yaml seed=1,2 --budget tokens=10",
        'did you mean "sampled_tokens"?',
    ),
    Mistake("an explanation of a run that is not there", "why runs/shop", "no such file or run directory"),
    Mistake("nothing to compute again", "replay runs/shop", "no such file or run directory"),
    Mistake("a recipe for a task source", "tasks show shop.yaml", "is a recipe; its tasks are shown by"),
    Mistake(
        "no tasks for a custom environment",
        "environments check shop:World",
        "--tasks: missing; shop:World has no task source",
    ),
    Mistake("a port that is none", "environments serve sokoban --port 99999", "99999 is not in the range"),
    Mistake("nothing to serve", "mcp shop:Empty", "Empty"),
)


def write_files(mistake: Mistake, folder: Path) -> None:
    """Write the files of the shop with those of a mistake."""
    for name, text in {"shop.yaml": RECIPE, "shop.jsonl": TASKS, "shop.py": SHOP, **mistake.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def last_line(output: str, folder: Path) -> str:
    """Return the last line of an output, without parts that depend on the machine."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    line = next(
        (line for line in reversed(lines) if line.startswith(("whetstone: ", "Error: "))), lines[-1] if lines else ""
    )
    line = line.replace(f"{folder}/", "").replace(str(folder), "…")
    return re.sub(r"0x[0-9a-f]+", "0x…", line)


def make_mistake(mistake: Mistake) -> tuple[int, str, bool]:
    """Make a mistake and return (exit code, last line, whether there was a traceback)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_files(mistake, folder)
        command = f"{sys.executable} -m whetstone.cli.main {mistake.command}"
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, last_line(done.stderr or done.stdout, folder), "Traceback" in done.stderr + done.stdout


def table(rows: Sequence[tuple[Mistake, int, str]]) -> str:
    """Return the table as Markdown."""
    lines = ["| mistake | `whetstone …` | message | exit code |", "| --- | --- | --- | --- |"]
    for mistake, code, line in rows:
        cells = (mistake.what, f"`{mistake.command}`", line.removeprefix("whetstone: "), str(code))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make all mistakes and print or write the table; exit with 1 if a message is not the expected one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, help="Write the table to this file.")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    with ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(make_mistake, MISTAKES))
    wrong = 0
    for mistake, (code, line, traced) in zip(MISTAKES, results, strict=True):
        if traced or code != mistake.code or mistake.says not in line:
            wrong += 1
            print(f"{mistake.what}: exit code {code}{', a traceback' if traced else ''}: {line}", file=sys.stderr)
    text = table([(mistake, code, line) for mistake, (code, line, _) in zip(MISTAKES, results, strict=True)])
    if options.into is not None:
        options.into.write_text(f"# Mistakes of first users, and their messages\n\n{text}", encoding="utf-8")
    else:
        print(text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
