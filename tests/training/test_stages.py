"""Stages in any number and order: a killed chain resumes to the same weights, and no stage is repeated."""

import itertools
import json

import pytest
import torch

from support.conversations import conversations, pairs, texts, written
from support.small import SMALL, StopAfter, Stopped
from whetstone.analysis.run_text import RunText
from whetstone.assembly import assemble
from whetstone.assembly.members import has_new_adapters
from whetstone.errors import DataError, RecipeError, WhetstoneError
from whetstone.policies import has_adapters, load_policy, save_policy
from whetstone.policies.export_model import merge_adapters
from whetstone.recipe import list_stages, load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=4",
         "rollout.group_size=2", "rollout.max_new_tokens=6"]  # fmt: skip
STEPS = {"steps": 2, "batch_size": 4}


@pytest.fixture
def data(tmp_path):
    written(tmp_path / "chats.jsonl", conversations(12))
    written(tmp_path / "pairs.jsonl", pairs(12))
    (tmp_path / "text.txt").write_text(texts(30))
    return tmp_path


def four(data, **more):
    stages = [
        {"pretraining": {"data": str(data / "text.txt"), "window": 32, **STEPS}},
        {"supervised": {"data": str(data / "chats.jsonl"), **STEPS}},
        {"preference": {"data": str(data / "pairs.jsonl"), **STEPS}},
        {"reinforcement": {"steps": 2, "tasks_per_step": 2}, "reward": "support.small:parity"},
    ]
    return load_recipe("demo", PLAIN, stages=stages, **more)


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def equal_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_each_stage_is_a_separate_recipe(data):
    stages = list_stages(four(data))
    assert [stage.name for stage in stages] == ["1-pretraining", "2-supervised", "3-preference", "4-reinforcement"]
    assert [list(stage.resolved.recipe.own_stages) for stage in stages] == [
        ["pretraining"], ["supervised"], ["preference"], ["reinforcement"],
    ]  # fmt: skip
    assert [stage.resolved.recipe.reward.name for stage in stages] == ["exact_number"] * 3 + ["support.small:parity"]
    assert len({stage.resolved.recipe.seed for stage in stages}) == 4
    assert {settings.learning_rate for s in stages for settings in s.resolved.recipe.own_stages.values()} == {1e-3}


def test_warm_up_with_reinforcement_is_one_run_and_other_stages_are_a_chain(data):
    assert list_stages(load_recipe("demo")) == []
    more = load_recipe("demo", ["ablations=null"], preference={"data": str(data / "pairs.jsonl"), **STEPS})
    assert [stage.name for stage in list_stages(more)] == ["1-supervised", "2-preference", "3-reinforcement"]


def test_stage_can_have_its_own_method():
    stages = [{"supervised": {"steps": 3}}, {"reinforcement": {"steps": 3}, "with": "dapo"}]
    imitated, reinforced = list_stages(load_recipe("demo", PLAIN[1:4], stages=stages))
    assert reinforced.resolved.recipe.rollout.dynamic_sampling.name == "nonzero_variance"
    assert imitated.resolved.recipe.rollout.dynamic_sampling is None


def test_rounds_repeat_all_stages(data):
    names = [stage.name for stage in list_stages(four(data, repeat_stages=2))]
    assert names[4:] == ["5-pretraining", "6-supervised", "7-preference", "8-reinforcement"]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"supervised": {}, "preference": {"data": "x"}}], "stages.0: has supervised and preference in one stage"),
        ([{"tasks": {}}], "stages.0: has no stage; each stage is one of pretraining"),
        ([{"preference": {"data": "x"}, "name": "a"}, {"preference": {"data": "y"}, "adapters": "new"}], "adapters"),
        ([{"reinforcement": {}, "adapters": "fresh"}], 'must be kept, new or merged, got "fresh"'),
        (
            [{"supervised": {}, "policy": {"lora": {"rank": 2}}}, {"reinforcement": {}, "adapters": "merged"}],
            "stages.1.adapters: has no effect: there are no adapters",
        ),
        ([{"preference": {"data": "x", "batch": 3}}], "batch"),
        ([{"preference": {"data": "x"}, "objective": "orpo"}], r"stages.0.objective.*no effect.*preference\.objective"),
        ([{"supervised": {}, "advantage": "gigpo"}], "stages.0.advantage.*no effect: a supervised stage"),
    ],
)
def test_invalid_stages_are_refused(stages, message):
    with pytest.raises(RecipeError, match=message):
        list_stages(load_recipe("demo", PLAIN, stages=stages))


@pytest.mark.slow
def test_adapters_continue_restart_or_are_merged_and_full_weights_continue(data):
    small = {"steps": 1, "batch_size": 2, "learning_rate": 0.01}
    stages = [
        {"name": "a", "supervised": small},
        {"name": "kept", "supervised": small},
        {"name": "new", "supervised": small, "adapters": "new"},
        {"name": "merged", "supervised": small, "adapters": "merged"},
    ]
    resolved = load_recipe("demo", [*PLAIN, "policy.lora={rank: 2}"], stages=stages)
    assert [bool(stage.resolved.recipe.policy.lora) for stage in list_stages(resolved)] == [True, True, True, False]
    train(resolved, data / "run", progress=QUIET)
    ended = {name: final_policy(data / "run/stages" / name) for name in ("1-a", "2-kept", "3-new", "4-merged")}
    assert [has_adapters(policy.model) for policy in ended.values()] == [True, True, True, False]
    adapters = [{k: v for k, v in ended[name].model.state_dict().items() if "lora" in k} for name in ("1-a", "2-kept")]
    assert not equal_weights(*adapters)  # they were trained further
    of_second = merge_adapters(ended["2-kept"], "float32").model.state_dict()
    began = load_policy(data / "run/stages/3-new-begins").model.state_dict()
    assert equal_weights(of_second, began)
    of_third, at_last = (
        merge_adapters(ended["3-new"], "float32").model.state_dict(),
        ended["4-merged"].model.state_dict(),
    )
    assert of_third.keys() == at_last.keys()
    assert not equal_weights(of_third, at_last)


def test_kept_adapters_are_not_changed():
    stages = [{"supervised": {}}, {"reinforcement": {}, "policy": {"lora": {"rank": 4}}}]
    with pytest.raises(RecipeError, match=r"stages.1.policy.lora: the adapters of the preceding stage continue"):
        list_stages(load_recipe("demo", [*PLAIN, "policy.lora={rank: 2}"], stages=stages))


def test_reference_of_a_stage_with_kept_adapters_is_its_initial_policy(tmp_path):
    first = assemble(load_recipe("demo", [TINY, "ablations=null", "policy.lora={rank: 2}"]))
    assert has_new_adapters(first.resolved, first.policy)
    save_policy(first.policy, tmp_path)
    second = assemble(first.resolved.with_changes({"policy.tiny": None, "policy.path": str(tmp_path)}))
    assert has_adapters(second.policy.model)
    assert not has_new_adapters(second.resolved, second.policy)
    other = second.resolved.with_changes({"policy.lora.rank": 4})
    with pytest.raises(RecipeError, match=r"policy.lora.rank: the adapters of .* have 2; write that here"):
        assemble(other).check()


def test_stage_keys_next_to_stages_and_rounds_without_stages_are_refused(data):
    with pytest.raises(RecipeError, match="supervised is not a stage of the list"):
        load_recipe("demo", [k for k in PLAIN if not k.startswith("supervised")], stages=[{"reinforcement": {}}])
    with pytest.raises(RecipeError, match="repeat_stages: has no effect: there are no stages"):
        load_recipe("demo", ["repeat_stages=3"])


def test_recipe_keys_of_a_kind_apply_to_all_its_stages():
    stages = [
        {"supervised": {}, "optional": True},
        {"name": "a", "reinforcement": {"steps": 3}},
        {"name": "b", "reinforcement": {"reference_kl": 0.1}},
    ]
    warm, a, b = list_stages(load_recipe("demo", ["ablations=null"], stages=stages))
    assert warm.resolved.recipe.supervised.steps == 240
    own = [stage.resolved.recipe.reinforcement for stage in (a, b)]
    assert [(each.steps, each.tasks_per_step, each.reference_kl) for each in own] == [(3, 32, 0), (30, 32, 0.1)]
    without = load_recipe("demo", ["ablations=null", "supervised=null"], stages=stages)
    assert [stage.name for stage in list_stages(without)] == ["1-a", "2-b"]


def test_score_is_a_warm_up_and_two_stages_with_different_rewards_and_kl():
    warm, first, second = list_stages(load_recipe("demo", with_="score"))
    assert [stage.name for stage in (warm, first, second)] == ["1-supervised", "2-first-attempt-held", "3-both-paid"]
    one, two = first.resolved.recipe, second.resolved.recipe
    assert (one.reinforcement.first_attempt_kl, two.reinforcement.first_attempt_kl) == (0.1, 0.0)
    assert (one.reward_shaping[0].name, two.reward_shaping[0].name) == ("second_attempt_only", "self_correction")
    assert (one.advantage_transforms[0].name, two.advantage_transforms) == ("after_first_attempt", [])
    assert one.reinforcement.tasks_per_step == two.reinforcement.tasks_per_step == 32


@pytest.mark.slow
def test_one_name_trains_both_stages_of_score(tmp_path):
    recipe = load_recipe("demo", [*SMALL, "critic.warmup_updates=1"], with_="score")
    summary = train(recipe, tmp_path / "run", progress=QUIET)
    assert list(summary.evaluations)[1:] == ["1-supervised", "2-first-attempt-held", "3-both-paid"]
    rows = (tmp_path / "run" / "stages" / "2-first-attempt-held" / "metrics.jsonl").read_text().splitlines()
    assert all("policy/reference_kl" in json.loads(row) for row in rows)


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("supervised", {"messages": [{"role": "user", "content": "?"}]}, "no message of the assistant"),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal"),
        ("preference", {"prompt": "a", "completion": "b", "label": True}, "use kto for rated singles"),
    ],
)
def test_invalid_row_is_reported_before_the_first_stage(data, kind, row, message):
    good = conversations(3) if kind == "supervised" else pairs(3)
    written(data / "bad.jsonl", [*good, row])
    first = {"pretraining": {"data": str(data / "text.txt"), **STEPS}}
    resolved = load_recipe("demo", PLAIN, stages=[first, {kind: {"data": str(data / "bad.jsonl"), **STEPS}}])
    with pytest.raises(WhetstoneError, match=f"stage 2-{kind}: .*{message}"):
        train(resolved, data / "run", progress=QUIET)
    assert not (data / "run" / "stages").exists()


@pytest.mark.slow
def test_chain_killed_five_times_resumes_to_the_same_weights(data):
    resolved = four(data)
    summary = train(resolved, data / "whole", progress=QUIET)
    assert list(summary.evaluations) == [
        "untrained",
        "1-pretraining",
        "2-supervised",
        "3-preference",
        "4-reinforcement",
    ]
    killed = 0
    for steps in (0, 1, 1, 2, 1, 9):
        try:
            train(resolved, data / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            killed += 1
    assert killed == 5
    assert equal_weights(weights(data / "whole"), weights(data / "killed"))
    assert (data / "killed" / "report.html").is_file()


@pytest.mark.slow
def test_stage_trains_on_its_data_and_the_next_continues(data):
    resolved = four(data)
    train(resolved, data / "run", progress=QUIET)
    folders = [data / "run" / "stages" / stage.name for stage in list_stages(resolved)]
    rows = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in folders]
    assert rows[2]["preference/pairs"] == 4
    assert rows[1]["demonstrations/skipped_fraction"] == 0
    for before, after in itertools.pairwise(folders):
        recipe = load_recipe(after / "recipe.yaml").recipe
        assert recipe.policy.path == str(latest_checkpoint(before))
        # initial weights of a stage are the final ones of the previous, evaluated once if both evaluate equally
    ended = (folders[0] / "evaluations" / "pretraining.json").read_text()
    assert (folders[1] / "evaluations" / "untrained.json").read_text() == ended


@pytest.mark.slow
def test_finished_stages_of_another_run_are_reused(data):
    train(four(data), data / "one", progress=QUIET)
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    other = four(data, evaluation={"episodes": 4})
    summary = train(other, data / "two", progress=progress, reuse_from=[data / "one"])
    assert [stage["reused"] for stage in summary.written["stages"]] == [True] * 4
    assert sum("reused from" in line for line in lines) == 4
    assert equal_weights(weights(data / "one"), weights(data / "two"))
    report = RunText(data / "two")
    assert [folder.name for folder in report.folders] == [stage.name for stage in list_stages(other)]
    assert report.rows == RunText(data / "one").rows
    third = train(
        other, data / "three", progress=QUIET, reuse_from=[data / "two"]
    )  # from a run that reused them itself
    assert [stage["reused"] for stage in third.written["stages"]] == [True] * 4


@pytest.mark.slow
def test_reused_stage_is_never_written(data):
    train(four(data), data / "one", progress=QUIET)
    resolved = four(data)
    train(resolved, data / "two", progress=QUIET, reuse_from=[data / "one"])
    before = weights(data / "one")
    (data / "two" / "summary.json").unlink()
    last = data / "one" / "stages" / list_stages(resolved)[-1].name / "stage.json"
    last.write_text("{}")  # changed: the run makes its own stage
    summary = train(resolved, data / "two", resume=True, progress=QUIET)
    assert [stage["reused"] for stage in summary.written["stages"]] == [True, True, True, False]
    assert last.read_text() == "{}"
    assert equal_weights(before, weights(data / "one"))
    assert equal_weights(before, weights(data / "two"))


@pytest.mark.slow
def test_finished_warm_up_of_another_run_is_reused_and_the_result_is_the_same(tmp_path):
    small = [*SMALL, "ablations=null", "reward=support.small:parity"]
    train(load_recipe("demo", small), tmp_path / "one", progress=QUIET)
    rloo = load_recipe("demo", [*small, "advantage=rloo"])
    train(rloo, tmp_path / "alone", progress=QUIET)
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    train(rloo, tmp_path / "sharing", progress=progress, reuse_from=[tmp_path / "one"])
    assert any("reusing the warm-up of" in line for line in lines)
    assert equal_weights(weights(tmp_path / "alone"), weights(tmp_path / "sharing"))
    other = load_recipe("demo", [*small, "advantage=rloo", "supervised.learning_rate=3e-3"])
    lines.clear()
    train(other, tmp_path / "other", progress=progress, reuse_from=[tmp_path / "one"])
    assert not any("reused from" in line for line in lines)


@pytest.mark.slow
def test_stored_episodes_are_trained_offline_and_as_demonstrations(data):
    small = [*SMALL, "ablations=null", "reward=support.small:parity"]
    train(load_recipe("demo", small), data / "run", progress=QUIET)
    plain = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=4", "rollout=null"]
    begins = ["policy.tiny=null", f"policy.path={latest_checkpoint(data / 'run')}"]
    offline = {"data": str(data / "run"), "steps": 2, "tasks_per_step": 2}
    resolved = load_recipe("demo", [*plain, *begins], offline=offline, objective="advantage_weighted")
    train(resolved, data / "offline", progress=QUIET)
    rows = [json.loads(line) for line in (data / "offline" / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["offline"] * 2
    assert "sampler/mismatch_kl" not in rows[0]  # older weights are no mismatch of the sampler
    assert rows[0]["policy/staleness_kl"] >= 0
    imitates = [*plain[:2], *plain[3:], *begins, "advantage=null", "objective=null"]
    imitation = load_recipe("demo", imitates, supervised={"data": str(data / "run"), **STEPS})
    train(imitation, data / "imitated", progress=QUIET)
    with pytest.raises(DataError, match="another tokenizer or chat format"):
        train(load_recipe("demo", plain, offline=offline), data / "other", progress=QUIET)
