"""Does what is counted here agree with the function-calling leaderboard's own checkers? Gold answers, and mutated ones.

    python benchmarks/bfcl.py [--categories …] [--mutations 200] [--write benchmarks/results]

Needs `pip install --no-deps bfcl-eval`. Each answer is played here through environment and reward, and judged there by
`ast_checker` or `multi_turn_checker`; where nothing is to be called, or something, by that rule. The leaderboard's list
of models, which needs every client library there is, is replaced by one entry.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agreement import page, reported
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS
from whetstone.environments.bfcl.package import data_folder
from whetstone.environments.bfcl.tasks import gold_calls
from whetstone.errors import TaskError
from whetstone.evaluation.contract import play
from whetstone.rewards import REWARDS
from whetstone.tasks import FunctionCalls
from whetstone.trajectory import Task

_SINGLE = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
_CONVERSATIONS = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
_MODEL = "compared"
_NUMBERS = itertools.count()
"""Services are kept there by model and question, and each answer needs its own."""
Calls = list[dict[str, Any]]
"""`{"name": …, "arguments": {…}}` each."""
Answer = list[list[Calls]]
"""Calls by turn and action; a turn ends with an action that calls nothing, which is not written down."""


# ------------------------------------------------------------ there


def _their_checkers() -> SimpleNamespace:
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    sys.modules[models.__name__] = models
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    return SimpleNamespace(ast=ast_checker, turns=multi_turn_checker, language=Language)


def there(checkers: SimpleNamespace, category: str, task: Task, row: Mapping[str, Any], answer: Answer) -> bool:
    """What the leaderboard says."""
    if category.startswith("multi_turn"):
        texts = [
            [
                [f"{c['name']}({','.join(f'{k}={v!r}' for k, v in c['arguments'].items())})" for c in step]
                for step in turn
            ]
            for turn in answer
        ]
        truth, model = task.private["ground_truth"], f"{_MODEL}{next(_NUMBERS)}"
        return bool(checkers.turns(texts, truth, {**row}, category, model)["valid"])
    calls = [{call["name"]: call["arguments"]} for call in answer[0][0]]
    if "relevance" in category:  # also irrelevance
        return bool(calls) != ("irrelevance" in category)
    language = getattr(checkers.language, task.private.get("language", "python").upper())
    possible = task.private["possible_answer"]
    return bool(checkers.ast(task.private["functions"], calls, possible, language, category, _MODEL)["valid"])


# ------------------------------------------------------------ here


def here(category: str, task: Task, answer: Answer) -> bool:
    """What environment and reward say."""
    conversation = category.startswith("multi_turn")
    steps: list[Message] = []
    for turn in answer:
        steps += [
            assistant("", *(ToolCall(c["name"], json.dumps(c["arguments"])) for c in step)) for step in turn if step
        ]
        steps.append(assistant("Done."))
    left = iter(steps)
    make = ENVIRONMENTS["bfcl_multi_turn" if conversation else "function_calls"]
    played = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=len(steps)))
    reward: Any = REWARDS["verdict" if conversation else "bfcl"]
    return bool(asyncio.run(reward(played.trajectory, task)).success)


def gold(category: str, source: Any, task: Task) -> Answer:
    """The answer that is to be given."""
    if category.startswith("multi_turn"):
        return [[_plain([call]) for call in turn] for turn in gold_calls(task)]
    try:
        return [[_plain(source.demonstrate(task, [], []).tool_calls)]]
    except TaskError:  # any call will do
        schema = task.private["functions"][0]
        return [[[{"name": schema["name"].replace(".", "_"), "arguments": {}}]]]


def _plain(calls: Sequence[ToolCall]) -> Calls:
    return [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]


# ------------------------------------------------------------ one thing changed by chance


def mutated(answer: Answer, others: Sequence[Answer], draw: random.Random) -> tuple[str, Answer]:
    """(what was changed, the answer)."""
    changed: Answer = json.loads(json.dumps(answer))
    donors = [call for one in others for turn in one for step in turn for call in step]
    donors = donors or [{"name": "search", "arguments": {}}]
    steps = [(turn, step) for turn in changed for step in turn if step]
    way = draw.choice(
        ["insert"] + ["drop", "twice", "swap", "rename", "leave out", "add", "value", "type"] * bool(steps)
    )
    if way == "insert" or not steps:
        turn = draw.choice(changed)
        turn.append([draw.choice(donors)]) if len(changed) > 1 or not turn else turn[0].append(draw.choice(donors))
        return "insert", changed
    turn, step = draw.choice(steps)
    call = draw.choice(step)
    arguments = call["arguments"]
    if way == "drop":
        step.remove(call)
    elif way == "twice":
        step.append(call)
    elif way == "swap":
        draw.shuffle(step)
        draw.shuffle(turn)
    elif way == "rename":
        call["name"] = draw.choice([call["name"] + "s", draw.choice(donors)["name"]])
    elif way == "add":
        arguments[draw.choice(sorted(draw.choice(donors)["arguments"]) or ["x"])] = draw.choice([1, "x", True, [1]])
    elif arguments:
        key = draw.choice(sorted(arguments))
        if way == "leave out":
            del arguments[key]
        elif way == "type":
            arguments[key] = draw.choice([str(arguments[key]), None, [arguments[key]], {"a": 1}, 1.5, 3, True, ""])
        else:
            arguments[key] = _other(arguments[key], draw)
    return way, changed


def _other(value: Any, draw: random.Random) -> Any:
    """Another value, often of the same meaning."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([value + 1, float(value), -value])
    if isinstance(value, float):
        return draw.choice([value + 0.5, int(value), round(value, 1)])
    if isinstance(value, str):
        return draw.choice(
            [value.upper(), value.replace(" ", ""), f"{value}.", f"{value}x", value.replace("'", '"'), f'"{value}"']
        )
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        return draw.choice([value[::-1], value[:-1], [*value[:at], _other(value[at], draw), *value[at + 1 :]]])
    if isinstance(value, dict) and value:
        key = draw.choice(sorted(value))
        less = {k: v for k, v in value.items() if k != key}
        return draw.choice([less, {**value, key: _other(value[key], draw)}, {**value, "more": 1}])
    return "other"


# ------------------------------------------------------------ the comparison


def compared(checkers: SimpleNamespace, category: str, mutations: int, seed: int) -> dict[str, Any]:
    """Agreement on one category, and every difference."""
    data, name = data_folder(), f"BFCL_v4_{category}.json"
    rows = {row["id"]: row for row in map(json.loads, (data / name).read_text(encoding="utf-8").splitlines())}
    source: Any
    if category.startswith("multi_turn"):
        source = TASKS_OF_WORLDS["bfcl_multi_turn"](category=category.removeprefix("multi_turn_"))
    else:
        answers = data / "possible_answer" / name
        source = FunctionCalls(path=str(data / name), answers=str(answers) if answers.is_file() else None)
    tasks = list(source.held_out(10**6))
    right = [gold(category, source, task) for task in tasks]
    draw = random.Random(f"{seed} {category}")
    cases = [("gold", task, answer) for task, answer in zip(tasks, right, strict=True)]
    for _ in range(mutations):
        at = draw.randrange(len(tasks))
        way, answer = mutated(right[at], right, draw)
        cases.append((way, tasks[at], answer))
    differences, accepted, began = [], Counter[bool](), time.perf_counter()
    for way, task, answer in cases:
        ours, theirs = here(category, task, answer), there(checkers, category, task, rows[task.id], answer)
        accepted[way == "gold"] += theirs
        if ours != theirs:
            differences.append({"mutation": way, "task": task.id, "here": ours, "there": theirs, "answer": answer})
    kinds = Counter(one["mutation"] == "gold" for one in differences)
    return {
        "category": category,
        "tasks": len(tasks),
        "gold_agreed": len(tasks) - kinds[True],
        "gold_right": accepted[True],
        "mutated": mutations,
        "mutated_agreed": mutations - kinds[False],
        "mutated_right": accepted[False],
        "seconds": round(time.perf_counter() - began, 1),
        "differences": differences,
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The same as a page."""
    return page(
        found,
        kind="category",
        opening=[
            "# Berkeley Function-Calling Leaderboard (V4): agreement with its own checkers\n",
            "Answers played through environment and reward, and judged by the checkers of the package `bfcl-eval`.",
            "`right`: how many the leaderboard accepts.\n",
        ],
        told=lambda _, each: (
            f"{each['task']}, {each['mutation']}: here {each['here']}, there {each['there']}; "
            f"{json.dumps(each['answer'])[:300]}"
        ),
    )


def main() -> None:
    """Compare, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--categories", nargs="+", default=[*_SINGLE, *_CONVERSATIONS])
    parser.add_argument("--mutations", type=int, default=200, help="mutated answers a category")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a folder for bfcl.md and bfcl.json")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    began, checkers = time.perf_counter(), _their_checkers()
    found = [compared(checkers, category, asked.mutations, asked.seed) for category in asked.categories]
    reported("bfcl", found, table(found), began=began, folder=asked.write, as_json=asked.json)


if __name__ == "__main__":
    main()
