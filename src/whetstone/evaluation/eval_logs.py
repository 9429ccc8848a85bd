"""Import and export of evaluation logs: Inspect, and the samples of EleutherAI's lm-evaluation-harness.

The export is a JSON file that Inspect's viewer and `read_eval_log` open. Imported logs give the fraction of successful
episodes per task, the input of a paired comparison.

Note: A log without samples has a mean but no tasks, and means cannot be paired; it is rejected.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from whetstone.chat import Message
from whetstone.errors import TaskError
from whetstone.evaluation.results import Evaluation
from whetstone.strict_json import to_plain_values
from whetstone.trajectory import Group, Trajectory

_SCORER = "success"
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's letters for correct, incorrect, partial and no answer."""
_METRICS = ("success", "acc", "exact_match", "pass@1", "acc_norm")
"""Metrics of the harness; if a sample has several, the first of these is used."""


def inspect_json(
    name: str, evaluation: Evaluation, protocol: Mapping[str, Any], groups: Sequence[Group]
) -> dict[str, Any]:
    """Build an Inspect log: header, results, and a sample for each valid episode.

    Source: Inspect, https://inspect.aisi.org.uk/eval-logs.html, version 2.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    numbers = {"accuracy": evaluation.success, "stderr": evaluation.standard_error, "reward": evaluation.reward}
    metrics = {key: {"name": key, "value": value} for key, value in numbers.items() if math.isfinite(value)}
    samples = [
        _sample(group, trajectory, epoch)
        for group in groups
        for epoch, trajectory in enumerate((t for t in group.trajectories if t.score is not None), start=1)
    ]
    epochs = max((sample["epoch"] for sample in samples), default=1)
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": f"{name}-{protocol.get('seed', 0)}",
            "run_id": f"{name}-{protocol.get('seed', 0)}",
            "created": now,
            "task": name,
            "task_id": name,
            "task_version": 0,
            "dataset": {"name": name, "samples": evaluation.tasks, "sample_ids": sorted({s["id"] for s in samples})},
            "model": str(protocol.get("agent", "")) or "whetstone",
            "model_generate_config": {"temperature": evaluation.temperature},
            "config": {"epochs": epochs},
            "packages": {"whetstone": str(protocol.get("whetstone", ""))},
            "metadata": to_plain_values(dict(protocol)),
        },
        "plan": {"name": "plan", "steps": []},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [{"name": _SCORER, "scorer": _SCORER, "params": {}, "metrics": metrics}],
        },
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
        "samples": samples,
    }


def _sample(group: Group, trajectory: Trajectory, epoch: int) -> dict[str, Any]:
    assert trajectory.score is not None
    messages = [*trajectory.opening]
    for turn in trajectory.turns:
        messages += [turn.message, *turn.observation]
    value = {
        "value": float(trajectory.solved),
        "answer": trajectory.final_text,
        "metadata": dict(trajectory.score.parts),
    }
    return {
        "id": group.task.id,
        "epoch": epoch,
        "input": group.task.prompt,
        "target": str(group.task.private.get("answer", "")),
        "messages": [_message(message) for message in messages],
        "output": {"model": "whetstone", "choices": []},
        "scores": {_SCORER: value},
        "metadata": {"ended": str(trajectory.ended), "reward": trajectory.score.value, **group.task.tags},
    }


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id or str(at),
                "function": call.name,
                "arguments": _arguments(call.arguments),
                "type": "function",
            }
            for at, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
    return written


def _arguments(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        return {"text": text}
    return read if isinstance(read, dict) else {"text": text}


def read_task_scores(path: Path) -> dict[str, float]:
    """Read the mean score in [0, 1] by task from an Inspect log (`.json`) or the harness's samples.

    Samples are in `samples_….jsonl`, written with `--log_samples`.

    Raises:
        TaskError: If the file does not exist, has neither format, or has no samples.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such log")
    if path.suffix == ".eval":
        raise TaskError(
            f"{path}: binary Inspect logs are not supported; convert it with `inspect log convert --to json`"
        )
    try:
        rows = (
            [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
            if (path.suffix == ".jsonl")
            else json.loads(path.read_text(encoding="utf-8"))
        )
    except ValueError as error:
        raise TaskError(f"{path}: not JSON: {error}") from None
    if isinstance(rows, dict) and "eval" in rows:
        samples = [(str(one["id"]), _value(one.get("scores") or {})) for one in rows.get("samples") or ()]
    elif isinstance(rows, list) and all(isinstance(row, dict) and "doc_id" in row for row in rows):
        samples = [(str(row["doc_id"]), _metric(row)) for row in rows]
    elif isinstance(rows, dict) and "results" in rows:
        raise TaskError(f"{path}: results without samples; run the harness with --log_samples and use samples_….jsonl")
    else:
        raise TaskError(
            f"{path}: neither an Inspect log (.json) nor samples of lm-evaluation-harness (samples_….jsonl)"
        )
    return _means(path, samples)


def _means(path: Path, samples: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for task, value in samples:
        if value is not None:
            values[task].append(value)
    if not values:
        raise TaskError(f"{path}: no sample has a score; export the log after scoring")
    return {task: fmean(each) for task, each in values.items()}


def _value(scores: Mapping[str, Any]) -> float | None:
    """Return the value of `success` or of the first scorer; None if it is neither a number nor an Inspect letter."""
    score = scores.get(_SCORER) or next(iter(scores.values()), None)
    value = score.get("value") if isinstance(score, dict) else None
    return _number(_LETTERS.get(value, value) if isinstance(value, str) else value)


def _metric(row: Mapping[str, Any]) -> float | None:
    named = [name for name in (*_METRICS, *row.get("metrics", ())) if name in row]
    return _number(row[named[0]]) if named else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
