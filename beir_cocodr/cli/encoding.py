"""The commands that write vectors: a store that searches reuse, or files for a search engine."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Context, Option

from beir_cocodr import load_plugin
from beir_cocodr.cli import parameters
from beir_cocodr.cli.carried import refuse_unused, was_given
from beir_cocodr.cli.flags import ENCODING, plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.records import Record
from beir_cocodr.report.terminal import print_json
from beir_cocodr.retrieval.handover.engines import HandOverOptions
from beir_cocodr.retrieval.store.record import EncodeOptions, Sharpening

_Output = Annotated[Path, plain("Write the store to this folder; an interrupted one is resumed.")]

_Dense = Annotated[
    Path | None,
    plain(
        "Take the dense part of a hybrid encoder from this store of the encoder that it was "
        "fused from, instead of encoding the texts."
    ),
]

_Update = Annotated[
    bool,
    Option(
        "--update",
        help="Update the store to the present corpus; texts that it already contains are not "
        "encoded again.",
    ),
]

_Sharpen = Annotated[
    Path | None,
    plain(
        "Move the vector of each document towards the queries that generate-queries wrote for it "
        "to this folder. Default: leave vectors as they are."
    ),
]

_SharpenWeight = Annotated[
    float | None,
    plain(
        "With --sharpen, give the mean of a document's queries this weight, above 0 and at most 1. "
        "Default: 0.25."
    ),
]

# The options that a store keeps when it is updated, and all that only encoding reads.
_OF_A_STORE = ("shard_size", "precision", "backend")
_OF_PROCESSES = ("processes", "threads")
_OF_SHARPENING = ("sharpen", "sharpen_weight")
_OF_ENCODING = (*_OF_A_STORE, "token_budget", "verify", *_OF_PROCESSES, *_OF_SHARPENING)


@names_models
@takes("settings", "shard_size", "precision", "backend", "token_budget", "verify")
@takes("encoder", *ENCODING)
def encode(
    context: Context,
    dataset: parameters.Dataset,
    model: Annotated[str, plain("Encode with minilm, a folder or a hub name.")],
    output: _Output,
    *,
    settings: EncodeOptions,
    processes: parameters.Processes = None,
    threads: parameters.Threads = None,
    ray: parameters.RayAddress = None,
    dense: _Dense = None,
    update: _Update = False,
    sharpen: _Sharpen = None,
    sharpen_weight: _SharpenWeight = None,
    encoder: EncoderOptions,
    as_json: parameters.Json = False,
) -> None:
    """Encode a corpus into a store that searches reuse.

    The store is written in shards; a shard that is on disk is never encoded again.
    """
    from beir_cocodr.retrieval.store.encode import encode as run
    from beir_cocodr.retrieval.vectors.pool import Workers

    _check_passes(context, dense is not None, update, ray is not None)
    settings = replace(settings, sharpening=_sharpening(sharpen, sharpen_weight))
    if dense is not None or update:
        from beir_cocodr.retrieval.store.passes import pass_over

        asked = [name for name in _OF_A_STORE if was_given(context, name)]
        report = pass_over(
            dataset=dataset,
            name=model,
            output=output,
            dense=dense,
            encoder=encoder,
            updated=settings if update else None,
            asked={name: getattr(settings, name) for name in asked},
        )
    elif ray is None:
        count = 1 if processes is None else processes
        report = run(
            dataset,
            model,
            output,
            settings,
            encoder=encoder,
            workers=Workers(count, threads),
            progress=True,
        )
    else:
        encode_on_ray = load_plugin("ray encode")
        report = encode_on_ray(
            dataset,
            model,
            output,
            settings,
            load_plugin("ray cluster")(ray, processes, threads),
            progress=True,
            encoder=encoder,
        )
    _print_report(output, report, as_json)


def _print_report(output: Path, report: Mapping[str, object], as_json: bool) -> None:
    """Print what was encoded, as JSON or as text."""
    if as_json:
        print_json(report)
        return
    for line in _describe_store(output, _StoreReport.from_json(report, output)):
        print(line)


def _sharpening(folder: Path | None, weight: float | None) -> Sharpening | None:
    """Return how vectors are sharpened, None where no folder of queries is named.

    Raises:
        InputError: There is a weight and no folder, or the weight is out of range.
    """
    if folder is not None:
        from beir_cocodr.generation.query_context import GeneratedQueries

        queries = GeneratedQueries(folder)
        return Sharpening(queries) if weight is None else Sharpening(queries, weight)
    if weight is not None:
        raise InputError(
            "--sharpen-weight does nothing without --sharpen; name the folder of generated queries"
        )
    return None


def _check_passes(context: Context, adds_terms: bool, updates: bool, on_ray: bool) -> None:
    """Check that at most one of the special passes was asked for, with options that it reads.

    Raises:
        InputError: Several were, or an option does nothing beside one.
    """
    if adds_terms + updates + on_ray > 1:
        raise InputError("--dense, --update and --ray exclude each other: give only one of them")
    if adds_terms:
        refuse_unused(context, _OF_ENCODING, "--dense")
    if updates:
        refuse_unused(context, (*_OF_PROCESSES, *_OF_SHARPENING), "--update")


@dataclass(frozen=True)
class RayUsage(Record):
    """The use of a Ray cluster.

    Attributes:
        actors: actors that worked.
        died: actors that died and were replaced.
        tasks_by_node: node to the number of its tasks.
    """

    actors: int
    died: int
    tasks_by_node: dict[str, int]

    def describe(self) -> str:
        """Return the end of a sentence about the work."""
        nodes = len(self.tasks_by_node)
        plural = "" if nodes == 1 else "s"
        text = f" by {self.actors} actors on {nodes} node{plural} of Ray"
        if self.died:
            text += f"; {self.died} of them died and were replaced"
        return text


@dataclass(frozen=True)
class _RefitLine:
    """A sentence that says if a hybrid encoder should be fused again."""

    line: str


@dataclass(frozen=True)
class _StoreReport(Record):
    """The part of an encoding's report that is printed as text."""

    documents: int
    dimensions: int
    shards: int
    bytes: int
    documents_encoded: int
    encoding_seconds: float
    ray: RayUsage | None = None
    refit: _RefitLine | None = None
    sharpened_documents: int | None = None


def _describe_store(output: Path, report: _StoreReport) -> Iterator[str]:
    from beir_cocodr.progress import describe_size

    ray = "" if report.ray is None else report.ray.describe()
    size = describe_size(report.bytes)
    yield (
        f"{output}: {report.documents} documents of {report.dimensions} dimensions in "
        f"{report.shards} shards, {size}; {report.documents_encoded} encoded now, "
        f"in {report.encoding_seconds:.1f} seconds{ray}"
    )
    if report.sharpened_documents is not None:
        yield (
            f"{report.sharpened_documents} of {report.documents} documents have generated queries, "
            "towards which their vectors were moved"
        )
    if report.refit is not None:
        yield report.refit.line


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

    The README.md in the output folder has the commands that load them. Rank by dot product.
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
