"""Public recordings against scripts that were written anew as the recordings show them: validation/results/scripted-public.md.

    python -m validation.scripted_public [--only WORD]

The script is both commands, so nothing changes: asked is whether the recording's prices on the script's own dependencies give the recorded
step. Recordings of $LUMOS_TRACES.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from tools.document import markdown_table
from tools.figures import write_result

import lumos
from lumos.errors import LumosError

SCRIPTS = Path(__file__).parent / "emulated"
#: A recording: its file, the cluster where its file does not say, the ranks, and the script with its arguments.
RECORDINGS = (
    ("h100-inference/bert-small", "h100", 1, "inference.py bert"),
    ("h100-inference/vit-nsfw", "h100", 1, "inference.py vit"),
    ("h100-inference/qwen1.5-0.5b", "h100", 1, "inference.py qwen"),
    ("vgg13-h100/kineto", "h100", 1, "vision.py vgg13"),
    ("resnet-ddp-a100/rank0", "a100-40gb", 2, "vision.py resnet50"),
)


class Identity(NamedTuple):
    """A recording and the script. off: the script's step at the recording's prices from the recorded one, as a share; None: refused."""

    name: str
    measured_s: float
    off: float | None
    matched: str
    grade: str


def identity(name: str, cluster: str, ranks: int, script: str) -> Identity:
    """Ask for the script itself."""
    start = f"{shlex.quote(sys.executable)} " + (f"-m torch.distributed.run --nproc-per-node {ranks} " if ranks > 1 else "")
    command = f"{start}{shlex.quote(str(SCRIPTS))}/{script}"
    job = lumos.read(Path(os.environ["LUMOS_TRACES"]) / f"{name}.json.gz")
    try:
        found = lumos.whatif(job, before=command, after=command, base_cluster=cluster)
    except LumosError as error:
        return Identity(name, 0.0, None, str(error), "refused")
    matched = next(each.message for each in found.diagnostics if each.code == "script-matched")
    measured = found.measured_step_s or found.base.step_time_s
    return Identity(name, measured, found.base.step_time_s / measured - 1, matched, found.trust.grade)


def main() -> None:
    """Print each, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    found = []
    for name, *how in RECORDINGS:
        if asked.only in name:
            found.append(identity(name, *how))
            print(found[-1], flush=True)
    if not asked.only:
        write_result("validation/results/scripted-public.md", _section(found))


def _section(found: list[Identity]) -> str:
    near = sum(each.off is not None and abs(each.off) <= 0.02 for each in found)
    rows = [
        (each.name, f"{1e3 * each.measured_s:.2f}" if each.off is not None else "–", "–" if each.off is None else f"{each.off:+.2%}",
         each.matched, each.grade)
        for each in found
    ]  # fmt: skip
    table = markdown_table(("recording", "step, ms", "the script at its prices", "matched", "grade"), rows)
    return f"Written by `python -m validation.scripted_public`: {near} of {len(found)} within 2 %.\n\n{table}"


if __name__ == "__main__":
    main()
