"""Sets written by hand in the manner of other producers: each is read, keeps every rule, and ends when it should."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chakra.conftest import write_nodes

import lumos
from lumos.chakra.checks import check
from lumos.cli import main
from lumos.errors import LumosError
from lumos.simulation import simulate
from lumos.trace.chakra.et import stream
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import encode_metadata, encode_node

#: One byte takes 1 ns over a hop without latency; chunks of a collective go one after the other.
NETWORK = f"topology: [ FullyConnected ]\nnpus_count: [ 2 ]\nbandwidth: [ {1e9 / 2**30!r} ]\nlatency: [ 0 ]\n"
RING = {f"{kind}-implementation": ["ring"] for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")}
SYSTEM = {"endpoint-delay": 10, "preferred-dataset-splits": 1, "local-mem-bw": 1, **RING}


def ends(folder: Path) -> list[int]:
    """When each rank ends, ns."""
    job = lumos.build(lumos.read(folder))
    end = simulate(job).end
    return [max(int(end[i]) for i, p in enumerate(job.processor) if job.processors[p].rank == rank) for rank in job.ranks]


def beside(folder: Path, network: str, system: str, **changes: object) -> None:
    (folder / network).write_text(NETWORK)
    (folder / system).write_text(json.dumps({**SYSTEM, **changes}))


def nodes_of(folder: Path, rank: int) -> list[ChakraNode]:
    return list(stream(folder / f"job.{rank}.et")[1])


def test_a_set_of_roofline_nodes_with_empty_attributes_and_integers_for_booleans(tmp_path: Path) -> None:
    """STAGE's manner: no durations, `is_cpu_op` as int32, outputs named without a value, groups in workload.json, no version.

    1 TFLOP/s and 1 GB/s: 2,000 operations on 100 bytes take 100 ns. All 40 bytes go to the other rank, 10 + 40 + 10 ns.
    """
    beside(tmp_path, "analytical.yml", "system.json", **{"roofline-enabled": 1, "peak-perf": 1})
    (tmp_path / "workload.json").write_text('{"1": [0, 1], "2": [0]}')
    compute = ChakraNode(
        3,
        "x@0_COMP",
        attrs=(Attribute("outputs", "", ""), Attribute("num_ops", "int64", 2000), Attribute("tensor_size", "uint64", 100)),
    )
    collective = ChakraNode(
        5,
        "x@1_COMM",
        NodeType.COLL,
        data_deps=(3,),
        attrs=(
            Attribute("is_cpu_op", "int32", 0),
            Attribute("comm_type", "int64", 2),
            Attribute("comm_size", "uint64", 40),
            Attribute("pg_name", "string", "1"),
        ),
    )
    metadata = Metadata("", (Attribute("schema", "string", "symbolic_tensor_network"),))
    for rank in range(2):
        messages = [_unversioned(metadata), encode_node(compute), encode_node(collective)]
        (tmp_path / f"workload.{rank}.et").write_bytes(b"".join(map(frame, messages)))
    assert check(tmp_path).violations == ()
    assert ends(tmp_path) == [160, 160]
    lumos.chakra.import_(tmp_path, output=tmp_path / "again")
    assert nodes_of(tmp_path / "again", 1) == [compute, collective]  # with all they say
    assert lumos.chakra.synthesize(tmp_path, output=tmp_path / "new").source_step_time_ns == (160,)  # played first
    assert [sum(n.value("num_ops") or 0 for n in nodes_of(tmp_path / "new", r)) for r in range(2)] == pytest.approx([2000] * 2, rel=0.02)
    beside(tmp_path / "new", "net.yml", "sys.json", **{"roofline-enabled": 1, "peak-perf": 1, "local-mem-bw": 2})
    assert simulate(lumos.chakra.priced(tmp_path / "new", tmp_path / "new" / "net.yml")).end.max() == pytest.approx(50 + 60, abs=3)
    write_nodes(tmp_path / "workload.0.et", [replace(compute, duration_micros=5, attrs=(*compute.attrs, Attribute("num_ops", "int64", 0)))])
    assert "roofline" in {violation.rule for violation in check(tmp_path).violations}  # it would never end


def _unversioned(metadata: Metadata) -> bytes:
    """The first message without a version."""
    return encode_metadata(metadata)[2 + len("0.0.4") :]


def test_json_sets_of_protobuf_and_by_hand(tmp_path: Path) -> None:
    node = {"id": "1", "type": "COMP_NODE", "durationMicros": "3", "attr": [{"name": "is_cpu_op", "int32Val": 0}, {"name": "outputs"}]}
    forms = {
        "protobuf": '{"version": "0.0.4"}\n' + json.dumps(node),
        "hand": json.dumps({"workload_graph": [{"Id": 1, "Name": "k", "NodeType": 4, "runtime": 3, "is_cpu_op": False}]}),
    }
    for name, text in forms.items():
        folder = tmp_path / name
        folder.mkdir()
        for rank in range(2):
            (folder / f"job.{rank}.json").write_text(text)
        assert ends(folder) == [3000, 3000]
        assert not any(d.code == "file-left-out" for d in lumos.read(folder).diagnostics)


def test_nodes_of_a_newer_schema_take_their_time_and_keep_what_they_say(tmp_path: Path) -> None:
    node = {"id": 1, "type": "STORAGE_NODE", "durationMicros": 3, "storage": {"level": "STORAGE_LEVEL_FS"}, "attr": [], "stream": 4}
    (tmp_path / "job.0.json").write_text('{"version": "1.0.0"}\n' + json.dumps(node))
    assert lumos.chakra.import_(tmp_path, output=tmp_path / "again").time.step_time_ns == 3000
    again = nodes_of(tmp_path / "again", 0)[0]
    assert (again.type, again.value("storage"), again.value("stream")) == (NodeType.STORAGE, '{"level": "STORAGE_LEVEL_FS"}', 4)


def recorded(folder: Path) -> None:
    """Two ranks that compute for 5 us, exchange 1,000 bytes in an all-gather that lasts 9 us, and compute for 2 us."""
    attrs = (
        Attribute("is_cpu_op", "bool", False),
        Attribute("comm_type", "int64", 2),
        Attribute("comm_size", "int64", 1000),
        Attribute("stream", "int64", 1),
    )
    nodes = [
        ChakraNode(1, "a", start_time_micros=1, duration_micros=5),
        ChakraNode(2, "c", NodeType.COLL, data_deps=(1,), start_time_micros=6, duration_micros=9, attrs=attrs),
        ChakraNode(3, "b", data_deps=(2,), start_time_micros=15, duration_micros=2),
    ]
    for rank in range(2):
        write_nodes(folder / f"job.{rank}.et", nodes)


def test_recorded_times_against_the_prices_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The all-gather costs 10 + 1000 + 10 ns instead of 9 us; what was measured stays."""
    folder = tmp_path / "set"
    folder.mkdir()
    recorded(folder)
    beside(tmp_path, "fast.yml", "system.json")
    job = lumos.chakra.priced(folder, tmp_path / "fast.yml")
    assert simulate(job).end.max() - simulate(job).start.min() == 5000 + 1020 + 2000
    assert job.measured_end.max() - job.measured_start.min() == 16_000
    assert [d.code for d in job.diagnostics] == ["priced"]
    monkeypatch.setattr(sys, "argv", ["lumos", "replay", str(folder), "--network", str(tmp_path / "fast.yml"), "--json"])
    with pytest.raises(SystemExit):
        main()
    figures = json.loads(capfd.readouterr().out)
    assert (figures["step_time_ns"], figures["replayed_step_time_ns"]) == (16_000, 8020)


def test_only_a_set_is_priced_and_only_on_a_network(tmp_path: Path, stages: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "name": "aten::a", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}')
    with pytest.raises(LumosError, match="only a Chakra set is priced"):
        lumos.chakra.priced(trace, stages / "net.yml")
    with pytest.raises(LumosError, match="no such file"):
        lumos.chakra.priced(stages, tmp_path / "absent.yml")
    with pytest.raises(LumosError, match="it lacks 'topology'"):
        lumos.chakra.priced(stages, stages / "sys.json")


def test_broadcasts_and_custom_algorithms_are_run_by_the_simulator_and_warned_of(tmp_path: Path) -> None:
    """Two broadcasts that the ranks issue in different orders wait for nobody; an all-reduce by nodes of its own has an algorithm."""
    beside(tmp_path, "net.yml", "sys.json")
    custom = {key: value for key, value in SYSTEM.items() if key != "all-reduce-implementation"}
    (tmp_path / "sys.json").write_text(json.dumps(custom | {"all-reduce-implementation-custom": ["allreduce_ring"]}))

    def collective(number: int, kind: int, size: int, *after: int) -> ChakraNode:
        values = (("is_cpu_op", "bool", False), ("comm_type", "int64", kind), ("comm_size", "int64", size))
        return ChakraNode(
            number, f"c{number}", NodeType.COLL, data_deps=after, duration_micros=1, attrs=tuple(Attribute(*v) for v in values)
        )

    for rank in range(2):
        first, second = ((1, 64), (2, 32))[:: 1 - 2 * rank]
        nodes = [collective(first[0], 5, first[1]), collective(second[0], 5, second[1], first[0]), collective(3, 0, 64, 1, 2)]
        write_nodes(tmp_path / f"job.{rank}.et", nodes)
    checked = check(tmp_path)
    assert checked.violations == ()
    assert [warning.split(":")[1][:25] for warning in checked.warnings] == [" all-reduce-implementatio", " a broadcast takes its ow"]
