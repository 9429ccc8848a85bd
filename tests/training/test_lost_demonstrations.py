"""Demonstrations that a sandbox or tool fails are played again; those that stay lost are faults on record."""

import asyncio
import json
from dataclasses import replace

import pytest

from support.small import SMALL
from whetstone.assembly.assembly import assemble
from whetstone.cli.rollout import play_rollout
from whetstone.environments import ToolEnvironment
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.recipe import load_recipe
from whetstone.tools import pocket_calculator
from whetstone.training import train
from whetstone.training.cost_estimate import estimate_cost
from whetstone.training.supervised import DemonstrationBatch, sample_demonstrations
from whetstone.trajectory import EndReason

FAILED = {"ended": EndReason.INFRASTRUCTURE, "error": "the sandbox is gone", "score": None}
CALLS = {"made": 0, "fails": ()}


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [*SMALL, "ablations=null"]))


def breaking_tool(kind):
    """Return the tool of the demo, failing in some of its calls: as a sandbox, a tool, or by ending the interpreter."""

    def calculator(expression: str) -> str:
        """One operation on two numbers.

        Args:
            expression: Such as 12*34.
        """
        CALLS["made"] += 1
        if CALLS["made"] in CALLS["fails"]:
            if kind == "sandbox":
                raise InfrastructureError("the sandbox is gone")
            if kind == "environment":
                raise SystemExit("killed")
            raise OSError("the interpreter was ended by SIGKILL")
        return pocket_calculator(expression)

    calculator.__name__ = "pocket_calculator"
    return calculator


def shown_with(assembly, kind, fails, *, count=3):
    CALLS.update(made=0, fails=fails)
    spoilt = assembly.with_components(environment=lambda: ToolEnvironment(tools=[breaking_tool(kind)]))
    return asyncio.run(sample_demonstrations(spoilt, 0, count))


def tokens_of(demonstrations):
    return [segment.tokens.ids for segment in demonstrations.segments]


@pytest.mark.parametrize("kind", ["sandbox", "tool", "environment"])
@pytest.mark.parametrize("fails", [(1,), (2, 3), (1, 4)])
def test_run_whose_sandbox_crashes_trains_on_the_same_demonstrations(assembly, kind, fails):
    undisturbed = shown_with(assembly, kind, ())
    disturbed = shown_with(assembly, kind, fails)
    assert undisturbed.metrics == {"demonstrations/retried": 0.0, "demonstrations/lost": 0.0}
    assert tokens_of(disturbed) == tokens_of(undisturbed)
    assert len(disturbed.segments) == 3
    assert disturbed.retried >= 1
    assert disturbed.lost == []


def test_lost_demonstration_is_a_fault_and_not_trained(assembly):
    lost = shown_with(assembly, "sandbox", range(1000), count=2)
    assert (lost.segments, len(lost.lost)) == ([], 2)
    assert lost.metrics["demonstrations/lost"] == 2.0
    faults = []
    lost.record_faults(lambda kind, text, *, episode: faults.append((kind, text, episode)))
    assert [(kind, text) for kind, text, _ in faults] == [("infrastructure", "the sandbox is gone")] * 2
    assert DemonstrationBatch().metrics == {"demonstrations/retried": 0.0, "demonstrations/lost": 0.0}


def test_a_warm_up_with_lost_demonstrations_has_them_in_journal_and_metrics(tmp_path, monkeypatch):
    from whetstone.training import supervised, train

    real, spoilt = supervised.sample_demonstrations, iter([True, False, False, False])

    async def some_lost(assembly, first, count):
        demonstrations = await real(assembly, first, count)
        if not next(spoilt, False):
            return demonstrations
        first_one, *rest = demonstrations.episodes
        failed = replace(first_one, **FAILED)
        return DemonstrationBatch((failed, *rest), demonstrations.retried)

    monkeypatch.setattr(supervised, "sample_demonstrations", some_lost)
    run = tmp_path / "run"
    train(load_recipe("demo", [*SMALL, "reinforcement.steps=1", "ablations=null"]), run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lost_per_step = [row["demonstrations/lost"] for row in rows if row["stage"] == "supervised"]
    assert lost_per_step == [1.0, 0.0]
    events = [json.loads(line) for line in (run / "store" / "journal.jsonl").read_text().splitlines()]
    (fault,) = [event for event in events if event["event"] == "fault"]
    assert (fault["kind"], fault["said"]) == ("infrastructure", "the sandbox is gone")


def test_demonstrations_have_their_own_maximum_number_of_turns(assembly):
    """An expert that repeats each of three calls takes seven turns; the agent has five."""
    changes = {"tasks.recheck": 1.0, "tasks.kinds": {"sum_of_products": 1.0}, "environment.max_turns": 5}
    allowed = {None: 5, 7: 7, 6: 6}
    for limit, turns in allowed.items():
        resolved = load_recipe("demo", [*SMALL, "ablations=null"]).with_changes(
            {**changes, "supervised.max_turns": limit}
        )
        (episode,) = asyncio.run(sample_demonstrations(assemble(resolved, assembly.policy), 0, 1)).episodes
        assert len(episode.turns) == turns
        assert episode.solved == (limit == 7)
    resolved = resolved.with_changes({"supervised.max_turns": 7, "tasks.recheck": 0.0, "supervised.tasks.recheck": 1.0})
    assembled = assemble(resolved, assembly.policy)
    (demonstration,) = asyncio.run(play_rollout(assembled, 1, expert=True))
    assert (len(demonstration.turns), demonstration.solved) == (7, True)
    resolved = resolved.with_changes({"ablations": None})
    supervised, _, evaluations = estimate_cost(resolved, judges=0).stages
    assert supervised.tool_calls == supervised.episodes * 7
    assert evaluations.tool_calls == evaluations.episodes * 5


def test_demonstrations_that_fail_are_trained_only_if_the_recipe_says_so(tmp_path):
    """Every answer of this expert lacks its last digit."""
    errs = [*SMALL, "ablations=null", "reinforcement.steps=1", "supervised.tasks.error_rate=1"]
    source = assemble(load_recipe("demo", errs))
    batch = asyncio.run(sample_demonstrations(source, 0, 4))
    assert batch.trained_episodes == [] != replace(batch, solved_only=False).trained_episodes
    train(load_recipe("demo", [*errs, "supervised.solved_only=false"]), tmp_path / "all")
    rows = [json.loads(line) for line in (tmp_path / "all" / "metrics.jsonl").read_text().splitlines()]
    skipped = [row["demonstrations/skipped_fraction"] for row in rows if row["stage"] == "supervised"]
    assert skipped == [0.0, 0.0]
    with pytest.raises(RecipeError, match="demonstrations come from"):
        load_recipe("demo", ["supervised.data=x.jsonl", "supervised.solved_only=false"])
