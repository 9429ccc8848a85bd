"""Verdicts of tau2-bench's own evaluator, run by `tau2.py` in an environment with tau2, with episodes on stdin.

python tau2_evaluator.py < cases.jsonl > verdicts.jsonl
python tau2_evaluator.py --version
"""

# ruff: noqa: E402  tau2 reads its data folder from the environment on import
from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import os
import pickle
import sys
import tomllib
from pathlib import Path
from typing import Any

import orjson
from loguru import logger

logger.remove()

from tau2.data_model.message import (
    AssistantMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from tau2.environment.db import DB
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator
from tau2.registry import registry

import tau2

_load = DB.load.__func__
_ready: dict[Any, list[Any]] = {}


def _load_cached(cls: Any, path: Any) -> Any:
    """Return one of two databases that were loaded before this process was forked for an episode."""
    key = (cls, str(path))
    if key not in _ready:
        first = _load(cls, path)
        _ready[key] = [pickle.loads(pickle.dumps(first)), first]
    return _ready[key].pop() if os.getpid() != _PARENT else _ready[key][0]


def _hash(database: Any) -> str:
    """Return a hash that is equal if and only if tau2's is, and faster to compute."""
    return hashlib.sha256(orjson.dumps(database.model_dump(), option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()


_PARENT = os.getpid()
DB.load, DB.get_hash = classmethod(_load_cached), _hash


def build_messages(case: dict[str, Any]) -> list[Any]:
    """Return the messages of an episode: calls with empty results, which are not compared, and the final texts."""
    results: list[Any] = []
    for number, call in enumerate(case["calls"]):
        by = call.get("requestor", "assistant")
        call_made = ToolCall(id=str(number), name=call["name"], arguments=call["arguments"], requestor=by)
        message = AssistantMessage if by == "assistant" else UserMessage
        results.append(message(role=by, tool_calls=[call_made]))
        results.append(ToolMessage(id=str(number), role="tool", requestor=by, content=""))
    return results + [AssistantMessage(role="assistant", content=text) for text in case["said"]]


def judge_episode(task: Any, case: dict[str, Any]) -> dict[str, float]:
    """Return the rewards of the evaluators that the task specifies, except those that query a model."""
    episode = build_messages(case)
    basis = [one.value for one in task.evaluation_criteria.reward_basis]
    world = registry.get_env_constructor(case["domain"])
    checks = EnvironmentEvaluator.calculate_reward(world, task, episode, strict_replay=False)
    verdict = {name.value: value for name, value in (checks.reward_breakdown or {}).items()}
    if "COMMUNICATE" in basis:
        verdict["COMMUNICATE"] = CommunicateEvaluator.calculate_reward(task, episode).reward
    if "ACTION" in basis:
        verdict["ACTION"] = ActionEvaluator.calculate_reward(task, episode).reward
    return verdict


def version() -> str:
    """Return the version of the package, from its project file if it is not installed."""
    try:
        return importlib.metadata.version("tau2")
    except importlib.metadata.PackageNotFoundError:
        file = Path(str(tau2.__file__)).parents[2] / "pyproject.toml"
        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])


def main() -> None:
    """Judge each episode in a forked process."""
    if sys.argv[1:] == ["--version"]:
        print(version())
        return
    tasks: dict[str, dict[str, Any]] = {}
    for line in sys.stdin:
        case = json.loads(line)
        domain = case["domain"]
        if domain not in tasks:
            tasks[domain] = {task.id: task for task in registry.get_tasks_loader(domain)(None)}
            registry.get_env_constructor(domain)()
            gc.freeze()
        if child := os.fork():
            if os.waitpid(child, 0)[1]:
                print(json.dumps({"failed": 1.0}), flush=True)
            continue
        print(json.dumps(judge_episode(tasks[domain][case["task"]], case)), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
