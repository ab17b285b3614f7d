"""Write a report as one HTML file that needs no network, and encode what is in it.

The file contains the document (`reports.page.document`) as JSON, the browser's modules, the style sheet, and plotly.js
(`static/plotly/`: the bundle of charts with two axes), compressed. Text from traces is part of the JSON, and the modules show it as
text. In the file, `<`, `>` and `&` of the JSON are written as escapes, so that no name can end its element. A content security policy
allows only the page's own scripts, by their digests, and no connection.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.output_files import new_file
from lumos.result import as_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_IMPORTED = re.compile(r'^import .* from "lumos/(.+)";$', re.MULTILINE)


def write_report(path: str, document: Mapping[str, Any]) -> None:
    """Write the report of a document to `path`. LumosError where it cannot be written."""
    _write(path, report_page(document))


def report_page(document: Mapping[str, Any]) -> str:
    """The text of the HTML file that shows a document."""
    return _offline_page("report", document["headline"], "report_page.js", json_text(document))


def write_figure_page(path: str, title: str, figure: Mapping[str, Any]) -> None:
    """Write one plotly figure ({"data", "layout"}, as values that JSON can hold) as a page that looks like a report.

    LumosError where it cannot be written.
    """
    _write(path, _offline_page("figure", title, "figure_page.js", json_text(figure)))


def _write(path: str, text: str) -> None:
    with new_file(path) as file:
        file.write(text.encode())


def _offline_page(kind: str, headline: str, start: str, data: str) -> str:
    """A page that contains everything it needs."""
    entry = static(start)
    modules = {f"lumos/{name}": base64.b64encode(static(name).encode()).decode() for name in imported_modules(start)}
    imports = json_text({"imports": {name: f"data:text/javascript;base64,{source}" for name, source in modules.items()}})
    hashed = (hashlib.sha256(text.encode()).digest() for text in (imports, entry, plotly_source()))
    digests = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashed)
    policy = (
        f"default-src 'none'; script-src {digests} data:; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return page(
        kind,
        headline,
        imports,
        entry,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        style=f"<style>{static('page.css')}</style>",
        data=_element("data", "application/json", data) + _element("plotly", "text/plain", _packed_plotly()),
    )


def page(
    kind: str,
    headline: str,
    imports: str,
    entry: str,
    *,
    title: str = "",
    policy: str = "",
    style: str = '<link rel="stylesheet" href="static/page.css">',
    data: str = "",
) -> str:
    """The HTML of a page.

    kind, headline, title: texts; the title is the headline where it is not named. imports: its import map, and entry: the module that
    starts it. policy, style, data: elements of HTML, in which every text is escaped already.
    """
    from importlib.metadata import version

    texts = {"kind": kind, "headline": headline, "title": title or headline, "version": version("lumos-trace")}
    escaped = {name: escape(text) for name, text in texts.items()}
    return Template(static("page.html")).substitute(escaped, imports=imports, entry=entry, policy=policy, style=style, data=data)


def imported_modules(start: str) -> list[str]:
    """The modules that a module of the folder static/ imports as "lumos/NAME", and those that they import."""
    modules: dict[str, None] = {}
    left = _IMPORTED.findall(static(start))
    while left:
        name = left.pop()
        if name not in modules:
            modules[name] = None
            left += _IMPORTED.findall(static(name))
    return sorted(modules)


def _element(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>\n'


@cache
def static(name: str) -> str:
    """The text of a file of the folder static/."""
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """The plotly.js that draws the charts."""
    return static("plotly/plotly-cartesian.min.js")


@cache
def _packed_plotly() -> str:
    return base64.b64encode(gzip.compress(plotly_source().encode(), 9, mtime=0)).decode()


def json_text(value: Any) -> str:
    """JSON that can be placed inside any element of a page, because nothing in it can be read as markup."""
    return as_json(value).decode().translate({ord(c): f"\\u{ord(c):04x}" for c in "&<>\u2028\u2029"})


#: The types of a column, those with fewer bytes first: numbers that a browser's typed arrays can hold.
TYPES = ("uint8", "uint16", "uint32", "int32", "float64")


def column(values: NDArray[Any]) -> dict[str, Any]:
    """Whole numbers of less than 2^53 in a form that JSON can hold and static/columns.js decodes: in the first of TYPES that holds them
    all, as base64 of gzip of their bytes, little-endian. All lowest bytes come first, all highest last, since these are mostly alike."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    dtype = next(name for name in TYPES if name == "float64" or np.iinfo(name).min <= low <= high <= np.iinfo(name).max)
    wide = np.dtype(dtype).newbyteorder("<")
    raw = values.astype(wide).view(np.uint8).reshape(len(values), wide.itemsize).T.tobytes()
    return {"dtype": dtype, "length": len(values), "gzip": base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()}


def differences(values: NDArray[np.int64]) -> dict[str, Any]:
    """The same as the first number and, for every other, what is added to the one before: fewer bytes where these are near each other."""
    return column(np.diff(values, prepend=0)) | {"differences": True}
