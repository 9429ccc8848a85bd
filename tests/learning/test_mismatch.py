"""A sampler that disagrees with the learner is said, and above a bound the run stops before it learns from noise."""

import json
import math
from dataclasses import replace

import pytest

from tests_progress import Lines
from tests_small import SMALL
from whetstone.assembly.assembly import Assembly
from whetstone.errors import MismatchError, RunDirectoryError
from whetstone.inference import LocalEngine
from whetstone.recipe import load_recipe
from whetstone.training import final_policy, train


class Wrong(LocalEngine):
    """Says that tokens were less likely than they were."""

    by = 0.0

    async def generate(self, request):
        found = await super().generate(request)
        return replace(found, logprobs=[logprob - self.by for logprob in found.logprobs])


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains the small demo with a sampler that is wrong by so much."""

    def made(by, *changes):
        def engine(assembly, *, heard=None):
            wrong = Wrong(assembly.policy.model, context_length=assembly.policy.context_length, rows=8)
            wrong.by = by
            return wrong

        monkeypatch.setattr(Assembly, "engine", engine)
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
            made.rows = [json.loads(row) for row in rows]
        return progress.lines

    return made


def test_a_sampler_that_agrees_is_not_mentioned(trained):
    assert not any("disagree" in line for line in trained(0.0))
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in trained.rows)


def test_a_mismatch_above_the_limit_of_the_precision_is_one_alarm(trained):
    # k3 of a gap of .2: e^.2 - 1 - .2 = .0214
    said = [line for line in trained(0.2) if "disagree" in line]
    assert len(said) == 1
    assert "ALARM sampler mismatch: sampler and learner disagree by 0.021 nats per token" in said[0]
    assert len(trained.rows) == 2


def test_above_the_bound_the_run_stops_and_learns_nothing_from_it(trained, tmp_path):
    # e^1 - 2 = .718
    with pytest.raises(MismatchError, match=r"step 1 of reinforcement: sampler and learner disagree by 0\.718 nats"):
        trained(1.0)
    assert trained.rows == []
    with pytest.raises(RunDirectoryError, match="no checkpoint that can be read"):
        final_policy(tmp_path / "run")


def test_a_recipe_may_set_another_bound(trained):
    assert any("disagree by 0.72" in line for line in trained(1.0, "reinforcement.max_mismatch_kl=1.0"))
    assert [math.isfinite(row["loss/total"]) for row in trained.rows] == [True, True]


def test_without_a_bound_the_run_does_not_stop(trained):
    lines = trained(1.0, "reinforcement.max_mismatch_kl=.inf")
    assert sum("ALARM sampler mismatch" in line for line in lines) == 1
    assert len(trained.rows) == 2
