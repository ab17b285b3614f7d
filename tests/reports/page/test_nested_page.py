"""The nested operators of a timeline in a browser, by clicks and keys, on the recording of the fixture `nested`."""

import pytest

import lumos
from lumos.changes.facade import changes_of
from lumos.reports.page.document import ReportedJob, document
from lumos.reports.page.html import write_report

TIMELINE = "window.lumos.timeline"
#: The thread is the first lane. Rows below it: the mark of the step, then operators, by depth.
ROW_HEIGHT, DEPTH_OF = 15, {"ProfilerStep#0": 0, "aten::linear": 1, "aten::mm": 2}


@pytest.fixture
def opened(page, nested, tmp_path):
    job = ReportedJob.of(lumos.read(nested), force=True)
    write_report(str(tmp_path / "report.html"), document(job, changes=changes_of({"scale": {"gemm": 2}})))
    page.offline()
    page.open((tmp_path / "report.html").as_uri())
    return page


def painted(page):
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def click(page, time_ns, below):
    """Click on the canvas at a time and so many pixels below the top of the first lane; a time of None is the lane's name."""
    x = "20" if time_ns is None else f"t.x({time_ns})"
    page.click(f"(t => {{ const b = t.canvas.getBoundingClientRect(); return [b.x + {x}, b.y + t.lanes.y(0) + {below}]; }})({TIMELINE})")
    painted(page)


def row(page, depth):
    """Where the middle of a nested row is, in pixels below the top of its lane."""
    return page.run(f"{TIMELINE}.lanes.row") + depth * ROW_HEIGHT + ROW_HEIGHT // 2


def test_a_click_on_a_thread_opens_it_and_another_closes_it(opened):
    tall = f"{TIMELINE}.canvas.clientHeight"
    closed = opened.run(tall)
    click(opened, None, 5)
    assert opened.run(tall) == closed + 3 * ROW_HEIGHT  # the mark of the step, linear, mm
    assert opened.run("document.querySelector('.sr').textContent").endswith("operators, 3 deep")
    click(opened, None, 5)
    assert opened.run(tall) == closed
    assert opened.errors == []


def test_nested_operators_are_where_they_ran(opened):
    """The step begins at 0, so that times from its begin are those of the file. Nothing runs in the last 50 µs of its mark."""
    click(opened, None, 5)
    for name, (begin, length) in {"ProfilerStep#0": (0, 150_000), "aten::linear": (0, 100_000), "aten::mm": (10_000, 50_000)}.items():
        click(opened, begin + length // 2, row(opened, DEPTH_OF[name]))
        found = opened.run(f"{TIMELINE}.selected")
        assert (found["name"], found["start"], found["duration"]) == (name, begin, length)


def test_an_operator_says_its_own_time_its_shapes_and_what_it_launched_and_leads_there(opened):
    """Of the 50 µs of mm, 5 are the launch inside it, which is part of mm: the launch is no operator. Linear has the other 50 of 100."""
    click(opened, None, 5)
    click(opened, 30_000, row(opened, 2))
    said = opened.run("document.querySelector('.task').innerText")
    assert "50.00 µs, without the operators inside it" in said
    assert "[[8,16],[16,4]]" in said
    assert "1 task of 60.00 µs on devices" in said
    opened.run("document.querySelector('.task .waits button').click()")
    assert opened.run(f"{TIMELINE}.selected.name") == "gemm"
    click(opened, 30_000, row(opened, 1))
    assert "50.00 µs, without the operators inside it" in opened.run("document.querySelector('.task').innerText")


def test_a_kernel_leads_to_the_operators_that_launched_it(opened):
    opened.run(f"(t => t.select(t.describe(t.run.tasks.name.indexOf(t.names.indexOf('gemm')))))({TIMELINE})")
    names = opened.run("[...document.querySelectorAll('.task .nested button')].map(b => b.textContent)")
    assert names == ["ProfilerStep#0", "aten::linear", "aten::mm"]
    opened.run("[...document.querySelectorAll('.task .nested button')][2].click()")
    assert opened.run(f"[{TIMELINE}.selected.name, {TIMELINE}.lanes.depth.size]") == ["aten::mm", 1]


def test_the_address_keeps_the_threads_that_are_open(opened, tmp_path):
    click(opened, None, 5)
    opened.wait("location.hash.includes('open=0')")
    opened.open((tmp_path / "report.html").as_uri() + "#timeline&open=0&begin=1000&end=90000")
    opened.wait(f"{TIMELINE}.lanes.depth.size === 1")
    assert opened.errors == []
