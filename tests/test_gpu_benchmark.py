"""The benchmark for a GPU keeps its measurements if a part fails or is interrupted, and its parts run on a CPU."""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks" / "speed" / "gpu"
SCRIPT = FOLDER / "run.sh"
ENVIRONMENT = {**os.environ, "PYTHON": sys.executable}


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def run(gpu, tmp_path, monkeypatch):
    """Prepare a run of three parts, whose commands a test replaces."""
    monkeypatch.setattr(gpu, "PARTS", tuple(gpu.Part(name, 60, "") for name in ("one", "two", "three")))
    options = {"out": tmp_path, "device": "cpu", "small": False, "seconds": 600.0, "model": "none", "only": None}
    benchmark = gpu.Run(argparse.Namespace(**options, wheels=tmp_path / "wheels", commit="abc"))
    benchmark._command = lambda part, limit: ["true"]
    yield benchmark
    shutil.rmtree(benchmark.scratch)


def stored(run):
    return {part["name"]: part for part in json.loads(run.path.read_text())["parts"]}


def test_a_part_that_fails_does_not_stop_the_next_and_its_error_is_one_line(run):
    failing = ["sh", "-c", "echo 'Traceback (most recent call last):'; echo 'ValueError: no room'; exit 3"]
    run._command = lambda part, limit: failing if part.name == "two" else ["true"]
    run.run_parts()
    states = {name: part["state"] for name, part in stored(run).items()}
    assert states == {"one": "done", "two": "failed", "three": "done"}
    assert stored(run)["two"]["why"] == "ValueError: no room"
    assert "no room" in (run.arguments.out / "gpu.log").read_text()


def test_part_beyond_its_limit_is_ended_and_its_measurements_are_kept(run, gpu):
    run._file_of("one").write_text(json.dumps({"measured": {"steps": 2}}))
    run._command = lambda part, limit: ["sleep", "600"] if part.name == "one" else ["true"]
    run.parts = [gpu.Part("one", 0.1, ""), *run.parts[1:]]
    run.run_parts()
    parts = stored(run)
    assert (parts["one"]["state"], parts["one"]["measured"]) == ("cut", {"steps": 2})
    assert "limit" in parts["one"]["why"]
    assert parts["three"]["state"] == "done"


def test_parts_for_which_no_time_is_left_are_named_with_the_reason(run):
    run.arguments.seconds = 1.0
    run.run_parts()
    assert {part["state"] for part in stored(run).values()} == {"not run"}
    assert all("s of 1 s were left" in part["why"] for part in stored(run).values())


def test_a_part_that_is_killed_with_the_run_is_in_the_file_as_running(run):
    seen = []
    run._command = lambda part, limit: (seen.append(stored(run)[part.name]["state"]), ["true"])[1]
    run.run_parts()
    assert seen == ["running"] * 3


def test_an_interruption_is_stated_for_each_part_that_has_no_result(run):
    run.result["parts"][0] = {"name": "one", "state": "done"}
    run.result["parts"][1] = {"name": "two", "state": "running"}
    run._file_of("two").write_text(json.dumps({"measured": {"steps": 1}}))
    run.note_rest("the run was interrupted")
    run.write()
    parts = stored(run)
    assert [parts[name]["state"] for name in ("one", "two", "three")] == ["done", "cut", "not run"]
    assert parts["two"]["measured"] == {"steps": 1}
    assert parts["three"]["why"] == "the run was interrupted"


def test_a_machine_that_fails_ends_the_run(run, gpu):
    run.parts = [gpu.Part("machine", 60, ""), *run.parts]
    run.result["parts"].insert(0, {"name": "machine", "state": "not run"})
    run._command = lambda part, limit: ["sh", "-c", "echo 'RuntimeError: No CUDA GPUs are available'; exit 1"]
    run.run_parts()
    assert stored(run)["three"]["why"] == "the machine part failed: RuntimeError: No CUDA GPUs are available"


def test_page_of_devices_shows_the_last_run_if_any(run, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER.parents[2] / "docs" / "make")
    devices_page = importlib.import_module("devices_page")
    assert "not run" in devices_page.measured_on_gpu({})
    machine = {"name": "machine", "state": "done", "card": "NVIDIA H100", "packages": {"torch": "2.11.0"}}
    step = {"name": "two", "state": "cut", "why": "its limit of 60 s was reached", "measured": {"mfu": 0.25}}
    run.result["parts"] = [machine, step | {"weights": "random", "warnings": ["computed slower"]}]
    lines = devices_page.measured_on_gpu(run.result).splitlines()
    assert any(all(fact in line for fact in ("NVIDIA H100", "`abc`", "torch 2.11.0")) for line in lines)
    (row,) = [line for line in lines if line.startswith("| `two` |")]
    assert "| 0.25 |" in row
    assert row.endswith("| cut: its limit of 60 s was reached; random weights; computed slower |")


@pytest.mark.slow
def test_a_signal_ends_the_run_with_a_result(tmp_path):
    command = [SCRIPT, "--device", "cpu", "--small", "--out", tmp_path, "--only", "machine", "demo"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    path = tmp_path / "gpu.json"
    while not (path.is_file() and "running" in path.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert [part["why"] for part in json.loads(path.read_text())["parts"]] == ["the run was interrupted"] * 2
    assert "the run was interrupted" in text


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_line_states_that_nothing_was_measured(tmp_path):
    done = subprocess.run([SCRIPT, "--out", tmp_path], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    machine, *rest = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert machine["state"] == "failed"
    assert "\n" not in machine["why"]
    assert machine["why"]
    assert {part["state"] for part in rest} == {"not run"}
    assert all(machine["why"] in part["why"] for part in rest)


@pytest.mark.slow
def test_every_part_runs_in_a_small_version_on_a_cpu(tmp_path):
    command = [SCRIPT, "--device", "cpu", "--small", "--seconds", "5000", "--out", tmp_path]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    result = json.loads((tmp_path / "gpu.json").read_text())
    parts = {part["name"]: part for part in result["parts"]}
    trl = parts.pop("trl-135m-full-bfloat16")
    assert {name: part.get("why") for name, part in parts.items() if part["state"] != "done"} == {}
    assert all(part["measured"] for part in parts.values())
    assert trl["state"] == "done" or "pip install trl" in trl["why"]
    assert done.returncode == (0 if trl["state"] == "done" else 1)
    steps = {name: part["measured"] for name, part in parts.items() if name.startswith("step-")}
    assert len(steps) == 5
    for name, measured in steps.items():
        assert measured["mismatch_mean"] < (1e-5 if name.endswith("float32") and "bfloat16" not in name else 0.02)
        assert not [text for text in parts[name].get("warnings", []) if "slower" in text or "flex" in text]
    assert parts["tests"]["measured"]["passed"] > 0
    assert parts["tests"]["measured"]["failed"] == 0
    assert {f"seconds_per_step_{number}" for number in (1, 2)} <= parts["two-processes"]["measured"].keys()
