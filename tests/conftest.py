"""The command line, run as a user does; and small jobs in the formats of public tools, with times in ms that can be checked by hand."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import settings
from tests import checked_builders
from tools import browser

from lumos import build, read

checked_builders.install()

# Tests run in one process a core, and so do the processes that they start: more threads would wait for each other in a busy loop.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is started in the background of a script, or by nohup, ignores these signals, and so do the processes that it starts.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

# Examples have no deadline, because their time depends on what else the machine does. In CI the examples are always the same.
settings.register_profile("quick", deadline=None, max_examples=50, derandomize="CI" in os.environ, print_blob=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=400)
#: A dozen properties of random graphs then see more than 10^5 of them.
settings.register_profile("fuzz", settings.get_profile("quick"), max_examples=10_000, derandomize=False)
settings.load_profile("quick")


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def lumos(monkeypatch, capfd):
    """Run `lumos ARGUMENTS…`."""

    def run(*arguments):
        from lumos.cli import fitting, main

        monkeypatch.setattr(fitting, "_error_width", lambda: None)  # messages as a pipe gets them, each in one line
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["lumos", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Done(left.value.code or 0, out, err)

    return run

#: Two stages, two microbatches, 1F1B: passes of 10 and 20 ms, transfers of 1 ms; the step takes 93 ms.
#: (stage, operation, sequence, start, end)
PIPELINE = (
    (0, "forward-compute", 0, 0, 10),
    (0, "forward-send", 0, 10, 11),
    (0, "forward-compute", 1, 11, 21),
    (0, "forward-send", 1, 21, 42),  # with the receive: one call, waiting for the other stage until 41
    (0, "backward-recv", 0, 21, 42),
    (0, "backward-compute", 0, 42, 62),
    (0, "backward-recv", 1, 62, 73),
    (0, "backward-compute", 1, 73, 93),
    (1, "forward-recv", 0, 0, 11),
    (1, "forward-compute", 0, 11, 21),
    (1, "backward-compute", 0, 21, 41),
    (1, "backward-send", 0, 41, 42),
    (1, "forward-recv", 1, 41, 42),
    (1, "forward-compute", 1, 42, 52),
    (1, "backward-compute", 1, 52, 72),
    (1, "backward-send", 1, 72, 73),
)


class Operation(NamedTuple):
    """One row of an operation table; times in ms from the step's origin."""

    rank: int
    stage: int
    dp: int
    step: int
    name: str
    sequence: int
    start: float
    end: float


def pipeline(steps=(0,)) -> list[Operation]:
    """PIPELINE as an operation table."""
    return [Operation(stage, stage, 0, step, name, k, start, end) for step in steps for stage, name, k, start, end in PIPELINE]


def write_table(path: Path, operations: list[Operation], **replaced) -> Path:
    """A Parquet table. replaced: columns that replace the right ones (None leaves a column out)."""
    import pyarrow
    from pyarrow import parquet

    passes = ("forward-compute", "backward-compute")
    columns = {
        "rank": pyarrow.array([o.rank for o in operations], pyarrow.int16()),
        "dp_rank": pyarrow.array([o.dp for o in operations], pyarrow.int8()),
        "stage": pyarrow.array([o.stage for o in operations], pyarrow.int8()),
        "step": pyarrow.array([o.step for o in operations], pyarrow.int64()),
        "optype": pyarrow.array([o.name for o in operations]).dictionary_encode(),
        "start_ts": pyarrow.array([o.start / 1e3 for o in operations], pyarrow.float64()),
        "duration": pyarrow.array([(o.end - o.start) / 1e3 for o in operations], pyarrow.float64()),
        "seq_id": pyarrow.array([o.sequence for o in operations], pyarrow.int32()),
        "mc": pyarrow.array([0 if o.name in passes else -1 for o in operations], pyarrow.int8()),
        "mb_id": pyarrow.array([o.sequence if o.name in passes else -1 for o in operations], pyarrow.int8()),
    }
    columns = {key: values for key, values in {**columns, **replaced}.items() if values is not None}
    parquet.write_table(pyarrow.table(columns), path)
    return path


def write_passes(folder: Path, iterations=("1",), stages=2, **config) -> Path:
    """The passes of PIPELINE as one file for each pipeline rank, with config.json."""
    for stage in range(stages):
        lists = {}
        for prefix, name in (("fwd", "forward-compute"), ("bwd", "backward-compute")):
            rows = [row for row in PIPELINE if row[0] == stage and row[1] == name]
            lists[f"{prefix}_start"] = [float(row[3]) for row in rows]
            lists[f"{prefix}_end"] = [float(row[4]) for row in rows]
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps({i: {"total": 93.0, "memory": 1.0, **lists} for i in iterations}))
    sizes = {"world_size": 2, "dp_size": 1, "tp_size": 1, "ep_size": 1, "pp_size": 2, "vp_size": 1, "num_mbs": 2, "train_iters": 1}
    (folder / "config.json").write_text(json.dumps({**sizes, **config}))
    return folder


@pytest.fixture
def operation_jobs():
    """How to write small operation-level jobs: Operation, pipeline(), write_table(), write_passes()."""
    return SimpleNamespace(Operation=Operation, pipeline=pipeline, write_table=write_table, write_passes=write_passes)


@pytest.fixture
def page():
    """A page in a headless browser."""
    if browser.find() is None:
        pytest.skip(f"no headless browser: none of {', '.join(browser.NAMES)} is installed")
    with browser.browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def example():
    """The recorded job of `examples/gpt-2rank-cpu`, and its graph."""
    job = read(Path(__file__).parents[1] / "examples" / "gpt-2rank-cpu")
    return job, build(job)
