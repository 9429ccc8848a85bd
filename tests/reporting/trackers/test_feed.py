"""What trackers are told: every step once, whatever was killed, in their own time, and never to the run's harm."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests_small import SMALL, StopAfter, Stopped
from tests_trackers import SUMMARY, Remembering, Yours, evaluation, feed_of, write_run
from whetstone.assembly.preflight_checks import preflight
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.evaluation.checks import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.training import train

QUIET = Progress(quiet=True)
NAMED = "trackers=[{name: 'tests_trackers:Yours', path: %s}]"


def told_in(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def row(step, **metrics):
    return {"stage": "reinforcement", "step": step, **metrics}


def test_a_run_is_told_whole_and_in_order(tmp_path):
    tracker, folder = Remembering(), write_run(tmp_path / "demo")
    feed = feed_of(folder, mine=tracker)
    feed.follow(folder)
    feed.evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        feed.row(row(step, **{"reward/mean": step / 10}))
    feed.evaluation("reinforcement", evaluation(0.5))
    feed.close(SUMMARY)
    assert [run.name for run in tracker.runs] == ["demo"]
    assert tracker.runs[0].recipe["rollout"] == {"group_size": 4}
    assert tracker.steps == [1, 2]
    assert tracker.told[1] == (1, {"reward/mean": 0.1, "reinforcement/step": 1.0})
    assert tracker.evaluations == [(0, 0.25), (2, 0.5)]
    assert tracker.finished == [
        {
            "summary/success_untrained": 0.0,
            "summary/success_before": 0.25,
            "summary/success_after": 0.75,
            "summary/training_seconds": 8.0,
            "summary/parameters": 99.0,
        }
    ]


def test_what_is_no_finite_number_is_not_told(tmp_path):
    tracker, folder = Remembering(), write_run(tmp_path / "demo")
    feed = feed_of(folder, mine=tracker)
    feed.follow(folder)
    feed.row(row(1, **{"reward/mean": math.nan, "policy/update_kl": math.inf, "loss": 2}))
    feed.close(None)
    assert tracker.told == [(1, {"loss": 2.0, "reinforcement/step": 1.0})]
    assert tracker.finished == [None]


def test_steps_are_counted_over_stages_and_evaluations_stand_where_they_were_made(tmp_path):
    names = [("untrained", 0.1), ("supervised", 0.2), ("reinforcement-000002", 0.3), ("reinforcement", 0.4)]
    folder = write_run(tmp_path / "demo", supervised=3, reinforcement=4, evaluations=names)
    tracker = Remembering()
    feed = feed_of(folder, mine=tracker)
    feed.follow(folder)
    feed.close(None)
    assert tracker.steps == [1, 2, 3, 4, 5, 6, 7]
    assert tracker.told[-2][1]["reinforcement/step"] == 4
    assert tracker.evaluations == [(0, 0.1), (3, 0.2), (5, 0.3), (7, 0.4)]


def test_a_chain_of_runs_is_one_run_to_a_tracker(tmp_path):
    one = write_run(tmp_path / "1", supervised=2, evaluations=[("untrained", 0.1), ("supervised", 0.2)])
    other = write_run(tmp_path / "2", reinforcement=1, evaluations=[("untrained", 0.2)])
    tracker = Remembering()
    feed = feed_of(tmp_path, mine=tracker)
    for folder in (one, one, other):  # one is told of twice: as it runs, and once it is over
        feed.follow(folder)
    feed.row(row(2))
    feed.evaluation("reinforcement", evaluation(0.9))
    feed.close(None)
    assert len(tracker.runs) == 1
    assert tracker.steps == [1, 2, 3, 4]
    assert tracker.evaluations == [(0, 0.1), (2, 0.2), (4, 0.9)]


@pytest.mark.parametrize("held", [None, 2])
def test_a_run_that_goes_on_tells_what_was_lost_and_nothing_twice(tmp_path, held):
    folder, told = write_run(tmp_path / "demo"), Remembering()
    first = feed_of(folder, mine=told)
    first.follow(folder)
    for step in (1, 2):
        first.row(row(step))
    first.close(None)
    write_run(folder, reinforcement=3)  # the third was made, and the kill came before it was told
    again = Remembering(held)
    second = feed_of(folder, mine=again)
    second.follow(folder)
    second.row(row(4))
    second.close(SUMMARY)
    assert told.steps + again.steps == [1, 2, 3, 4]
    assert again.runs[0].id == told.runs[0].id


def test_a_step_that_is_made_again_stays_as_it_was_told(tmp_path):
    folder, told = write_run(tmp_path / "demo"), Remembering()
    first = feed_of(folder, mine=told)
    first.follow(folder)
    for step in (1, 2, 3):
        first.row(row(step))
    first.close(None)
    write_run(folder, reinforcement=1)  # the last checkpoint knows of one
    again = Remembering()
    second = feed_of(folder, mine=again)
    second.follow(folder)
    for step in (2, 3, 4):
        second.row(row(step))
    second.close(None)
    assert again.steps == [4]


def test_a_tracker_that_lost_what_it_was_told_is_told_again(tmp_path):
    folder, told = write_run(tmp_path / "demo", reinforcement=3, evaluations=[("untrained", 0.5)]), Remembering()
    first = feed_of(folder, mine=told)
    first.follow(folder)
    first.close(None)
    again = Remembering(held=1)  # it writes behind `log`, and was killed
    second = feed_of(folder, mine=again)
    second.follow(folder)
    second.close(None)
    assert again.steps == [2, 3]
    assert again.evaluations == []


def test_a_tracker_that_cannot_start_is_said_once_and_the_run_goes_on(tmp_path):
    class Absent(Remembering):
        def start(self, run):
            raise ConnectionError("no server\nat all")

    said, folder, other = [], write_run(tmp_path / "demo"), Remembering()
    feed = feed_of(folder, said, absent=Absent(), there=other)
    feed.follow(folder)
    for step in (1, 2):
        feed.row(row(step))
    feed.close(SUMMARY)
    assert said == ["tracker absent failed, the run goes on without it: ConnectionError: no server at all"]
    assert other.steps == [1, 2]


def test_what_failed_is_told_again_with_the_next_step(tmp_path):
    class Shaky(Remembering):
        calls = 0

        def log(self, step, metrics):
            self.calls += 1
            if self.calls in (2, 3):
                raise OSError("gone for a moment")
            super().log(step, metrics)

    said, folder, tracker = [], write_run(tmp_path / "demo"), Shaky()
    feed = feed_of(folder, said, shaky=tracker)
    feed.follow(folder)
    for step in (1, 2, 3, 4):
        feed.row(row(step))
    feed.close(None)
    assert tracker.steps == [1, 2, 3, 4]
    assert len(said) == 1


def test_a_run_never_waits_for_a_tracker_that_hangs(tmp_path):
    let_go = threading.Event()

    class Hanging(Remembering):
        def log(self, step, metrics):
            let_go.wait(60)

    said, folder = [], write_run(tmp_path / "demo")
    feed = feed_of(folder, said, hanging=Hanging())
    feed.follow(folder)
    for step in range(1, 2001):
        feed.row(row(step))
    feed.close(SUMMARY, seconds=0.1)
    let_go.set()
    assert said == ["tracker hanging: is not done yet; the same command with --resume tells it the rest"]


def test_trackers_are_called_from_one_thread_that_does_not_train(tmp_path):
    class Where(Remembering):
        def log(self, step, metrics):
            super().log(step, {**metrics, "thread": threading.get_ident()})

    folder, tracker = write_run(tmp_path / "demo"), Where()
    feed = feed_of(folder, mine=tracker)
    feed.follow(folder)
    for step in (1, 2):
        feed.row(row(step))
    feed.close(None)
    (where,) = {metrics["thread"] for _, metrics in tracker.told}
    assert where != threading.get_ident()


def test_nothing_is_written_where_nobody_is_told(tmp_path):
    folder = write_run(tmp_path / "demo")
    feed = feed_of(folder)
    feed.follow(folder)
    feed.row(row(1))
    feed.close(SUMMARY)
    assert not (folder / "trackers").exists()


def small(*overrides):
    return load_recipe("demo", [*SMALL, "ablations=null", "reinforcement.steps=4", *overrides])


@pytest.mark.slow
def test_a_run_tells_a_tracker_of_ones_own_and_goes_on_with_it_after_a_stop(tmp_path):
    path, run_dir = tmp_path / "told.jsonl", tmp_path / "demo"
    resolved = small(NAMED % path, "reinforcement.checkpoint_interval_steps=1")
    with pytest.raises(Stopped):
        train(resolved, run_dir, progress=StopAfter(2, of="reinforcement"))
    train(resolved, run_dir, progress=QUIET, resume=True)
    told = told_in(path)
    starts = [line for line in told if "id" in line]
    assert len(starts) == 2
    assert starts[0] == starts[1]
    assert starts[0] | {"id": ""} == {"id": "", "name": "demo", "seed": resolved.recipe.seed}
    rows = Journal(run_dir).read()
    steps = [line for line in told if "reward/mean" in line or "loss/supervised" in line]
    assert [line["step"] for line in steps] == list(range(1, len(rows) + 1))
    for line, written in zip(steps[2:], rows[2:], strict=True):
        assert line["reward/mean"] == written["reward/mean"]
    assert [line["step"] for line in told if "evaluation/success" in line] == [0, 2, 6]
    assert told[-1]["summary"]["summary/parameters"] > 0


@pytest.mark.slow
def test_a_finished_run_can_be_told_to_a_tracker_afterwards(tmp_path):
    path, run_dir = tmp_path / "told.jsonl", tmp_path / "demo"
    train(small(), run_dir, progress=QUIET)
    train(small(NAMED % path), run_dir, progress=QUIET, resume=True)
    assert [line["step"] for line in told_in(path) if "reinforcement/step" in line] == [3, 4, 5, 6]


@pytest.mark.slow
def test_stages_and_ablations_are_told_as_one_run(tmp_path):
    path = tmp_path / "told.jsonl"
    stages = "stages=[{supervised: {steps: 2}}, {reinforcement: {steps: 2}}]"
    train(small(stages, NAMED % path), tmp_path / "demo", progress=QUIET)
    told = told_in(path)
    assert [line["step"] for line in told if any(key.endswith("/step") for key in line)] == [1, 2, 3, 4]
    assert [line["step"] for line in told if "evaluation/success" in line] == [0, 2, 4]
    assert sum("id" in line for line in told) == 1


def test_a_tracker_nobody_knows_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(RecipeError, match=r'trackers.0: no tracker named "wandbb"; did you mean "wandb"'):
        train(small("trackers=wandbb"), tmp_path / "demo", progress=QUIET)
    with pytest.raises(RecipeError, match=r'trackers.1: "wandb" is listed twice'):
        small("trackers=[wandb,wandb]")
    with pytest.raises(RecipeError, match=r"a tracker has start, log, finish"):
        train(small("trackers=tests_trackers:Mute"), tmp_path / "demo", progress=QUIET)
    assert not (tmp_path / "demo" / "recipe.yaml").exists()


def test_a_tracker_that_cannot_be_made_is_found_before_anything_long_begins():
    async def last():
        return [check async for check in preflight(small("trackers=tests_trackers:Mute"))][-1]

    found = asyncio.run(last())
    assert found.verdict is CheckStatus.FAIL
    assert "a tracker has start, log, finish" in str(found)


def test_a_live_recipe_does_not_have_a_tracker_without_effect():
    keys = {"policy": {"tiny": {}}, "tasks": {"source": "arithmetic"}, "reward": "exact_match", "live": {}}
    with pytest.raises(RecipeError, match="trackers: has no effect"):
        load_recipe({**keys, "trackers": "tensorboard"})


def test_other_keys_still_may_not_change(tmp_path):
    train(small(), tmp_path / "demo", progress=QUIET)
    with pytest.raises(RunDirectoryError, match="seed"):
        train(small("seed=9", NAMED % (tmp_path / "told")), tmp_path / "demo", progress=QUIET, resume=True)


KILLED = """
import os, sys, threading, time
from pathlib import Path
sys.path[:0] = [%r]
from tests_trackers import Yours, feed_of, write_run
from whetstone.reporting import Journal
folder = Path(sys.argv[1])
feed = feed_of(folder, yours=Yours(path=sys.argv[2]))
feed.follow(folder)
made = len(Journal(folder).read())
journal = Journal(folder, heard=[feed.row])
for step in range(made + 1, 100000):
    journal.record("reinforcement", step, {"reward/mean": step / 10})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_every_step_on_record_is_told_once(tmp_path):
    folder, path = tmp_path / "demo", tmp_path / "told.jsonl"
    folder.mkdir()
    code = KILLED % str(Path(__file__).parents[2])
    for kill in range(6):
        running = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(path)], stdout=subprocess.PIPE, env=os.environ, text=True
        )
        running.stdout.readline()
        time.sleep(0.02 * kill)
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
    feed = feed_of(folder, yours=Yours(path=path))
    feed.follow(folder)
    feed.close(None)
    steps = [line["step"] for line in told_in(path) if "reward/mean" in line]
    rows = len(Journal(folder).read())
    doubled = len(steps) - len(set(steps))
    assert sorted(set(steps)) == list(range(1, rows + 1))
    assert doubled <= 6  # `log` came back and the kill came before that was written down: once a kill at most
