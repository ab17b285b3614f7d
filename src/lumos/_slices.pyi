from lumos.trace.table import Int8, Int32, Int64

class Slices:
    """Pieces of threads that follow one another: int32 event, the index of the innermost event running or -1 between events of one
    lane; int32 lane; int64 start and end."""

    @property
    def event(self) -> Int32: ...
    @property
    def lane(self) -> Int32: ...
    @property
    def start(self) -> Int64: ...
    @property
    def end(self) -> Int64: ...

def slices(lane: Int32, start: Int64, end: Int64, keep: Int8) -> Slices:
    """Cut nested events, sorted by (lane, start, -end), into slices. ValueError where the columns differ in length.

    Slices without time are left out, except of events with `keep` set, which always get at least one. Where nesting overlaps, the
    earlier event keeps the time until the later one starts.
    """

def callers(lane: Int32, start: Int64, end: Int64, encloses: Int8, most: int) -> tuple[Int64, int]:
    """For each event, sorted as for `slices`, the innermost one before it with `encloses` set that is open when it begins, -1 for none; and
    the first event with which more than `most` are open, -1 for none: nothing is found after it. ValueError as in `slices`."""
