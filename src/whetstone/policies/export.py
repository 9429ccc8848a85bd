"""How does a trained policy leave the house? As a folder that Transformers opens, adapters merged into the weights.

Easy to get wrong: an adapter's small change added to a weight in bfloat16 is rounded away. Weights are merged in
float32 and rounded once, behind it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from whetstone.atomic_write import new_folder
from whetstone.errors import PolicyError
from whetstone.policies.adapters import has_adapters, without_adapters
from whetstone.policies.policy import Policy, cast_policy, save_policy

_CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
"""What llama.cpp calls it."""
_GGUF = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
ExportPrecision = Literal["float32", "bfloat16", "float16"]


def merged(policy: Policy, dtype: ExportPrecision) -> Policy:
    """Return a policy without adapters, merged into the weights, in a precision; `policy` must not be used again."""
    policy = cast_policy(policy, "float32")
    model: Any = without_adapters(policy.model, merge=True) if has_adapters(policy.model) else policy.model
    return replace(policy, model=model.to(getattr(torch, dtype)).eval(), critic=None)


def export_policy(policy: Policy, folder: Path, *, gguf: ExportPrecision | None = None) -> Path:
    """Write model and tokenizer into a new folder. Returns it, or the GGUF file in it.

    Args:
        gguf: Also convert it by llama.cpp, in these numbers.

    Raises:
        PolicyError: llama.cpp's converter is not at hand, or fails.
        SaveError: The folder is there, or cannot be written.
    """
    converter = gguf_converter() if gguf is not None else ""
    with new_folder(folder) as aside:
        save_policy(policy, aside, at=folder)
        if gguf is None:
            return folder
        file = aside / f"model-{_GGUF[gguf]}.gguf"
        words = [converter, str(aside), "--outfile", str(file), "--outtype", _GGUF[gguf]]
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode or not file.is_file():
            said = (done.stderr.strip().splitlines() or ["nothing was written"])[-1]
            raise PolicyError(f"{Path(converter).name} failed: {said[:300]}")
        return folder / file.name


def gguf_converter() -> str:
    """Where llama.cpp's converter is.

    Raises:
        PolicyError: It is not on the PATH.
    """
    there = next((found for name in _CONVERTERS if (found := shutil.which(name))), None)
    if there is None:
        raise PolicyError(
            f"a GGUF file is written by llama.cpp's {_CONVERTERS[0]}, which is not on the PATH; without --gguf a "
            "Hugging Face folder is written, which it reads wherever it is"
        )
    return there
