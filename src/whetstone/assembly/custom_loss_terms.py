"""Loss terms that a recipe adds to its objective (`loss_terms`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whetstone.algorithms import LOSS_TERMS, LossTerm
from whetstone.assembly.instantiate import build_function
from whetstone.errors import CreditError
from whetstone.learning.loss_expansion import cosine_weight, expand_loss_terms
from whetstone.learning.losses import POLICY
from whetstone.learning.sequence_logprobs import get_sequence_level
from whetstone.learning.trial_update import try_loss
from whetstone.recipe import LossTermPart, Resolved

_OTHER_NAMES = {
    "entropy_coef": "entropy",
    "entropy_coeff": "entropy",
    "entropy_loss": "entropy",
    "kl": "reference_kl",
    "kl_coef": "reference_kl",
    "kl_divergence": "reference_kl",
    "kl_loss": "reference_kl",
    "kl_penalty": "reference_kl",
    "ppo": "clipped",
    "sft": "supervised",
}
"""Name of a loss term in another library or paper → name here, for error messages."""
_MEASURED = frozenset({"total"})
"""Names of reported losses that no loss term can have."""


def build_loss_terms(resolved: Resolved, objective: Callable[..., Any]) -> tuple[LossTerm, ...]:
    """Build the loss terms that the recipe adds to its objective (`loss_terms`).

    Args:
        resolved: Recipe.
        objective: Objective of the recipe, whose own terms must not be repeated.

    Returns:
        Terms with bound options; empty if the recipe has no `loss_terms` or no reinforcement stage.

    Raises:
        RecipeError: If a name or option is wrong, a name is used twice, the term's tokens do not exist in an update, or
            the function does not return one loss per token.
    """
    recipe, terms = resolved.recipe, list[LossTerm]()
    settings = recipe.reinforcement
    if not recipe.loss_terms or settings is None:
        return ()
    short_forms = {term.name for term in expand_loss_terms(settings, objective, critic=recipe.critic)}
    for k, part in enumerate(recipe.loss_terms):
        key, name = f"loss_terms.{k}", part.name.rpartition(":")[2]
        if part.name in _OTHER_NAMES:
            raise resolved.error(key, f'no loss term named "{name}"; did you mean "{_OTHER_NAMES[name]}"?')
        function = build_function(resolved, key, part, LOSS_TERMS, kind="loss term")
        if name in {term.name for term in terms}:
            raise resolved.error(key, f'"{name}" is listed twice')
        if name in short_forms | _MEASURED:
            whose = "settings of the recipe add" if name in short_forms - {POLICY} else "there is"
            raise resolved.error(key, f'{whose} a loss "{name}" already; remove one, or give the function another name')
        if get_sequence_level(function) is not None:
            raise resolved.error(
                key, f"{name} compares sums of log-probs, which only an objective can; set objective: {part.name}"
            )
        if part.over == "critic" and recipe.critic is None:
            raise resolved.error(f"{key}.over", "critic: there are no critics; set critic: {}")
        if part.over == "expert" and settings.imitation is None and not recipe.rollout.replay:
            message = "expert: an update has no tokens of an expert; set reinforcement.imitation: {}"
            raise resolved.error(f"{key}.over", message)
        try:
            try_loss(function, name)
        except CreditError as error:
            raise resolved.error(key, str(error)) from None
        terms.append(LossTerm(name, function, _weight_of(part), part.over))
    return tuple(terms)


def _weight_of(part: LossTermPart) -> Any:
    """Return the weight of a loss term: a number, or a cosine schedule."""
    weight = part.weight
    return weight if isinstance(weight, float) else cosine_weight(weight.start, weight.end, weight.steps)
