"""Attacks of untrusted code on the sandbox, for the tests of the sandbox and `benchmarks/robust/attacks.py`.

Each attack is Python code that runs after `HEADER` and after the targets on the machine (`Reach`). Effects on the
machine are observed from outside; `won()` reports effects that only the code observes: a permitted system call.

Note:
    An attack must work somewhere. Each attack that is harmless to a machine without isolation is therefore marked
    `control`, has only canaries as targets, and is also run without isolation. System call numbers are of x86-64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Reach:
    """Targets on the machine: canaries that belong to the user who runs the sessions."""

    CANARY: str = "/nowhere/file"
    """A file with an extended attribute, in its own folder."""
    SECRET: str = "/nowhere/secret"
    """A world-readable file."""
    READABLE: str = "/nowhere/readable"
    """A file in the folder of this Python, which untrusted code may read."""
    PID: int = 0
    """An idle process."""
    HOST: int = 0
    """The process that runs the sessions."""
    SERVER: int = 0
    """The fork server."""
    PORT: int = 0
    """Port on loopback that accepts connections and datagrams."""
    ABSTRACT: str = "\\0whetstone-nowhere"
    """An abstract socket that accepts connections."""
    NAMED: str = "/nowhere/stream"
    """A socket with a path that accepts connections."""
    DATAGRAMS: str = "/nowhere/datagrams"
    """A socket with a path that accepts datagrams."""
    NEIGHBOUR: str = "/nowhere/folder"
    """The folder of another session, as a path of the machine."""
    NEIGHBOUR_PID: int = 0
    """Process id of another session's first process, on the machine."""
    MARK: str = "it worked"
    """Text that `won` prints."""

    @property
    def code(self) -> str:
        """Return Python code that assigns the targets."""
        return "".join(f"{name} = {value!r}\n" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    family: str
    name: str
    code: str
    control: bool
    """Whether the attack is harmless to a machine without isolation, so that it must be seen to work there."""


HEADER = """
import contextlib, ctypes, errno, fcntl, itertools, json, mmap, os, resource, signal, socket, struct, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
PYTHON = sys.executable

def won(what=""):
    os.write(1, f"{MARK} {what}\\n".encode())

def ok(result):
    if result is None or result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def call(number, *arguments):
    return ok(libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))

def takes(number, *arguments):
    call(number, *arguments)
    won()

def told(path):
    with open(path, "rb") as file:
        os.write(1, file.read(1 << 16))

def every(*tries):
    failed = None
    for each in tries:
        try:
            each()
        except OSError as error:
            failed = error
    if failed:
        raise failed

def frames(*bodies):
    for body in bodies:
        for number in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(number, body)

def framed(**answer):
    body = json.dumps(answer).encode()
    return struct.pack("!I", len(body)) + body

def machine(code):
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes.fromhex(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""


def _read(text: str) -> Iterator[Attack]:
    """Yield the attacks of `attack_list.txt`, which describes its format."""
    for section in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        family, _, rest = section.partition("\n")
        for mark, name, code in re.findall(r"^-([-!]) (.+)\n((?:(?!-[-!] ).*\n)+)", rest, flags=re.MULTILINE):
            yield Attack(family, name, code.strip(), mark == "-")


ATTACKS = tuple(_read((Path(__file__).parent / "attack_list.txt").read_text()))


def family(name: str) -> dict[str, str]:
    """Return name → code of the attacks of a family."""
    return {attack.name: attack.code for attack in ATTACKS if attack.family == name}
