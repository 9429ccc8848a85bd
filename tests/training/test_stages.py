"""Stages in any number and order: a chain that is killed comes to the same weights, and nothing is made twice."""

import itertools
import json

import pytest
import torch

from tests_conversations import conversations, pairs, texts, written
from tests_small import SMALL, StopAfter, Stopped
from whetstone.analysis.shown_run import ShownRun
from whetstone.assembly import assemble
from whetstone.assembly.members import began_without_adapters
from whetstone.errors import DataError, RecipeError, WhetstoneError
from whetstone.policies import has_adapters, load_policy, save_policy
from whetstone.policies.export import merged
from whetstone.recipe import load_recipe, stages_of
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
        {"reinforcement": {"steps": 2, "tasks_per_step": 2}, "reward": "tests_small:parity"},
    ]
    return load_recipe("demo", PLAIN, stages=stages, **more)


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def alike(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_each_stage_is_a_recipe_of_its_own(data):
    made = stages_of(four(data))
    assert [stage.name for stage in made] == ["1-pretraining", "2-supervised", "3-preference", "4-reinforcement"]
    assert [list(stage.resolved.recipe.own_stages) for stage in made] == [
        ["pretraining"], ["supervised"], ["preference"], ["reinforcement"],
    ]  # fmt: skip
    assert [stage.resolved.recipe.reward.name for stage in made] == ["exact_number"] * 3 + ["tests_small:parity"]
    assert len({stage.resolved.recipe.seed for stage in made}) == 4
    assert {settings.learning_rate for s in made for settings in s.resolved.recipe.own_stages.values()} == {1e-3}


def test_the_everyday_pair_is_one_run_and_others_beside_it_are_a_chain(data):
    assert stages_of(load_recipe("demo")) == []
    more = load_recipe("demo", ["ablations=null"], preference={"data": str(data / "pairs.jsonl"), **STEPS})
    assert [stage.name for stage in stages_of(more)] == ["1-supervised", "2-preference", "3-reinforcement"]


def test_a_stage_may_have_a_method_of_its_own():
    stages = [{"supervised": {"steps": 3}}, {"reinforcement": {"steps": 3}, "with": "dapo"}]
    imitated, reinforced = stages_of(load_recipe("demo", PLAIN[1:4], stages=stages))
    assert reinforced.resolved.recipe.rollout.dynamic_sampling.name == "nonzero_variance"
    assert imitated.resolved.recipe.rollout.dynamic_sampling is None


def test_rounds_go_through_all_stages_again(data):
    names = [stage.name for stage in stages_of(four(data, repeat_stages=2))]
    assert names[4:] == ["5-pretraining", "6-supervised", "7-preference", "8-reinforcement"]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([{"supervised": {}, "preference": {"data": "x"}}], "stages.0: holds supervised and preference at once"),
        ([{"tasks": {}}], "stages.0: holds no stage; each is one of pretraining"),
        ([{"preference": {"data": "x"}, "name": "a"}, {"preference": {"data": "y"}, "adapters": "new"}], "adapters"),
        ([{"reinforcement": {}, "adapters": "fresh"}], '"fresh" is none of kept, new and merged'),
        (
            [{"supervised": {}, "policy": {"lora": {"rank": 2}}}, {"reinforcement": {}, "adapters": "merged"}],
            "stages.1.adapters: has no effect: there are no adapters",
        ),
        ([{"preference": {"data": "x", "batch": 3}}], "batch"),
        ([{"preference": {"data": "x"}, "objective": "orpo"}], r"stages.0.objective.*no effect.*preference\.objective"),
        ([{"supervised": {}, "advantage": "gigpo"}], "stages.0.advantage.*no effect: a stage of supervised"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages, said):
    with pytest.raises(RecipeError, match=said):
        stages_of(load_recipe("demo", PLAIN, stages=stages))


@pytest.mark.slow
def test_adapters_go_on_begin_anew_or_are_merged_and_the_weights_themselves_go_on(data):
    small = {"steps": 1, "batch_size": 2, "learning_rate": 0.01}
    stages = [
        {"name": "a", "supervised": small},
        {"name": "kept", "supervised": small},
        {"name": "new", "supervised": small, "adapters": "new"},
        {"name": "merged", "supervised": small, "adapters": "merged"},
    ]
    resolved = load_recipe("demo", [*PLAIN, "policy.lora={rank: 2}"], stages=stages)
    assert [bool(stage.resolved.recipe.policy.lora) for stage in stages_of(resolved)] == [True, True, True, False]
    train(resolved, data / "run", progress=QUIET)
    ended = {name: final_policy(data / "run/stages" / name) for name in ("1-a", "2-kept", "3-new", "4-merged")}
    assert [has_adapters(policy.model) for policy in ended.values()] == [True, True, True, False]
    adapters = [{k: v for k, v in ended[name].model.state_dict().items() if "lora" in k} for name in ("1-a", "2-kept")]
    assert not alike(*adapters)  # they went on learning
    of_second = merged(ended["2-kept"], "float32").model.state_dict()
    began = load_policy(data / "run/stages/3-new-begins").model.state_dict()
    assert alike(of_second, began)
    of_third, at_last = merged(ended["3-new"], "float32").model.state_dict(), ended["4-merged"].model.state_dict()
    assert of_third.keys() == at_last.keys()
    assert not alike(of_third, at_last)


def test_adapters_that_are_kept_stay_as_they_are():
    stages = [{"supervised": {}}, {"reinforcement": {}, "policy": {"lora": {"rank": 4}}}]
    with pytest.raises(RecipeError, match=r"stages.1.policy.lora: adapters of the stage before go on as they are"):
        stages_of(load_recipe("demo", [*PLAIN, "policy.lora={rank: 2}"], stages=stages))


def test_what_a_stage_with_kept_adapters_holds_on_to_is_the_policy_it_began_with(tmp_path):
    first = assemble(load_recipe("demo", [TINY, "ablations=null", "policy.lora={rank: 2}"]))
    assert began_without_adapters(first.resolved, first.policy)
    save_policy(first.policy, tmp_path)
    behind = assemble(first.resolved.with_changes({"policy.tiny": None, "policy.path": str(tmp_path)}))
    assert has_adapters(behind.policy.model)
    assert not began_without_adapters(behind.resolved, behind.policy)
    other = behind.resolved.with_changes({"policy.lora.rank": 4})
    with pytest.raises(RecipeError, match=r"policy.lora.rank: the adapters of .* have 2; write that here"):
        assemble(other).check()


def test_a_stage_beside_stages_and_rounds_without_are_refused(data):
    with pytest.raises(RecipeError, match="beside them supervised has no place"):
        load_recipe("demo", [k for k in PLAIN if not k.startswith("supervised")], stages=[{"reinforcement": {}}])
    with pytest.raises(RecipeError, match="repeat_stages: has no effect: there are no stages"):
        load_recipe("demo", ["repeat_stages=3"])


def test_what_the_recipe_says_of_a_kind_all_stages_of_it_have_in_common():
    stages = [
        {"supervised": {}, "optional": True},
        {"name": "a", "reinforcement": {"steps": 3}},
        {"name": "b", "reinforcement": {"reference_kl": 0.1}},
    ]
    warm, a, b = stages_of(load_recipe("demo", ["ablations=null"], stages=stages))
    assert warm.resolved.recipe.supervised.steps == 240
    own = [stage.resolved.recipe.reinforcement for stage in (a, b)]
    assert [(each.steps, each.tasks_per_step, each.reference_kl) for each in own] == [(3, 32, 0), (30, 32, 0.1)]
    without = load_recipe("demo", ["ablations=null", "supervised=null"], stages=stages)
    assert [stage.name for stage in stages_of(without)] == ["1-a", "2-b"]


def test_score_is_a_warm_up_and_two_stages_that_differ_in_what_is_paid_and_held():
    warm, first, second = stages_of(load_recipe("demo", with_="score"))
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
    ("kind", "row", "said"),
    [
        ("supervised", {"messages": [{"role": "user", "content": "?"}]}, "without a message of the assistant"),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are equal"),
        ("preference", {"prompt": "a", "completion": "b", "label": True}, "which are for kto"),
    ],
)
def test_a_bad_row_is_told_before_the_first_stage_begins(data, kind, row, said):
    good = conversations(3) if kind == "supervised" else pairs(3)
    written(data / "bad.jsonl", [*good, row])
    first = {"pretraining": {"data": str(data / "text.txt"), **STEPS}}
    resolved = load_recipe("demo", PLAIN, stages=[first, {kind: {"data": str(data / "bad.jsonl"), **STEPS}}])
    with pytest.raises(WhetstoneError, match=f"stage 2-{kind}: .*{said}"):
        train(resolved, data / "run", progress=QUIET)
    assert not (data / "run" / "stages").exists()


@pytest.mark.slow
def test_a_chain_killed_five_times_comes_to_the_same_weights(data):
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
    assert alike(weights(data / "whole"), weights(data / "killed"))
    assert (data / "killed" / "report.html").is_file()


@pytest.mark.slow
def test_a_stage_learns_what_its_data_say_and_the_next_begins_there(data):
    resolved = four(data)
    train(resolved, data / "run", progress=QUIET)
    folders = [data / "run" / "stages" / stage.name for stage in stages_of(resolved)]
    told = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in folders]
    assert told[2]["preference/pairs"] == 4
    assert told[1]["demonstrations/skipped_fraction"] == 0
    for before, after in itertools.pairwise(folders):
        recipe = load_recipe(after / "recipe.yaml").recipe
        assert recipe.policy.path == str(latest_checkpoint(before))
        # what a stage begins with is what the one before ended with, and is evaluated once where both evaluate alike
    ended = (folders[0] / "evaluations" / "pretraining.json").read_text()
    assert (folders[1] / "evaluations" / "untrained.json").read_text() == ended


@pytest.mark.slow
def test_stages_another_run_has_made_are_taken_from_there(data):
    train(four(data), data / "one", progress=QUIET)
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    other = four(data, evaluation={"episodes": 4})
    summary = train(other, data / "two", progress=progress, reuse_from=[data / "one"])
    assert [stage["reused"] for stage in summary.written["stages"]] == [True] * 4
    assert sum("taken from" in line for line in lines) == 4
    assert alike(weights(data / "one"), weights(data / "two"))
    shown = ShownRun(data / "two")
    assert [folder.name for folder in shown.folders] == [stage.name for stage in stages_of(other)]
    assert shown.rows == ShownRun(data / "one").rows
    third = train(other, data / "three", progress=QUIET, reuse_from=[data / "two"])  # from one that took them itself
    assert [stage["reused"] for stage in third.written["stages"]] == [True] * 4


@pytest.mark.slow
def test_nothing_is_written_through_a_stage_that_was_taken(data):
    train(four(data), data / "one", progress=QUIET)
    resolved = four(data)
    train(resolved, data / "two", progress=QUIET, reuse_from=[data / "one"])
    before = weights(data / "one")
    (data / "two" / "summary.json").unlink()
    last = data / "one" / "stages" / stages_of(resolved)[-1].name / "stage.json"
    last.write_text("{}")  # no longer what it was: the run makes a stage of its own
    summary = train(resolved, data / "two", resume=True, progress=QUIET)
    assert [stage["reused"] for stage in summary.written["stages"]] == [True, True, True, False]
    assert last.read_text() == "{}"
    assert alike(before, weights(data / "one"))
    assert alike(before, weights(data / "two"))


@pytest.mark.slow
def test_a_warm_up_another_run_has_made_is_taken_and_the_run_comes_to_the_same(tmp_path):
    small = [*SMALL, "ablations=null", "reward=tests_small:parity"]
    train(load_recipe("demo", small), tmp_path / "one", progress=QUIET)
    rloo = load_recipe("demo", [*small, "advantage=rloo"])
    train(rloo, tmp_path / "alone", progress=QUIET)
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    train(rloo, tmp_path / "sharing", progress=progress, reuse_from=[tmp_path / "one"])
    assert any("the warm-up is taken from" in line for line in lines)
    assert alike(weights(tmp_path / "alone"), weights(tmp_path / "sharing"))
    other = load_recipe("demo", [*small, "advantage=rloo", "supervised.learning_rate=3e-3"])
    lines.clear()
    train(other, tmp_path / "other", progress=progress, reuse_from=[tmp_path / "one"])
    assert not any("taken from" in line for line in lines)


@pytest.mark.slow
def test_stored_episodes_are_learned_from_offline_and_as_demonstrations(data):
    small = [*SMALL, "ablations=null", "reward=tests_small:parity"]
    train(load_recipe("demo", small), data / "run", progress=QUIET)
    plain = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=4", "rollout=null"]
    begins = ["policy.tiny=null", f"policy.path={latest_checkpoint(data / 'run')}"]
    offline = {"data": str(data / "run"), "steps": 2, "tasks_per_step": 2}
    resolved = load_recipe("demo", [*plain, *begins], offline=offline, objective="advantage_weighted")
    train(resolved, data / "offline", progress=QUIET)
    rows = [json.loads(line) for line in (data / "offline" / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["offline"] * 2
    assert "sampler/mismatch_kl" not in rows[0]  # nobody takes old weights for a fault of the sampler
    assert rows[0]["policy/staleness_kl"] >= 0
    imitates = [*plain[:2], *plain[3:], *begins, "advantage=null", "objective=null"]
    again = load_recipe("demo", imitates, supervised={"data": str(data / "run"), **STEPS})
    train(again, data / "imitated", progress=QUIET)
    with pytest.raises(DataError, match="another tokenizer or chat format"):
        train(load_recipe("demo", plain, offline=offline), data / "other", progress=QUIET)
