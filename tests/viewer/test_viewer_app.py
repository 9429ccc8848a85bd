"""An authorized client sees all of a run, any other client nothing, and no client can change anything."""

import asyncio
import json

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.viewed_runs import evaluated, made_run
from whetstone.serving.api_keys import Keys, create_key
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import PAGE, Viewer, view_application

pytest.importorskip("starlette", reason="pip install starlette uvicorn")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    run = made_run(folder / "run")
    evaluated(run, "untrained", 0.25, [0.1, 0.4])
    viewed = open_runs([run, made_run(folder / "other", steps=1)], cache=folder / "cache")
    for each in viewed:
        each.refresh()
    return viewed


def send_request(viewer, path, *, method="GET", host="localhost", **headers):
    """Return the response to one request."""
    app = view_application(viewer)

    async def ask():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return asyncio.run(ask())


def get_json(runs, path, **options):
    answer = send_request(Viewer(runs, **options), path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_state_has_the_progress_of_each_run(runs):
    one, other = get_json(runs, "/api/state")["runs"]
    assert (one["name"], one["step"], one["steps"], one["trajectories"]) == ("run", 3, 40, 12)
    assert one["read"] == one["bytes"] > 0
    assert other["trajectories"] == 4


def test_overview_has_verdict_alarms_recipe_and_evaluations(runs):
    overview = get_json(runs, "/api/runs/0/overview")
    assert overview["title"] == "Sums with a tool"
    assert overview["recipe"]["reinforcement.learning_rate"] == "0.001"
    assert overview["evaluations"][0]["success"] == 0.25
    assert (overview["alarms"], overview["results"], overview["stored_alarms"]) == ([], [], {})


def test_curves_trajectories_and_one_trajectory(runs):
    assert get_json(runs, "/api/runs/0/curves")["reinforcement"]["reward/mean"]["x"] == [1, 2, 3]
    page = get_json(runs, "/api/runs/0/trajectories?outcome=solved&limit=2&descending=1")
    assert (page["count"], len(page["rows"])) == (6, 2)
    one = get_json(runs, "/api/runs/0/trajectory?id=group-1/sums/1%231")
    assert one["row"]["step"] == 1
    assert [mate["id"] for mate in one["mates"]] == ["group-1/sums/1#0", "group-1/sums/1#1"]
    assert one["group_state"] == "learned from"


def test_tools_steps_episodes_trace_and_comparison(runs):
    (tool,) = get_json(runs, "/api/runs/0/tools")
    assert (tool["name"], tool["calls"]) == ("sum", 12)
    assert [step["start"] for step in get_json(runs, "/api/runs/0/steps")["steps"]] == [0.0, 2.0, 4.0]
    assert len(get_json(runs, "/api/runs/0/episodes?step=2")["episodes"]) == 4
    assert {event["ph"] for event in get_json(runs, "/api/runs/0/trace?first=1&last=2")["traceEvents"]} == {"M", "X"}
    compared = get_json(runs, "/api/compare")
    assert compared["runs"][0]["curve"] == {"x": [16.0, 32.0, 48.0], "y": [0.5, 0.5, 0.5]}  # 16 sampled tokens per step
    assert compared["comparison"] is None


def test_comparison_of_runs_has_the_result_of_each_stage(tmp_path):
    folder = made_run(tmp_path / "run")
    ends = {"before": {"success": 0.7, "interval": [0.65, 0.75]}, "after": {"success": 0.4, "interval": [0.35, 0.45]}}
    (folder / "summary.json").write_text(json.dumps(ends))
    opened = open_runs([folder], cache=tmp_path / "cache")
    (compared,) = Viewer(opened).compare()["runs"]
    opened[0].close()
    assert [result["outcome"] for result in compared["results"]] == ["worse"]
    assert compared["verdict"]["word"] == "worse"


def test_comparison_file_is_read_if_it_exists(runs, tmp_path):
    viewer = Viewer(runs, folders=[tmp_path])
    assert send_request(viewer, "/api/compare").json()["comparison"] is None
    rows = [{"name": name, "success": [mean], "mean": mean, "seeds": [0]} for name, mean in (("a", 0.75), ("b", 0.5))]
    pair = {"one": "a", "other": "b", "difference": 0.25, "p_seeds": None}
    (tmp_path / "comparison.json").write_text(json.dumps({"contenders": rows, "pairs": [pair]}))
    comparison = send_request(viewer, "/api/compare").json()["comparison"]
    assert comparison["sentence"] == "a has the highest success, 75.0 %; over 1 seed it cannot be distinguished from b."
    (tmp_path / "comparison.json").write_text('{"contenders": [{}]}')
    assert send_request(viewer, "/api/compare").json()["comparison"]["sentence"] == ""


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/runs/7/overview", 404, "run 7: does not exist; there are 2 runs, counted from 0"),
        ("/api/runs/x/overview", 404, "run x: does not exist"),
        ("/api/runs/0/trajectories?sort=x", 400, "cannot sort by"),
        ("/api/runs/0/trajectory?id=missing", 404, "no trajectory missing"),
        ("/api/runs/0/episodes?step=-1", 400, "step: a whole number from 0"),
        ("/api/runs/0/data?stage=warming", 400, "with training data; allowed"),
        ("/api/nothing", 404, "Not Found"),
        ("/page/..%2fapp.py", 404, ""),
        ("/page/nothing.js", 404, "no such page"),
    ],
)
def test_invalid_request_is_refused_in_one_line(runs, path, status, message):
    answer = send_request(Viewer(runs), path)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_without_keys_only_this_machine_and_this_page_are_served(runs):
    viewer = Viewer(runs)
    assert send_request(viewer, "/api/state").status_code == 200
    assert send_request(viewer, "/api/state", host="evil.example").status_code == 403
    assert send_request(viewer, "/api/state", origin="http://evil.example").status_code == 403
    assert send_request(viewer, "/api/state", sec_fetch_site="cross-site").status_code == 403
    assert send_request(viewer, "/api/state", sec_fetch_site="same-origin").status_code == 200


def test_with_keys_only_authorized_requests_are_served(runs, tmp_path):
    file = tmp_path / "keys.json"
    admin, user = create_key(file, "me", "admin"), create_key(file, "agent", "use")
    viewer = Viewer(runs, keys=Keys.read(file))
    assert send_request(viewer, "/api/state").status_code == 401
    assert send_request(viewer, "/api/state", authorization="Bearer wrong").status_code == 401
    assert send_request(viewer, "/api/state", authorization=f"Bearer {user}").status_code == 403
    assert send_request(viewer, "/api/state", host="runs.example", authorization=f"Bearer {admin}").status_code == 200
    assert send_request(viewer, "/").status_code == 200  # the page itself has no data of a run


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(runs, method):
    assert send_request(Viewer(runs), "/api/state", method=method).status_code == 405


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/api/state", "/api/runs/9/overview"])
def test_every_response_forbids_scripts_of_other_sites(runs, path):
    headers = send_request(Viewer(runs), path).headers
    assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_page_code_inserts_no_markup_and_fetches_from_no_other_site():
    for path in PAGE.glob("*.*"):
        text = path.read_text()
        for never in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert never not in text, (path.name, never)
        without_names = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in without_names, path.name
        assert "https://" not in without_names, path.name


KEYS = [
    "id",
    "part",
    "sort",
    "text",
    "task",
    "from_step",
    "above",
    "measure",
    "limit",
    "offset",
    "step",
    "first",
    "whole",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["trajectories", "trajectory", "episodes", "trace"]),
    parameters=st.dictionaries(st.sampled_from(KEYS), st.text(max_size=12), max_size=4),
)
def test_any_request_is_served_or_refused(runs, name, parameters):
    answer = send_request(Viewer(runs), str(httpx2.URL(f"/api/runs/0/{name}", params=parameters)))
    assert answer.status_code in (200, 400, 404)
    json.loads(answer.text)
