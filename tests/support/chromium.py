"""A headless Chromium that is controlled with its debugging protocol."""

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import urllib.request

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@contextlib.asynccontextmanager
async def served_at_a_port(app):
    """Serve an application on a port of this machine; yield its address."""
    uvicorn = pytest.importorskip("uvicorn", reason="pip install uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    bound = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await serving


class Page:
    """An open page."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.told = []
        """Log messages and refused requests of the page."""

    async def command(self, method, **params):
        """Send a command and return the response of the browser."""
        self._number += 1
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                self.told.append(message["params"])

    async def run(self, script):
        """Evaluate an expression and await its result."""
        answer = await self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script, seconds=90.0):
        """Wait until an expression is true."""
        for _ in range(int(seconds / 0.05)):
            if await self.run(f"Boolean({script})"):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {script}; text of the page: {await self.run('document.body.innerText')}")

    async def click(self, text, within="document"):
        """Click the last button with this text, whatever number follows it."""
        same = f"b => b.textContent.trim().replace(/ [0-9]+$/, '') === {text!r}"
        button = f"[...{within}.querySelectorAll('button')].findLast({same})"
        await self.until(f"{button} && !{button}.disabled")
        await self.run(f"{button}.click()")

    async def write(self, selector, text):
        """Type a text into a field."""
        await self.run(f"document.querySelector({selector!r}).focus()")
        await self.run(f"document.querySelector({selector!r}).value = ''")
        await self.command("Input.insertText", text=text)

    async def key(self, name, code=0):
        """Press a key."""
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.command("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **text)

    async def shot(self, path):
        """Save a screenshot."""
        path.write_bytes(base64.b64decode((await self.command("Page.captureScreenshot"))["data"]))


@contextlib.asynccontextmanager
async def browsing(url, folder, *, width=1000, height=900, dark=False):
    """Open an address in a new browser."""
    websockets = pytest.importorskip("websockets", reason="pip install websockets")
    switches = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--remote-debugging-port=0", "--remote-allow-origins=*",
                f"--user-data-dir={folder}", f"--window-size={width},{height}")  # fmt: skip
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(CHROMIUM, *switches, "about:blank", stdout=null, stderr=null)
    try:
        port_file = folder / "DevToolsActivePort"
        for _ in range(600):
            if port_file.is_file() and port_file.read_text().strip():
                break
            await asyncio.sleep(0.05)
        port = port_file.read_text().split()[0]

        def targets():
            return json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json").read())

        pages = await asyncio.to_thread(targets)
        address = next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page")
        async with websockets.connect(address, max_size=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.command(f"{domain}.enable")
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            await page.command("Emulation.setEmulatedMedia", features=scheme)
            mobile = width < 600
            await page.command(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
            )
            await page.command("Page.navigate", url=url)
            yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
