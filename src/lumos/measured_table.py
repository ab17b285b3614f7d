"""Tables of measurements: CSV files with a header, and the numbers in their fields.

A field is text until its column says what it is. What is no number, or none that a measurement can be, is refused here with the name of
the field, so that whatever computes with the rows has finite numbers of a plausible size.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lumos.errors import LumosError

if TYPE_CHECKING:
    import os

#: Every count, size, rate and time of a table is below it, so that products of several stay finite.
LARGEST = 1e18

#: 1,048,576
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")

Row = dict[str, str]


def read_rows(path: str | os.PathLike[str], complete: bool = False) -> tuple[tuple[str, ...], list[Row]]:
    """The names of the columns, and the rows. The fields that a short row lacks are "", and those beyond the header are left out.

    complete: a row with fewer fields than the header is an error. Raises LumosError for it, and for a file that cannot be read, that is
    not UTF-8, that is no CSV, or that has no two columns.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            if len(columns) < 2:
                what = f"line 1 has one column, {_shown(columns[0])}" if columns else "the table is empty"
                raise LumosError(f"{path}: {what}; name the columns in the first line, with commas between them")
            rows = []
            for row in reader:
                if complete and None in row.values():
                    raise LumosError(f"{path}: line {reader.line_num} has fewer fields than the header; complete it")
                rows.append({key: row[key] or "" for key in columns})
            return columns, rows
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); give a CSV table of measurements") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise LumosError(f"{path}: is not a CSV table ({error}); write it again as CSV in UTF-8") from error


def table_number(text: str, name: str) -> float:
    """A field as a number from 0 up to LARGEST; commas may separate its thousands. Raises LumosError that names the field."""
    plain = text.strip()
    try:
        value = float(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
    except ValueError:
        raise LumosError(f"{name} = {_shown(text)} is not a number") from None
    if not 0 <= value < LARGEST:
        raise LumosError(f"{name} = {_shown(text)} must be from 0 to {LARGEST:g}")
    return value


def positive(text: str, name: str) -> float:
    """A field as a number above 0 and below LARGEST. Raises LumosError that names the field."""
    if text.strip().startswith("-") or not (value := table_number(text, name)):
        raise LumosError(f"{name} = {_shown(text)} must be positive")
    return value


def whole_number(text: str, name: str) -> int:
    """A field as a whole number from 0 up to LARGEST. Raises LumosError that names the field."""
    value = table_number(text, name)
    if not value.is_integer():
        raise LumosError(f"{name} = {_shown(text)} is not a whole number")
    return int(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
