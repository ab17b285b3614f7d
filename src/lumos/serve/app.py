"""The explorer's pages and its HTTP API, which /openapi.json describes for programs and /api for people.

Every answer of the API is JSON. An error is {"error": message} with status 400 (the request cannot be answered), 403
(refused), 404 (no such page or file), 409 (the job is not read yet) or 500 (a fault of Lumos). No request names a file.
"""

from __future__ import annotations

import base64
import hashlib
from itertools import chain
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from lumos.arguments import declared
from lumos.changes.changes import Changes
from lumos.changes.settings import SETTINGS, Setting, in_words
from lumos.changes.words import ChangeWords
from lumos.cost.cluster import cluster_names
from lumos.errors import LumosError, QuestionError, UsageError
from lumos.reports.page.html import imported_modules, json_text, page, plotly_source, static
from lumos.result import as_json
from lumos.serve.guard import App, Guard
from lumos.serve.session import Loaded, Session, fault_of

#: The modules that start the explorer and its page about the API.
START_MODULES = ("explorer.js", "api_page.js")
#: What /static/ serves; nothing else is read, whatever the request says.
FILES = dict.fromkeys((*START_MODULES, *chain(*map(imported_modules, START_MODULES))), "text/javascript") | {"page.css": "text/css"}


def _offered(setting: Setting) -> dict[str, Any]:
    """What the explorer's form needs to know about a setting."""
    return {
        "kind": setting.kind,
        "words": setting.words,
        "least": setting.least,
        "most": setting.most,
        "help": setting.help,
        "valid_for": tuple(setting.values),
    }


#: So many changes of one kind, of so many characters each, are accepted.
_MOST_CHANGES, _MOST_CHARACTERS = 64, 500
_Texts = Annotated[list[Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]], Field(max_length=_MOST_CHANGES)]
_Cluster = Annotated[str | None, Field(max_length=100)]


def _said(word: str) -> str:
    """What a word means, as the command line and Python say it."""
    _, term = declared(ChangeWords)[word]
    return f"{term.shown}: {term.text}" if term.shown else term.text


class WhatIf(BaseModel):
    """Changes of a job, in the words of `lumos whatif`. They are applied in this order: set, drop, fuse, scale, rank_slowdown. With `moved`
    the critical paths are compared too, which takes longer."""

    model_config = ConfigDict(extra="forbid")
    set: _Texts = Field(default=[], description=f"KEY=VALUE: {in_words()}")
    base: _Texts = Field(default=[], description=_said("base"))
    scale: _Texts = Field(default=[], description=_said("scale"))
    drop: _Texts = Field(default=[], description=_said("drop"))
    fuse: _Texts = Field(default=[], description=_said("fuse"))
    rank_slowdown: _Texts = Field(default=[], description=_said("rank_slowdown"))
    network: _Texts = Field(default=[], description=_said("network"))
    cluster: _Cluster = Field(default=None, description=_said("cluster"))
    base_cluster: _Cluster = Field(default=None, description=_said("base_cluster"))
    repeat: bool = Field(default=False, description=_said("repeat"))
    host_factor: float | None = Field(default=None, description=_said("host_factor"))
    moved: bool = False

    def changes(self) -> Changes:
        """The changes as `whatif` takes them. Raises UsageError for a wrong word or an unknown cluster; no path of a file is accepted."""
        for name in (self.base_cluster, self.cluster):
            if name is not None and name not in cluster_names():
                raise UsageError(f"{name!r} is not a cluster; valid are {', '.join(cluster_names())}")
        return Changes.parse(**self.model_dump(exclude={"moved"}))


def application(session: Session, port: int, token: str) -> App:
    """The explorer of a session, as it is served on a port to whom knows the token."""
    app = FastAPI(
        title="Lumos explorer",
        summary="A recorded training job: its report, its timeline, and what changes would do to its step.",
        docs_url=None,
        redirect_slashes=False,
        redoc_url=None,
    )
    imports = json_text({"imports": {f"lumos/{name}": f"/static/{name}" for name in FILES if name.endswith(".js")}})
    entries = {"explorer": 'import "lumos/explorer.js";', "api": 'import "lumos/api_page.js";'}
    _errors(app)
    _pages(app, imports, entries)
    _report(app, session)
    _whatif(app, session)
    digests = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in (imports, *entries.values()))
    policy = (
        f"default-src 'none'; script-src 'self' {digests}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    return Guard(app, port, token, policy)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(LumosError)
    def cannot_answer(_: Request, error: LumosError) -> Response:
        asked = {"candidates": [candidate._asdict() for candidate in error.candidates]} if isinstance(error, QuestionError) else {}
        return _json({"error": f"{error}", **asked}, 400)

    @app.exception_handler(Exception)
    def unforeseen(_: Request, error: Exception) -> Response:
        return _json({"error": fault_of(error)}, 500)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> Response:
        message = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return _json({"error": message or "the request is not what the API describes"}, 400)

    @app.exception_handler(HTTPException)
    def other(_: Request, error: HTTPException) -> Response:
        return _json({"error": f"{error.detail}"}, error.status_code)


def _pages(app: FastAPI, imports: str, entries: dict[str, str]) -> None:
    @app.get("/", include_in_schema=False)
    def explorer() -> Response:
        return HTMLResponse(page("explorer", "…", imports, entries["explorer"], title="Lumos explorer"))

    @app.get("/api", include_in_schema=False)
    def api() -> Response:
        return HTMLResponse(page("API", "The explorer's API", imports, entries["api"], title="Lumos explorer: API"))

    @app.get("/static/plotly.min.js", include_in_schema=False)
    def plotly() -> Response:
        return Response(plotly_source(), media_type="text/javascript")

    @app.get("/static/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404, "there is no such file")
        return Response(static(name), media_type=FILES[name])


def _report(app: FastAPI, session: Session) -> None:
    @app.get("/api/status", tags=["job"], summary="How far reading the job is")
    def status() -> Response:
        return _json({**session.loading.status(), "paths": session.paths})

    @app.post("/api/cancel", tags=["job"], summary="Stop reading the job")
    def cancel() -> Response:
        session.loading.cancel()
        return _json(session.loading.status())

    @app.post("/api/reload", tags=["job"], summary="Read the job again, after it was cancelled or failed")
    def reload() -> Response:
        session.reload()
        return _json(session.loading.status())

    @app.get("/api/report", tags=["job"], summary="The report: all parts but the timeline")
    def report() -> Response:
        return _json(_loaded(session).document)

    @app.get("/api/timeline", tags=["job"], summary="The timeline of a step: levels of aggregation, and the tasks where they are few")
    def timeline(step: str | None = None) -> Response:
        loaded = _loaded(session)
        return _json(loaded.drawing(step or loaded.document["step"]))

    @app.get("/api/names", tags=["what-if"], summary="The names that take most time, for patterns")
    def names() -> Response:
        return _json(_loaded(session).names())


def _whatif(app: FastAPI, session: Session) -> None:
    @app.post("/api/whatif", tags=["what-if"], summary="What changes do to the step: the keys of lumos whatif --json")
    def whatif(asked: WhatIf) -> Response:
        changes = asked.changes()
        answer = _loaded(session).whatif(changes, moved=asked.moved)
        return _json({**answer, **session.equivalents(changes)})

    @app.get("/api/settings", tags=["what-if"], summary="The settings that can be changed, and the clusters that can be named")
    def settings() -> Response:
        return _json({"settings": {key: _offered(setting) for key, setting in SETTINGS.items()}, "clusters": cluster_names()})


def _loaded(session: Session) -> Loaded:
    status = session.loading.status()
    if status["state"] != "done":
        raise HTTPException(409, status["error"] or f"the job is not read yet ({status['doing']}); ask /api/status")
    return session.loading.result


def _json(value: Any, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")
