"""Agreement of BFCL rewards with the checkers of the function-calling leaderboard, on gold and mutated answers.

    python -m benchmarks bfcl [--categories …] [--mutations 200] [--write benchmarks/results]
    python -m benchmarks bfcl --kept verdicts.jsonl --seconds 150    # repeat until no case is left

Requires `pip install --no-deps bfcl-eval overrides rank-bm25`. Each answer is played through environment and reward,
and judged by `ast_checker`, `multi_turn_checker` or `agentic_checker` of the leaderboard; relevance categories have
the rule that something, or nothing, is called. The leaderboard's list of models, which imports all client libraries,
is replaced by one entry.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agreement import Verdicts, page, publish_agreement
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS
from whetstone.environments.bfcl.bfcl_tasks import gold_actions
from whetstone.environments.bfcl.package import data_folder
from whetstone.errors import TaskError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import verdict
from whetstone.rewards.calls.bfcl import bfcl
from whetstone.tasks import FunctionCalls
from whetstone.trajectory import Task

_SINGLE = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
)  # fmt: skip
_CONVERSATIONS = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
_MEMORIES = ("memory_kv", "memory_rec_sum")
"""`memory_vector` is judged in the same way, and requires an embedding model."""
_DECIDES = (
    "environments/bfcl/bfcl_conversation.py", "environments/bfcl/package.py", "environments/bfcl/bfcl_tasks.py",
    "environments/bfcl/memory.py", "environments/bfcl/memory_tasks.py", "environments/function_calls.py",
    "rewards/calls/bfcl.py", "tasks/function_call_tasks.py", "tasks/literals.py",
)  # fmt: skip
"""Files of the package that determine a verdict."""
_MODEL = "compared"
_CALLS = ("function_calls", partial(bfcl, as_published=True))
_WORLDS: dict[str, tuple[str, Any]] = {"multi_turn": ("bfcl_multi_turn", verdict), "memory": ("bfcl_memory", verdict)}
"""Prefix of a category → (environment, reward); other categories use `_CALLS`."""
_NUMBERS = itertools.count()
"""The checker caches services per model and question; a number per answer separates them."""
Calls = list[dict[str, Any]]
"""Calls `{"name": …, "arguments": {…}}`."""
Answer = list[list[Calls]] | str
"""Calls per turn and action, without the final action of a turn, which calls nothing; a text for memory questions."""


# ------------------------------------------------------------ the leaderboard's checkers


def _their_checkers() -> SimpleNamespace:
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    sys.modules[models.__name__] = models
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.agentic_eval.agentic_checker import agentic_checker
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    return SimpleNamespace(ast=ast_checker, turns=multi_turn_checker, said=agentic_checker, language=Language)


def leaderboard_verdict(
    checkers: SimpleNamespace, category: str, task: Task, row: Mapping[str, Any], answer: Answer
) -> bool:
    """Return the verdict of the leaderboard's checker."""
    if isinstance(answer, str):
        return bool(checkers.said(answer, task.private["answers"])["valid"])
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


# ------------------------------------------------------------ environment and reward


def whetstone_verdict(category: str, task: Task, answer: Answer) -> bool:
    """Return the verdict of environment and reward."""
    world, judge = next((each for kind, each in _WORLDS.items() if category.startswith(kind)), _CALLS)
    steps: list[Message] = [assistant(answer)] if isinstance(answer, str) else []
    for turn in () if isinstance(answer, str) else answer:
        steps += [
            assistant("", *(ToolCall(c["name"], json.dumps(c["arguments"])) for c in step)) for step in turn if step
        ]
        steps.append(assistant("Done."))
    left = iter(steps)
    episode = asyncio.run(
        play_with_policy(ENVIRONMENTS[world], task, lambda *_: next(left), seed=0, max_turns=len(steps))
    )
    return bool(asyncio.run(judge(episode.trajectory, task)).success)


def gold(category: str, source: Any, task: Task) -> Answer:
    """Return the gold answer."""
    if category.startswith("memory"):
        return json.dumps({"answer": task.private["answers"][0], "context": "It was said."})
    if category.startswith("multi_turn"):
        return [[_plain(action) for action in turn] for turn in gold_actions(task)]
    try:
        return [[_plain(source.demonstrate(task, [], []).tool_calls)]]
    except TaskError:  # any call will do
        schema = task.private["functions"][0]
        return [[[{"name": schema["name"].replace(".", "_"), "arguments": {}}]]]


def _plain(calls: Sequence[ToolCall]) -> Calls:
    return [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]


# ------------------------------------------------------------ random mutations


def mutate(answer: Answer, others: Sequence[Answer], draw: random.Random) -> tuple[str, Answer]:
    """Return (kind of mutation, mutated answer)."""
    if isinstance(answer, str):
        return _mutate_text(answer, [one for one in others if isinstance(one, str)], draw)
    changed: list[list[Calls]] = json.loads(json.dumps(answer))
    donors = [call for one in others if not isinstance(one, str) for turn in one for step in turn for call in step]
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


def _mutate_text(answer: str, others: Sequence[str], draw: random.Random) -> tuple[str, str]:
    text = str(json.loads(answer)["answer"])
    words = text.split()
    way = draw.choice(["bare", "case", "borrow", "drop", "cut", "glue", "punctuate", "bury", "quotes", "silence"])
    changed = {
        "bare": text,
        "case": text.upper(),
        "borrow": draw.choice(others),
        "drop": " ".join(words[:-1]),
        "cut": text[: max(1, len(text) - 1)],
        "glue": f"x{text}",
        "punctuate": draw.choice(["-", ".", "*", ", "]).join(text.split(" ")),
        "bury": f"I think it was ({text}), or {draw.choice(others)}.",
        "quotes": text.replace("'", '"'),
        "silence": draw.choice(["", "I do not know."]),
    }
    return way, changed[way]


def _other(value: Any, draw: random.Random) -> Any:
    """Return another value, often with the same meaning."""
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


def compare_category(
    checkers: SimpleNamespace, category: str, mutations: int, seed: int, verdicts: Verdicts
) -> dict[str, Any]:
    """Return the agreement on one category with all differences."""
    data, name = data_folder(), f"BFCL_v4_{category}.json"
    rows: dict[str, Any] = {}
    source: Any
    if category.startswith("multi_turn"):
        source = TASKS_OF_WORLDS["bfcl_multi_turn"](category=category.removeprefix("multi_turn_"))
    elif category.startswith("memory"):
        source = TASKS_OF_WORLDS["bfcl_memory"](backend=category.removeprefix("memory_"))
    else:
        answers = data / "possible_answer" / name
        source = FunctionCalls(path=str(data / name), answers=str(answers) if answers.is_file() else None)
    if (data / name).is_file():
        rows = {row["id"]: row for row in map(json.loads, (data / name).read_text(encoding="utf-8").splitlines())}
    tasks = {task.id: task for task in source.held_out(10**6)}
    right = {id: gold(category, source, task) for id, task in tasks.items()}
    draw = random.Random(f"{seed} {category}")
    cases = [("gold", id, answer) for id, answer in right.items()]
    for _ in range(mutations):
        id = draw.choice([*tasks])
        way, answer = mutate(right[id], [*right.values()], draw)
        cases.append((way, id, answer))

    def judge(some: Sequence[Any]) -> list[tuple[bool, bool]]:
        return [
            (
                whetstone_verdict(category, tasks[id], answer),
                leaderboard_verdict(checkers, category, tasks[id], rows.get(id, {}), answer),
            )
            for _, id, answer in some
        ]

    differences, refused, accepted = [], [], Counter[bool]()
    judged = verdicts.of([(category, id, answer) for _, id, answer in cases], judge)
    for (way, id, answer), (own, reference, _) in zip(cases, judged, strict=True):
        accepted[way == "gold"] += reference
        refused += [id] if way == "gold" and not reference else []
        if own != reference:
            differences.append({"mutation": way, "task": id, "here": own, "there": reference, "answer": answer})
    kinds = Counter(one["mutation"] == "gold" for one in differences)
    return {
        "category": category,
        "tasks": len(tasks),
        "gold_agreed": len(tasks) - kinds[True],
        "gold_right": accepted[True],
        "mutated": mutations,
        "mutated_agreed": mutations - kinds[False],
        "mutated_right": accepted[False],
        "seconds": round(sum(seconds for _, _, seconds in judged), 1),
        "gold_refused": refused,
        "differences": differences,
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of all categories."""
    refused = ", ".join(id for one in results for id in one["gold_refused"]) or "none"
    return page(
        results,
        kind="category",
        introduction=[
            "# Berkeley Function-Calling Leaderboard (V4): agreement with its own checkers\n",
            "Answers played through environment and reward (`bfcl`, `as_published: true`; of conversations `verdict`),",
            "and judged by the checkers of the package `bfcl-eval`.",
            "`right`: how many the leaderboard accepts. Its own answers to these fit none of its rules, and are right",
            f"for neither: {refused}.\n",
        ],
        format_difference=lambda _, each: (
            f"{each['task']}, {each['mutation']}: here {each['here']}, there {each['there']}; "
            f"{json.dumps(each['answer'])[:300]}"
        ),
    )


def main() -> None:
    """Compare the verdicts and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--categories", nargs="+", default=[*_SINGLE, *_CONVERSATIONS, *_MEMORIES])
    parser.add_argument("--mutations", type=int, default=200, help="mutated answers per category")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="folder for bfcl.md and raw/bfcl.json")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kept", type=Path, help="file of verdicts; stored ones are reused")
    parser.add_argument("--seconds", type=float, help="stop judging after this time")
    arguments = parser.parse_args()
    began, checkers = time.perf_counter(), _their_checkers()
    version = importlib.metadata.version("bfcl-eval")
    verdicts = Verdicts(arguments.kept, of=_DECIDES, version=version, seconds=arguments.seconds)
    results = [
        compare_category(checkers, each, arguments.mutations, arguments.seed, verdicts) for each in arguments.categories
    ]
    options = {"versions": {"bfcl-eval": version}, "began": began, "folder": arguments.write, "as_json": arguments.json}
    publish_agreement("bfcl", results, table(results), **options)


if __name__ == "__main__":
    main()
