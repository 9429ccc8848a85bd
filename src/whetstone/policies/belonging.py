"""Do a tokenizer and a model belong together? Nothing in a folder says so; what they name in common must agree.

A tokenizer of another model is no failure: it encodes, the model computes, and what comes out is noise. Ids that the
model has no embedding for are certain; a configuration whose tokens of beginning and end are ordinary text in the
tokenizer, or three embeddings for each of its tokens, is a hint.
"""

from __future__ import annotations

from typing import Any

from whetstone.errors import PolicyError

_MANY = 3
"""Embeddings for each token of the tokenizer: those of the field have one, padded by a few hundred."""


def check_ids(named: Any, model: Any, tokenizer: Any) -> None:
    """See that each id of the tokenizer has an embedding.

    Args:
        named: What the message calls them.

    Raises:
        PolicyError: One has none.
    """
    known = model.get_input_embeddings().num_embeddings
    text, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if highest >= known:
        raise PolicyError(
            f"{named}: the tokenizer has {len(tokenizer)} tokens and the model {known}; they do not match (the "
            f"tokenizer gives {text!r} the id {highest})"
        )


def strangeness(model: Any, tokenizer: Any) -> str:
    """Why the tokenizer may be another model's; empty where nothing says so."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for name in ("eos_token_id", "bos_token_id"):
        if getattr(tokenizer, name) is None:  # then what a configuration says is what its class says of any model
            continue
        ids = _ids(getattr(model.config, name, None)) | _ids(getattr(model.generation_config, name, None))
        if ids and special and not ids & special:
            id = min(ids)
            shown = repr(tokenizer.convert_ids_to_tokens(id)) if id < len(tokenizer) else "none of its tokens"
            return f"{name} of the model's configuration is {id}, which is {shown} in the tokenizer, no special token"
    known = model.get_input_embeddings().num_embeddings
    if known > _MANY * len(tokenizer):
        return f"the model has embeddings for {known} tokens, and the tokenizer has {len(tokenizer)}"
    return ""


def _ids(given: Any) -> set[int]:
    return {given} if isinstance(given, int) else set(given) if isinstance(given, list) else set()
