"""Write a report as one HTML file that needs no network.

The file contains the document (`report.page.document`) as JSON, the browser's modules, the style sheet, and plotly.js,
compressed. Text from traces is part of the JSON, and the modules show it as text. In the file, `<`, `>` and `&` of the
JSON are written as escapes, so that no name can end its element. A content security policy allows only the page's own
scripts, by their digests, and no connection.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.errors import LumosError
from lumos.extras import install
from lumos.output_files import new_file

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The modules that a page may import as "lumos/NAME".
MODULES = (
    "charts.js",
    "columns.js",
    "dom.js",
    "format.js",
    "offline.js",
    "parts.js",
    "report.js",
    "theme.js",
    "timeline.js",
    "timeline_input.js",
    "timeline_links.js",
    "timeline_marks.js",
    "timeline_paint.js",
    "timeline_panel.js",
    "timeline_search.js",
    "timelines.js",
    "view_link.js",
)


def write_report(path: str, document: Mapping[str, Any]) -> None:
    """Write the report of a document to `path`. LumosError where it cannot be written, or plotly or jinja2 is not installed."""
    _write(path, report_page(document))


def report_page(document: Mapping[str, Any]) -> str:
    """The text of the HTML file that shows a document."""
    return _offline_page("report", document["headline"], "report_page.js", json_text(document))


def write_figure_page(path: str, title: str, figure: Mapping[str, Any]) -> None:
    """Write one plotly figure ({"data", "layout"}, as values that JSON can hold) as a page that looks like a report.

    LumosError where it cannot be written, or plotly or jinja2 is not installed.
    """
    _write(path, _offline_page("figure", title, "figure_page.js", json_text(figure), evaluates=True))


def _write(path: str, text: str) -> None:
    with new_file(path) as file:
        file.write(text.encode())


def _offline_page(kind: str, headline: str, start: str, data: str, *, evaluates: bool = False) -> str:
    """A page that contains everything it needs. evaluates: allow its charts to compile code, as plotly's WebGL traces do."""
    entry, plotly = static(start), plotly_source()
    imports = json_text({"imports": {f"lumos/{name}": _data_url(static(name)) for name in MODULES}})
    digests = " ".join(_digest(text) for text in (imports, entry, plotly))
    evaluation = " 'unsafe-eval'" if evaluates else ""
    policy = (
        f"default-src 'none'; script-src {digests} data:{evaluation}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    packed = base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode()
    return page(
        kind=kind,
        title=headline,
        headline=headline,
        policy=policy,
        css=static("page.css"),
        imports=imports,
        data=[("data", "application/json", data), ("plotly", "text/plain", packed)],
        entry=entry,
    )


def page(**values: Any) -> str:
    """The HTML of a page: the template with these values."""
    from importlib.metadata import version

    try:
        from jinja2 import Environment
    except ImportError as error:
        raise _missing("jinja2") from error
    template = Environment(autoescape=True).from_string(static("page.html.j2"))
    filled: str = template.render(version=version("lumos-trace"), **values)
    return filled


@cache
def static(name: str) -> str:
    """The text of a file of the folder static/."""
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """The plotly.js that the plotly package contains. LumosError where plotly is not installed."""
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise _missing("plotly")
    return (Path(package.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def json_text(value: Any) -> str:
    """JSON that can be placed inside any element of a page, because nothing in it can be read as markup."""
    import msgspec

    return msgspec.json.encode(value).decode().translate({ord(c): f"\\u{ord(c):04x}" for c in "&<>\u2028\u2029"})


def _data_url(source: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _missing(package: str) -> LumosError:
    return LumosError(f"reports need {package}, which is not installed: {install('report')}")
