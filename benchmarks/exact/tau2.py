"""Agreement of tau2 rewards with tau2-bench's own evaluator, on gold and mutated actions of every task.

    python -m benchmarks tau2 --data tau2-bench/data --python tau2/bin/python [--write benchmarks/results]
    python -m benchmarks tau2 … --kept verdicts.jsonl --seconds 150    # repeat until no case is left

`--python` is an interpreter with tau2-bench. Each episode is played through environment, tools and reward, and judged
by tau2's evaluators of database, environment assertions, actions and communication. Natural-language assertions, which
require a model, are not judged. Customers of telecom execute the instructions for their phones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agreement import Verdicts, page, publish_agreement
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ENVIRONMENTS
from whetstone.environments.tau2 import instruction_text, parse_task
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import tau2
from whetstone.trajectory import Task

_DOMAINS = ("retail", "airline", "telecom")
_DECIDES = (
    "environments/tau2/domain.py", "environments/tau2/database.py", "environments/tau2/tau2_tasks.py",
    "rewards/environment_state/tau2.py",
)  # fmt: skip
_DECIDES_IN = {"telecom": ("telecom", "phone", "initial_state", "user_simulator")}
"""Files of the package that determine a verdict: of all domains, and of single ones."""
_PARTS = {"DB": "database", "ACTION": "actions", "ENV_ASSERTION": "assertions", "COMMUNICATE": "communicated"}
_BYE = "Is there anything else I can help with?"
Case = dict[str, Any]


def gold(row: Mapping[str, Any], domain: str) -> Case:
    """Return the gold episode of a task."""
    criteria = row["evaluation_criteria"]
    calls = [
        {"name": one["name"], "arguments": one["arguments"], "requestor": one.get("requestor") or "assistant"}
        for one in criteria.get("actions") or ()
    ]
    texts = [*(str(text) for text in criteria.get("communicate_info") or ()), _BYE]
    return {"domain": domain, "task": row["id"], "calls": calls, "said": texts, "mutation": "gold"}


def mutate(case: Case, others: Sequence[Case], draw: random.Random) -> Case:
    """Return an episode with one random mutation."""
    calls, texts = json.loads(json.dumps(case["calls"])), list(case["said"])
    donor = draw.choice([one for one in others if one["calls"]])
    ways = ["insert", "silence"] + ["drop", "twice", "swap", "argument", "order", "borrow", "spelling"] * bool(calls)
    way = draw.choice(ways)
    at = draw.randrange(len(calls)) if calls else 0
    if way == "insert":
        calls.insert(at, draw.choice(donor["calls"]))
    elif way == "silence":
        texts = [draw.choice([_BYE, ", ".join(texts), "1234567890 " + _BYE])]
    elif way == "drop":
        del calls[at]
    elif way == "twice":
        calls.insert(draw.randrange(len(calls) + 1), calls[at])
    elif way == "swap":
        other = draw.randrange(len(calls))
        calls[at], calls[other] = calls[other], calls[at]
    elif way == "spelling":
        calls[at]["name"] = draw.choice([calls[at]["name"] + "s", draw.choice(donor["calls"])["name"]])
    else:
        arguments = calls[at]["arguments"]
        if way == "order":
            for value in arguments.values():
                if isinstance(value, list):
                    draw.shuffle(value)
        elif arguments:
            key = draw.choice(sorted(arguments))
            pool = [c["arguments"][key] for o in others for c in o["calls"] if key in c["arguments"]]
            arguments[key] = draw.choice(pool) if way == "borrow" else _other(arguments[key], draw)
    return {**case, "calls": calls, "said": texts, "mutation": way}


def _other(value: Any, draw: random.Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + draw.choice([-1, 1])
    if isinstance(value, list):
        return [_other(one, draw) for one in value] if draw.random() < 0.5 else value[:-1]
    if isinstance(value, dict):
        key = draw.choice(sorted(value))
        return {**value, key: _other(value[key], draw)}
    return value[:-1] if draw.random() < 0.5 else f"{value}0"


def whetstone_parts(case: Case, task: Task, path: str) -> dict[str, float]:
    """Return the parts of the reward."""
    steps = [*map(_agent_message, case["calls"]), *map(assistant, case["said"])]
    left: Iterator[Any] = iter(steps)
    make = lambda: ENVIRONMENTS[case["domain"]](path=path)  # noqa: E731
    played = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(steps)))
    score = asyncio.run(tau2(played.trajectory, task, as_published=True))
    return {name: score.parts[part] for name, part in _PARTS.items() if name in task.private["reward_basis"]}


def _agent_message(call: Mapping[str, Any]) -> Message:
    """Return the agent's call; for a customer's call, the agent's instruction."""
    if call["requestor"] == "assistant":
        return assistant("", ToolCall(call["name"], json.dumps(call["arguments"])))
    return assistant(instruction_text(call["name"], call["arguments"]))


def reference_parts(cases: Sequence[Case], python: str, data: Path) -> list[dict[str, float]]:
    """Return the rewards of tau2's evaluators."""
    lines = _run_evaluator(python, data, "\n".join(map(json.dumps, cases)))
    return [json.loads(line) for line in lines if line.startswith("{")]


def read_version(python: str, data: Path) -> str:
    """Return the version of tau2-bench."""
    return _run_evaluator(python, data, "", "--version")[-1]


def _run_evaluator(python: str, data: Path, text: str, *options: str) -> list[str]:
    script = Path(__file__).with_name("tau2_evaluator.py")
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TAU2_DATA_DIR": str(data.resolve())}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, str(script), *options], input=text, stdout=subprocess.PIPE, env=environment, text=True, check=True
    )
    return done.stdout.splitlines()


def compare_domain(
    domain: str, data: Path, python: str, mutations: int, seed: int, verdicts: Verdicts
) -> dict[str, Any]:
    """Return the agreement on one domain with all differences."""
    path = data / "tau2" / "domains" / domain
    rows = json.loads((path / "tasks.json").read_text(encoding="utf-8"))
    tasks = {row["id"]: parse_task(row, domain) for row in rows}
    right = [gold(row, domain) for row in rows]
    draw = random.Random(f"{seed} {domain}")
    cases = right + [mutate(draw.choice(right), right, draw) for _ in range(mutations)]

    def judge(some: Sequence[Case]) -> list[tuple[dict[str, float], dict[str, float]]]:
        own = [whetstone_parts(case, tasks[case["task"]], str(path)) for case in some]
        return list(zip(own, reference_parts(some, python, data), strict=True))

    judged = verdicts.of(cases, judge)
    differences = [
        {"mutation": case["mutation"], "task": case["task"], "here": one, "there": other, "calls": case["calls"]}
        for case, (one, other, _) in zip(cases, judged, strict=True)
        if one != other
    ]
    reference = [other for _, other, _ in judged]
    kinds = Counter(one["mutation"] for one in differences)
    return {
        "domain": domain,
        "tasks": len(rows),
        "gold_agreed": len(right) - kinds["gold"],
        "gold_right": sum(all(one.values()) for one in reference[: len(right)]),
        "mutated": mutations,
        "mutated_agreed": mutations - sum(count for way, count in kinds.items() if way != "gold"),
        "mutated_right": sum(all(one.values()) for one in reference[len(right) :]),
        "seconds": round(sum(seconds for _, _, seconds in judged), 1),
        "differences": differences,
    }


def table(results: Sequence[Mapping[str, Any]], note: str = "") -> str:
    """Return the page of all domains."""
    return page(
        results,
        kind="domain",
        introduction=[
            "# tau2-bench: agreement with its own evaluator\n",
            "Episodes played through environment, tools and `reward: tau2` (`as_published: true`), "
            "and judged by tau2's",
            "own evaluators. `right`: how many episodes tau2 counts as done, without its assertions in words.\n",
            *([f"{note}\n"] if note else []),
        ],
        format_difference=lambda one, each: (
            f"{one['domain']}, task {each['task']}, {each['mutation']}: here {each['here']}, there {each['there']}"
        ),
    )


def main() -> None:
    """Compare the rewards and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder `data` of tau2-bench")
    parser.add_argument("--python", required=True, help="interpreter with tau2-bench")
    parser.add_argument("--domains", nargs="+", default=list(_DOMAINS))
    parser.add_argument("--mutations", type=int, default=200, help="mutated episodes per domain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="folder for tau2.md and raw/tau2.json")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--note", default="", help="note about the data, for the page")
    parser.add_argument("--kept", type=Path, help="file of verdicts; stored ones are reused")
    parser.add_argument("--seconds", type=float, help="stop judging after this time")
    arguments = parser.parse_args()
    began, version = time.perf_counter(), read_version(arguments.python, arguments.data)
    results = []
    for domain in arguments.domains:
        files = [*_DECIDES, *(f"environments/tau2/{name}.py" for name in _DECIDES_IN.get(domain, (domain,)))]
        verdicts = Verdicts(arguments.kept, of=files, version=version, seconds=arguments.seconds)
        results.append(
            compare_domain(domain, arguments.data, arguments.python, arguments.mutations, arguments.seed, verdicts)
        )
    options = {
        "versions": {"tau2-bench": version},
        "began": began,
        "folder": arguments.write,
        "as_json": arguments.json,
    }
    publish_agreement("tau2", results, table(results, arguments.note), **options)


if __name__ == "__main__":
    main()
