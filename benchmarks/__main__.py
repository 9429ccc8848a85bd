"""Run a benchmark by its name, or list all.

    python -m benchmarks                   the names, with the question that each answers
    python -m benchmarks NAME [OPTION …]   run one; `--help` lists its options
    python -m benchmarks --list            import every benchmark, and report those that cannot be imported

Run it in the root of the repository. benchmarks/README.md lists the pages with the results.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "shared"))
from import_paths import BENCHMARKS, FOLDERS, python_path

STARTED_BY_OTHERS = {"tau2_evaluator", "tool_call_cases_vllm"}
"""Scripts that a benchmark starts with another interpreter."""
GPU = BENCHMARKS / "speed" / "gpu" / "run.sh"


def main() -> None:
    """List the benchmarks, or run one."""
    if hasattr(signal, "SIGPIPE"):  # `| head` ends the program silently
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.path[:1] = map(str, FOLDERS)
    os.environ["PYTHONPATH"] = python_path()
    names = find_benchmarks()
    if len(sys.argv) < 2:
        print_names(names)
    elif sys.argv[1] == "--list":
        import_all(names)
    elif sys.argv[1] == "gpu":
        sys.exit(subprocess.run([GPU, *sys.argv[2:]]).returncode)
    elif sys.argv[1] in ("-h", "--help"):
        print(__doc__)
    elif sys.argv[1] not in names:
        near = difflib.get_close_matches(sys.argv[1], names, 1)
        hint = f"; did you mean {near[0]}?" if near else "; python -m benchmarks lists all"
        sys.exit(f"benchmarks: no benchmark {sys.argv[1]}{hint}")
    else:
        name = sys.argv[1]
        sys.argv[:2] = [f"python -m benchmarks {name}"]
        sys.exit(importlib.import_module(name).main())


def find_benchmarks() -> dict[str, Path]:
    """Return name → file of every benchmark that has a command, without importing it."""
    benchmarks = {}
    for folder in FOLDERS:
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\ndef main() ->" in text and "\nif __name__" in text and path.stem not in STARTED_BY_OTHERS:
                benchmarks[path.stem] = path
    return benchmarks


def describe(path: Path) -> str:
    """Return the first sentence of a module docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def print_names(names: dict[str, Path]) -> None:
    """Print the names by folder, with one line each."""
    width = max(map(len, names))
    for folder in FOLDERS:
        rows = [name for name, path in names.items() if path.parent == folder]
        if rows:
            print(f"{folder.relative_to(BENCHMARKS)}:")
        for name in rows:
            print(f"  {name:{width}}  {describe(names[name])}")
        if folder == GPU.parents[1]:
            print(f"  {'gpu':{width}}  Measure sampling and training on one GPU.")


def import_all(names: dict[str, Path]) -> None:
    """Import every benchmark; the exit code is 1 if one fails for another reason than a missing package."""
    failed = False
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            failed |= error.name is None or error.name in {path.stem for path in BENCHMARKS.rglob("*.py")}
            print(f"{name}: {error}")
        except Exception as error:
            failed = True
            print(f"{name}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: imported")
    sys.exit(failed)


if __name__ == "__main__":
    main()
