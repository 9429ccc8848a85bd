"""Requests of schemathesis to every server of the project: no response has a status of 500 or more.

    python -m benchmarks http_requests --schemathesis VENV/bin/st              10,000 requests in all
    python -m benchmarks http_requests --schemathesis st --requests 2000 --server view

Each server publishes its OpenAPI document; schemathesis generates requests that match it, and requests that nearly do.
Requests are counted by the metrics of the server. `pip install schemathesis`, in a separate environment:
it pins packages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from circumstances import circumstances
from whetstone.assembly import assemble
from whetstone.cli.environments import create_contract
from whetstone.cli.server_options import bind_socket
from whetstone.environments.remote.environment_server import ServedEpisodes
from whetstone.environments.remote.environment_server import build_environment_app as environment_application
from whetstone.optional_dependencies import get_package_version
from whetstone.recipe import load_recipe
from whetstone.serving import CompletionService, EpisodeRegistry, Server, build_serving_app
from whetstone.serving.http_server import build_server
from whetstone.serving.human_in_the_loop import PeopleQueue, people_routes
from whetstone.serving.online import LiveService
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

RESULTS = Path(__file__).parents[1] / "results"
RECIPE = [
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}",
    "ablations=null", "supervised=null", "rollout.max_new_tokens=8", "reinforcement.steps=2",
    "reinforcement.tasks_per_step=2", "evaluation.episodes=2",
]  # fmt: skip
_SAMPLE = re.compile(r'whetstone_http_requests_total\{method="(\w+)",route="([^"]+)",status="(\d+)"\} (\d+)')


@asynccontextmanager
async def open_serve(folder: Path) -> AsyncIterator[Any]:
    assembly = assemble(load_recipe("demo", RECIPE))
    engine = assembly.build_engine()
    speaker = CompletionService(engine, assembly.chat, context_length=assembly.policy.context_length)
    server = Server(speaker, EpisodeRegistry(), name="tiny")
    yield build_serving_app(server, extra_routes=people_routes(server, PeopleQueue(folder / "people.jsonl")))
    await engine.close()


@asynccontextmanager
async def open_live(folder: Path) -> AsyncIterator[Any]:
    async with LiveService(load_recipe("demo", RECIPE), folder, name="tiny") as service:
        yield service.app


@asynccontextmanager
async def open_view(folder: Path) -> AsyncIterator[Any]:
    code = "import sys; from whetstone.cli.main import main; sys.argv[0] = 'whetstone'; main()"
    words = [sys.executable, "-c", code, "train", "demo", *RECIPE, "--run-dir", str(folder / "run")]
    await asyncio.to_thread(subprocess.run, words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield view_application(Viewer(open_runs([folder / "run"], cache=folder / "cache"), folders=[folder]))


@asynccontextmanager
async def open_environment(folder: Path) -> AsyncIterator[Any]:
    contract = create_contract("household", {})
    yield environment_application("household", ServedEpisodes(contract.make), contract.source)


SERVERS: dict[str, Callable[[Path], Any]] = {
    "serve": open_serve,
    "live": open_live,
    "view": open_view,
    "environment": open_environment,
}

SHARES = {"serve": 0.4, "live": 0.45, "view": 0.1, "environment": 0.05}
"""Minimum fraction of the requests; most go to the servers with the most routes."""


async def send_requests(server: str, schemathesis: str, requests: int, seed: int) -> dict[str, Any]:
    """Send requests to a server, in runs of schemathesis with further seeds, and return their number by status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="whetstone-http-") as folder:
        async with SERVERS[server](Path(folder)) as app:
            with bind_socket("127.0.0.1", 0) as bound:
                uvicorn = build_server(app)
                uvicorn.capture_signals = nullcontext
                serving = asyncio.ensure_future(uvicorn.serve(sockets=[bound]))
                counts: Counter[tuple[str, str, str]] = Counter()
                outputs: list[str] = []
                while sum(counts.values()) < requests:
                    url = f"http://127.0.0.1:{bound.getsockname()[1]}/openapi.json"
                    outputs.append(await _run(schemathesis, url, seed + len(outputs)))
                    counts = _counts(app.metrics())
                    print(server, len(outputs), sum(counts.values()), _by_status(counts), flush=True)
                uvicorn.should_exit = True
                await serving
    faults = {f"{method} {route}: {status}": n for (method, route, status), n in counts.items() if status >= "500"}
    results = {
        "requests": sum(counts.values()),
        "by_status": _by_status(counts),
        "routes": len({r for _, r, _ in counts}),
    }
    output = [text[-4000:] for text in outputs if "Server error" in text]
    return {**results, "faults": faults, "seconds": round(time.monotonic() - began), "output": output}


async def _run(schemathesis: str, url: str, seed: int) -> str:
    words = ["run", url, "--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "--mode", "all"]
    words += ["--max-examples", "25", "--seed", str(seed), "--workers", "2", "--request-timeout", "60", "--no-color"]
    words += ["--continue-on-failure", "--suppress-health-check", "all", "--generation-database", "none"]
    process = await asyncio.create_subprocess_exec(
        schemathesis, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace")


def _counts(text: str) -> Counter[tuple[str, str, str]]:
    return Counter({(method, route, status): int(n) for method, route, status, n in _SAMPLE.findall(text)})


def _by_status(counts: Counter[tuple[str, str, str]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for (_, _, status), number in counts.items():
        totals[status] += number
    return dict(sorted(totals.items()))


def write_page(measured: dict[str, Any]) -> str:
    """Return the page of the results."""
    lines = ["# Requests of schemathesis", "", __doc__.split("\n\n")[2].replace("\n", " ").strip(), ""]
    lines += ["| server | requests | routes | status | 500 and more |", "| --- | --: | --: | --- | --: |"]
    for server, results in measured["servers"].items():
        by_status = ", ".join(f"{status}: {number:,}" for status, number in results["by_status"].items())
        faults = sum(results["faults"].values())
        lines.append(f"| `{server}` | {results['requests']:,} | {results['routes']} | {by_status} | {faults} |")
    total = sum(results["requests"] for results in measured["servers"].values())
    return "\n".join(
        [*lines, "", f"{total:,} requests, Whetstone {get_package_version()}, {measured['schemathesis']}.", ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemathesis", default="st", help="Program of schemathesis.")
    parser.add_argument("--requests", type=int, default=10_000, help="Minimum number of requests to all servers.")
    parser.add_argument("--server", choices=SERVERS, action="append", help="A server; default: all.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    servers = arguments.server or list(SERVERS)
    version = subprocess.run([arguments.schemathesis, "--version"], capture_output=True, text=True, check=True).stdout
    servers_results, began = {}, time.perf_counter()
    for server in servers:
        share = int(arguments.requests * (SHARES[server] if arguments.server is None else 1 / len(servers)))
        servers_results[server] = asyncio.run(send_requests(server, arguments.schemathesis, share, arguments.seed))
        print(server, json.dumps(servers_results[server]), flush=True)
    faults = [fault for each in servers_results.values() for fault in each["faults"]]
    if arguments.server is None:
        measured = {"servers": servers_results, "schemathesis": version.strip()}
        RESULTS.joinpath("raw", "http_requests.json").write_text(
            json.dumps({**circumstances(began), "measured": measured}, indent=1)
        )
        RESULTS.joinpath("http_requests.md").write_text(write_page(measured))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
