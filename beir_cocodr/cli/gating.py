"""The gate for continuous integration, whose exit status is its decision."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import SEARCHING, takes
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.report.terminal import print_json

_SETTINGS_HELP = (
    "Load only the encoder of {} with this setting, such as query_prompt='query: '; repeat for "
    "several."
)


_Old = Annotated[
    str,
    Argument(
        help="Compare with this: a store that encode wrote, the folder of an index in it, a "
        "TREC run, a search engine (http:FILE), or a model named as for evaluate.",
        show_default=False,
    ),
]

_Margin = Annotated[
    float, Option(help="Fail if NEW is worse than OLD by more than this, in nDCG@10.")
]

_Labels = Annotated[
    bool | None,
    Option(
        "--labels/--no-labels",
        help="Use the labels of the split, or ignore them. Default: use them if the split has any.",
    ),
]

_Samples = Annotated[
    int, Option(help="Query both with this many spans of documents and as many generated queries.")
]

_SetOld = Annotated[
    list[str] | None, Option(help=_SETTINGS_HELP.format("OLD"), metavar="NAME=VALUE")
]

_SetNew = Annotated[
    list[str] | None, Option(help=_SETTINGS_HELP.format("NEW"), metavar="NAME=VALUE")
]


@takes("search", *SEARCHING, "stores", "verify")
def gate(
    old: _Old,
    new: Annotated[str, Argument(help="Judge this, named as OLD.", show_default=False)],
    dataset: parameters.Dataset,
    margin: _Margin = 0.01,
    output: Annotated[Path | None, Option(help="Write gate.json to this folder.")] = None,
    split: parameters.Split = "test",
    labels: _Labels = None,
    judgements: parameters.Judgements = None,
    identical_ids: parameters.Policy = "auto",
    samples: _Samples = 200,
    seed: Annotated[int, Option(help="Seed the choice of the queries with this number.")] = 42,
    set_old: _SetOld = None,
    set_new: _SetNew = None,
    *,
    search: SearchOptions,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Fail if NEW is worse than OLD, for continuous integration.

    The command ends with status 0 if NEW is not worse than OLD by more than the margin, with 1 if
    it is, with 3 if the evidence does not decide, and with 2 on bad input.
    """
    from beir_cocodr.evaluation.gate import GateOptions
    from beir_cocodr.evaluation.gate import gate as run

    options = GateOptions(
        margin=margin,
        samples=samples,
        seed=seed,
        split=split,
        labels=labels,
        judgements=judgements,
        identical_ids=identical_ids,
        old=_encoder_options("--set-old", set_old or ()),
        new=_encoder_options("--set-new", set_new or ()),
        overwrite=overwrite,
    )
    record = run(old, new, dataset, output=output, options=options, search=search)
    if as_json:
        print_json(record.to_json())
    else:
        print(record.paragraph)
    if record.exit_status:
        raise Exit(record.exit_status)


def _encoder_options(flag: str, assignments: Sequence[str]) -> EncoderOptions:
    """Return the encoder's settings by their names.

    Raises:
        InputError: an assignment names no setting, or its value is not allowed.
    """
    known = [field.name for field in fields(EncoderOptions) if field.name != "device"]
    values: dict[str, str | int] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"{flag} {assignment}: give NAME=VALUE with a name of {', '.join(known)}"
            )
        is_length = name.endswith("_length") and text.isdecimal()
        values[name] = int(text) if is_length else text
    return EncoderOptions(**values)  # type: ignore[arg-type]
