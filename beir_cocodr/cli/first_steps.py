"""The commands of the first minutes: quickstart, validate and doctor."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Context, Option

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import plain
from beir_cocodr.data.defects import Defect
from beir_cocodr.errors import InputError
from beir_cocodr.report.terminal import print_json, print_tables

_SECONDS_A_DAY = 86_400


def quickstart(
    context: Context,
    output: Annotated[
        Path | None,
        Option(
            help="Write models and results to this folder. Default: runs/quickstart, or "
            "runs/quickstart-fast with --fast."
        ),
    ] = None,
    fast: Annotated[
        bool, Option("--fast", help="Run a smaller quickstart, which takes less than two minutes.")
    ] = False,
    minutes: Annotated[
        float,
        Option(
            help="Choose the corpus and the training steps that fit into this many minutes, by "
            "how fast this machine encodes.",
            min=1,
        ),
    ] = 6.0,
    seed: Annotated[int, Option(help="Seed the whole run with this number.")] = 42,
    resume: parameters.Resume = False,
    as_json: parameters.Json = False,
) -> None:
    """Adapt MiniLM to a small built-in corpus.

    The corpus is the documentation of scipy and scikit-learn; the labelled source is that of the
    standard library, numpy, pandas and torch. On a machine that would take longer than --minutes,
    the corpus is that of scikit-learn alone. With --fast, both are smaller. Nothing is downloaded.
    """
    from beir_cocodr.report.evaluation_tables import print_adaptation
    from beir_cocodr.training.quickstart import quickstart as run

    if output is None:
        output = Path("runs/quickstart-fast" if fast else "runs/quickstart")
    context.params["output"] = output
    print_adaptation(run(output, fast, seed, resume, minutes), as_json)


def validate(
    dataset: parameters.Dataset,
    split: Annotated[
        str | None,
        plain(
            "Require this split of the qrels. Default: test if the collection has qrels; a "
            "collection without qrels passes."
        ),
    ] = None,
    as_json: parameters.Json = False,
    most: Annotated[
        int, Option(help="List at most this many defects of each kind; all of them are counted.")
    ] = 20,
) -> None:
    """List every defect of a collection with file and line.

    Missing labels are not a defect.
    """
    from beir_cocodr.data.validation import validate as find_defects

    defects = find_defects(dataset, split)
    errors = [defect for defect in defects if defect.severity == "error"]
    if as_json:
        print_json([asdict(defect) for defect in defects])
    else:
        for line in _describe_defects(dataset, defects, len(errors), most):
            print(line)
    if errors:
        raise InputError(
            f"{dataset} has {len(errors)} errors and cannot be loaded; correct the first one: "
            f"{errors[0]}"
        )


def _describe_defects(
    dataset: str,
    defects: Sequence[Defect],
    errors: int,
    most: int,
) -> Iterator[str]:
    from beir_cocodr.data.collection import has_labels
    from beir_cocodr.data.validation import summarize
    from beir_cocodr.report.evaluation_tables import defect_lines

    yield from defect_lines(defects, most)
    counts = ", ".join(f"{kind}: {count}" for kind, count in summarize(defects).items())
    summary = f"{dataset}: {errors} errors, {len(defects) - errors} warnings"
    yield f"{summary} ({counts})" if counts else summary
    if not errors and not has_labels(dataset):
        yield (
            f"{dataset} has no labels, and needs none: compare judges models without labels, and "
            "search shows what they retrieve"
        )


def doctor(
    hub_timeout: Annotated[
        float, Option(help="Wait this many seconds for the hub.", min=0.1)
    ] = 3.0,
    as_json: parameters.Json = False,
) -> None:
    """Show what is installed, and how to get what is missing."""
    from beir_cocodr.doctor import doctor as run
    from beir_cocodr.report.terminal import doctor_table

    if not hub_timeout < _SECONDS_A_DAY:  # refuses nan, too
        raise InputError(f"--hub-timeout {hub_timeout}: give fewer than {_SECONDS_A_DAY} seconds")
    surroundings = run(hub_timeout)
    if as_json:
        print_json(asdict(surroundings))
    else:
        print_tables(doctor_table(surroundings))
