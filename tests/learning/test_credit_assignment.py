"""Credit assignment: advantages of tokens from comparisons and from critics over turns or tokens."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from support.segments import segment
from support.small import TEACHING
from whetstone.algorithms import PerTrajectory, PerTurn, group_relative
from whetstone.algorithms.advantages import dr_mas, mars, reinforce_plus_plus, role_normalized, token_gae, turn_gae
from whetstone.algorithms.axes import BeforeBaseline, LossOnly, Weight
from whetstone.algorithms.returns import is_last_step
from whetstone.chat import assistant, user
from whetstone.errors import CreditError
from whetstone.learning.columns import Columns
from whetstone.learning.credit_assignment import CreditParts, assign_credit
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.token_index import index_groups
from whetstone.policies import build_critic, build_tiny
from whetstone.recipe import OptimizerSettings
from whetstone.record.checkpoint import load_checkpoint
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import Author, EndReason, Group, RemovalScope, Score, Task, Tokens, Trajectory, Turn


def turn(number, context, action):
    sampled = Tokens.from_samples(
        action, logprobs=[-1.0] * len(action), versions=[0] * len(action), entropies=[0.0] * len(action)
    )
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), sampled, assistant("x"), opens_segment=number == 0)


def trajectory(name, score, **changes):
    turns = (turn(0, [1, 2, 3], [4, 5]), turn(1, [6], [7, 8, 9]))
    original = Trajectory(name, "t", (user("x"),), turns, EndReason.TERMINATED, score=score)
    return replace(original, **changes)


def group(*scores, **changes):
    trajectories = tuple(trajectory(str(k), score, **changes) for k, score in enumerate(scores))
    return Group(Task("t", "x"), trajectories)


class FixedCriticLearner(ModelTrainer):
    """A learner whose critic returns given values."""

    def values(self, segments, *, temperature=1.0):
        values = torch.tensor([0.5, 9.0, 0.6, 9.0, 9.0])
        return [(values if len(s) == 9 else torch.tensor([0.7])).unsqueeze(1) for s in segments]


def learner(kind=ModelTrainer, heads=("values",)):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    return kind(replace(policy, critic=build_critic(policy.model, heads)), OptimizerSettings())


def assign(groups, estimator, *, heads=("values",), kind=FixedCriticLearner, **parts):
    parts_learner = learner(kind, heads)
    columns = partial(Columns, learner=parts_learner)
    return assign_credit(CreditParts(estimator, **parts), index_groups(groups), len(groups), columns)


def by_turns(**options):
    return partial(turn_gae, **{"discount": 0.95, "trace": 0.9, "whiten": False, **options})


def test_turn_critic_reads_the_first_token_and_all_tokens_receive_the_advantage():
    (((trained,),)) = assign([group(Score(1.0, turns=(0.1, 0.0)))], by_turns()).by_group
    # δ₂ = 1 − 0.6;  δ₁ = 0.1 + 0.95 · 0.6 − 0.5
    last = 0.4
    first = 0.17 + 0.95 * 0.9 * last
    assert trained.segment.advantages == pytest.approx([0, 0, 0, first, first, 0, last, last, last])
    assert trained.target[[0, 2], 0].tolist() == pytest.approx([first + 0.5, 1.0])
    assert trained.target[[1, 3, 4]].isnan().all()
    assert trained.value[[0, 2], 0].tolist() == pytest.approx([0.5, 0.6])


def test_truncated_episode_bootstraps_from_the_critic():
    closing = Tokens.from_ids([10, 11], Author.ENVIRONMENT)
    cut = group(Score(0.0), ended=EndReason.MAX_TURNS, closing=closing)
    ((trained,),) = assign([cut], by_turns(trace=0.0)).by_group
    # the critic returns 0.7 for the state after the last observation
    assert trained.segment.advantages[-1] == pytest.approx(0.95 * 0.7 - 0.6)
    ((over,),) = assign([group(Score(0.0))], by_turns(trace=0.0)).by_group
    assert over.segment.advantages[-1] == pytest.approx(-0.6)


def test_token_critic_reads_every_token():
    estimator = partial(token_gae, whiten=False)
    ((trained,),) = assign([group(Score(1.0))], estimator, heads=("token_values",)).by_group
    assert [trained.segment.advantages[k] for k in (3, 4, 6, 7, 8)] == pytest.approx([0.5, -8.0, 0.4, -8.0, -8.0])
    assert trained.target[:, 0].tolist() == pytest.approx([1.0] * 5)


def test_whitening_is_over_the_turns_of_all_trajectories():
    (trained,) = assign([group(Score(1.0), Score(0.0))], by_turns(whiten=True)).by_group
    per_turn = torch.tensor([each.segment.advantages[k] for each in trained for k in (3, 6)])
    assert per_turn.mean().item() == pytest.approx(0, abs=1e-6)
    assert per_turn.std().item() == pytest.approx(1, abs=1e-4)


def test_trajectory_removed_from_the_loss_counts_in_the_baseline():
    counted = replace(group(Score(1.0), Score(0.0)).trajectories[0], removal=RemovalScope.LOSS_ONLY)
    groups = [Group(Task("t", "x"), (counted, group(Score(1.0), Score(0.0)).trajectories[1])), group()]
    credit = assign(groups, partial(group_relative, scale=False))
    assert [len(of) for of in credit.by_group] == [1, 0]
    assert credit.by_group[0][0].segment.advantages[3] == -0.5


def keeps_the_first(rewards) -> BeforeBaseline:
    return torch.tensor([1.0] + [0.0] * (len(rewards) - 1))


def halves(rewards) -> Weight:
    return torch.full_like(rewards, 0.5)


def keeps_winners(rewards) -> LossOnly:
    return (rewards > 0).double()


def test_filters_apply_at_their_removal_scope():
    three = [group(Score(1.0), Score(0.0), Score(0.5))]
    centered = partial(group_relative, scale=False)

    def advantages_and_metrics(filters):
        credit = assign(three, centered, filters=filters)
        return [each.segment.advantages[3] for each in credit.by_group[0]], credit.metrics

    assert advantages_and_metrics({})[0] == [0.5, -0.5, 0.0]
    assert advantages_and_metrics({"first": keeps_the_first})[0] == [0.0]  # a single trajectory has no baseline
    assert advantages_and_metrics({"winners": keeps_winners})[0] == [0.5, 0.0]
    assert advantages_and_metrics({"halves": halves})[0] == [0.25, -0.25, 0.0]
    assert advantages_and_metrics({"winners": keeps_winners})[1][
        "credit_filters/winners_removed_fraction"
    ] == pytest.approx(1 / 3)


def doubled(outcomes: PerTrajectory) -> PerTrajectory:
    return 2 * outcomes


def one_per_turn(turn_index: PerTurn) -> PerTurn:
    return torch.ones(len(turn_index)).double()


def only_the_last(advantages: PerTurn, trajectory: PerTurn) -> PerTurn:
    return torch.where(is_last_step(trajectory), advantages, 0.0)


def everything(rewards: PerTrajectory) -> PerTrajectory:
    return rewards


def test_rewards_are_shaped_before_and_advantages_transformed_after_estimation():
    parts = {"shaping": (one_per_turn, doubled), "advantage_transforms": (only_the_last,)}
    ((trained,),) = assign([group(Score(3.0))], everything, **parts).by_group
    # twice 3, and 1 for each of two turns; only the last turn keeps it
    assert trained.segment.advantages == (0, 0, 0, 0, 0, 0, 8, 8, 8)


def test_token_columns_are_in_order_of_turns_for_any_segments():
    first, second = turn(0, [1, 2, 3], [4, 5]), turn(1, [6], [7, 8, 9])
    rewritten = replace(first, training_context=Tokens.from_ids([1], Author.ENVIRONMENT))
    trained = replace(trajectory("a", Score(0.0, turns=(1.0, 2.0))), turns=(rewritten, second))

    def turn_by_turn(turn_rewards: PerTurn) -> PerTurn:
        return turn_rewards

    credit = assign([Group(Task("t", "x"), (trained,))], turn_by_turn)
    assert credit.columns["turn"].tolist() == [0, 0, 1, 1, 1]
    by_segment = [each.segment.advantages for each in credit.by_group[0]]
    assert by_segment == [(0, 0, 0, 0, 0, 0, 2, 2, 2), (0, 1, 1)]


def test_excluded_trajectory_changes_nothing_for_the_others():
    centered = partial(group_relative, scale=False)
    excluded = replace(group(Score(9.0)).trajectories[0], id="x", removal=RemovalScope.BEFORE_BASELINE)
    plain = group(Score(1.0), Score(0.0))
    with_it = replace(plain, trajectories=(*plain.trajectories, excluded))
    advantages = [[each.segment.advantages for each in assign([g], centered).by_group[0]] for g in (plain, with_it)]
    assert advantages[0] == advantages[1]


def test_observations_do_not_change_credit():
    one = trajectory("a", Score(1.0, turns=(0.5, 0.5)))
    longer = replace(one, turns=(one.turns[0], turn(1, [6, 6, 6, 6, 6], [7, 8, 9])))
    other = trajectory("b", Score(0.0, turns=(0.0, 0.1)))
    estimator = partial(reinforce_plus_plus, discount=0.9)
    advantages = []
    for first in (one, longer):
        trained = assign([Group(Task("t", "x"), (first, other))], estimator).by_group[0]
        advantages.append([[a for a in each.segment.advantages if a] for each in trained])
    assert advantages[0] == advantages[1]


def test_missing_turn_scores_are_reported():
    def of_turns(process_rewards: PerTurn) -> PerTurn:
        return process_rewards

    with pytest.raises(CreditError, match="process_rewards: 0: its reward does not score turns"):
        assign([group(Score(1.0))], of_turns)


def test_scores_of_turns_and_components_of_rewards_are_columns():
    def novelty(surprise: PerTurn, politeness: PerTrajectory, trajectory: PerTurn) -> PerTurn:
        return surprise + politeness[trajectory]

    score = Score(0.0, parts={"politeness": 10.0}, signals={"surprise": (1.0, 2.0)})
    ((trained,),) = assign([group(score)], novelty).by_group
    assert [trained.segment.advantages[k] for k in (3, 6)] == [11, 12]
    with pytest.raises(CreditError, match="neither the run nor its reward provides surprise"):
        assign([group(Score(0.0))], novelty)


def test_policy_is_unchanged_during_critic_warm_up(small_demo, tmp_path):
    run = tmp_path / "run"
    changes = ["advantage=turn_gae", "critic={warmup_updates: 2, epochs: 2}", "rollout.group_size=4", TEACHING]
    train(small_demo(*changes), run, progress=Progress(quiet=True))
    before, after = (load_checkpoint(path)[0] for path in sorted((run / "checkpoints").iterdir()))
    assert all(map(torch.equal, before.model.state_dict().values(), after.model.state_dict().values()))
    assert after.critic.value.weight.abs().sum() > 0


def test_trained_critic_predicts_its_targets():
    trained = learner()
    with torch.no_grad():  # distinct hidden states, like those of a trained model
        trained.policy.model.get_input_embeddings().weight.mul_(50)
    batch = [segment([1, 2, 3], [0, 1, 1]), segment([7, 8, 9], [0, 1, 1])]
    targets = torch.tensor([1.0, 1.0, -1.0, -1.0])

    def loss(outputs, micro):
        from whetstone.algorithms import squared_value

        wanted = torch.cat([targets[2 * i : 2 * i + 2] for i in micro.indices])
        return squared_value(outputs.values, wanted.unsqueeze(1))

    before = [p.clone() for p in trained.policy.model.parameters()]
    trained.settings = trained.settings.model_copy(update={"max_grad_norm": 100.0})
    trained.optimizers._peaks = [[0.05], [0.05]]
    losses = [trained.step(batch, loss)["loss/total"] for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    # its gradient stops before the layers of the policy
    assert all(torch.equal(a, b) for a, b in zip(before, trained.policy.model.parameters(), strict=True))
    assert trained.values(batch)[0][:, 0].tolist() == pytest.approx([1.0, 1.0], abs=0.5)


def seats(*rewards):
    """Build two games of one task with two seats each: one trajectory per seat."""
    names = [("buyer", 0), ("seller", 0), ("buyer", 1), ("seller", 1)]
    trained = [
        trajectory(f"{role}{game}", Score(reward), role=role)
        for (role, game), reward in zip(names, rewards, strict=True)
    ]
    return Group(Task("t", "x", tags={"kind": "deal"}), tuple(trained))


def by_trajectory(groups, estimator, **columns):
    """Return the advantage of each trajectory's first token."""
    trained = assign_credit(CreditParts(estimator), index_groups(groups), len(groups), partial(Columns, **columns))
    return [
        trained.advantages[trained.columns["token_trajectory"] == i][0].item()
        for i in range(len(trained.columns.trajectories))
    ]


@pytest.mark.parametrize("roles", [None, "kind"])
def test_players_are_compared_within_their_seat(roles):
    groups = [seats(0.9, 0.3, 0.7, 0.5)]  # buyers .9 .7, sellers .3 .5; all together they would have .3 −.3 .1 −.1
    assert by_trajectory(groups, mars, roles=roles) == pytest.approx([0.1, -0.1, -0.1, 0.1])
    # by tokens: five each, those of a role have mean .8 or .4 and deviation .1
    assert by_trajectory(groups, role_normalized, roles=roles) == pytest.approx([1, -1, -1, 1])
    assert by_trajectory(groups, dr_mas, roles=roles) == pytest.approx(
        [0.707102, -0.707102, -0.707102, 0.707102], abs=1e-5
    )


def test_seat_of_two_games_can_be_two_roles():
    deal = seats(0.9, 0.3, 0.7, 0.5)
    other = replace(
        deal, task=Task("u", "x", tags={"kind": "duel"}), trajectories=seats(9.0, 3.0, 7.0, 5.0).trajectories
    )
    assert by_trajectory([deal, other], mars, roles="kind") == pytest.approx([0.1, -0.1, -0.1, 0.1, 1, -1, -1, 1])
    together = by_trajectory([deal, other], mars)  # buyers: mean of .9 .7 9 7 is 4.4
    assert together[0] == pytest.approx(0.9 - 4.4)


def test_role_requires_a_seat_or_a_tag():
    with pytest.raises(CreditError, match="has no seat"):
        by_trajectory([group(Score(1.0), Score(0.0))], mars)
    with pytest.raises(CreditError, match='task t has no tag "team"'):
        by_trajectory([seats(1.0, 0.0, 1.0, 0.0)], mars, roles="team")
