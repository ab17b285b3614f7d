"""Which requests the explorer accepts: those of pages that it served itself, and of programs on this machine.

The server listens on the loopback address, but any web page can make a browser send requests there. So the Host header must
name this server (a foreign name that resolves to the loopback address is refused), a request with an Origin header must come
from this server's own pages, and a request that changes anything must be JSON, which the form of a foreign page cannot send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Names of the loopback address.
HOSTS = ("127.0.0.1", "localhost", "[::1]")

#: Methods that change nothing.
READING = ("GET", "HEAD")


class Guard:
    """ASGI middleware that refuses such requests. port: of this server. policy: the content security policy of every answer."""

    def __init__(self, app: App, port: int, policy: str) -> None:
        self._app = app
        self._hosts = {f"{host}:{port}" for host in HOSTS}
        self._origins = {f"http://{host}" for host in self._hosts}
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope["method"], {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]})
        if refused:
            await _refuse(send, refused, self._headers)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: dict[str, str]) -> str:
        """Why the request is refused; "" if it is accepted."""
        if headers.get("host", "") not in self._hosts:
            return "the Host header does not name this server; open it as http://127.0.0.1"
        if "origin" in headers and headers["origin"] not in self._origins:
            return "requests from pages of other origins are refused"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
            return "requests from pages of other sites are refused"
        if method not in READING and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "a request that changes anything must be sent as application/json"
        return ""


async def _refuse(send: Send, reason: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = msgspec.json.encode({"error": reason})
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"application/json"), *headers]})
    await send({"type": "http.response.body", "body": body})
