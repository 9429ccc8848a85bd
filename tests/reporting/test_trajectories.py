import json
import math
from dataclasses import replace

import pytest

from whetstone.chat import ToolCall, assistant, tool_result, user
from whetstone.errors import RunDirectoryError
from whetstone.reporting import read_trajectories, write_trajectories
from whetstone.trajectory import (
    Author,
    CallRecord,
    EndReason,
    Judgement,
    RemovalScope,
    Score,
    Tokens,
    Trajectory,
    Turn,
)

FIRST = Turn(
    Tokens.from_ids([1, 2], Author.ENVIRONMENT),
    Tokens.from_samples([3, 4], logprobs=[-0.1, -1 / 3], versions=[5, 6], entropies=[0.2, 0.3]),
    assistant("thinking é", ToolCall("calculator", '{"expression": "1+2"}', "call_0_0")),
    (tool_result("3", call_id="call_0_0"), user("go on")),
    reward=0.25,
    calls=(CallRecord("calculator", "ok", 0.125, True),),
    opens_segment=True,
    training_context=Tokens.from_ids([1], Author.ENVIRONMENT),
    generation_seconds=0.5,
    queue_seconds=0.25,
    environment_seconds=0.125,
)
LAST = Turn(Tokens.from_ids([7], Author.OTHER_AGENT), Tokens.from_ids([8], Author.EXPERT), assistant("3"))
WHOLE = Trajectory(
    "a", "task", (user("1+2?"),), (FIRST, LAST), EndReason.TERMINATED,
    score=Score(1.0, {"x": 1.0}, (0.5, 0.5), True, judgements=(Judgement("Is it?", {"reason": "so", "met": True}),)),
    seconds=1.5,
)  # fmt: skip


def columns(tokens):
    return (
        tokens.ids,
        tokens.authors,
        tokens.versions,
        *[tuple(None if math.isnan(v) else v for v in c) for c in (tokens.logprobs, tokens.entropies)],
    )


def same_turn(a, b):
    assert columns(a.context) == columns(b.context)
    assert columns(a.action) == columns(b.action)
    assert (a.training_context is None) == (b.training_context is None)
    fields = ["message", "observation", "reward", "calls", "opens_segment"]
    fields += ["generation_seconds", "queue_seconds", "environment_seconds"]
    assert [getattr(a, f) for f in fields] == [getattr(b, f) for f in fields]


def test_written_trajectories_are_read_back_field_by_field(tmp_path):
    failed = Trajectory("b", "task", (), (), EndReason.ERROR, "KeyError: 'x'", removal=RemovalScope.BEFORE_BASELINE)
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [WHOLE, failed])
    scored, none = read_trajectories(path)
    assert replace(scored, turns=()) == replace(WHOLE, turns=())
    assert scored.score.judgements == WHOLE.score.judgements  # equality of scores ignores them
    for a, b in zip(scored.turns, WHOLE.turns, strict=True):
        same_turn(a, b)
    assert none == failed


def test_every_line_is_strict_json_with_messages_in_the_openai_shape(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [WHOLE])
    row = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert [m["role"] for m in row["messages"]] == ["user", "assistant", "tool", "user", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["function"]["name"] == "calculator"
    assert row["turns"][0]["action"]["ids"] == [3, 4]


def test_fork_shares_the_turn_objects_of_its_parent(tmp_path):
    fork = replace(WHOLE, id="b", parent="a", fork_turn=1, turns=(FIRST, replace(LAST, message=assistant("4"))))
    write_trajectories(tmp_path / "t.jsonl", [WHOLE, fork])
    parent, child = read_trajectories(tmp_path / "t.jsonl")
    assert child.turns[0] is parent.turns[0]
    assert child.turns[1] is not parent.turns[1]
    assert child.turns[1].message.text == "4"


def test_invalid_line_and_missing_file_are_named(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [WHOLE])
    path.write_text(path.read_text() + '{"id": "x"}\n')
    with pytest.raises(RunDirectoryError, match=r"t\.jsonl:2  not a trajectory"):
        read_trajectories(path)
    with pytest.raises(RunDirectoryError, match="no such trajectory file"):
        read_trajectories(tmp_path / "none.jsonl")
