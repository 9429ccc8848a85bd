"""What many tests need: the real data where it is at hand, small policies, and a run in miniature."""

import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import crash
from tests_small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly import policy as policy_module
from whetstone.recipe import load_recipe
from whetstone.reporting import charts
from whetstone.sandbox import Isolation, Sandbox
from whetstone.sandbox.isolation import offers, strongest
from whetstone.tasks import Arithmetic

torch.set_num_threads(1)  # tests run two at a time, one core each
RENDERED = charts._svg


PROMPTS = policy_module._prompts
DRAWN: dict[object, list[str]] = {}


def prompts_once(source):
    """Every run in miniature has the same generated tasks, and drawing them takes longer than a step."""
    if type(source) is not Arithmetic:
        return PROMPTS(source)
    key = (source.seed, source.digits, *source.weights.items())
    return list(DRAWN.get(key) or DRAWN.setdefault(key, PROMPTS(source)))


def pytest_sessionstart():
    """`make test` plots the curves of reports and renders few: a dozen of them take longer than a run in miniature."""
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
    if RUNNING["needs_isolation"] and strongest() is None:
        pytest.skip(f"isolation of untrusted code: {offers()[0].missing}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that runs untrusted code without the mark on every machine, not only on one without isolation."""
    result = yield
    assert not RUNNING["unmarked"], f"{item.name} runs untrusted code; mark it with tests_sandbox.needs_isolation"
    return result


@pytest.fixture
def rendered(monkeypatch):
    """A report's curves are what a reader sees."""
    monkeypatch.setattr(charts, "_svg", RENDERED)


@pytest.fixture
def impatient(monkeypatch):
    """Models that cannot be reached are asked again at once."""
    monkeypatch.setattr("whetstone.chat.endpoint._LONGEST_PAUSE", 0.01)


@pytest.fixture(scope="session")
def gsm8k_folder():
    """The published GSM8K files."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "gsm8k"
    if not (folder / "train.jsonl").is_file():
        pytest.skip(f"GSM8K is missing: put train.jsonl and test.jsonl into {folder}")
    return folder


@pytest.fixture
def small_demo():
    """The demo recipe with a model of a few thousand parameters and two steps a stage; overrides may be added."""

    def made(*overrides):
        return load_recipe("demo", [*SMALL, "ablations=null", *overrides])

    return made


@pytest.fixture
def assembly(small_demo):
    """All parts of the small demo."""
    return assemble(small_demo())


@pytest.fixture(scope="session")
def speaking_policy(tmp_path_factory):
    """A small policy that ends its turns, as a model folder."""
    return crash.speaking(tmp_path_factory.mktemp("speaking") / "run")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 192 KiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", mounted], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small tmpfs needs root: run the tests as root to see a disk really fill")
    yield mounted
    subprocess.run(["umount", mounted], check=True)
