"""How fast reports and the explorer are: benchmarks/results/explore.md.

    python -m benchmarks.explore            with LUMOS_TRACES set: reports of public recordings too

Reports are opened in a headless Chromium from a file, without a network, the second time in the same browser (the first
starts the browser's own processes). A frame is the time from one animation frame to the next while the timeline pans, at
three zooms, so it holds everything that the browser does for a frame and is never less than the display's 16.7 ms. Its processor time is
that of all processes of the browser, which does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import simulate as simulated
from benchmarks.load import busy
from benchmarks.repeat import repeated, stretched
from tools.browser import Page, browser
from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.analyze.loop.steps import members
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.graph.build import build
from lumos.reports.page.document import ReportedJob, document
from lumos.reports.page.html import write_report
from lumos.reports.page.timeline_levels import drawing
from lumos.serve.session import LIMITS, Loaded
from lumos.simulation import simulate
from lumos.trace import read
from lumos.trace.table import Category, Job, Trace

TASKS = 1_000_000
RANKS = 16
MANY_RANKS = 512
#: Jitter between ranks.
JITTER = 0.001
PUBLIC = ("dlrm-8xv100", "resnet-ddp-a100", "vgg13-h100/kineto.json.gz", "straggler-8gpu")
ZOOMS = (1, 1 / 20, 1 / 2000)
FRAMES = 60
QUESTIONS = 15


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, browser(1440, 900) as page:
        page.offline()
        rows = [*_reports(Path(folder), page), *_large(Path(folder), page)]
    text = markdown_table(("what", "figure", "to reach"), rows)
    print(text)
    write_result("benchmarks/results/explore.md", f"Written by `python -m benchmarks.explore` ({busy()}).\n\n{text}")
    return 0


def _reports(folder: Path, page: Page) -> list[tuple[str, str, str]]:
    """Size and opening of the reports of recorded jobs."""
    jobs = [ROOT / "examples" / "gpt-2rank-cpu"]
    if "LUMOS_TRACES" in os.environ:
        jobs += [path for name in PUBLIC if (path := Path(os.environ["LUMOS_TRACES"]) / name).exists()]
    rows = []
    for path in jobs:
        file = folder / "report.html"
        write_report(str(file), document(ReportedJob.of(read(str(path)))))
        name = path.parent.name if path.is_file() else path.name
        rows.append((f"report of {name}: size", f"{file.stat().st_size / 1e6:.1f} MB", "≤ 6 MB"))
        opened, ready = _open(page, file)
        rows.append((f"report of {name}: headline and timeline shown; all charts drawn", f"{opened} ms; {ready} ms", "opens ≤ 1 s"))
    return rows


def _open(page: Page, file: Path) -> tuple[int, int]:
    """Milliseconds from the navigation to the timeline, and to the last chart: the median of five, after one to warm up."""
    times = []
    for _ in range(6):
        page.open(file.as_uri())
        times.append(tuple(int(page.run(f"document.documentElement.dataset.{key}")) for key in ("opened", "ready")))
    if page.errors:
        raise RuntimeError(f"{file}: {page.errors}")
    opened, ready = (round(statistics.median(column)) for column in zip(*times[1:], strict=True))
    return opened, ready


def _large(folder: Path, page: Page) -> list[tuple[str, str, str]]:
    """A job of a million tasks in one step: frames of its timeline, and what-ifs on it."""
    recording = _recording()
    tasks = len(recording.graph)
    began = time.perf_counter()
    loaded = Loaded(recording, document(recording, timeline=False))
    analysed = time.perf_counter() - began
    rows = [(f"explorer, {tasks:,} tasks on {RANKS} ranks: all analyses", f"{analysed:.1f} s", "–")]
    rows += _frames(folder / "large.html", page, loaded)
    kept = folder / "kept.html"
    write_report(str(kept), {**loaded.document, "timeline": recording.drawing(loaded.document["step"])})
    opened, ready = _open(page, kept)
    rows.append(
        (
            "report of that job: size; headline and timeline shown; all charts drawn",
            f"{kept.stat().st_size / 1e6:.1f} MB; {opened} ms; {ready} ms",
            "≤ 6 MB; opens ≤ 1 s",
        )
    )
    return rows + _whatifs(loaded) + _many_ranks(folder / "many.html", page, loaded.document)


def _many_ranks(file: Path, page: Page, about: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The timeline of 512 ranks, two lanes each, in the report of a small job."""
    simulated.RANKS, before = MANY_RANKS, simulated.RANKS
    graph = simulated.synthetic(TASKS)
    simulated.RANKS = before
    found = drawing({"replayed": simulate(graph)}, members(graph), "step", {}, None)
    write_report(str(file), {**about, "timeline": found})
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    rows = [(f"report with a timeline of {MANY_RANKS} ranks, {len(graph):,} tasks: size", size, "≤ 6 MB")]
    page.open(file.as_uri(), timeout=120)
    return [*rows, _panned(page, 1, f"timeline of {MANY_RANKS} ranks, all in view")]


def _recording() -> ReportedJob:
    traces = [_unmarked(t) for t in read(str(ROOT / "examples" / "gpt-2rank-cpu")).traces]
    each = len(build(Job((traces[0],))))
    times = max(1, round(TASKS / RANKS / each))
    ranks = [replace(stretched(repeated(traces[i % 2], times), 1 + JITTER * i), rank=i, world_size=RANKS) for i in range(RANKS)]
    job = Job(tuple(ranks))
    graph = build(job)
    # the ranks drift apart, so many of their collectives, which the recording does not number, find no peer
    return ReportedJob(job, graph, simulate(graph), force=True)


def _unmarked(trace: Trace) -> Trace:
    """Without its step marks: the whole recording is one step."""
    marks = np.array([text.startswith("ProfilerStep#") for text in trace.strings])
    category = np.where(marks[trace.name], np.uint8(Category.OTHER), trace.category)
    return replace(trace, category=category.astype(np.uint8))


def _frames(file: Path, page: Page, loaded: Loaded) -> list[tuple[str, str, str]]:
    write_report(str(file), {**loaded.document, "timeline": loaded.recording.drawing(loaded.document["step"], LIMITS)})
    page.open(file.as_uri(), timeout=120)
    size = f"{len(loaded.recording.graph):,} tasks"
    return [_panned(page, zoom, f"timeline of {size}, {'all' if zoom == 1 else f'1/{round(1 / zoom):,}'} in view") for zoom in ZOOMS]


def _panned(page: Page, zoom: float, label: str) -> tuple[str, str, str]:
    """Painting and frames while panning at a zoom (the share of the step in view)."""
    page.run("document.querySelector('.timeline').scrollIntoView()")
    page.run(f"(() => {{ const t = window.lumos.timeline; t.show(t.length * 0.3, t.length * (0.3 + {zoom})); }})()")
    page.run("new Promise(requestAnimationFrame)")
    mode = page.run("document.querySelector('.timeline canvas').dataset.mode")
    before = page.processor_s()
    paints, frames = (sorted(column) for column in page.run(f"({PAN})({FRAMES})"))
    worked = 1e3 * (page.processor_s() - before) / FRAMES
    times = statistics.median(paints), worked, statistics.median(frames), frames[int(0.95 * len(frames))]
    figure = "; ".join(f"{each:.1f} ms" for each in times)
    return f"{label} ({mode}): painting; processor time of the browser; a frame, median; 95 %", figure, "≤ 33 ms"


#: Pans by a hundredth of the view each frame; resolves to the ms that painting took and that went by from frame to frame.
PAN = """async (number) => {
  const t = window.lumos.timeline, paint = [], frame = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < number; i++) {
    const step = (t.view.end - t.view.begin) / 100 * (i < number / 2 ? 1 : -1);
    t.view = {begin: t.view.begin + step, end: t.view.end + step};
    paint.push(t.paint());
    const now = await new Promise(requestAnimationFrame);
    frame.push(now - last);
    last = now;
  }
  return [paint, frame];
}"""


def _whatifs(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Questions as a slider asks them: one factor, many values."""
    rows = []
    for label, moved in (("step and its parts", False), ("with what moved on the critical path", True)):
        times, processor = [], []
        for i in range(QUESTIONS + 1):
            began, worked = time.perf_counter(), time.process_time()
            loaded.whatif(Changes(durations=Durations.parse([f"aten::mm={0.3 + i / 10}"], (), (), ())), moved=moved)
            times.append(time.perf_counter() - began)
            processor.append(time.process_time() - worked)
        times = sorted(times[1:])  # the first works out what all share
        rows.append(
            (
                f"what-if on {len(loaded.recording.graph):,} tasks, {label}: median; slowest; processor time",
                f"{statistics.median(times) * 1e3:.0f} ms; {times[-1] * 1e3:.0f} ms; {statistics.median(processor) * 1e3:.0f} ms",
                "–" if moved else "≤ 200 ms",
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
