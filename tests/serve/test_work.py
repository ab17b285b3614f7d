from __future__ import annotations

import threading

import pytest

from lumos.errors import LumosError
from lumos.serve.work import BackgroundWork


def test_it_reports_its_progress_and_then_its_result():
    go_on = threading.Event()
    reached = threading.Event()

    def call(report):
        report("reading", 3, 10)
        reached.set()
        go_on.wait(10)
        return 42

    work = BackgroundWork(call)
    assert reached.wait(10)
    assert work.status() == {"state": "running", "doing": "reading", "done": 3, "total": 10, "error": ""}
    go_on.set()
    assert work.wait(10)
    assert (work.state, work.result) == ("done", 42)


def test_cancelled_work_stops_at_its_next_report():
    reached = threading.Event()
    go_on = threading.Event()
    after = []

    def call(report):
        report("reading", 0, 2)
        reached.set()
        go_on.wait(10)
        report("reading", 1, 2)
        after.append("went on")

    work = BackgroundWork(call)
    reached.wait(10)
    work.cancel()
    go_on.set()
    assert work.wait(10)
    assert work.state == "cancelled"
    assert after == []


def test_an_error_is_reported_not_raised():
    def call(report):
        raise LumosError("x.json: empty; record it again")

    work = BackgroundWork(call)
    assert work.wait(10)
    assert work.status()["state"] == "failed"
    assert work.status()["error"] == "x.json: empty; record it again"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_is_reported_too():
    def call(report):
        raise ZeroDivisionError("division by zero")

    work = BackgroundWork(call)
    assert work.wait(10)
    assert "ZeroDivisionError: division by zero; this is a fault of Lumos" in work.status()["error"]
    for thread in threading.enumerate():  # join it, so that pytest sees its exception within this test, where it is expected
        if thread.name == "lumos-work":
            thread.join(5)
