"""Engine capabilities: checks that an engine supports everything that a recipe uses, before the run starts."""

from __future__ import annotations

from collections.abc import Mapping

from whetstone.errors import EngineError, RecipeError
from whetstone.inference.protocol import EngineCapabilities
from whetstone.tokens import TokenSequence

_NEEDS = {
    "entropies": "entropies of full distributions",
    "model_logprobs": "the model's log-probs in addition to those of the sampling distribution",
    "forced_tokens": "forced tokens at the start of an answer",
    "logit_bias": "a bias of logits",
    "seeds": "reproducible sampling by seed",
    "scores": "log-probs of given tokens",
    "constraints": "constrained decoding",
    "top_logprobs": "top log-probs",
    "media": "images in prompts",
}


def check_capabilities(capabilities: EngineCapabilities, needed: Mapping[str, str], *, engine: str) -> None:
    """Check that an engine supports everything that a recipe uses.

    Called before a run starts.

    Args:
        capabilities: Capabilities of the engine.
        needed: Name of a capability (a field of `EngineCapabilities`) → the recipe entry that requires it: `{"seeds":
            "reinforcement.deterministic: true"}`.
        engine: Name of the engine, for the message.

    Raises:
        RecipeError: If the engine lacks a required capability.
    """
    for ability, by in needed.items():
        if not getattr(capabilities, ability):
            raise RecipeError(
                f"{by} requires {_NEEDS[ability]}, which engine {engine} does not support; use engine local"
            )


def check_media(tokens: TokenSequence, capabilities: EngineCapabilities, *, engine: str) -> None:
    """Check that a prompt has no images if the engine reads only token ids.

    Args:
        tokens: Prompt or tokens to score.
        capabilities: Capabilities of the engine.
        engine: Name of the engine, for the message.

    Raises:
        EngineError: If the tokens have media and the engine does not support them.
    """
    if tokens.media and not capabilities.media:
        raise EngineError(
            f"engine {engine}: the prompt has an image at token {tokens.media[0].start}, which this engine does not "
            "support; use an engine and a policy that read images, or an environment that returns only text"
        )
