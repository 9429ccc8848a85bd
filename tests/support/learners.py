"""Updates by one process and by several, compared on the same groups."""

import os
import pickle
import signal

import pytest
import torch

from support.forward_passes import recorder
from support.small import SMALL
from whetstone.algorithms import supervised
from whetstone.assembly.assembly import assemble
from whetstone.chat import assistant, user
from whetstone.inference import Member
from whetstone.learning.forward_passes import LocalPasses
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import UpdateBatch
from whetstone.recipe import load_recipe
from whetstone.scaling.distributed_learner.group_passes import GroupPasses
from whetstone.scaling.distributed_learner.learner_group import GroupLearner
from whetstone.scaling.distributed_learner.messages import RankRequest
from whetstone.scaling.distributed_learner.rank import Rank
from whetstone.scaling.distributed_learner.shard_passes import Frozen
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

FORMS = {
    "packed": ["reinforcement.prefix_sharing=false"],
    "shared-prefix": ["reinforcement.reference_kl=0.1", "reinforcement.entropy={weight: 0.01}"],
    "critic": ["advantage=token_gae", "critic={}"],
    "preference": ["objective=dpo", "advantage=null"],
    "adapters": ["policy.lora={rank: 2}", "reinforcement.reference_kl=0.1"],
    "checkpointed": ["reinforcement.activation_checkpointing=true"],
    "muon": ["reinforcement.optimizer=muon", "reinforcement.epochs=2"],
    "sequences": ["objective=gspo", "reinforcement.minibatches=2", "aggregation=sequence_mean"],
}
CLOSE = 1e-5
ROOM = 90
"""Tokens that `cramped` has room for in the second process."""


def plain(outputs, micro):
    return supervised(outputs.logprobs)


def cramped(outputs, micro):
    """Compute `plain`; the second process has too little memory for a large pass."""
    if os.environ.get("RANK") == "1" and len(micro.ids) > ROOM:
        raise torch.OutOfMemoryError("CUDA out of memory, raised by a test")
    return plain(outputs, micro)


def fatal(outputs, micro):
    """Kill the second process."""
    if os.environ.get("RANK") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(outputs, micro)


def segfaulting(outputs, micro):
    """End the second process by a fault of memory."""
    if os.environ.get("RANK") == "1":
        os.kill(os.getpid(), signal.SIGSEGV)
    return plain(outputs, micro)


def mistaken(outputs, micro):
    """Raise an error in a loss."""
    raise KeyError("no such column")


def turn(number, context, action, *, opens):
    sampled = Tokens.from_samples(
        action, logprobs=[-4.0 - 0.1 * k for k in range(len(action))], versions=[0] * len(action),
        entropies=[0.0] * len(action),
    )  # fmt: skip
    return Turn(Tokens.from_ids(context, Author.ENVIRONMENT), sampled, assistant(str(number)), opens_segment=opens)


def groups(count=2, size=3, *, retold=False):
    """Return tasks whose samples share a prefix and have different lengths. `retold`: the second turn opens a
    segment."""
    built = []
    for g in range(count):
        stem = [1 + g, *range(2, 30)]
        paths = []
        for k in range(size):
            first, answer = [4 + k, 5, 6 + g], list(range(40, 46 + 7 * k))
            context = [*stem, 7, 8 + k] if retold else [7, 8 + k]
            turns = (turn(0, stem, first, opens=True), turn(1, context, answer, opens=retold))
            name = f"group-{g}/t#{k}"
            score = Score(float((g + k) % 2), success=bool((g + k) % 2))
            paths.append(Trajectory(name, "t", (user("x"),), turns, EndReason.TERMINATED, score=score))
        built.append(Group(Task(f"t{g}", "x"), tuple(paths), number=g))
    return built


def assembled(*changes, policy=None):
    small = [change for change in SMALL if not change.startswith("supervised.")]
    steps = ["reinforcement.warmup_fraction=0", "reinforcement.max_mismatch_kl=.inf", "reinforcement.optimizer=adamw"]
    return assemble(load_recipe("demo", [*small, "supervised=null", "ablations=null", *steps, *changes]), policy)


class Noting(LocalPasses):
    """Record each gradient before it is applied."""

    def apply(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.policy.trainable_parameters()]
        self.noted = [*vars(self).get("noted", []), grads]
        return super().apply()


class GroupNoting(GroupPasses):
    """Record gradients of several processes."""

    def apply(self):
        self.noted = [*vars(self).get("noted", []), self.processes.ask("gradients")[0]]
        return super().apply()


def reference_of(assembly):
    settings = assembly.resolved.recipe.reinforcement
    if not settings.holds_on or assembly.resolved.recipe.policy.lora is not None:
        return {}
    policy = assemble(assembly.resolved).policy
    policy.model.requires_grad_(False)
    return {"reference": Member("reference", lambda: policy)}


def alone(assembly):
    settings = assembly.resolved.recipe.reinforcement
    trainer = recorder(assembly.policy, settings, Noting, members=reference_of(assembly))
    return LocalLearner(trainer, assembly.learning_spec(settings))


def together(assembly, processes, **options):
    settings = assembly.resolved.recipe.reinforcement
    members = reference_of(assembly)
    frozen = {name: Frozen(each.policy.model, offload=False) for name, each in members.items()}
    passes = GroupNoting(processes, assembly.policy, settings, frozen=frozen, **{"staging": None, **options})
    trainer = ModelTrainer(assembly.policy, settings, members=members, passes=passes)
    return GroupLearner(trainer, passes, assembly.learning_spec(settings))


def weights_of(trainer):
    return [p.detach().clone() for p in trainer.policy.trainable_parameters()]


def assert_close(values, expected):
    for one, other in zip(values, expected, strict=True):
        assert (one - other).abs().max() <= CLOSE * max(1.0, other.abs().max().item())


def assert_same_update(form, processes, *changes, tensor_parallel=1, policy=lambda: None, **options):
    """Compare an update of one process with one of several; `policy` builds equal policies, None uses that of the
    recipe."""
    sampled = groups(retold=form == "sequences", **options)
    batch = UpdateBatch(tuple(sampled), version=0)
    one, other = (assembled(*FORMS[form], *changes, policy=policy()) for _ in range(2))
    one, several = alone(one), together(other, processes, together=tensor_parallel)
    single_report, group_report = one.update(batch), several.update(batch)
    assert single_report.metrics["loss/total"] == pytest.approx(group_report.metrics["loss/total"], abs=CLOSE)
    assert one.trainer.passes.noted
    for single, distributed in zip(one.trainer.passes.noted, several.trainer.passes.noted, strict=True):
        assert_close(distributed, single)
    single = {name: value for name, value in group_report.metrics.items() if not name.startswith("scale/")}
    assert single_report.metrics.keys() == single.keys()
    assert 0 < group_report.metrics["scale/learner_balance"] <= 1 + 1e-9
    unequal = {"update/computed_tokens", "update/shared_fraction", "memory/peak_gib"}
    for name in single_report.metrics.keys() - unequal:
        if not name.startswith("throughput/"):
            assert group_report.metrics[name] == pytest.approx(single_report.metrics[name], rel=1e-3, abs=1e-5), name


class OneRank:
    """A substitute for `LearnerProcesses` with its only rank in this process; requests are pickled nevertheless."""

    count, joined, closed = 1, False, False

    def __init__(self):
        self.rank = Rank()

    def ask(self, name, each=None, **common):
        question = RankRequest(name, {**(each or [{}])[0], **common})
        answer = self.rank.execute(pickle.loads(pickle.dumps(question)))
        if answer.kind == "raised":
            raise answer.value
        assert answer.kind == "done", answer.text
        return [pickle.loads(pickle.dumps(answer.value))]

    def close(self):
        self.closed = True
