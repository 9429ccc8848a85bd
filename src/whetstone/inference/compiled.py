"""How is what lies between products computed quickly? By a few functions in C++, where this machine has a compiler.

In half precision a decode step of SmolLM2 is two hundred products and two thousand small operations of PyTorch, each of
which reads what the one before wrote. `columns.cpp` has four functions for all of these. It is compiled once a machine,
for processors with AVX-512 and its instructions for bfloat16, and kept in the cache folder; without a compiler, or on
another processor, PyTorch's own operations do the same.

Easy to get wrong: a library with helpers of its own would take the cores from PyTorch's. It is linked to the OpenMP
that PyTorch has loaded already, so both have the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whetstone.cache_folder import cache_folder

_SOURCE = Path(__file__).with_name("columns.cpp")
_INSTRUCTIONS = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_bf16")
_OPTIONS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-mfma")
_SECONDS = 60
"""A compiler that takes longer is given up."""
WIDTHS = frozenset((32, 64, 96, 128, 256))
"""Numbers of a head that attention is compiled for."""

_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "attend": [_POINTER] * 9 + [_COUNT] * 5 + [_FLOAT, _COUNT],
    "add_and_norm": [_POINTER] * 4 + [_COUNT] * 2 + [_FLOAT, _COUNT],
    "turn": [_POINTER] * 5 + [_COUNT] * 4,
    "gate": [_POINTER] * 2 + [_COUNT] * 2,
}


class Compiled:
    """The functions of `columns.cpp`; all tensors are bfloat16 on the CPU, each in one piece.

    Args:
        path: The library.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions = {name: library[name] for name in _ARGUMENTS}
        for name, function in self._functions.items():
            function.argtypes, function.restype = _ARGUMENTS[name], None

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        seen: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        scale: float,
        threads: int,
    ) -> Tensor:
        """Attention of new tokens, whose own keys are in the rows already.

        Args:
            queries: [B, H, D], B tokens.
            keys: [rows, K, capacity, D], all rows.
            values: Like `keys`.
            seen: [B] each: their rows; the rows their first keys are read from; how many those are; how many keys
                they see; who comes one after another.
            scale: Of the scores.

        Returns:
            [B, H, D]
        """
        out = torch.empty_like(queries)
        tensors = (queries, keys, values, out, *seen)
        sizes = (len(queries), queries.shape[1], keys.shape[1], keys.shape[2], keys.shape[3])
        self._functions["attend"](*(tensor.data_ptr() for tensor in tensors), *sizes, scale, threads)
        return out

    def add_and_norm(
        self, states: Tensor, added: Tensor | None, weight: Tensor, epsilon: float, threads: int
    ) -> Tensor:
        """The norm of [C, T] states, after something of their shape was added to them in place."""
        out = torch.empty_like(states)
        of_added = None if added is None else added.data_ptr()
        sizes = states.shape
        self._functions["add_and_norm"](
            states.data_ptr(), of_added, weight.data_ptr(), out.data_ptr(), *sizes, epsilon, threads
        )
        return out

    def turn(
        self, states: Tensor, angles: tuple[Tensor, Tensor] | None, out: Tensor, places: Tensor, threads: int
    ) -> None:
        """Write [heads · D, T] states, turned by the ([D, T] cosines, [D, T] sines), a head in one piece each.

        Args:
            out: [places, D], or anything that lies in memory like that.
            places: [T · heads] which of its places each goes to.
        """
        cosines, sines = (None, None) if angles is None else (angles[0].data_ptr(), angles[1].data_ptr())
        width, tokens = out.shape[-1], states.shape[1]
        pointers = (states.data_ptr(), cosines, sines, out.data_ptr(), places.data_ptr())
        self._functions["turn"](*pointers, states.shape[0] // width, width, tokens, threads)

    def gate(self, gates: Tensor, ups: Tensor, threads: int) -> Tensor:
        """silu(gates) · ups, in the memory of the gates."""
        self._functions["gate"](gates.data_ptr(), ups.data_ptr(), gates.numel(), threads)
        return gates


@functools.cache
def compiled() -> Compiled | None:
    """The functions, compiled when first asked for; None where this machine cannot: see `lacking`."""
    try:
        return Compiled(_library())
    except (_Lacking, OSError, subprocess.SubprocessError):
        return None


def lacking() -> str | None:
    """Why PyTorch's own operations have to do; None where the functions are there, which may compile them."""
    try:
        Compiled(_library())
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.decode(errors="replace").strip() or "it says nothing"
        return f"the compiler fails: {said.splitlines()[0]}"
    except (_Lacking, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


class _Lacking(Exception):
    """Something is not here; says what."""


def _library() -> Path:
    """Where the library is, once it is made."""
    there = torch.cpu.get_capabilities()
    if sys.platform != "linux" or platform.machine() != "x86_64" or not all(map(there.get, _INSTRUCTIONS)):
        raise _Lacking("the processor has no AVX-512 with bfloat16")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise _Lacking("no C++ compiler: apt-get install g++")
    options = [*_OPTIONS, *(f"-m{name.replace('_', '')}" for name in _INSTRUCTIONS)]
    mark = hashlib.sha256("\n".join([compiler, *options]).encode() + _SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_folder() / "compiled" / f"columns-{mark}.so"
    if not library.is_file():
        _compile([compiler, *options], library)
    return library


def _compile(command: list[str], library: Path) -> None:
    """Make the library; it is there whole or not at all, whoever else makes it at the same time."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        subprocess.run([*command, "-o", str(made), str(_SOURCE)], check=True, timeout=_SECONDS, capture_output=True)
        os.replace(made, library)
