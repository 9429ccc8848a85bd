"""Mismatch of sampler and learner is reported, and above a bound the run stops before the update."""

import json
import math
from dataclasses import replace

import pytest

from support.quiet_progress import Lines
from support.small import SMALL
from whetstone.assembly.assembly import RunComponents
from whetstone.errors import MismatchError, RunDirectoryError
from whetstone.inference import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.training import final_policy, train


class WrongLogprobs(LocalEngine):
    """An engine that returns too low log-probs."""

    by = 0.0

    async def generate(self, request):
        generation = await super().generate(request)
        return replace(generation, logprobs=[logprob - self.by for logprob in generation.logprobs])


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train the small demo with a sampler whose log-probs are wrong by this number."""

    def run_demo(by, *changes):
        def engine(assembly, *, heard=None):
            wrong = WrongLogprobs(assembly.policy.model, context_length=assembly.policy.context_length, rows=8)
            wrong.by = by
            return wrong

        monkeypatch.setattr(RunComponents, "build_engine", engine)
        progress = Lines()
        changes = [
            *(c for c in SMALL if not c.startswith("supervised.")),
            "supervised=null",
            "ablations=null",
            *changes,
        ]
        try:
            train(load_recipe("demo", changes), tmp_path / "run", progress=progress)
        finally:
            rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
            run_demo.rows = [json.loads(row) for row in rows]
        return progress.lines

    return run_demo


def test_agreement_is_not_reported(trained):
    assert not any("disagree" in line for line in trained(0.0))
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in trained.rows)


def test_a_mismatch_above_the_limit_of_the_precision_is_one_alarm(trained):
    # k3 of a gap of .2: e^.2 - 1 - .2 = .0214
    alarms = [line for line in trained(0.2) if "disagree" in line]
    assert len(alarms) == 1
    assert "ALARM sampler mismatch: sampler and learner disagree by 0.021 nats per token" in alarms[0]
    assert len(trained.rows) == 2


def test_run_above_the_bound_stops_before_the_update(trained, tmp_path):
    # e^1 - 2 = .718
    with pytest.raises(MismatchError, match=r"step 1 of reinforcement: sampler and learner disagree by 0\.718 nats"):
        trained(1.0)
    assert trained.rows == []
    with pytest.raises(RunDirectoryError, match="no checkpoint that can be read"):
        final_policy(tmp_path / "run")


def test_bound_can_be_set_by_the_recipe(trained):
    assert any("disagree by 0.72" in line for line in trained(1.0, "reinforcement.max_mismatch_kl=1.0"))
    assert [math.isfinite(row["loss/total"]) for row in trained.rows] == [True, True]


def test_run_without_a_bound_does_not_stop(trained):
    lines = trained(1.0, "reinforcement.max_mismatch_kl=.inf")
    assert sum("ALARM sampler mismatch" in line for line in lines) == 1
    assert len(trained.rows) == 2
