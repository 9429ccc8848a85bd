"""A line of JSON from any source is read, or costs one error with file, line and reason."""

import hashlib
import json
import os
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import records
from fuzzing.choices import Choices
from support.slow import mostly_slow
from whetstone.errors import RunDirectoryError
from whetstone.json_lines import (
    MAX_DEPTH,
    cut_incomplete_line,
    iterate_lines,
    make_shape,
    open_regular_file,
    parse_json,
    parse_object,
    read_event,
    read_objects,
    validate_shape,
)
from whetstone.rewards.judges.judge_client import AnswerCache, read_answer
from whetstone.serving.human_in_the_loop.queue import PeopleQueue
from whetstone.serving.online.feedback_journal import LearningJournal
from whetstone.trajectory_json import decode_trajectories

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_written_json_is_read_as_json_reads_it(value):
    assert parse_json(json.dumps(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, f"nested more than {MAX_DEPTH} levels"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels"),
    ],
)
def test_invalid_json_is_reported_in_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_depth_is_counted_in_brackets_outside_of_strings():
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(deep), separators=(",", ":")) == deep
    assert parse_json(json.dumps(["[" * 500] * 300)) == ["[" * 500] * 300


def test_unpaired_surrogate_is_replaced():
    assert parse_object(b'{"a": "\\ud800"}') == {"a": "\ufffd"}  # json.dumps writes such lines, orjson refuses them


def test_lines_are_read_one_at_a_time_and_a_long_one_is_the_last(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"ab\n" + b"c" * 20 + b"\nd\n")
    with open_regular_file(path) as file:
        lines = list(iterate_lines(file, max_bytes=10))
    assert [(line.number, line.offset, line.is_too_long) for line in lines] == [(1, 0, False), (2, 3, True)]
    assert len(lines[1].content) == 11


def test_damaged_line_is_an_error_or_skipped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1]\n{"a": "x"}\n{"a": 2}\n{"a": ')
    shape = make_shape(a=int)
    damaged = []
    rows = read_objects(
        path, lambda row: validate_shape(shape, row), on_damage=lambda *message: damaged.append(message)
    )
    assert list(rows) == [{"a": 1}, {"a": 2}]  # and the last line is being written
    assert [number for number, _ in damaged] == [3, 4]
    assert damaged[1][1].startswith("a: Input should be a valid integer")
    with pytest.raises(RunDirectoryError, match=r"rows\.jsonl:3: is damaged: a JSON object is expected, got list"):
        list(read_objects(path, lambda row: row))
    with pytest.raises(RunDirectoryError, match=r"rows\.jsonl:6: is damaged: not JSON"):
        list(read_objects(path, lambda row: row, on_damage=raise_at(6, path), may_be_incomplete=False))


def raise_at(wanted, path):
    def on_damage(number, reason):
        if number == wanted:
            raise RunDirectoryError(f"{path}:{number}: is damaged: {reason}")

    return on_damage


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="is not a regular file"):
            open_regular_file(path)


def test_an_event_is_named_by_its_first_key():
    shapes = {"opened": make_shape(opened=str, at=float)}
    assert read_event({"opened": "s", "at": 1, "more": 2}, shapes) == {"opened": "s", "at": 1.0}
    with pytest.raises(ValueError, match='unknown kind of line "closed"; known kinds: opened'):
        read_event({"closed": "s"}, shapes)
    with pytest.raises(ValueError, match='unknown kind of line ""'):
        read_event({}, shapes)


def test_incomplete_line_is_truncated(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a\nb")
    cut_incomplete_line(path)
    assert path.read_bytes() == b"a\n"


# ------------------------------------------------------------ readers


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{}", 'unknown kind of line ""'),
        (b"[]", "a JSON object is expected"),
        (b'{"seat": "s"}', "kind: Field required"),
        (b'{"over": "x", "why": "", "at": 1}', 'there is no seat "x"'),
        (b'{"claimed": ["s"], "by": "a", "until": 1}', "claimed: Input should be a valid string"),
        (b'{"asked": "s", "turn": 1000000, "messages": [], "at": 1}', "turn 1000000 does not follow"),
        (b"\xff", "not JSON"),
        (b"[" * 5000, "nested more than"),
    ],
)
def test_a_damaged_line_of_the_queue_of_people_is_named(tmp_path, line, message):
    seat = {"seat": "s", "kind": "user", "owner": "", "about": "", "seconds": 1, "episode": "", "at": 1}
    (tmp_path / "people.jsonl").write_bytes(json.dumps(seat).encode() + b"\n" + line + b"\n")
    with pytest.raises(RunDirectoryError, match=r"people\.jsonl:2: is damaged: ") as caught:
        PeopleQueue(tmp_path / "people.jsonl")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"back": 1, "version": 1, "to": 1}', "step 1 cannot go back to step 1"),  # was an endless loop
        (b'{"update": 5, "version": 1, "turns": [], "replayed": []}', "step 5 does not follow step 0"),
        (b'{"update": 1, "version": 1, "turns": [7], "replayed": []}', "KeyError: 7"),
        (b'{"paused": "perhaps"}', "paused: Input should be a valid boolean"),
        (b"{}", "unknown kind of line"),
    ],
)
def test_a_damaged_line_of_the_learning_journal_is_named(tmp_path, line, message):
    (tmp_path / "journal.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RunDirectoryError, match=r"journal\.jsonl:1: is damaged: ") as caught:
        LearningJournal(tmp_path / "journal.jsonl")
    assert message in str(caught.value)


def test_run_length_encoded_authors_are_refused_before_expansion():

    row = json.loads(json.dumps(records._TRAJECTORY))
    row["turns"][0]["context"]["authors"] = [["environment", 10**15]]
    with pytest.raises(ValueError, match=r"authors: the run lengths must sum to the number of ids \(3\)"):
        decode_trajectories([json.dumps(row).encode()])


def test_invalid_json_of_a_judge_is_reported_in_one_line():
    shape = {"type": "object"}
    for text in ("[" * 100_000, "9" * 5000, '{"a": NaN}', "{"):
        answer, wrong = read_answer(text, shape)
        assert answer is None
        assert "is not JSON" in wrong


def test_a_damaged_answer_on_disk_is_named(tmp_path):

    cache = AnswerCache(str(tmp_path / "answers.sqlite"))
    cache.put("a", {"met": True})
    cache.close()
    with sqlite3.connect(tmp_path / "answers.sqlite") as db:
        db.execute("UPDATE answers SET answer = CAST(? AS TEXT)", (b"\xff{",))
    with pytest.raises(RunDirectoryError, match=r"answers\.sqlite: row 1 of answers is damaged: not JSON"):
        AnswerCache(str(tmp_path / "answers.sqlite")).get("a")
    (tmp_path / "answers.sqlite").write_bytes(b"no database at all, but long enough" * 9)
    with pytest.raises(RunDirectoryError, match="not a cache of judge answers"):
        AnswerCache(str(tmp_path / "answers.sqlite")).get("a")


@pytest.mark.parametrize("count", mostly_slow([150, 20_000], quick=[150]))
@pytest.mark.parametrize(
    "reader", ["metrics", "people", "trajectories", "journal", "live journal", "judged turns", "judge answers"]
)
def test_any_bytes_are_read_or_are_one_error_with_its_place(reader, count):

    for number in range(count):
        records.read(reader, Choices(hashlib.shake_128(f"{reader} {number}".encode()).digest(16 << (number % 7))))


@pytest.mark.parametrize("count", mostly_slow([60, 2_000], quick=[60]))
def test_a_run_of_any_bytes_is_shown(count):

    for number in range(count):
        records.read("viewer", Choices(hashlib.shake_128(f"viewer {number}".encode()).digest(16 << (number % 7))))
