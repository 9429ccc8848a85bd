"""Records of runs and servers: any bytes are read, or the error is one line with the damaged file and line.

The viewer shows the readable part of a run with any files.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzzing.choices import Choices, require
from fuzzing.trying import scratch
from whetstone.chat.api.requests import RefusedError
from whetstone.chat.message import ToolCall, assistant, tool_result, user
from whetstone.errors import WhetstoneError
from whetstone.record import RunRecord, stored_lines
from whetstone.reporting import Journal, metrics, read_trajectories
from whetstone.reporting.alarms import find_alarms
from whetstone.rewards.judges.judge_client import AnswerCache, read_answer
from whetstone.serving.human_in_the_loop.queue import PeopleQueue
from whetstone.serving.online.feedback_journal import LearningJournal
from whetstone.serving.online.turns import TurnStore
from whetstone.trajectory import Author, CallRecord, EndReason, Score, Task, Tokens, Trajectory, Turn
from whetstone.trajectory_json import encode_trajectory, encode_turn
from whetstone.viewer.runs import ViewedRun
from whetstone.viewer.trajectory_query import TrajectoryQuery
from whetstone.viewer.viewer_app import Viewer

_folder = scratch("records")
_READ = Tokens.from_ids([1, 2, 3], Author.ENVIRONMENT)
_DRAWN = Tokens.from_samples([4, 5], logprobs=[-0.5, -1.5], versions=[7, 7], entropies=[0.25, 0.75])
_CALL = assistant("", ToolCall("sum", '{"a": 1}', "call_0"))
_TURN = Turn(_READ, _DRAWN, _CALL, (tool_result("41", call_id="call_0"),), calls=(CallRecord("sum", "ok", 0.1),))
_EPISODE = Trajectory(
    id="group-1/sums/1#0", task_id="sums/1", opening=(user("Compute"),), turns=(_TURN,), ended=EndReason.TERMINATED,
    score=Score(1.0, {"right": 1.0}, (1.0,), True), seconds=1.0,
)  # fmt: skip
_TRAJECTORY = json.loads(encode_trajectory(_EPISODE))

METRICS = [
    {"stage": stage, "step": step, "reward/mean": 0.5, "episode/success": 0.5, "loss/total": 1.0, "time/rollout": 1.0,
     "time/update": 1.0, "cost_per_step/episodes": 8.0, "episode/invalid": 0.0}
    for stage, step in (("supervised", 1), ("reinforcement", 1), ("reinforcement", 2))
]  # fmt: skip
JOURNAL = [
    {"event": "admitted", "group": 1, "version": 0, "task": 1},
    {"event": "cache", "group": 1, "task": "sums/1", "file": "step-000001.jsonl", "offset": 0, "length": 5,
     "checksum": 1, "costs": [1, 0, 1, 1]},
    {"event": "lost", "group": 2, "reason": "failed"},
    {"event": "consumed", "update": 0, "groups": [1], "passed_over": []},
    {"event": "begun", "update": 0},
    {"event": "updated", "update": 0},
    {"event": "fault", "kind": "episode", "said": "why", "episode": "e", "time": 1.0},
]  # fmt: skip
TURNS = [{"episode": "e", "turn": json.loads(json.dumps(encode_turn(_TURN)))}, {"over": ["e"]}]
PEOPLE = [
    {"seat": "s", "kind": "user", "owner": "", "about": "x", "seconds": 600, "episode": "", "at": 1.0},
    {"query": "s", "turn": 0, "messages": [{"role": "user", "content": "hi"}], "at": 2.0},
    {"claimed": "s", "by": "Ada", "until": 62.0},
    {"released": "s", "by": "Ada", "why": "deadline", "at": 62.0},
    {"claimed": "s", "by": "Bo", "until": 92.0},
    {"said": "s", "by": "Bo", "message": {"role": "user", "content": "yes"}, "ended": False, "at": 70.0},
    {"note": "n", "episode": "e", "answer": 0, "by": "Ada", "rating": 1.0, "at": 3.0},
    {"over": "s", "why": "deadline", "at": 700.0},
]
LIVE = [
    {"turn": 7, "episode": "a"}, {"turn": 8, "episode": "b"},
    {"update": 1, "version": 1, "turns": [7], "replayed": []}, {"evaluated": 1, "success": 0.8},
    {"update": 2, "version": 2, "turns": [8], "replayed": [7]}, {"void": 2},
    {"back": 3, "version": 3, "to": 1}, {"decided": "a", "approved": True}, {"paused": False}, {"begin": 9},
]  # fmt: skip
JUDGED = [{"number": 0, "episode": "e", "answer": 0, "reward": 1.0, "hint": "", "why": "", "hinted": [],
           "trajectory": _TRAJECTORY}]  # fmt: skip
ANSWER = {"met": True, "score": 3, "reason": "because"}
_SHAPE = {
    "type": "object", "properties": {"met": {"type": "boolean"}, "score": {"type": "integer"}}, "required": ["met"]
}  # fmt: skip
_RECIPE = {"title": "Sums", "policy": {"path": "x"}, "reinforcement": {"steps": 4}, "tasks": {"source": "arithmetic"}}
_EVALUATION = {"success": 0.5, "interval": [0.2, 0.8], "episodes": 8, "reward": 0.5, "kinds": {}}
_SUMMARY = {"evaluations": {"untrained": _EVALUATION, "reinforcement": _EVALUATION}}
WORDS = tuple(sorted({
    key for row in (*METRICS, *JOURNAL, *TURNS, *PEOPLE, *LIVE, *JUDGED, _TRAJECTORY, *_TRAJECTORY["turns"], _RECIPE,
                    _TRAJECTORY["turns"][0]["context"], _TRAJECTORY["score"], _SUMMARY, _EVALUATION) for key in row
}))  # fmt: skip
_TAILS = (
    b"", b"", b"\xff\xfe\n", b"[" * 5000 + b"\n", b'{"a":' * 3000 + b"\n", b"\n\n", b"{}\n", b"[]\n", b"5\n",
    b'{"stage": ', b"null\n", b'{"a": 1e999}\n', b'{"a": ' + b"9" * 5000 + b"}\n", b'"\\ud800"\n', b"\x00\x00",
)  # fmt: skip


def generate_lines(choices: Choices, rows: Sequence[Any]) -> bytes:
    """Generate a file of lines with random damage."""
    written = []
    for row in rows:
        if choices.often(16):
            continue
        for _ in range(2 if choices.often(16) else 1):
            text = choices.json(_changed(choices, row) if choices.often(100) else row, WORDS)
            written.append(text.encode("utf-8", errors="surrogatepass") + b"\n")
        if choices.often(16):
            written.append(choices.one(_TAILS))
    content = b"".join(written) + (choices.one(_TAILS) if choices.often(60) else b"")
    if choices.often(24):
        content = content[: choices.below(len(content) + 1)]
    if choices.often(24):
        at = choices.below(len(content) + 1)
        content = content[:at] + choices.raw(4) + content[at:]
    return content


def _changed(choices: Choices, value: Any) -> Any:
    """Return a value with one random change."""
    if isinstance(value, dict) and value and not choices.often(60):
        key = choices.one(list(value))
        if choices.often(40):
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _changed(choices, value[key])}
    if isinstance(value, list) and value and not choices.often(60):
        place = choices.below(len(value))
        return [*value[:place], _changed(choices, value[place]), *value[place + 1 :]]
    return choices.value(WORDS, 2)


def _new(name: str) -> Path:
    folder = _folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _read_metrics(choices: Choices) -> None:
    folder = _new("metrics")
    content = generate_lines(choices, METRICS)
    (folder / "metrics.jsonl").write_bytes(content)
    warned: list[str] = []
    journal = Journal(folder, warn=warned.append)
    rows = journal.read()
    damaged = len(warned)
    lines = [line for line in content.splitlines() if line.strip()]
    require(len(rows) + damaged <= len(content.split(b"\n")), "more rows than lines", len(rows))
    require(
        len(rows) + damaged + 1 >= len([line for line in content.split(b"\n") if line.strip()]), "a lost row", lines
    )
    journal.truncate_rows({"supervised": 1, "reinforcement": 2})
    copies = list(folder.glob("*.damaged*"))
    require(bool(copies) == bool(damaged), "a damaged file without a copy", copies)
    require(not copies or copies[0].read_bytes() == content, "a copy that is another", copies)
    require(journal.read() == [row for row in rows if row["step"] <= {"supervised": 1, "reinforcement": 2}.get(
        row["stage"], 0)], "rows that are others after a rewind")  # fmt: skip


def _read_people(choices: Choices) -> None:
    path = _new("people") / "people.jsonl"
    path.write_bytes(generate_lines(choices, PEOPLE))
    queue = PeopleQueue(path, clock=lambda: 80.0)
    for seat in queue.open_seats():
        json.dumps(seat.to_json())
    queue.claim_seat("Eve")
    queue.forget_episode("e")
    PeopleQueue(path, clock=lambda: 90.0)


def _read_trajectories(choices: Choices) -> None:
    folder = _new("trajectories")
    path = folder / "trajectories" / "step-000001.jsonl"
    path.parent.mkdir()
    path.write_bytes(generate_lines(choices, [_TRAJECTORY, {**_TRAJECTORY, "id": "b", "parent": _TRAJECTORY["id"]}]))
    try:
        stored_lines(folder)
    finally:
        for trajectory in read_trajectories(path):
            encode_trajectory(trajectory)
            trajectory.segments()


def _read_journal(choices: Choices) -> None:
    folder = _new("journal")
    (folder / "store").mkdir()
    (folder / "store" / "journal.jsonl").write_bytes(generate_lines(choices, JOURNAL))
    (folder / "store" / "turns.jsonl").write_bytes(generate_lines(choices, TURNS) if choices.often(128) else b"")
    record = RunRecord(folder)
    record.list_waiting_groups(), record.too_long(before=3), record.begun_episodes("e")
    for number in record.admitted:
        if record.has_group(number):
            try:
                record.load(number, Task("", ""))
            except WhetstoneError as error:
                require("group" in str(error), "an error without its group", error)


def _read_live(choices: Choices) -> None:
    path = _new("live") / "journal.jsonl"
    path.write_bytes(generate_lines(choices, LIVE))
    journal = LearningJournal(path)
    require(journal.now <= journal.step, "weights that are not made yet", journal.now)
    journal.path_to(journal.step, {0})
    require(journal.best is None or journal.best[0] in journal.success, "a best step without success")


def _read_judged(choices: Choices) -> None:
    folder = _new("judged")
    (folder / "a.jsonl").write_bytes(generate_lines(choices, JUDGED))
    TurnStore(folder)


def _read_judges(choices: Choices) -> None:
    text = generate_lines(choices, [ANSWER])
    answer, wrong = read_answer(text.decode("utf-8", errors="replace"), _SHAPE)
    require((answer is None) == bool(wrong), "neither an answer nor a reason", wrong)
    path = _new("judges") / "answers.sqlite"
    if choices.often(40):
        path.write_bytes(choices.one((b"SQLite format 3\x00", b"", b"\x00")) + text)
    cache = AnswerCache(str(path))
    try:
        cache.put("a", ANSWER)
        cache.close()
        with sqlite3.connect(path) as db:
            db.execute("UPDATE answers SET answer = CAST(? AS TEXT)", (text,))
        db.close()
        cache = AnswerCache(str(path))
        require(isinstance(cache.get("a"), Mapping), "an answer that is none")
    finally:
        cache.close()


def _read_viewed(choices: Choices) -> None:
    folder = _new("viewed")
    for name in ("trajectories", "store", "evaluations"):
        (folder / name).mkdir()
    files: dict[str, Sequence[Any]] = {
        "recipe.yaml": [_RECIPE], "summary.json": [_SUMMARY], "metrics.jsonl": METRICS,
        "evaluations/untrained.json": [_EVALUATION], "evaluations/reinforcement-000002.json": [_EVALUATION],
        "store/journal.jsonl": JOURNAL, "trajectories/step-000001.jsonl": [_TRAJECTORY, _TRAJECTORY],
    }  # fmt: skip
    for name, rows in files.items():
        content = generate_lines(choices, rows) if choices.often(100) else b"".join(
            json.dumps(row).encode() + b"\n" for row in rows
        )  # fmt: skip
        (folder / name).write_bytes(content)
    run = ViewedRun(folder, "run", cache=folder / "cache")
    viewer = Viewer([run])
    try:
        run.refresh()
        answers: list[Callable[[], Any]] = [
            viewer.state, run.describe_run, run.build_curves, run.index.list_filter_values, viewer.compare,
            lambda: viewer.steps(run, {}),
            lambda: viewer.episodes(run, {"step": "1"}), lambda: viewer.trace(run, {}),
            lambda: [asdict(alarm) for alarm in find_alarms(run.metrics.rows)],
        ]  # fmt: skip
        for row in run.index.query_page(TrajectoryQuery.parse({})).rows:
            query = {"id": row["id"], "part": row["part"]}
            answers.append(lambda query=query: viewer.trajectory(run, query))  # type: ignore[misc]
        for answer in answers:
            try:
                answer()
            except RefusedError as error:
                require(error.status < 500, "a refusal that is the server's", error)
    finally:
        viewer.close()


READERS: dict[str, Callable[[Choices], None]] = {
    "metrics": _read_metrics,
    "people": _read_people,
    "trajectories": _read_trajectories,
    "journal": _read_journal,
    "live journal": _read_live,
    "judged turns": _read_judged,
    "judge answers": _read_judges,
    "viewer": _read_viewed,
}


def one(choices: Choices) -> None:
    """Run one input."""
    read(choices.note("reader", choices.one(list(READERS))), choices)


def read(reader: str, choices: Choices) -> None:
    """Run one input of one reader."""

    async def ask() -> None:  # the queue of people waits in a loop
        READERS[reader](choices)

    try:
        asyncio.run(ask()) if reader == "people" else READERS[reader](choices)
    except WhetstoneError as error:
        message = str(error)
        require("\n" not in message and len(message) < 3000, "no one line", repr(message))
        require(
            any(place in message for place in (".jsonl:", "group", ".sqlite: ")), "an error without its place", message
        )


def plant() -> None:
    """Plant a reader that takes the stage of a metrics row for a text."""

    def careless(row: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("planted")

    vars(metrics)["parse_metrics"] = careless
