"""The command by which document vectors learn from judged queries."""

from pathlib import Path
from typing import Annotated

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import SEARCHING, plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report.terminal import print_json


@names_models
@takes("search", *SEARCHING, "stores", "verify")
def learn(
    dataset: parameters.Dataset,
    model: Annotated[str, plain("Teach this encoder, or the encoder of this fusion.")],
    judgements: Annotated[
        Path,
        plain(
            "Learn from this file: qrels, labels_wanted.tsv with its column judgement filled in, "
            "or a log of judgements. At least ten queries need a relevant document."
        ),
    ],
    output: Annotated[Path, plain("Write the learned vectors to this folder.")],
    *,
    search: SearchOptions,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Move document vectors by judged queries if that helps.

    The vectors of relevant documents move towards their queries. How far is chosen by
    cross-validation over the queries, and nothing moves unless queries that are held out gain.
    """
    from beir_cocodr.evaluation.judged_vectors import LearnOptions
    from beir_cocodr.evaluation.judged_vectors import learn as run

    options = LearnOptions(overwrite=overwrite)
    record = run(model, dataset, judgements, output, options, search)
    if as_json:
        print_json(record.to_json())
    else:
        print(f"{record.describe()}.")
