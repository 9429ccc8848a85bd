"""B-Coder: a Q-function from the log-probs of a language model and a state value.

Note: The target, including its log-probs, is fixed before the update. It uses the next action of the stored program,
not the maximum over actions that were never executed.
"""

from __future__ import annotations

from whetstone.algorithms.axes import Credit, CreditPerToken, PerToken, PerTrajectory
from whetstone.algorithms.returns import next_values
from whetstone.bounded_types import NotNegative, Positive, Share


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
    """Compute the Bellman residual of stored programs, with Q initialized by the policy's log-probs (B-Coder).

        Q(s, a) = V(s) + β log π(a|s)
        (B Q)(s_t, a_t) = r_t + γ Q(s_{t+1}, a_{t+1})     a_{t+1} as stored: no maximum over actions
        A_t = (B Q)(s_t, a_t) − Q(s_t, a_t) + α,   V(s_t) → (B Q)(s_t, a_t) − β log π(a_t|s_t)

    With `objective: policy_gradient` and one update a step, A_t times the gradient of the log-prob is, but for the
    factor β, how the policy's part of Q moves against ½ ((B Q) − Q)². After the end of an episode Q is 0; after
    a truncation it is the critic's V. The critic starts at 0, so Q starts as β log π. Of an ensemble
    (`critic.ensemble_size`) the minimum is used.

    α is what conservative Q-learning adds to the loss, α (β log Σ_a e^{Q(s,a)/β} − Q(s, a_t)): it lowers the
    values of actions that are not in the data. Here the sum is V(s), as probabilities add up to 1, so the remaining
    term is −α β log π: V is unchanged, and stored tokens are imitated with this weight.

    Use it on stored episodes (`offline`) whose outcomes are known, with `critic`.

    Args:
        token_rewards: [K] reward per action token; the last one includes the outcome.
        token_values: [K] V before each action token.
        last_token_values: [N] V after the last token if the episode was truncated, otherwise 0.
        old_logprobs: [K] log π before the update.
        token_trajectory: [K] index of the trajectory of each token, ascending.
        temperature: Temperature β of the log-probs in Q, above 0, in units of return per nat.
        discount: γ per token, in [0, 1].
        conservative: Weight α of the conservative term, 0 or more; 0 disables the term.

    Source: Yu et al. 2023 (B-Coder), arXiv:2310.03173: Q from the language model's own head with a state value, and an
    operator that backs up along a fixed policy. By analogy: that policy is here the author of the stored programs,
    token by token, and log-probs replace logits minus their maximum. α: Kumar et al. 2020 (CQL),
    arXiv:2006.04779, eq. 4, at the temperature β.
    """
    action_values = token_values.double() + temperature * old_logprobs.double()
    backed_up = token_rewards.double() + discount * next_values(action_values, token_trajectory, last_token_values)
    return Credit(
        backed_up - action_values + conservative, {"token_values": backed_up - temperature * old_logprobs.double()}
    )
