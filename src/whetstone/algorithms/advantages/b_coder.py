"""What if a language model is a Q-function already? Its log-probs are what actions are worth beside the state's value.

Easy to get wrong: the target is fixed before the update, log-probs in it included; and what follows is what the stored
program did, never the best the policy can think of, which nobody ever ran.
"""

from __future__ import annotations

from whetstone.algorithms.levels import Credit, CreditPerToken, PerToken, PerTrajectory
from whetstone.algorithms.returns import following
from whetstone.ranges import NotNegative, Positive, Share


def b_coder(
    token_rewards: PerToken,
    token_values: PerToken,
    last_token_values: PerTrajectory,
    old_logprobs: PerToken,
    token_trajectory: PerToken,
    *,
    temperature: Positive = 0.05,
    discount: Share = 1.0,
    conservative: NotNegative = 0.0,
) -> CreditPerToken:
    """The Bellman residual of stored programs, where Q begins as the policy's log-probs (B-Coder).

        Q(s, a) = V(s) + β log π(a|s)
        (B Q)(s_t, a_t) = r_t + γ Q(s_{t+1}, a_{t+1})     a_{t+1} as it was stored: no maximum over what nobody ran
        A_t = (B Q)(s_t, a_t) − Q(s_t, a_t) + α,   V(s_t) → (B Q)(s_t, a_t) − β log π(a_t|s_t)

    With `objective: policy_gradient` and one update a step, A_t times the gradient of the log-prob is, but for the
    factor β, how the policy's part of Q moves against ½ ((B Q) − Q)². Behind the end of an episode Q is 0; where a
    limit cut it short it is the critic's V. The critic begins at 0, so Q begins as β log π. Of an ensemble
    (`critic.ensemble_size`) the least is believed.

    α is what conservative Q-learning adds to the loss, α (β log Σ_a e^{Q(s,a)/β} − Q(s, a_t)): values of what nobody
    stored are held down. Here the sum is V(s), as probabilities add up to 1, so that what is left is −α β log π: V
    stays where it is, and stored tokens are imitated by as much.

    Use it on stored episodes (`offline`) whose outcomes are known, with `critic`.

    Args:
        token_rewards: [K] of each action token, the outcome with the last.
        token_values: [K] V in front of each.
        last_token_values: [N] V behind the last where a limit cut the episode short, else 0.
        old_logprobs: [K] log π before the update.
        token_trajectory: [K] ascending: which trajectory the token belongs to.
        temperature: β, above 0, in units of return a nat.
        discount: γ, a token, in [0, 1].
        conservative: α, 0 or more; at 0 values of what nobody stored are what they are.

    Source: Yu et al. 2023 (B-Coder), arXiv:2310.03173: Q from the language model's own head with a state value beside
    it, and an operator that backs up along a policy that is fixed. By analogy: that policy is here whoever wrote the
    stored programs, token by token; and log-probs stand for logits less their maximum. α: Kumar et al. 2020 (CQL),
    arXiv:2006.04779, eq. 4, at the temperature β.
    """
    worth = token_values.double() + temperature * old_logprobs.double()
    backed_up = token_rewards.double() + discount * following(worth, token_trajectory, last_token_values)
    return Credit(backed_up - worth + conservative, {"token_values": backed_up - temperature * old_logprobs.double()})
