"""Text embeddings by a Hugging Face encoder in a local folder: the normalized mean of its last hidden states."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from whetstone.errors import RecipeError

_MOST_TOKENS = 512
_BATCH = 32


@functools.cache
def encoder_in(folder: str) -> Encoder:
    """Return the text encoder of a local folder; loaded once per process."""
    return Encoder(folder)


class Encoder:
    """Text encoder that maps [N] texts to [N, D] vectors of length one.

    Args:
        folder: Folder with a tokenizer and a model; nothing is downloaded.

    Raises:
        RecipeError: If the folder does not exist, has no encoder, or requires remote code.
    """

    def __init__(self, folder: str) -> None:
        if not Path(folder).is_dir():
            raise RecipeError(f"embedding: {folder}: no such model folder; nothing is downloaded")
        try:
            # remote code is not run; use a custom function instead of a folder
            options = {"local_files_only": True, "trust_remote_code": False}
            self.tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", **options).eval()
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            if "trust_remote_code" in str(error):
                reason = (
                    "requires remote code, which is not run for a folder; set a function that returns vectors instead"
                )
                raise RecipeError(f"embedding: {folder}: {reason}") from None
            raise RecipeError(f"embedding: {folder}: {' '.join(str(error).split())[:300]}") from error
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        batches = [self._batch(texts[first : first + _BATCH]) for first in range(0, len(texts), _BATCH)]
        return np.concatenate(batches)

    @torch.inference_mode()
    def _batch(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt"
        )
        states = self.model(**{k: v for k, v in tokens.items() if k != "token_type_ids"}).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        means = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        vectors: npt.NDArray[np.float32] = torch.nn.functional.normalize(means, dim=-1).float().numpy()
        return vectors
