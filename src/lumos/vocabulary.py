"""The closed sets that all parts of Lumos share, each defined once: an enum, the properties of its members, and one parser of
the spellings that traces, tables and users have for them.

An enum that C++ uses too is written down twice, and its members pass between the two languages as numbers. A native module of another
version could take a number for another member and answer wrongly without an error. So each Python module that shares an enum with a
native module compares the two when it is imported (`check_enum`).
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lumos.errors import UsageError

if TYPE_CHECKING:
    from enum import Enum
    from types import ModuleType

_Member = TypeVar("_Member", bound=StrEnum)


def one_of(kind: type[_Member], word: str, what: str) -> _Member:
    """The member of the enum `kind` whose value is `word`. what: the setting that takes the word, for the message.

    Raises UsageError, which names the nearest valid word and lists all valid ones.
    """
    try:
        return kind(word)
    except ValueError:
        near = get_close_matches(str(word), tuple(kind), 1)
        hint = f"; did you mean {str(near[0])!r}?" if near else ""
        raise UsageError(f"{what} = {word!r} is not known{hint}; valid: {', '.join(kind)}") from None


# ---- collectives and element types: shared by traces, graphs and cost models ----


class CollectiveKind(StrEnum):
    """The kinds of communication between ranks. The value is the spelling in graphs, on the command line and in JSON."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECEIVE = "receive"
    SEND_RECEIVE = "send-receive"  # a transfer whose side is not known, or a rank that sends and receives at once
    BARRIER = "barrier"
    UNKNOWN = "unknown"

    @classmethod
    @lru_cache(maxsize=4096)  # a recording repeats a few names many times
    def in_name(cls, name: str) -> CollectiveKind:
        """The kind that the name of a kernel, operator or annotation contains; UNKNOWN where it contains none."""
        return next((kind for kind, pattern in _IN_NAME if pattern.search(name)), cls.UNKNOWN)

    @classmethod
    def of_word(cls, word: str) -> CollectiveKind:
        """The kind that a word of the command line or of a table means, whatever its case, hyphens or underscores; UNKNOWN
        where it means none. Unlike in `in_name`, the whole word must be a spelling, so that a misspelt word is not accepted."""
        plain = word.strip().replace("-", "_").replace(" ", "_")
        return next((kind for kind, pattern in _WORDS if pattern.fullmatch(plain)), cls.UNKNOWN)

    @property
    def is_transfer(self) -> bool:
        """Whether it moves data from one rank to one other, as pipeline stages do."""
        return self in (CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE)

    @property
    def is_even(self) -> bool:
        """Whether the inputs of all members must have equally many bytes."""
        return self not in _UNEVEN

    def buffer_bytes(self, input_bytes: int, ranks: int) -> int:
        """The larger of one rank's input and output (the "size" of nccl-tests), from its input. Gathering kinds have an output that
        grows with the group."""
        return input_bytes * ranks if self in _GATHERED else input_bytes

    def input_bytes(self, buffer_bytes: int, ranks: int) -> int:
        """Bytes of one rank's input, from the larger of its input and output: the inverse of `buffer_bytes`, rounded down."""
        return buffer_bytes // ranks if self in _GATHERED else buffer_bytes


_GATHERED = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
_UNEVEN = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
    CollectiveKind.SEND_RECEIVE,
    CollectiveKind.UNKNOWN,
)

#: Spelling of each kind. The first one found in a name decides, so longer words come before the words that they contain.
_SPELLINGS = (
    (CollectiveKind.REDUCE_SCATTER, r"reduce_?scatter"),
    (CollectiveKind.ALL_REDUCE, r"all_?reduce|cross_device_reduce"),
    (CollectiveKind.ALL_GATHER, r"all_?gather"),
    (CollectiveKind.ALL_TO_ALL, r"all_?to_?all|deep_ep|(intra|inter)node(_ll)?(::|\d)"),
    (CollectiveKind.BROADCAST, r"broadcast"),
    (CollectiveKind.SEND_RECEIVE, r"send_?(recv|receive)"),
    (CollectiveKind.SEND, r"(?<![a-z])send"),
    (CollectiveKind.RECEIVE, r"(?<![a-z])recv|receive"),
    (CollectiveKind.BARRIER, r"barrier"),
    (CollectiveKind.GATHER, r"gather"),
    (CollectiveKind.SCATTER, r"scatter"),
    (CollectiveKind.REDUCE, r"reduce"),
)
_IN_NAME = tuple((kind, re.compile(text, re.IGNORECASE)) for kind, text in _SPELLINGS)
_WORDS = tuple(
    (kind, re.compile(rf"_?({text})(v|_base)?_?", re.IGNORECASE)) for kind, text in (*_SPELLINGS, (CollectiveKind.SEND_RECEIVE, "p2p"))
)


class Basis(StrEnum):
    """What the time of a step is: the time from the completion of the step before (what the loop takes), or from its first work."""

    PERIOD = "period"
    LATENCY = "latency"


class Grade(StrEnum):
    """How far an answer can be trusted."""

    SOUND = "sound"  # nothing was found that could move it beyond its interval
    LIMITED = "limited"  # something that it depends on is unknown; its interval says how much
    UNSOUND = "unsound"  # the recording, or the replay of it, is wrong somewhere


class DType(StrEnum):
    """The type of a tensor's elements, or the type in which a multiplication computes. The value is the usual short name."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"  # how tensor cores multiply fp32; elements in memory are fp32
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"  # e4m3, or e4m3 or e5m2 where a source does not say which
    FP4 = "fp4"  # e2m1 with a scale for each block (MXFP4, NVFP4); torch stores two in a byte
    INT8 = "int8"
    FP8_E5M2 = "fp8-e5m2"
    FP8_E4M3FNUZ = "fp8-e4m3fnuz"
    FP8_E5M2FNUZ = "fp8-e5m2fnuz"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @classmethod
    def parse(cls, name: str) -> DType | None:
        """The type with this name in PyTorch, a profiler's trace, a table or user input; None where no type has it."""
        return _DTYPES.get(name.strip().lower().removeprefix("torch.").removeprefix("c10::"))

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory."""
        return _ELEMENTS[self].bytes

    @property
    def torch_name(self) -> str:
        """The name in torch of the type in memory."""
        return _ELEMENTS[self].torch

    @property
    def profiler_name(self) -> str:
        """The name of the type in memory in the profiler's notes of an operator's inputs."""
        return _ELEMENTS[self].profiler or _ELEMENTS[self].torch

    @property
    def word(self) -> str:
        """The name of the type in memory in the arguments of collectives; "Byte" for one that they have no name for."""
        return _ELEMENTS[self].word or "Byte"

    @property
    def arithmetic(self) -> DType:
        """The type whose rate of multiplication it has: hardware multiplies all forms of fp8 equally fast."""
        return DType.FP8 if self in _FP8 else self

    @property
    def quantised(self) -> bool:
        """Whether values of 16 bit are cast to it, with scales, for a multiplication."""
        return self.arithmetic in (DType.FP8, DType.FP4)

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers, and so may be indices."""
        return "int" in self


_FP8 = (DType.FP8, DType.FP8_E5M2, DType.FP8_E4M3FNUZ, DType.FP8_E5M2FNUZ)


class _Element(NamedTuple):
    """A type: its name in torch, bytes of an element, its name in C++ and so in the profiler's rows, in the arguments of collectives, and
    in tables."""

    torch: str
    bytes: int
    profiler: str = ""
    word: str = ""
    more: tuple[str, ...] = ()


_ELEMENTS = {
    DType.FP64: _Element("float64", 8, "double", "Double"),
    DType.FP32: _Element("float32", 4, "float", "Float"),
    DType.TF32: _Element("float32", 4, "float", "Float", ("tensorfloat32",)),
    DType.BF16: _Element("bfloat16", 2, "c10::BFloat16", "BFloat16"),
    DType.FP16: _Element("float16", 2, "c10::Half", "Half"),
    DType.FP8: _Element("float8_e4m3fn", 1, "c10::Float8_e4m3fn", "", ("float8", "fp8_e4m3")),
    DType.FP4: _Element("float4_e2m1fn_x2", 1, "", "", ("float4", "nvfp4", "mxfp4")),
    DType.INT8: _Element("int8", 1, "signed char", "Char"),
    DType.FP8_E5M2: _Element("float8_e5m2", 1, "c10::Float8_e5m2"),
    DType.FP8_E4M3FNUZ: _Element("float8_e4m3fnuz", 1),
    DType.FP8_E5M2FNUZ: _Element("float8_e5m2fnuz", 1),
    DType.INT64: _Element("int64", 8, "long int", "Long"),
    DType.INT32: _Element("int32", 4, "int", "Int"),
    DType.INT16: _Element("int16", 2, "short int", "Short"),
    DType.UINT64: _Element("uint64", 8, more=("unsigned long",)),
    DType.UINT32: _Element("uint32", 4, more=("unsigned int",)),
    DType.UINT16: _Element("uint16", 2, more=("unsigned short",)),
    DType.UINT8: _Element("uint8", 1, "unsigned char", "Byte"),
    DType.BOOL: _Element("bool", 1, "bool", "Bool"),
    DType.COMPLEX64: _Element("complex64", 8, "c10::complex<float>", more=("complexfloat",)),
    DType.COMPLEX128: _Element("complex128", 16, "c10::complex<double>", more=("complexdouble",)),
}
_DTYPES = {
    spelling.lower().removeprefix("c10::"): dtype
    for dtype, known in _ELEMENTS.items()
    for spelling in (dtype.value, *(() if dtype is DType.TF32 else known[:1] + known[2:4]), *known.more)
    if spelling
}


# ---- parts of a training step ----


class Direction(StrEnum):
    """Which pass an attention kernel belongs to. The value is the word that tables of measurements use."""

    FORWARD = "fwd"
    BACKWARD = "bwd"


class Phase(IntEnum):
    """What a part of a training step does. Segmentations store the number."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2  # the forward pass repeated inside the backward pass
    OPTIMIZER = 3  # the optimizer, and what runs between the backward pass and it, such as gradient clipping
    OTHER = 4
    SYNC = 5  # exchanges of parameters, gradients and activations with other ranks

    @property
    def word(self) -> str:
        """Its name in text and JSON."""
        return self.name.lower()


# ---- choices of plans and frameworks ----


class Schedule(StrEnum):
    """The order in which pipeline stages run their microbatches. The native module numbers them in the order of this enum."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"
    DUALPIPE = "dualpipe"


class Recompute(StrEnum):
    """Which activations the backward pass computes again instead of keeping them: none, those of `Selective`, or whole layers'."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Selective(StrEnum):
    """What selective recomputation computes again."""

    ATTENTION = "attention"  # scores, softmax and context, where attention is unfused
    ALTERNATE = "alternate"  # every second multiplication
    LIGHT = "light"  # what costs little: norms, the up-projections of latent attention, activations of MLPs and experts


class GradientReduction(StrEnum):
    """How often a pipeline reduces gradients of which each rank keeps only its part."""

    MICROBATCH = "microbatch"
    GROUP = "group"  # after the microbatches that a virtual stage runs one after the other
    STEP = "step"


class Precision(StrEnum):
    """The number format that a step computes in."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def multiplications(self) -> DType:
        """The type of the multiplications' operands."""
        return DType(self.value)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation in memory. FP8 and FP4 recipes keep activations in 16 bit; TF32 only changes how fp32 is multiplied."""
        return 4 if self in (Precision.FP32, Precision.TF32) else 2


class Fusion(StrEnum):
    """Which element-wise operations run in one kernel."""

    EAGER = "eager"  # every operation is a kernel of its own
    FUSED = "fused"  # fused by hand: bias + GeLU, bias + dropout + add, rotary positions, norms
    COMPILED = "compiled"  # neighbouring element-wise operations in one kernel


class AttentionKernel(StrEnum):
    """The kernel that computes the core of attention."""

    UNFUSED = "unfused"  # two multiplications around a softmax, with the scores in memory
    FLASH = "flash"  # the best that is known on the accelerator
    FA1 = "fa1"  # FlashAttention 1, and Triton's kernels of 2022 and 2023
    FA2 = "fa2"
    FA3 = "fa3"
    CUDNN = "cudnn"
    TRTLLM = "trtllm"


class Loss(StrEnum):
    """How the cross-entropy is computed."""

    TORCH = "torch"  # eager
    MEGATRON = "megatron"  # parallel over the vocabulary, in steps
    FUSED = "fused"


# ---- names of the profiler: shared by what reads traces and what writes emulated ones ----

#: How the profiler names the rows of modules (with_stack or with_modules).
MODULE_PREFIX = "nn.Module: "


def check_enum(module: ModuleType, ours: type[Enum]) -> None:
    """Compare an enum with the native module's enum of the same name.

    `module.ENUMS` has the names of its members, separated by commas; their values are 0, 1, … in that order. Raises ImportError
    unless the Python enum has the same names in the same order, and those values where its values are integers.
    """
    theirs = tuple(str(module.ENUMS[ours.__name__]).split(", "))
    names = tuple(member.name for member in ours)
    places = [member.value for member in ours if isinstance(member.value, int)]
    if names != theirs or places not in ([], list(range(len(names)))):
        raise ImportError(
            f"{module.__name__} was built from other sources: its {ours.__name__} is {', '.join(theirs)}, "
            f"here it is {', '.join(names)}; build it again (pip install -e .)"
        )
