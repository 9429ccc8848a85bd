"""Export of a trained policy: weights that Transformers loads, adapters with their base, GGUF files.

Note:
    A small change of an adapter is lost if it is added to a weight in bfloat16. Weights are merged in float32 and
    rounded once, after the sum.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from whetstone.atomic_write import new_folder
from whetstone.errors import PolicyError
from whetstone.policies.adapters import has_adapters, without_adapters
from whetstone.policies.gguf_writer import check_gguf, is_tiny_tokenizer, write_llama_gguf
from whetstone.policies.policy import ADAPTERS, BESIDE, Policy, cast_policy, save_policy

_CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
"""File names of llama.cpp's converter."""
_GGUF = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_CACHED = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
_DIGEST = re.compile("[0-9a-f]{64}")
ExportPrecision = Literal["float32", "bfloat16", "float16"]


def merge_adapters(policy: Policy, dtype: ExportPrecision) -> Policy:
    """Return a policy with its adapters merged into the weights, in a precision, and without a critic.

    The weights of `policy` are changed, so it must not be used again.

    Args:
        policy: Policy with or without adapters.
        dtype: Precision of the result.
    """
    policy = cast_policy(policy, "float32")
    model: Any = without_adapters(policy.model, merge=True) if has_adapters(policy.model) else policy.model
    return replace(policy, model=model.to(getattr(torch, dtype)).eval(), critic=None)


def export_policy(policy: Policy, folder: Path) -> Path:
    """Write model and tokenizer of a policy into a new folder and return the folder.

    Raises:
        SaveError: If the folder exists, or cannot be written.
    """
    with new_folder(folder) as aside:
        save_policy(policy, aside, at=folder)
    return folder


def export_weights(policy: Policy, folder: Path, *, at: Path, hub: tuple[str, str] | None) -> None:
    """Write model and tokenizer into an existing folder.

    Adapters refer to their base model on the hub, or the base is written next to them.

    Args:
        policy: Policy to write.
        folder: Existing folder.
        at: Path that the folder will have.
        hub: Name and commit of the adapters' base on the Hugging Face hub; None: the base is written.
    """
    model: Any = policy.model
    if not has_adapters(model):
        save_policy(policy, folder, at=at)
        return
    (config,) = model.peft_config.values()
    named, config.base_model_name_or_path = config.base_model_name_or_path, hub[0] if hub is not None else None
    save_policy(policy, folder, at=at)
    config.base_model_name_or_path = named
    if hub is not None:
        written = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
        written |= {"base_model_name_or_path": hub[0], "revision": hub[1]}
        (folder / ADAPTERS).write_text(json.dumps(written, indent=1), encoding="utf-8")


def base_folder(policy: Policy) -> Path | None:
    """Return the folder of the base model that adapters were trained on, or None without one."""
    if not has_adapters(policy.model):
        return None
    model: Any = policy.model
    (config,) = model.peft_config.values()
    named = config.base_model_name_or_path
    folder = Path(named) if named else None
    return folder if folder is not None and folder.is_dir() and folder.name != BESIDE else None


def hub_identity(folder: Path) -> tuple[str, str] | None:
    """Return (name, commit) of the Hugging Face hub model whose weights a folder contains, or None.

    The cache of the hub stores each file under the SHA-256 that the hub lists. The weights are read and their digests
    compared.
    """
    match = _CACHED.search(folder.resolve().as_posix())
    files = sorted(folder.glob("*.safetensors"))
    if match is None or not files:
        return None
    for file in files:
        listed = file.resolve().name
        with open(file, "rb") as content:
            if not _DIGEST.fullmatch(listed) or hashlib.file_digest(content, "sha256").hexdigest() != listed:
                return None
    return f"{match['owner']}/{match['name']}", match["commit"]


def gguf_plan(policy: Policy) -> str:
    """Return the converter of llama.cpp that is needed for a GGUF file of a policy; empty if none is.

    Raises:
        PolicyError: If a converter is needed and is not on the PATH, or does not support the tokenizer.
    """
    why = check_gguf(policy)
    if not why:
        return ""
    if is_tiny_tokenizer(policy.tokenizer):
        raise PolicyError(
            "--gguf: this model was trained from scratch (policy.tiny) with its own tokenizer, and neither llama.cpp "
            "nor its converter has rules that split text as it does; export without --gguf and serve the folder with "
            "vLLM, or use `whetstone serve`; for a GGUF file, train a pretrained model (policy.path)"
        )
    converter = next((path for name in _CONVERTERS if (path := shutil.which(name))), None)
    if converter is None:
        raise PolicyError(
            f"--gguf: {why}, and {_CONVERTERS[0]} is not on the PATH; it is in the repository of llama.cpp "
            "(github.com/ggml-org/llama.cpp, next to its requirements.txt) and also reads the exported folder: "
            "export without --gguf, then `python convert_hf_to_gguf.py DIR`"
        )
    return converter


def write_gguf(converter: str, policy: Policy, folder: Path, dtype: ExportPrecision) -> str:
    """Write the GGUF file of an exported model into its folder and return the file name.

    Args:
        converter: Return value of `gguf_plan`.
        policy: Policy without adapters.
        folder: Exported folder.
        dtype: Precision of matrices.

    Raises:
        PolicyError: If the converter fails.
    """
    file = folder / f"model-{_GGUF[dtype]}.gguf"
    if not converter:
        write_llama_gguf(policy, file, dtype, name="whetstone")
        return file.name
    words = [converter, str(folder), "--outfile", str(file), "--outtype", _GGUF[dtype]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode or not file.is_file():
        reason = (done.stderr.strip().splitlines() or ["nothing was written"])[-1]
        raise PolicyError(f"{Path(converter).name} failed: {reason[:300]}")
    return file.name
