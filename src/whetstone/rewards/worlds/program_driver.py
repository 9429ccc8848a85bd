"""Runs a whole program in a sandbox, as if it were started by itself: its text is sent there, and it imports nothing of
ours. What it writes to standard error goes nowhere.
"""

import os
import sys

before = sys.stdin
"""It closes what it reads when nobody holds it."""


def run(source: str, given: str) -> None:
    """Run a program on what standard input is to hold; what it prints is what the sandbox hears.

    Raises:
        RuntimeError: It exits with something that is not success.
    """
    with open("input.txt", "w", encoding="utf-8") as file:
        file.write(given)
    os.dup2(os.open("input.txt", os.O_RDONLY), 0)
    os.remove("input.txt")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  it lives as long as the program does
    sys.argv = ["solution.py"]
    setattr(os, "_exit", sys.exit)  # noqa: B010  what was printed is heard
    try:
        exec(compile(source, "solution.py", "exec"), {"__name__": "__main__"})
    except SystemExit as left:
        if left.code not in (None, 0):
            raise RuntimeError(f"it exits with {left.code!r}") from None
    finally:
        sys.stdout.flush()
