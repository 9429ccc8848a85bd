"""The index has every trajectory once, whatever the state of the files."""

import sqlite3

import pytest

from support.viewed_runs import episode, evaluated, made_run, played
from whetstone.chat.api.requests import RefusedError
from whetstone.chat.message import tool_result
from whetstone.record import RunStore
from whetstone.trajectory_json import encode_trajectory
from whetstone.viewer.trajectory_index import TrajectoryIndex
from whetstone.viewer.trajectory_query import TrajectoryQuery


@pytest.fixture
def build_index(tmp_path):
    def index(run):
        trajectory_index = TrajectoryIndex(run, folder=tmp_path / "cache")
        trajectory_index.refresh()
        return trajectory_index

    return index


def ids(index, **parameters):
    return [row["id"] for row in index.query_page(TrajectoryQuery.parse({"limit": "200", **parameters})).rows]


def test_every_trajectory_is_indexed_with_its_reward(tmp_path, build_index):
    page = build_index(made_run(tmp_path / "run")).query_page(TrajectoryQuery())
    assert (page.count, page.reward, page.success) == (
        12,
        0.5,
        0.5,
    )  # 3 steps of 2 tasks of 2 samples, half of them right
    row = page.rows[0]
    assert (row["step"], row["turns"], row["calls"], row["tokens"], row["version"]) == (3, 2, 1, 4, 7)
    assert row["parts"] == {"right": row["reward"]}
    assert row["excerpt"] == "42"


def test_step_is_the_update_that_used_the_group(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=2)
    store = RunStore(run, groups_per_file=2)
    played(store, 4)
    store.consume_groups(8, [4])
    store.close()
    index = build_index(run)
    assert {row["step"] for row in index.group_members(4)} == {9}
    assert index.group_state(4) == "learned from"


def test_group_used_after_it_was_read_moves_to_its_step(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    store = RunStore(run, groups_per_file=2)
    played(store, 2)
    index = build_index(run)
    assert (index.group_state(2), {row["step"] for row in index.group_members(2)}) == ("waiting", {2})
    store.consume_groups(6, [2])
    store.close()
    index.refresh()
    assert {row["step"] for row in index.group_members(2)} == {7}


def test_new_lines_are_added_and_nothing_is_read_twice(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    index = build_index(run)
    store = RunStore(run, groups_per_file=2)
    played(store, 2)
    store.close()
    index.refresh()
    index.refresh()
    assert index.count_trajectories() == 6
    assert len(set(ids(index))) == 6


def test_partial_line_is_read_when_it_is_complete(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    line = encode_trajectory(episode("group-9/sums/9#0", "sums/9")) + b"\n"
    with open(path, "ab") as file:
        file.write(line[:100])
    index = build_index(run)
    assert index.count_trajectories() == 4
    with open(path, "ab") as file:
        file.write(line[100:])
    index.refresh()
    assert index.count_trajectories() == 5
    assert not index.list_problems()


def test_trajectory_written_again_after_a_kill_is_indexed_once(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    content = path.read_bytes()
    path.write_bytes(content + encode_trajectory(episode("group-2/sums/2#0", "sums/2", says="torn")) + b"\n")
    index = build_index(run)
    path.write_bytes(content + encode_trajectory(episode("group-2/sums/2#0", "sums/2", says="again")) + b"\n")
    index.refresh()
    assert index.count_trajectories() == 5
    assert ids(index, text="again") == ["group-2/sums/2#0"]
    assert ids(index, text="torn") == []


def test_line_that_is_no_trajectory_is_reported_and_skipped(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    path.write_bytes(b'{"no": "id"}\nnot json\n\xff\xfe\n[]\n' + path.read_bytes())
    index = build_index(run)
    assert index.count_trajectories() == 4
    assert [problem.partition(" is no")[0] for problem in index.list_problems()] == [
        f"step-000001.jsonl: line {number}" for number in (1, 2, 3, 4)
    ]


def test_line_of_another_version_is_indexed_with_its_fields(tmp_path, build_index):
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    old = b'{"id": "old", "messages": [{"role": "assistant", "content": "hello"}], "from_the_future": {"a": 1}}\n'
    (run / "trajectories" / "step-000004.jsonl").write_bytes(old)
    (row,) = build_index(run).query_page(TrajectoryQuery()).rows
    assert (row["id"], row["reward"], row["step"], row["excerpt"]) == ("old", None, 4, "hello")


def test_values_of_other_types_are_tolerated(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    odd = (
        b'{"id": "odd", "parent": {"a": 1}, "fork_turn": 1e300, "score": {"value": 1e400, "success": "yes"}}\n'
        b'{"id": "group-99999999999999999999/x#0", "score": {"value": 5, "parts": {"right": null}}, "marks": [1]}\n'
    )
    with open(run / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(odd)
    with open(run / "store" / "journal.jsonl", "ab") as file:
        file.write(b'{"event": "consumed", "update": 1e400, "groups": ["x", null]}\n[]\n{"event": "kept"}\n')
    index = build_index(run)
    assert (
        index.count_trajectories() + len([problem for problem in index.list_problems() if "trajectory" in problem]) == 6
    )
    assert index.query_page(TrajectoryQuery(text="group")).count >= 0


def test_run_without_files_is_empty(tmp_path, build_index):
    index = build_index(tmp_path)
    assert index.query_page(TrajectoryQuery()).count == 0
    assert index.list_filter_values()["steps"] == [None, None]


def test_index_is_reused_and_rebuilt_if_it_is_damaged(tmp_path, build_index):
    run = made_run(tmp_path / "run")
    index = build_index(run)
    assert TrajectoryIndex(run, folder=tmp_path / "cache").count_trajectories() == 12
    index.file.path.write_bytes(b"no database at all, " * 100)
    reopened = TrajectoryIndex(run, folder=tmp_path / "cache")
    assert reopened.count_trajectories() == 0
    reopened.refresh()
    assert reopened.count_trajectories() == 12


def test_nothing_is_written_into_the_run(tmp_path, build_index):
    run = made_run(tmp_path / "run")
    before = sorted(run.rglob("*"))
    build_index(run)
    assert sorted(run.rglob("*")) == before


def test_index_is_in_memory_if_the_cache_is_read_only(tmp_path):
    (tmp_path / "file").write_text("in the way")
    index = TrajectoryIndex(made_run(tmp_path / "run"), folder=tmp_path / "file")
    index.refresh()
    assert (index.file.is_kept, index.count_trajectories()) == (False, 12)
    path = index.file.path
    index.close()
    assert not path.exists()


def test_evaluations_are_separate_parts(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    evaluated(run, "untrained", 0.0, [0.0, 0.1], [episode("evaluation/0", "sums/0", reward=0.0)])
    evaluated(run, "reinforcement-000005", 1.0, [0.9, 1.0], [episode("evaluation/0", "sums/0")])
    index = build_index(run)
    assert ids(index, part="evaluation untrained") == ["evaluation/0"]
    assert [
        row["step"] for row in index.query_page(TrajectoryQuery(task="sums/0", sort="step", descending=False)).rows
    ] == [
        0,
        1,
        1,
        5,
    ]
    assert index.find_row("evaluation/0", "evaluation untrained")["reward"] == 0.0


def test_trajectory_is_found_by_its_id(tmp_path, build_index):
    index = build_index(made_run(tmp_path / "run"))
    row = index.find_row("group-1/sums/1#1", "training")
    assert index.read_line(row)["task_id"] == "sums/1"
    with pytest.raises(RefusedError, match="no trajectory missing in training"):
        index.find_row("missing", "training")


def test_deleted_file_is_reported_when_it_is_requested(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    index = build_index(run)
    (run / "trajectories" / "step-000001.jsonl").unlink()
    index.refresh()
    with pytest.raises(RefusedError, match=r"step-000001.jsonl: changed after it was indexed"):
        index.read_line(index.find_row("group-0/sums/0#0", "training"))


def test_ten_megabytes_of_tool_output_do_not_fill_the_index(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1)
    large = episode("group-9/sums/9#0", "sums/9")
    loud = (large.turns[0],)
    object.__setattr__(loud[0], "observation", (tool_result("word " * 2_000_000, call_id="call_0"),))
    with open(run / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(encode_trajectory(large) + b"\n")
    index = build_index(run)
    assert index.count_trajectories() == 5
    assert index.file.path.stat().st_size < 2_000_000


def test_two_viewers_of_one_run_index_nothing_twice(tmp_path):
    run = made_run(tmp_path / "run")
    one, other = (TrajectoryIndex(run, folder=tmp_path / "cache") for _ in range(2))
    one.refresh()
    other.refresh()
    assert one.count_trajectories() == other.count_trajectories() == 12
    with sqlite3.connect(one.file.path) as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (12,)


def test_search_finds_messages_and_calls(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1, says="The answer is forty-two")
    index = build_index(run)
    assert len(ids(index, text="forty answ")) == 4  # every word, the last one as a prefix
    assert len(ids(index, text="forty-two")) == 4
    assert ids(index, text="forty zebra") == []
    assert len(ids(index, text='sum "a": 1')) == 4  # a call


def test_last_message_has_no_control_characters(tmp_path, build_index):
    run = made_run(tmp_path / "run", steps=1, says="\x1b[31mred\x1b[0m \x07bell")
    assert build_index(run).query_page(TrajectoryQuery()).rows[0]["excerpt"] == "red �bell"
