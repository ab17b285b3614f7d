import hashlib
import json
import re
from html import unescape
from importlib.resources import files

import pytest

import lumos
from lumos.errors import LumosError
from lumos.reports.page import html
from lumos.reports.page.document import ReportedJob, document

LARGEST = 6_000_000


def report(path):
    return document(ReportedJob.of(lumos.read(path)), command=["lumos", "report"])


def test_nothing_in_json_reads_as_markup():
    text = html.json_text({"name": "</script><!-- & \u2028 \u2029"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"name": "</script><!-- & \u2028 \u2029"}


def test_the_file_needs_no_network_and_is_small(trace):
    text = html.report_page(report(trace()))
    assert len(text.encode()) <= LARGEST
    assert "default-src 'none'" in unescape(text)
    outside = re.findall(r"""(?:src|href)\s*=\s*["']?(?!#|data:)([^"'\s>]+)""", re.sub(r"<script.*?</script>", "", text, flags=re.S))
    assert outside == []


def test_a_hostile_name_ends_no_element(trace, hostile):
    text = html.report_page(report(trace(name=hostile)))
    assert hostile not in text
    assert "<img" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    assert hostile in json.dumps(json.loads(data)).replace('\\"', '"')


def test_a_hostile_file_name_is_escaped_too(trace, tmp_path, hostile):
    path = trace(file="<img src=x>.json")
    text = html.report_page({**report(path), "headline": hostile})
    assert "<img" not in text
    assert hostile not in text


def test_a_folder_that_is_not_there(trace, tmp_path):
    with pytest.raises(LumosError, match=r"nowhere/report.html: cannot be written .*folder that exists"):
        html.write_report(str(tmp_path / "nowhere" / "report.html"), report(trace()))


@pytest.mark.parametrize("start", ["report_page.js", "figure_page.js", "explorer.js", "api_page.js"])
def test_what_a_page_imports_is_there_and_its_columns_have_heads(start):
    for name in (start, *html.imported_modules(start)):
        assert 'title: ""' not in html.static(name), f"{name}: a column without a head"
        for names, module in re.findall(r'^import \{ (.+) \} from "lumos/(.+)";$', html.static(name), re.MULTILINE):
            exported = " ".join(re.findall(r"^export .*", html.static(module), re.MULTILINE))
            assert set(names.split(", ")) <= set(re.findall(r"\w+", exported)), f"{name} imports of {module} what it has not"


def test_the_charts_library_is_the_published_one_with_its_licence():
    folder = files("lumos.reports.page") / "static" / "plotly"
    assert hashlib.sha512((folder / "plotly-cartesian.min.js").read_bytes()).hexdigest() in (folder / "README.md").read_text()
    assert "MIT License" in (folder / "LICENSE").read_text()
    assert "Licensed under the MIT license" in html.plotly_source()[:300]
