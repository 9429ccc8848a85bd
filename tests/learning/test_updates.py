"""An update whose groups are all removed trains nothing, and the run continues."""

import json

import pytest

from support.slow import mostly_slow
from support.small import SMALL
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

NOTHING_LEFT = {
    "groups all equal": ["credit_filters=[zero_variance]"],
    "with pairs": ["credit_filters=[zero_variance]", "objective=dpo", "advantage=null"],
    "nothing to imitate": ["credit_filters=[rejection]", "objective=supervised", "advantage=null"],
    "a critic": ["credit_filters=[zero_variance]", "advantage=turn_gae", "critic={}"],
    "slow critics": ["credit_filters=[zero_variance]", "advantage=archer", "critic={}"],
    "a process model": ["credit_filters=[zero_variance]", "advantage=oprl", "implicit_prm={}"],
    "beliefs": ["credit_filters=[zero_variance]", "advantage=igpo"],
    "chance": ["credit_filters=[zero_variance]", "advantage_transforms=[clip_cov]", "objective=kl_cov"],
    "sequences": ["credit_filters=[zero_variance]", "objective=gspo", "aggregation=sequence_mean"],
    "trees": [
        "credit_filters=[zero_variance]",
        "rollout.strategy=random_branching",
        "advantage=portool",
        "reward=meta_reasoning",
    ],
    "a bonus": [
        "credit_filters=[zero_variance]",
        "reinforcement.entropy={band: 0.2}",
        "reinforcement.reference_kl=0.1",
    ],
}


@pytest.mark.parametrize(
    "name", mostly_slow(NOTHING_LEFT, quick=["groups all equal", "with pairs", "a critic", "trees"])
)
def test_empty_update_is_skipped_without_failure(tmp_path, name):
    # an untrained model never succeeds, so the rewards of every group are equal
    changes = [*SMALL, "supervised=null", "ablations=null", *NOTHING_LEFT[name]]
    recipe = load_recipe("demo", [change for change in changes if not change.startswith("supervised.")])
    train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update/skipped_fraction"] for row in rows] == [1.0, 1.0]
    assert rows[-1]["advantage/zero_fraction"] == 1.0
