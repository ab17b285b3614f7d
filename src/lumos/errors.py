"""The errors that Lumos raises on purpose.

Every message says which file (or argument), where in it, what is wrong and what to do about it, because a user
reads the message alone: the command line prints it without a traceback and exits with status 1.
"""

from typing import NamedTuple

#: The exit status that a shell gives to a command that SIGINT ended.
INTERRUPTED = 130


class Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's told the program to end, which then puts in order what it began. status: what a shell gives for it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class LumosError(Exception):
    """An input cannot give the answer asked for. The message is complete: file, place, reason, remedy."""


class TraceError(LumosError):
    """A file cannot be read as a trace (absent, truncated, malformed, hostile, of an unknown format)."""


class GraphError(LumosError):
    """A dependency graph has no schedule: a cycle, or a rendezvous that never completes. tasks: on the cycle."""

    tasks: tuple[int, ...] = ()


class UnknownDeviceError(LumosError):
    """A trace does not say on which device it was recorded, or names one that Lumos does not know; the user can say it."""


class Meaning(NamedTuple):
    """One meaning of a question about a recording. name: what an option takes for it. value: what was recorded of it. operators: some that
    show it."""

    name: str
    value: int
    operators: tuple[str, ...]


class QuestionError(LumosError):
    """A recording can be read in several ways, and the user can say which is meant. key: the setting whose recorded value is in question.
    candidates: the ways."""

    def __init__(self, message: str, key: str, candidates: tuple[Meaning, ...]) -> None:
        super().__init__(message)
        self.key, self.candidates = key, candidates


class InterruptedSearchError(LumosError):
    """The user interrupted a search before any plan was timed; the command line exits with status 130."""


class UsageError(LumosError):
    """An argument is wrong in itself (unknown name, impossible combination); the command line exits with status 2."""
