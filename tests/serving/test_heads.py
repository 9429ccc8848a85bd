"""Request heads: bounded memory, number of writes, and rejected names and numbers."""

import asyncio
from contextlib import suppress

import pytest

from support.served_policy import HI, Scripted, at_a_socket, build_assembly, played, request, sent_raw, until
from whetstone.serving import EpisodeRegistry, Key
from whetstone.serving.streaming import EventStream

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": HI, "max_tokens": 4}


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def at_socket(assembly, work):
    async def run(served):
        async with at_a_socket(served.app) as port:
            return await work(served, port)

    return played(assembly, run)


HEAD = b"host: localhost\r\n"
ENDLESS = [
    b"GET /health HTTP/1.1\r\nx: ",
    b"GET /",
    b"POST /health HTTP/1.1\r\n" + HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ",
]
"""A header, an address, a header after a body."""


@pytest.mark.parametrize("endless", ENDLESS)
def test_endless_head_is_not_stored(assembly, endless):
    async def work(served, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(endless)
        sent = 0
        with suppress(ConnectionError):
            while sent < 2**24:
                writer.write(b"a" * 2**14)
                await writer.drain()
                await asyncio.sleep(0)
                sent += 2**14
        writer.close()
        return sent

    assert at_socket(assembly, work) < 2**23


def test_many_requests_on_one_connection_are_not_an_endless_head(assembly):
    async def work(served, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        raw = request("/health", method="GET", x_filler="a" * 900)
        for _ in range(100):
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.close()

    at_socket(assembly, work)


@pytest.mark.parametrize(
    "written",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\n" + HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"POST /v1/models HTTP/1.1\r\n" + HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n folded: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_ambiguous_head_is_refused(assembly, written):
    async def work(served, port):
        return (await sent_raw(port, written))[0]

    assert at_socket(assembly, work) in (0, 400, 403)


def test_available_output_is_sent_in_one_write():
    """Combine pieces that are available together and the end into one system call."""
    writes = []

    class Lines:
        def write_start(self, count, prompt_tokens):
            yield f"open {count} {prompt_tokens}|"

        def write_text(self, number, text):
            yield f"{text}|"

        def write_end(self, answers):
            yield from ("end|", "done|")

    async def answering(shows, begun):
        begun(3)
        shows[0]("a")
        shows[0]("b")
        await until(lambda: len(writes) == 2)
        shows[0]("c")
        return []

    async def run():
        over = []
        waiting = asyncio.Event().wait
        stream = await EventStream(1, answering, Lines(), over.append, {"x-one": "1"}).begin(waiting)

        async def send(message):
            writes.append(message)

        await stream({}, waiting, send)
        assert over == [[]]

    asyncio.run(run())
    head, *body = writes
    assert (b"x-one", b"1") in head["headers"]
    assert [(piece["body"], piece["more_body"]) for piece in body] == [
        (b"open 1 3|a|b|", True),
        (b"c|end|done|", False),
    ]


@pytest.mark.parametrize("reward", [10**400, -(10**400), 1e301])
def test_reward_that_is_not_a_finite_number_is_refused(assembly, reward):
    async def work(served):
        async with served.http() as http:
            await http.post(f"/episodes/e1{CHAT}", json=ASKED)
            paths = ("/v1/episodes/e1/reward", "/v1/episodes/e1/rate")
            bodies = ({"reward": reward}, {"rating": reward})
            return [(await http.post(path, json=body)).status_code for path, body in zip(paths, bodies, strict=True)]

    assert played(assembly, work) == [400, 400]


def test_episode_name_has_only_characters_that_form_no_header(assembly):
    async def work(served):
        async with served.http() as http:
            statuses = []
            for name in ("a\r\nset-cookie: x", "☃", "a/b", 7, ["a"], {"id": "a"}):
                statuses.append((await http.post("/v1/episodes", json={"id": name})).status_code)
            for task in ({"id": "t"}, ["t"], 7, "t\n", "x" * 201):
                statuses.append((await http.post("/v1/episodes", json={"task": task})).status_code)
            statuses.append((await http.post("/v1/episodes/a%0d%0ax/watch", json={"by": "Ada"})).status_code)
            return statuses, list(served.episodes)

    statuses, begun = played(assembly, work)
    assert statuses == [400] * len(statuses)
    assert not begun


def test_disconnect_before_the_first_token_generates_nothing(assembly):
    class Slow(Scripted):
        cancelled = 0

        async def generate(self, request):
            self.prompts.append(())
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1

    async def work(served):
        async with at_a_socket(served.app) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(CHAT, {**ASKED, "stream": True}))
            await until(lambda: served.engine.prompts)
            writer.close()
            await until(lambda: served.engine.cancelled)
            assert served.engine.cancelled == len(served.engine.prompts) == 1

    played(assembly, work, engine=Slow(assembly))


def test_client_that_starts_too_many_episodes_ends_its_own():
    over = []
    episodes = EpisodeRegistry(over.append, max_open=4)
    careful, greedy = Key("careful", ""), Key("greedy", "")
    episodes.open_episode(careful, {"id": "kept"})
    for number in range(9):
        episodes.open_episode(greedy, {"id": f"g{number}"})
    assert [episode.id for episode in episodes] == ["kept", "g6", "g7", "g8"]
