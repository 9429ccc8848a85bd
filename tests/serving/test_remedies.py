"""An unknown path is rejected in the format of the API, with the remedy."""

import pytest

from support.served_policy import build_assembly, played
from whetstone.chat.api.completion_routes import ROUTES, find_remedy


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


@pytest.mark.parametrize(
    ("method", "path", "status", "remedy"),
    [
        ("POST", "/v1/embeddings", 404, "this server has no embeddings"),
        ("POST", "/embeddings", 404, "this server has no embeddings"),
        ("POST", "/episodes/e/v1/embeddings", 404, "this server has no embeddings"),
        ("POST", "/v1/audio/speech", 404, "this server has no audio"),
        ("POST", "/v1/fine_tuning/jobs", 404, "this server has no fine tuning"),
        *(("POST", f"/{path}", 404, "the API is under /v1: set base_url") for path in ROUTES),
        ("GET", "/models", 404, "the API is under /v1"),
        ("POST", "/episodes/e/chat/completions", 404, "the API is under /v1"),
        ("POST", "/v1/v1/messages", 404, "/v1 is twice in the path"),
        ("GET", "/v1/nothing", 404, "GET /openapi.json lists the routes"),
        ("GET", "/v1/chat/completions", 405, "not allowed; use POST"),
        ("PATCH", "/v1/episodes", 405, "not allowed; use"),
    ],
)
def test_wrong_path_or_method_is_rejected_with_the_remedy(assembly, method, path, status, remedy):
    async def work(served):
        async with served.http() as http:
            headers = {"anthropic-version": "2023-06-01"}
            return [await http.request(method, path, headers=each) for each in ({}, headers)]

    for answer, shape in zip(
        played(assembly, work), ({"message", "type", "param", "code"}, {"type", "message"}), strict=True
    ):
        error = answer.json()["error"]
        assert answer.status_code == status
        assert error["message"].startswith(f"{method} {path}: ")
        assert remedy in error["message"]
        assert set(error) == (shape if "/v1/messages" not in path else {"type", "message"})


def test_the_openai_client_shows_the_remedy(assembly):
    openai = pytest.importorskip("openai", reason="pip install openai")

    async def work(served):
        client = served.client()
        with pytest.raises(openai.NotFoundError) as error:
            await client.embeddings.create(model="tiny", input="x")
        return str(error.value)

    assert "use another server for embeddings" in played(assembly, work)


def test_no_remedy_is_given_for_a_path_of_the_api():
    for path in ROUTES:
        assert find_remedy(f"/v1/{path}") == "not found; GET /openapi.json lists the routes"
