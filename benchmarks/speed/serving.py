"""Overhead of the served endpoint over the engine, weight updates during requests, and memory over many requests.

Clients in a separate process stream completions over sockets, one after the other per client; the same requests, with
the same seeds and therefore the same tokens, run directly on the engine. Both alternate in one run; the ratio is the
median of each streamed round over its neighboring rounds. Then the weights change during requests. `--soak` is another
run: many short requests of all kinds, with the memory of the server over time.

    python -m benchmarks serving --write                     results/raw/serving.json and serving.md
    python -m benchmarks serving --soak 100000 --write       adds the soak
    python -m benchmarks serving --model smollm2-135m --tokens 24 --each 1 --rounds 3 --write    adds a pretrained model
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from circumstances import circumstances
from concurrency import resident_bytes
from whetstone.assembly import RunComponents, assemble
from whetstone.chat import user
from whetstone.cli.server_options import bind_socket
from whetstone.garbage import exclude_present_objects
from whetstone.inference import Engine, GenerateRequest, Sampling
from whetstone.recipe import load_recipe
from whetstone.serving import CompletionService, EpisodeRegistry, Server, build_serving_app
from whetstone.serving.http_server import build_server
from whetstone.trajectory import TokenSequence

RESULTS = Path(__file__).parents[1] / "results"
GOAL = 0.9
CLIENTS = 64
_DRAWN = re.compile(rb'"completion_tokens": ?(\d+)')
SMALL = (
    "policy.tiny={vocab_size: 340, hidden_size: 16, num_layers: 1, num_heads: 1, intermediate_size: 16, "
    "context_length: 256}"
)
"""Settings of the soak, which tests the server, not the model."""


def build_request(client: int, turn: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Return a unique request."""
    number = client * 1000 + turn
    messages = [{"role": "user", "content": f"Compute {number}*{number + 7}"}]
    return {"model": "demo", "messages": messages, "max_tokens": tokens, "seed": number, **more}


# -------------------------------------------------------------------------------------------------- the clients


@dataclass
class ResponseStatistics:
    """Statistics of the responses that clients received."""

    requests: int = 0
    refused: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds to the first event, per request."""
    gaps: list[float] = field(default_factory=list)
    """Maximum seconds between two events, per request."""


class Line:
    """Persistent connection with minimal parsing."""

    def __init__(self, port: int, *, timed: bool = True) -> None:
        self._port, self.timed = port, timed
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, body: Mapping[str, Any], statistics_read: ResponseStatistics, *, path: str = "/v1/chat/completions"
    ) -> bytes:
        """Send a request and read the full response."""
        is_reused = self._writer is not None
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        written = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(written)}\r\n\r\n"
        began = time.perf_counter()
        self._writer.write(head.encode() + written)
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (ConnectionError, asyncio.IncompleteReadError):
            if not is_reused:
                raise
            self.close()  # the server closed the idle connection
            return await self.ask(body, statistics_read, path=path)
        if b"content-length:" in lines:
            response = await self._reader.readexactly(int(lines.partition(b"content-length:")[2].partition(b"\r\n")[0]))
        else:
            response = await self._events(began, statistics_read)
        statistics_read.requests += 1
        statistics_read.refused += not lines.startswith(b"http/1.1 200")
        usage = _DRAWN.search(response, max(0, len(response) - 400))
        statistics_read.tokens += int(usage[1]) if usage is not None else 0
        return response

    async def _events(self, began: float, statistics_read: ResponseStatistics) -> bytes:
        pieces, last, longest = [], began, 0.0
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
            now = time.perf_counter()
            if len(pieces) == 1 and self.timed:
                statistics_read.first.append(now - began)
            else:
                longest = max(longest, now - last)
            last = now
        await self._reader.readexactly(2)
        if self.timed:
            statistics_read.gaps.append(longest)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def streaming(port: int, clients: int, each: int, tokens: int) -> dict[str, Any]:
    """Run `clients` concurrent clients with successive requests."""
    statistics_read = ResponseStatistics()

    async def one(client: int) -> None:
        line = Line(port)
        for turn in range(each):
            await line.ask(
                build_request(client, turn, tokens, stream=True, stream_options={"include_usage": True}),
                statistics_read,
            )
        line.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(clients)))
    seconds = time.perf_counter() - began
    return {**vars(statistics_read), "seconds": seconds}


async def as_clients(port: int) -> None:
    """Run the client loads that lines of standard input specify."""
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(await streaming(port, **json.loads(line))), flush=True)


# --------------------------------------------------------------------------------------------------- the server


@dataclass
class Endpoint:
    """Server in this process."""

    assembly: RunComponents
    engine: Engine
    episodes: EpisodeRegistry
    port: int = 0

    @classmethod
    def of(cls, assembly: RunComponents) -> Endpoint:
        """Create a server that is not started."""
        return cls(assembly, assembly.build_engine(), EpisodeRegistry(idle_seconds=5.0))

    async def __aenter__(self) -> Endpoint:
        """Start the server."""
        speaker = CompletionService(self.engine, self.assembly.chat, context_length=self.assembly.policy.context_length)
        bound = bind_socket("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self._server = build_server(build_serving_app(Server(speaker, self.episodes, name="demo")))
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[bound]))
        while not self._server.started:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        exclude_present_objects()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the server."""
        self._server.should_exit = True
        await self._serving
        await self.engine.close()


async def run_on_engine(endpoint: Endpoint, clients: int, each: int, tokens: int) -> dict[str, Any]:
    """Run the same requests directly on the engine."""
    chat, engine = endpoint.assembly.chat, endpoint.engine
    drawn_tokens = 0

    async def one(client: int) -> None:
        nonlocal drawn_tokens
        for turn in range(each):
            body = build_request(client, turn, tokens)
            ids = chat.open([user(body["messages"][0]["content"])], ()).ids
            sampling = Sampling(body["max_tokens"], stop_ids=chat.stop_ids, seed=body["seed"])
            name = f"straight {client} {turn}"
            sampled = await engine.generate(GenerateRequest(TokenSequence(ids), sampling, name))
            drawn_tokens += len(sampled.tokens)
            engine.forget(name)

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(clients)))
    return {"tokens": drawn_tokens, "seconds": time.perf_counter() - began}


async def load(rounds: int, each: int, tokens: int, model: str | None = None) -> dict[str, Any]:
    """Measure throughput of engine and endpoint alternately, client latency, and a change of weights."""
    changes = [] if model is None else ["policy.tiny=null", f"policy.path={model}", "chat.format=hermes"]
    async with Endpoint.of(assemble(load_recipe("demo", changes))) as endpoint:
        words = [sys.executable, __file__, "--client", str(endpoint.port)]
        pipe = asyncio.subprocess.PIPE
        clients = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=1 << 24)
        assert clients.stdin is not None
        assert clients.stdout is not None
        how = {"clients": CLIENTS, "each": each, "tokens": tokens}

        async def served() -> Any:
            clients.stdin.write(json.dumps(how).encode() + b"\n")  # type: ignore[union-attr]
            return json.loads(await clients.stdout.readline())  # type: ignore[union-attr]

        await run_on_engine(endpoint, CLIENTS, 1, tokens)  # the engine selects its kernels; not measured
        await served()
        bare, streamed = [], []
        for number in range(rounds):
            bare.append(await run_on_engine(endpoint, **how))
            streamed.append(await served())
            print(number, _speed(bare[-1]), _speed(streamed[-1]), file=sys.stderr)
            endpoint.episodes.close()
        if model is None:  # sums in low precision depend on the batch
            assert all(round_result["tokens"] == bare[0]["tokens"] for round_result in (*bare, *streamed)), (
                "tokens differ"
            )
        last = _speed(await run_on_engine(endpoint, **how))
        endpoint.episodes.close()
        swapping = asyncio.ensure_future(served())
        await asyncio.sleep(statistics.median(round_result["seconds"] for round_result in streamed) / 2)
        before = endpoint.engine.version
        began = time.perf_counter()
        weights = endpoint.assembly.policy.model.state_dict()
        await endpoint.engine.load_weights(weights, before + 1, in_flight="continue")
        swap_seconds = time.perf_counter() - began
        swapped = await swapping
        both = sum(
            {before, before + 1} <= {v for t in episode.build_trajectory().turns for v in t.action.versions}
            for episode in endpoint.episodes
        )
        clients.stdin.close()
        await clients.wait()
    first = sorted(seconds for round_result in streamed for seconds in round_result["first"])
    gaps = sorted(seconds for round_result in streamed for seconds in round_result["gaps"])
    return {
        "bare_tokens_per_second": [_speed(round_result) for round_result in bare],
        "served_tokens_per_second": [_speed(round_result) for round_result in streamed],
        "last_bare_tokens_per_second": last,
        "tokens_a_round": bare[0]["tokens"],
        "each": each,
        "most_tokens": tokens,
        "first_token_p50_seconds": _at(first, 0.5),
        "first_token_p99_seconds": _at(first, 0.99),
        "longest_gap_p50_seconds": _at(gaps, 0.5),
        "longest_gap_p99_seconds": _at(gaps, 0.99),
        "swap": {
            "requests": swapped["requests"],
            "refused": swapped["refused"],
            "tokens": swapped["tokens"],
            "answers_of_both_versions": both,
            "seconds": swap_seconds,
        },
    }


def build_api_request(kind: int, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (API, request): four of ten kinds are streamed, two each are Anthropic Messages and Responses."""
    messages, most, stream = body["messages"], body["max_tokens"], {"stream": kind < 4}
    if kind in (2, 6):
        return "messages", {"model": "demo", "messages": messages, "max_tokens": most, **stream}
    if kind in (3, 7):
        return "responses", {"model": "demo", "input": messages[0]["content"], "max_output_tokens": most, **stream}
    return "chat/completions", {**body, **stream}


async def soak(requests: int, every: int) -> dict[str, Any]:
    """Send short requests of all kinds and record the memory of the server."""
    assembly = assemble(load_recipe("demo", [SMALL, "ablations=null"]))
    statistics_read, lost = ResponseStatistics(), 0
    megabytes: list[float] = []
    began = time.perf_counter()
    async with Endpoint.of(assembly) as endpoint:
        numbers = iter(range(requests))

        async def one() -> None:
            nonlocal lost
            line = Line(endpoint.port, timed=False)
            for number in numbers:
                if number and number % every == 0:
                    gc.collect()
                    megabytes.append(round(resident_bytes() / 2**20, 1))
                    print(number, megabytes[-1], round(time.perf_counter() - began), file=sys.stderr, flush=True)
                kind = number % 10
                api, body = build_api_request(kind, build_request(number % 997, number // 997, 2))
                name = f"soak-{number}"
                path = f"/episodes/{name}/v1/{api}"
                if kind == 8:
                    body["model"] = "another"
                if kind == 9:  # disconnects before the response
                    asking = asyncio.ensure_future(line.ask(body, ResponseStatistics(), path=path))
                    await asyncio.sleep(0.002)
                    asking.cancel()
                    line.close()
                    lost += 1
                    continue
                if kind == 5:
                    await line.ask(
                        {"id": name, "task": f"task-{number % 7}"}, ResponseStatistics(), path="/v1/episodes"
                    )
                await line.ask(body, statistics_read, path=path)
                if kind in (0, 5):
                    reward_body = {"reward": 1.0} if kind == 0 else {"final": True}
                    await line.ask(reward_body, ResponseStatistics(), path=f"/v1/episodes/{name}/reward")
            line.close()

        await asyncio.gather(*(one() for _ in range(16)))
        statistics_ = endpoint.engine.statistics
    return {
        "requests": requests,
        "of": "chat, Responses, Messages",
        "answered": statistics_read.requests - statistics_read.refused,
        "refused": statistics_read.refused,
        "hung_up": lost,
        "engine_failed": statistics_.failed,
        "megabytes": megabytes,
        "every": every,
        "seconds": time.perf_counter() - began,
    }


def _speed(result: Mapping[str, Any]) -> float:
    return float(result["tokens"] / result["seconds"])


def _at(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def page(result: Mapping[str, Any]) -> str:
    """Return the page of the results."""
    measured, lines = result["measured"], ["# A policy served by an endpoint", ""]
    if "bare_tokens_per_second" in measured:
        lines += _load("The demo's model", measured)
    for name, figures in measured.get("models", {}).items():
        lines += _load(name, figures)
    if "soak" in measured:
        soaked = measured["soak"]
        lines += [
            f"Soak: {soaked['requests']:,} short requests ({soaked.get('of', 'chat')}: streamed, whole, paid, refused, "
            f"hung up) in "
            f"{soaked['seconds']:,.0f} s: {soaked['answered']:,} answered, {soaked['refused']:,} refused as they "
            f"should, {soaked['hung_up']:,} hung up, {soaked['engine_failed']} failed. Resident megabytes every "
            f"{soaked['every']:,}: {', '.join(f'{m:.0f}' for m in soaked['megabytes'])}.",
            "",
        ]
    return "\n".join([*lines, *([result["note"], ""] if "note" in result else [])])


def _load(model: str, measured: Mapping[str, Any]) -> list[str]:
    bare, served = measured["bare_tokens_per_second"], measured["served_tokens_per_second"]
    swap = measured["swap"]
    return [
        f"{model}; {CLIENTS} clients in a separate process, each with {measured['each']} completions of up to "
        f"{measured['most_tokens']} tokens per round, streamed over sockets; the same {measured['tokens_a_round']:,} "
        f"tokens per round sampled directly on the engine. {len(bare)} alternating rounds of each.",
        "",
        "| | median | all rounds |",
        "| --- | --- | --- |",
        f"| engine only, tokens per second | {statistics.median(bare):,.0f} | {_listed(bare)} |",
        f"| streamed, tokens per second | {statistics.median(served):,.0f} | {_listed(served)} |",
        f"| streamed / engine only (goal {GOAL}) | {_ratio(measured):.3f} | |",
        f"| seconds to the first event, p50, p99 | {measured['first_token_p50_seconds']:.3f}, "
        f"{measured['first_token_p99_seconds']:.3f} | |",
        f"| longest gap between two events of an answer, p50, p99 | {measured['longest_gap_p50_seconds']:.3f}, "
        f"{measured['longest_gap_p99_seconds']:.3f} | |",
        "",
        f"Weights changed in the middle of a round (`in_flight: continue`, {swap['seconds']:.3f} s): "
        f"{swap['requests']} requests, {swap['refused']} refused, {swap['answers_of_both_versions']} answers with "
        "tokens of both versions.",
        "",
    ]


def _ratio(measured: Mapping[str, Any]) -> float:
    """Return the median of each streamed round over the mean of its neighbors, which cancels changes of load."""
    bare, served = measured["bare_tokens_per_second"], measured["served_tokens_per_second"]
    neighbors = [*bare, measured.get("last_bare_tokens_per_second", bare[-1])]
    median: float = statistics.median(2 * each / (neighbors[n] + neighbors[n + 1]) for n, each in enumerate(served))
    return median


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="pretrained model, as in `policy.path`; default: the demo's")
    parser.add_argument("--each", type=int, default=2, help="completions per client and round")
    parser.add_argument("--tokens", type=int, default=128, help="maximum tokens of a completion")
    parser.add_argument("--soak", type=int, default=0, help="number of short requests; runs only the soak")
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        asyncio.run(as_clients(arguments.client))
        return
    began = time.perf_counter()
    stored = RESULTS / "raw" / "serving.json"
    result: dict[str, Any] = (
        json.loads(stored.read_text()) if stored.exists() else {"name": "serving", "measured": {}, "ratios": {}}
    )
    if arguments.soak:
        result["measured"]["soak"] = asyncio.run(soak(arguments.soak, max(1, arguments.soak // 20)))
    else:
        measured = asyncio.run(load(arguments.rounds, arguments.each, arguments.tokens, arguments.model))
        if arguments.model is not None:
            result["measured"].setdefault("models", {})[Path(arguments.model).name] = measured
            result["ratios"][f"of_engine_{Path(arguments.model).name}"] = _ratio(measured)
        else:
            result["measured"] |= measured
            result["ratios"]["of_engine"] = _ratio(measured)
            result.pop("note", None)
    result |= {"goal": {"of_engine": GOAL}, **circumstances(began)}
    if arguments.write:
        stored.write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "serving.md").write_text(page(result))
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
