"""Import cost of packages and commands, and the call stack from the command to the gradient.

python -m benchmarks code_structure
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "whetstone"
_LOADS = (
    "import sys, time; began = time.process_time(); import {module}; "
    "ours = sum(name.split('.')[0] == 'whetstone' for name in sys.modules); "
    "print(ours, 'torch' in sys.modules, round(time.process_time() - began, 2))"
)
_STACK = """
import sys, traceback
import torch
from whetstone.cli.main import main
def backward(self, *_, **__):
    frames = [f for f in traceback.extract_stack() if "/whetstone/" in f.filename]
    print(" -> ".join(f"{f.filename.split('/whetstone/')[-1]}:{f.name}" for f in frames), file=sys.stderr)
    raise SystemExit(7)
torch.Tensor.backward = backward
sys.argv = ["whetstone", "train", "demo", "--run-dir", sys.argv[1], "supervised=null", "evaluation.episodes=1",
            "ablations=null", "reinforcement.tasks_per_step=2", "reinforcement.imitation={}"]
main()
"""


def measure_import(module: str) -> str:
    """Import a module in a new process and return (own modules, whether torch is imported, CPU seconds)."""
    return subprocess.run(
        [sys.executable, "-c", _LOADS.format(module=module)], capture_output=True, text=True, check=True
    ).stdout.strip()


def measure_command(*words: str) -> float:
    """Return the CPU seconds of a command in a new process."""
    code = (
        "import resource, subprocess, sys; "
        f"subprocess.run([sys.executable, '-m', 'whetstone.cli.main', *{list(words)!r}], capture_output=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def count_literal_names() -> int:
    """Count calls of `getattr` and `hasattr` with a literal name, without names of Python itself."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and isinstance(node.args[1], ast.Constant)
        and not str(node.args[1].value).startswith("__")
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def main() -> None:
    """Print all figures."""
    seams = ["whetstone", *sorted(_module(path) for path in SOURCE.rglob("protocol.py"))]
    for module in seams:
        print(f"import {module}: {measure_import(module)} (own modules, torch, CPU seconds)")
    for words in (["--help"], ["--version"], ["trian"], ["train", "nothing-of-this-name"]):
        print(f"whetstone {' '.join(words)}: {measure_command(*words):.2f} s of CPU")
    print(f"getattr and hasattr with a literal name: {count_literal_names()}")
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    num_parameters = sum(len(re.findall(r"assembly: RunComponents\b", text)) for text in texts)
    print(f"parameters of type RunComponents: {num_parameters}")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _STACK, f"{folder}/run"], capture_output=True, text=True, check=False
        )
    stack = next((line for line in done.stderr.splitlines() if " -> " in line), done.stderr[-300:])
    print(f"from the command to the gradient ({stack.count(' -> ') + 1} frames; only those of the thread): {stack}")


def _module(path: Path) -> str:
    return ".".join(("whetstone", *path.relative_to(SOURCE).with_suffix("").parts))


if __name__ == "__main__":
    main()
