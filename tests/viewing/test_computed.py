"""What is not on record is computed again from a real run, and is of the very tokens that are shown."""

import asyncio

import httpx2
import pytest

from tests_cli import whetstone
from tests_small import SMALL, TEACHING
from whetstone.tools.plain_text import plain
from whetstone.viewing.app import Viewer, view_application
from whetstone.viewing.opened import opened_runs

pytestmark = pytest.mark.slow
pytest.importorskip("starlette", reason="pip install starlette uvicorn")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("computed")
    done = whetstone("train", "demo", *SMALL, TEACHING, "ablations=null", "--run-dir", folder / "run")
    assert done.returncode == 0, done.stderr
    (run,) = opened_runs([folder / "run"], cache=folder / "cache")
    run.refresh()
    return Viewer([run], allow_run_code=True)  # its reward is a module of the tests


def told(viewer, path, **asked):
    app = view_application(viewer)

    async def ask():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=600) as client:
            return await client.get(f"/api/runs/0/{path}", params=asked)

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_real_run_is_read_without_a_remark(viewer):
    overview = told(viewer, "overview")
    assert overview["remarks"] == []
    assert overview["progress"]["state"] == "finished"
    assert [each["name"] for each in overview["evaluations"]] == ["untrained", "supervised", "reinforcement"]
    rows = told(viewer, "trajectories", part="training")
    assert rows["count"] == 8  # 2 steps of 2 tasks of 2 samples
    assert {row["step"] for row in rows["rows"]} == {1, 2}


def test_credit_is_of_the_tokens_that_are_shown(viewer):
    row = told(viewer, "trajectories", part="training", to_step="1")["rows"][0]
    shown = told(viewer, "trajectory", id=row["id"])
    explained = told(viewer, "why", id=row["id"])
    assert explained["update"] == 1
    assert {step["what"] for step in explained["chain"]} >= {"outcome", "advantage"}
    for number, turn in enumerate(shown["turns"]):
        mine = [token for token in explained["tokens"] if token["turn"] == number]
        assert [token["sampler_logprob"] for token in mine] == turn["action"]["logprobs"]
        assert [plain(token["text"]) for token in mine] == turn["action"]["texts"]


def test_demonstrations_are_shown_as_the_warm_up_trains_them(viewer):
    shown = told(viewer, "data", stage="supervised", first="0", count="2")["shown"]
    assert len(shown) == 2
    (segment,) = shown[0]["segments"]
    trained = "".join(text for text, learned in zip(segment["texts"], segment["trained"], strict=True) if learned)
    read = "".join(text for text, learned in zip(segment["texts"], segment["trained"], strict=True) if not learned)
    assert "<call>" in trained
    assert "Compute" in read
    assert "Compute" not in trained
