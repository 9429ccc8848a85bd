"""One training step with all components of a method: trained groups, component state, and the same after a kill."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from support.slow import mostly_slow
from support.small import StopAfter, Stopped
from whetstone.analysis import Explainer, RunReplay
from whetstone.errors import RecipeError, SamplingExhausted
from whetstone.reporting import Progress, read_trajectories
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
BASE = ["reward=support.small:odd", "reinforcement.steps=6", "rollout.group_size=4", "supervised.steps=1"]
KINDS = "kinds: [product, product_then_sum, sum_then_product, product_of_sums, sum_product_sum]"
METHODS = {
    "bandit": [f"curriculum={{name: ucb, {KINDS}}}"],
    "replay": [
        "curriculum={name: pool, size: 3}",
        "rollout.replay=[{name: success_replay, below: 0.6, spread: 1}]",
    ],
    "second pass": ["rollout.replay=[{name: self_imitation, size: 2, trigger: 0.5, ascent_steps: 2}]"],
    "refilled": ["rollout.dynamic_sampling={name: nonzero_variance, signal: reward, max_tried: 20}"],
    "selected": [
        "rollout.trajectory_filters=[{name: balanced_outcomes, keep: 3}, {name: rare_successes, quantile: 0.3}]"
    ],
    "instructions": [
        "rollout.context_transforms=[{name: instructions, texts: [a, b, c]}]",
        "policy.tiny.context_length=384",
    ],
    "chosen examples": [
        "rollout.context_transforms=[{name: example_selection, examples: [a, b]}]",
        "policy.tiny.context_length=384",
    ],
    "made tasks": [
        "curriculum={name: generated_tasks, generator: 'support.small:harder', gates: ['support.small:sensible']}"
    ],
    "own starts": [
        "curriculum={name: pool, size: 3}",
        "rollout.start_states={name: replay_prefix, anneal_updates: 50}",
    ],
    "allocated": ["rollout.budget_allocation={name: by_success, by: kind, min_turns: 2}"],
    "branching": ["rollout.strategy={name: entropy_branching, roots: 2}"],
}
BARE = ["tasks={source: 'support.small:Bare'}", "supervised=null"]
AHEAD = ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"]


def base_overrides(changes):
    """Return all overrides without those of a warm-up if there is none."""
    return [*(each for each in BASE if "supervised=null" not in changes or "supervised" not in each), *changes]


def metrics(run_dir):
    rows = map(json.loads, (Path(run_dir) / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == "reinforcement"]


def untimed(rows):
    timed = ("time/", "throughput/", "memory/", "group/buffered", "group/expired", "episode/retried")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in rows]


def same(first, second):
    one, other = (final_policy(run_dir).model.state_dict() for run_dir in (first, second))
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "ahead", [pytest.param([], marks=pytest.mark.slow, id="synchronous"), pytest.param(AHEAD, id="deterministic")]
)
@pytest.mark.parametrize("name", mostly_slow(METHODS, quick=["replay"]))
def test_stopped_run_restores_the_state_of_components(tmp_path, small_demo, name, ahead):
    resolved = small_demo(*BASE, *METHODS[name], *ahead, "reinforcement.checkpoint_interval_steps=2")
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "stopped", progress=StopAfter(3, of="reinforcement"))
    train(resolved, tmp_path / "stopped", resume=True, progress=QUIET)
    assert untimed(metrics(tmp_path / "whole")) == untimed(metrics(tmp_path / "stopped"))
    assert same(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("name", mostly_slow(["bandit", "refilled", "branching", "replay"], quick=["replay"]))
def test_deterministic_run_does_not_depend_on_the_concurrency(tmp_path, small_demo, name):
    for k, extra in enumerate((["rollout.max_in_flight=2"], ["rollout.max_in_flight=64"])):
        train(small_demo(*BASE, *METHODS[name], *AHEAD, *extra), tmp_path / str(k), progress=QUIET)
    assert same(tmp_path / "0", tmp_path / "1")


@pytest.mark.parametrize("name", mostly_slow(METHODS, quick=["branching", "replay"]))
def test_updates_are_repeated_exactly(tmp_path, small_demo, name):
    train(
        small_demo(*BASE, *METHODS[name], "reinforcement.checkpoint_interval_steps=2"), tmp_path / "run", progress=QUIET
    )

    async def replayed():
        return [each async for each in RunReplay(tmp_path / "run").recompute_all(updates=True)]

    results = {each.what: each for each in asyncio.run(replayed())}
    (updates,) = (each for what, each in results.items() if what.startswith("updates"))
    assert updates.count > 20
    assert (updates.changed, updates.examples) == (0, ())


def test_bandit_observes_and_chooses(tmp_path, small_demo):
    train(small_demo(*BASE, *METHODS["bandit"]), tmp_path / "run", progress=QUIET)
    rows = metrics(tmp_path / "run")
    weights = [[value for key, value in row.items() if key.startswith("curriculum/weight_")] for row in rows]
    assert all(sum(row) == pytest.approx(1) for row in weights)
    assert weights[0] != weights[-1]


def test_replayed_trajectories_are_trained_and_reported(tmp_path, small_demo):
    train(small_demo(*BASE, *METHODS["replay"]), tmp_path / "run", progress=QUIET)
    rows = metrics(tmp_path / "run")
    assert rows[0]["replay/injected"] == 0
    assert sum(row["replay/injected"] for row in rows) > 0
    assert rows[-1]["replay/success_replay/stored"] > 0


def test_why_explains_a_replayed_trajectory_and_the_replaced_one(tmp_path, small_demo):
    train(
        small_demo(*BASE, *METHODS["replay"], "reinforcement.checkpoint_interval_steps=1"),
        tmp_path / "run",
        progress=QUIET,
    )
    update = next(k for k, row in enumerate(metrics(tmp_path / "run")) if row["replay/injected"] == 2)
    explainer = Explainer(tmp_path / "run")
    for id, *_ in explainer.list_trajectories(update + 1):
        if id.endswith("#0"):
            replaced = asyncio.run(explainer.explain_trajectory(id))
            break
    assert any("replaced by a stored one" in link.said for link in replaced.chain)


def test_second_pass_is_a_separate_update(tmp_path, small_demo):
    train(small_demo(*BASE, *METHODS["second pass"]), tmp_path / "run", progress=QUIET)
    rows = metrics(tmp_path / "run")
    passes = [row for row in rows if "second_pass/update/tokens" in row]
    assert passes
    assert rows[-1]["replay/self_imitation/passes"] >= len(passes) - 1
    train(
        small_demo(*BASE, METHODS["second pass"][0].replace("size", "weight: 0, size")), tmp_path / "no", progress=QUIET
    )
    train(small_demo(*BASE), tmp_path / "plain", progress=QUIET)
    assert same(tmp_path / "no", tmp_path / "plain")
    assert not same(tmp_path / "run", tmp_path / "plain")


def test_groups_that_do_not_count_are_sampled_again_and_recorded(tmp_path, small_demo):
    train(small_demo(*BASE, *METHODS["refilled"]), tmp_path / "run", progress=QUIET)
    events = [json.loads(line) for line in (tmp_path / "run" / "store" / "journal.jsonl").read_text().splitlines()]
    consumed = [number for event in events if event["event"] == "consumed" for number in event["groups"]]
    over = [number for event in events if event["event"] == "consumed" for number in event["passed_over"]]
    assert len(consumed) == len(set(consumed)) == 12
    assert len(over) == len(set(over)) > 0
    assert not set(consumed) & set(over)
    assert sum(row["group/filtered"] for row in metrics(tmp_path / "run")) == len(over)
    by_group = {}
    for path in (tmp_path / "run" / "trajectories").glob("step-*.jsonl"):
        for trajectory in read_trajectories(path):
            by_group.setdefault(int(trajectory.id.split("/")[0].removeprefix("group-")), set()).add(
                trajectory.score.value
            )
    assert all(len(by_group[number]) > 1 for number in consumed)
    assert all(len(by_group[number]) == 1 for number in over)


def test_unreachable_quota_stops_with_a_reason(tmp_path, small_demo):
    never = ["reward=support.small:generous", "rollout.dynamic_sampling={name: nonzero_variance, max_tried: 3}"]
    with pytest.raises(SamplingExhausted, match=r"5 groups rejected for an update of \d+ \(mean reward 1\)"):
        train(small_demo(*base_overrides(["supervised=null", *never])), tmp_path / "run", progress=QUIET)


def test_update_can_use_fewer_groups(tmp_path, small_demo):
    never = [
        "reward=support.small:generous",
        "rollout.dynamic_sampling={name: nonzero_variance, max_tried: 3, when_exhausted: continue}",
    ]
    train(small_demo(*base_overrides(["supervised=null", *never])), tmp_path / "run", progress=QUIET)
    rows = metrics(tmp_path / "run")
    assert [row["group/filtered"] for row in rows] == [6.0] * 6
    assert all(row["update/skipped_fraction"] == 1 for row in rows)


@pytest.mark.slow
def test_costs_of_every_strategy_are_in_the_metrics(tmp_path, small_demo):
    for name in (
        "independent",
        "random_branching",
        "entropy_branching",
        "balanced_branching",
        "frontier_tree",
        "doubt_injection",
    ):
        train(small_demo(*BASE, f"rollout.strategy={name}", "reinforcement.steps=1"), tmp_path / name, progress=QUIET)
        (row,) = metrics(tmp_path / name)
        sampled = row["episode/action_tokens"] * 4
        assert {key for key in row if key.startswith("cost_per_group/")} == {
            "cost_per_group/sampled_tokens", "cost_per_group/reused_tokens",
            "cost_per_group/tool_calls", "cost_per_group/environment_steps",
        }  # fmt: skip
        assert row["cost_per_group/sampled_tokens"] > 0
        if name == "independent":
            assert row["cost_per_group/sampled_tokens"] == pytest.approx(sampled)
            assert row["cost_per_group/reused_tokens"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["environment={name: 'support.small:Unrepeatable'}", "rollout.strategy=random_branching"],
            r'environment "support.small:Unrepeatable" supports neither snapshot\(\) nor deterministic replay',
        ),
        (
            [
                "environment={name: 'support.small:Unrepeatable'}",
                "rollout.start_states={name: expert_prefix, anneal_updates: 5}",
            ],
            "so episodes cannot fork",
        ),
        (
            ["rollout.strategy=random_branching", "rollout.context_rewrites=[{name: summary, tokens: 9}]"],
            "cannot be forked",
        ),
        (["rollout.context_rewrites=[rollback]", "environment={name: 'support.small:Unrepeatable'}"], "undoes calls"),
        (["rollout.early_stopping=[stragglers]", *AHEAD], "which reinforcement.deterministic forbids"),
        (
            ["rollout.dynamic_sampling={name: nonzero_variance, when_exhausted: continue}", *AHEAD],
            "which reinforcement.deterministic forbids",
        ),
        (["rollout.replay=[{name: success_replay, off_policy: truncated}]"], "importance_correction: truncated"),
        (
            ["rollout.context_transforms=[{name: demonstrations, examples: [a], counts: [[5, 1]]}]"],
            "the first one must start at 0",
        ),
        (
            ["rollout.budget_allocation={name: horizon_stages, turns: [99], updates_per_stage: 2}"],
            r"environment\.max_turns \(6\), got 99",
        ),
        (
            ["rollout.context_transforms=[{name: budget_lin, budgets: [1]}]"],
            'no context transform named "budget_lin"; did you mean "budget_line"',
        ),
        (
            ["curriculum={name: ucb, kinds: [prodct]}"],
            'has kind "prodct"; sampled values are product, ',
        ),
        (["curriculum={name: stages, stages: [[product], [odd]], max_updates_per_stage: 1}"], 'has kind "odd"'),
        (
            ["rollout.trajectory_filters=[{name: rare_successes, by: colour}]"],
            r'rollout\.trajectory_filters\.rare_successes: task .* has no tag "colour"',
        ),
        (["tasks={source: 'support.small:Bare'}", "supervised=null", "rollout.strategy=guided_retry"], "has no hint"),
        (
            ["tasks={source: 'support.small:Bare'}", "supervised=null", "rollout.context_transforms=[rubric]"],
            "has no private `rubric`",
        ),
        (["credit_filters=[void_turns, void_turns]"], '"void_turns" is listed twice'),
        (["rollout.early_stopping=[void_turn, void_turn]"], '"void_turn" is listed twice'),
        (["rollout.on_context_overflow=refuse"], "has no effect: there are no context transforms"),
        (["rollout.environment_wrapper={name: try_again, attempt: 3}"], "no such option"),
        (["rollout.strategy={name: entropy_branching, roots: 9}"], "0 to group_size"),
    ],
)
def test_invalid_settings_are_refused_before_sampling(tmp_path, small_demo, changes, message):
    with pytest.raises(RecipeError, match=message):
        train(small_demo(*base_overrides(changes)), tmp_path / "run", progress=QUIET)


def test_removal_by_a_filter_is_not_stored(tmp_path, small_demo):
    train(
        small_demo(*BASE, "rollout.trajectory_filters=[{name: balanced_outcomes, keep: 2}]"),
        tmp_path / "run",
        progress=QUIET,
    )
    assert {row["trajectory_filters/removed_fraction"] for row in metrics(tmp_path / "run")} == {0.5}
    for path in (tmp_path / "run" / "trajectories").glob("step-*.jsonl"):
        assert {t.removal for t in read_trajectories(path)} == {None}  # sampled trajectories are stored unchanged
