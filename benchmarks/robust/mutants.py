"""Mutation testing of algorithms/ and rewards/: changes of the code that no test detects.

A mutant is a file with one small change: another operator, a number plus one, an omitted argument. mutmut generates
most mutants (`mutmut.mutation.mutators`); those specific to tensors and guards are generated here. mutmut's runner is
not used: it skips code outside functions (tables, defaults of dataclasses), and its wrappers hide the defaults of
mutants from `inspect.signature`, by which recipes read options.

All tests run once in a copy of the repository to record which test executes which line. Then each mutant is written
into the copy, and a fork of this process (third-party packages imported, Whetstone not) runs those tests, fastest
first, until one fails. hypothesis uses few, fixed examples. One process runs at idle priority; results are appended
immediately, and stored ones are reused.
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

import import_paths

ROOT = Path(__file__).parents[2]
SOURCE = "src/whetstone"
FOLDERS = ("algorithms", "rewards")
TESTS = (
    "tests/algorithms",
    "tests/rewards",
    *(f"tests/training/test_{name}.py" for name in ("credit", "sequences", "losses")),
)
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.jsonl")
"""Mutants with the behavior of the original, each with the reason."""
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
    """Dotted name of the function or class; empty at module level."""
    before: str
    """The changed lines of the original, without indentation."""
    after: str
    exclusion: str
    """Category of changes that are not tested; empty for most mutants."""
    lines: range
    """Lines of the changed statement."""
    source: str

    @property
    def id(self) -> tuple[str, str, str, str]:
        """Return an identifier that does not depend on other lines of the file."""
        return self.file, self.where, self.before, self.after


@dataclass(frozen=True)
class _Place:
    """Position of a node in a file."""

    where: str = ""
    exclusion: str = ""
    lines: range = range(0)


def negate_conditions(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield negated conditions."""
    if isinstance(node, cst.If | cst.While | cst.CompIf):
        parenthesised = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), parenthesised))


def drop_statements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield statements without their call or raise, and calls of methods without arguments that are omitted."""
    if isinstance(node, cst.Raise) or (isinstance(node, cst.Expr) and isinstance(node.value, cst.Call | cst.Await)):
        yield cst.Pass()
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
        yield node.func.value


def unbound_tensors(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield tensors without `clamp` or `detach`."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "clamp":
        yield node.func.value


def replace_functions(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield calls with a related function: maximum for minimum, sum for mean."""
    if not isinstance(node, cst.Call):
        return
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _OTHER_NAMES:
        name = cst.Name(_OTHER_NAMES[node.func.attr.value])
        yield node.with_changes(func=node.func.with_changes(attr=name))
    if isinstance(node.func, cst.Name) and node.func.value in ("min", "max", "any", "all"):
        yield node.with_changes(func=cst.Name(_OTHER_NAMES[node.func.value]))


def replace_node(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield replacements of a node; for strings only one of mutmut's three."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            alternatives = list(operator(node))
            yield from alternatives[:1] if kind is cst.BaseString else alternatives
    for operator_here in (negate_conditions, drop_statements, unbound_tensors, replace_functions):
        yield from operator_here(node)


def generate_mutants(file: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of its lines."""
    text = (root / file).read_text()
    wrapper = MetadataWrapper(cst.parse_module(text))
    positions, tree = wrapper.resolve(PositionProvider), wrapper.module
    sources: set[str] = set()

    def visit(node: cst.CSTNode, place: _Place) -> Iterator[Mutant]:
        spot = positions.get(node)
        place = _inside(node, place, spot, positions)
        for other in replace_node(node):
            changed = tree.deep_replace(node, other).code
            if changed in sources or changed == text:
                continue
            sources.add(changed)
            before, after = _difference(text, changed)
            yield Mutant(file, spot.start.line, place.where, before, after, place.exclusion, place.lines, changed)
        inner = replace(place, exclusion=place.exclusion or "texts of errors") if isinstance(node, cst.Raise) else place
        for child in node.children:
            yield from visit(child, inner)

    yield from visit(tree, _Place())


def _inside(node: cst.CSTNode, place: _Place, spot: Any, positions: Mapping[cst.CSTNode, Any]) -> _Place:
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        place = replace(place, where=".".join(filter(None, (place.where, node.name.value))))
    if isinstance(node, cst.Annotation) or (
        isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
    ):
        place = replace(place, exclusion="annotations")
    if isinstance(node, cst.Decorator):
        place = replace(place, exclusion="decorators")
    if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
        name, value = node.targets[0].target.value, node.value
        generic = isinstance(value, cst.Subscript | cst.BinaryOperation) and not name.isupper()
        if not place.where and generic and name.lstrip("_")[:1].isupper():
            place = replace(place, exclusion="annotations")
    if isinstance(node, cst.SimpleStatementLine):
        place = replace(place, lines=range(spot.start.line, spot.end.line + 1))
    elif isinstance(node, cst.BaseCompoundStatement):
        body = positions[node.body].start.line if isinstance(node.body, cst.CSTNode) else spot.end.line
        place = replace(place, lines=range(spot.start.line, max(spot.start.line + 1, body)))
    return place


def _difference(before: str, after: str) -> tuple[str, str]:
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    removed, added = (
        "\n".join(line[2:].strip() for line in lines if line.startswith(sign) and line[2:].strip()) for sign in "-+"
    )
    return removed, added


def list_files(folders: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the files of folders, or with given names, relative to the root."""
    paths: list[Path] = []
    for folder in folders:
        place = root / folder if folder.startswith("src") else root / SOURCE / folder
        paths += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [str(path.relative_to(root)) for path in paths]


@dataclass
class Survey:
    """Result of the tests on the original code."""

    seconds: dict[str, float]
    """Passing test → seconds."""
    failing: list[str]
    """Tests that are not used on mutants."""
    running: dict[str, dict[int, list[str]]]
    """File → line → tests that execute it."""
    plain: list[str]
    """Test files without fixtures of support/fixtures.py."""
    imported: list[str]
    """Imported third-party packages."""

    def select_tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the changed lines; if there are none (tables, defaults), those of the file
        and its package."""
        lines = self.running.get(mutant.file, {})
        tests_found = {test for line in mutant.lines for test in lines.get(line, ())}
        if not tests_found:
            tests_found = {test for tests in lines.values() for test in tests}
            own_tests = f"tests/{'/'.join(Path(mutant.file).parts[2:-1])}/test_{Path(mutant.file).stem}.py::"
            tests_found |= {test for test in self.seconds if test.startswith(own_tests)}
            tests_found |= {
                test for test in self.seconds if test.startswith(f"tests/{Path(mutant.file).parts[2]}/test_")
            }
        if not lines:  # a file that runs in another process
            tests_found |= {test for test in self.seconds if test.startswith(own_tests.rpartition("/")[0])}
        if not tests_found or Path(mutant.file).stem == "__init__":
            folder = str(Path(mutant.file).parent)
            tests_found |= {
                test
                for file, of_file in self.running.items()
                if file.startswith(folder)
                for tests in of_file.values()
                for test in tests
            }
        return sorted(tests_found & self.seconds.keys(), key=lambda test: self.seconds[test])


class _CoveragePlugin:
    """Plugin that records the lines and the seconds of each test."""

    def __init__(self, recording: coverage.Coverage) -> None:
        self.recording = recording
        self.seconds: dict[str, float] = defaultdict(float)
        self.failing: set[str] = set()
        self.needy: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        shared = _fixture_names(Path("tests/support/fixtures.py"))
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


class _SelectionPlugin:
    """Plugin that runs selected tests, fastest first, and stores the first failure."""

    def __init__(self, order: Sequence[str], known: Collection[str], report_path: Path) -> None:
        self.order, self.known, self.report_path = {test: i for i, test in enumerate(order)}, known, report_path

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select and order the tests; unknown tests have names that depend on the mutant."""
        last = len(self.order)
        selected = [item for item in items if item.nodeid in self.order or item.nodeid not in self.known]
        items[:] = sorted(selected, key=lambda item: self.order.get(item.nodeid, last))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "failed" and not self.report_path.exists():
            self.report_path.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed" and not self.report_path.exists():
            self.report_path.write_text(f"{report.nodeid} (collecting)")


def _fixture_names(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Copy:
    """Copy of the repository with mutated files, and forks that run tests in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        left = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "runs", "build")
        shutil.copytree(ROOT, self.tree, ignore=left)
        if (ROOT.parent / "shared").exists():  # data of some tests
            (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
        os.chdir(self.tree)
        paths = [str(self.tree / name) for name in ("src", "tests")]
        paths += [str(self.tree / folder.relative_to(ROOT)) for folder in import_paths.FOLDERS]
        sys.path[:0] = paths
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # unchanged files are compiled once
        sys.dont_write_bytecode = False
        torch.set_num_threads(1)

    def survey(self, tests: Sequence[str], examples: int) -> Survey:
        """Run the tests on the original code."""
        report_path = self.folder / "survey.json"
        code = self.run_forked(lambda: self._survey(tests, examples, report_path), processor=3600, wall=7200)
        if not report_path.exists():
            raise RuntimeError(f"the tests did not run: {code}\n{(self.folder / 'said').read_text()[-3000:]}")
        stored: dict[str, Any] = json.loads(report_path.read_text())
        stored["running"] = {
            file: {int(line): tests for line, tests in lines.items()} for file, lines in stored["running"].items()
        }
        return Survey(**stored)

    def _survey(self, tests: Sequence[str], examples: int, report_path: Path) -> int:
        recording = coverage.Coverage(data_file=None, source=[str(self.tree / SOURCE / name) for name in FOLDERS])
        recording.start()
        watching = _CoveragePlugin(recording)
        code = self.run_pytest([*tests, "-m", "not slow"], examples, watching)
        recording.stop()
        data = recording.get_data()
        running = {}
        for path in data.measured_files():
            lines = {line: sorted(filter(None, of)) for line, of in data.contexts_by_lineno(path).items()}
            running[str(Path(path).relative_to(self.tree))] = {line: of for line, of in lines.items() if of}
        passing = {test: s for test, s in watching.seconds.items() if test not in watching.failing}
        own_prefix = str(self.tree)
        record = {
            "seconds": passing,
            "failing": sorted(watching.failing),
            "running": running,
            "plain": sorted({_file(test) for test in passing} - watching.needy),
            "imported": [
                name
                for name, module in list(sys.modules.items())
                if not str(getattr(module, "__file__", None) or "").startswith(own_prefix)
                and name.partition(".")[0] not in ("whetstone", "__main__", "__mp_main__", "tests")
            ],
        }
        report_path.write_text(json.dumps(record))
        return code

    def run_pytest(self, what: Sequence[str], examples: int, plugin: object) -> int:
        """Run pytest and return its exit code."""
        hypothesis.settings.register_profile(
            "mutants",
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # shrinking is not needed
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.settings.load_profile("mutants")
        base = ["-p", "no:cacheprovider", "--basetemp", str(self.folder / "tmp"), "--tb=line", "-W", "ignore"]
        return int(pytest.main([*what, *base], plugins=[plugin]))

    def preload(self, names: Sequence[str]) -> None:
        """Import packages before forks would each import them."""
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        # preloaded objects stay alive: garbage collectors of forks skip them
        gc.collect()
        gc.freeze()

    def test_mutant(self, mutant: Mutant, survey: Survey, examples: int) -> dict[str, Any]:
        """Test a mutant and return whether it survived, or the test that killed it."""
        tests = survey.select_tests(mutant)
        path = self.tree / mutant.file
        original, status = path.read_text(), path.stat()
        killer_path = self.folder / "killer"
        killer_path.unlink(missing_ok=True)
        files = list(dict.fromkeys(_file(test) for test in tests))
        options = ["--noconftest"] if set(files) <= set(survey.plain) else []

        def run() -> int:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            return self.run_pytest(
                [*files, *options, "-x"],
                examples,
                _SelectionPlugin(tests, {*survey.seconds, *survey.failing}, killer_path),
            )

        began = time.perf_counter()
        usual = sum(survey.seconds[test] for test in tests)
        path.write_text(mutant.source)
        try:
            code = self.run_forked(run, processor=20 + 4 * usual, wall=120 + 20 * usual) if tests else 0
        finally:
            path.write_text(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        fate = {
            0: "survived",
            5: "survived (no test)",
            -signal.SIGXCPU: "killed (time)",
            -signal.SIGKILL: "killed (time)",
        }
        by = killer_path.read_text() if killer_path.exists() else ""
        took = round(time.perf_counter() - began, 2)
        return {"fate": fate.get(code, "killed"), "code": code, "by": by, "tests": len(tests), "seconds": took}

    def run_forked(self, work: Callable[[], int], *, processor: float, wall: float) -> int:
        """Run `work` in a fork with limits of CPU and wall-clock seconds, and return its exit code."""
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


def load_results(path: Path) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Return mutant → last stored result."""
    rows = map(json.loads, path.read_text().splitlines()) if path.is_file() else ()
    return {(row["file"], row["where"], row["before"], row["after"]): row for row in rows}


def load_equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return equivalent mutant → reason."""
    return {key: row["why"] for key, row in load_results(EQUIVALENT).items()}


def format_page(files: Sequence[str], results: Path) -> str:
    """Return the page: mutants per file and their outcomes."""
    known, same = load_results(results), load_equivalents()
    rows: dict[str, Counter[str]] = {}
    exclusions: Counter[str] = Counter()
    for file in files:
        counted: Counter[str] = Counter()
        for key, mutant in {m.id: m for m in generate_mutants(file)}.items():
            if mutant.exclusion:
                exclusions[mutant.exclusion] += 1
                continue
            fate = known.get(key, {"fate": "not met"})["fate"].partition(" (")[0]
            counted["equivalent" if key in same and fate != "killed" else fate] += 1
        rows[file] = counted
    head = "| file | mutants | met | killed | survived | equivalent |\n| --- | --- | --- | --- | --- | --- |"
    lines = []
    for folder in FOLDERS:
        in_folder = {file: c for file, c in rows.items() if f"{SOURCE}/{folder}/" in file and c.total()}
        if in_folder:
            total = sum(in_folder.values(), Counter[str]())
            lines += [_row(f"**{folder}**", total)]
            lines += [_row(f"`{file.removeprefix(SOURCE + '/')}`", counted) for file, counted in in_folder.items()]
    left = ", ".join(f"{number} in {name}" for name, number in sorted(exclusions.items()))
    return TOP.format(left=left) + "\n" + head + "\n" + "\n".join(lines) + "\n"


TOP = """# Mutation testing: changes of the code that no test detects

Mutants of `algorithms/` and `rewards/`: files with one small change each. Met: the tests that execute the change were
run. If not all were met, a checksum selected them (`make mutants EVERY=4` meets a quarter); tests were written to kill
its survivors, so that a smaller fraction of the others would be killed. Killed: a test fails.
Equivalent: the behavior is that of the original, for the reason in `robust/mutants_equivalent.jsonl`; percentages
exclude these. Not tested and not in the table: {left}. `make mutants`.
"""


def _row(name: str, counted: Counter[str]) -> str:
    killed, survived, same = counted["killed"], counted["survived"], counted["equivalent"]
    share = f" ({100 * killed / max(1, killed + survived):.1f} %)" if name.startswith("*") else ""
    return f"| {name} | {counted.total()} | {killed + survived + same} | {killed}{share} | {survived} | {same} |"


def main() -> None:
    """Test mutants, list survivors, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=list(FOLDERS), help="folders or files under src/whetstone")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("--again", action="store_true", help="test survivors again, for example after new tests")
    parser.add_argument(
        "--every", type=int, default=1, help="test one of this number of mutants, selected by a checksum"
    )
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="examples per property")
    parser.add_argument("--longest", type=float, default=5.0, help="time limit in seconds of the tests that are used")
    parser.add_argument("--survivors", action="store_true", help="list survivors without a reason and exit")
    parser.add_argument("--write", type=Path, help="folder for the table; tests no mutant")
    arguments = parser.parse_args()
    files, results = list_files(arguments.files), arguments.results.absolute()
    if arguments.survivors:
        list_survivors(files, results)
        return
    if arguments.write:
        (arguments.write / "mutants.md").write_text(format_page(files, results))
        return
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        test_all(files, results, Copy(Path(folder)), arguments)


def test_all(files: Sequence[str], results: Path, copy: Copy, arguments: argparse.Namespace) -> None:
    """Test the mutants of files that have no stored result, or survived if `--again` is set."""
    known, same = load_results(results), load_equivalents()
    survey = copy.survey(arguments.tests, arguments.examples)
    print(f"{len(survey.seconds)} tests, {sum(survey.seconds.values()):.0f} s; failing: {survey.failing}", flush=True)
    long = {test: round(s, 1) for test, s in survey.seconds.items() if s > arguments.longest}
    print(f"too long to judge: {long}", flush=True)
    survey.failing += long
    survey.seconds = {test: s for test, s in survey.seconds.items() if test not in long}
    copy.preload(survey.imported)
    for file in files:
        counted: Counter[str] = Counter()
        for key, mutant in {m.id: m for m in generate_mutants(file, copy.tree)}.items():
            before = known.get(key)
            if (
                mutant.exclusion
                or key in same
                or zlib.crc32(json.dumps(key).encode()) % arguments.every
                or (before and not (arguments.again and before["fate"].startswith("survived")))
            ):
                continue
            result = copy.test_mutant(mutant, survey, arguments.examples)
            counted[result["fate"]] += 1
            row = dict(zip(("file", "where", "before", "after"), key, strict=True)) | {"line": mutant.line} | result
            with results.open("a") as out:
                out.write(json.dumps(row) + "\n")
        if counted:
            print(f"{file}: {dict(counted)}", flush=True)


def list_survivors(files: Sequence[str], results: Path) -> None:
    """Print the surviving mutants per file."""
    known, same = load_results(results), load_equivalents()
    for file in files:
        for key, mutant in {m.id: m for m in generate_mutants(file)}.items():
            if key in known and known[key]["fate"].startswith("survived") and key not in same:
                print(f"{file}:{mutant.line} {mutant.where} ({known[key]['tests']} tests)")
                print("".join(f"  - {line}\n" for line in mutant.before.splitlines()), end="")
                print("".join(f"  + {line}\n" for line in mutant.after.splitlines()))


if __name__ == "__main__":
    main()
