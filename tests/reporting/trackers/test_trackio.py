"""Metrics sent to Trackio are in its database, read with its own reader."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whetstone.optional_dependencies import install_command

pytest.importorskip("trackio", reason=install_command("trackio"))
TOLD = """
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = [%r]
from support.trackers import SUMMARY, evaluation, feed_of, write_run
from whetstone.reporting.trackers import Trackio
folder = Path(sys.argv[1])
"""
FIRST = """
write_run(folder)
feed = feed_of(folder, trackio=Trackio())
feed.follow_run(folder)
feed.send_evaluation("untrained", evaluation(0.25))
for step in (1, 2):
    feed.send_row({"stage": "reinforcement", "step": step, "reward/mean": step / 10})
feed.close(None)
"""
KILLED = """
write_run(folder, reinforcement=2)
feed = feed_of(folder, trackio=Trackio())
feed.follow_run(folder)
feed.send_row({"stage": "reinforcement", "step": 3, "reward/mean": 0.3})
while "step 3" not in (folder / "trackers" / "trackio.told").read_text():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)  # sent, but possibly not yet in the database
"""
AGAIN = """
write_run(folder, reinforcement=3)
feed = feed_of(folder, trackio=Trackio())
feed.follow_run(folder)
feed.send_row({"stage": "reinforcement", "step": 4, "reward/mean": 0.4})
feed.close(SUMMARY)
"""
READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("whetstone")
run = run["name"] if isinstance(run, dict) else run
logs = SQLiteStorage.get_logs("whetstone", run)
config = SQLiteStorage.get_run_config("whetstone", run)
print(json.dumps({"run": run, "logs": logs, "config": config}))
"""


@pytest.mark.slow
def test_steps_are_read_back_once_each_after_a_kill_and_nothing_is_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    folder, top = tmp_path / "demo", TOLD % str(Path(__file__).parents[2])

    def run(code):
        words = [sys.executable, "-c", top + code, str(folder)]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    for code in (FIRST, KILLED, AGAIN):
        done = run(code)
        assert done.stdout == ""
        assert done.returncode == (-9 if code is KILLED else 0), done.stderr
    stored = json.loads(run(READ).stdout)
    rewards = [(row["step"], row["reward/mean"]) for row in stored["logs"] if "reward/mean" in row]
    assert rewards == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert [row["step"] for row in stored["logs"] if "evaluation/success" in row] == [0]
    assert stored["run"].startswith("demo-")
    assert stored["config"]["rollout"] == {"group_size": 4}
