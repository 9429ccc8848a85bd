"""Driver that runs a whole program in a sandbox like a script.

Its source is sent to the sandbox, so it imports nothing of this project. The program's standard error is discarded.
"""

import os
import sys

before = sys.stdin
"""Original standard input; it would be closed if there were no reference to it."""


def run(source: str, stdin_text: str) -> None:
    """Run a program with a text as its standard input; its standard output is captured by the sandbox.

    Raises:
        RuntimeError: If the program exits with a nonzero status.
    """
    with open("input.txt", "w", encoding="utf-8") as file:
        file.write(stdin_text)
    os.dup2(os.open("input.txt", os.O_RDONLY), 0)
    os.remove("input.txt")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  open for the lifetime of the program
    sys.argv = ["solution.py"]
    setattr(os, "_exit", sys.exit)  # noqa: B010  so that buffered output is flushed
    try:
        exec(compile(source, "solution.py", "exec"), {"__name__": "__main__"})
    except SystemExit as left:
        if left.code not in (None, 0):
            raise RuntimeError(f"it exits with {left.code!r}") from None
    finally:
        sys.stdout.flush()
