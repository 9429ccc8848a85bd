"""The record of a run: nothing is lost, nothing counts twice, whatever a kill cuts off."""

import json
import math

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests_slow import examples
from whetstone.chat import assistant, tool_result, user
from whetstone.errors import RunDirectoryError, SaveError
from whetstone.record.store import RunStore
from whetstone.reporting import read_trajectories
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

TASK = Task("sum/1", "1 + 1")


def turn(seed):
    action = Tokens.sampled(
        [seed, seed + 1], logprobs=[-1 / 3 - seed, -math.inf], versions=[seed, seed], entropies=[0.1 * seed, 1e-17]
    )
    return Turn(
        context=Tokens.written([7, 8, 9], Author.ENVIRONMENT),
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


def opened(folder, said=None):
    return RunStore(folder, groups_per_file=2, say=(said if said is not None else []).append)


def columns(turns):
    return [repr((t.context, t.action, t.message, t.observation, t.reward, t.opens_segment)) for t in turns]


def test_a_group_comes_back_bit_for_bit(tmp_path):
    store = opened(tmp_path)
    store.admit(5, 2, 5)
    store.keep(group(5))
    store.close()
    kept = opened(tmp_path).load(5, TASK)
    assert (kept.number, kept.task) == (5, TASK)
    for ours, theirs in zip(group(5).trajectories, kept.trajectories, strict=True):
        assert columns(ours.turns) == columns(theirs.turns)
        assert (ours.id, ours.score, ours.ended) == (theirs.id, theirs.score, theirs.ended)
    assert [t.id for t in read_trajectories(tmp_path / "trajectories" / "step-000003.jsonl")] == [
        t.id for t in kept.trajectories
    ]


def test_what_becomes_of_each_group_is_known_again(tmp_path):
    store = opened(tmp_path)
    for number in range(6):
        store.admit(number, number // 2, number)
    for number in (0, 1, 3, 4):
        store.keep(group(number))
    store.lose(2, "failed")
    store.consume(0, [0, 3])
    store.begin(0)
    store.finish(0)
    store.begin(1)
    store.fault("infrastructure", "the server is gone")
    store.close()
    again = opened(tmp_path)
    assert again.admitted == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    assert again.waiting() == [1, 4, 5]
    assert [again.holds(number) for number in range(6)] == [True, True, False, True, True, False]
    assert (again.consumed, again.lost, again.faults) == ({0: [0, 3]}, {2: "failed"}, {"infrastructure": 1})
    assert (again.updated, again.begun) == ({0}, {1: 1})


def test_an_update_that_brings_the_learner_down_loses_its_groups_for_good(tmp_path):
    store = opened(tmp_path)
    for number in range(4):
        store.admit(number, 0, number)
        store.keep(group(number))
    store.consume(0, [0, 1])
    for _ in range(3):
        store.begin(0)
    store.close()
    again = opened(tmp_path)
    assert again.begun == {0: 3}
    again.quarantine(0)
    again.consume(0, [2, 3])
    again.close()
    last = opened(tmp_path)
    assert (last.consumed, last.quarantined, last.begun) == ({0: [2, 3]}, {0, 1}, {})
    assert last.waiting() == []


EVENTS = st.lists(st.tuples(st.sampled_from(["admit", "keep", "consume", "lose", "turn", "drop"]), st.integers(0, 9)))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS, st.floats(0, 1), st.floats(0, 1))
def test_whatever_a_kill_cuts_off_what_is_left_is_a_state_the_run_was_in(tmp_path_factory, events, journal, tail):
    folder = tmp_path_factory.mktemp("store")
    store = opened(folder)
    states = []

    def state(of):
        return (dict(of.admitted), dict(of.lost), dict(of.consumed), {n for n in range(10) if of.holds(n)})

    states.append(state(store))
    for what, number in events:
        alive = number in store.admitted and number in store.waiting()
        if what == "admit" and number not in store.admitted:
            store.admit(number, number // 2, number)
        elif what == "keep" and alive and not store.holds(number):
            store.keep(group(number))
        elif what == "consume" and alive and store.holds(number):
            store.consume(len(store.consumed), [number])
        elif what == "lose" and alive:
            store.lose(number, "failed")
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
    said = []
    again = opened(folder, said)
    assert said == []
    assert state(again) in states
    started = set(again.admitted)
    consumed = [number for numbers in again.consumed.values() for number in numbers]
    assert len(consumed) == len(set(consumed))
    assert started == {*consumed, *again.lost, *again.waiting()}
    for number in range(10):
        if again.holds(number):
            assert len(again.load(number, TASK).trajectories) == 2
        elif number in again.admitted and number not in again.lost:
            again.keep(group(number))  # what was cut off comes again, over what is left of it
    again.close()
    for path in (folder / "trajectories").iterdir():
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert len(ids) == len(set(ids))


def test_damage_in_the_middle_is_said_and_forgets_what_stands_behind(tmp_path):
    store = opened(tmp_path)
    for number in range(4):
        store.admit(number, 0, number)
    store.close()
    lines = store.journal_path.read_bytes().splitlines(keepends=True)
    store.journal_path.write_bytes(lines[0] + b"\x00" * len(lines[1]) + b"".join(lines[2:]))
    said = []
    again = opened(tmp_path, said)
    assert list(again.admitted) == [0]
    assert "journal.jsonl:2  is damaged; from there on the record is forgotten" in said[0]
    assert (tmp_path / "store" / "journal.jsonl.damaged").read_bytes().endswith(lines[3])


def test_damaged_trajectories_are_named(tmp_path):
    store = opened(tmp_path)
    store.admit(0, 0, 0)
    store.keep(group(0))
    path = tmp_path / "trajectories" / "step-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"sum/1#0", b"sum/1#X"))
    with pytest.raises(RunDirectoryError, match=r"step-000001\.jsonl: group 0 is damaged"):
        store.load(0, TASK)


def test_turns_of_an_episode_under_way_come_back_and_those_of_finished_ones_go(tmp_path):
    store = opened(tmp_path)
    store.admit(0, 0, 0)
    for episode in ("group-0/sum/1#0", "group-1/sum/1#0", "dropped"):
        store.add(episode, turn(0))
        store.add(episode, turn(4))
    store.drop("dropped")
    store.keep(group(0))
    assert store.played("group-0/sum/1#0") == ()
    store.close()
    again = opened(tmp_path)
    assert columns(again.played("group-1/sum/1#0")) == columns([turn(0), turn(4)])
    assert again.played("dropped") == ()
    assert again.played("nobody") == ()


def test_a_disk_that_fills_is_one_line_and_what_was_kept_is_kept(small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"0" * 150_000)
    store = opened(small_disk / "run")

    def fill():
        for number in range(1000):
            store.admit(number, 0, number)
            store.add(f"group-{number}/x", turn(1))
            store.keep(group(number))

    with pytest.raises(SaveError, match="the disk is full"):
        fill()
    store.close()
    filler.unlink()
    again = opened(small_disk / "run")
    kept = [number for number in again.admitted if again.holds(number)]
    assert len(kept) >= 3
    assert len(again.admitted) - len(kept) <= 1
    for number in kept:
        assert len(again.load(number, TASK).trajectories) == 2
    following = max(again.admitted) + 1
    again.admit(following, 0, following)
    again.keep(group(following))
    again.close()
    last = opened(small_disk / "run")
    last.close()
    assert last.holds(following)
