"""The page for people in a real browser: chat, take over, rate, act as the user; text is never executed."""

import asyncio
from html.parser import HTMLParser
from importlib import resources

import httpx2
import pytest

from support.chromium import browsing, needs_chromium, served_at_a_port
from support.live_serving import LiveServed, live_recipe

PAGE = resources.files("whetstone.serving.human_in_the_loop") / "page"
EVIL = "<img src=x onerror='window.evil = 1'><script>window.evil = 2</script>"


def with_browser(folder, work, *overrides, path="/", **how):
    """Return the result of `work`, called with service, page and address."""

    async def run():
        live = LiveServed(folder / "run", live_recipe("live.turns_per_update=50", *overrides))
        async with (
            live as served,
            served_at_a_port(served.app) as address,
            browsing(f"{address}{path}", folder / "browser", **how) as page,
        ):
            await page.until("document.getElementById('model')?.textContent === 'tiny'")
            return await work(served, page, address)

    return asyncio.run(run())


@needs_chromium
@pytest.mark.slow
def test_person_chats_takes_over_by_keyboard_and_rates(tmp_path):
    async def work(served, page, address):
        await page.write("#name", "Ada")
        await page.run("document.getElementById('name').dispatchEvent(new Event('change'))")
        await page.write("#words", f"Say something. {EVIL}")
        await page.key("Enter", 13)
        await page.until("document.querySelectorAll('li.assistant .row').length === 1")
        (episode,) = served.episodes
        assert episode.reviewer == "Ada"
        await page.click("Take over")
        await page.write("form textarea[aria-label='Replacement']", f"It is B. {EVIL}")
        await page.click("Replace")
        await page.until("document.querySelectorAll('li.by-person').length === 1")
        assert episode.answers[0].replaced.message.text == f"It is B. {EVIL}"
        assert episode.answers[1].by == "Ada"
        await page.write("#words", "And then?")
        await page.key("Enter", 13)
        await page.until(
            "document.querySelectorAll('li.assistant').length === 3 && !document.querySelector('.drawing')"
        )
        assert episode.answers[2].before is episode.answers[1]
        await page.click("Bad")
        await page.until("document.querySelector('.note')?.textContent.includes('Ada')")
        stored = [(turn.answer, turn.feedback.reward) for turn in served.live.turns.get_turns([0, 1])]
        assert stored == [(0, 1.0), (2, -1.0)]
        assert await page.run("typeof window.evil") == "undefined"
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0
        assert "<script>" in await page.run("document.querySelector('li.user .words').textContent")
        assert [
            each for each in page.told if "exceptionDetails" in each or "content-security" in str(each).lower()
        ] == []

    with_browser(tmp_path, work)


@needs_chromium
@pytest.mark.slow
def test_person_answers_as_the_user_on_a_phone_in_dark_mode(tmp_path):
    async def work(served, page, address):
        seat = served.people.open_seat(about="You want to cancel order 7.", seconds=600)
        served.people.request_message(seat.id, 0, [{"role": "assistant", "content": "How can I help?"}])
        await page.click("Queue")
        await page.click("Take the next")
        await page.until("document.querySelector('.about')?.textContent === 'You want to cancel order 7.'")
        await page.write("#seat textarea", "Cancel it, please.")
        await page.click("Send")
        await page.until("document.querySelectorAll('li.user').length === 1")
        assert (await served.people.wait_for_message(seat.id, 0))["message"]["content"] == "Cancel it, please."
        served.people.request_message(seat.id, 1, [{"role": "assistant", "content": "Done. Anything else?"}])
        await page.until("document.querySelectorAll('li.assistant').length === 2")
        await page.write("#seat textarea", "No, thanks.")
        await page.click("Send, and end")
        await page.until("document.getElementById('status').textContent.includes('ended')")
        assert served.people.get(seat.id).over == "said to be over"
        assert await page.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert await page.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 26)"

    with_browser(tmp_path, work, width=375, height=700, dark=True)


@needs_chromium
@pytest.mark.slow
def test_held_response_is_edited_on_the_page_before_it_is_sent(tmp_path):
    async def work(served, page, address):
        async with httpx2.AsyncClient(base_url=address, timeout=90) as http:
            await http.post("/v1/episodes/agent/watch", json={"by": "Ada", "seconds": 80})
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Name a letter."}], "max_tokens": 4}
            asking = asyncio.ensure_future(http.post("/episodes/agent/v1/chat/completions", json=body))
            await page.click("Queue")
            await page.click("Take the next")
            await page.until("document.querySelector('#seat textarea')")
            await page.write("#seat textarea", "It is B.")
            await page.click("Replace")
            assert (await asking).json()["choices"][0]["message"]["content"] == "It is B."
            await page.click("Episodes")
            await page.click("Open")
            await page.until("document.querySelectorAll('li.by-person').length === 1")

    with_browser(tmp_path, work)


@needs_chromium
@pytest.mark.slow
def test_page_of_another_origin_cannot_send_requests_as_the_user(tmp_path):
    async def work(served, page, address):
        port = address.rpartition(":")[2]
        await page.command("Page.navigate", url=f"http://localhost:{port}/")  # another origin of the same server
        await page.until("document.getElementById('model')?.textContent === 'tiny'")
        how = "{method: 'POST', body: '{}', mode: 'no-cors'}"
        script = f"fetch('{address}/v1/people/claim', {how}).then(String, String)"
        assert "TypeError" in await page.run(script)  # already refused by the policy of the page
        async with httpx2.AsyncClient(base_url=address) as http:
            for origin, status in ((address, 200), (f"http://localhost:{port}", 403), ("null", 403)):
                answer = await http.post("/v1/people/claim", json={}, headers={"origin": origin})
                assert answer.status_code == status

    with_browser(tmp_path, work)


def test_page_loads_nothing_from_the_network_and_has_no_inline_script_or_style(tmp_path):
    class Tags(HTMLParser):
        def handle_starttag(self, tag, attributes):
            attributes = dict(attributes)
            assert tag != "style"
            assert not any(name.startswith("on") or name == "style" for name in attributes)
            for name in ("src", "href"):
                assert attributes.get(name, "/").startswith("/")
            assert tag != "script" or attributes.get("src")

    Tags().feed((PAGE / "people.html").read_text("utf-8"))
    script = (PAGE / "people.js").read_text("utf-8")
    for never in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
        assert never not in script

    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            for path, kind in (
                ("/", "html"),
                ("/page/people.js", "javascript"),
                ("/page/people.css", "css"),
            ):
                answer = await served.http().get(path)
                assert answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
                assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
            for path in ("/page/queue.py", "/page/..%2Fqueue.py", "/page/%2e%2e/queue.py"):
                assert (await served.http().get(path)).status_code == 404

    asyncio.run(run())
