"""What every test stands on. The process that hands tests out loads neither torch nor models: they take seconds."""

import atexit
import collections
import gc
import os
import sys

import pytest
from hypothesis import settings

from tests_slow import thinned

# what is made while tests are collected stays: to look through it for what could go takes seconds, again and again
gc.disable()
# whatever the environment says: a third of what collecting takes is compiling these files
sys.dont_write_bytecode = False
# examples are a function of the test, so that a commit either passes or fails; `explore` samples others each time
settings.register_profile("quick", max_examples=5, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=200, deadline=None)
if settings.get_current_profile_name() in ("default", "ci"):  # nobody asked for another one
    settings.load_profile("quick")


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_isolation: runs untrusted code; skipped on a machine without isolation")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        config.pluginmanager.import_plugin("tests_fixtures")
    else:
        gc.enable()  # this process hands out tests, and collects none


def pytest_collection_modifyitems(items):
    for item in thinned(items):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """From here on no bytecode is kept: a module that a test writes twice within a second would be taken for the first.
    What there is by now is not looked through any more, what tests make is."""
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_terminal_summary(terminalreporter):
    """List why tests were skipped, each reason once, the most frequent first."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5}  {reason}")


# some libraries complain of what is still there when Python ends; pytest itself collects garbage several times before
atexit.register(gc.unfreeze)
