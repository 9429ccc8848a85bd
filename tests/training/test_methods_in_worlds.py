"""Every method in a text game and with a search: it trains, or one line reports the missing part.

A method that both refuse trains on the calculator. `test_devices.py` trains every method with its own recipe.
"""

import pytest

from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.errors import WhetstoneError
from whetstone.policies import save_policy
from whetstone.recipe import built_in_methods, load_recipe
from whetstone.reporting import Journal, Progress
from whetstone.reporting.metric_names import lookup_metric
from whetstone.training import train

WORLDS = ("frozen-lake", "multi-hop-search")
_NEEDS = {
    "craft-gui": "curriculum.stages", "dump": "curriculum.kinds", "in-context": "rollout.context_transforms",
    "tool-star": "reward.tools",
}  # fmt: skip
REFUSED = {
    **{(name, world): f"{name} requires {key}: " for name, key in _NEEDS.items() for world in WORLDS},
    **{
        (name, world): "reads the private `calls` of tasks; task"
        for name in ("gated-rewards", "matchtir", "semi-online")
        for world in WORLDS
    },
    **{("limr", world): "a list of tasks, or path: a JSON file with such a list" for world in WORLDS},
    **{("guide", world): "has no hint (private `hint`); name one: " for world in WORLDS},
    **{("memory-folding", world): "memory-folding adds fold_memory to environment.tools" for world in WORLDS},
    **{("rubric-scaffolding", world): "has no private `rubric`, which the context transform shows" for world in WORLDS},
    **{(name, "frozen-lake"): "reads the private `answer` of tasks; task" for name in ("score", "try-again")},
    **{
        (name, world): "none of its episodes solved its task, so there is nothing to imitate"
        for name in ("expert-iteration", "star")
        for world in ("demo", *WORLDS)
    },
    ("star", "frozen-lake"): "has no answer (private `answer`) to hint at",
    ("cleaner", "frozen-lake"): "rollback undoes calls, which a stateful environment",
    ("igpo", "frozen-lake"): '"frozen_lake" has no gold answer (private `answer`)',
}
"""(method, environment) → message."""
CASES = [(method, world) for method in built_in_methods() for world in WORLDS]
CASES += [(method, "demo") for method in built_in_methods() if all((method, world) in REFUSED for world in WORLDS)]
CHANGES = [
    *(change for change in SMALL if not change.startswith(("policy.", "supervised."))),
    "reinforcement.tasks_per_step=4",  # each of up to four updates has its own group
    "policy.tiny=null",
    "supervised=null",
    "ablations=null",
    "evaluation.episodes=1",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Build folders with a tiny model per environment, which each method reuses."""
    folder = tmp_path_factory.mktemp("models")
    for world in ("demo", *WORLDS):
        tiny = [*(change for change in SMALL if change.startswith("policy.")), "policy.tiny.context_length=1024"]
        save_policy(assemble(load_recipe(world, tiny)).policy, folder / world)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("method", "world"), CASES)
def test_every_method_trains_in_every_environment_or_is_refused_in_one_line(tmp_path, models, method, world):
    def trained():
        own = load_recipe(world, with_=method).recipe.own_stages
        stage = next(kind for kind in ("reinforcement", "sampling") if kind in own)
        changes = [change.replace("reinforcement.", f"{stage}.") for change in CHANGES]
        resolved = load_recipe(world, [*changes, f"policy.path={models / world}", f"with={method}"])
        return train(resolved, tmp_path / "run", progress=Progress(quiet=True))

    message = REFUSED.get((method, world))
    if message is None:
        after = trained().after
        assert after.episodes + after.invalid == 1
        names = {name for row in Journal(tmp_path / "run").read() for name in row} - {"stage", "step"}
        assert {name for name in names if lookup_metric(name) is None} == set()  # docs/reference/metrics.md has all
    else:
        with pytest.raises(WhetstoneError) as refused:
            trained()
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
