"""Queries for the passages of a corpus, as a BEIR folder that can be trained on.

An output belongs to one :class:`~beir_cocodr.generation.shards.GenerationPlan`: any number of
processes may follow it at the same time, and whichever finishes the last shard writes the folder.
"""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from beir_cocodr.data.beir_folder import link_corpus
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.passages import PassageReader
from beir_cocodr.data.text import WORDS, TokenCounter, load_tokenizer, token_counter, word_counter
from beir_cocodr.errors import InputError, naming_full_disk
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.shards import (
    GENERATION_FILE,
    SHARDS,
    ConsistencyFilter,
    GeneratedFrom,
    GenerationPlan,
    GenerationRecord,
    Generator,
    QueryShards,
    clean_queries,
    read_generation,
    select_queries,
    write_queries,
)
from beir_cocodr.io import is_incidental, locked, output_folder, remove_unfinished
from beir_cocodr.models.spec import BM25, EncoderOptions, SearchOptions, check_device
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json, versions
from beir_cocodr.same_run import check_same_run

_PLAN_FILE = "plan.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnfinishedGeneration:
    """What there is while others have not finished their part: number of shards, and of missing
    ones.
    """

    shards: int
    missing: int

    def to_json(self) -> Json:
        return asdict(self)


def _lock_generation(output: Path, plan: GenerationPlan) -> GenerationRecord | None:
    """Take ``output`` for a plan, with others that follow it; the record that is there where
    nothing is left to do.
    """
    output_folder(output, utf8=True)
    if (output / GENERATION_FILE).is_file():
        record = read_generation(output)
        _check_plan(output, record, plan, with_selection=True)
        with locked(output):  # after a run that died as it finished
            _tidy(output)
        return record
    begun = output / SHARDS / _PLAN_FILE
    found = [*output.iterdir(), *(output / SHARDS).glob("*")]
    # What other processes of this plan make as they begin, or left as they died, is no obstacle.
    if not begun.is_file() and any(
        path != output / SHARDS and not is_incidental(path) for path in found
    ):
        raise InputError(
            f"{output} is not empty, and no queries were generated in it; choose another --output"
        )
    with locked(output):
        if begun.is_file():
            _check_plan(output, GenerationPlan.read(begun), plan, with_selection=False)
        else:
            plan.write(begun)
    return None


def _check_plan(
    output: Path, before: GenerationPlan, now: GenerationPlan, with_selection: bool
) -> None:
    check_same_run(output, before.identity(with_selection), now.identity(with_selection))


def _tidy(output: Path) -> None:
    """Remove what only unfinished work needs, and what runs that were killed left of it."""
    shutil.rmtree(output / SHARDS, ignore_errors=True)
    for folder in (output, *output.glob("*qrels")):
        remove_unfinished(folder)


def generate_queries(
    dataset: str | Path,
    generator: str,
    output: Path,
    options: GenerationOptions | None = None,
    part: tuple[int, int] = (1, 1),
    device: str | None = None,
    progress: bool = False,
) -> GenerationRecord | UnfinishedGeneration:
    """Generate queries for the passages of a corpus. An InputError: the corpus, the generator, the
    tokenizer or the retriever of the filter cannot be had, no passage gives a query, or ``output``
    is taken.

    The corpus is cut into shards of consecutive documents. A shard's file appears when the shard is
    finished, so that the same call goes on where a killed one was; and any number of processes may
    share the shards, each doing its part. Whichever finishes the last shard writes the folder: a
    BEIR folder (also in BEIR's and GPL's qgen layout) with ``queries.jsonl``, ``qrels/train.tsv``,
    the corpus linked, and ``generation.json``. What it holds depends neither on interruptions nor
    on the number of processes.

    Args:
        dataset: as for ``load_collection``; only its documents are read.
        generator: ``lexical``, or a language model as a hub name or folder.
        output: an empty folder, or one in which the same generation was begun.
        options: see :class:`GenerationOptions`.
        part: (i, n), which of n processes this is, from 1.
        device: of models; default: a GPU if there is one.
        progress: show bars on stderr.

    Returns:
        The record of the folder; while others have not finished their part, how many shards are
        missing.

    Source: Wu et al., 2023 (Query-as-context Pre-training), section 3.1.
    """
    options = options or GenerationOptions()
    number, parts = part
    if not 1 <= number <= parts:
        raise InputError(f"shard {number}/{parts}: use i/n with i from 1 to n")
    check_device(
        device, [BM25 if generator == "lexical" else generator, options.filter_retriever or BM25]
    )
    collection = load_collection(dataset, labels="none")
    documents = collection.documents
    maker, counter = _generator(generator, documents, options, device)
    consistency = None
    if options.filter_retriever is not None:
        search = SearchOptions(
            EncoderOptions(device=device), options.analyzer, options.bm25_weight, progress=progress
        )
        consistency = ConsistencyFilter(
            documents, options.filter_retriever, options.filter_top, search
        )
    source = GeneratedFrom(
        documents.content_hash, collection.name, len(documents), collection.counts
    )
    plan = GenerationPlan(
        source,
        options.generation(),
        maker.describe(),
        counter.sha256,
        selection=options.selection(),
    )
    if (record := _lock_generation(output, plan)) is not None:
        return record
    shards = QueryShards(output, len(documents), options.shard_documents)
    with naming_full_disk(output, shards.describe):
        reader = PassageReader(
            documents, options.text_format, counter.count, options.passage_tokens, options.language
        )
        with _unless_finished(output):
            if mine := [shard for shard in shards.missing() if shard % parts == number - 1]:
                if options.max_passages is not None:
                    reader.draw(options.max_passages, options.seed, shards.folder)
                maker.prepare(shards.folder)
            for shard in Bar(mine, desc="Queries", unit=" shards", disable=not progress):
                if (
                    output / GENERATION_FILE
                ).is_file():  # others had the same part, and have finished
                    break
                begun = time.perf_counter()
                passages, counts = reader.read(shards.rows(shard))
                generated = maker.generate(passages, shard)
                queries, cleaned = clean_queries(generated.queries, options.max_length)
                shards.write(
                    shard,
                    passages,
                    queries,
                    counts | generated.counts | cleaned,
                    time.perf_counter() - begun,
                )
        if (missing := shards.missing()) and not (output / GENERATION_FILE).is_file():
            log.info(
                "%s: %d of %d shards are left to other processes",
                output,
                len(missing),
                shards.count,
            )
            return UnfinishedGeneration(shards.count, len(missing))
        return _finish(output, shards, collection, plan, options, consistency)


@contextmanager
def _unless_finished(output: Path) -> Iterator[None]:
    """Whoever finishes removes the folder of the shards, also under the hands of those who had the
    same part.
    """
    try:
        yield
    except (FileNotFoundError, InputError):
        if not (output / GENERATION_FILE).is_file():
            raise


def _generator(
    name: str, documents: Documents, options: GenerationOptions, device: str | None
) -> tuple[Generator, TokenCounter]:
    counting = options.counting(name)
    if name == "lexical":
        from beir_cocodr.generation.lexical import LexicalGenerator

        if options.prefix is not None or options.prompt is not None:
            raise InputError("the lexical generator reads no prefix and no prompt; leave them out")
        assert counting is not None
        return LexicalGenerator(documents, options), named_counter(counting)
    # Imported here because a run without a model must not pay for torch.
    from beir_cocodr.generation.language_model import ModelGenerator

    model = ModelGenerator(name, options, device)
    return model, model.counter if counting is None else named_counter(counting)


def _finish(
    output: Path,
    shards: QueryShards,
    collection: Collection,
    plan: GenerationPlan,
    options: GenerationOptions,
    consistency: ConsistencyFilter | None,
) -> GenerationRecord:
    with locked(output):
        if (output / GENERATION_FILE).is_file():  # another process was faster
            _tidy(output)
            return read_generation(output)
        begun = time.perf_counter()
        counts, seconds = shards.totals()
        if counts["generated"] == counts["empty"]:
            _tidy(output)
            raise InputError(_describe_nothing(collection.name, counts))
        kept, selected = select_queries(shards, options.dedupe, consistency)
        if not kept.any():
            raise InputError(
                f"{collection.name}: no query finds its document among the first {options.filter_top} of "
                f"{options.filter_retriever}; raise --filter-top, or filter with another retriever"
            )
        link_corpus(collection, output)
        written = write_queries(shards, kept, collection.documents, output)
        record = GenerationRecord(
            **vars(plan),
            counts=dict(counts) | selected | written,
            seconds={
                "generating": round(seconds, 3),
                "selecting": round(time.perf_counter() - begun, 3),
            },
            versions=versions() | {"sentencex": version("sentencex")},
        )
        # The record comes last: its presence says that the folder is complete.
        record.write(output / GENERATION_FILE)
        _tidy(output)
    counted = ", ".join(f"{kind}: {count}" for kind, count in record.counts.items() if count)
    log.info("%s: %s", collection.name, counted)
    return record


def _describe_nothing(name: str, counts: dict[str, int]) -> str:
    if not counts["passages"]:
        return f"{name}: no document has any text, so there is nothing to generate queries from"
    return (
        f"{name}: {counts['passages']} passages gave {counts['generated']} queries, none with any text; "
        "try longer documents or another generator"
    )


def named_counter(name: str) -> TokenCounter:
    """Counts by a name: ``words``, ``minilm``, a folder with a tokenizer, or a name on the hub."""
    if name == WORDS:
        return word_counter()
    # Imported here because counting words must not cost the seconds that transformers takes.
    from beir_cocodr.models.loading import model_source

    return token_counter(load_tokenizer(model_source(name)))
