"""How does a GGUF file become a Hugging Face folder? Its weights are unpacked once, and written in bfloat16.

Easy to get wrong: left packed, as Transformers reads them where nothing is said, weights can neither be trained nor
saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from whetstone.errors import PolicyError, explained
from whetstone.extras import install_command
from whetstone.policies.policy import save_tokenizer

logging.disable_progress_bar()


def licence_of(file: Path) -> str:
    """What a GGUF file says of its licence; empty where it says nothing.

    Raises:
        PolicyError: As `convert_gguf`.
    """
    reader = _opened(file)
    field = reader.fields.get("general.license")
    return str(field.contents()) if field is not None else ""


def convert_gguf(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file into an existing folder.

    Raises:
        PolicyError: Packages are missing, or it is no GGUF file of a model that Transformers knows.
    """
    _opened(file)
    given: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    unpacked = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
        model = AutoModelForCausalLM.from_pretrained(file.parent, **given, **unpacked)
        save_tokenizer(tokenizer, folder)
        model.save_pretrained(folder)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError, ImportError, NotImplementedError) as error:
        raise PolicyError(f"{file}: could not be converted: {explained(error, max_characters=300)}") from error


def _opened(file: Path) -> Any:
    try:
        import accelerate  # noqa: F401 - what Transformers asks for beside it
        import gguf
    except ImportError as error:
        raise PolicyError(f"{file}: GGUF files are read by gguf and accelerate: {install_command('gguf')}") from error
    if not file.is_file():
        raise PolicyError(f"{file}: no such file")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise PolicyError(f"{file}: no GGUF file that can be read: {explained(error, max_characters=200)}") from None
