"""Checks that a tokenizer belongs to a model. A folder does not state it; shared settings must agree.

A tokenizer of another model causes no error: it encodes, the model computes, and the output is noise. Ids without an
embedding are a proof. A hint is a configuration whose special tokens are ordinary text in the tokenizer, or a model
with more than three embeddings per token.
"""

from __future__ import annotations

from typing import Any

from whetstone.errors import PolicyError

_MANY = 3
"""Maximum plausible ratio of embeddings to tokens. Common models have one embedding per token, padded by a few
hundred."""


def check_ids(named: Any, model: Any, tokenizer: Any) -> None:
    """Check that every id of a tokenizer has an embedding in the model.

    Args:
        named: Name of the model in the message.
        model: Transformers model.
        tokenizer: Transformers tokenizer.

    Raises:
        PolicyError: If an id has no embedding.
    """
    known = model.get_input_embeddings().num_embeddings
    text, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if highest >= known:
        raise PolicyError(
            f"{named}: the tokenizer has {len(tokenizer)} tokens but the model {known}; they do not match (the "
            f"tokenizer maps {text!r} to id {highest}); use the model's own tokenizer"
        )


def tokenizer_mismatch(model: Any, tokenizer: Any) -> str:
    """Return why a tokenizer may belong to another model, in one line; empty without evidence.

    Args:
        model: Transformers model.
        tokenizer: Transformers tokenizer.
    """
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for name in ("eos_token_id", "bos_token_id"):
        if getattr(tokenizer, name) is None:  # then the configuration has the default of its class
            continue
        ids = _ids(getattr(model.config, name, None)) | _ids(getattr(model.generation_config, name, None))
        if ids and special and not ids & special:
            id = min(ids)
            token = repr(tokenizer.convert_ids_to_tokens(id)) if id < len(tokenizer) else "none of its tokens"
            return (
                f"{name} of the model's configuration is {id}, which is {token} in the tokenizer, not a special token"
            )
    known = model.get_input_embeddings().num_embeddings
    if known > _MANY * len(tokenizer):
        return f"the model has embeddings for {known} tokens, but the tokenizer has {len(tokenizer)}"
    return ""


def _ids(value: Any) -> set[int]:
    return {value} if isinstance(value, int) else set(value) if isinstance(value, list) else set()
