"""The explorer in a browser: what its user changes and sees."""

import json

import pytest

BENCH = "document.getElementById('bench')"
CANVAS = "document.querySelector('.timeline canvas')"


@pytest.fixture
def opened(page, explorer):
    page.open(explorer.url)
    page.wait(f"{BENCH}.dataset.state === 'settled'")
    return page


def slide(page, value):
    """Move the first slider, as a user does."""
    page.run(
        "(() => { const s = document.querySelector('#bench input[type=range]');"
        f" s.value = {value}; s.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
    page.wait(f"{BENCH}.dataset.state === 'settled'")


def add(page, glob):
    page.run(
        f"(() => {{ const f = document.querySelector('#bench form'); f.querySelector('input').value = {json.dumps(glob)};"
        " f.requestSubmit(); })()"
    )
    page.wait(f"{BENCH}.dataset.state === 'settled' || {BENCH}.dataset.state === 'error'")


def setting(page, key):
    """Add a change of a setting of the plan or the model."""
    page.run(
        "(() => { const f = document.querySelector('#bench form'), [kind] = f.querySelectorAll('select'); kind.value = 'set';"
        " kind.dispatchEvent(new Event('change'));"
        f" f.querySelector('[aria-label=setting]').value = {json.dumps(key)}; f.requestSubmit(); }})()"
    )
    page.wait("document.querySelector('#bench .change') !== null")


def test_it_opens_without_errors(opened):
    assert opened.errors == []
    titles = opened.run("[...document.querySelectorAll('section.part h2')].map(h => h.textContent)")
    assert titles[:2] == ["What to fix first", "What if"]
    assert "Timeline" in titles


def test_a_slider_shows_the_step_that_the_api_gives(opened, explorer):
    add(opened, "aten::mm")
    for factor in (0.25, 1.5):
        slide(opened, factor)
        expected = explorer.ask("/api/whatif", {"scale": [f"aten::mm={factor}"]}).json
        assert float(opened.run(f"{BENCH}.dataset.stepTime")) == expected["step_time_s"]
        shown = opened.run("document.querySelector('#bench .big').textContent")
        assert shown == f"{expected['step_time_s'] * 1e3:.{1 if expected['step_time_s'] >= 0.1 else 2}f} ms"
        assert opened.run("[...document.querySelectorAll('#bench pre')][0].textContent") == expected["command"]
    assert opened.errors == []


def test_a_change_of_the_plan_is_asked_once_the_form_rests(opened, explorer):
    setting(opened, "layers")
    opened.wait(f"{BENCH}.dataset.state === 'settled' && document.querySelector('#bench .change input') !== null")
    opened.run("(() => { const i = document.querySelector('#bench .change input'); i.value = 8; i.dispatchEvent(new Event('change')); })()")
    opened.wait(f"{BENCH}.dataset.state === 'settled' && {BENCH}.dataset.stepTime > 0.3", 60)
    expected = explorer.ask("/api/whatif", {"set": ["layers=8"]}).json["step_time_s"]
    assert float(opened.run(f"{BENCH}.dataset.stepTime")) == expected
    assert opened.errors == []


def test_a_pattern_that_matches_nothing_is_reported(opened):
    add(opened, "nothing-like-it")
    assert "no task matches" in opened.run("document.querySelector('#bench .error').textContent")


def test_scenarios_are_listed_together(opened, explorer):
    add(opened, "aten::mm")
    for name, factor in (("half", 0.5), ("<b>double</b>", 2)):
        slide(opened, factor)
        opened.run(
            "(() => { const f = [...document.querySelectorAll('#bench form')].at(-1);"
            f" f.querySelector('input').value = {json.dumps(name)}; f.requestSubmit(); }})()"
        )
        opened.wait(f"[...document.querySelectorAll('#bench table td')].some(c => c.textContent === {json.dumps(name)})")
    cells = opened.run("[...document.querySelectorAll('#bench table.rows')].at(-1).innerText")
    for name, factor in (("half", 0.5), ("<b>double</b>", 2)):
        assert name in cells
        assert f"{explorer.ask('/api/whatif', {'scale': [f'aten::mm={factor}']}).json['step_time_s'] * 1e3:.1f} ms" in cells
    assert opened.run("document.querySelectorAll('#bench td b').length") == 0
    assert opened.run("[...document.querySelectorAll('th')].filter(t => !t.textContent.trim()).length") == 0


def test_the_timeline_zooms_and_shows_another_step(opened):
    opened.run(f"{CANVAS}.focus()")
    opened.key("+")
    opened.run("new Promise(requestAnimationFrame)")
    length = opened.run("window.lumos.timeline.length")
    span = opened.run(f"{CANVAS}.dataset.end - {CANVAS}.dataset.begin")
    assert span == pytest.approx(length / 2, rel=0.01)
    opened.run(
        "(() => { const s = document.querySelector('#timeline select'); s.value = 'ProfilerStep#12';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    opened.wait("window.lumos.timeline.drawing.step === 'ProfilerStep#12'")
    assert opened.errors == []


def test_the_api_has_a_page(page, explorer):
    page.open(explorer.url.replace("/?", "/api?"))
    assert page.errors == []
    assert "POST /api/whatif" in page.run("document.body.innerText")


def test_a_page_of_another_origin_reads_nothing(page, explorer, tmp_path):
    """The page of a file, which has no origin, asks the explorer: the browser sends the request, the explorer refuses it."""
    (tmp_path / "evil.html").write_text("<!doctype html><html data-state='ready'><title>evil</title></html>")
    page.open((tmp_path / "evil.html").as_uri())
    report = f"http://127.0.0.1:{explorer.port}/api/report"
    got = page.run(f"fetch('{report}', {{mode: 'no-cors'}}).then(a => a.type + a.status, e => 'refused')")
    assert got in ("refused", "opaque0")
    assert page.run(f"fetch('{report}').then(a => a.text(), e => 'refused')") == "refused"


def test_a_failed_reading_is_reported_and_can_be_repeated(page, serve, tmp_path):
    served = serve(tmp_path / "absent.json")
    page.open(served.url, ready="document.documentElement.dataset.state === 'failed'")
    page.wait("document.querySelector('main .error') !== null")
    assert "absent.json" in page.run("document.querySelector('main .error').textContent")
    assert page.run("document.querySelector('main button').textContent") == "read again"
