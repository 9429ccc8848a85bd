"""The store of a run loses and duplicates nothing, wherever a kill truncates its files."""

import json
import math

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from support.slow import examples
from whetstone.chat import assistant, tool_result, user
from whetstone.errors import RunDirectoryError, SaveError
from whetstone.record.run_store import RunStore
from whetstone.reporting import read_trajectories
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

TASK = Task("sum/1", "1 + 1")


def turn(seed):
    action = Tokens.from_samples(
        [seed, seed + 1], logprobs=[-1 / 3 - seed, -math.inf], versions=[seed, seed], entropies=[0.1 * seed, 1e-17]
    )
    return Turn(
        context=Tokens.from_ids([7, 8, 9], Author.ENVIRONMENT),
        action=action,
        message=assistant(f"<call>{seed}</call>"),
        observation=(tool_result(f"{seed}\n", call_id="c1"),),
        opens_segment=seed == 0,
        reward=0.25,
    )


def group(number, size=2):
    trajectories = tuple(
        Trajectory(
            f"group-{number}/{TASK.id}#{i}",
            TASK.id,
            (user("1 + 1"),),
            (turn(0), turn(number + i)),
            EndReason.TERMINATED,
            score=Score(1 / 3, {"correct": 1.0}, success=True),
        )
        for i in range(size)
    )
    return Group(TASK, trajectories, number)


def open_store(folder, messages=None):
    return RunStore(folder, groups_per_file=2, log=(messages if messages is not None else []).append)


def columns(turns):
    return [repr((t.context, t.action, t.message, t.observation, t.reward, t.opens_segment)) for t in turns]


def test_group_is_loaded_exactly(tmp_path):
    store = open_store(tmp_path)
    store.admit_group(5, 2, 5)
    store.store_group(group(5))
    store.close()
    loaded = open_store(tmp_path).load(5, TASK)
    assert (loaded.number, loaded.task) == (5, TASK)
    for expected, trajectory in zip(group(5).trajectories, loaded.trajectories, strict=True):
        assert columns(expected.turns) == columns(trajectory.turns)
        assert (expected.id, expected.score, expected.ended) == (trajectory.id, trajectory.score, trajectory.ended)
    assert [t.id for t in read_trajectories(tmp_path / "trajectories" / "step-000003.jsonl")] == [
        t.id for t in loaded.trajectories
    ]


def test_states_of_groups_are_restored(tmp_path):
    store = open_store(tmp_path)
    for number in range(6):
        store.admit_group(number, number // 2, number)
    for number in (0, 1, 3, 4):
        store.store_group(group(number))
    store.record_lost_group(2, "failed")
    store.consume_groups(0, [0, 3])
    store.begin(0)
    store.finish(0)
    store.begin(1)
    store.record_fault("infrastructure", "the server is gone")
    store.close()
    reopened = open_store(tmp_path)
    assert reopened.admitted == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    assert reopened.list_waiting_groups() == [1, 4, 5]
    assert [reopened.has_group(number) for number in range(6)] == [True, True, False, True, True, False]
    assert (reopened.consumed, reopened.lost, reopened.faults) == ({0: [0, 3]}, {2: "failed"}, {"infrastructure": 1})
    assert (reopened.updated, reopened.begun) == ({0}, {1: 1})


def test_update_that_repeatedly_kills_the_learner_loses_its_groups(tmp_path):
    store = open_store(tmp_path)
    for number in range(4):
        store.admit_group(number, 0, number)
        store.store_group(group(number))
    store.consume_groups(0, [0, 1])
    for _ in range(3):
        store.begin(0)
    store.close()
    reopened = open_store(tmp_path)
    assert reopened.begun == {0: 3}
    reopened.record_quarantine(0)
    reopened.consume_groups(0, [2, 3])
    reopened.close()
    last = open_store(tmp_path)
    assert (last.consumed, last.quarantined_groups, last.begun) == ({0: [2, 3]}, {0, 1}, {})
    assert last.list_waiting_groups() == []


EVENTS = st.lists(st.tuples(st.sampled_from(["admit", "keep", "consume", "lose", "turn", "drop"]), st.integers(0, 9)))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS, st.floats(0, 1), st.floats(0, 1))
def test_truncated_files_are_a_state_of_the_run(tmp_path_factory, events, journal, tail):
    folder = tmp_path_factory.mktemp("store")
    store = open_store(folder)
    states = []

    def state(of):
        return (dict(of.admitted), dict(of.lost), dict(of.consumed), {n for n in range(10) if of.has_group(n)})

    states.append(state(store))
    for what, number in events:
        alive = number in store.admitted and number in store.list_waiting_groups()
        if what == "admit" and number not in store.admitted:
            store.admit_group(number, number // 2, number)
        elif what == "keep" and alive and not store.has_group(number):
            store.store_group(group(number))
        elif what == "consume" and alive and store.has_group(number):
            store.consume_groups(len(store.consumed), [number])
        elif what == "lose" and alive:
            store.record_lost_group(number, "failed")
        elif what == "turn":
            store.add(f"e{number}", turn(number))
        elif what == "drop":
            store.drop(f"e{number}")
        else:
            continue
        states.append(state(store))
    store.close()
    content = store.journal_path.read_bytes()
    store.journal_path.write_bytes(content[: round(journal * len(content))])
    turns = store.turns_path.read_bytes()
    store.turns_path.write_bytes(turns[: round(tail * len(turns))])
    messages = []
    reopened = open_store(folder, messages)
    assert messages == []
    assert state(reopened) in states
    started = set(reopened.admitted)
    consumed = [number for numbers in reopened.consumed.values() for number in numbers]
    assert len(consumed) == len(set(consumed))
    assert started == {*consumed, *reopened.lost, *reopened.list_waiting_groups()}
    for number in range(10):
        if reopened.has_group(number):
            assert len(reopened.load(number, TASK).trajectories) == 2
        elif number in reopened.admitted and number not in reopened.lost:
            reopened.store_group(group(number))  # truncated groups are stored again over their remains
    reopened.close()
    for path in (folder / "trajectories").iterdir():
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert len(ids) == len(set(ids))


def test_damage_is_reported_and_later_records_are_ignored(tmp_path):
    store = open_store(tmp_path)
    for number in range(4):
        store.admit_group(number, 0, number)
    store.close()
    lines = store.journal_path.read_bytes().splitlines(keepends=True)
    store.journal_path.write_bytes(lines[0] + b"\x00" * len(lines[1]) + b"".join(lines[2:]))
    messages = []
    reopened = open_store(tmp_path, messages)
    assert list(reopened.admitted) == [0]
    assert "journal.jsonl:2: the line is damaged; it and later records are ignored" in messages[0]
    assert (tmp_path / "store" / "journal.jsonl.damaged").read_bytes().endswith(lines[3])


def test_damaged_trajectories_are_named(tmp_path):
    store = open_store(tmp_path)
    store.admit_group(0, 0, 0)
    store.store_group(group(0))
    path = tmp_path / "trajectories" / "step-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"sum/1#0", b"sum/1#X"))
    with pytest.raises(RunDirectoryError, match=r"step-000001\.jsonl: group 0 is damaged"):
        store.load(0, TASK)


def test_turns_of_unfinished_episodes_are_restored(tmp_path):
    store = open_store(tmp_path)
    store.admit_group(0, 0, 0)
    for episode in ("group-0/sum/1#0", "group-1/sum/1#0", "dropped"):
        store.add(episode, turn(0))
        store.add(episode, turn(4))
    store.drop("dropped")
    store.store_group(group(0))
    assert store.played("group-0/sum/1#0") == ()
    store.close()
    reopened = open_store(tmp_path)
    assert columns(reopened.played("group-1/sum/1#0")) == columns([turn(0), turn(4)])
    assert reopened.played("dropped") == ()
    assert reopened.played("nobody") == ()


def test_full_disk_is_one_line_and_stored_groups_remain(small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"0" * 150_000)
    store = open_store(small_disk / "run")

    def fill():
        for number in range(1000):
            store.admit_group(number, 0, number)
            store.add(f"group-{number}/x", turn(1))
            store.store_group(group(number))

    with pytest.raises(SaveError, match="the disk is full"):
        fill()
    store.close()
    filler.unlink()
    reopened = open_store(small_disk / "run")
    stored = [number for number in reopened.admitted if reopened.has_group(number)]
    assert len(stored) >= 3
    assert len(reopened.admitted) - len(stored) <= 1
    for number in stored:
        assert len(reopened.load(number, TASK).trajectories) == 2
    following = max(reopened.admitted) + 1
    reopened.admit_group(following, 0, following)
    reopened.store_group(group(following))
    reopened.close()
    last = open_store(small_disk / "run")
    last.close()
    assert last.has_group(following)
