"""The names that versions of profilers have used for event categories and for the arguments that become columns."""

from lumos.trace.table import Category

#: Category by the `cat` of complete events (ph "X"), in all versions of Kineto and for several vendors
#: (libkineto/include/ActivityType.h, its history, and torch/csrc/profiler).
COMPLETE = {
    "cpu_op": Category.OPERATOR,
    "Operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
    "cuda_event": Category.EVENT_RECORD,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "overhead": Category.OVERHEAD,
    "Trace": Category.SPAN,
    "mtia_ccp_events": Category.KERNEL,
    "hpu_op": Category.KERNEL,
}

#: A `cat` with one of these endings is a host call into a vendor's runtime (hip_runtime, mtia_runtime, xpu_driver, …).
RUNTIME_SUFFIXES = ("_runtime", "_driver")

#: Flow categories: launch to device work, and forward to backward operator.
LAUNCH_FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu", "async"})
BACKWARD_FLOWS = frozenset({"fwdbwd", "forward_backward", "fwd_bwd"})


def category(phase: str, cat: str) -> Category | None:
    """The category of rows with this (ph, cat). None for complete events of an unknown `cat`: they are device work if every one
    of them names a stream. Instants that record memory are recognised by their name instead."""
    if phase in ("X", ""):
        if cat.endswith(RUNTIME_SUFFIXES):
            return Category.RUNTIME
        return COMPLETE.get(cat)
    if phase in ("s", "t", "f"):
        start = phase == "s"
        if cat in LAUNCH_FLOWS:
            return Category.LAUNCH_FLOW_START if start else Category.LAUNCH_FLOW_END
        if cat in BACKWARD_FLOWS:
            return Category.BACKWARD_FLOW_START if start else Category.BACKWARD_FLOW_END
        return Category.OTHER
    if phase in ("i", "I", "R"):
        return Category.INSTANT
    return Category.COUNTER if phase == "C" else Category.OTHER


#: The name of instants that record an allocation.
MEMORY_NAME = "[memory]"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for line in text.strip().splitlines() for name in line.split("|"))


#: Arguments that become columns, by the kind of their values. Everything else in `args` is skipped.
KINETO_COLUMNS: dict[str, tuple[str, ...]] = {
    "int": _names(
        """
        stream|device|context|queued|priority|graph id|graph node id|event_id
        wait_on_stream|wait_on_cuda_event_record_corr_id|wait_on_cuda_event_id
        bytes|size|shared memory|registers per thread
        In msg nelems|Out msg nelems|Group size|Process Group ID|Src Rank|Dst Rank|Seq|Comms Id
        Input Tensors start|Output Tensors start|Rank|Global rank start|Global rank stride|Is asynchronized op
        Ev Idx|Record function id|Sequence number|Fwd thread id|Python id|Python parent id|Python module id
        Addr|Bytes|Total Allocated|Total Reserved|Device Id|Device Type
        Queue place|cbid|hsa_queue|stream_id|seq_num|sqid|step|mb_id|model_chunk|seq_id|id
        """
    ),
    "float": _names("blocks per SM|warps per SM|est. achieved occupancy %|memory bandwidth (GB/s)"),
    "string": _names(
        """
        Input Dims|Input type|Input Strides|Concrete Inputs|grid|block
        Collective name|dtype|In split size|Out split size
        Process Group Name|Process Group Description|Process Group Ranks
        kind|src|dst|kernel|kernel_backend|kernel_hash|kernel_file|Module Hierarchy|cuda_sync_kind|direction|name
        """
    ),
}

#: Other spellings of the same argument.
SPELLINGS = {
    "Profiler Event Index": "Ev Idx",
    "Input dims": "Input Dims",
    "Input Types": "Input type",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete inputs": "Concrete Inputs",
    "sequence number": "Sequence number",
    "Sequence Number": "Sequence number",
    "Record Function Id": "Record function id",
    "memory bandwidth (GBps)": "memory bandwidth (GB/s)",
}

#: Spellings of the two ids that every row has a column for.
CORRELATION = ("correlation", "Correlation", "correlation_id")
EXTERNAL_ID = ("External id", "external id", "External Id")
