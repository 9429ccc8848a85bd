"""Custom engines and learners are named in a recipe and used for training."""

import json

import pytest

from support.averaging_learner import Averaging
from whetstone.errors import RecipeError
from whetstone.inference import LocalEngine
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateResult
from whetstone.reporting import Progress
from whetstone.training import train

QUIET = Progress(quiet=True)


class CountingEngine(LocalEngine):
    """An engine with an option that counts sampled tokens."""

    drawn = 0

    def __init__(self, *, policy, version, at_once: int = 4):
        super().__init__(
            policy.model,
            context_length=policy.context_length,
            rows=at_once,
            version=version,
            detokenize=policy.tokenizer.decode,
        )

    async def generate(self, request):
        generation = await super().generate(request)
        CountingEngine.drawn += len(generation.tokens)
        return generation


class ReportingLearner(LocalLearner):
    """A learner with an option that adds a metric to every update."""

    def __init__(self, *, policy, settings, spec=None, word: str = "said"):
        super().__init__(ModelTrainer(policy, settings), spec)
        self.word = word

    def update(self, batch):
        result = super().update(batch)
        return UpdateResult({**result.metrics, f"mine/{self.word}": float(len(batch.groups))}, result.advantages)


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_custom_engine_and_learner_are_named_with_their_options(tmp_path, small_demo):
    CountingEngine.drawn = 0
    overrides = [
        f"engine={{name: '{__name__}:CountingEngine', at_once: 3}}",
        f"learner={{name: '{__name__}:ReportingLearner', word: hi}}",
    ]
    train(small_demo(*overrides), tmp_path / "mine", progress=QUIET)
    (*_, last) = rows(tmp_path / "mine")
    assert last["mine/hi"] == 2
    assert CountingEngine.drawn > sum(row.get("cost_per_step/sampled_tokens", 0) for row in rows(tmp_path / "mine")) > 0


def test_local_engine_and_learner_are_the_defaults(tmp_path, small_demo):
    train(small_demo(), tmp_path / "as it is", progress=QUIET)
    named = small_demo(f"engine={__name__}:CountingEngine", f"learner={__name__}:ReportingLearner")
    train(named, tmp_path / "mine", progress=QUIET)
    weights = [next((tmp_path / name).glob("checkpoints/step*4/model.safetensors")) for name in ("as it is", "mine")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_learner_that_averages_over_two_processes_is_one_file(tmp_path, small_demo):
    adamw = ["supervised.optimizer=adamw", "reinforcement.optimizer=adamw"]
    parts = [
        "learner=support.averaging_learner:Averaging",
        "reward=support.small:parity",
        "reinforcement.tasks_per_step=4",
    ]
    named = small_demo(*parts, *adamw)
    run = train(named, tmp_path / "two", progress=QUIET)
    assert [row["update/skipped_fraction"] for row in rows(tmp_path / "two")] == [0.0] * 4
    assert Averaging.processes
    assert run.after is not None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine=locl", 'no engine named "locl"; did you mean "local"?'),
        ("engine={name: local, row: 3}", "engine.row: no such option"),
        (f"engine={__name__}:rows", "is a positional argument"),
        ("learner=locl", 'no learner named "locl"'),
    ],
)
def test_unknown_engines_and_learners_are_refused(tmp_path, small_demo, override, message):
    with pytest.raises(RecipeError, match=message.replace("?", r"\?")):
        train(small_demo(override), tmp_path / "run", progress=QUIET)
