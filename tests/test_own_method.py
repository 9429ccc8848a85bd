"""The tutorial on a method of a paper: its code, its test and its recipe work as described."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from claims.bench_settings import read_bench
from claims.evidence import assemble_bench
from support.cli import whetstone
from whetstone.algorithms.advantages import leave_one_out

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guide" / "own-method.md").read_text()
README = (ROOT / "README.md").read_text()
CODE, TEST, LOSS, TERM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
KEYS, BENCH = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.removeprefix("$ whetstone ") for line in re.findall(r"^\$ whetstone (?:train|recipes) .*", PAGE, re.M)]


@pytest.fixture
def folder(tmp_path):
    files = {"rloo.py": CODE, "test_rloo.py": TEST, "rloo.yaml": KEYS, "rloo_loss.py": LOSS, "unlikely.py": TERM}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, language in (("shop.py", "python"), ("shop.jsonl", "json"), ("shop.yaml", "yaml")):
        (tmp_path / name).write_text(re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)[1])
    return tmp_path


def test_it_has_thirty_lines_and_the_name_of_the_paper(folder, monkeypatch):
    assert len(CODE.splitlines()) <= 30
    monkeypatch.syspath_prepend(folder)
    rewards, group = torch.rand(12, dtype=torch.float64), torch.arange(12) % 4
    assert torch.allclose(importlib.import_module("rloo").rloo(rewards, group), leave_one_out(rewards, group))


def test_its_loss_term_lowers_the_probability_of_tokens_of_failed_episodes(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    logprobs = torch.tensor([0.5, 0.5]).log().requires_grad_()
    result = importlib.import_module("unlikely").unlikelihood(logprobs, torch.tensor([0.0, 1.0]))
    # -ln(1 - 0.5) = 0.693147; its derivative by the log-prob is p / (1 - p) = 1
    assert result.loss.tolist() == pytest.approx([0.693147, 0.0])
    assert torch.autograd.grad(result.loss.sum(), logprobs)[0].tolist() == pytest.approx([1.0, 0.0])


def test_its_bench_compares_it_with_group_relative_advantages(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    errands = (ROOT / "benchmarks" / "evidence" / "benchmarks" / "errands.yaml").read_text()
    path = folder / "mine.yaml"
    path.write_text(errands[: errands.index("contenders:")] + BENCH)
    bench = assemble_bench("mine", read_bench(path))
    assert [each.name for each in bench.contenders] == ["grpo", "mine"]


@pytest.mark.slow
def test_its_test_passes_and_fails_for_another_function(folder):
    def passed():
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_rloo.py"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False).returncode == 0

    assert passed()
    (folder / "rloo.py").write_text(CODE.replace("(n - 1)", "n"))
    assert not passed()


@pytest.mark.slow
@pytest.mark.parametrize("message", COMMANDS)
def test_its_commands_run(folder, message):
    done = whetstone(*shlex.split(message), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
