"""Do sampler and learner agree on the tokens that were just sampled?

Asked before the first update of a step is applied.

Easy to get wrong: tokens of older weights, or drawn behind another view, tell of staleness and not of disagreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import torch

from whetstone.algorithms import mismatch
from whetstone.errors import MismatchError
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.minibatch import Minibatch
from whetstone.learning.model_trainer import action_places
from whetstone.recipe import ReinforcementSettings
from whetstone.trajectory import Author


def disagreement(batches: Sequence[Minibatch], version: int | None) -> dict[str, float]:
    """Of sampler and learner on all tokens of a step that the present weights drew behind what is trained, before any
    of its updates; and how far tokens of older weights, or behind something else, lie from them."""
    ours, theirs, fresh = [], [], []
    for batch in batches:
        of_others = chain(batch.of_others, repeat(False))
        for segment, found, other in zip(batch.segments, batch.before, of_others, strict=False):
            places = action_places(segment)
            drawn = torch.tensor([segment.tokens.logprobs[place] for place in places], dtype=torch.float64)
            spliced = torch.tensor([segment.tokens.authors[place] is Author.INSERTED for place in places])
            known = ~drawn.isnan() & ~spliced.bool()
            of = torch.tensor([segment.tokens.versions[place] for place in places], dtype=torch.long)
            now = torch.ones_like(of, dtype=torch.bool) if version is None else of == version
            ours.append(found.cpu().double()[known])
            theirs.append(drawn[known])
            fresh.append((now & (not other))[known])
    if not sum(map(len, ours)):
        return {}
    learner_side, sampler_side, now = torch.cat(ours), torch.cat(theirs), torch.cat(fresh)
    metrics = mismatch(learner_side[now], sampler_side[now]) if now.any() else {}
    if not now.all():
        metrics["policy/staleness_kl"] = mismatch(learner_side[~now], sampler_side[~now])["sampler/mismatch_kl"]
    return metrics


def check_agreement(
    batches: Sequence[Minibatch], loss: UpdateLoss, version: int | None, settings: ReinforcementSettings
) -> None:
    """See that sampler and learner agree, when the first pass of a step has found what tokens are worth.

    Raises:
        MismatchError: They do not.
    """
    batches[0].before = list(loss.old)
    found = disagreement(batches, version).get("sampler/mismatch_kl", 0.0)
    if found > settings.max_mismatch_kl:
        raise MismatchError(
            f"sampler and learner disagree by {found:.3g} nats a token on the tokens that were just sampled "
            f"(sampler/mismatch_kl), more than reinforcement.max_mismatch_kl ({settings.max_mismatch_kl:g}): they "
            "do not have the same weights, arithmetic, template or temperature, and what is learned from such ratios "
            "is noise. `whetstone doctor RECIPE` compares the two"
        )


def no_question() -> None:
    """Only the first update of a step is of the weights that sampled."""
