"""What is a policy? A causal language model with its tokenizer, in a folder any Hugging Face tool opens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from whetstone.errors import PolicyError, did_you_mean

logging.disable_progress_bar()  # a bar for writing a megabyte, in the middle of the run's own


@dataclass(frozen=True, slots=True)
class Policy:
    """A model that speaks."""

    model: torch.nn.Module
    """A Transformers causal language model."""
    tokenizer: Any
    """Its Transformers tokenizer."""

    @property
    def context_length(self) -> int:
        """How many tokens the model can have in view."""
        return int(self.model.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]

    @property
    def parameters(self) -> int:
        """How many numbers it is made of; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def load_policy(folder: Path | str) -> Policy:
    """The policy in a local Hugging Face folder; nothing is fetched from anywhere.

    Raises:
        PolicyError: The folder is missing or incomplete, or model and tokenizer do not belong together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        beside = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        raise PolicyError(f"{folder}: no such model folder{did_you_mean(folder.name, beside)}")
    if not (folder / "config.json").is_file():
        raise PolicyError(f"{folder}: not a model folder: config.json is missing")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"{folder}: could not be loaded: {str(error).splitlines()[0]}") from error
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise PolicyError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens and the model {known}; they do not match"
        )
    return Policy(model, tokenizer)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write model and tokenizer into an existing folder, in Hugging Face layout."""
    policy.model.save_pretrained(folder)  # type: ignore[operator]
    policy.tokenizer.save_pretrained(folder)
