"""An update from which everything was taken out trains nothing, and the run goes on."""

import json

import pytest

from tests_slow import mostly_slow
from tests_small import SMALL
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

NOTHING_LEFT = {
    "groups all equal": ["filters=[zero_variance]"],
    "with pairs": ["filters=[zero_variance]", "objective=dpo", "advantage=null"],
    "nothing to imitate": ["filters=[rejection]", "objective=supervised", "advantage=null"],
    "a critic": ["filters=[zero_variance]", "advantage=turn_gae", "critic={}"],
    "slow critics": ["filters=[zero_variance]", "advantage=archer", "critic={}"],
    "a process model": ["filters=[zero_variance]", "advantage=oprl", "process_model={}"],
    "beliefs": ["filters=[zero_variance]", "advantage=igpo"],
    "chance": ["filters=[zero_variance]", "modulation=[clip_cov]", "objective=kl_cov"],
    "sequences": ["filters=[zero_variance]", "objective=gspo", "aggregation=sequence_mean"],
    "trees": ["filters=[zero_variance]", "rollout.strategy=forked", "advantage=portool", "reward=meta_reasoning"],
    "a bonus": ["filters=[zero_variance]", "training.entropy={band: 0.2}", "training.reference_kl=0.1"],
}


@pytest.mark.parametrize(
    "name", mostly_slow(NOTHING_LEFT, quick=["groups all equal", "with pairs", "a critic", "trees"])
)
def test_nothing_left_is_no_update_and_no_failure(tmp_path, name):
    # what an untrained model samples is never right, so every group is all equal
    changes = [*SMALL, "supervised=null", "ablations=null", *NOTHING_LEFT[name]]
    recipe = load_recipe("demo", [change for change in changes if not change.startswith("supervised.")])
    train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update/skipped"] for row in rows] == [1.0, 1.0]
    assert rows[-1]["credit/zero_fraction"] == 1.0
