"""Trackers receive every step once despite kills, asynchronously, and never disturb the run."""

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

from support.small import SMALL, StopAfter, Stopped
from support.trackers import SUMMARY, Remembering, Yours, evaluation, feed_of, write_run
from whetstone.assembly.preflight_checks import run_preflight_checks
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.evaluation.check_result import CheckStatus
from whetstone.recipe import load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.training import train

QUIET = Progress(quiet=True)
NAMED = "trackers=[{name: 'support.trackers:Yours', path: %s}]"


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def row(step, **metrics):
    return {"stage": "reinforcement", "step": step, **metrics}


def test_tracker_receives_a_run_in_order(tmp_path):
    tracker, folder = Remembering(), write_run(tmp_path / "demo")
    feed = feed_of(folder, mine=tracker)
    feed.follow_run(folder)
    feed.send_evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        feed.send_row(row(step, **{"reward/mean": step / 10}))
    feed.send_evaluation("reinforcement", evaluation(0.5))
    feed.close(SUMMARY)
    assert [run.name for run in tracker.runs] == ["demo"]
    assert tracker.runs[0].recipe["rollout"] == {"group_size": 4}
    assert tracker.steps == [1, 2]
    assert tracker.logged[1] == (1, {"reward/mean": 0.1, "reinforcement/step": 1.0})
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


def test_values_that_are_not_finite_are_not_sent(tmp_path):
    tracker, folder = Remembering(), write_run(tmp_path / "demo")
    feed = feed_of(folder, mine=tracker)
    feed.follow_run(folder)
    feed.send_row(row(1, **{"reward/mean": math.nan, "policy/update_kl": math.inf, "loss": 2}))
    feed.close(None)
    assert tracker.logged == [(1, {"loss": 2.0, "reinforcement/step": 1.0})]
    assert tracker.finished == [None]


def test_steps_are_counted_over_stages_and_evaluations_follow_their_step(tmp_path):
    names = [("untrained", 0.1), ("supervised", 0.2), ("reinforcement-000002", 0.3), ("reinforcement", 0.4)]
    folder = write_run(tmp_path / "demo", supervised=3, reinforcement=4, evaluations=names)
    tracker = Remembering()
    feed = feed_of(folder, mine=tracker)
    feed.follow_run(folder)
    feed.close(None)
    assert tracker.steps == [1, 2, 3, 4, 5, 6, 7]
    assert tracker.logged[-2][1]["reinforcement/step"] == 4
    assert tracker.evaluations == [(0, 0.1), (3, 0.2), (5, 0.3), (7, 0.4)]


def test_chain_of_runs_is_one_run_of_a_tracker(tmp_path):
    one = write_run(tmp_path / "1", supervised=2, evaluations=[("untrained", 0.1), ("supervised", 0.2)])
    other = write_run(tmp_path / "2", reinforcement=1, evaluations=[("untrained", 0.2)])
    tracker = Remembering()
    feed = feed_of(tmp_path, mine=tracker)
    for folder in (one, one, other):  # one is sent twice: while it runs, and after it
        feed.follow_run(folder)
    feed.send_row(row(2))
    feed.send_evaluation("reinforcement", evaluation(0.9))
    feed.close(None)
    assert len(tracker.runs) == 1
    assert tracker.steps == [1, 2, 3, 4]
    assert tracker.evaluations == [(0, 0.1), (2, 0.2), (4, 0.9)]


@pytest.mark.parametrize("stored_step", [None, 2])
def test_resumed_run_sends_missing_steps_and_nothing_twice(tmp_path, stored_step):
    folder, first_tracker = write_run(tmp_path / "demo"), Remembering()
    first = feed_of(folder, mine=first_tracker)
    first.follow_run(folder)
    for step in (1, 2):
        first.send_row(row(step))
    first.close(None)
    write_run(folder, reinforcement=3)  # the third step was not sent before the kill
    second_tracker = Remembering(stored_step)
    second = feed_of(folder, mine=second_tracker)
    second.follow_run(folder)
    second.send_row(row(4))
    second.close(SUMMARY)
    assert first_tracker.steps + second_tracker.steps == [1, 2, 3, 4]
    assert second_tracker.runs[0].id == first_tracker.runs[0].id


def test_repeated_step_is_not_sent_again(tmp_path):
    folder, first_tracker = write_run(tmp_path / "demo"), Remembering()
    first = feed_of(folder, mine=first_tracker)
    first.follow_run(folder)
    for step in (1, 2, 3):
        first.send_row(row(step))
    first.close(None)
    write_run(folder, reinforcement=1)  # the last checkpoint is of step 1
    second_tracker = Remembering()
    second = feed_of(folder, mine=second_tracker)
    second.follow_run(folder)
    for step in (2, 3, 4):
        second.send_row(row(step))
    second.close(None)
    assert second_tracker.steps == [4]


def test_tracker_that_lost_steps_receives_them_again(tmp_path):
    folder, first_tracker = (
        write_run(tmp_path / "demo", reinforcement=3, evaluations=[("untrained", 0.5)]),
        Remembering(),
    )
    first = feed_of(folder, mine=first_tracker)
    first.follow_run(folder)
    first.close(None)
    second_tracker = Remembering(stored_step=1)  # it writes after `log`, and was killed
    second = feed_of(folder, mine=second_tracker)
    second.follow_run(folder)
    second.close(None)
    assert second_tracker.steps == [2, 3]
    assert second_tracker.evaluations == []


def test_tracker_that_cannot_start_is_reported_once_and_the_run_continues(tmp_path):
    class Absent(Remembering):
        def start(self, run):
            raise ConnectionError("no server\nat all")

    messages, folder, other = [], write_run(tmp_path / "demo"), Remembering()
    feed = feed_of(folder, messages, absent=Absent(), there=other)
    feed.follow_run(folder)
    for step in (1, 2):
        feed.send_row(row(step))
    feed.close(SUMMARY)
    assert messages == ["tracker absent failed; the run continues without it: ConnectionError: no server at all"]
    assert other.steps == [1, 2]


def test_failed_step_is_sent_again_with_the_next(tmp_path):
    class Shaky(Remembering):
        calls = 0

        def log(self, step, metrics):
            self.calls += 1
            if self.calls in (2, 3):
                raise OSError("gone for a moment")
            super().log(step, metrics)

    messages, folder, tracker = [], write_run(tmp_path / "demo"), Shaky()
    feed = feed_of(folder, messages, shaky=tracker)
    feed.follow_run(folder)
    for step in (1, 2, 3, 4):
        feed.send_row(row(step))
    feed.close(None)
    assert tracker.steps == [1, 2, 3, 4]
    assert len(messages) == 1


def test_run_never_waits_for_a_tracker_that_hangs(tmp_path):
    released = threading.Event()

    class Hanging(Remembering):
        def log(self, step, metrics):
            released.wait(60)

    messages, folder = [], write_run(tmp_path / "demo")
    feed = feed_of(folder, messages, hanging=Hanging())
    feed.follow_run(folder)
    for step in range(1, 2001):
        feed.send_row(row(step))
    feed.close(SUMMARY, seconds=0.1)
    released.set()
    assert messages == ["tracker hanging: not finished; the same command with --resume sends the rest"]


def test_trackers_are_called_from_one_thread_that_does_not_train(tmp_path):
    class Where(Remembering):
        def log(self, step, metrics):
            super().log(step, {**metrics, "thread": threading.get_ident()})

    folder, tracker = write_run(tmp_path / "demo"), Where()
    feed = feed_of(folder, mine=tracker)
    feed.follow_run(folder)
    for step in (1, 2):
        feed.send_row(row(step))
    feed.close(None)
    (where,) = {metrics["thread"] for _, metrics in tracker.logged}
    assert where != threading.get_ident()


def test_run_without_trackers_writes_no_state(tmp_path):
    folder = write_run(tmp_path / "demo")
    feed = feed_of(folder)
    feed.follow_run(folder)
    feed.send_row(row(1))
    feed.close(SUMMARY)
    assert not (folder / "trackers").exists()


def small(*overrides):
    return load_recipe("demo", [*SMALL, "ablations=null", "reinforcement.steps=4", *overrides])


@pytest.mark.slow
def test_custom_tracker_receives_a_run_and_continues_after_a_stop(tmp_path):
    path, run_dir = tmp_path / "told.jsonl", tmp_path / "demo"
    resolved = small(NAMED % path, "reinforcement.checkpoint_interval_steps=1")
    with pytest.raises(Stopped):
        train(resolved, run_dir, progress=StopAfter(2, of="reinforcement"))
    train(resolved, run_dir, progress=QUIET, resume=True)
    lines = read_lines(path)
    starts = [line for line in lines if "id" in line]
    assert len(starts) == 2
    assert starts[0] == starts[1]
    assert starts[0] | {"id": ""} == {"id": "", "name": "demo", "seed": resolved.recipe.seed}
    rows = Journal(run_dir).read()
    steps = [line for line in lines if "reward/mean" in line or "loss/supervised" in line]
    assert [line["step"] for line in steps] == list(range(1, len(rows) + 1))
    for line, written in zip(steps[2:], rows[2:], strict=True):
        assert line["reward/mean"] == written["reward/mean"]
    assert [line["step"] for line in lines if "evaluation/success" in line] == [0, 2, 6]
    assert lines[-1]["summary"]["summary/parameters"] > 0


@pytest.mark.slow
def test_finished_run_can_be_sent_to_a_tracker_later(tmp_path):
    path, run_dir = tmp_path / "told.jsonl", tmp_path / "demo"
    train(small(), run_dir, progress=QUIET)
    train(small(NAMED % path), run_dir, progress=QUIET, resume=True)
    assert [line["step"] for line in read_lines(path) if "reinforcement/step" in line] == [3, 4, 5, 6]


@pytest.mark.slow
def test_stages_and_ablations_are_sent_as_one_run(tmp_path):
    path = tmp_path / "told.jsonl"
    stages = "stages=[{supervised: {steps: 2}}, {reinforcement: {steps: 2}}]"
    train(small(stages, NAMED % path), tmp_path / "demo", progress=QUIET)
    lines = read_lines(path)
    assert [line["step"] for line in lines if any(key.endswith("/step") for key in line)] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "evaluation/success" in line] == [0, 2, 4]
    assert sum("id" in line for line in lines) == 1


def test_unknown_tracker_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(RecipeError, match=r'trackers.0: no tracker named "wandbb"; did you mean "wandb"'):
        train(small("trackers=wandbb"), tmp_path / "demo", progress=QUIET)
    with pytest.raises(RecipeError, match=r'trackers.1: "wandb" is listed twice'):
        small("trackers=[wandb,wandb]")
    with pytest.raises(RecipeError, match=r"a tracker has start, log, finish"):
        train(small("trackers=support.trackers:Mute"), tmp_path / "demo", progress=QUIET)
    assert not (tmp_path / "demo" / "recipe.yaml").exists()


def test_invalid_tracker_is_found_before_the_run_starts():
    async def last():
        return [check async for check in run_preflight_checks(small("trackers=support.trackers:Mute"))][-1]

    check = asyncio.run(last())
    assert check.verdict is CheckStatus.FAIL
    assert "a tracker has start, log, finish" in str(check)


def test_live_recipe_refuses_a_tracker_without_effect():
    keys = {"policy": {"tiny": {}}, "tasks": {"source": "arithmetic"}, "reward": "exact_match", "live": {}}
    with pytest.raises(RecipeError, match="trackers: has no effect"):
        load_recipe({**keys, "trackers": "tensorboard"})


def test_other_keys_still_cannot_change(tmp_path):
    train(small(), tmp_path / "demo", progress=QUIET)
    with pytest.raises(RunDirectoryError, match="seed"):
        train(small("seed=9", NAMED % (tmp_path / "told")), tmp_path / "demo", progress=QUIET, resume=True)


KILLED = """
import os, sys, threading, time
from pathlib import Path
sys.path[:0] = [%r]
from support.trackers import Yours, feed_of, write_run
from whetstone.reporting import Journal
folder = Path(sys.argv[1])
feed = feed_of(folder, yours=Yours(path=sys.argv[2]))
feed.follow_run(folder)
made = len(Journal(folder).read())
journal = Journal(folder, heard=[feed.send_row])
for step in range(made + 1, 100000):
    journal.record("reinforcement", step, {"reward/mean": step / 10})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_every_recorded_step_is_sent_once_despite_kills_at_any_moment(tmp_path):
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
    feed.follow_run(folder)
    feed.close(None)
    steps = [line["step"] for line in read_lines(path) if "reward/mean" in line]
    rows = len(Journal(folder).read())
    doubled = len(steps) - len(set(steps))
    assert sorted(set(steps)) == list(range(1, rows + 1))
    assert doubled <= 6  # `log` returned and the kill preceded the record of it: at most once per kill
