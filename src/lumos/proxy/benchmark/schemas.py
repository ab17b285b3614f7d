"""Operators from schemas: the overload that takes the recorded arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lumos.proxy.benchmark.recording import Node, Ref

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sizes up to this are never scaled, because they are sizes of filters, numbers of heads or coordinates.
SMALL_SIZE = 16

#: Namespaces of operators that compute. No other one's run, whatever a trace contains.
NAMESPACES = ("aten", "fbgemm", "inductor", "mkl", "mkldnn", "onednn", "quantized", "sparse", "torchvision")


class NotRunnable(Exception):  # noqa: N818 - it is an expected result, not an error
    """An operator cannot run here; the message says why."""


def bind(node: Node, device: torch.device, kernel: torch.device, scale: float) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """The overload that fits a recorded operator, its positional and its named arguments, with `Ref` for tensors.

    device: of new tensors. kernel: the device of the tensors that it works on. Raises NotRunnable.
    """
    namespace = node.name.partition("::")[0]
    if not node.is_operator or namespace in ("c10d", "_c10d_functional", "prim", "profiler"):
        raise NotRunnable("a kernel that no operator of the dispatcher launched" if node.kernel else "no operator of the dispatcher")
    if namespace not in NAMESPACES:
        raise NotRunnable("refused: its namespace is not one of those that run")
    if node.inputs is None:
        raise NotRunnable("its arguments were not recorded")
    schemas = torch._C._jit_get_schemas_for_operator(node.name)
    if not schemas:
        raise NotRunnable("this torch has no such operator")
    wanted = node.schema.partition("(")[0].partition(".")[2]
    problems = []
    for schema in sorted(schemas, key=lambda s: s.overload_name != wanted if node.schema else 0):
        qualified = f"{node.name}.{schema.overload_name}" if schema.overload_name else node.name
        try:
            if not computes(schema):
                raise NotRunnable("refused: it names a file, or neither returns nor writes")
            positional, named = match(schema, node.inputs, device, scale)
            if not has_kernel(qualified, kernel):
                raise NotRunnable(f"no {kernel.type} kernel")
        except NotRunnable as problem:
            problems.append(str(problem))
            continue
        return torch._C._get_operation_overload(node.name, schema.overload_name)[0], positional, named
    raise NotRunnable(problems[0] if len(set(problems)) == 1 or node.schema else "no overload takes the recorded arguments")


def computes(schema: Any) -> bool:
    """Whether an operator returns something or writes into an argument, and names no file; others check, print, save or set."""
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return bool(schema.returns or writes) and all(a.name != "filename" for a in schema.arguments)


def has_kernel(qualified: str, device: torch.device) -> bool:
    try:
        return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, device.type.upper()))
    except RuntimeError:  # known to TorchScript only
        return False


def is_composite(node: Node) -> bool:
    """Whether any overload of the operator only calls other operators."""
    try:
        schemas = torch._C._jit_get_schemas_for_operator(node.name)
        names = [f"{node.name}.{s.overload_name}" if s.overload_name else node.name for s in schemas]
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") for name in names)
    except RuntimeError:
        return False


def match(schema: Any, inputs: list[Any], device: torch.device, scale: float) -> tuple[list[Any], dict[str, Any]]:
    """The recorded arguments in the form that a schema needs. Raises NotRunnable where they do not fit."""
    arguments = schema.arguments
    if len(inputs) > len(arguments):
        raise NotRunnable("no overload takes so many arguments")
    has_tensor = any("Tensor" in str(a.type) for a in arguments)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for index, argument in enumerate(arguments):
        kind = str(argument.type)
        recorded = inputs[index] if index < len(inputs) else None
        if kind in ("Device", "Optional[Device]"):
            needed = kind == "Device" or not has_tensor
            value = device if isinstance(recorded, str) or (recorded is None and needed) else None
            value = torch.device("cpu") if recorded == "cpu" else value
        elif argument.name == "pin_memory":
            value = None if device.type == "cpu" else recorded
        elif recorded is None and argument.has_default_value():
            value = argument.default_value
        else:
            value = convert(kind, recorded, argument.name, scale)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def convert(kind: str, value: Any, name: str, scale: float) -> Any:
    """A recorded argument converted to the type `kind` of a schema. Raises NotRunnable where that is not possible."""
    if kind.startswith("Optional["):
        return None if value is None else convert(kind[9:-1], value, name, scale)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if value is None and inner == "bool":
            return [True] * 3  # output_mask: which gradients are wanted
        if value is None:
            raise NotRunnable(f"its argument {name} was not recorded")
        values = value if isinstance(value, list) else [value]
        return [convert(inner, item, name, scale) for item in values]
    number = float(value["float"]) if isinstance(value, dict) and "float" in value else value
    if kind == "Tensor" and isinstance(value, dict) and "tensor" in value:
        return Ref(value["tensor"])
    if kind == "bool" and isinstance(value, (bool, int)):
        return bool(value)
    if kind in ("int", "SymInt") and isinstance(value, int):
        return scaled(value, scale) if name in ("size", "shape", "normalized_shape", "new_shape") else int(value)
    if (kind == "float" and isinstance(number, (int, float))) or (kind in ("number", "Scalar") and isinstance(number, (int, float))):
        return number
    if kind == "str" and isinstance(value, str):
        return value
    if value is None:
        raise NotRunnable(f"its argument {name} was not recorded")
    raise NotRunnable("no overload takes the recorded arguments")


def scaled(size: int, scale: float) -> int:
    return size if size <= SMALL_SIZE or scale == 1 else max(SMALL_SIZE, round(size * scale))
