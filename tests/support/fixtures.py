"""Shared fixtures: public data if available, small policies, and a small run."""

import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import crash
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly import build_policy as policy_module
from whetstone.recipe import load_recipe
from whetstone.reporting import charts
from whetstone.sandbox import Isolation, Sandbox
from whetstone.sandbox.isolation import list_isolation_layers, strongest_layer
from whetstone.tasks import Arithmetic

torch.set_num_threads(1)  # tests run two at a time, one core each
RENDERED = charts._svg


PROMPTS = policy_module._prompts
DRAWN: dict[object, list[str]] = {}


def prompts_once(source):
    """Generate the tasks of small runs once, since that takes longer than a step."""
    if type(source) is not Arithmetic:
        return PROMPTS(source)
    key = (source.seed, source.digits, *source.weights.items())
    return list(DRAWN.get(key) or DRAWN.setdefault(key, PROMPTS(source)))


def pytest_sessionstart():
    """Reduce curves of reports in `make test`: a dozen of them take longer than a small run."""
    policy_module._prompts = prompts_once
    if settings.get_current_profile_name() == "quick":
        charts._svg = lambda figure: "<svg></svg>"


INITIALIZE, OPEN_SESSION = Sandbox.__init__, Sandbox.session
RUNNING = {"needs_isolation": True, "unmarked": False}
"""Whether the running test is marked with `needs_isolation`, and whether it opened a session without the mark."""


def initialize(sandbox, *, isolation="auto", **options):
    """Note whether the isolation is that of the machine or named by the test, which is then skipped by `levels`."""
    INITIALIZE(sandbox, isolation=isolation, **options)
    sandbox.of_machine = isolation == "auto" and sandbox.isolation is not Isolation.CONTAINER


def open_session(sandbox, **options):
    """Note a session of a test that would fail on a machine without isolation."""
    RUNNING["unmarked"] |= sandbox.of_machine and not RUNNING["needs_isolation"]
    return OPEN_SESSION(sandbox, **options)


Sandbox.__init__, Sandbox.session = initialize, open_session


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test that runs untrusted code on a machine without isolation, before its fixtures are set up."""
    RUNNING.update(needs_isolation=item.get_closest_marker("needs_isolation") is not None, unmarked=False)
    if RUNNING["needs_isolation"] and strongest_layer() is None:
        pytest.skip(f"isolation of untrusted code: {list_isolation_layers()[0].missing}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that runs untrusted code without the mark on every machine, not only on one without isolation."""
    result = yield
    assert not RUNNING["unmarked"], f"{item.name} runs untrusted code; mark it with support.sandbox.needs_isolation"
    return result


@pytest.fixture
def rendered(monkeypatch):
    """Render the curves of a report as for a reader."""
    monkeypatch.setattr(charts, "_svg", RENDERED)


@pytest.fixture
def impatient(monkeypatch):
    """Retry unreachable models immediately."""
    monkeypatch.setattr("whetstone.chat.openai_client._LONGEST_PAUSE", 0.01)


@pytest.fixture(scope="session")
def gsm8k_folder():
    """Return the folder of the published GSM8K files."""
    folder = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"GSM8K is missing: put train.jsonl and test.jsonl into {folder}")
    return folder


@pytest.fixture
def small_demo():
    """Return a function for the demo recipe with a model of a few thousand parameters, two steps per stage and
    overrides."""

    def load_small(*overrides):
        return load_recipe("demo", [*SMALL, "ablations=null", *overrides])

    return load_small


@pytest.fixture
def assembly(small_demo):
    """Return the assembly of the small demo."""
    return assemble(small_demo())


@pytest.fixture(scope="session")
def speaking_policy(tmp_path_factory):
    """Write a small policy that ends its turns as a model folder."""
    return crash.train_speaking_policy(tmp_path_factory.mktemp("speaking") / "run")


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 192 KiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount_result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", mounted], capture_output=True, check=False
    )
    if mount_result.returncode:
        pytest.skip("mounting a small tmpfs needs root: run the tests as root to see a disk really fill")
    yield mounted
    subprocess.run(["umount", mounted], check=True)
