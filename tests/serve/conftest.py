"""The explorer, served as `lumos serve` does, and clients for it."""

import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TOKEN = "what-only-the-printed-address-has"
EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt-2rank-cpu"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served(NamedTuple):
    """A running explorer."""

    port: int
    session: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    def ask(self, path, body=None, method=None, headers=None) -> Answer:
        """One request, sent as it is: the path is not made safe, headers are as given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = None if body is None else json.dumps(body)
            kind = {} if body is None else {"content-type": "application/json"}
            known = {"authorization": f"Bearer {TOKEN}"}
            connection.request(method or ("GET" if body is None else "POST"), path, sent, {**known, **kind, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@pytest.fixture(scope="session")
def serve():
    """Serve paths on a free port of the loopback address; all servers end with the tests."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason=f"{package} is not installed (pip install -e '.[serve]')")
    import uvicorn

    from lumos.cli.serve import listen
    from lumos.serve.app import application
    from lumos.serve.session import Session

    running = []

    def start(*paths, wait=True) -> Served:
        listener = listen(0)
        session = Session([str(p) for p in paths])
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(application(session, port, TOKEN), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread, listener))
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        if wait:
            session.loading.wait(60)
        return Served(port, session)

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture(scope="session")
def explorer(serve):
    """The recorded example, read."""
    return serve(EXAMPLE)
