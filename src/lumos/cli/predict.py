"""`lumos predict`: the step of a configuration, no trace needed; and `lumos validate`: predict published runs, and score."""

from typing import Annotated, Any

import typer

from lumos.cli.options import Assigned, takes, with_assigned
from lumos.cli.output import Chakra, Clock, Json, Kineto, Perfetto, answer
from lumos.cli.progress import progress
from lumos.plan.words import JobWords

#: How many of the rows that are furthest off the text explains.
WORST = 10


@takes(JobWords)
def predict(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE.toml]", help="A file of settings; options override them.", show_default=False)
    ] = None,
    assigned: Assigned = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.csv", help="Steps of your own, as validate reads them: they calibrate the answer.", show_default=False),
    ] = None,
    blocks: Annotated[
        bool | None, typer.Option("--blocks/--kernels", help="Simulate whole blocks, or every kernel.", show_default=False)
    ] = None,
    perfetto: Perfetto = None,
    chakra: Chakra = None,
    kineto: Kineto = None,
    ranks: Annotated[str, typer.Option(help="Ranks of --kineto: 'stages' (one per pipeline stage) or 'all'.")] = "all",
    json: Json = False,
    **words: Any,
) -> None:
    """Predict the step of a configuration: how long it takes, how much memory it needs, what bounds it.

    Where no size of the plan is given, that of the fastest plan that fits. The exit status is 1 where nothing fits.
    """
    from lumos.errors import UsageError
    from lumos.output_files import check_outputs, check_places
    from lumos.reports.text.predict import print_prediction
    from lumos.searching.facade import predict as predicted

    if kineto is None and ranks != "all":
        raise UsageError("--ranks changes what --kineto writes; give --kineto DIR, or leave it out")
    check_outputs((perfetto, chakra, kineto), (*(() if file is None else (file,)), *(measured or ())))
    check_places(perfetto, folders=(chakra, kineto))
    coarse = False if any((perfetto, chakra, kineto)) else blocks
    prediction = predicted(file, blocks=coarse, measured=measured or (), **with_assigned(words, assigned))
    if perfetto is not None or chakra is not None:
        from lumos.reports.export.job import export

        export(prediction, perfetto=perfetto, chakra=chakra)
    if kineto is not None:
        from lumos.reports.export.kineto import write_kineto

        write_kineto(kineto, prediction, ranks=ranks)
    answer(prediction, json, print_prediction)
    if not prediction.memory.fits:
        raise typer.Exit(1)


def validate(
    tables: Annotated[list[str], typer.Argument(metavar="FILE.csv...", help="Tables of measured runs.", show_default=False)],
    json: Json = False,
) -> None:
    """Predict every row of tables of measured runs, and score the predictions.

    The exit status is 1 where no row could be scored.
    """
    from lumos.errors import LumosError
    from lumos.prediction.validate import explained
    from lumos.prediction.validate import validate as validated
    from lumos.reports.text.validate import print_validation

    clock = Clock()
    scores = validated(*tables, progress=progress("predicting", "rows"))
    result = {**scores.to_dict(), "seconds_s": clock.lap()}
    answer(result, json, lambda out, figures: print_validation(out, scores.rows, figures, explained(scores.rows, WORST)))
    if not result["scored"]:
        raise LumosError(f"{', '.join(tables)}: no row could be scored; each says above why it was skipped")
