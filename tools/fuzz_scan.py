"""Mutates traces and feeds them to the native scanner in random blocks.

Any result will do but a crash, a hang, or one that depends on how the bytes were cut into blocks. Meant to run against a
build with the sanitizers (see CMakeLists.txt, LUMOS_SANITIZE), where any stray read ends the process.

    python tools/fuzz_scan.py --bytes 1e8 tests/data/*.json [more traces]
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from lumos._scan import ScanError
from lumos.trace.kineto import new_scanner

#: Pieces of text with a meaning in JSON, and some without.
PIECES = [
    *b'{}[]",:\\',
    *(b'"', b"\\", b"\\u", b"\\ud83d", b"\\ude00", b"null", b"nan", b"-inf", b"true", b"1e999", b"-0.5e-7", b"18446744073709551616"),
    *(
        b"\x00",
        b"\xff",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b'"args":{',
        b'"traceEvents":[',
        b'"ph":"X"',
        b'"External id":',
        b"[" * 300,
        b" " * 70,
    ),
]
SLICE = 20_000


def mutated(text: bytes, random: Random) -> bytes:
    """A piece of `text` with a few bytes changed, left out, doubled or put in."""
    start = random.randrange(max(1, len(text) - SLICE)) if random.random() < 0.5 else 0
    out = bytearray(text[start : start + random.randrange(1, SLICE)])
    if start and random.random() < 0.7:  # keep it a list of events
        brace = out.find(b'{\n    "ph"') if b'{\n    "ph"' in out else out.find(b'{"')
        out = bytearray(b"[") + out[max(brace, 0) :]
    for _ in range(random.choice([0, 1, 1, 2, 3, 8])):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = random.randrange(256)
        elif kind == 1:
            del out[at : at + random.randrange(1, 20)]
        elif kind == 2:
            out[at:at] = out[at : at + random.randrange(1, 200)]
        else:
            piece = random.choice(PIECES)
            out[at:at] = piece if isinstance(piece, bytes) else bytes([piece])
    if random.random() < 0.5:
        out += b"}]}" if random.random() < 0.5 else b"]"
    return bytes(out)


def outcome(text: bytes, cuts: Sequence[int], repair: bool) -> Any:
    """The scanner's result for the text, fed in blocks that end at the cuts: its columns as bytes, or its error."""
    scanner = new_scanner(repair)
    bounds = [0, *cuts, len(text)]
    try:
        for a, b in pairwise(bounds):
            scanner.feed(text[a:b])
        whole = scanner.finish()
    except ScanError as error:
        return error.args
    scanned = scanner.take()
    flat = [whole, scanned.header, scanned.counts, scanned.repairs]
    rows = (scanned.start, scanned.duration, scanned.name, scanned.lane, scanned.correlation, scanned.external_id, scanned.class_)
    flat += [column.tobytes() for column in rows]
    flat += [part.tobytes() for texts in (scanned.strings, scanned.lanes, scanned.classes) for part in (texts.text, texts.offsets)]
    return [*flat, *((c.rows.tobytes(), c.values.tobytes(), c.unreadable, c.overflow) for c in scanned.columns)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--bytes", type=float, default=1e7, help="mutated bytes to feed (each text is read four times)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in (path.read_bytes() for path in options.traces)]
    random = Random(options.seed)
    fed, began, shown = 0, time.monotonic(), time.monotonic()
    while fed < options.bytes:
        text = mutated(random.choice(texts), random)
        for repair in (False, True):
            cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.choice([1, 3, 40])))
            if outcome(text, [], repair) != outcome(text, cuts, repair):
                failing = Path("fuzz-failure.json")
                failing.write_bytes(text)
                print(f"cuts {cuts} (repair {repair}) change the result of {failing}", file=sys.stderr)
                return 1
            fed += 2 * len(text)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{fed / 1e6:.0f} MB in {shown - began:.0f} s", file=sys.stderr)
    print(f"{fed} mutated bytes in {time.monotonic() - began:.0f} s: no crash, no dependence on blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
