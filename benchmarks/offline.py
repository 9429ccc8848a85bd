"""What do stored episodes bring, alone and before online training? Two tables, several seeds, with intervals.

`quality`: data of three qualities (expert, mixed, poor), as D5RL asks of offline to online methods: success behind
training on stored episodes alone, then behind reinforcement from there on, with and without stored episodes beside the
fresh ones; and reinforcement from the same weights without any start. World: frozen-lake, or what `--recipe` names.

`start`: on recorded pages of a text shop, a semi-online walk along the record (UI-S1) and worthwhile turns first
offline, then online (DigiRL), against plain offline training, cloning of what succeeded, and reinforcement with no
start, each with as many updates.

Whatever was run in the folder is not run again. Prints tables, or one JSON object with `--json`; `--results FOLDER`
writes both there. `--toy` is a run of seconds that shows that all of it works, and nothing else.

Sources: D5RL, arXiv:2408.08441; UI-S1, arXiv:2509.11543; DigiRL, arXiv:2406.11896.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from circumstances import circumstances
from whetstone.assembly import assemble
from whetstone.assembly.assembly import Assembly
from whetstone.evaluation.comparing import paired, student
from whetstone.recipe import Resolved, load_recipe
from whetstone.record.checkpoint import checkpoint_path, latest_checkpoint
from whetstone.reporting import Progress, read_trajectories, write_trajectories
from whetstone.rollout import Independent, Plan
from whetstone.seeding import derive_seed
from whetstone.training import train
from whetstone.training.supervised import demonstrated
from whetstone.trajectory import Trajectory

_TOY = [
    "policy.tiny.hidden=16", "policy.tiny.heads=2", "policy.tiny.layers=1", "policy.tiny.intermediate=16",
    "supervised.batch_size=4", "rollout.group_size=2", "evaluation.episodes=4", "rollout.max_in_flight=16",
]  # fmt: skip
_STORED = 100_000
"""From where on tasks are taken for stored episodes; nobody trains on them online."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    warm_up: int
    """Updates of the good policy's warm-up."""
    poor: float
    """How far into it the poor policy stands, and everybody begins."""
    groups: int
    """Stored, of the recipe's group size."""
    offline: int
    online: int
    """Updates."""
    tasks_per_step: int


SIZES = {"quality": Size(150, 0.25, 256, 60, 60, 16), "start": Size(120, 0.3, 256, 60, 60, 16)}
TOY = Size(4, 0.5, 6, 2, 2, 2)


class Bench:
    """One seed: the policies it begins with, and runs from there."""

    def __init__(self, recipe: str, seed: int, folder: Path, size: Size, *, toy: bool) -> None:
        self.recipe, self.seed, self.size, self.toy = recipe, seed, size, toy
        self.folder = folder / f"{recipe}-seed-{seed}"
        self.overrides = [f"seed={seed}", "ablations=null", *(_TOY if toy else [])]
        began = max(1, round(size.poor * size.warm_up))
        changes = ["reinforcement=null", f"supervised.steps={size.warm_up}", f"supervised.checkpoint_every={began}"]
        changes += [f"supervised.keep_every={began}"]
        without = [f"{key}=null" for key in ("rollout.group_size",)]
        self._train(load_recipe(recipe, [*self.overrides, *changes, *without]), "warm-up")
        self.poor = checkpoint_path(self.folder / "warm-up", began)
        good = latest_checkpoint(self.folder / "warm-up")
        assert good is not None
        self.good = good

    def stored(self, name: str, policies: Sequence[Path | None], *, solved: bool = False) -> Path:
        """A file of episodes, group by group from one of these policies after the other; None: the source's expert,
        and beside him what the poor policy does.

        Args:
            solved: Only those that solved their task; of a toy, which solves none, all.
        """
        path = self.folder / f"{name}.jsonl"
        if not path.is_file():
            read: list[Trajectory] = []
            for k, policy in enumerate(policies):
                numbers = range(k, self.size.groups, len(policies))
                read += asyncio.run(self._sampled(self.poor if policy is None else policy, numbers, policy is None))
            read.sort(key=lambda t: int(t.id.partition("/")[0].removeprefix("group-")))
            write_trajectories(path, [t for t in read if t.score is not None and (t.solved or self.toy or not solved)])
        return path

    def run(self, name: str, stages: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """By stage, by task, the share of held-out episodes that were solved; nothing of stages another run made."""
        begun = self._begun(self.poor)
        resolved = load_recipe(self.recipe, [*begun, "supervised=null", "reinforcement=null"], stages=list(stages))
        self._train(resolved, name)
        found = {}
        for folder in sorted((self.folder / name / "stages").glob("[0-9]*")):
            told = [path for path in (folder / "trajectories").glob("evaluation-*") if "untrained" not in path.name]
            found[folder.name.partition("-")[2]] = _solved(told[0])
        return found

    def online(self, **more: Any) -> dict[str, Any]:
        """A stage of reinforcement."""
        return {"reinforcement": {"steps": self.size.online, "tasks_per_step": self.size.tasks_per_step, **more}}

    def offline(self, data: Path, steps: int | None = None) -> dict[str, Any]:
        """A stage on stored episodes."""
        steps = self.size.offline if steps is None else steps
        settings = {"data": str(data), "steps": steps, "tasks_per_step": self.size.tasks_per_step}
        return {"offline": settings, "objective": "advantage_weighted"}

    def _begun(self, checkpoint: Path) -> list[str]:
        own = [each for each in self.overrides if not each.startswith(("policy.tiny", "supervised"))]
        return [*own, "policy.tiny=null", f"policy.path={checkpoint}"]

    async def _sampled(self, policy: Path, numbers: Sequence[int], expert: bool) -> list[Trajectory]:
        changes = [*self._begun(policy), "supervised=null", f"reinforcement.steps={self.size.online}"]
        assembly = assemble(load_recipe(self.recipe, changes))
        size = assembly.resolved.recipe.rollout.group_size
        engine = assembly.engine()
        found: list[Trajectory] = []
        try:
            actor = assembly.policy_actor(engine, temperature=1.0)
            plans = [_plan(assembly, number) for number in numbers]
            async for group in assembly.collector(actor).groups(plans, Independent(group_size=size - expert)):
                found += group.trajectories
        finally:
            await engine.close()
        if expert:
            shown = await demonstrated(assembly, _STORED + numbers[0], len(numbers))
            found += [replace(t, id=f"group-{k}/{t.id}#expert") for k, t in zip(numbers, shown, strict=True)]
        return found

    def _train(self, resolved: Resolved, name: str) -> None:
        there = self.folder / name
        others = [path.parent for path in sorted(self.folder.glob("*/stages")) if path.parent != there]
        resumed = (there / "recipe.yaml").is_file()
        train(resolved, there, resume=resumed, progress=Progress(quiet=True), reuse_from=others)
        print(f"seed {self.seed}: {name}", flush=True)


def _plan(assembly: Assembly, number: int) -> Plan:
    seed = derive_seed(assembly.resolved.recipe.seed, "stored", number)
    return Plan(assembly.source.task(_STORED + number), seed, number, f"group-{number}/")


def _solved(path: Path) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for trajectory in read_trajectories(path):
        if trajectory.score is not None:
            by_task.setdefault(trajectory.task_id, []).append(trajectory.solved)
    return {task: fmean(each) for task, each in by_task.items()}


Found = dict[str, dict[str, float]]
"""By contender, by task, the share that was solved."""


def quality(bench: Bench) -> Found:
    """Data of three qualities: alone, and before reinforcement."""
    data = {
        "expert": bench.stored("expert", [bench.good], solved=True),
        "mixed": bench.stored("mixed", [bench.good, bench.poor]),
        "poor": bench.stored("poor", [bench.poor]),
    }
    found: Found = {"none, online": bench.run("none", [bench.online()])["reinforcement"]}
    for name, path in data.items():
        plain = bench.run(name, [bench.offline(path), bench.online()])
        beside = bench.run(f"{name}-beside", [bench.offline(path), bench.online(stored={"data": str(path)})])
        found |= {f"{name}, offline": plain["offline"], f"{name}, online": plain["reinforcement"]}
        found[f"{name}, online beside stored"] = beside["reinforcement"]
    return found


def start(bench: Bench) -> Found:
    """A start on a record against none, and against plain offline training; each with as many updates."""
    size = bench.size
    record = bench.stored("record", [None])
    updates = size.offline + size.online
    walked = {
        "rollout": {"environment_wrapper": {"name": "log_replay", "patches": 2}},
        "reward": "followed",
        "advantage": "ui_s1",
    }
    judged = {"advantage": "digirl", "critic": {"loss": "success"}, "objective": "policy_gradient"}
    half = {"steps": updates // 2}
    surprising = {"rollout": {"trajectory_filters": [{"name": "surprising", "quantile": 0.8}]}}
    begun, online = bench.offline(record, updates // 2), bench.online(**half)
    again = {"name": "online", **online}
    cloned = {"supervised": {"data": str(record), "steps": updates, "batch_size": size.tasks_per_step}}
    contenders: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "no start, online": ("none", [bench.online(steps=updates)]),
        "offline": ("offline", [bench.offline(record, updates)]),
        "cloning of successes": ("cloned", [cloned]),
        "offline, then online": ("offline-online", [begun, online]),
        "semi-online, then online": ("semi-online", [online | walked, again]),
        "DigiRL, offline, then online": ("digirl", [begun | judged, online | judged | surprising]),
    }
    return {name: list(bench.run(kept, stages).values())[-1] for name, (kept, stages) in contenders.items()}


TABLES: dict[str, tuple[Callable[[Bench], Found], str]] = {
    "quality": (quality, "frozen-lake"),
    "start": (start, "web-shop"),
}


def measured(table: str, recipe: str, seeds: int, folder: Path, *, toy: bool) -> dict[str, Any]:
    """What every contender came to, and every pair of them."""
    rows, _ = TABLES[table]
    size = TOY if toy else SIZES[table]
    by_seed = [rows(Bench(recipe, seed, folder, size, toy=toy)) for seed in range(seeds)]
    told = {}
    for name in by_seed[0]:
        success = [fmean(found[name].values()) for found in by_seed]
        low, high, _ = student(success)
        told[name] = {"success": success, "mean": fmean(success), "interval": [low, high]}
    pairs = paired({name: {seed: found[name] for seed, found in enumerate(by_seed)} for name in by_seed[0]})
    return {
        "table": table,
        "recipe": recipe,
        "size": asdict(size),
        "contenders": told,
        "pairs": list(map(asdict, pairs)),
    }


def table_of(told: Mapping[str, Any]) -> str:
    """As Markdown: each contender, and its difference from the first."""
    first = next(iter(told["contenders"]))
    against = {pair["other"]: pair for pair in told["pairs"] if pair["one"] == first}
    seeds = len(told["contenders"][first]["success"])
    lines = [
        f"{told['recipe']}, {seeds} seeds; success on held-out tasks with its 95 % interval over seeds (Student's t)",
        "",
        f"| | success | less `{first}` | p (seeds, corrected) |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in told["contenders"].items():
        low, high = row["interval"]
        cell = f"| {name} | {row['mean']:.1%} [{low:.1%}, {high:.1%}] |"
        pair = against.get(name)
        if pair is None:
            lines.append(f"{cell} | |")
            continue
        low, high = (0.0 - bound for bound in reversed(pair["interval"]))
        lines.append(f"{cell} {0.0 - pair['difference']:+.1%} [{low:+.1%}, {high:+.1%}] | {pair['p_seeds']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--recipe", help="the world; default: frozen-lake, and web-shop for start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where runs are kept; what is there is not run again")
    parser.add_argument("--toy", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", type=Path, help="also write the JSON object and the table into this folder")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as passing:
        folder = arguments.folder or Path(passing)
        recipe = arguments.recipe or TABLES[arguments.table][1]
        found = measured(arguments.table, recipe, arguments.seeds, folder, toy=arguments.toy)
    told = {
        "name": f"offline_{arguments.table}",
        "measured": found,
        "ratios": {},
        "goal": "a start on stored episodes is worth more than none, and more the better they are",
        "bound": "what the same updates come to online, with no start",
        **circumstances(began),
    }
    if arguments.results:
        (arguments.results / f"{told['name']}.json").write_text(json.dumps(told, indent=1) + "\n")
        (arguments.results / f"{told['name']}.md").write_text(table_of(found))
    print(json.dumps(told) if arguments.json else table_of(found))


if __name__ == "__main__":
    main()
