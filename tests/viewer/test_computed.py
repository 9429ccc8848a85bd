"""Values that are not on record are recomputed from a real run, for the tokens that are shown."""

import asyncio

import httpx2
import pytest

from support.cli import whetstone
from support.small import SMALL, TEACHING
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

pytestmark = pytest.mark.slow
pytest.importorskip("starlette", reason="pip install starlette uvicorn")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("computed")
    done = whetstone("train", "demo", *SMALL, TEACHING, "ablations=null", "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    (run,) = open_runs([folder / "run"], cache=folder / "cache")
    run.refresh()
    return Viewer([run], allow_run_code=True)  # its reward is a module of the tests


def get_json(viewer, path, **parameters):
    app = view_application(viewer)

    async def ask():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=600) as client:
            return await client.get(f"/api/runs/0/{path}", params=parameters)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_real_run_is_read_without_problems(viewer):
    overview = get_json(viewer, "overview")
    assert overview["remarks"] == []
    assert overview["progress"]["state"] == "finished"
    assert [each["name"] for each in overview["evaluations"]] == ["untrained", "supervised", "reinforcement"]
    rows = get_json(viewer, "trajectories", part="training")
    assert rows["count"] == 8  # 2 steps of 2 tasks of 2 samples
    assert {row["step"] for row in rows["rows"]} == {1, 2}


def test_credit_is_of_the_shown_tokens(viewer):
    row = get_json(viewer, "trajectories", part="training", to_step="1")["rows"][0]
    trajectory = get_json(viewer, "trajectory", id=row["id"])
    explained = get_json(viewer, "why", id=row["id"])
    assert explained["update"] == 1
    assert {step["what"] for step in explained["chain"]} >= {"outcome", "advantage"}
    for number, turn in enumerate(trajectory["turns"]):
        turn_tokens = [token for token in explained["tokens"] if token["turn"] == number]
        assert [token["sampler_logprob"] for token in turn_tokens] == turn["action"]["logprobs"]
        assert [sanitize_text(token["text"]) for token in turn_tokens] == turn["action"]["texts"]


def test_demonstrations_are_shown_as_they_are_trained_on(viewer):
    examples = get_json(viewer, "data", stage="supervised", first="0", count="2")["shown"]
    assert len(examples) == 2
    (segment,) = examples[0]["segments"]
    trained = "".join(text for text, learned in zip(segment["texts"], segment["trained"], strict=True) if learned)
    read = "".join(text for text, learned in zip(segment["texts"], segment["trained"], strict=True) if not learned)
    assert "<call>" in trained
    assert "Compute" in read
    assert "Compute" not in trained
