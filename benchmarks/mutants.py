"""Which changes of the code would no test notice? Mutants of algorithms/ and rewards/ meet the tests that run them.

A mutant is a file with one small change: another operator, a number plus one, an argument left out. mutmut makes most
of them (`mutmut.mutation.mutators`); those that matter for tensors and guards are made here. Its runner is not used: it
leaves alone what is outside functions (tables, defaults of dataclasses) and stands functions in for each other, so that
`inspect.signature`, by which recipes read options, never sees a mutant's defaults.

The tests run once, in a copy of the repository, to learn which of them run which line. Then each mutant is written into
the copy, and a fork of this process (other packages imported, ours not) runs those tests, the quickest first, until one
fails. hypothesis draws few examples, and always the same. One process at idle priority; results are appended as they
come, and those that are there are not computed again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import libcst as cst
import pytest
import torch
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parents[1]
SOURCE = "src/whetstone"
FOLDERS = ("algorithms", "rewards")
TESTS = (
    "tests/algorithms",
    "tests/rewards",
    *(f"tests/training/test_{name}.py" for name in ("credit", "sequences", "losses")),
)
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.jsonl")
"""Mutants that do the same as the original, each with the reason."""
EXAMPLES = 12
_GIBIBYTE = 2**30
_OTHER_NAMES = {
    **{"min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum"},
    **{"mean": "sum", "sum": "mean", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"},
    **{"zeros": "ones", "ones": "zeros", "zeros_like": "ones_like", "ones_like": "zeros_like"},
}


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: str
    line: int
    where: str
    """The function or class, dotted; empty at the top."""
    before: str
    """The lines that change, without indentation."""
    after: str
    apart: str
    """The class of changes it belongs to that are not tested; empty for most."""
    lines: range
    """What runs when the changed statement does."""
    source: str

    @property
    def id(self) -> tuple[str, str, str, str]:
        """Stays as it is while other lines change."""
        return self.file, self.where, self.before, self.after


@dataclass(frozen=True)
class _Place:
    """Where in a file a node is."""

    where: str = ""
    apart: str = ""
    lines: range = range(0)


def negated(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A condition the other way round."""
    if isinstance(node, cst.If | cst.While | cst.CompIf):
        parenthesised = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), parenthesised))


def dropped(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A call for its effect, or a raise, left out; a method without arguments not called."""
    if isinstance(node, cst.Raise) or (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call | cst.Await)):
        yield cst.Pass()
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
        yield node.func.value


def unbounded(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A tensor without its clamp, or detached no more."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "clamp":
        yield node.func.value


def other_name(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The largest instead of the smallest, the sum instead of the mean."""
    if not isinstance(node, cst.Call):
        return
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _OTHER_NAMES:
        name = cst.Name(_OTHER_NAMES[node.func.attr.value])
        yield node.with_changes(func=node.func.with_changes(attr=name))
    if isinstance(node.func, cst.Name) and node.func.value in ("min", "max", "any", "all"):
        yield node.with_changes(func=cst.Name(_OTHER_NAMES[node.func.value]))


def replacements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What may stand in a node's place; of strings one change, where mutmut has three."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            found = list(operator(node))
            yield from found[:1] if kind is cst.BaseString else found
    for ours in (negated, dropped, unbounded, other_name):
        yield from ours(node)


def mutants_of(file: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    text = (root / file).read_text()
    wrapper = MetadataWrapper(cst.parse_module(text))
    positions, tree = wrapper.resolve(PositionProvider), wrapper.module
    seen: set[str] = set()

    def visit(node: cst.CSTNode, place: _Place) -> Iterator[Mutant]:
        spot = positions.get(node)
        place = _inside(node, place, spot, positions)
        for other in replacements(node):
            changed = tree.deep_replace(node, other).code
            if changed in seen or changed == text:
                continue
            seen.add(changed)
            before, after = _difference(text, changed)
            yield Mutant(file, spot.start.line, place.where, before, after, place.apart, place.lines, changed)
        inner = replace(place, apart=place.apart or "texts of errors") if isinstance(node, cst.Raise) else place
        for child in node.children:
            yield from visit(child, inner)

    yield from visit(tree, _Place())


def _inside(node: cst.CSTNode, place: _Place, spot: Any, positions: Mapping[cst.CSTNode, Any]) -> _Place:
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        place = replace(place, where=".".join(filter(None, (place.where, node.name.value))))
    if isinstance(node, cst.Annotation) or (
        isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
    ):
        place = replace(place, apart="annotations")
    if isinstance(node, cst.Decorator):
        place = replace(place, apart="decorators")
    if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
        name, value = node.targets[0].target.value, node.value
        generic = isinstance(value, cst.Subscript | cst.BinaryOperation) and not name.isupper()
        if name == "__all__":
            place = replace(place, apart="`__all__`")
        elif not place.where and generic and name.lstrip("_")[:1].isupper():
            place = replace(place, apart="annotations")
    if isinstance(node, cst.SimpleStatementLine):
        place = replace(place, lines=range(spot.start.line, spot.end.line + 1))
    elif isinstance(node, cst.BaseCompoundStatement):
        body = positions[node.body].start.line if isinstance(node.body, cst.CSTNode) else spot.end.line
        place = replace(place, lines=range(spot.start.line, max(spot.start.line + 1, body)))
    return place


def _difference(before: str, after: str) -> tuple[str, str]:
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    gone, come = (
        "\n".join(line[2:].strip() for line in lines if line.startswith(sign) and line[2:].strip()) for sign in "-+"
    )
    return gone, come


def files_of(folders: Sequence[str], root: Path = ROOT) -> list[str]:
    """The files under these folders or of these names, as paths from the root."""
    found: list[Path] = []
    for folder in folders:
        place = root / folder if folder.startswith("src") else root / SOURCE / folder
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [str(path.relative_to(root)) for path in found]


@dataclass
class Survey:
    """What the tests do when nothing is changed."""

    seconds: dict[str, float]
    """Of each test that passes."""
    failing: list[str]
    """These judge no mutant."""
    running: dict[str, dict[int, list[str]]]
    """Of each file and line the tests that run it."""
    plain: list[str]
    """Files of tests that need no fixture of tests_fixtures.py."""
    imported: list[str]
    """Packages that are not ours."""

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run what was changed; where none does (tables, defaults), those of the file and the room."""
        lines = self.running.get(mutant.file, {})
        found = {test for line in mutant.lines for test in lines.get(line, ())}
        if not found:
            found = {test for tests in lines.values() for test in tests}
            beside = f"tests/{'/'.join(Path(mutant.file).parts[2:-1])}/test_{Path(mutant.file).stem}.py::"
            found |= {test for test in self.seconds if test.startswith(beside)}
            found |= {test for test in self.seconds if test.startswith(f"tests/{Path(mutant.file).parts[2]}/test_")}
        if not lines:  # a file that runs in another process
            found |= {test for test in self.seconds if test.startswith(beside.rpartition("/")[0])}
        if not found or Path(mutant.file).stem == "__init__":
            folder = str(Path(mutant.file).parent)
            found |= {
                test
                for file, of_file in self.running.items()
                if file.startswith(folder)
                for tests in of_file.values()
                for test in tests
            }
        return sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test])


class _Watching:
    """Notes which lines each test runs, and how long it takes."""

    def __init__(self, recording: coverage.Coverage) -> None:
        self.recording = recording
        self.seconds: dict[str, float] = defaultdict(float)
        self.failing: set[str] = set()
        self.needy: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        shared = _names_of_fixtures(Path("tests/tests_fixtures.py"))
        self.needy = {_file(item.nodeid) for item in items if shared & set(getattr(item, "fixturenames", ()))}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.recording.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.recording.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.failing.add(report.nodeid)


class _Picking:
    """Runs some tests, the quickest first, and notes which failed."""

    def __init__(self, order: Sequence[str], known: Collection[str], told: Path) -> None:
        self.order, self.known, self.told = {test: i for i, test in enumerate(order)}, known, told

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests that are not known have got their names from the mutant."""
        last = len(self.order)
        kept = [item for item in items if item.nodeid in self.order or item.nodeid not in self.known]
        items[:] = sorted(kept, key=lambda item: self.order.get(item.nodeid, last))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "failed" and not self.told.exists():
            self.told.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed" and not self.told.exists():
            self.told.write_text(f"{report.nodeid} (collecting)")


def _names_of_fixtures(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Copy:
    """A copy of the repository in which files are changed, and forks that run tests in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        left = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "runs", "build")
        shutil.copytree(ROOT, self.tree, ignore=left)
        if (ROOT.parent / "shared").exists():  # data that some tests read
            (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
        os.chdir(self.tree)
        paths = [str(self.tree / name) for name in ("src", "tests", "benchmarks")]
        sys.path[:0] = paths
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is not changed is compiled once
        sys.dont_write_bytecode = False
        torch.set_num_threads(1)

    def survey(self, tests: Sequence[str], examples: int) -> Survey:
        """Run the tests with nothing changed."""
        told = self.folder / "survey.json"
        code = self.forked(lambda: self._survey(tests, examples, told), processor=3600, wall=7200)
        if not told.exists():
            raise RuntimeError(f"the tests did not run: {code}\n{(self.folder / 'said').read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(told.read_text())
        found["running"] = {
            file: {int(line): tests for line, tests in lines.items()} for file, lines in found["running"].items()
        }
        return Survey(**found)

    def _survey(self, tests: Sequence[str], examples: int, told: Path) -> int:
        recording = coverage.Coverage(data_file=None, source=[str(self.tree / SOURCE / name) for name in FOLDERS])
        recording.start()
        watching = _Watching(recording)
        code = self.tested([*tests, "-m", "not slow"], examples, watching)
        recording.stop()
        data = recording.get_data()
        running = {}
        for path in data.measured_files():
            lines = {line: sorted(filter(None, of)) for line, of in data.contexts_by_lineno(path).items()}
            running[str(Path(path).relative_to(self.tree))] = {line: of for line, of in lines.items() if of}
        passing = {test: s for test, s in watching.seconds.items() if test not in watching.failing}
        ours = str(self.tree)
        found = {
            "seconds": passing,
            "failing": sorted(watching.failing),
            "running": running,
            "plain": sorted({_file(test) for test in passing} - watching.needy),
            "imported": [
                name
                for name, module in list(sys.modules.items())
                if not str(getattr(module, "__file__", None) or "").startswith(ours)
                and name.partition(".")[0] not in ("whetstone", "__main__", "__mp_main__", "tests")
            ],
        }
        told.write_text(json.dumps(found))
        return code

    def tested(self, what: Sequence[str], examples: int, plugin: object) -> int:
        """Exit code of pytest."""
        hypothesis.settings.register_profile(
            "mutants",
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # which example it was matters to nobody
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.settings.load_profile("mutants")
        base = ["-p", "no:cacheprovider", "--basetemp", str(self.folder / "tmp"), "--tb=line", "-W", "ignore"]
        return int(pytest.main([*what, *base], plugins=[plugin]))

    def preload(self, names: Sequence[str]) -> None:
        """Import what forks would each import again."""
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        # what is here stays: collectors of forks need not look at it
        gc.collect()
        gc.freeze()

    def meet(self, mutant: Mutant, survey: Survey, examples: int) -> dict[str, Any]:
        """What became of a mutant: killed and by which test, or survived."""
        tests = survey.tests_of(mutant)
        path = self.tree / mutant.file
        original, status = path.read_text(), path.stat()
        told = self.folder / "killer"
        told.unlink(missing_ok=True)
        files = list(dict.fromkeys(_file(test) for test in tests))
        alone = ["--noconftest"] if set(files) <= set(survey.plain) else []

        def run() -> int:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            return self.tested(
                [*files, *alone, "-x"], examples, _Picking(tests, {*survey.seconds, *survey.failing}, told)
            )

        began = time.perf_counter()
        usual = sum(survey.seconds[test] for test in tests)
        path.write_text(mutant.source)
        try:
            code = self.forked(run, processor=20 + 4 * usual, wall=120 + 20 * usual) if tests else 0
        finally:
            path.write_text(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        fate = {
            0: "survived",
            5: "survived (no test)",
            -signal.SIGXCPU: "killed (time)",
            -signal.SIGKILL: "killed (time)",
        }
        by = told.read_text() if told.exists() else ""
        took = round(time.perf_counter() - began, 2)
        return {"fate": fate.get(code, "killed"), "code": code, "by": by, "tests": len(tests), "seconds": took}

    def forked(self, work: Callable[[], int], *, processor: float, wall: float) -> int:
        """The exit code of `work` in a process of its own, which may take so many seconds."""
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (int(processor), int(processor) + 5))
                resource.setrlimit(resource.RLIMIT_AS, (16 * _GIBIBYTE, 16 * _GIBIBYTE))
                output = os.open(self.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                code = work()
            finally:
                os._exit(code)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        until = time.monotonic() + wall
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended or time.monotonic() > until:
                break
            time.sleep(0.01)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)


def known_results(path: Path) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Of each mutant what was found last."""
    rows = map(json.loads, path.read_text().splitlines()) if path.is_file() else ()
    return {(row["file"], row["where"], row["before"], row["after"]): row for row in rows}


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Why each does the same as the original."""
    return {key: row["why"] for key, row in known_results(EQUIVALENT).items()}


def table_of(files: Sequence[str], results: Path) -> str:
    """Markdown: per file how many mutants there are and what became of them."""
    known, same = known_results(results), equivalents()
    rows: dict[str, Counter[str]] = {}
    apart: Counter[str] = Counter()
    for file in files:
        counted: Counter[str] = Counter()
        for key, mutant in {m.id: m for m in mutants_of(file)}.items():
            if mutant.apart:
                apart[mutant.apart] += 1
                continue
            fate = known.get(key, {"fate": "not met"})["fate"].partition(" (")[0]
            counted["equivalent" if key in same and fate != "killed" else fate] += 1
        rows[file] = counted
    head = "| file | mutants | met | killed | survived | equivalent |\n| --- | --- | --- | --- | --- | --- |"
    lines = []
    for folder in FOLDERS:
        of_folder = {file: c for file, c in rows.items() if f"{SOURCE}/{folder}/" in file and c.total()}
        if of_folder:
            total = sum(of_folder.values(), Counter[str]())
            lines += [_row(f"**{folder}**", total)]
            lines += [_row(f"`{file.removeprefix(SOURCE + '/')}`", counted) for file, counted in of_folder.items()]
    left = ", ".join(f"{number} in {name}" for name, number in sorted(apart.items()))
    return TOP.format(left=left) + "\n" + head + "\n" + "\n".join(lines) + "\n"


TOP = """# Which changes of the code no test notices

Mutants of `algorithms/` and `rewards/`: files with one small change each. Met: the tests that run the change were run;
where not all were met, a checksum decided which (`make mutants EVERY=4` meets a quarter); tests were written with its
survivors in sight, so of the others a smaller share would be killed. Killed: a test fails.
Equivalent: it does the same as the original, for the reason in `benchmarks/mutants_equivalent.jsonl`; the share is of
the others that were met. Not tested and not in the table: {left}. `make mutants`.
"""


def _row(name: str, counted: Counter[str]) -> str:
    killed, survived, same = counted["killed"], counted["survived"], counted["equivalent"]
    share = f" ({100 * killed / max(1, killed + survived):.1f} %)" if name.startswith("*") else ""
    return f"| {name} | {counted.total()} | {killed + survived + same} | {killed}{share} | {survived} | {same} |"


def main() -> None:
    """Meet mutants, list those nobody killed, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=list(FOLDERS), help="folders or files under src/whetstone")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--again", action="store_true", help="meet survivors once more, as after new tests")
    parser.add_argument("--every", type=int, default=1, help="meet one mutant in so many, always the same ones")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of each property")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds; tests that take longer judge no mutant")
    parser.add_argument("--survivors", action="store_true", help="list those without a reason, and end")
    parser.add_argument("--write", type=Path, help="a folder for the table; meets none")
    arguments = parser.parse_args()
    files, results = files_of(arguments.files), arguments.results.absolute()
    if arguments.survivors:
        list_survivors(files, results)
        return
    if arguments.write:
        (arguments.write / "mutants.md").write_text(table_of(files, results))
        return
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        meet_all(files, results, Copy(Path(folder)), arguments)


def meet_all(files: Sequence[str], results: Path, copy: Copy, arguments: argparse.Namespace) -> None:
    """Meet the mutants of these files that were not met before, or survived it."""
    known, same = known_results(results), equivalents()
    survey = copy.survey(arguments.tests, arguments.examples)
    print(f"{len(survey.seconds)} tests, {sum(survey.seconds.values()):.0f} s; failing: {survey.failing}", flush=True)
    long = {test: round(s, 1) for test, s in survey.seconds.items() if s > arguments.longest}
    print(f"too long to judge: {long}", flush=True)
    survey.failing += long
    survey.seconds = {test: s for test, s in survey.seconds.items() if test not in long}
    copy.preload(survey.imported)
    for file in files:
        counted: Counter[str] = Counter()
        for key, mutant in {m.id: m for m in mutants_of(file, copy.tree)}.items():
            before = known.get(key)
            if (
                mutant.apart
                or key in same
                or zlib.crc32(json.dumps(key).encode()) % arguments.every
                or (before and not (arguments.again and before["fate"].startswith("survived")))
            ):
                continue
            found = copy.meet(mutant, survey, arguments.examples)
            counted[found["fate"]] += 1
            row = dict(zip(("file", "where", "before", "after"), key, strict=True)) | {"line": mutant.line} | found
            with results.open("a") as out:
                out.write(json.dumps(row) + "\n")
        if counted:
            print(f"{file}: {dict(counted)}", flush=True)


def list_survivors(files: Sequence[str], results: Path) -> None:
    """Print what nobody killed, file by file."""
    known, same = known_results(results), equivalents()
    for file in files:
        for key, mutant in {m.id: m for m in mutants_of(file)}.items():
            if key in known and known[key]["fate"].startswith("survived") and key not in same:
                print(f"{file}:{mutant.line} {mutant.where} ({known[key]['tests']} tests)")
                print("".join(f"  - {line}\n" for line in mutant.before.splitlines()), end="")
                print("".join(f"  + {line}\n" for line in mutant.after.splitlines()))


if __name__ == "__main__":
    main()
