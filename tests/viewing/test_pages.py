"""What a person does with the viewer, done in a browser.

Screenshots of each page are kept in the folder `SCREENSHOTS` names, where it names one.
"""

import asyncio
import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest

from tests_chromium import CHROMIUM
from tests_viewed import episode, evaluated, made_run, played, row
from whetstone.chat.message import tool_result
from whetstone.cli.listening import bound_to
from whetstone.extras import install_command
from whetstone.record import RunStore
from whetstone.reporting import Journal
from whetstone.serving.access import Keys, new_key
from whetstone.serving.connections import runner
from whetstone.trajectory import Judgement, Score
from whetstone.trajectory_json import encoded_trajectory
from whetstone.viewing.app import Viewer, view_application
from whetstone.viewing.opened import opened_runs

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
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@contextlib.contextmanager
def serving(viewer):
    with bound_to("127.0.0.1", 0) as bound:
        server = runner(view_application(viewer))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs that learn, the first with something evil in it."""
    place = tmp_path_factory.mktemp("pages")
    for name, rate in (("first", "0.001"), ("second", "0.01")):
        run = made_run(place / name, steps=0)
        store = RunStore(run, groups_per_file=2)
        for step in range(20):
            for number in (2 * step, 2 * step + 1):
                played(store, number, 3)
            store.consume(step, [2 * step, 2 * step + 1])
            success = 0.2 + 0.03 * step
            more = {"episode/success": success, "reward/mean": success, "update/grad_norm": 0.5}
            Journal(run).record("reinforcement", step + 1, row(step, **more))
        store.close()
        evaluated(run, "untrained", 0.1, [0.05, 0.2], [episode("e/0", "sums/0", reward=0.0)])
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(text.replace("0.001", rate))
    said = Judgement(EVIL, {"reason": EVIL, "met": False})
    judged = Score(0.0, judgements=(Judgement("Is there a source?", {"reason": "it names one", "met": True}), said))
    evil = episode("group-0/evil/0#9", EVIL, says=EVIL, tool=EVIL, error=EVIL, score=judged)
    object.__setattr__(evil.turns[0], "observation", (tool_result(EVIL, call_id="call_0"),))
    with open(place / "first" / "trajectories" / "step-000001.jsonl", "ab") as file:
        file.write(encoded_trajectory(evil) + b"\n")
    return place


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    runs = opened_runs([folder / "first", folder / "second"], cache=tmp_path_factory.mktemp("cache"))
    for run in runs:
        run.refresh()
    told = {"contenders": [{"name": "a", "mean": 0.5, "success": [0.5], "before": 0.1, "reward": 1, "turns": 2,
                            "tool_calls": 1, "spent": {"sampled_tokens": 10}, "failed": {}}], "pairs": []}  # fmt: skip
    (folder / "comparison.json").write_text(json.dumps(told))
    with serving(Viewer(runs, folders=[folder])) as found:
        yield found


@pytest.fixture
def open_page(browser, address):
    """Opens an address; whatever the page complains of fails the test."""
    contexts, wrong = [], []

    def open_it(query="", at=address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("data:", at)) else None)
        page.goto(at + query)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def kept(page, name):
    if os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(os.environ["SCREENSHOTS"]) / f"{name}.png")


def until(page, expression):
    """Ask until it is so. (Playwright's own way makes code of text in the page, which the page's policy forbids.)"""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def count(page):
    return page.locator(".said").get_attribute("data-count")


def test_the_first_page_says_whether_it_goes_well(open_page):
    page = open_page()
    page.wait_for_selector("figure svg")
    assert page.locator(".verdict").inner_text().startswith("▲ It learns\n")
    assert "Success rose from" in page.locator(".verdict").inner_text()
    assert "✓ No alarm" in page.locator(".calm").inner_text()
    assert page.title() == "first · Run · Whetstone"
    kept(page, "run")


def test_runs_are_drawn_over_each_other_and_their_recipes_told_apart(open_page):
    page = open_page()
    page.wait_for_selector("figure svg")
    assert page.locator("figure:has-text('Reward') >> nth=0").locator("path.line").count() == 2
    assert "reinforcement.learning_rate" in page.locator("details:has-text('What differs')").inner_text()
    page.get_by_label("draw second").uncheck()
    page.wait_for_selector(".legend", state="detached")
    assert "runs=first" in page.url


def test_a_run_that_goes_wrong_says_so_and_what_to_look_at(open_page, tmp_path):
    run = made_run(tmp_path / "bad", steps=1, metrics=False)
    for step in range(20):
        more = {"episode/success": 0.6 - 0.02 * step, "reward/mean": 0.6 + 0.02 * step}
        Journal(run).record("reinforcement", step + 1, row(step, **more))
    runs = opened_runs([run], cache=tmp_path / "cache")
    runs[0].refresh()
    with serving(Viewer(runs)) as at:
        page = open_page("", at=at)
        page.wait_for_selector(".alert")
        assert page.locator(".verdict .word").inner_text() == "▼ It gets worse"
        assert "Success fell from 56% (first 5 steps) to 26% (last 5 steps)" in page.locator(".verdict").inner_text()
        assert page.locator(".alert h3").inner_text() == "⚠ Reward hacking"
        kept(page, "alarms")
        page.get_by_role("link", name="Show them").click()
        page.wait_for_selector(".rows td")
        assert page.locator("th[aria-sort=descending]").inner_text() == "reward ↓"
        assert page.locator(".rows .right").count() == 0


def test_filters_stand_in_the_address_and_a_link_shows_the_same(open_page):
    page = open_page("?tab=trajectories")
    page.wait_for_selector(".rows td")
    everything = int(count(page))
    page.get_by_label("outcome").select_option("unsolved")
    until(page, f"document.querySelector('.said').dataset.count < {everything}")
    found = count(page)
    page.get_by_label("step from").fill("11")
    until(page, f"+document.querySelector('.said').dataset.count < {found}")
    again = open_page(page.url.rpartition("/")[2])
    again.wait_for_selector(".rows td")
    assert count(again) == count(page)
    assert again.get_by_label("outcome").input_value() == "unsolved"
    kept(page, "filtered")
    page.get_by_role("button", name="Clear").click()
    until(page, f"document.querySelector('.said').dataset.count == {everything}")


def test_a_trajectory_opens_with_its_conversation_tokens_and_group(open_page):
    page = open_page("?tab=trajectories&part=training&task=sums/5")
    page.locator(".rows tbody a").first.click()
    page.wait_for_selector("article .bubble.tool")
    article = page.locator("article")
    assert "Compute sums/5" in article.inner_text()
    assert "All 3 of its group · learned from" in article.inner_text()
    page.get_by_label("colour tokens by").select_option("logprob")
    token = page.locator(".token").first
    token.wait_for()
    assert "log-prob -0.5" in token.get_attribute("title")
    assert token.evaluate("node => node.style.backgroundColor") != ""
    kept(page, "trajectory")


def test_two_stand_side_by_side_and_one_task_is_followed_across_training(open_page):
    page = open_page("?tab=trajectories&part=training&task=sums/5")
    page.locator(".rows tbody a").nth(0).click()
    page.get_by_role("button", name="Keep beside the next").click()
    page.locator(".rows tbody a").nth(1).click()
    until(page, "document.querySelectorAll('article').length == 2")
    kept(page, "two")
    page = open_page("?tab=trajectories&part=training&task=sums/0&t=group-0/sums/0%231")
    page.get_by_role("link", name="This task across training").click()
    until(page, "document.querySelector('.rows tbody td')?.innerText.startsWith('0')")  # before training comes first
    assert count(page) == "4"  # three samples and an evaluation


def test_what_a_model_wrote_is_text_and_nothing_else(open_page):
    page = open_page("?tab=trajectories&text=onerror")
    page.locator(".rows tbody a").first.click()
    page.wait_for_selector("article .bubble.tool")
    shown = page.locator("article").inner_text()
    assert "<script>document.title='owned'</script>" in shown
    assert "\x1b" not in shown
    refused, met = page.locator(".judgements li").all_inner_texts()
    assert refused.startswith("<img src=x")  # what was refused comes first
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
    kept(page, tab)


def test_a_trace_is_saved_for_perfetto(open_page, tmp_path):
    page = open_page("?tab=timeline")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save for Perfetto").click()
    download.value.save_as(tmp_path / "trace.json")
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 40


def test_keys_lead_through_pages_and_trajectories(open_page):
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


def test_a_trajectory_that_arrives_late_does_not_open_what_was_closed(open_page):
    page = open_page("?tab=trajectories")
    page.wait_for_selector(".rows td")
    page.keyboard.press("j")
    page.wait_for_selector("article")
    held = []
    page.route("**/trajectory?*", lambda route: held.append(route))
    with page.expect_request("**/trajectory?*"):
        page.keyboard.press("j")
    page.keyboard.press("Escape")
    page.wait_for_selector("article", state="detached")
    with page.expect_response("**/trajectory?*"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert page.locator("article").count() == 0


def test_what_the_run_writes_appears_by_itself(open_page, folder, tmp_path):
    run = made_run(tmp_path / "live", steps=1)
    (viewed,) = opened_runs([run], cache=tmp_path / "cache")
    with serving(Viewer([viewed])) as at:
        page = open_page("?tab=trajectories", at=at)
        until(page, "document.querySelector('.said')?.dataset.count == 4")
        other = open_page("", at=at)
        until(other, "document.querySelector('.progress')?.innerText.includes('step 1 of 40')")
        store = RunStore(run, groups_per_file=2)
        played(store, 2)
        store.consume(1, [2])
        store.close()
        Journal(run).record("reinforcement", 2, row(1))
        until(page, "document.querySelector('.said').dataset.count == 6")
        until(other, "document.querySelector('.progress').innerText.includes('step 2 of 40')")


@pytest.mark.parametrize("tab", ["run", "trajectories", "tools", "timeline", "data", "compare"])
def test_on_a_phone_nothing_stands_beside_the_screen(open_page, tab):
    page = open_page(f"?tab={tab}", viewport=PHONE)
    page.wait_for_selector("main h1", state="attached")
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    kept(page, f"phone-{tab}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "query",
    [
        *("", "?tab=trajectories", "?tab=trajectories&task=sums/5&colour=entropy&t=group-5/sums/5%231"),
        *("?tab=tools", "?tab=timeline", "?tab=data", "?tab=compare"),
    ],
)
def test_nobody_is_left_out(open_page, query, scheme):
    axe = pytest.importorskip("axe_playwright_python", reason=install_command("browser"))
    page = open_page(query, color_scheme=scheme)
    page.wait_for_selector("main table, main figure, main select")
    page.evaluate(
        (Path(axe.__file__).parent / "axe.min.js").read_text()
    )  # past the page's own policy, which forbids foreign scripts
    found = page.evaluate("axe.run()")
    told = [(each["id"], each["nodes"][0]["html"][:160]) for each in found["violations"]]
    assert told == []
    assert len(found["passes"]) > 15


def test_a_key_is_asked_for_once_and_kept_out_of_the_address(browser, folder, tmp_path):
    key = new_key(tmp_path / "keys.json", "me", "admin")
    runs = opened_runs([folder / "first"], cache=tmp_path / "cache")
    with serving(Viewer(runs, keys=Keys.read(tmp_path / "keys.json"))) as at:
        page = browser.new_page()
        page.goto(at)
        page.get_by_role("textbox", name="Key").fill(key)
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector(".verdict")
        assert key not in page.url
        page.close()
