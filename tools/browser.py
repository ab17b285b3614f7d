"""A headless Chromium, controlled through a pipe, for tests of pages, their benchmark and the screenshots of the documents.

It speaks the DevTools protocol, JSON messages that end in a NUL byte, on two file descriptors (`--remote-debugging-pipe`), so that
nothing but the browser itself needs to be installed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser's path, or None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class PageError(RuntimeError):
    """A script in the page failed, or a condition did not become true in time."""


class Page:
    """One tab. errors: messages of uncaught errors and of console.error, in order."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def prefer(self, scheme: str, media: str = "") -> None:
        """Emulate a reader who prefers "dark" or "light"; media "print" shows the page as printed."""
        self._call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def offline(self) -> None:
        self._call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def open(self, url: str, ready: str = "document.documentElement.dataset.state === 'ready'", timeout: float = 60) -> None:
        """Open a page and wait until the expression is true."""
        self._call("Page.navigate", url=url)
        self.wait(ready, timeout)

    def run(self, expression: str) -> Any:
        """The value of an expression (a promise is awaited)."""
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise PageError(_said(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, expression: str, timeout: float = 20) -> None:
        """Wait until the expression is true. Raises PageError with the page's errors where it is not in time."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            with contextlib.suppress(PageError):  # between two documents there is none to ask
                if self.run(expression):
                    return
            time.sleep(0.02)
        raise PageError(f"not in {timeout} s: {expression}; errors: {self.errors}")

    def key(self, name: str) -> None:
        """Press a key: a letter, or "ArrowLeft", "Home", …"""
        text = {"text": name} if len(name) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def click(self, place: str) -> None:
        """Click where an expression says: [x, y] in the view, in pixels. What is above or below the view is scrolled to first."""
        x, y = self.run(place)
        tall = self.run("innerHeight")
        if not 0 <= y < tall:
            self.run(f"window.scrollBy(0, {y - tall / 2})")
            x, y = self.run(place)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """A PNG of the view, or of the element, for which the view is made as tall as the page."""
        if selector is None:
            path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))
            return
        width, height, whole = self.run("[innerWidth, innerHeight, document.documentElement.scrollHeight]")
        self.resize(width, whole)
        self.run("new Promise(done => setTimeout(done, 500))")
        find = f"document.querySelector({json.dumps(selector)})"
        box = self.run(
            f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]; }})()"
        )
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png", clip=clip)["data"]))
        self.resize(width, height)

    def processor_s(self) -> float:
        """The processor time that all of the browser's processes have used so far, s."""
        session, self._session = self._session, None  # only the browser itself tells
        try:
            return float(sum(each["cpuTime"] for each in self._call("SystemInfo.getProcessInfo")["processInfo"]))
        finally:
            self._session = session

    def pdf(self) -> bytes:
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(_said(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], 120)[0]:
                raise PageError("the browser does not answer")
            block = os.read(self._read, 1 << 20)
            if not block:
                raise PageError("the browser has ended")
            self._buffer += block
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


def _said(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900, scale: float = 1) -> Iterator[Page]:
    """A page in a new browser with a new profile. Raises PageError where no browser is installed."""
    path = find()
    if path is None:
        raise PageError(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt install chromium)")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def as_three_and_four() -> None:  # the descriptors that Chromium speaks on
        spare = [os.dup(to_read), os.dup(from_write)]
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [path, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(command, close_fds=False, preexec_fn=as_three_and_four, **quiet)
        os.close(to_read)
        os.close(from_write)
        try:
            page = Page(to_write, from_read)
            page.resize(width, height, scale)
            yield page
        finally:
            os.close(to_write)
            os.close(from_read)
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
