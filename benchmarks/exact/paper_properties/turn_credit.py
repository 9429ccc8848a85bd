"""Credit for turns: unbiasedness and variance with known values, telescoping sums, baselines by role."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import (
    TREE,
    WALK,
    Tree,
    enumerate_groups,
    group_gradients,
    make_tree,
    max_gap,
    numbers,
)
from whetstone.algorithms.advantages import (
    archer,
    arpo,
    dr_mas,
    flow_grpo,
    gigpo,
    group_relative,
    hrpo,
    igpo,
    implicit_rewards,
    mars,
    portool,
    potential_shaping,
    rlvmr,
    role_normalized,
    spa,
    toolpo,
    tree_ps,
    turn_gae,
    ui_s1,
)
from whetstone.algorithms.advantages.tree_ps import node_values
from whetstone.algorithms.shaping import gated, kl_penalty, self_correction
from whetstone.analysis.exact import Figure
from whetstone.rollout.strategies.prover import best_of_k_probability, progress_rewards

SINGLE = enumerate_groups(TREE.probabilities, 1)
LAST = torch.zeros(4, dtype=torch.float64)
TRAJECTORY = torch.arange(4).repeat_interleave(2)


def _turn_rewards(tree: Tree) -> Tensor:
    """[L · depth] the outcome with the last turn."""
    depth = tree.paths.shape[1]
    return torch.nn.functional.pad(tree.rewards[:, None], (depth - 1, 0)).flatten()


def _noise(groups_variance: float, gradient: Tensor) -> float:
    """Variance of a gradient over the squared norm of its expectation."""
    return groups_variance / float(gradient.square().sum())


@exact("gigpo", of=gigpo)
def anchor_states_lower_the_variance() -> list[Figure]:
    """At equal samples, comparison with turns from the same state lowers the variance of the gradient relative
    to its size, and the first turn, which all share, keeps the direction of the true gradient."""
    groups = enumerate_groups(WALK.probabilities, 4)
    rewards = WALK.rewards[groups.flat]
    trajectory = torch.arange(len(rewards)).repeat_interleave(3)
    turn_rewards = torch.nn.functional.pad(rewards[:, None], (2, 0)).flatten()
    states = WALK.nodes[groups.flat].flatten()
    result = gigpo(rewards, turn_rewards, trajectory, groups.group, states, discount=1.0)
    outcome = group_gradients(WALK, groups, group_relative(rewards, groups.group, scale=False))
    steps = group_gradients(WALK, groups, result.view(-1, 3))
    expected = groups.mean_of(steps)
    return [
        Figure(
            "variance over squared size, bound: episodes only",
            "<",
            _noise(groups.variance_of(outcome), groups.mean_of(outcome)),
            _noise(groups.variance_of(steps), expected),
        ),
        # both terms of the first turn are the same difference: (G - 1)/G twice
        Figure("first turn over the true gradient", "=", 1.5, float(expected[0] / WALK.gradient[0])),
    ]


@exact("vl-dac", "odysseus", of=turn_gae)
def true_turn_values_lower_the_variance() -> list[Figure]:
    """With the true value of each turn's state, the estimate is unbiased for every λ, and its variance is lower
    than with the outcome for all turns."""
    values = TREE.values
    rewards = _turn_rewards(TREE)

    def gradients(trace: float) -> Tensor:
        result = turn_gae(rewards, values[:, :2].flatten(), LAST, TRAJECTORY, discount=1.0, trace=trace, whiten=False)
        return group_gradients(TREE, SINGLE, result.advantages.view(4, 2))

    plain = group_gradients(TREE, SINGLE, TREE.rewards - values[0, 0])
    gaps = [max_gap(SINGLE.mean_of(gradients(trace)), TREE.gradient) for trace in (0.0, 0.5, 1.0)]
    return [
        Figure("largest bias of a component, λ of 0, 0.5 and 1", "=", 0.0, max(gaps)),
        Figure(
            "variance at λ = 0, bound: outcome less mean for all turns",
            "<",
            SINGLE.variance_of(plain),
            SINGLE.variance_of(gradients(0.0)),
        ),
    ]


@exact("archer", of=archer)
def true_critics_are_the_fixed_point() -> list[Figure]:
    """The true values of turns are a fixed point of the targets, and the advantage is then exactly Q - V."""
    values = TREE.values
    q, v = values[:, 1:].flatten(), values[:, :2].flatten()
    result = archer(_turn_rewards(TREE), TRAJECTORY, q, q, v, v, q, q, v, v, LAST, LAST, discount=1.0)
    expected = float((TREE.probabilities * result.targets["values"].view(4, 2)[:, 0]).sum())
    gradient = SINGLE.mean_of(group_gradients(TREE, SINGLE, result.advantages.view(4, 2)))
    return [
        Figure("largest gap of Q's target", "=", 0.0, max_gap(result.targets["action_values"], q)),
        Figure("gap of the first state's expected target", "=", 0.0, expected - float(values[0, 0])),
        Figure("largest bias of the gradient", "=", 0.0, max_gap(gradient, TREE.gradient)),
    ]


@exact("tree-ps", of=(node_values, tree_ps))
def node_values_are_true_on_average() -> list[Figure]:
    """The mean outcome of forked episodes through a turn equals the turn's true value on average, and one
    shared turn has one advantage."""
    second = TREE.logits.softmax(-1)
    trajectory, nodes = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 2])  # both share their first turn
    gap, spread = 0.0, 0.0
    for first in range(2):
        result = 0.0
        for a, b in itertools.product(range(2), repeat=2):
            outcomes = TREE.rewards[[2 * first + a, 2 * first + b]]
            value, _, _ = node_values(outcomes, trajectory, nodes, torch.zeros(2, dtype=torch.long))
            result += float(second[1 + first, a] * second[1 + first, b] * value[0])
            credit = tree_ps(outcomes, torch.zeros(2, dtype=torch.long), trajectory, nodes)
            spread = max(spread, abs(float(credit[0] - credit[2])))
        gap = max(gap, abs(result - float(TREE.values[2 * first, 1])))
    return [
        Figure("largest gap of a turn's expected value", "=", 0.0, gap),
        Figure("largest difference of a shared turn's advantages", "=", 0.0, spread),
    ]


@exact("entropy-branching", of=arpo)
def shared_turns_have_the_same_gradient() -> list[Figure]:
    """Hard attribution (the mean of the branches) and soft attribution (each branch its own) have the same
    gradient at ratio 1, for all outcomes of a tree of four branches."""
    trajectory, nodes = torch.arange(4).repeat_interleave(2), torch.tensor([0, 1, 0, 2, 3, 4, 3, 5])
    group = torch.zeros(4, dtype=torch.long)
    gap = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=4):
        rewards = numbers(outcome)
        sums = [
            torch.zeros(6, dtype=torch.float64).index_add_(
                0, nodes, arpo(rewards, group, trajectory, nodes, attribution=attribution)
            )
            for attribution in ("hard", "soft")
        ]
        gap = max(gap, max_gap(*sums))
    return [Figure("largest gap of a turn's summed credit over 16 outcomes", "=", 0.0, gap)]


@exact("spa-rl", of=spa)
def contributions_sum_to_the_outcome() -> list[Figure]:
    """Whatever the learned contributions, an episode's rewards sum to its outcome, and the targets' gradient is
    that of the squared error of the sum."""
    contributions = numbers([0.3, -0.1, 0.7, 0.2, 0.9, 0.0, -0.4, 0.1])
    zeros = torch.zeros(8).double()
    result = spa(TREE.rewards, contributions, zeros, zeros, LAST, TRAJECTORY, discount=1.0, trace=1.0, whiten=False)
    sums = contributions.view(4, 2).sum(1)
    gradient = contributions - result.targets["contributions"]
    return [
        Figure(
            "largest gap of the first turn's return",
            "=",
            0.0,
            max_gap(result.advantages.view(4, 2)[:, 0], TREE.rewards),
        ),
        Figure(
            "largest gap of the gradient of (Σ c - R)² / 2",
            "=",
            0.0,
            max_gap(gradient.view(4, 2), (sums - TREE.rewards)[:, None].expand(4, 2)),
        ),
    ]


@exact("igpo", "dr-venus", of=igpo)
def information_gains_telescope() -> list[Figure]:
    """The gains of an episode's turns sum to its last belief minus its first, so the first return is that plus
    the outcome."""
    beliefs = numbers([[0.1, 0.4, 0.3, 0.8], [0.1, 0.05, 0.2, 0.15]])
    outcomes = numbers([1.0, 0.0])
    trajectory = torch.tensor([0] * 4 + [1] * 4)
    result = igpo(outcomes, beliefs.flatten(), trajectory, torch.zeros(2, dtype=torch.long), norm="none").view(2, 4)
    return [
        Figure("first return of a success, beliefs 0.1 to 0.8", "=", 1.7, float(result[0, 0])),
        Figure("first return of a failure, beliefs 0.1 to 0.15", "=", 0.05, float(result[1, 0])),
        Figure("third return of the success (0.8 - 0.3 + 1)", "=", 1.5, float(result[0, 2])),
    ]


@exact("mira", of=potential_shaping)
def shaping_leaves_the_gradient() -> list[Figure]:
    """A potential adds the same discounted sum to every episode, so the expected gradient does not change."""
    potentials = numbers([0.2, 0.9, 0.2, 0.9, 0.2, -0.4, 0.2, -0.4])  # of the state before each turn
    shaping = potential_shaping(potentials, LAST, TRAJECTORY, discount=1.0).view(4, 2)
    returns = torch.stack([TREE.rewards + shaping.sum(1), TREE.rewards + shaping[:, 1]], 1)
    result = SINGLE.mean_of(group_gradients(TREE, SINGLE, returns))
    return [
        Figure(
            "largest gap of an episode's sum to -Φ of its first state", "=", 0.0, max_gap(shaping.sum(1), LAST - 0.2)
        ),
        Figure("largest bias of the gradient", "=", 0.0, max_gap(result, TREE.gradient)),
    ]


@exact("istar", of=implicit_rewards)
def implicit_rewards_sum_to_the_log_ratio() -> list[Figure]:
    """Implicit rewards of turns sum to β times the log-ratio of the whole episode, the margin that preferences
    train."""
    other = Tree(TREE.paths, TREE.nodes, TREE.logits.flip(1), TREE.rewards)
    turns = torch.arange(8)
    result = implicit_rewards(other.logprobs.flatten(), TREE.logprobs.flatten(), turns, 8, beta=0.05).view(4, 2)
    expected = 0.05 * (other.logprobs - TREE.logprobs).sum(1)
    return [Figure("largest gap over four episodes", "=", 0.0, max_gap(result.sum(1), expected))]


@exact("rewarding-progress", of=(best_of_k_probability, progress_rewards))
def progress_under_a_prover_telescopes() -> list[Figure]:
    """The progress of an episode's turns sums to its success minus the prover's chance at the start; on average
    over the policy's own actions, progress under the policy itself is 0."""
    chances = [best_of_k_probability(value, 4) for value in (0.1, 0.3, 0.2)]
    gains = progress_rewards([*chances, 1.0])
    first = TREE.logits.softmax(-1)[0]
    steps = torch.tensor([progress_rewards([float(value) for value in row])[0] for row in TREE.values[::2]]).double()
    return [
        Figure("sum of progress, chance 0.1 at the start, best of 4", "=", 0.9**4, sum(gains)),
        Figure("expected progress of the first turn under the policy", "=", 0.0, float((first * steps).sum())),
    ]


@exact("flow-grpo", of=flow_grpo)
def outcome_for_all_turns_reaches_the_first() -> list[Figure]:
    """The outcome at every turn gives the direction of the true gradient; the outcome at the last turn only
    leaves all earlier turns without a gradient."""
    tree = make_tree([[0.0, 0.0]] * 3, [1.0, 0.8, 0.2, 0.0])  # the first turn decides most
    groups = enumerate_groups(tree.probabilities, 4)
    rewards = tree.rewards[groups.flat]
    trajectory = torch.arange(len(rewards)).repeat_interleave(2)
    credit = flow_grpo(rewards, groups.group, trajectory).view(-1, 2)
    every = groups.mean_of(group_gradients(tree, groups, credit))
    last = groups.mean_of(group_gradients(tree, groups, credit * torch.tensor([0.0, 1.0])))
    return [
        Figure("cosine to the true gradient", ">", 0.99, float(torch.cosine_similarity(every, tree.gradient, 0))),
        Figure("gradient of the first turn, last turn only", "=", 0.0, float(last[:2].abs().max())),
        Figure("cosine, last turn only", "<", 0.5, float(torch.cosine_similarity(last, tree.gradient, 0))),
    ]


@exact("gated-rewards", of=gated)
def gate_removes_the_reward_of_failures() -> list[Figure]:
    """Process rewards count only above the gate: a failure that collects them earns nothing, while in a plain
    sum it outranks a success."""
    process = numbers([1.0, 1.0, 1.0, 0.2, 0.0, 0.0])  # a failure that repeats a paid step; a success
    trajectory = torch.tensor([0, 0, 0, 1, 1, 1])
    outcomes = numbers([0.0, 1.0])
    result = gated(outcomes, process, trajectory).view(2, 3).sum(1) + outcomes
    plain = process.view(2, 3).sum(1) + outcomes
    return [
        Figure("success less failure, plain sum", "=", -1.8, float(plain[1] - plain[0])),
        Figure("success less failure, gated", "=", 1.2, float(result[1] - result[0])),
    ]


@exact("dr-mas", of=(dr_mas, group_relative))
def own_statistics_bound_the_second_moment() -> list[Figure]:
    """With statistics of all agents the second moment of an agent's credit is (σ_k² + (μ_k - μ)²) / σ²; with
    its own it is 1, however far the agents' rewards are apart."""
    # agent 0 earns 0 or 1, agent 1 earns 10 or 14: μ_0 = 0.5, σ_0 = 0.5, μ_1 = 12, σ_1 = 2
    rewards = torch.tensor([0.0, 1.0] * 4 + [10.0, 14.0] * 4).double()
    group, roles = torch.zeros(16, dtype=torch.long), torch.tensor([0] * 8 + [1] * 8)
    everyone = group_relative(rewards, group, ddof=0, epsilon=0.0).square().view(2, 8).mean(1)
    own = dr_mas(rewards, group, roles, epsilon=0.0).square().view(2, 8).mean(1)
    variance = 0.5 * (0.25 + 4) + 5.75**2
    return [
        Figure("second moment of agent 0, all statistics", "=", (0.25 + 5.75**2) / variance, float(everyone[0])),
        Figure("second moment of agent 1, all statistics", "=", (4 + 5.75**2) / variance, float(everyone[1])),
        Figure("second moment of agent 0, own (sample deviation of 8)", "=", 7 / 8, float(own[0])),
        Figure("second moment of agent 1, own", "=", 7 / 8, float(own[1])),
    ]


@exact("mars", "spiral", of=mars)
def each_role_has_its_baseline() -> list[Figure]:
    """Credit sums to 0 over the turns of each role, whatever the roles earn."""
    rewards = numbers([0.0, 1.0, 0.0, 0.0, 5.0, 5.0, 0.0, 9.0])
    result = mars(rewards, TRAJECTORY, torch.tensor([0, 0, 1, 1])).view(2, 4).sum(1)
    return [
        Figure("sum of the first player's credit", "=", 0.0, float(result[0])),
        Figure("sum of the second player's", "=", 0.0, float(result[1])),
    ]


@exact("self-redteam", of=role_normalized)
def roles_of_a_zero_sum_game_have_unit_scale() -> list[Figure]:
    """Each role's credit has mean 0 and second moment 1 over its tokens, so that neither player's scale
    decides."""
    rewards = numbers([0.0, 1.0, 0.0, -1.0, 0.0, 30.0, 0.0, -10.0])
    result = role_normalized(rewards, TRAJECTORY, torch.tensor([0, 0, 1, 1])).view(2, 4)
    return [
        Figure("largest mean of a role", "=", 0.0, float(result.mean(1).abs().max())),
        Figure("second moment of the attacker", "=", 1.0, float(result[0].square().mean())),
        Figure("second moment of the defender", "=", 1.0, float(result[1].square().mean())),
    ]


@exact("rlvmr", of=rlvmr)
def tags_are_compared_with_their_kind() -> list[Figure]:
    """The process part of credit sums to 0 over the turns of each tag, so no kind of thought pays by itself."""
    process = numbers([0.5, 0.0, 1.0, 2.0, 0.0, 3.0, 0.5, 1.0])
    tags = torch.tensor([0, 1, 0, 1, 0, 1, -1, -1])
    group = torch.zeros(4, dtype=torch.long)
    result = rlvmr(torch.zeros(4), process, TRAJECTORY, group, tags)
    sums = torch.zeros(3).double().index_add_(0, tags % 3, result)
    return [
        Figure("largest sum over a tag", "=", 0.0, float(sums[:2].abs().max())),
        Figure("process part of untagged turns", "=", 0.0, float(sums[2].abs())),
    ]


@exact("ui-s1", of=ui_s1)
def returns_stop_at_the_patch() -> list[Figure]:
    """Future reward flows back only over turns that matched the expert: the reward after a patched turn reaches
    no turn before it."""
    group, index = torch.zeros(2, dtype=torch.long), torch.tensor([0, 1, 2, 0, 1, 2])
    trajectory = torch.tensor([0, 0, 0, 1, 1, 1])

    def first_turn(last: float, matched: list[int]) -> float:
        rewards = numbers([1.0, 0.0, last, 1.0, 1.0, 1.0])
        result = ui_s1(
            torch.zeros(2), rewards, trajectory, group, index, torch.tensor([*matched, 1, 1, 1]), scale=False
        )
        return float(result[0])

    # returns of the first turn: 1.75 of the expert's path; 1 + 0.25 r of the other if all matched, 1 if patched
    return [
        Figure("change of the first turn's credit with a later reward of 1, patched", "=", 0.0,
               first_turn(1.0, [1, 0, 1]) - first_turn(0.0, [1, 0, 1])),
        Figure("the same, all matched (γ² / 2)", "=", 0.125, first_turn(1.0, [1, 1, 1]) - first_turn(0.0, [1, 1, 1])),
    ]  # fmt: skip


@exact("deepagent", of=toolpo)
def call_credit_is_on_call_tokens_only() -> list[Figure]:
    """Credit for correct calls reaches tokens of calls and no others."""
    outcomes, calls = numbers([1.0, 0.0]), numbers([0.2, 0.8])
    group, tokens = torch.zeros(2, dtype=torch.long), torch.tensor([0, 0, 1, 1])
    marks = torch.tensor([1, 0, 1, 0])
    result = toolpo(outcomes, calls, group, tokens, marks)
    without = toolpo(outcomes, torch.zeros(2), group, tokens, marks)
    change = (result - without).tolist()
    return [
        Figure("credit for calls on the better trajectory's call token", "=", 0.3, change[2]),
        Figure("credit for calls on tokens without a call", "=", 0.0, abs(change[1]) + abs(change[3])),
    ]


@exact("score", of=self_correction)
def correction_pays_more_than_two_right_answers() -> list[Figure]:
    """With the bonus, mending a wrong answer earns more than two right answers, and spoiling a right one costs
    most."""
    attempts = numbers([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    total = self_correction(attempts.flatten(), TRAJECTORY, weight=10.0).view(4, 2).sum(1)
    return [
        Figure("wrong, then right", "=", 11.0, float(total[0])),
        Figure("right twice", "=", 2.0, float(total[1])),
        Figure("wrong twice", "=", 0.0, float(total[2])),
        Figure("right, then wrong", "=", -9.0, float(total[3])),
    ]


@exact("ppo", of=kl_penalty)
def token_penalty_sums_to_the_divergence() -> list[Figure]:
    """The expected sum of the penalty over an episode is -β times the divergence from the reference."""
    reference = Tree(TREE.paths, TREE.nodes, TREE.logits.flip(1), TREE.rewards)
    zeros = torch.zeros(8).double()
    result = kl_penalty(zeros, TREE.logprobs.flatten(), reference.logprobs.flatten(), weight=0.5).view(4, 2).sum(1)
    policy, other = TREE.probabilities, reference.probabilities
    return [
        Figure(
            "expected sum, β = 0.5",
            "=",
            -0.5 * float((policy * (policy / other).log()).sum()),
            float((policy * result).sum()),
        )
    ]


@exact("portool", of=portool)
def siblings_share_their_parent_only() -> list[Figure]:
    """Credit at a fork sums to 0 over the siblings and is positive for the better one; a shared turn has one
    credit in all its branches, for all outcomes of a tree."""
    trajectory, nodes = torch.arange(3).repeat_interleave(2), torch.tensor([0, 1, 0, 2, 3, 4])
    group, index = torch.zeros(3, dtype=torch.long), torch.tensor([0, 1] * 3)
    spread, total, wrong = 0.0, 0.0, 0
    for outcome in itertools.product((-1.0, 0.0, 1.0), repeat=3):
        result = portool(
            numbers(outcome), torch.zeros(6), trajectory, group, index, nodes, trajectory_weight=0.0, fork_weight=1.0
        )
        spread = max(spread, abs(float(result[0] - result[2])))
        total = max(total, abs(float(result[1] + result[3])))
        wrong += (float(result[1] - result[3]) > 0) != (outcome[0] > outcome[1])
    return [
        Figure("largest difference of a shared turn's credit", "=", 0.0, spread),
        Figure("largest sum over two siblings", "=", 0.0, total),
        Figure("outcomes of 27 with the wrong order", "=", 0, wrong),
    ]


@exact("hrpo", of=hrpo)
def local_rewards_keep_their_size() -> list[Figure]:
    """The cost of a step is added after the comparison of outcomes, so its size does not depend on their
    spread."""
    group, process = torch.zeros(4, dtype=torch.long), numbers([0.0, -1.0] * 4)

    def cost(spread: float) -> float:
        outcomes = numbers([0.0, spread, 0.0, spread])
        return float(
            (hrpo(outcomes, process, TRAJECTORY, group) - hrpo(outcomes, 0 * process, TRAJECTORY, group)).sum()
        )

    return [
        Figure("summed cost of four steps, spread of outcomes 1", "=", -2.0, cost(1.0)),
        Figure("the same, spread 0.01", "=", -2.0, cost(0.01)),
    ]


@exact(
    "hierarchical-reinforcement-learning-articulated-tool-manipulation",
    "subgoal-based-hierarchical-reinforcement-learning-multi",
    of=rlvmr,
    note="by analogy: levels are tags of turns",
)
def levels_have_the_reward_of_their_weight() -> list[Figure]:
    """At weight 1 both levels have the outcome's credit only, at 0 each level has its own rewards' credit only,
    and between them the mixture is linear."""
    outcomes, process = numbers([1.0, 0.0, 0.0, 1.0]), numbers([0.5, 0.0, 1.0, 2.0, 0.0, 3.0, 0.5, 1.0])
    group, tags = torch.zeros(4, dtype=torch.long), torch.tensor([0, 1] * 4)

    def credit(weight: float, earned: Tensor, own: Tensor) -> Tensor:
        return rlvmr(earned, own, TRAJECTORY, group, tags, weight=weight)

    high, low = credit(1.0, outcomes, process), credit(0.0, outcomes, process)
    return [
        Figure("change with own rewards at weight 1", "=", 0.0, max_gap(high, credit(1.0, outcomes, 3 * process + 1))),
        Figure("change with the outcome at weight 0", "=", 0.0, max_gap(low, credit(0.0, 1 - outcomes, process))),
        Figure("gap to the mixture at weight 0.3", "=", 0.0,
               max_gap(credit(0.3, outcomes, process), 0.3 * high + 0.7 * low)),
    ]  # fmt: skip
