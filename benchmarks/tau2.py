"""Does what is counted here agree with tau2-bench's own evaluator? Gold actions of every task, and mutated ones.

    python benchmarks/tau2.py --data tau2-bench/data --python tau2/bin/python [--write benchmarks/results]
    python benchmarks/tau2.py … --kept verdicts.jsonl --seconds 150    # as often as it says that some are left

`--python` has tau2-bench installed. Each episode is played here through environment, tools and reward, and judged there
by tau2's evaluators of database, assertions on the world, actions and what was said. What takes a model to judge (the
assertions in words) is judged by neither. Customers of telecom do on their phones what they are told to.
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

from agreement import Verdicts, page, reported
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import ENVIRONMENTS
from whetstone.environments.tau2 import task_of, told
from whetstone.evaluation.contract import play
from whetstone.rewards import tau2
from whetstone.trajectory import Task

_DOMAINS = ("retail", "airline", "telecom")
_DECIDES = (
    "environments/tau2/desk.py", "environments/tau2/store.py", "environments/tau2/tasks.py", "rewards/worlds/tau2.py",
)  # fmt: skip
_DECIDES_IN = {"telecom": ("telecom", "phone", "staging", "caller")}
"""What of ours a verdict comes from: of all domains, and the modules of one."""
_PARTS = {"DB": "database", "ACTION": "actions", "ENV_ASSERTION": "assertions", "COMMUNICATE": "communicated"}
_BYE = "Is there anything else I can help with?"
Case = dict[str, Any]


def gold(row: Mapping[str, Any], domain: str) -> Case:
    """The episode in which everything is done that has to be."""
    criteria = row["evaluation_criteria"]
    calls = [
        {"name": one["name"], "arguments": one["arguments"], "requestor": one.get("requestor") or "assistant"}
        for one in criteria.get("actions") or ()
    ]
    said = [*(str(text) for text in criteria.get("communicate_info") or ()), _BYE]
    return {"domain": domain, "task": row["id"], "calls": calls, "said": said, "mutation": "gold"}


def mutated(case: Case, others: Sequence[Case], draw: random.Random) -> Case:
    """The episode with one thing changed by chance."""
    calls, said = json.loads(json.dumps(case["calls"])), list(case["said"])
    donor = draw.choice([one for one in others if one["calls"]])
    ways = ["insert", "silence"] + ["drop", "twice", "swap", "argument", "order", "borrow", "spelling"] * bool(calls)
    way = draw.choice(ways)
    at = draw.randrange(len(calls)) if calls else 0
    if way == "insert":
        calls.insert(at, draw.choice(donor["calls"]))
    elif way == "silence":
        said = [draw.choice([_BYE, ", ".join(said), "1234567890 " + _BYE])]
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
    return {**case, "calls": calls, "said": said, "mutation": way}


def _other(value: Any, draw: random.Random) -> Any:
    """Another value of the same type."""
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


def here(case: Case, task: Task, path: str) -> dict[str, float]:
    """What the reward says, part by part."""
    steps = [*map(_said_or_called, case["calls"]), *map(assistant, case["said"])]
    left: Iterator[Any] = iter(steps)
    make = lambda: ENVIRONMENTS[case["domain"]](path=path)  # noqa: E731
    played = asyncio.run(play(make, task, lambda *_: next(left), seed=0, max_turns=len(steps)))
    score = asyncio.run(tau2(played.trajectory, task, as_published=True))
    return {name: score.parts[part] for name, part in _PARTS.items() if name in task.private["reward_basis"]}


def _said_or_called(call: Mapping[str, Any]) -> Message:
    """The agent's call; or the customer's, as what the agent tells him."""
    if call["requestor"] == "assistant":
        return assistant("", ToolCall(call["name"], json.dumps(call["arguments"])))
    return assistant(told(call["name"], call["arguments"]))


def there(cases: Sequence[Case], python: str, data: Path) -> list[dict[str, float]]:
    """What tau2's evaluators say."""
    lines = _asked(python, data, "\n".join(map(json.dumps, cases)))
    return [json.loads(line) for line in lines if line.startswith("{")]


def version_of(python: str, data: Path) -> str:
    """Of tau2-bench."""
    return _asked(python, data, "", "--version")[-1]


def _asked(python: str, data: Path, text: str, *options: str) -> list[str]:
    script = Path(__file__).parent / "compared" / "tau2_evaluator.py"
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TAU2_DATA_DIR": str(data.resolve())}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, str(script), *options], input=text, stdout=subprocess.PIPE, env=environment, text=True, check=True
    )
    return done.stdout.splitlines()


def compared(domain: str, data: Path, python: str, mutations: int, seed: int, verdicts: Verdicts) -> dict[str, Any]:
    """Agreement on one domain, and every difference."""
    path = data / "tau2" / "domains" / domain
    rows = json.loads((path / "tasks.json").read_text(encoding="utf-8"))
    tasks = {row["id"]: task_of(row, domain) for row in rows}
    right = [gold(row, domain) for row in rows]
    draw = random.Random(f"{seed} {domain}")
    cases = right + [mutated(draw.choice(right), right, draw) for _ in range(mutations)]

    def judge(some: Sequence[Case]) -> list[tuple[dict[str, float], dict[str, float]]]:
        ours = [here(case, tasks[case["task"]], str(path)) for case in some]
        return list(zip(ours, there(some, python, data), strict=True))

    judged = verdicts.of(cases, judge)
    differences = [
        {"mutation": case["mutation"], "task": case["task"], "here": one, "there": other, "calls": case["calls"]}
        for case, (one, other, _) in zip(cases, judged, strict=True)
        if one != other
    ]
    theirs = [other for _, other, _ in judged]
    kinds = Counter(one["mutation"] for one in differences)
    return {
        "domain": domain,
        "tasks": len(rows),
        "gold_agreed": len(right) - kinds["gold"],
        "gold_right": sum(all(one.values()) for one in theirs[: len(right)]),
        "mutated": mutations,
        "mutated_agreed": mutations - sum(count for way, count in kinds.items() if way != "gold"),
        "mutated_right": sum(all(one.values()) for one in theirs[len(right) :]),
        "seconds": round(sum(seconds for _, _, seconds in judged), 1),
        "differences": differences,
    }


def table(found: Sequence[Mapping[str, Any]], note: str = "") -> str:
    """The same as a page."""
    return page(
        found,
        kind="domain",
        opening=[
            "# tau2-bench: agreement with its own evaluator\n",
            "Episodes played through environment, tools and `reward: tau2` (`as_published: true`), "
            "and judged by tau2's",
            "own evaluators. `right`: how many episodes tau2 counts as done, without its assertions in words.\n",
            *([f"{note}\n"] if note else []),
        ],
        told=lambda one, each: (
            f"{one['domain']}, task {each['task']}, {each['mutation']}: here {each['here']}, there {each['there']}"
        ),
    )


def main() -> None:
    """Compare, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder data of tau2-bench")
    parser.add_argument("--python", required=True, help="a Python that has tau2-bench")
    parser.add_argument("--domains", nargs="+", default=list(_DOMAINS))
    parser.add_argument("--mutations", type=int, default=200, help="mutated episodes a domain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a folder for tau2.md and tau2.json")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--note", default="", help="what has to be known of the data, told on the page")
    parser.add_argument("--kept", type=Path, help="a file for verdicts, to go on behind those it has")
    parser.add_argument("--seconds", type=float, help="judge no more after so long")
    asked = parser.parse_args()
    began, version = time.perf_counter(), version_of(asked.python, asked.data)
    found = []
    for domain in asked.domains:
        files = [*_DECIDES, *(f"environments/tau2/{name}.py" for name in _DECIDES_IN.get(domain, (domain,)))]
        verdicts = Verdicts(asked.kept, of=files, version=version, seconds=asked.seconds)
        found.append(compared(domain, asked.data, asked.python, asked.mutations, asked.seed, verdicts))
    given = {"versions": {"tau2-bench": version}, "began": began, "folder": asked.write, "as_json": asked.json}
    reported("tau2", found, table(found, asked.note), **given)


if __name__ == "__main__":
    main()
