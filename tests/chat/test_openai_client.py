"""Client of OpenAI-compatible servers: retries of transient errors, timeouts and concurrency."""

import asyncio

import pytest

from support.endpoint import served
from whetstone.chat import ChatEndpoint
from whetstone.errors import InfrastructureError


def request(server, times=1, **options):
    async def main():
        endpoint = ChatEndpoint(server.url, "m", **{"pause": 0.01, **options})
        try:
            requests = [endpoint.complete([{"role": "user", "content": str(k)}], temperature=0) for k in range(times)]
            return await asyncio.gather(*requests)
        finally:
            await endpoint.close()

    return asyncio.run(main())


def test_answer_and_its_usage():
    with served(lambda number, body: "hello") as server:
        (answer,) = request(server, key="secret")
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.tries) == ("hello", 10, 2, 1)
    assert server.bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "0"}], "temperature": 0}
    assert server.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "trouble", [429, 500, 503, b"<html>busy</html>", b'{"choices": []}', (429, {"retry-after": "0.02"})]
)
def test_transient_errors_are_retried(trouble):
    with served(lambda number, body: trouble if number < 2 else "there") as server:
        assert request(server)[0].text == "there"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", [429, 500, b"prose"])
def test_persistent_errors_end_after_three_requests(trouble):
    with (
        served(lambda number, body: trouble) as server,
        pytest.raises(InfrastructureError, match="the request to the model"),
    ):
        request(server, tries=3)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", [400, 401, 404])
def test_permanent_errors_are_not_retried(trouble):
    with served(lambda number, body: trouble) as server, pytest.raises(InfrastructureError, match=str(trouble)):
        request(server)
    assert len(server.bodies) == 1


def test_hanging_server_times_out():
    with (
        served(lambda number, body: 5.0) as server,
        pytest.raises(InfrastructureError, match=r"no answer within|Timeout"),
    ):
        request(server, seconds=0.1, tries=2)


def test_missing_server_is_an_infrastructure_error():
    with served(lambda number, body: "x") as server:
        pass
    with pytest.raises(InfrastructureError):
        request(server, tries=2)


def test_concurrent_requests_are_limited():
    def slowly(number, body):
        import time

        time.sleep(0.02)
        return "x"

    with served(slowly) as server:
        assert len(request(server, times=12, concurrency=3)) == 12
    assert server.most_at_once <= 3


def test_client_can_be_used_in_another_event_loop():
    with served(lambda number, body: "x") as server:
        endpoint = ChatEndpoint(server.url, "m")
        for _ in range(2):
            assert asyncio.run(endpoint.complete([])).text == "x"
