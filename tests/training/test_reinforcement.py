"""The training loop: synchronous, one step off or asynchronous, stopped anywhere, every group is trained exactly
once."""

import json

import pytest
import torch

from support.slow import mostly_slow
from support.small import TEACHING, StopAfter, Stopped
from whetstone.errors import PartialUpdateError, RecipeError, TooManyFailuresError
from whetstone.learning.forward_passes import LocalPasses
from whetstone.reporting import Progress, read_trajectories
from whetstone.rollout import Independent
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
LONGER = [TEACHING, "reinforcement.steps=6", "rollout.group_size=4", "supervised.steps=1"]
AHEAD = {
    "one step off": ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1"],
    "asynchronous": ["reinforcement.admit_ahead=2", "reinforcement.max_staleness=4"],
    "in flight": ["reinforcement.admit_ahead=2", "reinforcement.max_staleness=3", "reinforcement.in_flight=continue"],
    "drained": ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=2", "reinforcement.in_flight=drain"],
    "by recipe": ["reinforcement.admit_ahead=1", "reinforcement.max_staleness=1", "reinforcement.deterministic=true"],
    "by recipe, far": [
        "reinforcement.admit_ahead=3",
        "reinforcement.max_staleness=3",
        "reinforcement.deterministic=true",
    ],
}


def journal(run_dir):
    return [json.loads(line) for line in (run_dir / "store" / "journal.jsonl").read_text().splitlines()]


def metrics(run_dir):
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == "reinforcement"]


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def equal_weights(weights, expected):
    return all(torch.equal(value, expected[name]) for name, value in weights.items())


def check_accounting(run_dir, steps, per_update=2):
    """Check that every update has its groups, no group is in two updates, and every admitted group is accounted for."""
    events = journal(run_dir)
    consumed = [number for event in events if event["event"] == "consumed" for number in event["groups"]]
    assert len(consumed) == len(set(consumed)) == steps * per_update
    assert {event["update"] for event in events if event["event"] == "updated"} == set(range(steps))
    admitted = [event["group"] for event in events if event["event"] == "admitted"]
    assert len(admitted) == len(set(admitted))
    assert set(consumed) <= set(admitted)
    stored = [event["group"] for event in events if event["event"] == "kept"]
    assert len(stored) == len(set(stored))
    on_disk = [t.id for path in (run_dir / "trajectories").glob("step-*.jsonl") for t in read_trajectories(path)]
    assert len(on_disk) == len(set(on_disk)) == 4 * len(stored)


@pytest.mark.parametrize("name", mostly_slow(AHEAD, quick=["one step off", "asynchronous", "by recipe"]))
def test_running_ahead_every_group_is_used_once_within_the_staleness_bound(tmp_path, small_demo, name):
    resolved = small_demo(*LONGER, *AHEAD[name], "reward=support.small:slowly")
    train(resolved, tmp_path / "run", progress=QUIET)
    check_accounting(tmp_path / "run", 6)
    rows = metrics(tmp_path / "run")
    assert all(row["policy/staleness_max"] <= resolved.recipe.reinforcement.max_staleness for row in rows)
    assert max(row["policy/staleness_max"] for row in rows) >= 1
    assert any(row["update/skipped_fraction"] == 0 for row in rows)


def test_synchronous_run_has_no_staleness(tmp_path, small_demo):
    train(small_demo(*LONGER), tmp_path / "run", progress=QUIET)
    check_accounting(tmp_path / "run", 6)
    assert {row["policy/staleness_max"] for row in metrics(tmp_path / "run")} == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("stopped", mostly_slow([0, 1, 3, 5], quick=[3]))
@pytest.mark.parametrize("name", mostly_slow(["by recipe", "by recipe, far"], quick=["by recipe, far"]))
def test_stopped_deterministic_run_ends_with_the_same_weights(tmp_path, small_demo, name, stopped):
    resolved = small_demo(*LONGER, *AHEAD[name], "reinforcement.checkpoint_interval_steps=2")
    train(resolved, tmp_path / "whole", progress=QUIET)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "stopped", progress=StopAfter(stopped, of="reinforcement"))
    train(resolved, tmp_path / "stopped", resume=True, progress=QUIET)
    check_accounting(tmp_path / "stopped", 6)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))


@pytest.mark.parametrize("stopped", mostly_slow([0, 1, 3, 5], quick=[3]))
@pytest.mark.parametrize("name", mostly_slow(["asynchronous", "in flight"], quick=["in flight"]))
def test_recorded_updates_of_an_asynchronous_run_are_repeated_exactly(tmp_path, small_demo, name, stopped):
    resolved = small_demo(
        *LONGER, *AHEAD[name], "reinforcement.checkpoint_interval_steps=10", "reward=support.small:slowly"
    )
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "run", progress=StopAfter(stopped, of="reinforcement"))
    before = metrics(tmp_path / "run")
    assert len(before) == stopped + 1
    train(resolved, tmp_path / "run", resume=True, progress=QUIET)
    check_accounting(tmp_path / "run", 6)
    timed = ("time/", "throughput/", "memory/", "group/buffered", "group/expired", "episode/retried")
    for row, repeated in zip(before, metrics(tmp_path / "run"), strict=False):
        assert {k: v for k, v in row.items() if not k.startswith(timed)} == {
            k: v for k, v in repeated.items() if not k.startswith(timed)
        }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reinforcement.admit_ahead=2", "reinforcement.max_staleness: must be admit_ahead (2) or more, got 0"),
        (
            "reinforcement.deterministic=true",
            "reinforcement.deterministic: has no effect: reinforcement.admit_ahead is 0",
        ),
        ("reinforcement.max_staleness=3", "reinforcement.max_staleness: has no effect: reinforcement.admit_ahead is 0"),
    ],
)
def test_invalid_bounds_are_refused(small_demo, override, message):
    with pytest.raises(RecipeError) as refused:
        small_demo(override)
    assert message in str(refused.value)


@pytest.mark.slow
def test_step_past_its_deadline_uses_the_finished_groups(tmp_path, small_demo):
    resolved = small_demo(
        *LONGER, "reinforcement.step_timeout_seconds=0.2", "reward=support.small:now_and_then_for_ever"
    )
    train(resolved, tmp_path / "run", progress=QUIET)
    events = journal(tmp_path / "run")
    sizes = [len(event["groups"]) for event in events if event["event"] == "consumed"]
    assert len(sizes) == 6
    assert 1 in sizes
    assert {event["reason"] for event in events if event["event"] == "lost"} == {"expired"}
    consumed = [number for event in events if event["event"] == "consumed" for number in event["groups"]]
    assert len(consumed) == len(set(consumed))


@pytest.mark.parametrize("name", ["truncated", "masked"])
def test_tokens_of_older_policies_are_corrected_and_reported(tmp_path, small_demo, name):
    far = ["reinforcement.admit_ahead=2", "reinforcement.max_staleness=2", "reinforcement.learning_rate=0.05"]
    train(
        small_demo(*LONGER, *far, f"importance_correction={{name: {name}, high: 1.05}}"),
        tmp_path / "run",
        progress=QUIET,
    )
    rows = metrics(tmp_path / "run")
    assert rows[0]["importance/weight_mean"] == pytest.approx(1, abs=1e-3)  # no update yet
    stale = [row for row in rows if row["policy/staleness_max"] >= 1]
    assert any(row["importance/truncated_fraction"] > 0 for row in stale)
    assert all(
        0 < row["importance/effective_sample_fraction"] <= 1 + 1e-6
        for row in rows
        if not row["update/skipped_fraction"]
    )
    assert any(row["policy/staleness_kl"] > 1e-6 for row in stale)


def test_batch_on_which_the_learner_fails_is_set_aside_and_replaced(tmp_path, small_demo, monkeypatch):
    gradient, failed = LocalPasses.gradient, []

    def torn(self, request):
        if any(segment.trajectory_id.startswith(("group-2/", "group-3/")) for segment in request.segments):
            failed.append(1)
            raise ValueError("a number that is none")
        return gradient(self, request)

    monkeypatch.setattr(LocalPasses, "gradient", torn)
    train(small_demo(*LONGER), tmp_path / "run", progress=QUIET)
    events = journal(tmp_path / "run")
    assert failed == [1]
    assert [event["group"] for event in events if event["event"] == "lost"] == [2, 3]
    (fault,) = [event for event in events if event["event"] == "fault"]
    assert fault["kind"] == "learner"
    assert fault["said"].startswith("update 2: test_reinforcement.py:")
    assert fault["said"].endswith(" (torn): ValueError: a number that is none")
    consumed = {event["update"]: event["groups"] for event in events if event["event"] == "consumed"}
    assert consumed[1] == [4, 5]
    assert sorted(number for numbers in consumed.values() for number in numbers) == [0, 1, *range(4, 14)]


def test_update_that_repeatedly_kills_the_process_gets_other_groups(tmp_path, small_demo):
    resolved = small_demo(*LONGER)
    with pytest.raises(Stopped):
        train(resolved, tmp_path / "run", progress=StopAfter(2, of="reinforcement"))
    with open(tmp_path / "run" / "store" / "journal.jsonl", "ab") as file:
        file.write(b'{"event":"consumed","update":3,"groups":[6,7]}\n' + 3 * b'{"event":"begun","update":3}\n')
        for number in (6, 7):
            file.write(b'{"event":"admitted","group":%d,"version":3}\n' % number)
    train(resolved, tmp_path / "run", resume=True, progress=QUIET)
    events = journal(tmp_path / "run")
    assert [event["group"] for event in events if event["event"] == "lost"] == [6, 7]
    assert next(e["groups"] for e in events if e["event"] == "consumed" and e.get("groups") == [8, 9])
    assert max(e["step"] for e in metrics(tmp_path / "run")) == 6


@pytest.mark.parametrize("failing_step", mostly_slow([1, 2], quick=[2]))
def test_update_that_fails_between_optimizer_steps_ends_the_run_without_saving_half_an_update(
    tmp_path, small_demo, monkeypatch, failing_step
):
    resolved = small_demo(*LONGER, "reinforcement.epochs=2", "reinforcement.checkpoint_interval_steps=2")
    train(resolved, tmp_path / "whole", progress=QUIET)
    apply, calls = LocalPasses.apply, []

    def failing(self):
        if self.policy.critic is None and self.settings.steps == 6:
            calls.append(None)
            if len(calls) == 4 + failing_step:  # update 3
                raise RuntimeError("device lost")
        return apply(self)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPasses, "apply", failing)
        with pytest.raises(
            PartialUpdateError,
            match=rf"step 3 of reinforcement: .*device lost; .* in or after optimizer step {failing_step}",
        ):
            train(resolved, tmp_path / "run", progress=QUIET)
    assert not [event for event in journal(tmp_path / "run") if event["event"] == "fault"]
    train(resolved, tmp_path / "run", resume=True, progress=QUIET)
    check_accounting(tmp_path / "run", 6)
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_too_many_failures_end_the_run_with_its_state_saved(tmp_path, small_demo):
    resolved = small_demo(*LONGER, "reward=support.small:torn", "reinforcement.max_failures=10", "supervised=null")
    with pytest.raises(
        TooManyFailuresError, match=r"11 of the last \d+ episodes failed.*judge is down.*The state is in"
    ):
        train(resolved, tmp_path / "run", progress=QUIET)
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_failing_strategy_loses_only_its_group(tmp_path, small_demo, monkeypatch):
    run_strategy = Independent.__call__

    async def torn(self, task, roller):
        if roller.plan.name == "group-2/":
            raise KeyError("branch")
        return await run_strategy(self, task, roller)

    monkeypatch.setattr(Independent, "__call__", torn)
    train(small_demo(*LONGER), tmp_path / "run", progress=QUIET)
    events = journal(tmp_path / "run")
    assert [(e["group"], e["reason"]) for e in events if e["event"] == "lost"] == [(2, "failed")]
    check_accounting(tmp_path / "run", 6)
