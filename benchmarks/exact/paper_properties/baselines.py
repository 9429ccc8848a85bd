"""Bias and variance of gradients with the baselines of GRPO, RLOO, ReMax, OPO and others, by enumeration."""

from __future__ import annotations

import itertools

import torch

from paper_properties import exact
from paper_properties.enumeration import (
    TREE,
    Groups,
    Tree,
    enumerate_groups,
    gradient_of,
    group_gradients,
    make_tree,
    max_gap,
    numbers,
)
from whetstone.algorithms.advantages import (
    batch_scaled,
    dgrpo,
    difficulty_weighted,
    gpg,
    group_relative,
    leave_one_out,
    opo,
    pass_at_k,
    reinforce_plus_plus,
    remax,
)
from whetstone.algorithms.credit_filters import zero_variance
from whetstone.algorithms.objectives import clipped
from whetstone.algorithms.objectives.aggregation import aggregate_loss
from whetstone.analysis.exact import Figure

GROUPS = enumerate_groups(TREE.probabilities, 3)
REWARDS = TREE.rewards[GROUPS.flat]


def _bandit(success: float, size: int) -> tuple[Tree, Groups]:
    """One turn with a correct and a wrong answer."""
    tree = make_tree([[torch.tensor(success).logit().item(), 0.0]], [1.0, 0.0], depth=1)
    return tree, enumerate_groups(tree.probabilities, size)


@exact("rloo", "loop", "practitioners-guide", of=leave_one_out)
def leave_one_out_is_unbiased() -> list[Figure]:
    """The expected leave-one-out gradient equals the gradient of the expected reward, with less variance than
    without a baseline."""
    result = group_gradients(TREE, GROUPS, leave_one_out(REWARDS, GROUPS.group))
    plain = group_gradients(TREE, GROUPS, REWARDS)
    return [
        Figure(
            "largest bias of a component over 64 groups of 3", "=", 0.0, max_gap(GROUPS.mean_of(result), TREE.gradient)
        ),
        Figure("variance, bound: without baseline", "<", GROUPS.variance_of(plain), GROUPS.variance_of(result)),
    ]


@exact("dr-grpo", "grpo", of=group_relative)
def mean_baseline_scales_the_gradient_only() -> list[Figure]:
    """Without division by the deviation, the group baseline gives the true gradient times (G - 1)/G."""
    result = GROUPS.mean_of(group_gradients(TREE, GROUPS, group_relative(REWARDS, GROUPS.group, scale=False)))
    ratio = result / TREE.gradient
    return [
        Figure("smallest ratio of a component to the true gradient, G = 3", "=", 2 / 3, float(ratio.min())),
        Figure("largest ratio", "=", 2 / 3, float(ratio.max())),
    ]


@exact("dr-grpo", "grpo", of=group_relative)
def deviation_weighs_tasks_by_difficulty() -> list[Figure]:
    """Division by the group's deviation multiplies the gradient of a hard or easy task; without it all tasks
    have one factor."""

    def ratio(success: float, *, scale: bool) -> float:
        tree, groups = _bandit(success, 4)
        advantages = group_relative(tree.rewards[groups.flat], groups.group, scale=scale, epsilon=0.0)
        return float(groups.mean_of(group_gradients(tree, groups, advantages))[0] / tree.gradient[0])

    # success 1/2, k of 4 right: mean of A * score is k (4 - k) / 16 over sqrt(k (4 - k) / 12); k = 1 and 3: 6/16,
    # k = 2: sqrt(48)/16; with C(4, k)/16 and the true gradient 1/4
    middle = (8 * 6 / 16 + 6 * 48**0.5 / 16) / 16 * 4
    return [
        Figure("factor at success 1/2, group of 4", "=", middle, ratio(0.5, scale=True)),
        Figure("factor at success 0.05, bound: at 1/2", ">", middle, ratio(0.05, scale=True)),
        Figure("factor without deviation at 1/2", "=", 0.75, ratio(0.5, scale=False)),
        Figure("factor without deviation at 0.05", "=", 0.75, ratio(0.05, scale=False)),
    ]


@exact("dr-grpo", of=aggregate_loss)
def sequence_mean_favors_long_failures() -> list[Figure]:
    """A mean per sequence penalizes a token of a long failure less; a constant divisor and a mean over tokens
    do not."""
    sequence = torch.tensor([0] * 2 + [1] * 8)  # two failures of 2 and 8 tokens

    def ratio(mode: str, constant: float | None = None) -> float:
        gradient = gradient_of(
            lambda x: aggregate_loss(x, sequence, mode, constant=constant),  # type: ignore[arg-type]
            torch.ones(10, dtype=torch.float64),
        )
        return float(gradient[-1] / gradient[0])

    return [
        Figure(
            "weight of a token of the long failure over the short one, sequence_mean", "=", 0.25, ratio("sequence_mean")
        ),
        Figure("the same, constant", "=", 1.0, ratio("constant", 16.0)),
        Figure("the same, token_mean", "=", 1.0, ratio("token_mean")),
    ]


@exact("remax", of=remax)
def greedy_baseline_is_unbiased() -> list[Figure]:
    """The reward of the greedy episode as a baseline leaves the expected gradient unchanged and lowers its
    variance."""
    greedy = TREE.rewards[0]  # the first action has the larger logit at the root and after it
    single = enumerate_groups(TREE.probabilities, 1)
    rewards = TREE.rewards[single.flat]
    result = group_gradients(TREE, single, remax(rewards, greedy.expand_as(rewards)))
    plain = group_gradients(TREE, single, rewards)
    return [
        Figure("largest bias of a component", "=", 0.0, max_gap(single.mean_of(result), TREE.gradient)),
        Figure("variance, bound: without baseline", "<", single.variance_of(plain), single.variance_of(result)),
    ]


@exact("opo", of=opo)
def length_weighted_baseline_has_least_variance() -> list[Figure]:
    """For a uniform policy, no constant baseline has less gradient variance than the length-weighted mean
    reward."""
    # episodes of 1, 2, 3 and 3 uniform choices; each choice adds 1/2 to the squared norm of the score
    lengths = torch.tensor([1, 2, 3, 3])
    probabilities, rewards = numbers([0.5, 0.25, 0.125, 0.125]), numbers([1.0, 0.0, 1.0, 0.4])
    group = torch.tensor([0] * 8)  # eight episodes in exact proportion to their probability
    eight = torch.repeat_interleave(torch.arange(4), torch.tensor([4, 2, 1, 1]))
    baseline = rewards[eight[0]] - opo(rewards[eight], group, lengths[eight])[0]

    def second_moment(value: float) -> float:
        return float((probabilities * (rewards - value).square() * lengths / 2).sum())

    best = min(second_moment(k / 1000) for k in range(1001))
    mean = float((probabilities * rewards).sum())
    return [
        # (4*1 + 2*0 + 3*1 + 3*0.4) / (4 + 4 + 3 + 3)
        Figure("baseline", "=", 8.2 / 14, float(baseline)),
        Figure("second moment, bound: best of 1,001 constants", "<=", best, second_moment(float(baseline))),
        Figure("second moment, bound: with the mean reward", "<", second_moment(mean), second_moment(float(baseline))),
    ]


@exact("pass-at-k", of=pass_at_k)
def best_of_group_credit_is_the_gradient_of_pass_at_k() -> list[Figure]:
    """The expected sum of credit times score equals the gradient of the expected best reward of a group."""
    size = GROUPS.members.shape[1]
    result = size * GROUPS.mean_of(group_gradients(TREE, GROUPS, pass_at_k(REWARDS, GROUPS.group)))

    def expected_best(logits: torch.Tensor) -> torch.Tensor:
        tree = Tree(TREE.paths, TREE.nodes, logits, TREE.rewards)
        probabilities = tree.logprobs.sum(1).exp()
        best = TREE.rewards[GROUPS.members].max(1).values
        return (probabilities[GROUPS.members].prod(1) * best).sum()

    truth = gradient_of(expected_best, TREE.logits).flatten()
    return [Figure("largest bias of a component, best of 3", "=", 0.0, max_gap(result, truth))]


@exact("lite-ppo", of=(batch_scaled, group_relative))
def batch_deviation_keeps_the_ratio_of_tasks() -> list[Figure]:
    """With the batch's deviation, two tasks of one batch keep the ratio of their gradients; with each group's
    deviation the rare success counts more."""
    rewards = numbers([1.0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    group = torch.tensor([0] * 8 + [1] * 8)
    plain = group_relative(rewards, group, scale=False)
    of_batch, of_group = batch_scaled(rewards, group, epsilon=0.0), group_relative(rewards, group, epsilon=0.0)
    return [
        Figure("success of 1 in 8 over success of 4 in 8, no deviation", "=", 0.875 / 0.5, float(plain[0] / plain[8])),
        Figure("the same, batch deviation", "=", 1.75, float(of_batch[0] / of_batch[8])),
        # deviations sqrt(0.875 / 7) and sqrt(2 / 7)
        Figure("the same, group deviation", "=", 1.75 * (2 / 0.875) ** 0.5, float(of_group[0] / of_group[8])),
    ]


@exact("reinforce-plus-plus", of=reinforce_plus_plus)
def batch_normalization_loses_its_bias_with_the_batch() -> list[Figure]:
    """Normalization over the tokens of a batch gives mean 0 and variance 1; the direction of the expected
    gradient approaches the true one as the batch grows."""

    def normalized(size: int) -> tuple[torch.Tensor, float]:
        groups = enumerate_groups(TREE.probabilities, size)
        tokens = torch.arange(size).repeat_interleave(2)
        rewards = torch.stack([torch.zeros_like(groups.members), TREE.rewards[groups.members]], 2).flatten(1)
        result = torch.stack([reinforce_plus_plus(row, tokens) for row in rewards])
        expected = groups.mean_of(group_gradients(TREE, groups, result.view(-1, 2)))
        mixed = result[TREE.rewards[groups.members].std(1) > 0]
        return mixed, float(torch.nn.functional.cosine_similarity(expected, TREE.gradient, dim=0))

    (_, two), (mixed, three), (_, five) = normalized(2), normalized(3), normalized(5)
    return [
        Figure("largest mean of a batch", "=", 0.0, float(mixed.mean(1).abs().max())),
        Figure("largest gap of a batch's variance to 1", "<", 1e-5, float((mixed.var(1) - 1).abs().max())),
        Figure("cosine to the true gradient, 3 episodes, bound: 2 episodes", ">", two, three),
        Figure("the same, 5 episodes, bound: 3 episodes", ">", three, five),
    ]


@exact(
    "gpg",
    of=gpg,
    note="as in verl, only trajectories without reward are excluded; the paper also excludes groups that are all right",
)
def failed_groups_leave_the_size_of_an_update() -> list[Figure]:
    """Groups that failed leave the mean size of credit unchanged: the factor is trajectories over those with a
    reward."""
    mixed, failed, right = numbers([1.0, 0, 0, 0]), torch.zeros(4).double(), torch.ones(4).double()

    def size(*rewards: torch.Tensor) -> float:
        group = torch.arange(len(rewards)).repeat_interleave(4)
        return float(gpg(torch.cat(rewards), group).abs().mean())

    # one mixed group: mean |A| = (0.75 + 3 * 0.25) / 4 = 0.375, factor 4 / 1
    return [
        Figure("mean credit, one mixed group", "=", 1.5, size(mixed)),
        Figure("mean credit, one of four groups mixed, three failed", "=", 1.5, size(mixed, failed, failed, failed)),
        Figure("mean credit, one mixed and one all right", "=", 0.375 * 8 / 5 / 2, size(mixed, right)),
    ]


@exact("dapo", of=(zero_variance, clipped))
def filter_keeps_the_groups_with_a_gradient() -> list[Figure]:
    """With groups of G and success p, the filter keeps the fraction 1 - p^G - (1 - p)^G, exactly those with a
    gradient; the wider upper clip lets a rare token rise further."""
    tree, groups = _bandit(0.2, 8)
    rewards = tree.rewards[groups.flat]
    remaining = zero_variance(rewards, groups.group).view(256, 8)[:, 0]
    gradient = group_gradients(tree, groups, group_relative(rewards, groups.group)).abs().sum(1) > 1e-12
    old = numbers([0.01, 0.01]).log()
    ratio = numbers([1.25, 1.25]).log() + old

    def rise(high: float) -> float:
        slope = gradient_of(lambda x: clipped(x, old, torch.ones(2), clip_high=high).loss.sum(), ratio)
        return float(slope.abs().sum())

    return [
        Figure("fraction of groups kept, p = 0.2, G = 8", "=", 1 - 0.2**8 - 0.8**8, float(groups.mean_of(remaining))),
        Figure(
            "kept groups without a gradient, or dropped ones with it",
            "=",
            0,
            float((remaining.bool() != gradient).sum()),
        ),
        Figure("gradient at ratio 1.25, clip 0.2", "=", 0.0, rise(0.2)),
        Figure("gradient at ratio 1.25, clip 0.28", "=", 2.5, rise(0.28)),
    ]


@exact("demystifying", of=clipped)
def rare_tokens_rise_further_under_clip_higher() -> list[Figure]:
    """At the clip the largest probability of a token is (1 + clip_high) times its old one; the gain of the
    wider clip is proportional to it."""
    old = numbers([0.01, 0.7])
    grid = torch.linspace(1.0, 1.4, 401).double()

    def largest(probability: float, high: float) -> float:
        new = (grid * probability).log()
        before = torch.full_like(new, probability).log()
        loss = gradient_of(lambda x: clipped(x, before, torch.ones_like(x), clip_high=high).loss.sum(), new)
        return probability * float(grid[loss != 0].max())

    return [
        Figure("highest probability with a gradient from 0.01, clip 0.2", "<=", 0.012, largest(float(old[0]), 0.2)),
        Figure("the same, clip 0.28", "<=", 0.0128, largest(float(old[0]), 0.28)),
        Figure("the same, clip 0.28, bound: clip 0.2", ">", 0.012, largest(float(old[0]), 0.28)),
    ]


@exact("gui-g1", of=difficulty_weighted)
def difficulty_weights_shift_learning_to_hard_tasks() -> list[Figure]:
    """Credit is the group's mean difference times the relative hardness of its task, the same for all of a
    group."""
    rewards = torch.tensor([1.0, 0, 0, 0] * 3).double()
    group = torch.arange(3).repeat_interleave(4)
    hardness = numbers([0.5, 1.0, 1.5]).repeat_interleave(4)
    weights = difficulty_weighted(rewards, group, hardness) / group_relative(rewards, group, scale=False)
    result = weights.view(3, 4)
    return [
        Figure("hard task over easy task, hardness 1.5 and 0.5", "=", 3.0, float(result[2, 0] / result[0, 0])),
        Figure("spread of weights in a group", "=", 0.0, float((result.max(1).values - result.min(1).values).max())),
    ]


@exact("gui-g1", of=dgrpo)
def missing_reward_weighs_groups() -> list[Figure]:
    """Weighted by the reward still missing, groups with fewer successes have larger weights, down to a floor."""
    groups = [torch.tensor([1.0] * k + [0.0] * (8 - k)).double() for k in range(1, 8)]
    group = torch.arange(7).repeat_interleave(8)
    plain = group_relative(torch.cat(groups), group)
    result = (dgrpo(torch.cat(groups), group) / plain).view(7, 8)
    steps = [float(after.mean() - before.mean()) for before, after in itertools.pairwise(result)]
    return [
        Figure("largest change of weight for one more success in 8", "<=", 0.0, max(steps)),
        Figure("weight at 1 of 8 over 6 of 8", "=", 3.5, float(result[0, 0] / result[5, 0])),
        Figure("weight at 7 of 8 over 6 of 8 (floor)", "=", 1.0, float(result[6, 0] / result[5, 0])),
    ]
