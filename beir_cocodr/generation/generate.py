"""Queries for the passages of a corpus, as a BEIR folder to train on.

An output belongs to one :class:`~beir_cocodr.generation.generation_record.GenerationPlan`: any
number of processes may follow it at the same time, and the one that finishes the last shard writes
the folder.
"""

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import cast

from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.collection import Collection, Dataset, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.beir_folder import link_corpus
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.passages import Passage, PassageReader
from beir_cocodr.data.text import WORDS, TokenCounter, load_tokenizer, token_counter, word_counter
from beir_cocodr.distributed import (
    do_each,
    join_processes,
    on_main,
    rank,
    world_size,
)
from beir_cocodr.errors import InputError, naming_full_disk, quoted
from beir_cocodr.generation.generation_record import (
    GENERATION_FILE,
    GeneratedFrom,
    GenerationPlan,
    GenerationRecord,
    read_generation,
)
from beir_cocodr.generation.generators import (
    Generator,
    WritingGenerator,
    build_generator,
    generator_kind,
)
from beir_cocodr.generation.kept_queries import KeptGenerator, describe_costs
from beir_cocodr.generation.query_kinds import kinds_in_turn
from beir_cocodr.generation.query_selection import (
    ConsistencyFilter,
    DuplicateRule,
    clean_queries,
    select_queries,
    write_queries,
)
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.shards import SHARDS, QueryShards, ShardHead
from beir_cocodr.io import is_incidental, locked, output_folder, output_path, remove_unfinished
from beir_cocodr.models.spec import BM25, EncoderOptions, SearchOptions, check_device
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json, versions
from beir_cocodr.same_run import check_same_run

_PLAN_FILE = "plan.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnfinishedGeneration:
    """The state of an output while other processes have not finished their part.

    Attributes:
        shards: Number of shards.
        missing: Number of those that are not finished.
    """

    shards: int
    missing: int

    def to_json(self) -> Json:
        """Return the fields as plain JSON."""
        return asdict(self)


def generate_queries(
    dataset: Dataset,
    generator: str,
    output: str | Path,
    options: GenerationOptions | None = None,
    part: tuple[int, int] = (1, 1),
    device: str | None = None,
    progress: bool = False,
) -> GenerationRecord | UnfinishedGeneration:
    """Generate queries for the passages of a corpus.

    The corpus is divided into shards of consecutive documents. The file of a shard appears when the
    shard is finished, so the same call resumes one that was killed, and any number of processes may
    share the shards, each writing its part. The process that finishes the last shard writes a BEIR
    folder (also in BEIR's and GPL's qgen layout) with ``queries.jsonl``, ``qrels/train.tsv``, the
    corpus linked, and ``generation.json``. Its queries depend neither on interruptions nor on the
    number of processes; where a language model writes kinds of queries, which are kept batch by
    batch, this holds up to the model's rounding, as it reads the missing passages together in
    other batches. The processes of a run that ``torchrun`` started share the shards and the
    searches of the filter by themselves, each on its own GPU, and the first one writes the folder.

    Args:
        dataset: A collection as for ``load_collection``; only its documents are read.
        generator: ``lexical``, another name in
            :data:`~beir_cocodr.generation.generators.GENERATORS`, or a language model by its hub
            name or folder.
        output: An empty folder, or one in which the same generation was begun.
        options: How queries are generated, and which of them are kept.
        part: (i, n): this is the i-th of n processes, counted from 1. ``torchrun`` sets it.
        device: Device of models. Default: a GPU if there is one.
        progress: Show bars on stderr.

    Returns:
        The record of the folder, or the number of missing shards while other processes have not
        finished their part.

    Raises:
        InputError: The corpus, the generator, the tokenizer or the retriever of the filter cannot
            be loaded, no passage gets a query, the output belongs to another generation, or a part
            is named under ``torchrun``.

    References:
        Wu et al., Query-as-context pre-training for dense passage retrieval, 2023, section 3.1.
    """
    options = options or GenerationOptions()
    output = output_path(output)
    join_processes(device)
    own_part = _own_part(part)
    _check_device(generator, options, device)
    collection = load_collection(dataset, labels="none")
    documents = collection.documents
    language = language_of(options, documents)
    options = replace(options, language=language)
    writer = build_generator(generator, documents, options, device)
    kind = generator_kind(generator)
    if kind.writes and options.kinds:
        writer = KeptGenerator(cast(WritingGenerator, writer), options)
    counter = _passage_counter(writer, options)
    consistency = _consistency_filter(documents, options, device, progress)
    plan = GenerationPlan(
        dataset=_generated_from(collection),
        settings=options.generation(),
        generator=writer.describe(),
        tokenizer_sha256=counter.sha256,
        selection=options.selection(),
    )
    record = on_main(lambda: _lock_generation(output, plan))
    if record is not None:
        return record
    shards = QueryShards(output, len(documents), options.shard_documents)
    reader = PassageReader(
        documents=documents,
        text_format=options.text_format,
        count=counter.count,
        limit=options.passage_tokens,
        language=language,
    )
    if kind.writes and shards.missing():
        writing = cast(WritingGenerator, writer)
        log.info("%s", describe_costs(generator, reader, writing, options, shards))
    with naming_full_disk(output, shards.describe):
        own_shards = _own_shards(shards, own_part, progress)

        def write() -> None:
            with _unless_finished(output):
                _write_shards(output, shards, own_shards, reader, writer, options)

        do_each(write)
        unfinished = _left_to_others(output, shards)
        if unfinished is not None:
            return unfinished
        citations = list(kind.citations)
        return _finish(output, shards, collection, plan, options, consistency, citations)


def language_of(options: GenerationOptions, documents: Documents) -> str:
    """Return the code of the language by which sentences of a corpus are split.

    Raises:
        InputError: The options name an unknown language.
    """
    if options.language is not None:
        return Language.parse(options.language).code
    return documents.facts.language or DEFAULT


def _own_part(part: tuple[int, int]) -> tuple[int, int]:
    """Return which shards this process writes, as the i-th of n processes, counted from 1."""
    number, parts = part
    if not 1 <= number <= parts:
        raise InputError(f"shard {number}/{parts} does not exist; use i/n with i from 1 to n")
    processes = world_size()
    if processes == 1:
        return part
    if parts > 1:
        raise InputError(
            f"shard {number}/{parts}: torchrun's {processes} processes share the shards by "
            "themselves; leave --shard out, or start one process for each part"
        )
    return rank() + 1, processes


def _generated_from(collection: Collection) -> GeneratedFrom:
    """Return what the record says of the corpus."""
    return GeneratedFrom(
        corpus_sha256=collection.documents.content_hash,
        name=collection.name,
        documents=len(collection.documents),
        counts=collection.counts,
    )


def _left_to_others(output: Path, shards: QueryShards) -> UnfinishedGeneration | None:
    """Return how many shards other processes have not finished; None if there is none."""
    missing = len(shards.missing())
    if not missing or _is_finished(output):
        return None
    log.info("%s: %d of %d shards are left to other processes", output, missing, shards.count)
    return UnfinishedGeneration(shards.count, missing)


def _own_shards(shards: QueryShards, part: tuple[int, int], progress: bool) -> Iterable[int]:
    """Return the missing shards of a part, with a bar of the first process."""
    number, parts = part
    missing = [shard for shard in shards.missing() if shard % parts == number - 1]
    is_shown = progress and rank() == 0
    return Bar(missing, desc="Queries", unit=" shards", disable=not is_shown)


def named_counter(name: str) -> TokenCounter:
    """Return what counts tokens by a name.

    Args:
        name: ``words``, ``minilm``, a folder with a tokenizer, or a name on the hub.
    """
    if name == WORDS:
        return word_counter()
    # Imported here because counting words must not cost the seconds that transformers takes.
    from beir_cocodr.models.checkpoints.loading import model_source

    return token_counter(load_tokenizer(model_source(name)))


def _passage_counter(writer: Generator, options: GenerationOptions) -> TokenCounter:
    """Return what counts the tokens of passages: the tokenizer of the options, or the writer's."""
    if options.tokenizer is not None:
        return named_counter(options.tokenizer)
    return writer.counter


def _check_device(
    generator: str,
    options: GenerationOptions,
    device: str | None,
) -> None:
    """Check that the device exists, if a model would use it."""
    models = [options.filter_retriever or BM25]
    if generator_kind(generator).is_model:
        models.append(generator)
    check_device(device, models)


def _consistency_filter(
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
    progress: bool,
) -> ConsistencyFilter | None:
    """Return the filter that the options ask for."""
    if options.filter_retriever is None:
        return None
    search = SearchOptions(
        EncoderOptions(device=device),
        options.analyzer,
        options.bm25_weight,
        progress=progress and rank() == 0,
    )
    return ConsistencyFilter(documents, options.filter_retriever, options.filter_top, search)


def _is_finished(output: Path) -> bool:
    return (output / GENERATION_FILE).is_file()


def _lock_generation(output: Path, plan: GenerationPlan) -> GenerationRecord | None:
    """Claim an output for a plan, together with other processes that follow it.

    Returns:
        The record of the output if it is finished.
    """
    output_folder(output, utf8=True)
    # Everything is looked at under the lock: whoever is faster may write the plan, and even finish,
    # between two looks.
    with locked(output):
        if _is_finished(output):
            record = read_generation(output)
            _check_same_generation(output, record, plan, with_selection=True)
            _tidy(output)  # a run may have been killed while it finished
            return record
        plan_file = output / SHARDS / _PLAN_FILE
        if plan_file.is_file():
            before = GenerationPlan.read(plan_file)
            _check_same_generation(output, before, plan, with_selection=False)
        else:
            _check_unused(output)
            plan.write(plan_file)
    return None


def _check_unused(output: Path) -> None:
    """Check that an output is empty, except for what processes of one plan write as they begin."""
    paths = [*output.iterdir(), *(output / SHARDS).glob("*")]
    for path in paths:
        if path != output / SHARDS and not is_incidental(path):
            raise InputError(
                f"{output} is not empty, and no queries were generated in it; "
                "choose another --output"
            )


def _check_same_generation(
    output: Path,
    before: GenerationPlan,
    plan: GenerationPlan,
    *,
    with_selection: bool,
) -> None:
    """Check that the generation in an output is that of a plan."""
    check_same_run(
        output,
        before.identity(with_selection=with_selection),
        plan.identity(with_selection=with_selection),
    )


def _tidy(output: Path) -> None:
    """Remove what only unfinished work needs, and what killed runs left of it."""
    shutil.rmtree(output / SHARDS, ignore_errors=True)
    for folder in (output, *output.glob("*qrels")):
        remove_unfinished(folder)


@contextmanager
def _unless_finished(output: Path) -> Iterator[None]:
    """Ignore missing files in this block once the output is finished.

    The process that finishes removes the folder of the shards, even while another one with the same
    part works in it.
    """
    try:
        yield
    except (FileNotFoundError, InputError):
        if not _is_finished(output):
            raise


def _write_shards(
    output: Path,
    shards: QueryShards,
    own_shards: Iterable[int],
    reader: PassageReader,
    writer: Generator,
    options: GenerationOptions,
) -> None:
    """Generate and write the queries of some shards."""
    is_prepared = False
    for shard in own_shards:
        if _is_finished(output):  # other processes had the same part
            return
        if shards.is_finished(shard):
            continue
        if not is_prepared:
            if options.max_passages is not None:
                reader.draw(options.max_passages, options.seed, shards.folder)
            writer.prepare(shards.folder)
            is_prepared = True
        begun = time.perf_counter()
        passages, counts = reader.read(shards.rows(shard))
        generated = writer.generate(passages, shard)
        queries, cleaned = clean_queries(generated.queries, options.max_length)
        counts = counts | generated.counts | cleaned
        kinds = [
            _kinds(passage, texts, options)
            for passage, texts in zip(passages, queries, strict=True)
        ]
        seconds = time.perf_counter() - begun
        head = ShardHead(counts, seconds, generated.first_refused)
        shards.write(shard, passages, queries, kinds, head)


def _kinds(passage: Passage, texts: Sequence[str], options: GenerationOptions) -> list[str]:
    """Return the kind of each query of a passage, none where no kinds are asked for."""
    if not options.kinds:
        return []
    return kinds_in_turn(options.kinds, passage.text, len(texts))


def _finish(
    output: Path,
    shards: QueryShards,
    collection: Collection,
    plan: GenerationPlan,
    options: GenerationOptions,
    consistency: ConsistencyFilter | None,
    citations: list[str],
) -> GenerationRecord:
    """Select the queries of all shards, and write the folder.

    All processes of a run call this; the first one holds the folder meanwhile.
    """
    with ExitStack() as held:

        def begin() -> GenerationRecord | None:
            held.enter_context(locked(output))
            return _finished_before(output, shards, collection.name)

        record = on_main(begin)
        if record is not None:
            return record
        begun = time.perf_counter()
        duplicates = DuplicateRule(options.dedupe, options.near_duplicates)
        kept, selected = select_queries(shards, duplicates, consistency)

        def write() -> GenerationRecord:
            if not kept.any():
                raise InputError(
                    f"{collection.name}: no query finds its document among the first "
                    f"{options.filter_top} of {options.filter_retriever}; raise --filter-top, "
                    "or filter with another retriever"
                )
            link_corpus(collection, output)
            written = write_queries(
                shards=shards,
                kept=kept,
                documents=collection.documents,
                output=output,
            )
            counts, seconds = shards.totals()
            record = GenerationRecord(
                **vars(plan),
                counts=dict(counts) | selected | written,
                seconds={
                    "generating": round(seconds, 3),
                    "selecting": round(time.perf_counter() - begun, 3),
                },
                versions=versions() | {"sentencex": version("sentencex")},
                citations=citations,
            )
            # The record comes last: a folder that has it is complete.
            record.write(output / GENERATION_FILE)
            _tidy(output)
            _log_counts(collection.name, record)
            return record

        return on_main(write)


def _finished_before(output: Path, shards: QueryShards, name: str) -> GenerationRecord | None:
    """Return the record of a folder that another process has finished, None if none has.

    Args:
        output: The output folder.
        shards: Its shards, all finished.
        name: The collection.

    Raises:
        InputError: No passage got a query.
    """
    if _is_finished(output):
        _tidy(output)
        return read_generation(output)
    counts, _ = shards.totals()
    if counts["generated"] == counts["empty"]:
        reason = _describe_nothing(name, counts, shards.first_refused())
        _tidy(output)
        raise InputError(reason)
    return None


def _log_counts(name: str, record: GenerationRecord) -> None:
    """Log what became of the queries, in words."""
    counts_in_words = [f"{kind}: {count}" for kind, count in record.counts.items() if count]
    log.info("%s: %s", name, ", ".join(counts_in_words))


def _describe_nothing(name: str, counts: Counter[str], first_refused: str) -> str:
    """Return the message that no passage got a query."""
    if not counts["passages"]:
        return f"{name}: no document has any text; add texts to generate queries from"
    generated = f"{name}: {counts['passages']} passages gave {counts['generated']} queries"
    reasons = []
    if counts["refused"]:
        reasons.append(
            f"{counts['refused']} refused, with fewer than two words or a mention of the passage, "
            f"such as {quoted(first_refused)}"
        )
    if counts["unfinished"]:
        reasons.append(f"{counts['unfinished']} that reached --max-length before any text")
    if not reasons:
        return f"{generated}, none with any text; try longer documents or another generator"
    without_text = counts["empty"] - counts["refused"] - counts["unfinished"]
    if without_text:
        reasons.append(f"{without_text} without text")
    way_out = "name another generator, or correct its server and run again"
    if counts["unfinished"]:
        way_out = "raise --max-length, or turn off the thoughts of the model"
    return f"{generated}, none of use: {', '.join(reasons)}; {way_out}"
