"""How far is it from the idea to the file? What seams and commands load, the calls from the command to the gradient.

python benchmarks/house.py
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "whetstone"
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


def loaded(module: str) -> str:
    """(own modules, whether torch is among the others, seconds of CPU) of importing it in a fresh process."""
    return subprocess.run(
        [sys.executable, "-c", _LOADS.format(module=module)], capture_output=True, text=True, check=True
    ).stdout.strip()


def command_seconds(*words: str) -> float:
    """CPU of a command in a process of its own."""
    code = (
        "import resource, subprocess, sys; "
        f"subprocess.run([sys.executable, '-m', 'whetstone.cli.main', *{list(words)!r}], capture_output=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def literal_names() -> int:
    """Calls of `getattr` and `hasattr` with a name in quotes, Python's own left out."""
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
    """Print all of it."""
    seams = ["whetstone", *sorted(_module(path) for path in SOURCE.rglob("protocol.py"))]
    for module in seams:
        print(f"import {module}: {loaded(module)} (own modules, torch, CPU seconds)")
    for words in (["--help"], ["--version"], ["trian"], ["train", "nothing-of-this-name"]):
        print(f"whetstone {' '.join(words)}: {command_seconds(*words):.2f} s of CPU")
    print(f"getattr and hasattr with a name in quotes: {literal_names()}")
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    whole = sum(len(re.findall(r"assembly: Assembly\b", text)) for text in texts)
    print(f"parameters that are a whole Assembly: {whole}")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _STACK, f"{folder}/run"], capture_output=True, text=True, check=False
        )
    stack = next((line for line in done.stderr.splitlines() if " -> " in line), done.stderr[-300:])
    print(f"from the command to the gradient ({stack.count(' -> ') + 1} frames; the thread's own part): {stack}")


def _module(path: Path) -> str:
    return ".".join(("whetstone", *path.relative_to(SOURCE).with_suffix("").parts))


if __name__ == "__main__":
    main()
