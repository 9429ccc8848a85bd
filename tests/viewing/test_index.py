"""The index has every trajectory once, whatever the state of the files."""

import sqlite3

import pytest

from tests_viewed import episode, evaluated, made_run, played
from whetstone.chat.api.asked import RefusedError
from whetstone.chat.message import tool_result
from whetstone.record import RunStore
from whetstone.trajectory_json import encoded_trajectory
from whetstone.viewing.index import TrajectoryIndex
from whetstone.viewing.wanted import Wanted


@pytest.fixture
def indexed(tmp_path):
    def index(run):
        found = TrajectoryIndex(run, folder=tmp_path / "cache")
        found.refresh()
        return found

    return index


def ids(index, **asked):
    return [row["id"] for row in index.page(Wanted.read({"limit": "200", **asked})).rows]


def test_every_trajectory_is_in_it_with_what_it_was_worth(tmp_path, indexed):
    page = indexed(made_run(tmp_path / "run")).page(Wanted())
    assert (page.count, page.reward, page.success) == (
        12,
        0.5,
        0.5,
    )  # 3 steps of 2 tasks of 2 samples, half of them right
    row = page.rows[0]
    assert (row["step"], row["turns"], row["calls"], row["tokens"], row["version"]) == (3, 2, 1, 4, 7)
    assert row["parts"] == {"right": row["reward"]}
    assert row["excerpt"] == "42"


def test_a_step_is_the_update_that_took_the_group_not_the_file_it_is_in(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=2)
    store = RunStore(run, groups_per_file=2)
    played(store, 4)
    store.consume(8, [4])
    store.close()
    index = indexed(run)
    assert {row["step"] for row in index.mates(4)} == {9}
    assert index.state_of(4) == "learned from"


def test_a_group_taken_after_it_was_read_moves_to_its_step(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    store = RunStore(run, groups_per_file=2)
    played(store, 2)
    index = indexed(run)
    assert (index.state_of(2), {row["step"] for row in index.mates(2)}) == ("waiting", {2})
    store.consume(6, [2])
    store.close()
    index.refresh()
    assert {row["step"] for row in index.mates(2)} == {7}


def test_what_comes_later_is_added_and_nothing_is_read_twice(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    index = indexed(run)
    store = RunStore(run, groups_per_file=2)
    played(store, 2)
    store.close()
    index.refresh()
    index.refresh()
    assert index.count() == 6
    assert len(set(ids(index))) == 6


def test_half_a_line_is_read_when_it_is_whole(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    line = encoded_trajectory(episode("group-9/sums/9#0", "sums/9")) + b"\n"
    with open(path, "ab") as file:
        file.write(line[:100])
    index = indexed(run)
    assert index.count() == 4
    with open(path, "ab") as file:
        file.write(line[100:])
    index.refresh()
    assert index.count() == 5
    assert not index.remarks()


def test_what_a_kill_left_and_the_run_wrote_again_is_there_once(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    kept = path.read_bytes()
    path.write_bytes(kept + encoded_trajectory(episode("group-2/sums/2#0", "sums/2", says="torn")) + b"\n")
    index = indexed(run)
    path.write_bytes(kept + encoded_trajectory(episode("group-2/sums/2#0", "sums/2", says="again")) + b"\n")
    index.refresh()
    assert index.count() == 5
    assert ids(index, text="again") == ["group-2/sums/2#0"]
    assert ids(index, text="torn") == []


def test_a_line_that_is_no_trajectory_is_said_and_passed_over(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step-000001.jsonl"
    path.write_bytes(b'{"no": "id"}\nnot json\n\xff\xfe\n[]\n' + path.read_bytes())
    index = indexed(run)
    assert index.count() == 4
    assert [said.partition(" is no")[0] for said in index.remarks()] == [
        f"step-000001.jsonl: line {number}" for number in (1, 2, 3, 4)
    ]


def test_a_line_of_another_version_is_there_with_what_it_has(tmp_path, indexed):
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    old = b'{"id": "old", "messages": [{"role": "assistant", "content": "hello"}], "from_the_future": {"a": 1}}\n'
    (run / "trajectories" / "step-000004.jsonl").write_bytes(old)
    (row,) = indexed(run).page(Wanted()).rows
    assert (row["id"], row["reward"], row["step"], row["excerpt"]) == ("old", None, 4, "hello")


def test_values_of_other_kinds_than_ours_stop_nothing(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    odd = (
        b'{"id": "odd", "parent": {"a": 1}, "fork_turn": 1e300, "score": {"value": 1e400, "success": "yes"}}\n'
        b'{"id": "group-99999999999999999999/x#0", "score": {"value": 5, "parts": {"right": null}}, "marks": [1]}\n'
    )
    with open(run / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(odd)
    with open(run / "store" / "journal.jsonl", "ab") as file:
        file.write(b'{"event": "consumed", "update": 1e400, "groups": ["x", null]}\n[]\n{"event": "kept"}\n')
    index = indexed(run)
    assert index.count() + len([said for said in index.remarks() if "trajectory" in said]) == 6
    assert index.page(Wanted(text="group")).count >= 0


def test_a_run_without_any_files_is_empty(tmp_path, indexed):
    index = indexed(tmp_path)
    assert index.page(Wanted()).count == 0
    assert index.choices()["steps"] == [None, None]


def test_the_index_is_used_again_and_made_anew_where_it_is_damaged(tmp_path, indexed):
    run = made_run(tmp_path / "run")
    index = indexed(run)
    assert TrajectoryIndex(run, folder=tmp_path / "cache").count() == 12
    index.path.write_bytes(b"no database at all, " * 100)
    again = TrajectoryIndex(run, folder=tmp_path / "cache")
    assert again.count() == 0
    again.refresh()
    assert again.count() == 12


def test_nothing_is_written_into_the_run(tmp_path, indexed):
    run = made_run(tmp_path / "run")
    before = sorted(run.rglob("*"))
    indexed(run)
    assert sorted(run.rglob("*")) == before


def test_where_the_cache_cannot_be_written_the_index_goes_with_the_process(tmp_path):
    (tmp_path / "file").write_text("in the way")
    index = TrajectoryIndex(made_run(tmp_path / "run"), folder=tmp_path / "file")
    index.refresh()
    assert (index.is_kept, index.count()) == (False, 12)
    path = index.path
    index.close()
    assert not path.exists()


def test_evaluations_are_parts_of_their_own(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    evaluated(run, "untrained", 0.0, [0.0, 0.1], [episode("evaluation/0", "sums/0", reward=0.0)])
    evaluated(run, "reinforcement-000005", 1.0, [0.9, 1.0], [episode("evaluation/0", "sums/0")])
    index = indexed(run)
    assert ids(index, part="evaluation untrained") == ["evaluation/0"]
    assert [row["step"] for row in index.page(Wanted(task="sums/0", sort="step", descending=False)).rows] == [
        0,
        1,
        1,
        5,
    ]
    assert index.one("evaluation/0", "evaluation untrained")["reward"] == 0.0


def test_a_trajectory_is_found_again_by_its_id(tmp_path, indexed):
    index = indexed(made_run(tmp_path / "run"))
    row = index.one("group-1/sums/1#1", "training")
    assert index.line(row)["task_id"] == "sums/1"
    with pytest.raises(RefusedError, match="no trajectory nobody in training"):
        index.one("nobody", "training")


def test_a_file_that_went_away_is_said_when_it_is_asked_for(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    index = indexed(run)
    (run / "trajectories" / "step-000001.jsonl").unlink()
    index.refresh()
    with pytest.raises(RefusedError, match=r"step-000001.jsonl: is not what was indexed"):
        index.line(index.one("group-0/sums/0#0", "training"))


def test_ten_megabytes_of_a_tool_do_not_fill_the_index(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1)
    shown = episode("group-9/sums/9#0", "sums/9")
    loud = (shown.turns[0],)
    object.__setattr__(loud[0], "observation", (tool_result("word " * 2_000_000, call_id="call_0"),))
    with open(run / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(encoded_trajectory(shown) + b"\n")
    index = indexed(run)
    assert index.count() == 5
    assert index.path.stat().st_size < 2_000_000


def test_two_viewers_of_one_run_add_nothing_twice(tmp_path):
    run = made_run(tmp_path / "run")
    one, other = (TrajectoryIndex(run, folder=tmp_path / "cache") for _ in range(2))
    one.refresh()
    other.refresh()
    assert one.count() == other.count() == 12
    with sqlite3.connect(one.path) as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (12,)


def test_text_is_found_in_what_was_said_and_called(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1, says="The answer is forty-two")
    index = indexed(run)
    assert len(ids(index, text="forty answ")) == 4  # every word, the last as a beginning
    assert len(ids(index, text="forty-two")) == 4
    assert ids(index, text="forty zebra") == []
    assert len(ids(index, text='sum "a": 1')) == 4  # a call


def test_the_last_that_was_said_is_without_control_characters(tmp_path, indexed):
    run = made_run(tmp_path / "run", steps=1, says="\x1b[31mred\x1b[0m \x07bell")
    assert indexed(run).page(Wanted()).rows[0]["excerpt"] == "red �bell"
