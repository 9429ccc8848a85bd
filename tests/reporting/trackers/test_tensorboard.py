"""Metrics sent to TensorBoard are in its files, read with its own reader."""

import time

import pytest

from support.trackers import SUMMARY, evaluation, feed_of, write_run
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers import TensorBoard

pytest.importorskip("tensorboard", reason=install_command("tensorboard"))


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_scalars_recipe_and_summary_are_read_back_once_each_after_a_stop(tmp_path):
    folder = write_run(tmp_path / "demo")
    first = feed_of(folder, tensorboard=TensorBoard())
    first.follow_run(folder)
    first.send_evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        first.send_row({"stage": "reinforcement", "step": step, "reward/mean": step / 10})
    first.close(None)
    write_run(folder, reinforcement=3)
    second = feed_of(folder, tensorboard=TensorBoard())
    second.follow_run(folder)
    second.send_row({"stage": "reinforcement", "step": 4, "reward/mean": 0.4})
    second.close(SUMMARY)
    events = read(folder / "tensorboard")
    rewards = [(event.step, round(event.value, 6)) for event in events.Scalars("reward/mean")]
    assert rewards == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert [(event.step, event.value) for event in events.Scalars("evaluation/success")] == [(0, 0.25)]
    (recipe,) = events.Tensors("recipe")
    assert b'"group_size": 4' in recipe.tensor_proto.string_val[0]
    assert b"summary/success_after: 0.75" in events.Tensors("summary")[0].tensor_proto.string_val[0]


def test_logged_step_is_in_the_file_before_the_tracker_is_closed(tmp_path):
    folder, tracker = write_run(tmp_path / "demo"), TensorBoard(folder=str(tmp_path / "board"))
    feed = feed_of(folder, tensorboard=tracker)
    feed.follow_run(folder)
    feed.send_row({"stage": "reinforcement", "step": 1, "reward/mean": 0.5})
    while not (sent := folder / "trackers" / "tensorboard.told").is_file() or "step 1" not in sent.read_text():
        time.sleep(0.01)
    (board,) = (tmp_path / "board").iterdir()
    assert board.name.startswith("demo-")
    assert [event.value for event in read(board).Scalars("reward/mean")] == [0.5]
    feed.close(None)
