"""The modules of `lumos.proxy.benchmark`, joined into the one file that every benchmark contains.

The modules import each other, so that they can be checked and tested one by one; the file must run where Lumos is not installed. It
begins with the package's docstring and the imports of all modules. Then follow the modules in the order of PIECES, each under the
first line of its docstring. Nothing is imported or run for this: the modules are read as text.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

#: The modules in the order in which they are joined: each imports only those before it.
PIECES = ("recording", "device", "schemas", "kernels", "memory", "transfers", "program", "runner", "results", "command")

_FOLDER = Path(__file__).with_name("benchmark")
_WIDTH = 120

#: What makes the file a program, after the last module.
_PROGRAM = """\
if __name__ == "__main__":
    main()
"""


class _Module(NamedTuple):
    """One module. run, checked: its imports of other packages, and those for types alone. body: what follows them, under its heading."""

    run: set[str]
    checked: set[str]
    body: str


def joined() -> str:
    """The text of benchmark.py."""
    modules = [_module((_FOLDER / f"{name}.py").read_text(encoding="utf-8")) for name in PIECES]
    docstring = _docstring((_FOLDER / "__init__.py").read_text(encoding="utf-8"))
    run = set[str]().union(*(module.run for module in modules))
    checked = set[str]().union(*(module.checked for module in modules)) - run
    run_lines = "\n".join(_sorted(run))
    checked_lines = "".join(f"\n    {line}" for line in _sorted(checked))
    head = f"{docstring}\n\nfrom __future__ import annotations\n\n{run_lines}\n\nif TYPE_CHECKING:{checked_lines}"
    return "\n\n\n".join((head, *(module.body for module in modules), _PROGRAM))


def _docstring(text: str) -> str:
    """The docstring that a module begins with, as it is written."""
    return "\n".join(text.split("\n")[: ast.parse(text).body[0].end_lineno])


def _module(text: str) -> _Module:
    tree = ast.parse(text)
    statements = tree.body[1:]  # without the docstring
    after = next(at for at, one in enumerate(statements) if not isinstance(one, ast.Import | ast.ImportFrom | ast.If))
    conditional = [inner for one in statements[:after] if isinstance(one, ast.If) for inner in one.body]
    title = (ast.get_docstring(tree) or "").partition("\n")[0].partition(":")[0].rstrip(".").lower()
    gap = "\n\n\n" if isinstance(statements[after], ast.FunctionDef | ast.ClassDef) else "\n\n"
    heading = f"# {'-' * (_WIDTH - len(title) - 3)} {title}{gap}"
    return _Module(_imports(statements[:after]), _imports(conditional), heading + _from(text, statements[after]))


def _imports(statements: list[ast.stmt]) -> set[str]:
    """Imports of other packages, one name each."""
    found = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            found |= {f"import {ast.unparse(alias)}" for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and not str(statement.module).startswith(("lumos.", "__future__")):
            found |= {f"from {statement.module} import {alias.name}" for alias in statement.names}
    return found


def _sorted(imports: set[str]) -> list[str]:
    """Lines of imports, with the names of one module on one line: those of the standard library, an empty line, those of torch."""
    plain = sorted(line for line in imports if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in imports - set(plain):
        module, _, name = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, []).append(name)
    constants_first = {module: sorted(each, key=lambda name: (not name.isupper(), name)) for module, each in sorted(names.items())}
    lines = [*plain, *(f"from {module} import {', '.join(each)}" for module, each in constants_first.items())]
    torch = [line for line in lines if line.split()[1].partition(".")[0] == "torch"]
    return [*(line for line in lines if line not in torch), *([""] if torch else []), *torch]


def _from(text: str, first: ast.stmt) -> str:
    """The text from a statement on, with the comments and decorators directly above it."""
    lines = text.split("\n")
    at = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", ()))]) - 1
    while lines[at - 1].startswith("#"):
        at -= 1
    return "\n".join(lines[at:]).rstrip()
