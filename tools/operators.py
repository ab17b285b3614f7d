"""Write what PyTorch itself says of its operators to src/lumos/operators/data/torch.json: its tags, its schemas and its dispatcher.

    python -m tools.operators

needs torch; the newer, the more tags. What it writes is part of the source, so that Lumos itself needs none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from lumos.operators.table import own_name

TARGET = Path(__file__).parents[1] / "src/lumos/operators/data/torch.json"
#: Arguments whose places are written: the values that decide how much an operator computes.
SETTINGS = ("is_causal", "custom_mask_type", "padding", "stride", "dilation", "transposed", "output_mask")

#: The keys of torch's dispatcher under which a function has a kernel for processors and accelerators.
OF_DEVICES = {"CPU", "CUDA"}
#: Those under which it has a function of its own, which may work by calling others.
OWN_KERNEL = OF_DEVICES | {"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}


def said_by_torch() -> dict[str, Any]:
    """By what torch calls it: pointwise (its tag; with the tensors that each is given) and reductions, views (results that are parts of
    inputs), composite (operators that only call others), calling (also those that add something to what they call), and for each operator
    with one of `SETTINGS` where that stands among its arguments."""
    import torch

    schemas: dict[str, list[Any]] = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and not any(argument.is_out for argument in schema.arguments):
            schemas[own_name(schema.name)].append(schema)
    tags = {name: set().union(*map(_tags, several)) for name, several in schemas.items()}
    settings = {name: _settings(several[0]) for name, several in schemas.items()}
    return {
        "torch": torch.__version__.partition("+")[0],
        "pointwise": {
            name: max(map(_tensors, schemas[name]))
            for name, several in sorted(tags.items())
            if "pointwise" in several and "reduction" not in several
        },
        "reduction": sorted(name for name, several in tags.items() if "reduction" in several),
        "view": sorted(name for name, several in schemas.items() if any(map(_is_view, several))),
        "composite": without_kernel(OWN_KERNEL),
        "calling": without_kernel(OF_DEVICES),
        "settings": {name: places for name, places in sorted(settings.items()) if places},
    }


def _tags(schema: Any) -> set[str]:
    import torch

    try:
        operator = getattr(getattr(torch.ops.aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")
    except AttributeError:  # declared for scripts alone
        return set()
    return {tag.name for tag in operator.tags}


def _is_view(schema: Any) -> bool:
    """Whether every result lies in an input that is not written."""
    if not schema.arguments or str(schema.arguments[0].type) != "Tensor":
        return False
    aliases = [result.alias_info for result in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def without_kernel(keys: set[str]) -> list[str]:
    """The operators that have no kernel under any of the dispatcher's keys, by torch's own list of its functions."""
    import torchgen
    import yaml

    text = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text(encoding="utf-8")
    own: dict[str, bool] = {}
    for function in yaml.safe_load(text):
        name, _, overload = function["func"].partition("(")[0].partition(".")
        if "out" in overload:
            continue
        name = own_name(name)
        devices = {key for keys in function.get("dispatch", ()) for key in keys.split(", ")}
        own[name] = own.get(name, False) or bool(devices & keys) or "structured_delegate" in function
    return sorted(name for name, has_kernel in own.items() if not has_kernel)


def _tensors(schema: Any) -> int:
    return sum("Tensor" in str(argument.type) for argument in schema.arguments)


def _settings(schema: Any) -> dict[str, int]:
    return {argument.name: place for place, argument in enumerate(schema.arguments) if argument.name in SETTINGS}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(said_by_torch(), indent=0) + "\n", encoding="utf-8")
