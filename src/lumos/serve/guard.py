"""Which requests the explorer accepts: those of whom it told its address, from its own pages or from a program.

The server listens on the loopback address, which every user of the machine can reach, and any web page can make a browser send
requests there. So a request must hold the token that only the printed address has: as `?token=` in the address, which hands the
browser a cookie, or as a bearer token. The Host header must name this server (a foreign name that resolves to the loopback address is
refused), a request with an Origin header must come from the page's own origin, and a request that changes anything must be JSON of a
bounded size, which the form of a foreign page cannot send.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Names of the loopback address.
HOSTS = ("127.0.0.1", "localhost", "[::1]")

#: Methods that change nothing.
READING = ("GET", "HEAD")

#: The longest body of a request: a set of changes is a few kilobytes.
_MOST_BYTES = 1 << 20


class Guard:
    """ASGI middleware that refuses other requests.

    port: of this server. token: what a request must know. policy: the content security policy of every answer.
    """

    def __init__(self, app: App, port: int, token: str, policy: str) -> None:
        self._app = app
        self._token = token
        self._cookie = f"lumos-{port}"  # browsers send the cookies of one host to all of its ports
        self._hosts = {f"{host}:{port}" for host in HOSTS}
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
        headers: dict[str, str] = {}
        for key, value in ((k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in scope["headers"]):
            headers[key] = f"{headers[key]}, {value}" if key in headers else value  # of two, both must be right
        in_address = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
        refused = self._refusal(scope["method"], headers, in_address)
        if refused:
            await _refuse(send, refused, self._headers)
            return

        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict".encode()
        added = [*self._headers, (b"set-cookie", cookie)] if in_address else self._headers

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: dict[str, str], in_address: str) -> str:
        """Why the request is refused; "" if it is accepted."""
        if headers.get("host", "") not in self._hosts:
            return "the Host header does not name this server; open it as http://127.0.0.1"
        if "origin" in headers and headers["origin"] != f"http://{headers['host']}":
            return "requests from pages of other origins are refused"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate":
            return "requests from pages of other sites are refused"
        if method not in READING and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "a request that changes anything must be sent as application/json"
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdecimal() or int(length[:20]) > _MOST_BYTES:
            return f"a request says the length of its body, at most {_MOST_BYTES} bytes"
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if not any(self._is_token(given) for given in (in_address, self._in_cookie(headers), bearer)):
            return "open the address that lumos serve printed: it holds the token without which nobody else on this machine reads the job"
        return ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _in_cookie(self, headers: dict[str, str]) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""


async def _refuse(send: Send, reason: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = msgspec.json.encode({"error": reason})
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"application/json"), *headers]})
    await send({"type": "http.response.body", "body": body})
