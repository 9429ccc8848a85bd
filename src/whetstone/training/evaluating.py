"""How is an agent evaluated? Held-out tasks with fixed seeds, many at once; each episode is kept as it ends.

    tasks → (those on record are taken from there) → strategy → groups, as they finish → on record → what it came to

Easy to get wrong: an evaluation that goes on must be of the same agent on the same tasks, or two numbers are mixed into
one. What decides an evaluation is written beside its episodes and compared.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch
from pydantic import TypeAdapter

from whetstone.assembly.assembly import Assembly
from whetstone.atomic_write import saving, write_text
from whetstone.environments.protocol import tools_shown
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import Evaluation, evaluation_of
from whetstone.extras import release
from whetstone.inference import Engine
from whetstone.json_lines import read_objects, validate_shape
from whetstone.policies import Policy
from whetstone.record.run_directory import read_json, write_json
from whetstone.rollout import Actor, Collector, Independent, Plan, Strategy, plans_of
from whetstone.seeding import derive_seed
from whetstone.tools.threads import run_in_turn
from whetstone.trajectory import Costs, Group, Task, Trajectory
from whetstone.trajectory_json import encoded_trajectory, read_trajectory

_COSTS = TypeAdapter(Costs)


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Episodes of an evaluation in a folder, each line a whole group, written as it finishes.

    Args:
        folder: Made where it is not there.
    """

    folder: Path

    def open(self, protocol: dict[str, Any]) -> None:
        """Begin, or go on with what is there.

        Raises:
            RunDirectoryError: What is there is another evaluation; the message says what differs.
        """
        held = read_json(self.folder / "protocol.json")
        if held is None:
            self.check()
            with saving(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "protocol.json", protocol)
            return
        asked = json.loads(json.dumps(protocol))
        different = [key for key in asked if key != "tasks" and held.get(key) != asked[key]]
        if different:
            key = different[0]
            said = f"{key} was {_short(held.get(key))} and is {_short(asked[key])}"
            raise RunDirectoryError(f"{self.folder}: holds another evaluation ({said}); take another folder")

    def check(self) -> None:
        """See that an evaluation can be kept here.

        Raises:
            RunDirectoryError: It is a file, or holds something else.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RunDirectoryError(f"{self.folder}: is a file; an evaluation is kept in a folder")
        if not (self.folder / "protocol.json").is_file() and self.folder.is_dir():
            other = next(iter(sorted(self.folder.iterdir())), None)
            if other is not None:
                said = f"is not empty and holds no evaluation ({other.name} is in it); choose another"
                raise RunDirectoryError(f"{self.folder}: {said}")

    def groups(self, plans: Iterable[Plan]) -> dict[int, Group]:
        """Those on record, by number; a damaged line is played again, with a warning."""
        path, found = self.folder / "groups.jsonl", {}
        tasks = {plan.number: plan for plan in plans}

        def read_group(row: dict[str, Any]) -> Group | None:
            plan = tasks.get(row["number"])
            if plan is None or plan.task.id != row["task"]:
                return None
            read: dict[str, Trajectory] = {}
            for one in row["trajectories"]:
                trajectory = read_trajectory(one, read)
                read[trajectory.id] = trajectory
            return Group(plan.task, tuple(read.values()), plan.number, validate_shape(_COSTS, row["costs"]))

        played_again = logging.getLogger("whetstone").warning
        note = partial(played_again, "whetstone: %s:%d: is damaged, and its group is played again: %s", path)
        for group in read_objects(path, read_group, on_damage=note) if path.is_file() else ():
            if group is not None:
                found[group.number] = group
        return found

    def add(self, group: Group) -> None:
        """One more.

        Raises:
            SaveError: It could not be written.
        """
        head = orjson.dumps({"number": group.number, "task": group.task.id, "costs": asdict(group.costs)})
        encoded = b",".join(encoded_trajectory(trajectory) for trajectory in group.trajectories)
        path = self.folder / "groups.jsonl"
        with saving(path), open(path, "ab") as file:
            if file.tell() and _torn(path):
                file.write(b"\n")
            file.write(head[:-1] + b',"trajectories":[' + encoded + b"]}\n")

    def finish(self, came_to: Evaluation, groups: Iterable[Group]) -> None:
        """What it came to, and the episodes as a run keeps them."""
        write_json(self.folder / "evaluation.json", came_to.to_json())
        lines = [
            encoded_trajectory(trajectory).decode() + "\n" for group in groups for trajectory in group.trajectories
        ]
        write_text(self.folder / "trajectories.jsonl", "".join(lines))


async def evaluate(
    assembly: Assembly,
    engine: Engine,
    *,
    episodes: int,
    samples: int,
    temperature: float,
    seed: int,
    heard: Callable[[Group], None] = lambda group: None,
    watched: Callable[[Collector], None] = lambda collector: None,
    actor: Actor | None = None,
    record: EvaluationRecord | None = None,
) -> tuple[Evaluation, list[Group]]:
    """Success on held-out tasks, in the order of the source. (evaluation, groups)

    Args:
        episodes: Tasks.
        samples: Episodes of each, or as many as `evaluation.strategy` takes.
        heard: Called with each group as it finishes.
        watched: Told of the collector before it begins, for whoever shows its status.
        actor: Who acts; None: the policy.
        record: Where groups are kept as they finish; those that are there are not played again.
    """
    collector = assembly.collector(actor or assembly.policy_actor(engine, temperature=temperature))
    watched(collector)
    tasks = await run_in_turn(lambda: list(assembly.source.held_out(episodes)))
    strategy = evaluated_by(assembly, samples)
    plans = list(plans_of(tasks, seed=derive_seed(seed, "evaluation")))
    found = record.groups(plans) if record is not None else {}
    for group in found.values():
        heard(group)
    left = [plan for plan in plans if plan.number not in found]
    async for group in collector.groups(left, strategy):
        if record is not None:
            record.add(group)
        heard(group)
        found[group.number] = group
    groups = [found[number] for number in sorted(found)]
    came_to = evaluation_of(groups, temperature=temperature)
    if record is not None:
        record.finish(came_to, groups)
    return came_to, groups


def evaluated_by(assembly: Assembly, samples: int) -> Strategy:
    """How the episodes of a task come about in an evaluation."""
    return assembly.searching if assembly.searching is not None else Independent(group_size=samples)


def protocol_of(
    assembly: Assembly, tasks: Iterable[Task], *, samples: int, temperature: float, seed: int, who: str = ""
) -> dict[str, Any]:
    """Everything that decides an evaluation, as values to be printed and compared.

    Args:
        who: Names the agent where it is not the policy.
    """
    recipe, listed = assembly.resolved.recipe, list(tasks)
    specs = tools_shown(assembly.environment())
    return {
        "whetstone": release(),
        "agent": who or f"weights {weights_digest(assembly.policy)}",
        "chat_template": _digest(str(getattr(assembly.policy.tokenizer, "chat_template", ""))),
        "chat_format": recipe.chat.format,
        "tools": _digest(json.dumps([spec.to_openai() for spec in specs], sort_keys=True)),
        "environment": recipe.environment.model_dump(mode="json", exclude={"effects", "allow_effects"}),
        "task_source": recipe.tasks.model_dump(mode="json"),
        "reward": recipe.reward.model_dump(mode="json"),
        "strategy": recipe.evaluation.strategy.model_dump(mode="json") if recipe.evaluation.strategy else None,
        "max_new_tokens": recipe.rollout.max_new_tokens,
        "cuts": {
            **{key: getattr(recipe.rollout, key) for key in ("top_k", "top_p", "min_p")},
            "stop": recipe.rollout.stop_strings,
        },
        "samples": samples,
        "temperature": temperature,
        "seed": seed,
        "tasks": {"count": len(listed), "ids": _digest("\n".join(task.id for task in listed))},
    }


def weights_digest(policy: Policy) -> str:
    """Names weights by what they are."""
    found = hashlib.sha256()
    for name, tensor in sorted(policy.model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    written = json.dumps(value, default=str)
    return written if len(written) <= 80 else f"{written[:79]}…"


def _torn(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
