"""Evaluation loop: held-out tasks with fixed seeds, many concurrently; each group is recorded as it finishes.

    tasks → (recorded ones are loaded) → strategy → groups, as they finish → record → evaluation

Note:
    A resumed evaluation must be of the same agent on the same tasks, or two results are mixed. All settings that
    determine an evaluation are stored with its episodes and compared.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import torch
from pydantic import TypeAdapter

from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.members import build_evaluation_actor
from whetstone.assembly.seats import evaluation_seats
from whetstone.atomic_write import convert_save_errors, write_text
from whetstone.environments.protocol import find_known_tools
from whetstone.errors import RunDirectoryError
from whetstone.evaluation import Evaluation, MemberResult, summarize_episodes
from whetstone.inference import MEMBERS, Engine
from whetstone.json_lines import read_objects, validate_shape
from whetstone.optional_dependencies import get_package_version
from whetstone.policies import Policy
from whetstone.record.run_directory import read_json, write_json
from whetstone.reporting import write_trajectories
from whetstone.rollout import Actor, Collector, GroupPlan, Independent, Strategy, make_plans
from whetstone.seeding import derive_seed
from whetstone.tools.thread_runner import run_in_turn
from whetstone.trajectory import Costs, Group, Task, Trajectory
from whetstone.trajectory_json import encode_trajectory, read_trajectory

_COSTS = TypeAdapter(Costs)


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Folder with the episodes of an evaluation, one group per line, from which the evaluation resumes.

    Args:
        folder: Created by `open` if it does not exist.
    """

    folder: Path
    """Folder with `protocol.json`, `groups.jsonl` and the result."""

    def open(self, protocol: dict[str, Any]) -> None:
        """Start an evaluation in the folder, or resume the recorded one.

        Args:
            protocol: Settings that determine the evaluation; see `evaluation_protocol`.

        Raises:
            RunDirectoryError: If the folder has another evaluation; the message names the difference.
        """
        stored = read_json(self.folder / "protocol.json")
        if stored is None:
            self.check()
            with convert_save_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "protocol.json", protocol)
            return
        current = json.loads(json.dumps(protocol))
        different = [key for key in current if key != "tasks" and stored.get(key) != current[key]]
        if different:
            key = different[0]
            difference = f"{key} was {_short(stored.get(key))} and is {_short(current[key])}"
            raise RunDirectoryError(f"{self.folder}: holds another evaluation ({difference}); choose another folder")

    def check(self) -> None:
        """Check that an evaluation can be recorded in the folder.

        Raises:
            RunDirectoryError: If the path is a file, or the folder has other content.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RunDirectoryError(f"{self.folder}: is a file; an evaluation is kept in a folder; choose another path")
        if not (self.folder / "protocol.json").is_file() and self.folder.is_dir():
            other = next(iter(sorted(self.folder.iterdir())), None)
            if other is not None:
                problem = f"is not empty and holds no evaluation ({other.name} is in it); choose another folder"
                raise RunDirectoryError(f"{self.folder}: {problem}")

    def groups(self, plans: Iterable[GroupPlan]) -> dict[int, Group]:
        """Return the recorded groups of these plans, by number.

        A damaged line is skipped with a warning, so that its group is played again.
        """
        path, groups = self.folder / "groups.jsonl", {}
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
                groups[group.number] = group
        return groups

    def add(self, group: Group) -> None:
        """Append a finished group to the record.

        Raises:
            SaveError: If the group cannot be written.
        """
        head = orjson.dumps({"number": group.number, "task": group.task.id, "costs": asdict(group.costs)})
        encoded = b",".join(encode_trajectory(trajectory) for trajectory in group.trajectories)
        path = self.folder / "groups.jsonl"
        with convert_save_errors(path), open(path, "ab") as file:
            if file.tell() and _torn(path):
                file.write(b"\n")
            file.write(head[:-1] + b',"trajectories":[' + encoded + b"]}\n")

    def of_member(self, name: str) -> EvaluationRecord:
        """Return the record for the episodes of another member of `policies`, in a subfolder."""
        return self.in_subfolder(MEMBERS, name)

    def in_subfolder(self, *names: str) -> EvaluationRecord:
        """Return a record in a subfolder, which is created if it does not exist.

        Args:
            names: Parts of the path below the folder of this record.
        """
        folder = self.folder.joinpath(*names)
        with convert_save_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return EvaluationRecord(folder)

    def finish(self, result: Evaluation, groups: Iterable[Group]) -> None:
        """Write the result, and all episodes as `trajectories.jsonl`, the format of a run."""
        write_json(self.folder / "evaluation.json", result.to_json())
        lines = [encode_trajectory(trajectory).decode() + "\n" for group in groups for trajectory in group.trajectories]
        write_text(self.folder / "trajectories.jsonl", "".join(lines))


async def evaluate_policy(
    assembly: RunComponents,
    engine: Engine,
    *,
    episodes: int,
    first: int = 0,
    samples: int,
    temperature: float,
    seed: int,
    on_group: Callable[[Group], None] = lambda group: None,
    watched: Callable[[Collector], None] = lambda collector: None,
    actor: Actor | None = None,
    record: EvaluationRecord | None = None,
    every_member: bool = False,
) -> tuple[Evaluation, list[Group]]:
    """Measure success on held-out tasks, in the order of the task source.

    If several members of `policies` play seats, the first one is evaluated in its own seat, and scripts play the
    others.

    Args:
        assembly: Components of the run.
        engine: Engine that samples from the policy.
        episodes: Number of tasks.
        first: Number of held-out tasks that are skipped before them.
        samples: Episodes per task, unless `evaluation.strategy` sets it.
        temperature: Sampling temperature.
        seed: Random seed.
        on_group: Called with each group as it finishes.
        watched: Called with the collector before it starts, to show its status.
        actor: Actor that is evaluated; None: the policy.
        record: Record of finished groups; recorded ones are not played again.
        every_member: Whether to evaluate the other trained members of `policies` as well, each in its own seat, as
            `Evaluation.members`. Their groups follow those of the first, and are not passed to `on_group`.

    Returns:
        The evaluation and its groups, in the order of the tasks.
    """
    seats = evaluation_seats(assembly)
    tasks = await run_in_turn(lambda: list(assembly.source.held_out(first + episodes))[first:])
    actor = actor or assembly.policy_actor(engine, temperature=temperature)
    collector, seat = assembly.build_collector(actor), seats.get(assembly.member, "")
    watched(collector)
    strategy = (
        assembly.search_strategy if assembly.search_strategy is not None else Independent(group_size=samples, seat=seat)
    )
    plans = list(make_plans(tasks, seed=derive_seed(seed, "evaluation")))
    groups = await play_groups(collector, plans, strategy, record, on_group)
    result = summarize_episodes(groups, temperature=temperature)
    if every_member and seats:
        results = {assembly.member: MemberResult.from_evaluation(seat, result)}
        for name, seat in list(seats.items())[1:]:
            other = build_evaluation_actor(assembly, engine, name, temperature=temperature)
            if other is None:
                continue
            collector = replace(assembly.build_collector(other), others={})
            watched(collector)
            plans = list(make_plans(tasks, seed=derive_seed(seed, "evaluation"), name=f"{name}/"))
            own = record.of_member(name) if record is not None else None
            played = await play_groups(collector, plans, Independent(group_size=samples, seat=seat), own)
            results[name] = MemberResult.from_evaluation(seat, summarize_episodes(played, temperature=temperature))
            groups += played
        result = replace(result, members=results)
    if record is not None:
        record.finish(result, groups)
    return result, groups


async def play_groups(
    collector: Collector,
    plans: Sequence[GroupPlan],
    strategy: Strategy,
    record: EvaluationRecord | None,
    on_group: Callable[[Group], None] = lambda group: None,
) -> list[Group]:
    """Play the groups of plans, and return them in order; those in the record are not played again.

    Args:
        collector: Collector that plays the episodes.
        plans: Groups to play.
        strategy: Strategy that samples the episodes of a group.
        record: Record to which finished groups are added; None: they are not recorded.
        on_group: Called with each group as it finishes, and first with the recorded ones.
    """
    finished = record.groups(plans) if record is not None else {}
    for group in finished.values():
        on_group(group)
    left = [plan for plan in plans if plan.number not in finished]
    async for group in collector.groups(left, strategy):
        if record is not None:
            record.add(group)
        on_group(group)
        finished[group.number] = group
    return [finished[number] for number in sorted(finished)]


def write_evaluation(folder: Path, name: str, groups: Iterable[Group], first: str) -> None:
    """Write the trajectories of an evaluation, one file per member of `policies` (`member_file`).

    Args:
        folder: Folder of the files.
        name: Name of the file of the first member, without `.jsonl`.
        groups: Groups of the evaluation.
        first: Name of the first member of `policies`; empty: the run has one model.
    """
    by_member: dict[str, list[Trajectory]] = {name: []}
    for group in groups:
        for each in group.trajectories:
            by_member.setdefault(member_file(name, "" if each.member == first else each.member), []).append(each)
    for file, trajectories in by_member.items():
        write_trajectories(folder / f"{file}.jsonl", trajectories)


def member_file(name: str, member: str) -> str:
    """Return the name of the file with the trajectories of a member.

    Args:
        name: Name of the file of the first member, such as `evaluation-reinforcement`.
        member: Name of the member; empty: the first, or the only model.
    """
    return name.replace("evaluation-", f"evaluation-{member}-", 1) if member else name


def evaluation_protocol(
    assembly: RunComponents, tasks: Iterable[Task], *, samples: int, temperature: float, seed: int, who: str = ""
) -> dict[str, Any]:
    """Return all settings that determine an evaluation, to print them and to compare two evaluations.

    Args:
        assembly: Components of the run.
        tasks: Held-out tasks.
        samples: Episodes per task.
        temperature: Sampling temperature.
        seed: Random seed.
        who: Name of the agent if it is not the policy; empty: a digest of the policy's weights.
    """
    recipe, written, listed = assembly.resolved.recipe, assembly.resolved.to_dict(), list(tasks)
    specs = find_known_tools(assembly.environment())
    members = {
        name: {"seat": seat, "weights": weights_digest(assembly.members[name].policy)}
        for name, seat in evaluation_seats(assembly).items()
        if name in assembly.members
    }
    return {
        **({"seat": evaluation_seats(assembly)[assembly.member], "members": members} if members else {}),
        "whetstone": get_package_version(),
        "agent": who or f"weights {weights_digest(assembly.policy)}",
        "chat_template": _digest(str(getattr(assembly.policy.tokenizer, "chat_template", ""))),
        "chat_format": recipe.chat.format,
        "tools": _digest(json.dumps([spec.to_openai() for spec in specs], sort_keys=True)),
        "environment": {k: v for k, v in written["environment"].items() if k not in ("effects", "allow_effects")},
        "task_source": written["tasks"],
        "reward": written["reward"],
        "strategy": written["evaluation"]["strategy"],
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
    """Return a digest of a policy's weights: 16 hexadecimal digits of SHA-256."""
    digest = hashlib.sha256()
    for name, tensor in sorted(policy.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    written = json.dumps(value, default=str)
    return written if len(written) <= 80 else f"{written[:79]}…"


def _torn(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
