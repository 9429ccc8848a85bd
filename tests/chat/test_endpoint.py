"""A model behind an address is asked again where that may help, and its silence is no answer."""

import asyncio

import pytest

from tests_endpoint import served
from whetstone.chat import ChatEndpoint
from whetstone.errors import InfrastructureError


def asked(server, times=1, **options):
    async def main():
        endpoint = ChatEndpoint(server.url, "m", **{"pause": 0.01, **options})
        try:
            said = [endpoint.complete([{"role": "user", "content": str(k)}], temperature=0) for k in range(times)]
            return await asyncio.gather(*said)
        finally:
            await endpoint.close()

    return asyncio.run(main())


def test_an_answer_and_what_it_took():
    with served(lambda number, body: "hello") as server:
        (said,) = asked(server, key="secret")
    assert (said.text, said.prompt_tokens, said.completion_tokens, said.tries) == ("hello", 10, 2, 1)
    assert server.bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "0"}], "temperature": 0}
    assert server.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "trouble", [429, 500, 503, b"<html>busy</html>", b'{"choices": []}', (429, {"retry-after": "0.02"})]
)
def test_trouble_that_passes(trouble):
    with served(lambda number, body: trouble if number < 2 else "there") as server:
        assert asked(server)[0].text == "there"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", [429, 500, b"prose"])
def test_trouble_that_does_not(trouble):
    with served(lambda number, body: trouble) as server, pytest.raises(InfrastructureError, match="could not be asked"):
        asked(server, tries=3)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", [400, 401, 404])
def test_what_asking_again_cannot_mend(trouble):
    with served(lambda number, body: trouble) as server, pytest.raises(InfrastructureError, match=str(trouble)):
        asked(server)
    assert len(server.bodies) == 1


def test_a_server_that_hangs():
    with (
        served(lambda number, body: 5.0) as server,
        pytest.raises(InfrastructureError, match=r"no answer within|Timeout"),
    ):
        asked(server, seconds=0.1, tries=2)


def test_no_server():
    with served(lambda number, body: "x") as server:
        pass
    with pytest.raises(InfrastructureError):
        asked(server, tries=2)


def test_no_more_at_once_than_it_may():
    def slowly(number, body):
        import time

        time.sleep(0.02)
        return "x"

    with served(slowly) as server:
        assert len(asked(server, times=12, concurrency=3)) == 12
    assert server.most_at_once <= 3


def test_it_may_be_used_in_another_loop():
    with served(lambda number, body: "x") as server:
        endpoint = ChatEndpoint(server.url, "m")
        for _ in range(2):
            assert asyncio.run(endpoint.complete([])).text == "x"
