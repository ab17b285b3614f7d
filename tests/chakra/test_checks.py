"""Every rule of ASTRA-sim: a set that satisfies all of them, and a variant that breaks each."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chakra import conftest as made

from lumos.chakra.checks import check
from lumos.errors import LumosError
from lumos.trace.chakra.protobuf import frame, read_varint
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata, NodeType
from lumos.trace.chakra.wire import encode_metadata, encode_node

Nodes = dict[int, ChakraNode]
#: Lists every rule, and what the simulator does where it is broken.
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "chakra.md").read_text()


def broken(folder: Path) -> set[str]:
    result = check(folder)
    assert result.ok == (not result.violations)
    assert all(f"\n| `{v.rule}` | " in PAGE and v.message for v in result.violations)
    return {v.rule for v in result.violations}


def test_a_good_set_keeps_every_rule(stages: Path) -> None:
    result = check(stages)
    assert (result.ok, result.ranks, result.nodes) == (True, 4, 24)


def _set(name: str, kind: str | None = None, value: Any = None, node: int = 5) -> Callable[[Nodes], None]:
    return lambda nodes: made.attribute(nodes[node], name, kind, value)


def _type(node: int, kind: int) -> Callable[[Nodes], None]:
    def change(nodes: Nodes) -> None:
        nodes[node].type = kind

    return change


def _deps(node: int, *deps: int) -> Callable[[Nodes], None]:
    def change(nodes: Nodes) -> None:
        nodes[node].data_deps = deps

    return change


CHANGES: list[tuple[str, Callable[[Nodes], Any], set[str]]] = [
    ("a dependency on an absent node", _deps(6, 99), {"absent-dependency"}),
    ("a control dependency on an absent node", lambda n: setattr(n[6], "ctrl_deps", (99,)), {"absent-dependency"}),
    ("a cycle next to a root", _deps(5, 6), {"cycle"}),
    ("a node that waits for itself", _deps(6, 6), {"cycle"}),
    ("a metadata node", _type(6, NodeType.METADATA), {"node-type"}),
    ("an invalid node", _type(6, NodeType.INVALID), {"node-type"}),
    ("a type that does not exist", _type(6, 42), {"node-type"}),
    ("memory without an expansion", _type(6, NodeType.MEM_LOAD), {"node-type"}),
    ("is_cpu_op as text", _set("is_cpu_op", "string", "false", node=6), {"attribute-type"}),
    ("a size as a double", _set("comm_size", "double", 67108864.0), {"attribute-type"}),
    ("a size as text", _set("comm_size", "string", "67108864"), {"attribute-type"}),
    ("a group as an integer", _set("pg_name", "int64", 1), {"attribute-type"}),
    ("involved_dim as one bool", _set("involved_dim", "bool", True), {"attribute-type"}),
    ("no type of collective", _set("comm_type"), {"communication-attribute"}),
    ("no size", _set("comm_size"), {"communication-attribute"}),
    ("no tag", _set("comm_tag", node=2), {"communication-attribute", "unpaired"}),
    ("no destination", _set("comm_dst", node=2), {"communication-attribute", "unpaired"}),
    ("communication on the CPU", _set("is_cpu_op", "bool", True), {"communication-on-cpu"}),
    ("a barrier", _set("comm_type", "int64", 9), {"collective-type"}),
    ("a broadcast on one rank alone", _set("comm_type", "int64", 5), {"collective-order"}),
    ("a group by name", _set("pg_name", "string", "default_pg"), {"group-name"}),
    ("a group that nobody has", _set("pg_name", "string", "7"), {"group-unknown"}),
    ("another's group", _set("pg_name", "string", "2"), {"group-member"}),
    ("a send from someone else", _set("comm_src", "int64", 1, node=2), {"peer"}),
    ("a send to nobody", _set("comm_dst", "int64", 9, node=2), {"peer", "unpaired"}),
    ("another tag", _set("comm_tag", "int64", 555, node=2), {"unpaired"}),
    ("another size of a message", _set("comm_size", "int64", 5, node=2), {"unpaired"}),
    ("another size of a collective", _set("comm_size", "int64", 5), {"collective-order"}),
    ("another kind of collective", _set("comm_type", "int64", 2), {"collective-order"}),
    ("a member that does not join", lambda n: n.pop(5) and setattr(n[6], "data_deps", (4,)), {"collective-order"}),
]


@pytest.mark.parametrize(("change", "rules"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_broken_node_is_found(stages: Path, rewrite: Any, change: Callable[[Nodes], Any], rules: set[str]) -> None:
    rewrite(stages / "job.0.et", change)
    assert broken(stages) == rules


def test_a_violation_names_file_and_node(stages: Path, rewrite: Any) -> None:
    rewrite(stages / "job.2.et", _deps(6, 99))
    (found,) = check(stages).violations
    assert (found.file, found.node) == ("job.2.et", 6)
    assert "node 99" in found.message


def test_a_repeated_id(stages: Path) -> None:
    path = stages / "job.0.et"
    path.write_bytes(path.read_bytes() + frame(encode_node(made.comp(6, 1))))
    assert broken(stages) == {"duplicate-id"}


def test_a_gzip_file(stages: Path) -> None:
    path = stages / "job.0.et"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert broken(stages) == {"packed"}


def test_a_missing_first_message(stages: Path) -> None:
    made_nodes = frame(encode_node(made.comp(1, 1)))
    (stages / "job.0.et").write_bytes(made_nodes)
    assert "metadata" in broken(stages)


def test_an_empty_first_message(stages: Path) -> None:
    path = stages / "job.0.et"
    data = path.read_bytes()
    length, at = read_varint(data, 0)
    path.write_bytes(b"\x00" + data[at + length :])
    assert broken(stages) == {"metadata"}


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_truncated_file(stages: Path, cut: int) -> None:
    path = stages / "job.0.et"
    path.write_bytes(path.read_bytes()[:-cut])
    assert "frame" in broken(stages)


def test_a_file_without_nodes(stages: Path) -> None:
    (stages / "job.0.et").write_bytes(frame(encode_metadata(Metadata())))
    assert "no-nodes" in broken(stages)


def test_a_missing_rank(stages: Path) -> None:
    (stages / "job.1.et").unlink()
    assert "rank-files" in broken(stages)


@pytest.mark.parametrize("value", [{"0": [0, 1]}, {"tp": [0, 1]}, {"1": [0, 9]}, {"1": [0, 0]}, {"1": "all"}])
def test_a_wrong_file_of_groups(stages: Path, groups: Any, value: Any) -> None:
    groups(stages, value)
    assert "groups-file" in broken(stages)


def test_a_group_of_one(stages: Path, groups: Any) -> None:
    groups(stages, {"1": [0], "2": [2, 3]})
    assert {"group-size", "group-member"} == broken(stages)


def test_roofline_mode_asks_for_operations_and_bytes(stages: Path) -> None:
    _system(stages, roofline_enabled=1)
    assert broken(stages) == {"roofline"}


def test_a_network_for_other_ranks(stages: Path) -> None:
    (stages / "net.yml").write_text("topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n")
    assert broken(stages) == {"network"}


def _system(folder: Path, **changes: object) -> None:
    system = json.loads((folder / "sys.json").read_text())
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    (folder / "sys.json").write_text(json.dumps({key: v for key, v in {**system, **changed}.items() if v is not None}))


def test_fewer_algorithms_than_dimensions_only_leave_dimensions_out(stages: Path) -> None:
    lines = "topology: [ Switch, Switch ]\nnpus_count: [ 2, 2 ]\nbandwidth: [ 50.0, 5.0 ]\nlatency: [ 500.0, 500.0 ]\n"
    (stages / "net.yml").write_text(lines)
    result = check(stages)
    assert result.ok
    assert result.warnings == ("sys.json: all-reduce-implementation has 1 entries for 2 dimensions: the others are left out",)


@pytest.mark.parametrize("names", [["ring", "ring"], ["magic"], None, "ring"])
def test_algorithms_that_the_simulator_cannot_take(stages: Path, names: object) -> None:
    _system(stages, all_reduce_implementation=names)
    assert broken(stages) == {"system"}


def test_the_files_may_have_other_names(stages: Path, tmp_path: Path) -> None:
    """Found by their content in the folder, and given by name from elsewhere."""
    for old, new in (("net.yml", "analytical.yaml"), ("sys.json", "system_layer.json"), ("groups.json", "workload.json")):
        (stages / old).rename(stages / new)
    assert broken(stages) == set()
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text('{"1": [0, 1], "2": [2, 9]}')
    result = check(stages, groups=elsewhere)
    assert {v.rule for v in result.violations} == {"groups-file", "group-unknown"}
    with pytest.raises(LumosError, match=r"absent\.json: no such file"):
        check(stages, groups=tmp_path / "absent.json")


def test_two_files_of_groups_and_neither_has_its_usual_name(stages: Path) -> None:
    (stages / "groups.json").rename(stages / "a.json")
    (stages / "b.json").write_text('{"1": [0, 1]}')
    with pytest.raises(LumosError, match=r"a\.json, b\.json could each be the set's groups\.json"):
        check(stages)


def test_attributes_without_a_value_are_a_warning_until_the_simulator_needs_them(stages: Path, rewrite: Any) -> None:
    rewrite(stages / "job.0.et", _set("outputs", "", ""))
    result = check(stages)
    assert (result.ok, result.warnings) == (True, ("1 of 4 files: attributes without a value (outputs)",))
    rewrite(stages / "job.0.et", _set("comm_size", "", ""))
    assert broken(stages) == {"attribute-type"}


def test_ranks_that_issue_two_groups_in_different_orders_hang(stages: Path, groups: Any) -> None:
    """Rank 0 issues group 1 then 2, rank 1 group 2 then 1; each waits for the other with its one communication slot."""
    groups(stages, {"1": [0, 1], "2": [0, 1]})
    for rank, order in enumerate((("1", "2"), ("2", "1"))):
        nodes = []
        for i, name in enumerate(order, 1):
            attrs = (Attribute("comm_type", "int64", 0), Attribute("comm_size", "int64", 64), Attribute("pg_name", "string", name))
            nodes.append(ChakraNode(i, "COMM_COLL_NODE_c", NodeType.COLL, attrs=attrs))
        made.write_nodes(stages / f"job.{rank}.et", nodes)
    for rank in (2, 3):
        made.write_nodes(stages / f"job.{rank}.et", [made.comp(1, 5)])
    assert broken(stages) == {"deadlock"}


def test_a_folder_without_a_set(tmp_path: Path) -> None:
    with pytest.raises(LumosError, match=r"holds no PREFIX\.RANK\.et"):
        check(tmp_path)
