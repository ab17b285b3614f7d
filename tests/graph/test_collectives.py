"""The facts of a collective, read from each place where profilers write them."""

from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Kind

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def facts(graph):
    found = graph.collectives
    return [
        (
            found.kinds[found.kind[i]],
            int(found.nbytes[i]),
            None if found.group[i] < 0 else found.groups[found.group[i]],
            int(found.sequence[i]),
            int(found.size[i]),
        )
        for i in range(len(found.task))
    ]


ARGUMENTS = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}


def test_arguments_of_the_kernel(draw, trace):
    graph = rank_graph(trace(draw().launch((0, 5), (6, 50), 9, NCCL, **ARGUMENTS, Seq=4)))
    assert facts(graph) == [("all-reduce", 2000, "0 [0, 1]", 4, 2)]
    assert graph.kind[-1] == Kind.COLLECTIVE


def test_a_member_list_that_was_cut_short_is_read_from_the_header(draw, trace):
    drawing = draw().launch((0, 5), (6, 50), 9, NCCL, **{**ARGUMENTS, "Process Group Ranks": "[0, 1, ..., 7]"})
    drawing.header["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]
    assert facts(rank_graph(trace(drawing)))[0][2] == "0 [0, 1, 2, 3]"


def test_the_id_of_a_call_names_the_group_only_where_calls_have_no_number(draw, trace):
    drawing = draw().launch((0, 5), (6, 50), 9, NCCL, **ARGUMENTS, **{"Comms Id": "12345"})
    drawing.launch((60, 5), (70, 50), 9, NCCL, **ARGUMENTS, **{"Comms Id": "678", "Seq": 4})
    assert [group for _, _, group, _, _ in facts(rank_graph(trace(drawing)))] == ["communicator 12345", "0 [0, 1]"]


def test_facts_of_the_operator_around_the_launch(draw, trace):
    drawing = draw().op("record_param_comms", 0, 20, **ARGUMENTS).launch((5, 5), (12, 50), 9, "ncclDevKernel_Generic(x)")
    assert facts(rank_graph(trace(drawing))) == [("all-reduce", 2000, "0 [0, 1]", -1, 2)]


def test_an_old_operator_without_facts_leaves_them_to_the_annotation(draw, trace):
    drawing = draw().op("record_param_comms", 0, 30)
    drawing.row("user_annotation", "nccl:all_to_all", 2, 26, **{"Input Dims": [[8, 16]], "Input type": ["float"]})
    drawing.launch((5, 5), (12, 50), 9, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)")
    assert facts(rank_graph(trace(drawing))) == [("all-to-all", 512, None, -1, -1)]


def test_a_kernel_name_alone(draw, trace):
    assert facts(rank_graph(trace(draw().launch((0, 5), (6, 50), 9, NCCL)))) == [("all-reduce", -1, None, -1, -1)]


def test_a_collective_on_a_cpu_thread_is_work_that_its_operator_issued(draw, trace):
    dims = {"Input Dims": [[100]], "Input type": ["float"]}
    drawing = draw().op("forward", 0, 100).op("c10d::allreduce_", 100, 5, **{"Input Dims": [[[100]], []], "Input type": ["TensorList", ""]})
    drawing.op("more", 105, 200).row("user_annotation", "gloo:all_reduce", 110, 80, 300, **dims)
    graph = rank_graph(trace(drawing))
    assert facts(graph) == [("all-reduce", 400, None, -1, -1)]
    task = int(graph.collectives.task[0])
    slower = graph.duration.copy()
    slower[0] += 50_000  # the forward pass: the collective is issued, and starts, that much later
    from lumos.simulation import simulate

    assert simulate(graph, slower).start[task] - simulate(graph).start[task] == 50_000
