"""The command that writes vectors and fusion weights for a search engine."""

from typing import Annotated

from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.report.terminal import print_json
from beir_cocodr.retrieval.handover.engines import HandOverOptions


@names_models
@takes("settings", "to", "collection", "vectors")
@takes(
    "search",
    *("stores", "analyzer", "bm25_weight"),
    *("document_length", "title_separator", "device", "verify"),
)
def hand_over(
    dataset: parameters.Dataset,
    model: Annotated[
        str,
        plain(
            "Hand over the vectors of this encoder, those in the folder of a store, or with "
            "hybrid:M the vectors of M and the weights of the fusion."
        ),
    ],
    output: parameters.Output,
    *,
    settings: HandOverOptions,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Write vectors and fusion weights for a search engine.

    The README.md in the output folder has the commands that load them. Vectors rank by dot product.
    """
    from beir_cocodr.retrieval.handover.hand_over import hand_over as run

    record = run(model, dataset, output=output, options=settings, search=search)
    if as_json:
        print_json(record.to_json())
        return
    documents = f"{record.documents:,} documents"
    if not record.files:
        documents = "no documents, as --no-vectors says"
    print(
        f"{output}: {documents}, {record.dimensions} dimensions, for {record.engine}; "
        f"{output}/README.md says how to load them"
    )
