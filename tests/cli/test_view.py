"""`whetstone view` starts, or reports in one line why not."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from support.cli import whetstone
from support.viewed_runs import made_run
from whetstone.cli.server_options import bind_socket


def refused(*words):
    done = whetstone("view", *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made_run(tmp_path / "demo")


def test_port_in_use_is_reported(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"http://127.0.0.1:{port} cannot be served: Address already in use" in refused(run, "--port", port)


def test_responses_are_sent_without_delay():
    with bind_socket("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        accepted.close()


def test_missing_run_is_answered_with_the_nearest(run):
    assert 'dmeo: no such folder; did you mean "demo"?' in refused(run.parent / "dmeo")


def test_folder_without_a_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no run; create one with `whetstone train RECIPE" in refused(tmp_path / "empty")


def test_public_addresses_require_keys(run):
    assert "--keys FILE" in refused(run, "--host", "0.0.0.0")


def test_invalid_file_of_keys_is_refused(run, tmp_path):
    (tmp_path / "keys.json").write_text("none")
    assert "not a file of keys" in refused(run, "--keys", tmp_path / "keys.json")


def test_missing_packages_are_answered_with_the_command_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert "pip install" in refused(run, "--port", "0")


@pytest.mark.slow
def test_read_only_run_is_viewed(run, tmp_path):
    """The cache is read-only too: the index is deleted with the process."""
    words = [sys.executable, "-m", "whetstone.cli.main", "view", str(run), "--port", "0"]
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "whetstone").write_text("in the way")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert re.fullmatch(r"1 run at http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def test_server_process_imports_no_torch():
    code = "import whetstone.cli.view, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
