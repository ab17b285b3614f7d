"""Text workloads of ASTRA-sim 1.0: who meets whom, what waits for what, and what is said of a broken file. Times are worked out by hand.

A byte takes 1 ns. An all-reduce of 64 bytes on two ranks: 10 + 2 × (32 + 10) + 3 × 32 = 190 ns; an all-gather of 40: 10 + 40 + 10.
"""

from pathlib import Path

import pytest
from tests.chakra.test_other_producers import NETWORK, beside, ends

import lumos
from lumos.errors import TraceError

REDUCED, GATHERED = 190, 60
FOUR = NETWORK.replace("[ FullyConnected ]", "[ Switch, Switch ]").replace("[ 2 ]", "[ 2, 2 ]").replace("[ 0 ]", "[ 0, 0 ]")
FOUR = FOUR.replace("bandwidth: [ ", "bandwidth: [ 0.9313225746154785, ")


def workload(folder: Path, *lines: str, network: str | None = None) -> Path:
    beside(folder, "net.yml", "sys.json")
    if network is not None:
        (folder / "net.yml").write_text(network)
    (folder / "layers.txt").write_text("\n".join((lines[0], str(len(lines) - 1), *lines[1:])))
    return folder


def test_data_parallelism_reduces_weight_gradients_beside_what_follows(tmp_path: Path) -> None:
    workload(tmp_path, "DATA", "a -1 3 NONE 0 5 NONE 0 2 ALLREDUCE 64 7", "b -1 4 NONE 0 6 NONE 0 8 ALLREDUCE 64 0")
    assert ends(tmp_path) == [15 + 2 * REDUCED + 7] * 2  # b's reduction takes the link first; then that of a, and its delay
    assert "a_input_gradient" not in lumos.build(lumos.read(tmp_path)).names  # nobody needs those of the inputs


def test_model_parallelism_waits_for_outputs_and_for_input_gradients_but_not_with_the_weights(tmp_path: Path) -> None:
    lines = "a -1 3 ALLGATHER 40 5 NONE 0 2 NONE 0 0", "b -1 4 NONE 0 6 ALLGATHER 40 8 ALLREDUCE 64 0"
    workload(tmp_path, "MODEL", *lines)
    assert ends(tmp_path) == [3 + GATHERED + 4 + 6 + GATHERED + 5 + 2] * 2  # the 8 of the weights beside the second gather
    assert "1 collectives are of passes" in lumos.read(tmp_path).traces[0].diagnostics[0].message
    workload(tmp_path, "DISTRIBUTED_INFERENCE", *lines)
    assert ends(tmp_path) == [3 + GATHERED + 4] * 2


def test_the_embedding_of_a_recommender_is_exchanged_beside_the_bottom_layers(tmp_path: Path) -> None:
    """40 bytes, 20 of them to the other: 10 + 20 + 10 ns from 3 on, so the top starts at 43; and back beside the bottom's 3 and 2."""
    rows = ["bottom -1 4 NONE 0 2 NONE 0 3 NONE 0 0", "top -1 4 NONE 0 2 NONE 0 3 NONE 0 0"]
    workload(tmp_path, "HYBRID_DLRM 1", "embedding -1 3 ALLTOALL 40 9 ALLTOALL 40 3 NONE 0 0", *rows)
    assert ends(tmp_path) == [43 + 4 + 3 + 2 + 40 + 3] * 2


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "a"], "line 1: HYBRID_TRANSFORMER_FWD_IN_BCKWD is not read; known are MICRO"),
        (["HYBRID_TRANSFORMER", "a"], "line 1: HYBRID_TRANSFORMER needs a number behind 'model_parallel_NPU_group:'; write it"),
        (["HYBRID_TRANSFORMER model_parallel_NPU_group: 3", "a"], "line 1: groups of 3 do not divide the 2 ranks"),
        (["HYBRID_DLRM 0", "a"], "line 1: no layer follows number 0, the last bottom layer; give its place"),
        (["DATA", "a -1 3 NONE 0"], "line 3: 5 fields instead of 12 (a name"),
        (["HYBRID_CUSTOMIZED", "a -1 3 NONE 0 5 NONE 0 2 NONE 0 7 MANY"], "line 3: MANY is no policy of a layer; write one of MICRO"),
        (["DATA", "a -1 3 NONE 0 5 NONE 0 2 ALLREDUCE 1.5 7"], "line 3: '1.5' is no whole number of ns or bytes below 2^52; write one"),
        (["DATA", "a -1 3 NONE 0 5 NONE 0 2 ALLREDUCE_EP 64 7"], "line 3: ALLREDUCE_EP is no collective; write NONE or one of ALLREDUCE"),
        (["MICRO", "a -1 3 NONE 0 5 NONE 0 2 NONE 0 7"], "no layer does anything; give"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, lines: list[str], said: str) -> None:
    workload(tmp_path, *lines)
    with pytest.raises(TraceError) as error:
        lumos.read(tmp_path)
    assert f"layers.txt: {said}" in str(error.value)


def test_layers_are_counted_and_a_network_file_has_to_say_how_many_ranks_there_are(tmp_path: Path) -> None:
    beside(tmp_path, "net.yml", "sys.json")
    (tmp_path / "layers.txt").write_text("DATA\n2\na -1 3 NONE 0 5 NONE 0 2 NONE 0 7\n")
    with pytest.raises(TraceError, match="line 2: says 2 layers, and 1 follow; write the number that there are"):
        lumos.read(tmp_path / "layers.txt")
    workload(tmp_path, "DATA", "a -1 3 NONE 0 5 NONE 0 2 NONE 0 7", network=NETWORK.replace("[ 2 ]", "[ 9000000 ]"))
    with pytest.raises(TraceError, match="9,000,000 ranks with 2 nodes each; give a smaller network file"):
        lumos.read(tmp_path)
    (tmp_path / "net.yml").unlink()
    with pytest.raises(TraceError, match=r"has no network file; put net.yml \(npus_count: \[ 8 \]\) there"):
        lumos.read(tmp_path)
