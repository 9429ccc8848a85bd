"""What does a policy lose by standing behind the endpoint? And does it hold: weights that change, many requests?

Clients in a process of their own stream answers over sockets, each its next when the last is over; the same requests,
with the same seeds and so the same tokens, are given straight to the engine. The two take turns in one run; the ratio
is the median of each streamed round by the rounds beside it. Then weights change while everybody is answered. `--soak`
is another run: many short requests of all kinds, and the memory of the server as it goes.

    python benchmarks/serving.py --write                     results/serving.json and serving.md
    python benchmarks/serving.py --soak 100000 --write       adds the soak to them
    python benchmarks/serving.py --model smollm2-135m --tokens 24 --each 1 --rounds 3 --write    adds a pretrained model
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
from whetstone.assembly import Assembly, assemble
from whetstone.chat import user
from whetstone.cli.listening import bound_to
from whetstone.inference import Engine, GenerateRequest, Sampling
from whetstone.recipe import load_recipe
from whetstone.serving import Episodes, Server, Speaker, application
from whetstone.serving.connections import keep_what_is_loaded, runner
from whetstone.trajectory import TokenSequence

RESULTS = Path(__file__).parent / "results"
GOAL = 0.9
CLIENTS = 64
_DRAWN = re.compile(rb'"completion_tokens": ?(\d+)')
SMALL = (
    "policy.tiny={vocab_size: 340, hidden_size: 16, num_layers: 1, num_heads: 1, intermediate_size: 16, "
    "context_length: 256}"
)
"""Of the soak: what is looked at is the server, not the model."""


def asked(client: int, turn: int, tokens: int, **more: Any) -> dict[str, Any]:
    """A request like no other."""
    number = client * 1000 + turn
    said = [{"role": "user", "content": f"Compute {number}*{number + 7}"}]
    return {"model": "demo", "messages": said, "max_tokens": tokens, "seed": number, **more}


# -------------------------------------------------------------------------------------------------- the clients


@dataclass
class Heard:
    """What clients were told."""

    requests: int = 0
    refused: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds to the first event of each."""
    gaps: list[float] = field(default_factory=list)
    """The longest between two events of each."""


class Line:
    """A connection that is kept, and read no more than it has to be."""

    def __init__(self, port: int, *, timed: bool = True) -> None:
        self._port, self.timed = port, timed
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, body: Mapping[str, Any], heard: Heard, *, path: str = "/v1/chat/completions") -> bytes:
        """One request and all of its answer."""
        kept = self._writer is not None
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        written = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(written)}\r\n\r\n"
        began = time.perf_counter()
        self._writer.write(head.encode() + written)
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (ConnectionError, asyncio.IncompleteReadError):
            if not kept:
                raise
            self.hang_up()  # it was idle for so long that the server ended it
            return await self.ask(body, heard, path=path)
        if b"content-length:" in lines:
            told = await self._reader.readexactly(int(lines.partition(b"content-length:")[2].partition(b"\r\n")[0]))
        else:
            told = await self._events(began, heard)
        heard.requests += 1
        heard.refused += not lines.startswith(b"http/1.1 200")
        usage = _DRAWN.search(told, max(0, len(told) - 400))
        heard.tokens += int(usage[1]) if usage is not None else 0
        return told

    async def _events(self, began: float, heard: Heard) -> bytes:
        pieces, last, longest = [], began, 0.0
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
            now = time.perf_counter()
            if len(pieces) == 1 and self.timed:
                heard.first.append(now - began)
            else:
                longest = max(longest, now - last)
            last = now
        await self._reader.readexactly(2)
        if self.timed:
            heard.gaps.append(longest)
        return b"".join(pieces)

    def hang_up(self) -> None:
        """Without a word."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def streaming(port: int, clients: int, each: int, tokens: int) -> dict[str, Any]:
    """So many at once, each one request behind the other."""
    heard = Heard()

    async def one(client: int) -> None:
        line = Line(port)
        for turn in range(each):
            await line.ask(asked(client, turn, tokens, stream=True, stream_options={"include_usage": True}), heard)
        line.hang_up()

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(clients)))
    seconds = time.perf_counter() - began
    return {**vars(heard), "seconds": seconds}


async def as_clients(port: int) -> None:
    """Do what is said on standard input, a line each."""
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(await streaming(port, **json.loads(line))), flush=True)


# --------------------------------------------------------------------------------------------------- the server


@dataclass
class Endpoint:
    """A server in this process."""

    assembly: Assembly
    engine: Engine
    episodes: Episodes
    port: int = 0

    @classmethod
    def of(cls, assembly: Assembly) -> Endpoint:
        """Not yet serving."""
        return cls(assembly, assembly.engine(), Episodes(idle_seconds=5.0))

    async def __aenter__(self) -> Endpoint:
        """Serve."""
        speaker = Speaker(self.engine, self.assembly.chat, context_length=self.assembly.policy.context_length)
        bound = bound_to("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self._server = runner(application(Server(speaker, self.episodes, name="demo")))
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[bound]))
        while not self._server.started:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        keep_what_is_loaded()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Serve no more."""
        self._server.should_exit = True
        await self._serving
        await self.engine.close()


async def straight(endpoint: Endpoint, clients: int, each: int, tokens: int) -> dict[str, Any]:
    """The same requests, to the engine itself."""
    chat, engine = endpoint.assembly.chat, endpoint.engine
    drawn_tokens = 0

    async def one(client: int) -> None:
        nonlocal drawn_tokens
        for turn in range(each):
            body = asked(client, turn, tokens)
            ids = chat.open([user(body["messages"][0]["content"])], ()).ids
            sampling = Sampling(body["max_tokens"], stop_ids=chat.stop_ids, seed=body["seed"])
            name = f"straight {client} {turn}"
            drawn = await engine.generate(GenerateRequest(TokenSequence(ids), sampling, name))
            drawn_tokens += len(drawn.tokens)
            engine.forget(name)

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(clients)))
    return {"tokens": drawn_tokens, "seconds": time.perf_counter() - began}


async def load(rounds: int, each: int, tokens: int, model: str | None = None) -> dict[str, Any]:
    """Throughput of both, alternating; what clients waited; a change of weights in the middle."""
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

        await straight(endpoint, CLIENTS, 1, tokens)  # the engine chooses how it computes; nobody's time
        await served()
        bare, streamed = [], []
        for number in range(rounds):
            bare.append(await straight(endpoint, **how))
            streamed.append(await served())
            print(number, _speed(bare[-1]), _speed(streamed[-1]), file=sys.stderr)
            endpoint.episodes.close()
        if model is None:  # sums of shorter numbers depend on who else is computed
            assert all(told["tokens"] == bare[0]["tokens"] for told in (*bare, *streamed)), "they draw the same"
        last = _speed(await straight(endpoint, **how))
        endpoint.episodes.close()
        swapping = asyncio.ensure_future(served())
        await asyncio.sleep(statistics.median(told["seconds"] for told in streamed) / 2)
        before = endpoint.engine.version
        began = time.perf_counter()
        weights = endpoint.assembly.policy.model.state_dict()
        await endpoint.engine.load_weights(weights, before + 1, in_flight="continue")
        swap_seconds = time.perf_counter() - began
        swapped = await swapping
        both = sum(
            {before, before + 1} <= {v for t in episode.trajectory().turns for v in t.action.versions}
            for episode in endpoint.episodes
        )
        clients.stdin.close()
        await clients.wait()
    first = sorted(seconds for told in streamed for seconds in told["first"])
    gaps = sorted(seconds for told in streamed for seconds in told["gaps"])
    return {
        "bare_tokens_per_second": [_speed(told) for told in bare],
        "served_tokens_per_second": [_speed(told) for told in streamed],
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


def spoken(kind: int, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(an API, a request in it): four kinds of ten are streamed, two each are Anthropic's and Responses."""
    said, most, stream = body["messages"], body["max_tokens"], {"stream": kind < 4}
    if kind in (2, 6):
        return "messages", {"model": "demo", "messages": said, "max_tokens": most, **stream}
    if kind in (3, 7):
        return "responses", {"model": "demo", "input": said[0]["content"], "max_output_tokens": most, **stream}
    return "chat/completions", {**body, **stream}


async def soak(requests: int, every: int) -> dict[str, Any]:
    """Short requests of all kinds, and the memory of the server."""
    assembly = assemble(load_recipe("demo", [SMALL, "ablations=null"]))
    heard, lost = Heard(), 0
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
                api, body = spoken(kind, asked(number % 997, number // 997, 2))
                name = f"soak-{number}"
                path = f"/episodes/{name}/v1/{api}"
                if kind == 8:
                    body["model"] = "another"
                if kind == 9:  # hangs up before it is answered
                    asking = asyncio.ensure_future(line.ask(body, Heard(), path=path))
                    await asyncio.sleep(0.002)
                    asking.cancel()
                    line.hang_up()
                    lost += 1
                    continue
                if kind == 5:
                    await line.ask({"id": name, "task": f"task-{number % 7}"}, Heard(), path="/v1/episodes")
                await line.ask(body, heard, path=path)
                if kind in (0, 5):
                    worth = {"reward": 1.0} if kind == 0 else {"final": True}
                    await line.ask(worth, Heard(), path=f"/v1/episodes/{name}/reward")
            line.hang_up()

        await asyncio.gather(*(one() for _ in range(16)))
        statistics_ = endpoint.engine.statistics
    return {
        "requests": requests,
        "of": "chat, Responses, Messages",
        "answered": heard.requests - heard.refused,
        "refused": heard.refused,
        "hung_up": lost,
        "engine_failed": statistics_.failed,
        "megabytes": megabytes,
        "every": every,
        "seconds": time.perf_counter() - began,
    }


def _speed(told: Mapping[str, Any]) -> float:
    return float(told["tokens"] / told["seconds"])


def _at(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def page(told: Mapping[str, Any]) -> str:
    """What was found, to be read."""
    measured, lines = told["measured"], ["# A policy behind the endpoint", ""]
    if "bare_tokens_per_second" in measured:
        lines += _load("The demo's model", measured)
    for name, found in measured.get("models", {}).items():
        lines += _load(name, found)
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
    return "\n".join([*lines, *([told["note"], ""] if "note" in told else [])])


def _load(model: str, measured: Mapping[str, Any]) -> list[str]:
    bare, served = measured["bare_tokens_per_second"], measured["served_tokens_per_second"]
    swap = measured["swap"]
    return [
        f"{model}; {CLIENTS} clients in a process of their own, each {measured['each']} answers of up to "
        f"{measured['most_tokens']} tokens a round, streamed over sockets; the same {measured['tokens_a_round']:,} "
        f"tokens a round drawn by the engine alone. {len(bare)} rounds of each in turn.",
        "",
        "| | median | all rounds |",
        "| --- | --- | --- |",
        f"| engine alone, tokens a second | {statistics.median(bare):,.0f} | {_listed(bare)} |",
        f"| streamed, tokens a second | {statistics.median(served):,.0f} | {_listed(served)} |",
        f"| streamed / alone (goal {GOAL}) | {_ratio(measured):.3f} | |",
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
    """The median of each streamed round by the mean of the two beside it: what else the machine does comes and goes."""
    bare, served = measured["bare_tokens_per_second"], measured["served_tokens_per_second"]
    beside = [*bare, measured.get("last_bare_tokens_per_second", bare[-1])]
    median: float = statistics.median(2 * each / (beside[n] + beside[n + 1]) for n, each in enumerate(served))
    return median


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="a pretrained one, as `policy.path` names it; null: the demo's")
    parser.add_argument("--each", type=int, default=2, help="answers of a client in a round")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--soak", type=int, default=0, help="so many short requests, and nothing else")
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        asyncio.run(as_clients(arguments.client))
        return
    began = time.perf_counter()
    kept = RESULTS / "serving.json"
    told: dict[str, Any] = (
        json.loads(kept.read_text()) if kept.exists() else {"name": "serving", "measured": {}, "ratios": {}}
    )
    if arguments.soak:
        told["measured"]["soak"] = asyncio.run(soak(arguments.soak, max(1, arguments.soak // 20)))
    else:
        measured = asyncio.run(load(arguments.rounds, arguments.each, arguments.tokens, arguments.model))
        if arguments.model is not None:
            told["measured"].setdefault("models", {})[Path(arguments.model).name] = measured
            told["ratios"][f"of_engine_{Path(arguments.model).name}"] = _ratio(measured)
        else:
            told["measured"] |= measured
            told["ratios"]["of_engine"] = _ratio(measured)
            told.pop("note", None)
    told |= {"goal": {"of_engine": GOAL}, **circumstances(began)}
    if arguments.write:
        kept.write_text(json.dumps(told, indent=1) + "\n")
        (RESULTS / "serving.md").write_text(page(told))
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
