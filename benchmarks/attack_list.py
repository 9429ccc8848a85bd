"""What foreign code tries: one list, which the tests of the sandbox and `benchmarks/attacks.py` both go through.

Each is Python that runs behind `HEADER`, and behind names of what there is to reach on the machine (`Reach`). What it
has done to the machine is seen from outside; `won()` is for what only it can know: that the kernel said yes.

Easy to get wrong: an attack that could not work anywhere. So each that is harmless to a machine without isolation is
marked `control`, aims at canaries alone, and is tried there, too. Numbers of system calls are those of x86-64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Reach:
    """What there is on the machine, put there to be reached: canaries, all of the user who holds the sessions."""

    CANARY: str = "/nowhere/file"
    """A file, in a folder of its own, with an attribute."""
    SECRET: str = "/nowhere/secret"
    """A file everybody may read."""
    READABLE: str = "/nowhere/readable"
    """A file in the folder of this Python, which foreign code may read."""
    PID: int = 0
    """A process that does nothing."""
    HOST: int = 0
    """The process that holds the sessions."""
    SERVER: int = 0
    """The fork server."""
    PORT: int = 0
    """Where somebody listens on loopback, for connections and for datagrams."""
    ABSTRACT: str = "\\0whetstone-nowhere"
    """An abstract socket that takes connections."""
    NAMED: str = "/nowhere/stream"
    """A socket with a path that takes connections."""
    DATAGRAMS: str = "/nowhere/datagrams"
    """One that takes datagrams."""
    NEIGHBOUR: str = "/nowhere/folder"
    """The folder of another session, where it lies on the machine."""
    NEIGHBOUR_PID: int = 0
    """The first process of another session, as the machine numbers it."""
    MARK: str = "it worked"
    """What `won` prints."""

    @property
    def code(self) -> str:
        """As Python."""
        return "".join(f"{name} = {value!r}\n" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to do harm."""

    family: str
    name: str
    code: str
    control: bool
    """Whether it is harmless to a machine without isolation, where it has to be seen to work."""


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
    """The attacks of `attack_list.txt`; see there."""
    for section in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        family, _, rest = section.partition("\n")
        for mark, name, code in re.findall(r"^-([-!]) (.+)\n((?:(?!-[-!] ).*\n)+)", rest, flags=re.MULTILINE):
            yield Attack(family, name, code.strip(), mark == "-")


ATTACKS = tuple(_read((Path(__file__).parent / "attack_list.txt").read_text()))


def family(name: str) -> dict[str, str]:
    """The attacks of a family by name."""
    return {attack.name: attack.code for attack in ATTACKS if attack.family == name}
