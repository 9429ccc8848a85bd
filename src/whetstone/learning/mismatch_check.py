"""Check of the sampler's log-probs against the learner's, before the first update of a step is applied.

Note:
    Tokens that were sampled with older weights or in another context measure staleness (`policy/staleness_kl`), not a
    mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import torch

from whetstone.algorithms import mismatch_metrics
from whetstone.errors import MismatchError
from whetstone.learning.losses import UpdateLoss
from whetstone.learning.minibatch import Minibatch
from whetstone.learning.model_trainer import get_action_positions
from whetstone.recipe import ReinforcementSettings
from whetstone.trajectory import Author


def compute_logprob_mismatch(batches: Sequence[Minibatch], version: int | None) -> dict[str, float]:
    """Compute the mismatch between sampler and learner log-probs on the tokens of a step.

    The learner's log-probs are those before any update of the step. Tokens of older weights, or sampled in another
    context than the one that is trained, are reported as `policy/staleness_kl`.

    Args:
        version: Version of the current weights; None: all tokens were sampled with them.
    """
    learner_parts, sampler_parts, current_parts = [], [], []
    for batch in batches:
        of_others = chain(batch.of_others, repeat(False))
        for segment, logprobs, other in zip(batch.segments, batch.before, of_others, strict=False):
            places = get_action_positions(segment)
            sampled = torch.tensor([segment.tokens.logprobs[place] for place in places], dtype=torch.float64)
            spliced = torch.tensor([segment.tokens.authors[place] is Author.INSERTED for place in places])
            is_sampled = ~sampled.isnan() & ~spliced.bool()
            versions = torch.tensor([segment.tokens.versions[place] for place in places], dtype=torch.long)
            is_current = torch.ones_like(versions, dtype=torch.bool) if version is None else versions == version
            learner_parts.append(logprobs.cpu().double()[is_sampled])
            sampler_parts.append(sampled[is_sampled])
            current_parts.append((is_current & (not other))[is_sampled])
    if not sum(map(len, learner_parts)):
        return {}
    learner_side, sampler_side, is_current = (
        torch.cat(learner_parts),
        torch.cat(sampler_parts),
        torch.cat(current_parts),
    )
    metrics = mismatch_metrics(learner_side[is_current], sampler_side[is_current]) if is_current.any() else {}
    if not is_current.all():
        metrics["policy/staleness_kl"] = mismatch_metrics(learner_side[~is_current], sampler_side[~is_current])[
            "sampler/mismatch_kl"
        ]
    return metrics


def check_mismatch(
    batches: Sequence[Minibatch], loss: UpdateLoss, version: int | None, settings: ReinforcementSettings
) -> None:
    """Check the mismatch before the first gradient of a step is applied.

    The first forward pass of the step has computed the learner's log-probs.

    Raises:
        MismatchError: The mismatch exceeds `reinforcement.max_mismatch_kl`.
    """
    batches[0].before = list(loss.old)
    mismatch_kl = compute_logprob_mismatch(batches, version).get("sampler/mismatch_kl", 0.0)
    if mismatch_kl > settings.max_mismatch_kl:
        raise MismatchError(
            f"sampler and learner disagree by {mismatch_kl:.3g} nats per token on the tokens that were just sampled "
            f"(sampler/mismatch_kl), more than reinforcement.max_mismatch_kl ({settings.max_mismatch_kl:g}): they "
            "differ in weights, precision, chat template or temperature, and training on such ratios fits noise. "
            "Compare the two with `whetstone doctor RECIPE`"
        )


def skip_mismatch_check() -> None:
    """Skip the check: only the first update of a step uses the weights that sampled."""
