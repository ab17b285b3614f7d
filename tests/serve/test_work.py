import threading

from lumos.serve.session import BackgroundWork


def begun(then):
    """Work that has reported once, and the event on which it goes on, to do `then`."""
    go_on, reached = threading.Event(), threading.Event()

    def call(report):
        report("reading", 3, 10)
        reached.set()
        go_on.wait(10)
        return then(report)

    work = BackgroundWork(call)
    assert reached.wait(10)
    return work, go_on


def test_it_reports_its_progress_and_then_its_result():
    work, go_on = begun(lambda _: 42)
    assert work.status() == {"state": "running", "doing": "reading", "done": 3, "total": 10, "error": ""}
    go_on.set()
    assert work.wait(10)
    assert (work.state, work.result) == ("done", 42)


def test_cancelled_work_stops_at_its_next_report():
    after = []
    work, go_on = begun(lambda report: (report("reading", 4, 10), after.append("went on")))
    work.cancel()
    go_on.set()
    assert work.wait(10)
    assert (work.state, after) == ("cancelled", [])
