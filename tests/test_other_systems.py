"""Training needs no module and no file that only Linux has."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WITHOUT_LINUX = """
import builtins, sys

imported = builtins.__import__

def refuse(name, globals=None, *rest, **named):
    if name.partition(".")[0] in ("fcntl", "resource") and (globals or {}).get("__name__", "").startswith("whetstone"):
        raise ImportError(f"No module named {name!r}")
    return imported(name, globals, *rest, **named)

def refuse_proc(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))

builtins.__import__ = refuse
sys.addaudithook(refuse_proc)
"""


def run_without_linux(code, *arguments):
    program = WITHOUT_LINUX + textwrap.dedent(code)
    paths = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
    return subprocess.run(
        [sys.executable, "-c", paths + program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_modules_import_without_fcntl_and_resource():
    done = run_without_linux("""
        import whetstone.record.run_directory, whetstone.learning.flops, whetstone.sandbox.sandbox_server
        import whetstone.sandbox.containers.container_runtime as containers, whetstone.policies.devices as devices
        import whetstone.environments.adapters.run_in_subprocess as isolated, whetstone.training.run_provenance as runs
        from whetstone.sandbox.isolation import Isolation, has_own_users
        import torch

        assert whetstone.learning.flops.peak_memory_gib(torch.device("cpu")) == 0.0
        assert isolated._size() > 2**40
        assert devices.free_memory(torch.device("cpu")) is None
        assert containers.process_owner().startswith("unknown/")
        assert not has_own_users(Isolation.NAMESPACES)
        assert runs.describe_processor()[0] is not None
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_small_run_trains_without_fcntl_resource_and_proc(tmp_path):
    done = run_without_linux(
        """
        import sys
        from support.small import SMALL
        from whetstone.recipe import load_recipe
        from whetstone.reporting import Progress
        from whetstone.training import train

        train(load_recipe("demo", [*SMALL, "ablations=null"]), sys.argv[1], progress=Progress(quiet=True))
        """,
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    assert (Path(tmp_path) / "run" / "summary.json").is_file()


def test_run_directory_is_locked_with_and_without_fcntl(tmp_path):
    code = """
        import sys
        from whetstone.record.run_directory import _lock_file

        with open(sys.argv[1], "a+") as first, open(sys.argv[1], "a+") as second:
            _lock_file(first)
            _lock_file(second)
    """
    assert run_without_linux(code, tmp_path / "lock").returncode == 0  # no lock, and no error
    plain = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "lock")]
    done = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in done.stderr
