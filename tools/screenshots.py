"""The pictures of docs/explore.md and docs/report.md, taken from recorded jobs.

    LUMOS_TRACES=... python -m tools.screenshots

The timeline and the stragglers show the public recording of DLRM on eight GPUs (facebookresearch/param, MIT); the rest jobs in
examples/. Needs Chromium and the extra serve.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from tools.browser import Page, browser
from tools.document import ROOT

from lumos.cli.serve import listen
from lumos.reports.page.document import ReportedJob, document
from lumos.reports.page.html import write_report
from lumos.serve.app import application
from lumos.serve.session import Session
from lumos.trace import read

IMAGES = ROOT / "docs" / "images"
EXAMPLE, FAULT = ROOT / "examples" / "gpt-2rank-cpu", ROOT / "examples" / "faults" / "extra-work"


def main() -> int:
    traces = os.environ.get("LUMOS_TRACES")
    if traces is None:
        print("LUMOS_TRACES is not set: the pictures of the public recording stay as they are", file=sys.stderr)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser(1180, 860) as page:
        _report(page, Path(folder) / "example.html", EXAMPLE)
        page.screenshot(IMAGES / "report.png")
        _nested(page)
        page.prefer("dark")
        page.screenshot(IMAGES / "report-dark.png")
        page.prefer("light")
        _report(page, Path(folder) / "fault.html", FAULT)
        page.screenshot(IMAGES / "findings.png", "#findings")
        if traces is not None:
            _report(page, Path(folder) / "dlrm.html", Path(traces) / "dlrm-8xv100")
            page.screenshot(IMAGES / "timeline.png", "#timeline")
            page.run("(() => { const t = window.lumos.timeline; t.show(t.length * 0.46, t.length * 0.54); })()")
            time.sleep(0.3)
            page.screenshot(IMAGES / "timeline-zoomed.png", "#timeline .timeline")
            page.screenshot(IMAGES / "stragglers.png", "#stragglers")
            _waits(page)
        with _explorer(EXAMPLE) as url:
            _bench(page, url)
    return 0


def _report(page: Page, file: Path, job: Path) -> None:
    named = job.relative_to(ROOT) if job.is_relative_to(ROOT) else job  # the commands in the pictures name it
    write_report(str(file), document(ReportedJob.of(read(str(named)))))
    page.open(file.as_uri())
    time.sleep(0.5)


def _nested(page: Page) -> None:
    """Two threads opened around a backward pass."""
    page.run(
        "(() => { const t = window.lumos.timeline; t.lanes.all.forEach(({name, kind}, i) => {"
        " if (kind === 'thread' && t.operators.nested.rows[i].length > 3) t.operators.toggle(i); });"
        " t.show(t.length * 0.40, t.length * 0.52); })()"
    )
    time.sleep(0.3)
    page.screenshot(IMAGES / "nested.png", "#timeline .timeline")
    page.run("(() => { const t = window.lumos.timeline; t.operators.toggleAll(); t.show(0, t.length); scrollTo(0, 0); })()")
    time.sleep(0.3)


def _waits(page: Page) -> None:
    """A kernel that waited for its launch and that another stream waits for: what the page says of it, dark and on a phone."""
    page.prefer("dark")
    page.run(
        "(() => { const t = window.lumos.timeline, links = t.links, stream = (i) => t.drawing.lanes[links.laneOf[i]].kind === 'stream';"
        " for (let i = 0; i < t.run.tasks.start.length; i++) if (stream(i) && links.before(i).length > 1 && links.after(i).length > 1) {"
        " const task = t.describe(i); t.reveal(task, false); t.show(task.start - 4e5, task.start + 6e5); return; } })()"
    )
    time.sleep(0.3)
    page.screenshot(IMAGES / "waits-dark.png", "#timeline")
    page.prefer("light")
    page.resize(390, 844)
    time.sleep(0.5)
    page.screenshot(IMAGES / "waits-phone.png", "#timeline")
    page.resize(1180, 860)


@contextmanager
def _explorer(job: Path) -> Iterator[str]:
    listener = listen(0)
    port, token = listener.getsockname()[1], secrets.token_urlsafe()
    session = Session([str(job.relative_to(ROOT))])
    server = uvicorn.Server(uvicorn.Config(application(session, port, token), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        session.loading.wait()
        yield f"http://127.0.0.1:{port}/?token={token}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _bench(page: Page, url: str) -> None:
    """Two saved scenarios, of which the second is still selected."""
    page.resize(1180, 1180)
    page.open(url)
    _settled(page)
    _submit(page, 0, "aten::*mm*")
    _slide(page, 0.5)
    _submit(page, -1, "multiplications twice as fast")
    _submit(page, 0, "*all_reduce*")
    page.run(
        "(() => { const s = [...document.querySelectorAll('#bench input[type=range]')][1]; s.value = 0.25;"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    _settled(page)
    _submit(page, -1, "and the network four times")
    page.wait("document.querySelectorAll('#bench table.rows').length >= 2")
    time.sleep(1)
    page.screenshot(IMAGES / "explorer.png", "#whatif")


def _submit(page: Page, form: int, text: str) -> None:
    page.run(
        f"(() => {{ const f = [...document.querySelectorAll('#bench form')].at({form});"
        f" f.querySelector('input').value = {json.dumps(text)}; f.requestSubmit(); }})()"
    )
    time.sleep(0.6)
    _settled(page)


def _slide(page: Page, value: float) -> None:
    page.run(
        f"(() => {{ const s = document.querySelector('#bench input[type=range]'); s.value = {value};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    _settled(page)


def _settled(page: Page) -> None:
    page.wait("document.getElementById('bench').dataset.state === 'settled'")


if __name__ == "__main__":
    sys.exit(main())
