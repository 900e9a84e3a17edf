"""The commands of the group ``study``: the analyses of the papers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from rich.table import Table
from typer import Context, Option

from beir_cocodr.analysis import RepresentationOptions, SourceClusterOptions
from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import SEARCHING, plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Report
from beir_cocodr.report import png_pictures
from beir_cocodr.report.terminal import print_record
from beir_cocodr.run_folder import results_folder

R = TypeVar("R", bound=Report)


@dataclass(frozen=True)
class Delivery(Generic[R]):
    """The way in which the result of an analysis is written and printed.

    Attributes:
        file: name of the record in the output folder.
        tables: makes the tables that are printed.
        picture: name of the picture in the output folder.
        draw: draws the picture; None for no picture.
    """

    file: str
    tables: Callable[[R], Iterable[Table]]
    picture: str
    draw: Callable[[Path, R], None] | None

    def deliver(self, record: R, output: Path | None, as_json: bool) -> None:
        """Draw and write a record, if there is an output folder, and print it."""
        if output is not None:
            if self.draw is not None:
                self.draw(output / self.picture, record)
                record = replace(record, picture=self.picture)
            record.write(output / self.file)
        print_record(record, as_json, self.tables)


TrainingQueries = Annotated[
    str,
    plain(
        "Take the training queries from this dataset: a BEIR folder, irds:ID, BEIR's short name, "
        "or apidocs/DOMAIN."
    ),
]

TestQueries = Annotated[
    list[str],
    plain("Take the test queries from this dataset; repeat for several that count as one."),
]


@names_models
@takes("search", *SEARCHING)
def qpp(
    context: Context,
    dataset: parameters.Dataset,
    model: Annotated[str, plain("Predict the quality of this model, named as for evaluate.")],
    output: parameters.Output,
    per_query: Annotated[
        Path | None,
        Option(
            help="Read the quality of each query from this NAME.per_query.tsv, which evaluate "
            "wrote, instead of searching."
        ),
    ] = None,
    measure: Annotated[
        str, Option(help="Predict this measure, named as in ir-measures.")
    ] = "nDCG@10",
    split: parameters.Split = "test",
    word_vectors: Annotated[
        bool,
        Option(help="Train word vectors on the corpus, for the predictors MaxDC and P_clarity."),
    ] = False,
    picture: parameters.Picture = None,
    identical_ids: parameters.Policy = "auto",
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Predict the quality of single queries.

    Predictors of query performance, including the variance of an MRL, are correlated with the
    measure of each query.
    """
    from beir_cocodr.analysis.predictors import variance_predictors, word_vector_predictors
    from beir_cocodr.analysis.qpp import QPP, QPPOptions
    from beir_cocodr.analysis.qpp import qpp as run
    from beir_cocodr.report.analysis_tables import qpp_table

    drawn = png_pictures.will_draw(picture, True, "")
    with results_folder(output, parameters.this_run(context), overwrite) as folder:
        predictors = variance_predictors(model, dataset, split, search.encoder)
        if word_vectors:
            text_format = search.encoder.text_format
            predictors |= word_vector_predictors(dataset, split, text_format, search.analyzer)
        prediction = run(
            model,
            dataset,
            output=folder,
            per_query=per_query,
            predictors=predictors,
            options=QPPOptions(measure, split, identical_ids),
            search=search,
        )
        prediction.write_values(folder / prediction.record.values)
        delivery = Delivery[QPP](
            "qpp.json",
            lambda record: [qpp_table(record)],
            "qpp.png",
            (lambda path, _: png_pictures.qpp_picture(path, prediction)) if drawn else None,
        )
        delivery.deliver(prediction.record, folder, as_json)


def shift(
    context: Context,
    source: Annotated[
        str,
        plain(
            "Measure the distance from this collection, which a model is trained on; name it "
            "as for evaluate."
        ),
    ],
    target: Annotated[
        list[str], plain("Compare this collection with the source; repeat for several.")
    ],
    split: Annotated[
        str | None,
        Option(
            help="Use this split of the targets' queries. Default: test, or all queries "
            "without such a split."
        ),
    ] = None,
    source_split: Annotated[
        str | None,
        Option(
            help="Use this split of the source's queries. Default: train, or all queries "
            "without such a split."
        ),
    ] = None,
    output: Annotated[
        Path | None, Option(help="Write shift.json and shift.png to this folder.")
    ] = None,
    results: parameters.ResultsFiles = None,
    measure: parameters.ResultsMeasure = "nDCG@10",
    baseline: Annotated[
        str | None,
        Option(help="Subtract the scores of this model in the results, such as bm25."),
    ] = None,
    picture: parameters.Picture = None,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Measure how far targets are from a source.

    Words of documents and types of queries are compared by weighted Jaccard similarity.
    """
    from beir_cocodr.analysis.shift import shift as run
    from beir_cocodr.report.analysis_tables import shift_tables

    can_draw = output is not None and bool(results)
    drawn = png_pictures.will_draw(picture, can_draw, "give --results and --output")
    with parameters.results(context, output, overwrite) as folder:
        record = run(
            target,
            source=source,
            split=split,
            source_split=source_split,
            results=results or (),
            measure=measure,
            baseline=baseline,
        )
        draw = png_pictures.shift_picture if drawn else None
        Delivery("shift.json", shift_tables, "shift.png", draw).deliver(record, folder, as_json)


@names_models
@takes("settings", "sample", "batch_size", "temperature", "span_tokens", "seed")
@takes("search", "document_length", "title_separator", "batch_size", "device")
def representation(
    context: Context,
    dataset: Annotated[
        list[str], plain("Use this corpus, named as for evaluate; repeat for several.")
    ],
    model: Annotated[
        list[str],
        plain("Measure this encoder; give two to compare them as before and after training."),
    ],
    output: Annotated[
        Path | None,
        Option(help="Write representation.json and representation.png to this folder."),
    ] = None,
    *,
    settings: RepresentationOptions,
    results: parameters.ResultsFiles = None,
    measure: parameters.ResultsMeasure = "nDCG@10",
    picture: parameters.Picture = None,
    overwrite: parameters.Overwrite = False,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Measure alignment and uniformity of encoders.

    The contrastive loss is measured as well. Two encoders are compared as before and after
    training.
    """
    from beir_cocodr.analysis.representation import representation as run
    from beir_cocodr.report.analysis_tables import representation_tables

    drawn = png_pictures.will_draw(picture, output is not None, "give --output")
    with parameters.results(context, output, overwrite) as folder:
        record = run(
            model,
            dataset,
            results=results or (),
            measure=measure,
            options=settings,
            search=search,
        )
        delivery = Delivery(
            "representation.json",
            representation_tables,
            "representation.png",
            png_pictures.representation_picture if drawn else None,
        )
        delivery.deliver(record, folder, as_json)


@takes("settings", "clusters", "sample", "negatives", "cases", "nearest", "seed")
@takes("search", "query_length", "document_length", "title_separator", "batch_size", "device")
def source_clusters(
    context: Context,
    source: Annotated[
        str, plain("Use this labelled collection, on which the models were trained.")
    ],
    target: Annotated[
        list[str],
        plain(
            "Compare the source queries with the queries of this collection; repeat for several."
        ),
    ],
    before: Annotated[str, plain("Measure this encoder first, such as one trained without iDRO.")],
    after: Annotated[
        str, plain("Compare the first encoder with this one, such as one trained with iDRO.")
    ],
    output: Annotated[
        Path | None,
        Option(help="Write source_clusters.json and source_clusters.png to this folder."),
    ] = None,
    *,
    settings: SourceClusterOptions,
    query: Annotated[
        list[str] | None,
        Option(help="Show the target query with this id as a case; repeat for several."),
    ] = None,
    source_split: Annotated[str, Option(help="Use this split of the source's qrels.")] = "train",
    split: Annotated[str, Option(help="Use this split of the targets' queries.")] = "test",
    results: parameters.ResultsFiles = None,
    measure: parameters.ResultsMeasure = "nDCG@10",
    picture: parameters.Picture = None,
    overwrite: parameters.Overwrite = False,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Find the source queries that resemble a target.

    The record says whether training lowered the loss on the nearest cluster and helped the target.
    """
    from beir_cocodr.analysis.source_clusters import source_clusters as run
    from beir_cocodr.report.analysis_tables import source_clusters_tables

    can_draw = output is not None and bool(results)
    drawn = png_pictures.will_draw(picture, can_draw, "give --results and --output")
    with parameters.results(context, output, overwrite) as folder:
        record = run(
            [before, after],
            target,
            source=source,
            results=results or (),
            measure=measure,
            options=replace(
                settings, source_split=source_split, split=split, queries=tuple(query or ())
            ),
            search=search,
        )
        delivery = Delivery(
            "source_clusters.json",
            source_clusters_tables,
            "source_clusters.png",
            png_pictures.source_clusters_picture if drawn else None,
        )
        delivery.deliver(record, folder, as_json)


@takes("search", "query_length", "batch_size", "device")
def overlap(
    context: Context,
    train: TrainingQueries,
    test: TestQueries,
    train_split: Annotated[str, Option(help="Use this split of the training queries.")] = "train",
    test_split: Annotated[str, Option(help="Use this split of the test queries.")] = "test",
    encoder: Annotated[
        str | None,
        Option(
            help="Find the nearest training queries with this encoder. Default: by their words."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option(help="Write overlap.json, nearest.tsv and similarity.png to this folder."),
    ] = None,
    picture: parameters.Picture = None,
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Measure how much of a test set was trained on.

    Labels and queries that occur in both sets are counted.
    """
    from beir_cocodr.report.analysis_tables import overlap_tables
    from beir_cocodr.resampling.overlap import overlap as run

    drawn = png_pictures.will_draw(picture, output is not None, "give --output")
    with parameters.results(context, output, overwrite) as folder:
        record = run(
            train,
            test,
            train_split=train_split,
            test_split=test_split,
            model=encoder,
            search=search,
        )
        if folder is not None:
            record.write_nearest(folder / "nearest.tsv")
        draw = png_pictures.overlap_picture if drawn else None
        delivery = Delivery("overlap.json", overlap_tables, "similarity.png", draw)
        delivery.deliver(record, folder, as_json)
