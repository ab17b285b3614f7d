"""Changed jobs, written as files: whether replaying them gives the step that the what-if answered.

    python -m validation.changed_files DIR [WORD…] [--write]

DIR holds a recording in each of its folders, as `python -m validation.foreign --record DIR` leaves them. Every recording is changed in each
of the ways of CHANGES that it can follow. Each answer is written as profiler files (`--kineto`) and as a Chakra set (`--chakra`), and both
are read and replayed as anybody's; of the timeline for a viewer (`--perfetto`) the marked steps are compared. A difference is that of the
step from the answer's, or the largest of a single step of the files from itself, whichever is larger. WORD limits the recordings and the
changes to those whose name contains one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.document import markdown_table
from tools.figures import write_result

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.simulation import simulate
from lumos.trace.table import Job

#: The largest difference, as a fraction of the step: the figure that exported jobs are held to.
FIGURE = 0.001
#: A change for each key, and some of two keys.
CHANGES = (
    "layers=8",
    "micro_batch=4",
    "seq=512",
    "ffn=4096",
    "microbatches=3",
    "recompute=full",
    "recompute=none",
    "dp=8",
    "tp=2",
    "tp=4",
    "pp=2,microbatches=4",
    "vpp=2,pp=2,microbatches=4",
    "schedule=gpipe",
    "pp=1",
    "cp=2",
    "cp=4",
    "cp=1",
    "ep=2",
    "ep=4",
    "ep=1",
    "zero=0",
    "zero=1",
    "zero=2",
    "zero=3",
    "precision=bf16",
    "precision=fp32",
    "cuda_graphs=on",
    "dp=8,zero=3",
    "cp=2,layers=8",
)


class Written(NamedTuple):
    """A changed job as files. differences: by form (kineto, chakra, perfetto), as fractions of the answer's step."""

    recording: str
    change: str
    differences: dict[str, float]

    @property
    def worst(self) -> float:
        return max(self.differences.values())


def sweep(folder: Path, words: Sequence[str]) -> Iterator[Written]:
    """Every change of every recording in a folder that is answered, as files."""
    for recording in sorted(path for path in folder.iterdir() if path.is_dir()):
        named = any(word in recording.name for word in words)
        asked = [change for change in CHANGES if not words or named or any(word in change for word in words)]
        if not asked:
            continue
        job = lumos.read(str(recording))
        graph = lumos.build(job)
        for change in asked:
            try:
                yield _written(recording.name, change, job, graph)
            except LumosError as error:
                print(f"{recording.name}: {change}: no answer: {error}"[:160], file=sys.stderr, flush=True)


def _written(recording: str, change: str, job: Job, graph: Graph) -> Written:
    answer = answer_changes(job, graph, Changes(parse_settings(change.split(","))))
    wanted = answer.outcome.step_time_s
    with tempfile.TemporaryDirectory() as draft:
        files = {form: Path(draft) / form for form in ("kineto", "chakra")}
        lumos.export(answer, kineto=files["kineto"], chakra=files["chakra"], perfetto=Path(draft) / "run.json.gz")
        differences = {form: _difference(path, wanted) for form, path in files.items()}
    marked = step_times(answer.timeline, members(answer.graph)).headline.step_time_ns
    differences["perfetto"] = abs(marked * 1e-9 / wanted - 1)
    found = Written(recording, change, differences)
    shown = ", ".join(f"{form} {difference:.3%}" for form, difference in differences.items())
    print(f"{recording}: {change}: {shown}", file=sys.stderr, flush=True)
    return found


def _difference(path: Path, wanted: float) -> float:
    """By how much the replay of what was written differs from the answer's step (s), or one of its steps from itself."""
    again = lumos.build(lumos.read(path))
    found = lumos.replay(again, simulate(again))
    single = [abs(step.error) for step in found.steps if step.error is not None]
    return max(abs(found.replayed_step_time_ns * 1e-9 / wanted - 1), *single)


def section(found: Sequence[Written]) -> str:
    """The text of its result file."""
    off = [each for each in found if each.worst > FIGURE]
    recordings, keys = {each.recording for each in found}, {key for each in found for key in _keys(each.change)}
    rows = [
        ("recordings; keys; answers", f"{len(recordings)}; {len(keys)}; {len(found)}"),
        *((f"`--{form}`: largest difference", f"{max(each.differences[form] for each in found):.3%}") for form in found[0].differences),
        (f"answers whose files differ by more than {FIGURE:.1%}", str(len(off))),
    ]
    lines = [
        "Written by `python -m validation.changed_files DIR --write`, with the recordings of `python -m validation.foreign --record DIR`.",
        "The step that each file replays to, against the step of the answer that it was written for.",
        "",
        markdown_table(("what", "reached"), rows),
        "",
        *([markdown_table(("recording", "change", "difference"), [(o.recording, o.change, f"{o.worst:.3%}") for o in off])] if off else []),
    ]
    return "\n".join(lines)


def _keys(change: str) -> list[str]:
    return [word.split("=")[0] for word in change.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = section(list(sweep(args.folder, args.words)))
    print(text)
    if args.write and not args.words:
        write_result("validation/results/changed-files.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
