"""Configuration of pytest. The process that distributes tests imports neither PyTorch nor models, which takes
seconds."""

import atexit
import collections
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.slow import list_skipped_parameters, thinned

# objects of the collection stay; searching them for garbage repeatedly takes seconds
gc.disable()
# in any environment: a third of the time of the collection is compilation of these files
sys.dont_write_bytecode = False
# examples are a function of the test, so that a commit either passes or fails; `explore` samples others each time
_ANY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # a busy machine is no failure
settings.register_profile("quick", max_examples=5, derandomize=True, **_ANY_MACHINE)
settings.register_profile("medium", max_examples=50, derandomize=True, **_ANY_MACHINE)
settings.register_profile("thorough", max_examples=200, derandomize=True, **_ANY_MACHINE)
settings.register_profile("explore", max_examples=200, **_ANY_MACHINE)
if settings.get_current_profile_name() in ("default", "ci"):  # no other profile was requested
    settings.load_profile("quick")


def pytest_addoption(parser):
    parser.addoption("--write-skipped", metavar="FILE", help="write the ids of skipped tests, one per line")
    parser.addoption(
        "--skipped-before", metavar="FILE", default=os.devnull, help="mark the tests of this file with skipped_before"
    )
    parser.addoption(
        "--every", metavar="K", type=int, default=1, help="of each slow test with many parameters, only one in K"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_isolation: runs untrusted code; skipped on a machine without isolation")
    config.addinivalue_line("markers", "skipped_before: a program or package was missing in an earlier session")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        config.pluginmanager.import_plugin("support.fixtures")
    else:
        gc.enable()  # this process distributes tests and collects none


def pytest_collection_modifyitems(items, config):
    for item in thinned(items):
        item.add_marker(pytest.mark.slow)
    skipped_parameters = list_skipped_parameters(items, config.getoption("--every"))
    if skipped_parameters:
        config.hook.pytest_deselected(items=skipped_parameters)
        items[:] = [item for item in items if item not in skipped_parameters]
    skipped = set(Path(config.getoption("--skipped-before")).read_text("utf-8").splitlines())
    for item in items:
        if item.nodeid in skipped or item.nodeid.partition("::")[0] in skipped:  # a test, or a whole file
            item.add_marker(pytest.mark.skipped_before)


def pytest_collection_finish():
    """Write no more bytecode: a module that a test writes twice within a second would keep that of the first version.

    Objects of the collection are no longer searched by the garbage collector, those of tests are.
    """
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_terminal_summary(terminalreporter, config):
    """List why tests were skipped, each reason once, the most frequent first, and write their ids if requested."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    if path := config.getoption("--write-skipped"):
        identifiers = [report.nodeid for report in terminalreporter.stats.get("skipped", [])]
        Path(path).write_text("".join(f"{identifier}\n" for identifier in identifiers), "utf-8")
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5}  {reason}")


# some libraries warn about remaining objects at the end of Python; pytest collects garbage several times before
atexit.register(gc.unfreeze)
