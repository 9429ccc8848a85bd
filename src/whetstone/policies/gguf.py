"""Conversion of a GGUF file to a Hugging Face folder, with weights dequantized to bfloat16.

Note:
    By default, Transformers leaves the weights quantized; they can then neither be trained nor saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from whetstone.errors import PolicyError, summarize_exception
from whetstone.optional_dependencies import install_command
from whetstone.policies.policy import save_tokenizer

logging.disable_progress_bar()


def read_license(file: Path) -> str:
    """Return the license that a GGUF file states; empty if it states none.

    Raises:
        PolicyError: If packages are missing, or the file is not a GGUF file.
    """
    reader = _open_gguf(file)
    field = reader.fields.get("general.license")
    return str(field.contents()) if field is not None else ""


def convert_gguf(file: Path, folder: Path) -> None:
    """Convert a GGUF file to a Hugging Face folder, with weights in bfloat16.

    Args:
        file: GGUF file.
        folder: Existing folder that receives model and tokenizer.

    Raises:
        PolicyError: If packages are missing, or Transformers does not support the file.
    """
    _open_gguf(file)
    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    unpacked = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
        model = AutoModelForCausalLM.from_pretrained(file.parent, **options, **unpacked)
        save_tokenizer(tokenizer, folder)
        model.save_pretrained(folder)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError, ImportError, NotImplementedError) as error:
        raise PolicyError(
            f"{file}: could not be converted: {summarize_exception(error, max_characters=300)}"
        ) from error


def _open_gguf(file: Path) -> Any:
    try:
        import accelerate  # noqa: F401 - Transformers requires it
        import gguf
    except ImportError as error:
        raise PolicyError(f"{file}: GGUF files require gguf and accelerate: {install_command('gguf')}") from error
    if not file.is_file():
        raise PolicyError(f"{file}: no such file")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise PolicyError(f"{file}: cannot be read as GGUF: {summarize_exception(error, max_characters=200)}") from None
