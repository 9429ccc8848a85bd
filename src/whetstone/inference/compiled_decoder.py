"""Compiled forward pass of Llama-like decoders on a CPU, built once per machine if it has a C++ compiler.

With PyTorch's operations a decode step of SmolLM2 is two hundred products and two thousand small operations, each of
which reads the result of the one before. `decoder.cpp` computes all layers in one parallel region: in bfloat16 on
processors with AVX-512 and its bfloat16 instructions, in float32 with AVX2 or AVX-512. The library is stored in the
cache folder. Without a compiler, or on another processor, `llama_forward.py` computes the same with PyTorch's
operations.

Note:
    The library is linked to the OpenMP that PyTorch has loaded. A second OpenMP would compete for the cores.
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
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from whetstone.cache_dir import cache_dir

_SOURCE = Path(__file__).with_name("decoder.cpp")
_AVX512 = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq")
_BFLOAT16 = "avx512_bf16"
_OPTIONS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-mfma")
_SECONDS = 60
"""Timeout of the compiler, in seconds."""
_SIZES = ("tokens", "hidden", "heads", "key_heads", "width", "inner", "capacity", "layers", "threads")
_BLOCK = 16

_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights and KV slots of one layer, passed to `decoder.cpp`.

    A weight that the model does not have is None.
    """

    input_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    output_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    keys: Tensor
    """[rows, K, capacity, D] keys of all KV slots."""
    values: Tensor
    """[rows, K, capacity, D] values of all KV slots."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """KV slots and positions of the new tokens of a forward pass, [T] int64 each."""

    rows: Tensor
    """KV slot to which the keys and values of each token are written."""
    places: Tensor
    """Position of each token in its slot."""
    sources: Tensor
    """KV slot from which the first `shared` keys of each token are read."""
    shared: Tensor
    """Number of keys that are read from `sources`."""
    order: Tensor
    """Permutation of the tokens in which attention is computed: neighbors share keys in the processor's cache."""


class CompiledDecoder:
    """Functions of `decoder.cpp` for one data type, loaded by `compiled_decoder`.

    Args:
        path: Compiled library.
        dtype: Data type of weights, keys and values: float32 or bfloat16.

    Raises:
        OSError: If the library cannot be loaded.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        library = ctypes.CDLL(str(path))
        name = str(dtype).removeprefix("torch.")
        self.dtype = dtype
        self._forward, self._head, self._scratch_size = (
            library[f"{function}_{name}"] for function in ("forward", "head", "scratch")
        )
        self._forward.argtypes, self._forward.restype = [_POINTER] * 6 + [_FLOAT] * 2, None
        self._head.argtypes, self._head.restype = [_POINTER] * 4 + [_COUNT] * 4, None
        self._scratch_size.argtypes, self._scratch_size.restype = [_POINTER], _COUNT
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def forward(
        self,
        states: Tensor,
        layers: Sequence[LayerWeights],
        last_norm: Tensor,
        angles: tuple[Tensor, Tensor],
        placement: Placement,
        *,
        inner: int,
        epsilon: float,
        scale: float,
        threads: int,
    ) -> None:
        """Replace token embeddings by the normalized states of the last layer, in place.

        Keys and values of the tokens are written to their KV slots. All tensors must be contiguous.

        Args:
            states: [T, hidden] embeddings; contains the result afterwards.
            layers: Weights and KV slots of each layer.
            last_norm: [hidden] weight of the norm after the last layer.
            angles: Two [T, D] float32 tensors: cosines and sines of the rotary embedding.
            placement: KV slots and positions of the tokens.
            inner: Width of the MLP.
            epsilon: Added to the variance in all norms.
            scale: Factor of the attention scores.
            threads: Number of threads.
        """
        keys = layers[0].keys
        _, key_heads, capacity, width = keys.shape
        tokens, hidden = states.shape
        heads = layers[0].query.shape[0] // width
        numbers = (tokens, hidden, heads, key_heads, width, inner, capacity, len(layers), threads)
        sizes = (_COUNT * len(_SIZES))(*numbers)
        names = [field.name for field in fields(LayerWeights)]
        pointers = [getattr(layer, name) for layer in layers for name in names]
        table = (_POINTER * len(pointers))(*(None if one is None else one.data_ptr() for one in pointers))
        columns = (placement.rows, placement.places, placement.sources, placement.shared, placement.order, *angles)
        of_tokens = (_POINTER * len(columns))(*(one.data_ptr() for one in columns))
        scratch = self._memory(self._scratch_size(sizes))
        self._forward(sizes, table, last_norm.data_ptr(), of_tokens, states.data_ptr(), scratch, epsilon, scale)

    def head(self, states: Tensor, weight: Tensor, threads: int) -> Tensor:
        """Compute [T, V] float32 logits from [T, hidden] states and the [V, hidden] head weight."""
        tokens, hidden = states.shape
        out = torch.empty(tokens, len(weight))
        scratch = self._memory(-(-tokens // _BLOCK) * _BLOCK * hidden * states.element_size() + 64)
        pointers = (states.data_ptr(), weight.data_ptr(), out.data_ptr(), scratch)
        self._head(*pointers, tokens, hidden, len(weight), threads)
        return out

    def _memory(self, size: int) -> int:
        """Return the address of scratch memory, which is reused in forward passes of similar size."""
        if not size <= len(self._scratch) <= 4 * size:
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch.data_ptr()


@functools.cache
def compiled_decoder(dtype: torch.dtype) -> CompiledDecoder | None:
    """Return the compiled functions for a data type, or None if they cannot be compiled here.

    The first call compiles the library, unless the cache folder has it; the result is cached. `missing_for` returns the
    reason for None.
    """
    try:
        return CompiledDecoder(_library(dtype), dtype)
    except (_Missing, OSError, subprocess.SubprocessError):
        return None


def missing_for(dtype: torch.dtype) -> str | None:
    """Return why the compiled decoder is not available for a data type, or None if it is.

    The reason is one line, such as `no C++ compiler: apt-get install g++`. The call compiles the library if necessary.
    """
    try:
        CompiledDecoder(_library(dtype), dtype)
    except subprocess.CalledProcessError as failed:
        output = failed.stderr.decode(errors="replace").strip() or "no output"
        return f"the compiler fails: {output.splitlines()[0]}"
    except (_Missing, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


class _Missing(Exception):
    """The processor or the compiler is not suitable; the message states the reason."""


def _library(dtype: torch.dtype) -> Path:
    """Return the path of the library for a data type; compile it if the cache folder does not have it."""
    options = [*_OPTIONS, *_instructions(dtype)]
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise _Missing("no C++ compiler: apt-get install g++")
    digest = hashlib.sha256("\n".join([compiler, *options]).encode() + _SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_dir() / "compiled" / f"decoder-{digest}.so"
    if not library.is_file():
        _compile([compiler, *options], library)
    return library


def _instructions(dtype: torch.dtype) -> list[str]:
    """Return the compiler's options for the instructions that PyTorch uses on this processor.

    `ATEN_CPU_CAPABILITY` limits them.
    """
    capabilities = torch.cpu.get_capabilities() if sys.platform == "linux" and platform.machine() == "x86_64" else {}
    limit = torch.backends.cpu.get_cpu_capability()
    has_avx512 = limit == "AVX512" and all(map(capabilities.get, _AVX512))
    if dtype == torch.bfloat16:
        if not (has_avx512 and capabilities.get(_BFLOAT16)):
            raise _Missing("the processor has no AVX-512 with bfloat16")
        return ["-DHALF", *(f"-m{name.replace('_', '')}" for name in (*_AVX512, _BFLOAT16))]
    if dtype != torch.float32 or not (
        capabilities.get("avx2") and capabilities.get("fma3") and limit in ("AVX2", "AVX512")
    ):
        raise _Missing("the processor has no AVX2")
    return [f"-m{name.replace('_', '')}" for name in (_AVX512 if has_avx512 else ("avx2",))]


def _compile(command: list[str], library: Path) -> None:
    """Compile the library into a temporary folder, then rename it.

    Concurrent processes therefore never load a partial file.
    """
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        subprocess.run([*command, "-o", str(built), str(_SOURCE)], check=True, timeout=_SECONDS, capture_output=True)
        os.replace(built, library)
