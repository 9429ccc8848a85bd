"""The command line as a module."""

import subprocess
import sys


def test_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "whetstone", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("whetstone")
