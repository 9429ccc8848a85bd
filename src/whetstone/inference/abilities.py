"""Can this engine play that recipe? What needs an ability the engine lacks is refused in a line, before it begins."""

from __future__ import annotations

from collections.abc import Mapping

from whetstone.errors import EngineError, RecipeError
from whetstone.inference.protocol import EngineAbilities
from whetstone.tokens import TokenSequence

_NEEDS = {
    "entropies": "entropies of whole distributions",
    "model_logprobs": "the model's own log-probs beside those of the draw",
    "forced_tokens": "answers that begin with given tokens",
    "logit_bias": "a bias on logits",
    "seeds": "draws that a seed decides",
    "scores": "log-probs of given tokens",
    "constraints": "draws among allowed tokens alone",
    "top_logprobs": "log-probs of the likeliest tokens beside those drawn",
    "media": "images in prompts",
}


def require(abilities: EngineAbilities, needed: Mapping[str, str], *, engine: str) -> None:
    """See that an engine gives what is needed.

    Args:
        needed: Ability → what needs it, as the recipe writes it: `{"seeds": "reinforcement.deterministic: true"}`.
        engine: Its name, for the message.

    Raises:
        RecipeError: It lacks one.
    """
    for ability, by in needed.items():
        if not getattr(abilities, ability):
            raise RecipeError(f"{by} needs {_NEEDS[ability]}, which engine {engine} does not give; engine local does")


def check_media(tokens: TokenSequence, abilities: EngineAbilities, *, engine: str) -> None:
    """Check that tokens have no media if the engine reads token ids only.

    Raises:
        EngineError: They have.
    """
    if tokens.media and not abilities.media:
        raise EngineError(
            f"engine {engine}: the prompt has an image at token {tokens.media[0].start}, which this engine cannot show "
            "to its model; use an engine and a policy that read images, or an environment that returns text only"
        )
