"""`whetstone live` as a separate process: after a kill and a restart it continues."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx2
import openai
import pytest

from support.live_serving import PLAIN
from support.served_policy import TINY

CALL = "import sys; from whetstone.cli.main import main; sys.argv[0] = 'whetstone'; main()"


def start_live(folder, *more):
    """Start the command and return (process, address) once it answers."""
    arguments = [
        "live", "demo", TINY, *PLAIN, "live.turns_per_update=2", "live.learning_rate=1e-2",
        "--run-dir", str(folder), "--port", "0", *more,
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", CALL, *arguments], stdout=subprocess.PIPE, text=True)
    address = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
    assert address, process.wait()
    return process, address[0]


def corrected(address, episode):
    with openai.OpenAI(base_url=f"{address}/episodes/{episode}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Name a letter."}]
        for _ in range(2):
            answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=4)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "No, it should be B."})


def status(address):
    return httpx2.get(f"{address}/v1/live").json()


@pytest.mark.slow
def test_every_turn_is_trained_once_after_a_kill_and_a_restart(tmp_path):
    process, address = start_live(tmp_path, "--paused")
    try:
        for number in range(5):
            corrected(address, f"e{number}")
        assert status(address)["waiting_turns"] == 5
        httpx2.post(f"{address}/v1/live/resume")
    finally:
        os.kill(process.pid, signal.SIGKILL)  # at an arbitrary point
        process.wait()
    process, address = start_live(tmp_path)
    try:
        while (state := status(address))["waiting_turns"] > 1:
            assert process.poll() is None
        assert (state["learned_turns"], state["steps"]) == (4, 2)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    rows = [json.loads(line) for line in (tmp_path / "live" / "journal.jsonl").read_text().splitlines()]
    assert [row["turns"] for row in rows if "update" in row] == [[0, 1], [2, 3]]
    assert (tmp_path / "checkpoints" / "step-000002").is_dir()
