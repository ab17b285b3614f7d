"""The report in a browser without a network, as a reader sees it."""

import json
from pathlib import Path

import pytest

import lumos
from lumos.reports.page.document import ReportedJob, document
from lumos.reports.page.html import write_figure_page, write_report

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt-2rank-cpu"
#: How the rows of the steps of `ahead` begin, after the name: time, basis, latency.
ROWS = ("40.00 µslatency40.00 µs", "30.00 µsperiod60.00 µs", "30.00 µsperiod80.00 µs")
CANVAS = "document.querySelector('.timeline canvas')"


@pytest.fixture
def opened(page, tmp_path):
    """Write the report of traces and open it without a network."""

    def show(*paths):
        found = document(ReportedJob.of(lumos.read(*paths)))
        write_report(str(tmp_path / "report.html"), found)
        page.offline()
        page.open((tmp_path / "report.html").as_uri())
        return found

    return show


def shown_range(page):
    page.run("new Promise(requestAnimationFrame)")
    return json.loads(page.run(f"JSON.stringify([+{CANVAS}.dataset.begin, +{CANVAS}.dataset.end])"))


def test_it_opens_offline_without_errors_and_shows_every_part(page, opened):
    found = opened(EXAMPLE)
    assert page.errors == []
    assert page.run("document.getElementById('headline').textContent") == found["headline"]
    titles = page.run("[...document.querySelectorAll('section.part h2')].map(h => h.textContent)")
    for title in ("Where the time goes", "Timeline", "Critical path", "Collectives", "Stragglers", "Blocks"):
        assert title in titles
    assert page.run("document.querySelectorAll('.js-plotly-plot').length") >= 6


def test_the_step_is_the_same_in_the_headline_the_tiles_and_the_table(page, opened, ahead):
    opened(*ahead())
    assert "of 30.00 µs a step (period; latency 70.00 µs)" in page.run("document.getElementById('headline').textContent")
    tiles = page.run("[...document.querySelectorAll('#summary .tile')].slice(0, 2).map(t => t.textContent)")
    assert tiles[0] == "step30.00 µsperiod: from one step's completion to the next; mean of 2 steps"
    assert tiles[1] == "latency70.00 µsof the same steps: from its first work to its completion"
    rows = page.run("[...document.querySelectorAll('#breakdown [aria-label=\"Steps of the job\"] tbody tr')].map(r => r.textContent)")
    assert [row.startswith(f"ProfilerStep#{i}{time}") for i, (row, time) in enumerate(zip(rows, ROWS, strict=True))] == [True] * 3
    assert "counts in no figure" in rows[0]
    assert page.errors == []


def test_the_bars_of_a_step_are_as_long_as_the_step(page, opened, ahead):
    """One bar for each run of each step: 40 µs for the first, by its latency, and 30 for the others."""
    opened(*ahead())
    traces = page.run("document.querySelector('#breakdown .js-plotly-plot').data.map(t => t.x)")
    assert [round(1e3 * sum(parts)) for parts in zip(*traces, strict=True)] == [30, 30, 40]


def test_the_timeline_zooms_pans_and_returns_by_keyboard(page, opened):
    found = opened(EXAMPLE)
    length = max(run["length_ns"] for run in found["timeline"]["runs"])
    page.run(f"{CANVAS}.focus()")
    assert shown_range(page) == [0, length]
    page.key("+")
    page.key("+")
    begin, end = shown_range(page)
    assert end - begin == pytest.approx(length / 4, rel=0.01)
    page.key("ArrowRight")
    moved = shown_range(page)
    assert moved[0] - begin == pytest.approx((end - begin) / 5, rel=0.01)
    page.key("Home")
    assert shown_range(page) == [0, length]


def test_a_task_is_read_out_with_its_exact_time(page, opened, trace):
    """The first step is complete at 601 µs, so the second begins there: 399 µs before its first operator."""
    opened(trace())
    page.run(f"{CANVAS}.focus()")
    page.key("n")
    page.wait("document.querySelector('.sr').textContent.includes('between operators')")
    page.key("n")
    page.wait("document.querySelector('.sr').textContent.includes('aten')")
    said = page.run("document.querySelector('.sr').textContent")
    assert "aten::gemm_kernel" in said
    assert "2.00 µs from 399.0 µs" in said
    assert "rank 0" in said


def test_tasks_are_painted_where_they_are(page, opened, trace):
    """The third kernel of the second step runs from 1025 to 1031 µs, and the step begins at 601."""
    opened(trace())
    page.run(f"{CANVAS}.focus()")
    page.run("window.lumos.timeline.show(399000, 499000)")
    page.run("new Promise(requestAnimationFrame)")
    assert page.run(f"{CANVAS}.dataset.mode") == "tasks"
    hit = "window.lumos.timeline.taskAt({lane}, {time})"
    lanes = page.run("window.lumos.timeline.drawing.lanes.map(l => l.kind)")
    stream = lanes.index("stream")
    assert page.run(hit.format(lane=stream, time=426_000))["start"] == 424_000
    assert page.run(hit.format(lane=stream, time=426_000))["duration"] == 6_000
    assert page.run(hit.format(lane=stream, time=432_000)) is None


def test_a_hostile_name_is_shown_as_text(page, opened, trace, hostile):
    opened(trace(name=hostile))
    page.run(f"{CANVAS}.focus()")
    page.key("n")
    page.key("n")
    page.wait("document.querySelector('.sr').textContent.includes('aten')")
    assert hostile in page.run("document.querySelector('.sr').textContent")
    assert page.run("window.hacked") is None
    assert page.run("document.querySelectorAll('main img, main b, svg b').length") == 0
    assert hostile[:20] in page.run("document.body.textContent")
    assert page.errors == []


def test_a_hostile_name_is_text_in_charts(page, opened, trace, hostile):
    opened(trace(name=hostile))
    page.run(
        "(async () => { const {chart, plain} = await import('lumos/charts.js'); const node = document.createElement('div');"
        " node.id = 'probe'; document.body.append(node);"
        f" await chart(node, [{{type: 'bar', x: [plain({json.dumps(hostile)})], y: [1]}}]); }})()"
    )
    assert "<b>bold</b>" in page.run("document.getElementById('probe').textContent")
    assert page.run("window.hacked") is None


def test_dark_and_light_follow_the_reader(page, opened, trace):
    background = "getComputedStyle(document.body).backgroundColor"
    page.prefer("dark")
    opened(trace())
    assert page.run("document.documentElement.dataset.theme") == "dark"
    dark = page.run(background)
    page.prefer("light")
    page.wait("document.documentElement.dataset.theme === 'light'")
    assert page.run(background) != dark


def test_hits_are_counted_and_visited_in_order(page, opened, trace):
    """Of the 60 kernels of a step one is a collective, and nothing else has its name."""
    opened(trace())
    page.run("window.lumos.timeline.find('nccl')")
    assert page.run("document.querySelector('.search .hint').textContent") == "1 hit"
    page.run("window.lumos.timeline.find('gemm_kernel')")
    page.run("document.querySelector('[aria-label=\"next hit\"]').click()")
    first = page.run("window.lumos.timeline.selected.start")
    page.run("document.querySelector('[aria-label=\"next hit\"]').click()")
    assert page.run("window.lumos.timeline.selected.start") > first
    page.run("document.querySelector('[aria-label=\"previous hit\"]').click()")
    assert page.run("window.lumos.timeline.selected.start") == first


def test_a_task_says_what_it_waited_for_and_leads_there(page, opened, trace):
    opened(trace())
    kernel = "window.lumos.timeline.names.indexOf('gemm_kernel')"
    page.run(f"(t => t.select(t.describe(t.run.tasks.name.indexOf({kernel}))))(window.lumos.timeline)")
    said = page.run("document.querySelector('.task').innerText")
    assert "cudaLaunchKernel launch;" in said
    page.run("document.querySelector('.task .waits button').click()")
    assert page.run("window.lumos.timeline.selected.name") == "cudaLaunchKernel"
    assert page.errors == []


def test_launches_are_drawn_on_demand(page, opened, nested):
    """One call launches the only kernel: an arrow from 25 µs on the thread to 30 µs on the stream."""
    opened(nested)
    picture = f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({CANVAS}.toDataURL()))))"
    without = page.run(picture)
    box = "[...document.querySelectorAll('#timeline label')].find(l => l.textContent.includes('launches')).querySelector('input')"
    page.click(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box}.getBoundingClientRect())")
    assert page.run(f"{box}.checked")
    assert page.run("window.lumos.timeline.links.launches(0, 1e9, 10).length") == 1
    assert page.run(picture) != without


def test_the_address_holds_the_view_and_a_link_shows_it(page, opened, trace, tmp_path):
    opened(trace())
    page.run("window.lumos.timeline.show(400000, 500000)")
    page.wait("location.hash.includes('begin=400000')")
    page.open((tmp_path / "report.html").as_uri() + "#timeline&step=ProfilerStep%230&run=measured&begin=1000&end=3000&task=1")
    page.wait("window.lumos.timeline.drawing.step === 'ProfilerStep#0' && window.lumos.timeline.selected")
    assert page.run("window.lumos.timeline.run.source") == "measured"
    assert page.run("window.lumos.timeline.run.tasks.task[window.lumos.timeline.selected.index]") == 1
    assert shown_range(page) == [1000, 3000]


def test_links_of_the_tables_lead_to_tasks(page, opened):
    opened(EXAMPLE)
    page.run("document.querySelector('#path td a').click()")
    page.wait("window.lumos.timeline.selected !== null")
    row = page.run("document.querySelector('#path td a').closest('tr').lastChild.textContent")
    assert page.run("window.lumos.timeline.selected.name") == row
    page.run("document.querySelector('#timeline select').value")
    page.run("[...document.querySelectorAll('#breakdown [aria-label=\"Steps of the job\"] a')][0].click()")
    page.wait("window.lumos.timeline.drawing.step === document.querySelector('#timeline select').options[0].value")
    assert page.errors == []


def test_ranks_that_are_alike_are_shown_once_on_demand(page, opened, ahead):
    opened(*ahead((30, 30), (30, 30), (30, 30), (10, 10)))
    timeline = "window.lumos.timeline"
    ranks = f"[...new Set({timeline}.lanes.shown.map(i => {timeline}.drawing.lanes[i].rank))]"
    assert page.run(ranks) == [0, 1, 2, 3]
    page.click(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])([...document.querySelectorAll('#timeline button')]"
        ".find(b => b.textContent === '2 kinds of rank').getBoundingClientRect())"
    )
    assert page.run(ranks) == [0, 3]
    page.run("new Promise(requestAnimationFrame)")
    assert page.errors == []


def test_of_many_ranks_one_of_each_kind_is_drawn_with_its_tasks(page, opened, ahead):
    """A thread and a stream of 60 ranks are too many lanes. Rank 41 works for two thirds of the time of the others."""
    opened(*ahead(*[(20, 20) if rank == 41 else (30, 30) for rank in range(60)]))
    timeline = "window.lumos.timeline"
    shown = f"{timeline}.lanes.shown.map(i => {timeline}.drawing.lanes[i]).map(l => l.rank + l.kind)"
    assert page.run(shown) == ["0thread", "0stream", "41thread", "41stream"]
    page.run(
        "const draw = CanvasRenderingContext2D.prototype.fillText; window.written = [];"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...a) { written.push(text); draw.call(this, text, ...a); };"
        f"{timeline}.paint(); 0"
    )
    written = page.run("window.written")
    assert {"r0 ×59", "r41"} <= set(written)
    assert "gemm_kernel" in written  # the name of a task
    assert page.run(f"{CANVAS}.dataset.mode") == "tasks"
    said = f"(lane => ({timeline}.select({timeline}.describe({timeline}.run.tasks.offset[lane])), {timeline}.panel.textContent))"
    assert "whererank 0 and 58 like it, stream 7" in page.run(f"{said}({timeline}.lanes.shown[1])")
    assert "whererank 41, stream 7" in page.run(f"{said}({timeline}.lanes.shown[3])")
    assert page.errors == []


def test_a_plot_is_a_page_of_the_same_look(page, tmp_path):
    points = {"type": "scatter", "mode": "markers", "x": [1.0, 2.0], "y": [0.1, -0.1], "name": "a <b>source</b>"}
    write_figure_page(str(tmp_path / "plot.html"), "errors", {"data": [points], "layout": {}})
    page.offline()
    page.open((tmp_path / "plot.html").as_uri())
    assert page.errors == []
    assert page.run("document.getElementById('headline').textContent") == "errors"
    assert page.run("document.querySelectorAll('.js-plotly-plot').length") == 1
    assert (tmp_path / "plot.html").stat().st_size < 3_000_000
