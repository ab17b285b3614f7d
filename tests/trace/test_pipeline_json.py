"""Passes by pipeline rank: what a list becomes, and a clear message for each thing that can be wrong."""

import json

import pytest

from lumos.errors import TraceError
from lumos.trace import read
from lumos.trace.operations import recorded_plan
from lumos.trace.table import Category


@pytest.fixture
def folder(operation_jobs, tmp_path):
    return lambda **shape: operation_jobs.write_passes(tmp_path, **shape)


def change(folder, edit, rank=0):
    """Edit iteration 1 of a rank's file in place."""
    path = folder / f"pp_rank_{rank}.json"
    document = json.loads(path.read_text())
    edit(document["1"])
    path.write_text(json.dumps(document))
    return path


def test_lists_become_passes_with_their_microbatch(folder):
    job = read(folder(iterations=("1", "2")))
    assert job.ranks == (0, 1) and job.diagnostics == ()
    trace = job.traces[0]
    rows = (trace.category == Category.OPERATOR).nonzero()[0]
    found = [(trace.strings[trace.name[i]], int(trace.start[i]), int(trace.duration[i])) for i in rows[:4]]
    assert found == [
        ("forward-compute", 0, 10_000_000),
        ("forward-compute", 11_000_000, 10_000_000),
        ("backward-compute", 42_000_000, 20_000_000),
        ("backward-compute", 73_000_000, 20_000_000),
    ]
    assert trace.dense("microbatch")[rows].tolist() == [0, 1, 0, 1] * 2
    assert (trace.rank_source, recorded_plan(trace).stages) == ("file name", 2)
    assert int((trace.category == Category.ANNOTATION).sum()) == 2


def test_files_may_be_named_one_by_one(folder):
    assert read(*sorted(folder().iterdir())).ranks == (0, 1)


def test_interleaved_lists_say_microbatch_and_chunk(folder):
    folder(vp_size=2)
    lists = {f"{p}_{key}": values for p in ("fwd", "bwd") for key, values in (("minibatch", [1, 1]), ("chunk", [0, 1]))}
    trace = read(change(folder(vp_size=2), lambda iteration: iteration.update(lists))).traces[0]
    rows = trace.category == Category.OPERATOR
    assert trace.dense("microbatch")[rows].tolist() == [0] * 4 and trace.dense("chunk")[rows].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda i: i.pop("bwd_end"), "iteration 1: no list bwd_end"),
        (lambda i: i["fwd_end"].pop(), "fwd_start has 2 entries, fwd_end 1"),
        (lambda i: i.update(fwd_end=[-1.0, 21.0]), r"fwd_end\[0\] is -1.0"),
        (lambda i: i.update(fwd_end=["10", 21.0]), r"fwd_end\[0\] is '10'"),
        (lambda i: i.update(fwd_start=[12.0, 11.0]), "fwd number 0 ends before it starts"),
        (lambda i: i.update(wgrad_start=[1.0]), "weight gradients"),
        (lambda i: i.update(fwd_minibatch=[1]), "fwd_minibatch must list 2 whole numbers"),
        (lambda i: i.update(fwd_chunk=[0, 1]), "fwd_chunk has 1, but vp_size is 1"),
        (lambda i: i.update(fwd_chunk=[0, 2**70]), r"fwd_chunk must list 2 whole numbers below 2\^31"),
    ],
)
def test_wrong_lists(folder, edit, message):
    path = change(folder(), edit)
    with pytest.raises(TraceError, match=rf"pp_rank_0\.json: iteration 1.*{message}|pp_rank_0\.json: {message}"):
        read(path)


def test_interleaving_without_chunks_follows_from_the_schedule(folder):
    """Two stages, two chunks, two microbatches: chunk 0 for both microbatches, then chunk 1; backward passes begin with chunk 1."""

    def four_passes(iteration):
        for prefix, begin in (("fwd", 0.0), ("bwd", 100.0)):
            iteration[f"{prefix}_start"] = [begin + 10 * k for k in range(4)]
            iteration[f"{prefix}_end"] = [begin + 10 * k + 9 for k in range(4)]

    trace = read(change(folder(vp_size=2), four_passes)).traces[0]
    assert trace.args["microbatch"].values.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert trace.args["chunk"].values.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("text", ['{"1": {"total": 1.0, "fwd_start": [1.0', '{"1": {"total": 1.0, "fwd_start": [1.0]}} x'])
def test_truncated_or_damaged(folder, text):
    path = folder() / "pp_rank_1.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"pp_rank_1\.json: not complete JSON .*; copy or record it again"):
        read(path)


def test_no_config(folder):
    alone = folder()
    (alone / "config.json").unlink()
    with pytest.raises(TraceError, match=r"needs config\.json beside it"):
        read(alone)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"pp_size": 0}, "pp_size is 0; it must be a whole number from 1"),
        ({"pp_size": 1}, r"pipeline rank 1, but config\.json has pp_size 1"),
        ({"vp_size": 2}, r"2 passes \(fwd\) are no multiple of pp_size 2 times vp_size 2.*record fwd_minibatch and fwd_chunk"),
    ],
)
def test_sizes_that_do_not_fit_the_passes(folder, sizes, message):
    with pytest.raises(TraceError, match=message):
        read(folder(**sizes))


def test_the_rank_must_be_in_the_name(folder):
    path = folder() / "pp_rank_0.json"
    with pytest.raises(TraceError, match=r"must end in pp_rank_N\.json"):
        read(path.rename(path.with_name("passes.json")))


def test_files_of_two_jobs(operation_jobs, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = operation_jobs.write_passes(tmp_path / "a"), operation_jobs.write_passes(tmp_path / "b", pp_size=4)
    with pytest.raises(TraceError, match="are of different jobs"):
        read(one / "pp_rank_0.json", other / "pp_rank_1.json")


@pytest.mark.parametrize("key", ["²", "9" * 20])
def test_an_iteration_that_is_no_number_is_named(folder, key):
    path = folder() / "pp_rank_0.json"
    path.write_text(json.dumps({"1": json.loads(path.read_text())["1"], key: {}}, ensure_ascii=False))
    with pytest.raises(TraceError, match=f"iteration {key}: not an iteration"):
        read(path)
