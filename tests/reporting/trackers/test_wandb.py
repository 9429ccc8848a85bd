"""Metrics logged to Weights & Biases offline are in the file that `wandb sync` uploads."""

import json
import struct

import pytest

from support.trackers import SUMMARY, evaluation, feed_of, write_run
from whetstone.optional_dependencies import install_command
from whetstone.reporting.trackers import WeightsAndBiases

pytest.importorskip("wandb", reason=install_command("wandb"))
BLOCK, HEAD = 32768, 7


def records(path):
    """Yield the records of a run's file: a log in blocks as in LevelDB, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record_bytes = path.read_bytes(), HEAD, b""
    while at + HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEAD])
        record_bytes += content[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # complete, or the last fragment
            record = Record()
            record.ParseFromString(record_bytes)
            record_bytes = b""
            yield record


def offline_runs(folder):
    return [list(records(path)) for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb"))]


def history(run):
    """Return the logged metrics per step."""
    steps = {}
    for record in run:
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            steps.setdefault(items.pop("_step"), {}).update(items)
    return steps


@pytest.fixture
def quiet_home(tmp_path, monkeypatch):
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.slow
def test_offline_each_step_is_in_one_file_of_the_same_run(tmp_path, quiet_home):
    folder = write_run(tmp_path / "demo")
    first = feed_of(folder, wandb=WeightsAndBiases(mode="offline", tags=["small"]))
    first.follow_run(folder)
    first.send_evaluation("untrained", evaluation(0.25))
    for step in (1, 2):
        first.send_row({"stage": "reinforcement", "step": step, "reward/mean": step / 10})
    first.close(None)
    write_run(folder, reinforcement=3)
    second = feed_of(folder, wandb=WeightsAndBiases(mode="offline"))
    second.follow_run(folder)
    second.send_row({"stage": "reinforcement", "step": 4, "reward/mean": 0.4})
    second.send_evaluation("reinforcement", evaluation(0.5), step=3)  # during training, one step late
    second.close(SUMMARY)
    one, other = offline_runs(folder)
    assert {step: metrics.get("reward/mean") for step, metrics in history(one).items()} == {0: None, 1: 0.1, 2: 0.2}
    assert {step: metrics.get("reward/mean") for step, metrics in history(other).items()} == {3: 0.3, 4: 0.4}
    assert history(one)[0]["evaluation/success"] == 0.25
    assert history(other)[4] | {"evaluation/step": 3, "evaluation/success": 0.5} == history(other)[4]
    begun = [record.run for run in (one, other) for record in run if record.WhichOneof("record_type") == "run"]
    assert len({run.run_id for run in begun}) == 1
    assert begun[0].display_name == "demo"
    config = {item.key or item.nested_key[0]: item.value_json for item in begun[0].config.update}
    assert json.loads(config["rollout"]) == {"group_size": 4}
    ends = [item for record in other if record.WhichOneof("record_type") == "summary" for item in record.summary.update]
    assert "summary/success_after" in {item.key or "/".join(item.nested_key) for item in ends}
