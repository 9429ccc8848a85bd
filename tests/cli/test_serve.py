"""`whetstone serve RUN --checkpoint`, and the folder in which `whetstone live RUN` stores its run."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from support.cli import train_with_all_checkpoints, whetstone
from whetstone.cli.live import default_folder
from whetstone.record import find_checkpoint
from whetstone.training import final_policy, load_agent

CALL = "import sys; from whetstone.cli.main import main; sys.argv[0] = 'whetstone'; main()"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_with_all_checkpoints(tmp_path_factory.mktemp("serve") / "run")


def weights(policy):
    return {name: tensor.sum().item() for name, tensor in policy.model.state_dict().items()}


def test_checkpoint_is_found_by_its_step_and_has_its_weights(trained):
    first = find_checkpoint(trained, "step-1")
    assert first == find_checkpoint(trained, "1") == find_checkpoint(trained, "step-000001")
    assert weights(load_agent(first).policy) == weights(final_policy(first)) != weights(final_policy(trained))


def test_serve_refuses_a_missing_checkpoint(trained):
    refused = whetstone("serve", trained, "--checkpoint", "step-99", "--port", "0")
    assert refused.returncode == 2
    assert "no checkpoint step-99; existing checkpoints: step-000001, step-000002" in refused.stderr
    refused = whetstone("serve", "smollm2-135m", "--checkpoint", "step-1", "--port", "0")
    assert "--checkpoint: smollm2-135m is not a run directory; name one" in refused.stderr


@pytest.mark.slow
def test_serve_answers_from_a_checkpoint_under_the_name_of_the_run(trained):
    arguments = ["serve", str(trained), "--checkpoint", "step-1", "--port", "0"]
    process = subprocess.Popen([sys.executable, "-c", CALL, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = re.search(r"run at (http://\S+)/v1", line)
        assert address, line
        request = {"model": "run", "messages": [{"role": "user", "content": "Compute 1+2"}], "max_tokens": 4}
        answer = httpx2.post(f"{address[1]}/v1/chat/completions", json=request, timeout=60)
        assert answer.status_code == 200, answer.text
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_live_run_is_stored_next_to_the_run_it_starts_from(tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_folder(str(trained), "run") == trained.parent / "run-live"
    assert default_folder("demo", "demo") == Path("runs/demo-live")
