"""How do stored data keep their hold where fresh states lie a little beside them? What is said there is said here, too.

Easy to get wrong: both sides have gradient. With one of them fixed, the other only follows it.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.objectives.token_loss import TokenLoss


def consistency(now: Tensor, perturbed: Tensor) -> TokenLoss:
    """Half the squared difference between what is said of a state and of one a little beside it (RO2O).

        ½ (f(s) − f(s̃))²,   gradient through both

    Of log-probs of the action taken it is an estimate of the divergence of the two policies, from the tokens that were
    drawn; of values it is their smoothness. By analogy: states are continuous there and are moved by noise; a text is,
    where each of its words' embeddings is moved a little, alike wherever the word stands.

    Args:
        now: [T] or [T, heads] with gradient.
        perturbed: The same shape, with gradient.

    Returns:
        [T], heads summed.

    Source: Wen et al. 2023 (RO2O), arXiv:2309.16973, eq. 7 and 9; the estimate from drawn tokens is Schulman's k2.
    """
    apart = 0.5 * (now - perturbed).square()
    loss = apart.sum(1) if apart.ndim == 2 else apart
    return TokenLoss(loss, {"consistency/apart": loss.detach()})
