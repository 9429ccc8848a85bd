"""The pages of the viewer in a browser.

Screenshots of each page are stored in the folder that `SCREENSHOTS` names, if it is set.
"""

import asyncio
import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest

from support.chromium import CHROMIUM
from support.viewed_runs import episode, evaluated, made_run, played, row
from whetstone.chat.message import tool_result
from whetstone.cli.server_options import bind_socket
from whetstone.optional_dependencies import install_command
from whetstone.record import RunStore
from whetstone.reporting import Journal
from whetstone.serving.api_keys import Keys, create_key
from whetstone.serving.http_server import build_server
from whetstone.trajectory import Judgement, Score
from whetstone.trajectory_json import encode_trajectory
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

pytestmark = pytest.mark.slow
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 800}
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31mred"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason=install_command("browser"))
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def serving(viewer):
    with bind_socket("127.0.0.1", 0) as bound:
        server = build_server(view_application(viewer))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write two runs that learn, the first with hostile text in it."""
    place = tmp_path_factory.mktemp("pages")
    for name, rate in (("first", "0.001"), ("second", "0.01")):
        run = made_run(place / name, steps=0)
        store = RunStore(run, groups_per_file=2)
        for step in range(20):
            for number in (2 * step, 2 * step + 1):
                played(store, number, 3)
            store.consume_groups(step, [2 * step, 2 * step + 1])
            success = 0.2 + 0.03 * step
            more = {"episode/success": success, "reward/mean": success, "update/grad_norm": 0.5}
            Journal(run).record("reinforcement", step + 1, row(step, **more))
        store.close()
        evaluated(run, "untrained", 0.1, [0.05, 0.2], [episode("e/0", "sums/0", reward=0.0)])
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(text.replace("0.001", rate))
    judgement = Judgement(EVIL, {"reason": EVIL, "met": False})
    judged = Score(
        0.0, judgements=(Judgement("Is there a source?", {"reason": "it names one", "met": True}), judgement)
    )
    evil = episode("group-0/evil/0#9", EVIL, says=EVIL, tool=EVIL, error=EVIL, score=judged)
    object.__setattr__(evil.turns[0], "observation", (tool_result(EVIL, call_id="call_0"),))
    with open(place / "first" / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(encode_trajectory(evil) + b"\n")
    return place


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    runs = open_runs([folder / "first", folder / "second"], cache=tmp_path_factory.mktemp("cache"))
    for run in runs:
        run.refresh()
    comparison = {"contenders": [{"name": "a", "mean": 0.5, "success": [0.5], "before": 0.1, "reward": 1, "turns": 2,
                            "tool_calls": 1, "spent": {"sampled_tokens": 10}, "failed": {}}], "pairs": []}  # fmt: skip
    (folder / "comparison.json").write_text(json.dumps(comparison))
    with serving(Viewer(runs, folders=[folder])) as url:
        yield url


@pytest.fixture
def open_page(browser, address):
    """Open an address; any error on the page fails the test."""
    contexts, wrong = [], []

    def open_it(query="", at=address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda request: wrong.append(request.url) if not request.url.startswith(("data:", at)) else None
        )
        page.goto(at + query)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def save_screenshot(page, name):
    if os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(os.environ["SCREENSHOTS"]) / f"{name}.png")


def until(page, expression):
    """Wait until an expression is true. (`wait_for_function` of Playwright evaluates strings, which the page
    forbids.)"""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def count(page):
    return page.locator(".said").get_attribute("data-count")


def test_first_page_shows_the_verdict(open_page):
    page = open_page()
    page.wait_for_selector("figure svg")
    assert page.locator(".verdict").inner_text().startswith("▲ It learns\n")
    assert "Success rose from" in page.locator(".verdict").inner_text()
    assert "✓ No alarm" in page.locator(".calm").inner_text()
    assert page.title() == "first · Run · Whetstone"
    save_screenshot(page, "run")


def test_runs_are_overlaid_and_recipe_differences_listed(open_page):
    page = open_page()
    page.wait_for_selector("figure svg")
    assert page.locator("figure:has-text('Reward') >> nth=0").locator("path.line").count() == 2
    assert "reinforcement.learning_rate" in page.locator("details:has-text('What differs')").inner_text()
    page.get_by_label("show second").uncheck()
    page.wait_for_selector(".legend", state="detached")
    assert "runs=first" in page.url


def test_failing_run_reports_it_and_what_to_check(open_page, tmp_path):
    run = made_run(tmp_path / "bad", steps=1, metrics=False)
    for step in range(20):
        more = {"episode/success": 0.6 - 0.02 * step, "reward/mean": 0.6 + 0.02 * step}
        Journal(run).record("reinforcement", step + 1, row(step, **more))
    runs = open_runs([run], cache=tmp_path / "cache")
    runs[0].refresh()
    with serving(Viewer(runs)) as at:
        page = open_page("", at=at)
        page.wait_for_selector(".alert")
        assert page.locator(".verdict .word").inner_text() == "▼ It gets worse"
        assert "Success fell from 56% (first 5 steps) to 26% (last 5 steps)" in page.locator(".verdict").inner_text()
        assert page.locator(".alert h3").inner_text() == "⚠ Reward hacking"
        save_screenshot(page, "alarms")
        page.get_by_role("link", name="Show them").click()
        page.wait_for_selector(".rows td")
        assert page.locator("th[aria-sort=descending]").inner_text() == "reward ↓"
        assert page.locator(".rows .right").count() == 0


def test_filters_are_in_the_address_and_a_link_shows_the_same(open_page):
    page = open_page("?tab=trajectories")
    page.wait_for_selector(".rows td")
    everything = int(count(page))
    page.get_by_label("outcome").select_option("unsolved")
    until(page, f"document.querySelector('.said').dataset.count < {everything}")
    before = count(page)
    page.get_by_label("step from").fill("11")
    until(page, f"+document.querySelector('.said').dataset.count < {before}")
    linked = open_page(page.url.rpartition("/")[2])
    linked.wait_for_selector(".rows td")
    assert count(linked) == count(page)
    assert linked.get_by_label("outcome").input_value() == "unsolved"
    save_screenshot(page, "filtered")
    page.get_by_role("button", name="Clear").click()
    until(page, f"document.querySelector('.said').dataset.count == {everything}")


def test_trajectory_opens_with_its_conversation_tokens_and_group(open_page):
    page = open_page("?tab=trajectories&part=training&task=sums/5")
    page.locator(".rows tbody a").first.click()
    page.wait_for_selector("article .bubble.tool")
    article = page.locator("article")
    assert "Compute sums/5" in article.inner_text()
    assert "All 3 of its group · learned from" in article.inner_text()
    page.get_by_label("color tokens by").select_option("logprob")
    token = page.locator(".token").first
    token.wait_for()
    assert "log-prob -0.5" in token.get_attribute("title")
    assert token.evaluate("node => node.style.backgroundColor") != ""
    save_screenshot(page, "trajectory")


def test_two_trajectories_are_compared_and_one_task_is_followed_across_training(open_page):
    page = open_page("?tab=trajectories&part=training&task=sums/5")
    page.locator(".rows tbody a").nth(0).click()
    page.get_by_role("button", name="Compare with the next").click()
    page.locator(".rows tbody a").nth(1).click()
    until(page, "document.querySelectorAll('article').length == 2")
    save_screenshot(page, "two")
    page = open_page("?tab=trajectories&part=training&task=sums/0&t=group-0/sums/0%231")
    page.get_by_role("link", name="This task across training").click()
    until(
        page, "document.querySelector('.rows tbody td')?.innerText.startsWith('0')"
    )  # the evaluation before training is first
    assert count(page) == "4"  # three samples and an evaluation


def test_text_of_a_model_is_never_markup(open_page):
    page = open_page("?tab=trajectories&text=onerror")
    page.locator(".rows tbody a").first.click()
    page.wait_for_selector("article .bubble.tool")
    text = page.locator("article").inner_text()
    assert "<script>document.title='owned'</script>" in text
    assert "\x1b" not in text
    refused, met = page.locator(".judgements li").all_inner_texts()
    assert refused.startswith("<img src=x")  # refused text is first
    assert met.split("\n")[0] == "Is there a source?"
    assert "met yes" in met
    assert "it names one" in met
    assert page.locator("main img, main script").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("tab", ["tools", "timeline", "data", "compare"])
def test_every_other_page_opens(open_page, tab):
    page = open_page(f"?tab={tab}")
    page.wait_for_selector("main h1")
    page.wait_for_selector("main table, main figure, main select")
    assert page.locator("#status").inner_text() == ""
    save_screenshot(page, tab)


def test_a_trace_is_saved_for_perfetto(open_page, tmp_path):
    page = open_page("?tab=timeline")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save for Perfetto").click()
    download.value.save_as(tmp_path / "trace.json")
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 40


def test_keyboard_shortcuts_move_through_pages_and_trajectories(open_page):
    page = open_page()
    page.wait_for_selector(".verdict")
    page.keyboard.press("2")
    page.wait_for_selector(".rows td")
    page.keyboard.press("j")
    page.wait_for_selector("article")
    first = page.url
    page.keyboard.press("j")
    until(page, f"location.href != {first!r}")
    page.keyboard.press("c")
    until(page, "location.search.includes('colour=trained')")
    page.keyboard.press("Escape")
    page.wait_for_selector("article", state="detached")
    page.keyboard.press("/")
    until(page, "document.activeElement.id == 'filter-text'")
    page.keyboard.type("onerror")
    until(page, "document.querySelector('.said').dataset.count == 1")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    assert page.locator("dialog").inner_text().startswith("Keys")


def test_late_trajectory_does_not_reopen_a_closed_one(open_page):
    page = open_page("?tab=trajectories")
    page.wait_for_selector(".rows td")
    page.keyboard.press("j")
    page.wait_for_selector("article")
    routes = []
    page.route("**/trajectory?*", lambda route: routes.append(route))
    with page.expect_request("**/trajectory?*"):
        page.keyboard.press("j")
    page.keyboard.press("Escape")
    page.wait_for_selector("article", state="detached")
    with page.expect_response("**/trajectory?*"):
        routes[0].continue_()
    page.wait_for_timeout(200)
    assert page.locator("article").count() == 0


def test_new_results_of_a_run_appear(open_page, folder, tmp_path):
    run = made_run(tmp_path / "live", steps=1)
    (viewed,) = open_runs([run], cache=tmp_path / "cache")
    with serving(Viewer([viewed])) as at:
        page = open_page("?tab=trajectories", at=at)
        until(page, "document.querySelector('.said')?.dataset.count == 4")
        other = open_page("", at=at)
        until(other, "document.querySelector('.progress')?.innerText.includes('step 1 of 40')")
        store = RunStore(run, groups_per_file=2)
        played(store, 2)
        store.consume_groups(1, [2])
        store.close()
        Journal(run).record("reinforcement", 2, row(1))
        until(page, "document.querySelector('.said').dataset.count == 6")
        until(other, "document.querySelector('.progress').innerText.includes('step 2 of 40')")


@pytest.mark.parametrize("tab", ["run", "trajectories", "tools", "timeline", "data", "compare"])
def test_pages_fit_the_width_of_a_phone(open_page, tab):
    page = open_page(f"?tab={tab}", viewport=PHONE)
    page.wait_for_selector("main h1", state="attached")
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    save_screenshot(page, f"phone-{tab}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "query",
    [
        *("", "?tab=trajectories", "?tab=trajectories&task=sums/5&colour=entropy&t=group-5/sums/5%231"),
        *("?tab=tools", "?tab=timeline", "?tab=data", "?tab=compare"),
    ],
)
def test_pages_are_accessible(open_page, query, scheme):
    axe = pytest.importorskip("axe_playwright_python", reason=install_command("browser"))
    page = open_page(query, color_scheme=scheme)
    page.wait_for_selector("main table, main figure, main select")
    page.evaluate(
        (Path(axe.__file__).parent / "axe.min.js").read_text()
    )  # bypasses the policy of the page, which forbids scripts of other sites
    results = page.evaluate("axe.run()")
    violations = [(each["id"], each["nodes"][0]["html"][:160]) for each in results["violations"]]
    assert violations == []
    assert len(results["passes"]) > 15


def test_key_is_requested_once_and_not_in_the_address(browser, folder, tmp_path):
    key = create_key(tmp_path / "keys.json", "me", "admin")
    runs = open_runs([folder / "first"], cache=tmp_path / "cache")
    with serving(Viewer(runs, keys=Keys.read(tmp_path / "keys.json"))) as at:
        page = browser.new_page()
        page.goto(at)
        page.get_by_role("textbox", name="Key").fill(key)
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector(".verdict")
        assert key not in page.url
        page.close()
