"""`whetstone live` as a process of its own: killed without a warning and called again, it goes on."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx2
import openai
import pytest

from tests_live import PLAIN
from tests_served import TINY

CALL = "import sys; from whetstone.cli.main import main; sys.argv[0] = 'whetstone'; main()"


def called(folder, *more):
    """(the process, its address), once it answers."""
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
        said = [{"role": "user", "content": "Name a letter."}]
        for _ in range(2):
            told = client.chat.completions.create(model="demo", messages=said, max_tokens=4)
            said.append(told.choices[0].message.model_dump(exclude_none=True))
            said.append({"role": "user", "content": "No, it should be B."})


def status(address):
    return httpx2.get(f"{address}/v1/live").json()


@pytest.mark.slow
def test_killed_without_a_warning_it_has_learned_each_turn_once_when_it_is_called_again(tmp_path):
    process, address = called(tmp_path, "--paused")
    try:
        for number in range(5):
            corrected(address, f"e{number}")
        assert status(address)["waiting_turns"] == 5
        httpx2.post(f"{address}/v1/live/resume")
    finally:
        os.kill(process.pid, signal.SIGKILL)  # wherever it is by now
        process.wait()
    process, address = called(tmp_path)
    try:
        while (told := status(address))["waiting_turns"] > 1:
            assert process.poll() is None
        assert (told["learned_turns"], told["steps"]) == (4, 2)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    rows = [json.loads(line) for line in (tmp_path / "live" / "journal.jsonl").read_text().splitlines()]
    assert [row["turns"] for row in rows if "update" in row] == [[0, 1], [2, 3]]
    assert (tmp_path / "checkpoints" / "step-000002").is_dir()
