"""ASGI application of the viewer: the page and its JSON API.

    GET /                                     the page; its state is in the query string of its address
    GET /page/{file}                          files of the page
    GET /api/state                            the runs, and whether they have new data
    GET /api/runs/{run}/overview · curves · choices · trajectories · trajectory · why · tools · steps · episodes
                        · trace · data
    GET /api/compare
    GET /health · /ready · /metrics · /openapi.json

The API is read-only.

Note:
    Any web page can make a browser send requests to a server on its machine. Without keys, the viewer therefore
    accepts only loopback names and no requests from other sites.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from whetstone import analysis, viewer
from whetstone.chat.api.request_fields import whole_number
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import RecipeError, WhetstoneError
from whetstone.failure_causes import count_causes
from whetstone.json_lines import UNREADABLE, describe_damage, to_writable
from whetstone.network.host_header import find_other_site
from whetstone.network.http_layer import KEY_NAME, Family, RouteError, Service, http_application, make_family
from whetstone.network.openapi_document import Operation
from whetstone.optional_dependencies import install_command
from whetstone.plugins import refuse_modules
from whetstone.serving.api_keys import Keys
from whetstone.strict_json import to_plain_values
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.viewer.runs import ViewedRun
from whetstone.viewer.timeline import build_chrome_trace, episode_spans, list_steps
from whetstone.viewer.trajectory_index import page_to_json
from whetstone.viewer.trajectory_query import TrajectoryQuery
from whetstone.viewer.trajectory_view import convert_trajectory

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
_MAX_EPISODES = 400
"""Maximum number of lanes in the timeline of a step."""
_RUN = re.compile("[0-9]{1,9}")
_TEXT, _FLAG, _WHOLE = {"type": "string"}, {"enum": ["0", "1"]}, {"type": "integer", "minimum": 0}


class Viewer:
    """State that all routes of the viewer share: the viewed runs, and what may be shown of them.

    Args:
        runs: The runs to show.
        folders: Folders that may contain a result of `whetstone compare`.
        allow_run_code: Whether `why` and `data` may import modules that a run's recipe names, run the code of its
            models and start its commands.
        follow_symlinks: Whether a symbolic link may lead out of these folders.
    """

    def __init__(
        self,
        runs: Sequence[ViewedRun],
        *,
        keys: Keys | None = None,
        folders: Sequence[Path] = (),
        allow_run_code: bool = False,
        follow_symlinks: bool = False,
    ) -> None:
        self.runs, self.keys, self.folders = list(runs), keys if keys is not None else Keys(), list(folders)
        self.allow_run_code, self.follow_symlinks = allow_run_code, follow_symlinks
        self._computing = threading.Lock()
        self._supervised: dict[str, Any] = {}
        self._indexed: set[str] = set()
        """Names of the runs whose trajectories were all indexed once."""

    def check(self, request: Any) -> None:
        """Check that a request comes from a permitted client.

        Raises:
            RefusedError: The request is from another site or machine, or its key lacks the role `admin`.
        """
        headers = request.headers
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RefusedError("cross-site request rejected", status=403)
        if not len(self.keys):
            if reason := find_other_site(request.scope["headers"]):
                raise RefusedError(
                    f"without keys this server accepts only requests from this machine: {reason}", status=403
                )
            return
        key = self.keys.find(headers)
        request.scope[KEY_NAME] = key.name
        key.count_request()
        if not key.has_role("admin"):
            raise RefusedError("this key may not view runs; --role admin is required", status=403)

    def run(self, number: str) -> ViewedRun:
        """Return a run by its index in an address.

        Raises:
            RefusedError: There is no run with this index (status 404).
        """
        if not _RUN.fullmatch(number) or int(number) >= len(self.runs):
            raise RefusedError(
                f"run {number[:40]}: does not exist; there are {len(self.runs)} runs, counted from 0", status=404
            )
        return self.runs[int(number)]

    async def find_obstacle(self) -> str:
        """Return the reason why the viewer is not ready, such as runs that are still indexed; empty if it is ready."""
        reasons = []
        for run in self.runs:
            if run.name not in self._indexed:
                read, size = run.index.count_read_bytes()
                if read < size:
                    reasons.append(f"{run.name}: {read} of {size} bytes of trajectories are indexed")
                else:
                    self._indexed.add(run.name)
        return "; ".join(reasons[:3])

    def families(self) -> Iterator[Family]:
        """Yield the Prometheus metrics of the runs, for `GET /metrics`."""
        yield make_family("viewed_runs", "gauge", "Runs that are shown.", len(self.runs))
        count = sum(run.index.count_trajectories() for run in self.runs)
        yield make_family("viewed_trajectories", "gauge", "Indexed trajectories.", count)

    # ------------------------------------------------------------ answers

    def state(self) -> dict[str, Any]:
        """Return name, progress and revision of each run; the page requests other data only after a change."""
        rows = []
        for run in self.runs:
            read, size = run.index.count_read_bytes()
            about = {"name": run.name, "title": run.title, "revision": run.get_revision(), **run.describe_progress()}
            rows.append({**about, "trajectories": run.index.count_trajectories(), "read": read, "bytes": size})
        return {"runs": rows}

    def trajectory(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a trajectory as a conversation with its tokens, and the other members of its group."""
        row = run.index.find_row(query.get("id", ""), query.get("part") or "training")
        line = run.index.read_line(row)
        group = row["of_group"]
        with _readable(line):
            page = convert_trajectory(line, run.load_tokenizer(), is_uncut=query.get("whole") == "1")
        return {
            "row": row,
            "mates": run.index.group_members(group) if group is not None else [],
            "group_state": run.index.group_state(group) if group is not None else "",
            **page,
        }

    def why(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the explanation of a trajectory's credit, as `whetstone why` prints it.

        Args:
            run: The run.
            query: `id` of the trajectory; `weights` also replays the updates before it.

        Raises:
            RefusedError: The recipe names code of the run, which is not allowed.
        """
        with self._computing, self._restrict_code(run):
            explainer = analysis.Explainer(run.folder)
            explanation = asyncio.run(
                explainer.explain_trajectory(query.get("id", ""), weights=query.get("weights") == "1")
            )
        return asdict(explanation)

    def data(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return training samples of a supervised stage, with the tokens that have a loss.

        Args:
            run: The run.
            query: `stage`, `first` (index of the first sample, default 0) and `count` (default 4).

        Raises:
            RefusedError: Code of the run would be needed and is not allowed.
        """
        supervised = self._supervised.setdefault(run.name, viewer.SupervisedTokens(run.folder))
        first, count = _parse_whole(query, "first", 0), _parse_whole(query, "count", 4)
        with self._restrict_code(run):
            return {"shown": supervised.get_samples(query.get("stage", ""), first, count)}

    @contextmanager
    def _restrict_code(self, run: ViewedRun) -> Iterator[None]:
        """Permit only built-in components within the block, unless the viewer may run code of runs.

        Raises:
            RefusedError: The recipe names custom code or a command; the message names its key.
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

    def steps(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the time spans of the steps; for a long run, only of the last thousand."""
        steps = list_steps(run.metrics.rows)
        return {"steps": [asdict(step) for step in steps[-1000:]], "of": len(steps)}

    def episodes(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the time spans of the episodes of a step, in seconds from its start."""
        step = _parse_whole(query, "step", 1)
        episodes = []
        for _, line in run.index.iterate_steps(step, step):
            with _readable(line):
                episodes.append({"id": line["id"], "spans": [asdict(span) for span in episode_spans(line)]})
            if len(episodes) == _MAX_EPISODES:
                break
        return {"step": step, "episodes": episodes, "most": _MAX_EPISODES}

    def trace(self, run: ViewedRun, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a trace for Perfetto, with all steps and the episodes of the requested steps."""
        steps = list_steps(run.metrics.rows)
        last = _parse_whole(query, "last", steps[-1].step if steps else 0)
        with _readable({"id": "of these steps"}):
            return build_chrome_trace(steps, run.index.iterate_steps(_parse_whole(query, "first", last), last))

    def compare(self) -> dict[str, Any]:
        """Return cost and results of each run, and the result of `whetstone compare`."""
        rows = []
        for run in self.runs:
            own = run.metrics.stage_rows("reinforcement")
            tokens = list(accumulate(row.get("cost_per_step/sampled_tokens") or 0.0 for row in own))
            points = [(x, row["episode/success"]) for x, row in zip(tokens, own, strict=True)
                      if row.get("episode/success") is not None]  # fmt: skip
            width = max(1, len(points) // 600)
            spent = {key: sum(row.get(f"cost_per_step/{key}") or 0.0 for row in own)
                     for key in ("episodes", "sampled_tokens", "tool_calls")}  # fmt: skip
            spent["seconds"] = sum((row.get("time/rollout") or 0.0) + (row.get("time/update") or 0.0) for row in own)
            curve = {"x": [x for x, _ in points[::width]], "y": [y for _, y in points[::width]]}
            rows.append({"name": run.name, "spent": spent, "curve": curve, "evaluations": run.read_evaluations(),
                         "results": [result.to_json() for result in run.stage_results()],
                         "verdict": run.assess_health(), **run.describe_progress()})  # fmt: skip
        return {"runs": rows, "comparison": self._comparison()}

    def _comparison(self) -> dict[str, Any] | None:
        return viewer.find_comparison(self.folders, follow_symlinks=self.follow_symlinks)

    def close(self) -> None:
        """Stop reading all runs, when the server stops."""
        for run in self.runs:
            run.close()


def view_application(viewer: Viewer) -> Any:
    """Build the ASGI application of the viewer.

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

    def endpoint_of(work: Callable[[], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            viewer.check(request)
            return answer(await run_in_threadpool(work))

        return endpoint

    def run_endpoint(work: Callable[[ViewedRun, Mapping[str, str]], Any]) -> Callable[[Request], Any]:
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
            run.start_watching()
        try:
            yield
        finally:
            await run_in_threadpool(viewer.close)

    answers: dict[str, Callable[[ViewedRun, Mapping[str, str]], Any]] = {
        "overview": lambda run, _: run.describe_run(),
        "curves": lambda run, _: run.build_curves(),
        "choices": lambda run, _: run.index.list_filter_values(),
        "trajectories": lambda run, query: page_to_json(run.index.query_page(TrajectoryQuery.parse(query))),
        "trajectory": viewer.trajectory,
        "why": viewer.why,
        "tools": lambda run, _: [asdict(each) for each in summarize_tools(run.index.list_calls())],
        "steps": viewer.steps,
        "episodes": viewer.episodes,
        "trace": viewer.trace,
        "data": viewer.data,
    }
    routes = [
        Route("/", page),
        Route("/page/{file}", part),
        Route("/api/state", endpoint_of(viewer.state)),
        Route("/api/compare", endpoint_of(viewer.compare)),
        *(Route(f"/api/runs/{{run}}/{name}", run_endpoint(work)) for name, work in answers.items()),
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
        "trajectories": {field.name: {"type": "string"} for field in fields(TrajectoryQuery)},
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
    """Convert errors of lines of another version, or without a trajectory, into `RefusedError`.

    Raises:
        RefusedError: The line cannot be read.
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
        return orjson.dumps(to_writable(to_plain_values(content, other=str)))


def _parse_whole(query: Mapping[str, str], name: str, default: int) -> int:
    value = query.get(name, "")
    if not value:
        return default
    return whole_number(value, name, most=10**12)


_OTHERS = "(others)"
_MAX_TOOLS = 40
"""Maximum number of tools in the table, by calls; models also call nonexistent tools, and each name counts."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Statistics of the calls of one tool in training episodes."""

    name: str
    """Name in the calls; rarely called tools are combined as `(others)`."""
    named: bool
    """Whether the row is about a single tool rather than `(others)`."""
    calls: int
    """Number of calls."""
    outcomes: dict[str, int]
    """Outcome, such as `ok` or `tool_error` → number of calls."""
    seconds: dict[str, float]
    """`median`, `p95` and `most` of the durations of calls that ran; empty if none did."""
    steps: list[int]
    """Steps with a call, in ascending order."""
    by_step: list[int]
    """Number of calls in each of `steps`."""
    failed_by_step: list[float]
    """Fraction of these calls that were not `ok`."""
    truncated: int
    """Number of results that were cut to `environment.max_result_characters`."""
    error: str
    """The most frequent error message; empty if no call failed."""


_Call = tuple[str, int | None, float, int, str]
"""(outcome, step, seconds, whether the result was cut, error message)"""


def summarize_tools(calls: Iterable[tuple[str, str, int | None, float, int, str]]) -> list[ToolUse]:
    """Compute the statistics of each tool, the most frequently called first.

    Args:
        calls: (tool, outcome, step, seconds, whether the result was cut, error message)
    """
    calls_by_tool: dict[str, list[_Call]] = defaultdict(list)
    for name, outcome, step, seconds, truncated, error in calls:
        calls_by_tool[name].append((outcome, step, seconds, truncated, error))
    names = sorted(calls_by_tool, key=lambda name: -len(calls_by_tool[name]))
    if len(names) > _MAX_TOOLS:
        calls_by_tool[_OTHERS] = [call for name in names[_MAX_TOOLS:] for call in calls_by_tool[name]]
        names = [*names[:_MAX_TOOLS], _OTHERS]
    return [_summarize_tool(name, calls_by_tool[name]) for name in names]


def _summarize_tool(name: str, calls: list[_Call]) -> ToolUse:
    ran = np.array([call[2] for call in calls if call[2] > 0])
    steps = Counter(call[1] for call in calls if call[1] is not None)
    failed = Counter(call[1] for call in calls if call[1] is not None and call[0] != "ok")
    errors = count_causes((call[4] for call in calls if call[4]), most=1)
    order = sorted(steps)
    seconds = {}
    if len(ran):
        middle, most = np.percentile(ran, [50, 95])
        seconds = {"median": float(middle), "p95": float(most), "most": float(ran.max())}
    return ToolUse(
        sanitize_text(name) or "(unreadable call)",
        bool(name) and name != _OTHERS,
        len(calls),
        dict(Counter(call[0] for call in calls).most_common()),
        seconds,
        order,
        [steps[step] for step in order],
        [failed[step] / steps[step] for step in order],
        sum(call[3] for call in calls),
        next(iter(errors), ""),
    )
