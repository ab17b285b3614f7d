"""Run the notebooks of the examples, and store them with what they show.

    python -m tools.notebooks [NOTEBOOK…]

It needs nbclient and ipykernel (`pip install -e '.[docs]'`), and what each notebook says that it needs. What a notebook shows is stored
without times, so that running it again changes no line whose answer is the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tools.document import ROOT

FOLDER = ROOT / "examples" / "notebooks"


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook, run from its folder. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(FOLDER)}}).execute()
    notebook.metadata.language_info = {"name": "python"}  # not the version that it ran on
    return notebook


def main() -> None:
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
