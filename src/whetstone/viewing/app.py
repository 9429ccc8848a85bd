"""The pages of the viewer, and what they ask for.

    GET /                                     the page; what is looked at stands behind the `?` of its address
    GET /page/{file}                          its parts
    GET /api/state                            which runs there are, and whether there is something new
    GET /api/runs/{run}/overview · curves · choices · trajectories · trajectory · why · tools · steps · episodes
                        · trace · data
    GET /api/compare
    GET /health · /ready · /metrics · /openapi.json

Nothing can be changed: there is no other method. Easy to get wrong: a page from anywhere may have a browser ask a
server of its own machine. So without keys only names of this machine are answered, and never for another page.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from whetstone import analysis, viewing
from whetstone.chat.api.asked import RefusedError
from whetstone.chat.api.fields import whole_number
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.extras import install_command
from whetstone.json_lines import UNREADABLE, describe_damage, writable
from whetstone.network.http_layer import KEY_NAME, Family, RouteError, Service, http_application, make_family
from whetstone.network.loopback import find_other_site
from whetstone.network.openapi import Operation
from whetstone.plain_json import plain
from whetstone.plugins import refuse_modules
from whetstone.serving.access import Keys
from whetstone.viewing.index import told
from whetstone.viewing.opened import OpenedRun
from whetstone.viewing.shown import conversation
from whetstone.viewing.timeline import spans_of, steps_of, trace
from whetstone.viewing.tool_use import tool_use
from whetstone.viewing.wanted import Wanted

PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_MOST_EPISODES = 400
"""Lanes of a step that are drawn."""
_RUN = re.compile("[0-9]{1,9}")
_TEXT, _FLAG, _WHOLE = {"type": "string"}, {"enum": ["0", "1"]}, {"type": "integer", "minimum": 0}


class Viewer:
    """What all pages have in common.

    Args:
        runs: Those that are looked at.
        folders: Where `whetstone compare` may have written what it found.
        allow_run_code: Whether `why` and `data` may import modules that a run's recipe names, run the code of its
            models and start its commands.
        follow_symlinks: Whether a symbolic link may lead out of these folders.
    """

    def __init__(
        self,
        runs: Sequence[OpenedRun],
        *,
        keys: Keys | None = None,
        folders: Sequence[Path] = (),
        allow_run_code: bool = False,
        follow_symlinks: bool = False,
    ) -> None:
        self.runs, self.keys, self.folders = list(runs), keys if keys is not None else Keys(), list(folders)
        self.allow_run_code, self.follow_symlinks = allow_run_code, follow_symlinks
        self._computing = threading.Lock()
        self._taught: dict[str, Any] = {}
        self._indexed: set[str] = set()
        """Names of the runs whose trajectories were all read once."""

    def check(self, request: Any) -> None:
        """See that who asks may.

        Raises:
            RefusedError: He may not.
        """
        headers = request.headers
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RefusedError("another page asks", status=403)
        if not len(self.keys):
            if reason := find_other_site(request.scope["headers"]):
                raise RefusedError(f"without keys this server answers only its own machine: {reason}", status=403)
            return
        key = self.keys.of(headers)
        request.scope[KEY_NAME] = key.name
        key.ask()
        if not key.may("admin"):
            raise RefusedError("this key may not look at runs: --role admin", status=403)

    def run(self, number: str) -> OpenedRun:
        """A run by its place.

        Raises:
            RefusedError: There is none.
        """
        if not _RUN.fullmatch(number) or int(number) >= len(self.runs):
            raise RefusedError(f"no run {number[:40]}; there are {len(self.runs)}", status=404)
        return self.runs[int(number)]

    async def find_obstacle(self) -> str:
        """Return why the runs cannot be shown yet; empty if they can."""
        reasons = []
        for run in self.runs:
            if run.name not in self._indexed:
                read, size = run.index.left()
                if read < size:
                    reasons.append(f"{run.name}: {read} of {size} bytes of trajectories are indexed")
                else:
                    self._indexed.add(run.name)
        return "; ".join(reasons[:3])

    def families(self) -> Iterator[Family]:
        """Return metrics of the runs."""
        yield make_family("viewed_runs", "gauge", "Runs that are shown.", len(self.runs))
        count = sum(run.index.count() for run in self.runs)
        yield make_family("viewed_trajectories", "gauge", "Indexed trajectories.", count)

    # ------------------------------------------------------------ answers

    def state(self) -> dict[str, Any]:
        """Of each run what changes, so that a page asks for the rest only where it did."""
        rows = []
        for run in self.runs:
            read, there = run.index.left()
            about = {"name": run.name, "title": run.title, "revision": run.revision(), **run.progress()}
            rows.append({**about, "trajectories": run.index.count(), "read": read, "bytes": there})
        return {"runs": rows}

    def trajectory(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """One, as a conversation, with the others of its group."""
        row = run.index.one(asked.get("id", ""), asked.get("part") or "training")
        line = run.index.line(row)
        group = row["of_group"]
        with _readable(line):
            page = conversation(line, run.tokenizer(), whole=asked.get("whole") == "1")
        return {
            "row": row,
            "mates": run.index.mates(group) if group is not None else [],
            "group_state": run.index.state_of(group) if group is not None else "",
            **page,
        }

    def why(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return `whetstone why` of a trajectory; `weights` repeats its updates.

        Raises:
            RefusedError: The recipe names code of the run, which is not allowed.
        """
        with self._computing, self._code_of(run):
            explainer = analysis.Explainer(run.folder)
            found = asyncio.run(explainer.explain(asked.get("id", ""), weights=asked.get("weights") == "1"))
        return asdict(found)

    def data(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the tokens that a stage trains.

        Raises:
            RefusedError: See `why`.
        """
        taught = self._taught.setdefault(run.name, viewing.Taught(run.folder))
        first, count = _whole(asked, "first", 0), _whole(asked, "count", 4)
        with self._code_of(run):
            return {"shown": taught.shown(asked.get("stage", ""), first, count)}

    @contextmanager
    def _code_of(self, run: OpenedRun) -> Iterator[None]:
        """Refuse code of the run, unless it is allowed: its built-in parts are used and no others.

        Raises:
            RefusedError: The recipe names code or a command; the message has the key.
        """
        if self.allow_run_code:
            yield
            return
        remedy = "`whetstone view --allow-run-code` allows it; read the recipe first"
        if not run.recipe:
            raise RefusedError(f"recipe.yaml cannot be read, so it may run code of the run: {remedy}", status=403)
        if (key := next(_code_keys(run.recipe), None)) is not None:
            raise RefusedError(f"{key} of recipe.yaml runs code of the run: {remedy}", status=403)
        with refuse_modules(remedy):
            yield

    def steps(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """The steps one behind the other; of a long run the last thousand."""
        steps = steps_of(run.metrics.rows)
        return {"steps": [asdict(step) for step in steps[-1000:]], "of": len(steps)}

    def episodes(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """What the episodes of a step did, and when, from its beginning."""
        step = _whole(asked, "step", 1)
        found = []
        for _, line in run.index.of_steps(step, step):
            with _readable(line):
                found.append({"id": line["id"], "spans": [asdict(span) for span in spans_of(line)]})
            if len(found) == _MOST_EPISODES:
                break
        return {"step": step, "episodes": found, "most": _MOST_EPISODES}

    def trace(self, run: OpenedRun, asked: Mapping[str, str]) -> dict[str, Any]:
        """Steps and episodes for Perfetto; all steps, and the episodes of some."""
        steps = steps_of(run.metrics.rows)
        last = _whole(asked, "last", steps[-1].step if steps else 0)
        with _readable({"id": "of these steps"}):
            return trace(steps, run.index.of_steps(_whole(asked, "first", last), last))

    def compare(self) -> dict[str, Any]:
        """What each run spent and came to, and what `whetstone compare` said of all."""
        rows = []
        for run in self.runs:
            own = run.metrics.of("reinforcement")
            tokens = list(accumulate(row.get("cost_per_step/sampled_tokens") or 0.0 for row in own))
            points = [(x, row["episode/success"]) for x, row in zip(tokens, own, strict=True)
                      if row.get("episode/success") is not None]  # fmt: skip
            width = max(1, len(points) // 600)
            spent = {key: sum(row.get(f"cost_per_step/{key}") or 0.0 for row in own)
                     for key in ("episodes", "sampled_tokens", "tool_calls")}  # fmt: skip
            spent["seconds"] = sum((row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in own)
            curve = {"x": [x for x, _ in points[::width]], "y": [y for _, y in points[::width]]}
            rows.append({"name": run.name, "spent": spent, "curve": curve, "evaluations": run.evaluations(),
                         "results": [result.to_json() for result in run.stage_results()],
                         "verdict": run.verdict(), **run.progress()})  # fmt: skip
        return {"runs": rows, "comparison": self._comparison()}

    def _comparison(self) -> dict[str, Any] | None:
        return viewing.comparison_in(self.folders, follow_symlinks=self.follow_symlinks)

    def close(self) -> None:
        """Read no more."""
        for run in self.runs:
            run.close()


def view_application(viewer: Viewer) -> Any:
    """The viewer, for any ASGI runner.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"the viewer needs starlette and uvicorn: {install_command('serve')}") from None

    def answer(content: Any, status: int = 200) -> Response:
        return Response(_json(content), status, {"content-type": "application/json"})

    def page(request: Request) -> Response:
        return file(PAGE / "index.html")

    def part(request: Request) -> Response:
        path = PAGE / request.path_params["file"]
        if path.parent != PAGE or path.suffix not in _TYPES or not path.is_file():
            raise RefusedError("no such page", status=404)
        return file(path)

    def file(path: Path) -> Response:
        return Response(path.read_bytes(), 200, {"content-type": f"{_TYPES[path.suffix]}; charset=utf-8"})

    def asked(work: Callable[[], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            viewer.check(request)
            return answer(await run_in_threadpool(work))

        return endpoint

    def of_run(work: Callable[[OpenedRun, Mapping[str, str]], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            viewer.check(request)
            run = viewer.run(request.path_params["run"])
            return answer(await run_in_threadpool(work, run, dict(request.query_params)))

        return endpoint

    def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, RefusedError):
            return answer({"error": str(error)}, error.status)
        if isinstance(error, WhetstoneError):
            return answer({"error": str(error)}, 422)
        if isinstance(error, RouteError):
            return answer({"error": str(error)}, error.status)
        return answer({"error": f"{type(error).__name__}: the viewer failed"}, 500)

    @asynccontextmanager
    async def lifetime(app: Any) -> AsyncIterator[None]:
        for run in viewer.runs:
            run.watch()
        try:
            yield
        finally:
            await run_in_threadpool(viewer.close)

    answers: dict[str, Callable[[OpenedRun, Mapping[str, str]], Any]] = {
        "overview": lambda run, _: run.overview(),
        "curves": lambda run, _: run.curves(),
        "choices": lambda run, _: run.index.choices(),
        "trajectories": lambda run, given: told(run.index.page(Wanted.read(given))),
        "trajectory": viewer.trajectory,
        "why": viewer.why,
        "tools": lambda run, _: [asdict(each) for each in tool_use(run.index.calls())],
        "steps": viewer.steps,
        "episodes": viewer.episodes,
        "trace": viewer.trace,
        "data": viewer.data,
    }
    routes = [
        Route("/", page),
        Route("/page/{file}", part),
        Route("/api/state", asked(viewer.state)),
        Route("/api/compare", asked(viewer.compare)),
        *(Route(f"/api/runs/{{run}}/{name}", of_run(work)) for name, work in answers.items()),
    ]
    service = Service(
        "Whetstone viewer",
        refuse=refuse,
        check=viewer.check,
        find_obstacle=viewer.find_obstacle,
        check_health=lambda request: None if len(viewer.keys) else viewer.check(request),
        health=lambda: {"runs": len(viewer.runs)},
        families=viewer.families,
        operations=_operations(answers),
        error={"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
        security={"bearer": {"type": "http", "scheme": "bearer"}},
        headers=_HEADERS,
    )
    return http_application(routes, service, errors=[RefusedError, WhetstoneError], lifespan=lifetime)


def _operations(names: Iterable[str]) -> dict[str, Operation]:
    queries: dict[str, dict[str, Any]] = {
        "trajectories": {field.name: {"type": "string"} for field in fields(Wanted)},
        "trajectory": {"id": _TEXT, "part": _TEXT, "whole": _FLAG},
        "why": {"id": _TEXT, "weights": _FLAG},
        "data": {"stage": _TEXT, "first": _WHOLE, "count": _WHOLE},
        "episodes": {"step": _WHOLE},
        "trace": {"first": _WHOLE, "last": _WHOLE},
    }
    operations = {
        "GET /": Operation("The page.", media="text/html"),
        "GET /page/{file}": Operation("A file of the page.", media="text/javascript"),
        "GET /api/state": Operation("What changed in each run."),
        "GET /api/compare": Operation("Cost and results of all runs."),
    }
    for name in names:
        operations[f"GET /api/runs/{{run}}/{name}"] = Operation(
            f"The {name} of a run.", path={"run": {"type": "integer", "minimum": 0}}, query=queries.get(name, {})
        )
    return operations


@contextmanager
def _readable(line: Mapping[str, Any]) -> Iterator[None]:
    """Turn the shape of another version, or of no trajectory, into a refusal.

    Raises:
        RefusedError: It is.
    """
    try:
        yield
    except UNREADABLE as error:
        reason = describe_damage(error)
        raise RefusedError(
            f"the trajectory {str(line.get('id'))[:200]} cannot be shown: {reason}", status=422
        ) from None


def _code_keys(value: Any, key: str = "") -> Iterator[str]:
    """Yield the dotted keys of a recipe that run code of a model, or a command."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if each and name in ("trust_remote_code", "command"):
                yield f"{key}.{name}".lstrip(".")
            yield from _code_keys(each, f"{key}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _code_keys(each, f"{key}.{number}")


def _json(content: Any) -> bytes:
    try:
        return orjson.dumps(content)
    except TypeError:
        return orjson.dumps(writable(plain(content, other=str)))


def _whole(asked: Mapping[str, str], name: str, otherwise: int) -> int:
    value = asked.get(name, "")
    if not value:
        return otherwise
    return whole_number(value, name, most=10**12)
