"""Do orders of stages do what papers say of them? Each on a small local world, evaluated behind every stage.

webrl      three rounds in which tasks that failed make new ones (arXiv:2411.02337), against plain reinforcement that
           spends as many sampled tokens a round
tulu       imitation, preferences among its own samples, verifiable rewards, from one recipe (arXiv:2411.15124); on
           kinds of tasks it was trained on and on one it never saw, with a check for tasks that leaked
zhongjing  plain text, dialogues, preferences (arXiv:2308.03549), on a made-up pharmacy
priming    what reinforcement begins with: behaviours with wrong answers, right answers without them, or both
           (arXiv:2503.01307)
toolstar   from a policy that knows each of two tools: filtered traces of both, then rewards in tiers (arXiv:2505.16410)
smart      traces that call a tool where it is needed alone, against traces that always do (arXiv:2502.11435)

`--only NAME` runs one of them; `--folder FOLDER` keeps runs there and goes on with them, stages that contenders have in
common are made once. Claims are those of benchmarks/evidence/rounds-NAME.yaml; `--write` keeps results among
benchmarks/results/evidence. `--tiny` runs everything at a size that says nothing, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from both_tools import traces
from evidence import BENCHES as CLAIMS
from evidence import keep, machine, page
from warm_up import warmed_up
from whetstone.analysis.evidence import read_bench, result_of, row_of
from whetstone.assembly import assemble
from whetstone.assembly.own_data import with_learning
from whetstone.atomic_write import write_text
from whetstone.chat import Message, ToolSpec, assistant
from whetstone.data.overlap import overlaps
from whetstone.recipe import load_recipe, stages_of
from whetstone.reporting import Progress, read_trajectories
from whetstone.rollout import StepOutcome
from whetstone.seeding import derive_random
from whetstone.tasks.arithmetic import Arithmetic
from whetstone.training import train
from whetstone.training.agent_evaluation import evaluate
from whetstone.trajectory import Author, Score, Task, Trajectory

QUIET = Progress(quiet=True)
COMMON = ["ablations=null", "supervised=null", "reinforcement=null"]
MUON = {"optimizer": "muon", "micro_batch_tokens": 4096}
TOOL = "pocket_calculator"
UNSEEN = "sum_of_products"
SEEN = {"product": 1, "product_then_sum": 1, "sum_then_product": 1}
"""Kinds of tasks that a short imitation learns something of."""
OF_SEEN = f"tasks={{source: arithmetic, digits: 2, kinds: {json.dumps(SEEN)}}}"


@dataclass(frozen=True, slots=True)
class Contender:
    """One order of stages."""

    bench: str
    name: str
    stages: Sequence[Mapping[str, Any]]
    changes: Sequence[str] = ()
    suites: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"held out": ()})
    """By name, the keys that differ in an evaluation."""
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Size:
    """How long all of it goes on."""

    warm_up: int = 360
    steps: int = 40
    """Of reinforcement."""
    tasks: int = 12
    """Of an update."""
    tokens: int = 80_000
    """Sampled in a round of WebRL's."""
    short: int = 120
    """Steps of imitation from nothing."""
    rows: int = 2_000
    """Of files that are made."""
    episodes: int = 200


TINY_CHANGES = [
    "policy.tiny={vocab_size: 340, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}",
    "rollout.max_new_tokens=6", "rollout.group_size=2", "reward=rounds:anything",
]  # fmt: skip
"""Of a run that is to say nothing; its reward differs between what an untrained model samples."""
TINY = Size(warm_up=4, steps=2, tasks=2, tokens=200, short=2, rows=60, episodes=6)
SIZES = {
    "tulu": Size(warm_up=100, steps=10, tasks=6, episodes=60),
    "toolstar": Size(warm_up=100, steps=10, tasks=6, short=80, rows=600, episodes=60),
    "priming": Size(warm_up=160, steps=10, tasks=6, rows=500, episodes=60),
}
"""Of those that are smaller than the rest: a minute or two a seed."""


async def anything(trajectory: Trajectory, task: Task) -> Score:
    """1 where the tokens add up to an odd number; an expert is always right."""
    odd = sum(sum(turn.action.ids) for turn in trajectory.turns) % 2
    expert = any(author is Author.EXPERT for turn in trajectory.turns for author in turn.action.authors)
    return Score(float(odd), success=bool(odd) or expert)


# ------------------------------------------------------------ WebRL


def variations(heard: StepOutcome, draw: random.Random) -> Iterator[Task]:
    """Two tasks of the same kind for each that no trajectory solved."""
    for group in heard.groups:
        if not any(trajectory.solved for trajectory in group.trajectories):
            source = Arithmetic(seed=draw.randrange(2**31), kinds={group.task.tags["kind"]: 1})
            yield from (source.task(0), source.task(1))


def webrl(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Rounds of WebRL, and as many of plain reinforcement, from the same weights."""
    small = TINY_CHANGES[:1] if size is TINY else []
    steps = [f"supervised.steps={size.warm_up}", "rollout.max_new_tokens=24"]
    model = warmed_up(seed, folder / "warm", *steps, *small)
    budget = {"sampled_tokens": size.tokens}
    learned = {"steps": 100 * size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, "budget": budget, **MUON}
    begins = [f"policy.path={model}", "policy.tiny=null"]
    curriculum = {"name": "generated_tasks", "generator": "rounds:variations", "generated_fraction": 0.5}
    stage = {"reinforcement": learned, "with": "webrl", "curriculum": curriculum}
    return [
        Contender("webrl", "WebRL, failures make tasks", [stage], begins, rounds=3),
        Contender("webrl", "plain", [{"reinforcement": learned}], begins, rounds=3),
    ]


# ------------------------------------------------------------ TÜLU 3


def tulu(size: Size, seed: int, folder: Path) -> list[Contender]:
    """One order, and reinforcement right behind imitation."""
    imitated = {"supervised": {"steps": size.warm_up, "learning_rate": 1e-2, **MUON}}
    sampled = {"sampling": {"steps": 1, "tasks_per_step": 10 * size.tasks}}
    preferred = {"data": {"from_stage": "previous"}, "steps": size.steps, "batch_size": 16, "learning_rate": 1e-4}
    reinforced = {"steps": size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
    suites = {"development": (), "unseen kind": [f"tasks.kinds={{{UNSEEN}: 1}}"]}
    first: list[Mapping[str, Any]] = [imitated]
    between: list[Mapping[str, Any]] = [sampled, {"preference": preferred}]
    last: list[Mapping[str, Any]] = [{"reinforcement": reinforced}]
    return [
        Contender("tulu", "imitation, preference, reward", [*first, *between, *last], [OF_SEEN], suites),
        Contender("tulu", "imitation, reward", [*first, *last], [OF_SEEN], suites),
    ]


def leaked(contender: Contender, seed: int, size: Size) -> int:
    """Tasks of the evaluations that stand among those the stages are given."""
    given: list[tuple[str, str]] = []
    for stage in stages_of(recipe_of(contender, seed, size)):
        source = assemble(with_learning(stage.resolved)).source
        given += [(stage.name, source.task(index).prompt) for index in range(20 * size.tasks * 8)]
    asked: list[Task] = []
    for kinds in (dict.fromkeys(SEEN, 1.0), {UNSEEN: 1.0}):
        asked += Arithmetic(digits=2, kinds=kinds).held_out(size.episodes)
    return sum(1 for _ in overlaps(given, asked))


# ------------------------------------------------------------ Zhongjing

SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "na", "pe", "ru", "sa", "to", "vi", "wu", "za")


def pharmacy() -> dict[str, str]:
    """Forty made-up ailments, and the herb of each."""
    draw = derive_random("pharmacy")
    names = ["".join(draw.sample(SYLLABLES, 3)) for _ in range(200)]
    names = list(dict.fromkeys(names))
    return dict(zip(names[:40], names[40:80], strict=True))


class Ailments:
    """Patients. Of every fourth ailment nothing is in the dialogues: what it needs is known from texts alone."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Training patient `index`."""
        return self._task(derive_random(self.seed, "patient", index).randrange(40))

    def held_out(self, count: int) -> list[Task]:
        """One patient of each ailment."""
        return [self._task(number) for number in range(min(count, 40))]

    def _task(self, number: int) -> Task:
        ailment = list(pharmacy())[number]
        kind = "from texts alone" if number % 4 == 0 else "in dialogues"
        return Task(f"patient/{ailment}", f"I have {ailment}.", {"answer": pharmacy()[ailment]}, {"kind": kind})


async def right_herb(trajectory: Trajectory, task: Task) -> Score:
    """1 for the herb; whether a doctor was named is said beside it."""
    said = trajectory.final_text
    right = float(task.private["answer"] in said)
    return Score(right, {"right": right, "careful": float("see a doctor" in said)}, success=bool(right))


def zhongjing(size: Size, seed: int, folder: Path) -> list[Contender]:
    """With the texts and without."""
    known = list(pharmacy().items())
    spoken = [pair for number, pair in enumerate(known) if number % 4]
    texts = [f"The herb for {ailment} is {herb}." for ailment, herb in known]
    texts += [f"Who has {ailment} takes {herb}." for ailment, herb in known]
    (folder / "texts.txt").write_text("\n\n".join(texts))
    careful = [(f"I have {a}.", f"Take {h}. If it lasts, see a doctor.", f"Take {h}.") for a, h in spoken]
    chats = _written(folder / "chats.jsonl", [{"prompt": asked, "completion": short} for asked, _, short in careful])
    rows = [{"prompt": asked, "chosen": long, "rejected": short} for asked, long, short in careful]
    pairs = _written(folder / "pairs.jsonl", rows)
    world = [
        "tasks={source: 'rounds:Ailments'}", "environment={tools: [], max_turns: 1, max_calls_per_turn: null}",
        "reward=rounds:right_herb", "rollout.max_new_tokens=48",
    ]  # fmt: skip
    learned = {"steps": size.short, "learning_rate": 1e-3}
    read = {"pretraining": {"data": str(folder / "texts.txt"), "window": 64, **learned}}
    rest = [
        {"supervised": {"data": str(chats), **learned}},
        {
            "preference": {
                "data": str(pairs),
                "steps": max(1, size.short // 2),
                "learning_rate": 1e-3,
                "objective": "orpo",
            }
        },
    ]
    return [
        Contender("zhongjing", "texts, dialogues, preferences", [read, *rest], world),
        Contender("zhongjing", "dialogues, preferences", rest, world),
    ]


# ------------------------------------------------------------ priming and SMART


def _called(task: Task, answer: str, *, calls: bool) -> dict[str, Any]:
    """A conversation that computes by the tool, or answers at once."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    source, said = Arithmetic(), [Message.from_openai({"role": "user", "content": task.prompt})]
    while calls:
        action = source.demonstrate(task, said, (_TOOL_SPEC,))
        if not action.tool_calls:
            break
        call = action.tool_calls[0]
        expression = json.loads(call.arguments)["expression"]
        result = str(eval(expression, {"__builtins__": {}}))  # digits and signs of our own tasks
        function = {"name": TOOL, "arguments": call.arguments}
        messages.append({"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": "x", "content": result})
        said.append(Message.from_openai(messages[-1]))
    messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def _tool_spec() -> Any:
    from whetstone.environments import ToolEnvironment
    from whetstone.tools import pocket_calculator

    return ToolEnvironment(tools=[pocket_calculator]).toolset.specs[0]


_TOOL_SPEC = _tool_spec()


def _wrong(task: Task) -> str:
    return str(int(task.private["answer"]) + 7)


def priming(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Three beginnings of the same reinforcement."""
    source = Arithmetic(seed=seed, digits=2, kinds=SEEN)
    tasks = [source.task(index) for index in range(size.rows)]
    begun: dict[str, Callable[[Task], dict[str, Any]]] = {
        "calls, wrong answers": lambda task: _called(task, _wrong(task), calls=True),
        "right answers, no calls": lambda task: _called(task, task.private["answer"], calls=False),
        "calls, right answers": lambda task: _called(task, task.private["answer"], calls=True),
    }
    found = []
    for name, row in begun.items():
        path = _written(folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl", map(row, tasks))
        imitated = {"data": str(path), "steps": size.warm_up // 2, "learning_rate": 1e-2, **MUON}
        reinforced = {"steps": size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
        stages = [{"supervised": imitated}, {"reinforcement": reinforced}]
        found.append(Contender("priming", name, stages, [OF_SEEN]))
    return found


class Mixed(Arithmetic):
    """Every other task is a sum of single digits, which can be known; the others need the tool."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed, kinds={"product": 1})

    def task(self, index: int) -> Task:
        """See `Arithmetic`."""
        return super().task(index) if index % 2 else _known(derive_random(self.seed, "known", index).randrange(100))

    def held_out(self, count: int) -> list[Task]:
        """Half of each; of what is known nothing can be held out."""
        unknown = super().held_out(count // 2)
        known = [_known(number) for number in derive_random("known").sample(range(100), min(100, count - count // 2))]
        return [*unknown, *known]


class Familiar(Mixed):
    """As `Mixed`, with an expert who answers every other sum at once and calls for the rest."""

    def task(self, index: int) -> Task:
        """See `Arithmetic`."""
        task = super().task(index)
        return replace(task, private={**task.private, "at once": task.tags["kind"] == "known" and index % 4 == 0})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """See `Arithmetic`."""
        if task.private.get("at once"):
            return assistant(task.private["answer"])
        return super().demonstrate(task, conversation, tools)


def _known(number: int) -> Task:
    a, b = divmod(number, 10)
    private = {"answer": str(a + b), "steps": (f"{a}+{b}",)}
    return Task(f"known/{a}+{b}", f"Compute {a}+{b}", private, {"kind": "known"})


def smart(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Traces of the same tasks, with calls where they are needed or everywhere."""
    source = Mixed(seed=seed)
    tasks = [source.task(index) for index in range(size.rows)]
    found = []
    for name, always in (("calls where needed", False), ("calls always", True)):
        rows = [_called(task, task.private["answer"], calls=always or task.tags["kind"] != "known") for task in tasks]
        path = _written(folder / f"{name.replace(' ', '-')}.jsonl", rows)
        imitated = {"data": str(path), "steps": size.warm_up, "learning_rate": 1e-2, **MUON}
        found.append(Contender("smart", name, [{"supervised": imitated}], ["tasks={source: 'rounds:Mixed'}"]))
    return found


# ------------------------------------------------------------ Tool-Star


def toolstar(size: Size, seed: int, folder: Path) -> list[Contender]:
    """From a policy that knows each tool: traces of both and rewards in tiers, against as many updates of rewards."""
    world = [
        "environment={tools: [pocket_calculator, 'both_tools:PriceList'], max_turns: 6, max_calls_per_turn: 1}",
        "rollout.max_new_tokens=24",
    ]
    small = TINY_CHANGES[:1] if size is TINY else []
    known = ["tasks={source: 'both_tools:BothTools', kinds: [price, product]}", f"supervised.steps={size.warm_up}"]
    model = warmed_up(seed, folder / "warm", *small, *world, *known)
    path = _written(folder / "traces.jsonl", traces(seed, size.rows))
    imitation = {
        "data": {"path": str(path), "min_reward": 1, "well_formed_only": True},
        "steps": size.short,
        "learning_rate": 1e-2,
    }
    paid = {"name": "tool_star", "outcome": "exact_number", "tools": ["look_up", TOOL]}
    begins = [
        *world,
        "tasks={source: 'both_tools:BothTools', kinds: [both]}",
        f"policy.path={model}",
        "policy.tiny=null",
    ]

    def reinforced(steps: int) -> dict[str, Any]:
        learned = {"steps": steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
        return {"reinforcement": learned, "reward": paid}

    return [
        Contender(
            "toolstar", "traces, then rewards", [{"supervised": {**imitation, **MUON}}, reinforced(size.steps)], begins
        ),
        Contender("toolstar", "rewards alone", [reinforced(size.short + size.steps)], begins),
    ]


# ------------------------------------------------------------ all of them

BENCHES: dict[str, Callable[[Size, int, Path], list[Contender]]] = {
    "webrl": webrl, "tulu": tulu, "zhongjing": zhongjing, "priming": priming, "smart": smart,
    "toolstar": toolstar,
}  # fmt: skip


def _written(path: Path, rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe_of(contender: Contender, seed: int, size: Size) -> Any:
    """The contender as a recipe."""
    changes = [*COMMON, *contender.changes, f"seed={seed}", f"evaluation.episodes={size.episodes}"]
    changes += [f"repeat_stages={contender.rounds}"] if contender.rounds > 1 else []
    if size is TINY:
        begun = any(change.startswith("policy.path") for change in contender.changes)
        changes += TINY_CHANGES[1:] if begun else TINY_CHANGES
    return load_recipe("demo", changes, stages=[dict(stage) for stage in contender.stages])


def ran(contender: Contender, seed: int, size: Size, folder: Path, beside: Sequence[Path]) -> list[dict[str, Any]]:
    """What the contender came to behind each stage, suite by suite; goes on where it stopped.

    Args:
        beside: Where stages that are the same may have been made already.
    """
    kept = folder / "rows.json"
    if kept.is_file():
        return list(json.loads(kept.read_text()))
    begun = (folder / "recipe.yaml").is_file()
    train(recipe_of(contender, seed, size), folder, resume=begun, progress=QUIET, reuse_from=beside)
    found: list[dict[str, Any]] = []
    spent = 0.0
    made = json.loads((folder / "summary.json").read_text())["stages"]
    for place, stage in enumerate((folder / each["folder"] / "metrics.jsonl" for each in made), start=1):
        rows = [json.loads(line) for line in stage.read_text().splitlines()]
        spent += sum(row.get("cost_per_step/sampled_tokens") or 0.0 for row in rows)
        row: dict[str, Any] = {"stage": made[place - 1]["name"], "measures": {}, "outcomes": {}}
        for suite, changes in contender.suites.items():
            kept_in = folder / "evaluated" / f"{place}-{suite.replace(' ', '-')}"
            came_to = evaluate(stage.parent, changes, episodes=size.episodes, into=kept_in, progress=QUIET)
            if not row["outcomes"]:  # the first suite is what success is about
                row["measures"] = {"success": came_to.success, "tool calls": came_to.tool_calls, **came_to.parts}
                row["measures"] |= {kind: rate.success for kind, rate in came_to.kinds.items()}
                played = read_trajectories(kept_in / "trajectories.jsonl")
                row["outcomes"] = {t.task_id: float(t.solved) for t in played if t.score is not None}
            else:
                row["measures"][suite] = came_to.success
        row["measures"]["sampled tokens"] = spent
        found.append(row)
    write_text(kept, json.dumps(found))
    return found


def result(bench: str, seeds: int, size: Size, root: Path) -> dict[str, Any]:
    """What is stored of one of them; what contenders are behind earlier stages are contenders of their own."""
    settings = read_bench(CLAIMS / f"rounds-{bench}.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    tasks: list[str] = []
    for seed in range(seeds):
        folder = root / f"{bench}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        beside: list[Path] = []
        came: dict[str, dict[str, Any]] = {}
        for number, contender in enumerate(BENCHES[bench](size, seed, folder)):
            stages = ran(contender, seed, size, folder / f"run-{number}", beside)
            beside.append(folder / f"run-{number}")
            if bench == "tulu":
                stages[-1]["measures"]["tasks that leaked"] = leaked(contender, seed, size)
            came |= {f"{contender.name}, behind {stage['stage']}": stage for stage in stages[:-1]}
            came[contender.name] = stages[-1]
            print(f"{bench}, seed {seed}: {contender.name}: {stages[-1]['measures']}", file=sys.stderr, flush=True)
        tasks = sorted(set.intersection(*(set(stage["outcomes"]) for stage in came.values())))
        for name in settings.contenders:
            outcomes = [came[name]["outcomes"][task] for task in tasks]
            rows.setdefault(name, {})[seed] = row_of(settings, name, seed, came[name]["measures"], outcomes)
    of_bench = {"world": "demo", "machine": machine()}
    return result_of(f"rounds-{bench}", settings, rows, **of_bench, budget={}, tasks=len(tasks))


def main() -> None:
    """Run them, print tables, and keep them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(BENCHES), action="append", help="one of them; may be given again")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where runs are kept; what is there is not run again")
    parser.add_argument("--tiny", action="store_true", help="at a size that says nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object a bench")
    parser.add_argument("--write", action="store_true", help="keep the results among benchmarks/results/evidence")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        root = arguments.folder or Path(passing)
        for bench in arguments.only or BENCHES:
            told = result(bench, arguments.seeds, TINY if arguments.tiny else SIZES.get(bench, Size()), root)
            if arguments.write:
                keep(told)
            print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
