"""Files of a prediction that are read as if devices had run the job: they do not say that it was predicted."""

from dataclasses import replace

from lumos.reports.export.kineto import write_kineto
from lumos.trace import read


def like_recorded(folder, prediction, **options):
    """The job of the files that `write_kineto` makes of a prediction."""
    write_kineto(str(folder), prediction, **options)
    return without_origin(read(str(folder)))


def without_origin(job):
    """The same job, of which nothing says what was predicted; the sizes of each rank's part stay known."""
    said = ({"origin": "modelled", "sizes": t.metadata["lumos"]["sizes"]} for t in job.traces)
    traces = (replace(t, metadata={**t.metadata, "lumos": facts}) for t, facts in zip(job.traces, said, strict=True))
    return replace(job, traces=tuple(traces))
