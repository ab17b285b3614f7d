"""The memory at the recorded peak by role, from drawn allocations."""

import json

from tests.segment.test_readings import ask, recording

from lumos.changes.memory import at_peak
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade

LINEAR = ("aten::linear", [[4096, 256], [1024, 256], [1024]], -1)
#: What was there before the recording began, and what one linear layer makes, bytes.
OLDER, MADE = 3_000_000, 4 * 4096 * 1024


def allocations(folder, *blocks):
    """A linear layer, with allocations (us after it began, address, bytes) while it runs."""
    recording(folder, LINEAR)
    path = folder / "rank0.json"
    rows, total = json.loads(path.read_text()), OLDER
    begin = next(event["ts"] for event in rows["traceEvents"] if event["cat"] == "cpu_op")
    for after, address, count in blocks:
        total += count
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": count, "Total Allocated": total, "Total Reserved": 2 * total}
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 0, "tid": 1, "ts": begin + after, "args": args}
        rows["traceEvents"].append(event)
    path.write_text(json.dumps(rows))
    job = read(str(path))
    return job, build(job)


BLOCKS = (1, 10, 512), (2, 10, -512), (3, 20, MADE), (15, 20, -MADE), (16, 30, 512)


def test_what_lives_at_the_peak_is_what_came_and_did_not_go(tmp_path):
    job, _ = allocations(tmp_path, *BLOCKS)
    peak = at_peak(job.traces[0])
    assert peak is not None and peak.total == OLDER + MADE
    assert peak.bytes.tolist() == [MADE]


def test_a_block_grows_with_what_its_operator_makes_and_the_answer_says_limited(tmp_path):
    found = allocations(tmp_path, *BLOCKS)
    answer = ask(found, "micro_batch=12288")
    base, changed = answer.base.memory, answer.outcome.memory
    assert (base.peak_bytes, base.activations_bytes, base.grade) == (OLDER + MADE, MADE, Grade.LIMITED)
    assert (changed.peak_bytes, changed.activations_bytes) == (OLDER + 3 * MADE, 3 * MADE)
    assert base.parameters_bytes == changed.parameters_bytes == OLDER
    assert ask(found, "micro_batch=4096").outcome.memory == base


def test_what_is_allocated_before_any_operator_was_there_before(tmp_path):
    answer = ask(allocations(tmp_path, (-2, 40, 512), *BLOCKS), "micro_batch=12288")
    memory = answer.outcome.memory
    assert (memory.parameters_bytes, memory.activations_bytes) == (OLDER + 512, 3 * MADE)


def test_another_type_leaves_the_memory_unknown_and_the_base_said(tmp_path):
    answer = ask(allocations(tmp_path, *BLOCKS), "precision=bf16")
    assert answer.base.memory.peak_bytes == OLDER + MADE and answer.outcome.memory.peak_bytes is None


def test_a_recording_without_allocations_has_no_memory(tmp_path):
    assert ask(recording(tmp_path, LINEAR), "micro_batch=8192").base.memory.peak_bytes is None


def test_the_text_says_the_peak_beside_the_step(tmp_path):
    from rich.console import Console

    from lumos.reports.text.whatif import print_answer

    console = Console(width=120, record=True)
    print_answer(console, ask(allocations(tmp_path, *BLOCKS), "micro_batch=8192"))
    line = next(line for line in console.export_text().splitlines() if "peak memory (limited)" in line)
    assert line.split()[3:] == ["19.78", "MB", "36.55", "MB", "+16.78", "MB"]
