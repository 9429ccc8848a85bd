"""`whetstone view` begins, or says in one line why not."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests_cli import whetstone
from tests_viewed import made_run
from whetstone.cli.listening import bound_to


def refused(*words):
    done = whetstone("view", *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made_run(tmp_path / "demo")


def test_a_port_in_use_is_said(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"http://127.0.0.1:{port} cannot be served: Address already in use" in refused(run, "--port", port)


def test_what_is_answered_is_sent_at_once():
    with bound_to("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        accepted.close()


def test_a_missing_run_is_said_with_the_nearest(run):
    assert 'dmeo: no such folder; did you mean "demo"?' in refused(run.parent / "dmeo")


def test_a_folder_without_a_run_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no run; `whetstone train RECIPE" in refused(tmp_path / "empty")


def test_beyond_this_machine_keys_are_asked_for(run):
    assert "--keys FILE" in refused(run, "--host", "0.0.0.0")


def test_a_file_that_holds_no_keys_is_said(run, tmp_path):
    (tmp_path / "keys.json").write_text("none")
    assert "no file of keys" in refused(run, "--keys", tmp_path / "keys.json")


def test_without_the_packages_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert "pip install" in refused(run, "--port", "0")


@pytest.mark.slow
def test_a_run_that_may_not_be_written_is_looked_at(run, tmp_path):
    """And neither may the cache: the index goes with the process."""
    words = [sys.executable, "-m", "whetstone.cli.main", "view", str(run), "--port", "0"]
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "whetstone").write_text("in the way")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert re.fullmatch(r"1 run at http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def test_what_listens_loads_no_model():
    code = "import whetstone.cli.view, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
