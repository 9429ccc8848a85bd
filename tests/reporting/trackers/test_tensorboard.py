"""What was told to TensorBoard is what its own reader finds."""

import time

import pytest

from tests_trackers import SUMMARY, evaluation, feed_of, write_run
from whetstone.extras import install_command
from whetstone.reporting.trackers import TensorBoard

pytest.importorskip("tensorboard", reason=install_command("tensorboard"))


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_scalars_recipe_and_summary_are_read_back_once_each_after_a_stop(tmp_path):
    folder = write_run(tmp_path / "demo")
    first = feed_of(folder, tensorboard=TensorBoard())
    first.follow(folder)
    first.evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        first.row({"stage": "reinforcement", "step": step, "reward/mean": step / 10})
    first.close(None)
    write_run(folder, reinforcement=3)
    second = feed_of(folder, tensorboard=TensorBoard())
    second.follow(folder)
    second.row({"stage": "reinforcement", "step": 4, "reward/mean": 0.4})
    second.close(SUMMARY)
    found = read(folder / "tensorboard")
    rewards = [(event.step, round(event.value, 6)) for event in found.Scalars("reward/mean")]
    assert rewards == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert [(event.step, event.value) for event in found.Scalars("evaluation/success")] == [(0, 0.25)]
    (recipe,) = found.Tensors("recipe")
    assert b'"group_size": 4' in recipe.tensor_proto.string_val[0]
    assert b"summary/success_after: 0.75" in found.Tensors("summary")[0].tensor_proto.string_val[0]


def test_what_came_back_is_in_the_file_though_nothing_was_closed(tmp_path):
    folder, tracker = write_run(tmp_path / "demo"), TensorBoard(folder=str(tmp_path / "board"))
    feed = feed_of(folder, tensorboard=tracker)
    feed.follow(folder)
    feed.row({"stage": "reinforcement", "step": 1, "reward/mean": 0.5})
    while not (told := folder / "trackers" / "tensorboard.told").is_file() or "step 1" not in told.read_text():
        time.sleep(0.01)
    (there,) = (tmp_path / "board").iterdir()
    assert there.name.startswith("demo-")
    assert [event.value for event in read(there).Scalars("reward/mean")] == [0.5]
    feed.close(None)
