"""A run loads each distinct model once, however many components use it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from whetstone.algorithms.axes import PerToken
from whetstone.assembly import assemble
from whetstone.assembly.members import learner_for
from whetstone.policies import policy as loading
from whetstone.policies import save_policy
from whetstone.recipe import load_recipe
from whetstone.tasks import Expert


def by_teacher(teacher_logprobs: PerToken) -> PerToken:
    return teacher_logprobs


@pytest.fixture
def loads(monkeypatch):
    folders, load = [], loading.AutoModelForCausalLM.from_pretrained

    def counted(folder, *arguments, **options):
        folders.append(Path(folder).name)
        return load(folder, *arguments, **options)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", counted)
    return folders


@pytest.fixture
def folders(tmp_path, assembly):
    for name in ("policy", "teacher", "judge"):
        (tmp_path / name).mkdir()
        save_policy(assembly.policy, tmp_path / name)
    return tmp_path


def recipe(folders, world, *changes):
    pretrained = ["policy.tiny=null", f"policy.path={folders / 'policy'}", "supervised=null"]
    return load_recipe(world, [*pretrained, *changes])


def test_policy_and_reference_teacher_and_judge_are_loaded_once_each(folders, loads, monkeypatch):
    monkeypatch.setitem(sys.modules, "teacher_here", SimpleNamespace(by_teacher=by_teacher))
    judge = f"{{name: local, path: {folders / 'judge'}}}"
    changes = [
        "ablations=null",
        "reinforcement.reference_kl=0.1",
        f"teacher.path={folders / 'teacher'}",
        "advantage=teacher_here:by_teacher",
        f"reward={{name: rubric, criteria: [It is polite.], judge: {judge}}}",
    ]
    assembly = assemble(recipe(folders, "demo", *changes)).check()
    learner = learner_for(assembly, assembly.resolved.recipe.reinforcement, None, is_start=True)
    assert sorted(loads) == ["judge", "policy", "teacher"]
    reference, policy = learner.trainer.reference, assembly.policy.model
    assert reference is not policy
    assert not any(each.requires_grad for each in reference.parameters())
    pairs = zip(reference.parameters(), policy.parameters(), strict=True)
    assert all(one is not two and one.equal(two) for one, two in pairs)


def test_critic_and_process_model_are_made_of_the_policy(folders, loads):
    changes = ["ablations=null", "advantage=token_gae", "critic={}"]
    assembly = assemble(recipe(folders, "demo", *changes)).check()
    learner_for(assembly, assembly.resolved.recipe.reinforcement, None, is_start=True)
    assert loads == ["policy"]
    process = assemble(recipe(folders, "demo", "ablations=null", "advantage=oprl", "implicit_prm={}")).check()
    learner_for(process, process.resolved.recipe.reinforcement, None, is_start=True)
    assert loads == ["policy", "policy"]


def test_one_folder_in_two_seats_and_a_judge_is_loaded_once(folders, loads):
    strategy = "{name: self_play, roles: [buyer, seller], frozen: {seller: " + str(folders / "teacher") + "}}"
    judge = f"{{name: local, path: {folders / 'teacher'}}}"
    changes = [
        f"rollout.strategy={strategy}",
        f"reward={{name: rubric, criteria: [It is polite.], judge: {judge}}}",
    ]
    assembly = assemble(recipe(folders, "bargaining", *changes)).check()
    assert sorted(loads) == ["policy", "teacher"]
    assert list(assembly.frozen) == ["seller"]


def test_a_component_that_is_not_requested_is_not_built(folders, loads):
    judge = f"{{name: local, path: {folders / 'judge'}}}"
    reward = f"reward={{name: rubric, criteria: [It is polite.], judge: {judge}}}"
    assembly = assemble(recipe(folders, "demo", "ablations=null", reward))
    assert isinstance(assembly.source, Expert)
    assert assembly.environment() is not None
    assert loads == []
    assert assembly.policy is assembly.policy
    assert loads == ["policy"]
    assert assembly.reward is assembly.reward
    assert loads == ["policy", "judge"]


def test_a_folder_that_has_changed_is_loaded_again(folders, loads):
    judge = f"reward={{name: rubric, criteria: [A.], judge: {{name: local, path: {folders / 'judge'}}}}}"
    first = assemble(recipe(folders, "demo", "ablations=null", judge))
    second = assemble(recipe(folders, "demo", "ablations=null", judge))
    assert first.reward is not None
    assert second.reward is not None
    assert loads == ["judge"]
    (folders / "judge" / "note.txt").write_text("changed")
    assert assemble(recipe(folders, "demo", "ablations=null", judge)).reward is not None
    assert loads == ["judge", "judge"]
