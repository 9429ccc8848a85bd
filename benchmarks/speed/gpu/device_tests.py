"""Run the tests of devices on a GPU and count their results while they run.

python benchmarks/speed/gpu/device_tests.py tests --device cuda --result FILE --scratch FOLDER
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from part import Result

ROOT = Path(__file__).resolve().parents[3]
FILES = ("tests/test_devices.py", "tests/learning/test_flex_attention.py", "tests/test_device_faults.py")
_LINE = re.compile(
    r"^(?:\[gw\d+\] \[ *\d+%\] )?(?:(?P<first>[A-Z]+) )?(?P<test>tests/\S+::.+?)(?: (?P<last>[A-Z]+).*)?$"
)
"""A line of `pytest -vv`: the outcome is last; with pytest-xdist it is first."""
_PROCESSES = 8


def main() -> None:
    """Run the tests; exits with pytest's code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("part")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    for unused in ("--model", "--wheels"):
        parser.add_argument(unused)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    result, failed = Result(arguments.result), []
    counts = dict.fromkeys(("passed", "failed", "skipped", "error"), 0)
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--tb=short", *FILES]
    if arguments.small:
        command += ["-k", "stay_shared or not_there or flex", "-m", "not slow"]
    else:
        command += ["-m", "slow or not slow"]
        if importlib.util.find_spec("xdist") is not None:
            command += ["-n", str(min(_PROCESSES, os.cpu_count() or 1)), "--dist", "worksteal"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        match = _LINE.match(line.rstrip())
        outcome = (match["first"] or match["last"] or "").lower() if match is not None else ""
        if match is None or outcome not in counts:
            continue
        counts[outcome] += 1
        if outcome in ("failed", "error"):
            failed.append(match["test"])
            result.note(failures=failed[:50])
        result.add(**counts)
    code = process.wait()
    if code:
        why = f"{len(failed)} of {sum(counts.values())} tests failed" if failed else f"pytest ended with {code}"
        result.note(why=why)
    sys.exit(code)


if __name__ == "__main__":
    main()
