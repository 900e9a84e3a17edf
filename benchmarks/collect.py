"""Search labelled collections by many systems, and keep everything that a calibration may need.

Collections are those of ``--collections``, a folder of BEIR folders, and domains of apidocs. Each
is cut to ``--documents``. Queries are its own, crops of its documents, crops as long as its
queries, generated queries, and titles; systems are BM25, encoders, their fusions, and known
defects. A language model may write further queries (``--generator``), and read what systems rank
first (``--reader``). The script first prints what the searches cost. A killed run continues where
it stopped, and further encoders and sets of queries are added to what is there;
``collecting.searched.load_searched`` reads the results:

    python benchmarks/collect.py --collections DIR --work runs/collect --encoders minilm
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collecting.encoder_table import ENCODERS, AnyEncoder, load_encoder
from collecting.encoders import DOCUMENT, Transformer
from collecting.late_interaction import TokenEncoder
from collecting.parents import Limits, Parent, cut_parent, has_pools
from collecting.query_sets import FEWEST, SETS, has_questions, let_write_questions, query_sets
from collecting.reranker import DEPTH, Reranker
from collecting.searched import missing_sets, pools_file, results_file
from collecting.searches import CollectionSearch
from harness.script import add_integers, add_work

from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.likelihood_reader import load_likelihood_reader
from beir_cocodr.evaluation.label_free.pooled_relevance import PoolReader
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions

DOMAINS = ("stdlib", "numpy", "pandas", "torch", "scipy", "sklearn")

# Texts that show how fast an encoder is.
_SAMPLE = 16


@dataclass(frozen=True)
class Task:
    """A collection that encoders have not searched yet.

    Attributes:
        parent: The collection.
        encoders: The encoders.
        fitted: The encoders whose fitted hybrid encoders have not searched it yet.
        is_read: True if a language model has read what systems rank first, or is not asked to.
        is_asked: True if a language model has written questions, or is not asked to.
        texts: The texts that each encodes, or that BM25 alone reads.
        queries: The number of queries among them.
    """

    parent: Parent
    encoders: list[AnyEncoder]
    fitted: list[Transformer]
    is_read: bool
    is_asked: bool
    texts: list[str]
    queries: int

    @property
    def characters(self) -> int:
        """Return the length of the texts."""
        return sum(map(len, self.texts))

    def read_by(self, encoder: AnyEncoder) -> int:
        """Return how many texts an encoder reads; a cross-encoder reads them for each query."""
        return DEPTH * self.queries if isinstance(encoder, Reranker) else len(self.texts)


def report(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def sources(options: argparse.Namespace) -> dict[str, str]:
    """Return the sources of the collections by name, in the order in which they are searched."""
    names = {f"apidocs/{domain}": f"apidocs/{domain}" for domain in options.domains}
    if options.collections is not None:
        for file in sorted(options.collections.glob("*/corpus.jsonl")):
            names[file.parent.name] = str(file.parent)
    if options.only:
        names = {name: names[name] for name in options.only if name in names}
    return {name: source for name, source in names.items() if name not in options.leave_out}


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits of all collections."""
    return Limits(
        options.documents,
        options.characters,
        options.queries,
        options.samples,
        options.seed,
    )


def available_encoders(options: argparse.Namespace) -> list[AnyEncoder]:
    """Load the encoders whose weights exist, and print which ones are left out."""
    encoders = []
    for name in options.encoders:
        try:
            encoder = load_encoder(name, options.models)
        except InputError as error:
            report(str(error))
            continue
        if options.bf16 and isinstance(encoder, Transformer | TokenEncoder | Reranker):
            encoder.use_bfloat16()
        encoders.append(encoder)
    return encoders


def load_reader(options: argparse.Namespace) -> PoolReader | None:
    """Load the language model that reads what systems rank first, if one is named."""
    if not options.reader:
        return None
    reader = load_likelihood_reader(QuestionOptions(options.reader), bf16=options.bf16)
    if reader is None:
        raise InputError(f"--reader {options.reader}: name a causal language model, as hf:MODEL")
    return reader


def plan(
    name: str,
    source: str,
    encoders: Sequence[AnyEncoder],
    options: argparse.Namespace,
) -> Task | None:
    """Return what is left to do on a collection, or nothing.

    A collection whose queries are judged in pools needs judgements of documents that are not
    relevant; without them it is left out.
    """
    parent = cut_parent(name, source, options.work, limits_of(options))
    if parent.facts.pooled and not has_pools(parent):
        report(f"{name}: left out, because its judgements hold no pools")
        return None
    is_asked = not options.generator or has_questions(parent)
    sets = query_sets(parent, limits_of(options))
    names = [queries for queries in sets if queries in options.sets]

    def lacks(encoder: str) -> bool:
        return bool(missing_sets(results_file(options.work, name, encoder), names)) or not is_asked

    pending = []
    fitted = []
    for encoder in encoders:
        if lacks(encoder.name):
            pending.append(encoder)
        can_fit = options.fitted and isinstance(encoder, Transformer)
        if can_fit and lacks(f"{encoder.name}-fitted"):
            fitted.append(encoder)
    is_read = not options.reader or pools_file(options.work, name).is_file()
    has_bm25 = not missing_sets(results_file(options.work, name, "bm25"), sets)
    if has_bm25 and is_read and not (pending or fitted):
        return None
    documents = parent.load().documents
    texts = list(map(TextFormat().document, documents.values()))
    asked = [queries for queries in sets.values() if queries.name in options.sets]
    for queries in asked:
        texts += queries.texts
        texts += map(TextFormat().document, queries.changed)
    count = sum(len(queries.texts) for queries in asked)
    return Task(parent, pending, fitted, is_read, is_asked, texts, count)


def report_cost(tasks: Iterable[Task]) -> None:
    """Print what each encoder has to do, and the hours that it takes by its speed on few texts."""
    by_encoder: dict[str, list[Task]] = {}
    encoders = {}
    for task in tasks:
        for encoder in task.encoders:
            by_encoder.setdefault(encoder.name, []).append(task)
            encoders[encoder.name] = encoder
    total = 0.0
    for name, pending in by_encoder.items():
        texts = [text for task in pending for text in task.texts]
        characters = sum(task.characters for task in pending)
        sample = texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE]
        start = time.perf_counter()
        encoders[name].encode(sample, DOCUMENT)
        speed = len(sample) / (time.perf_counter() - start)
        read = sum(task.read_by(encoders[name]) for task in pending)
        tokens = characters / 4 * read / len(texts)
        hours = read / speed / 3600
        total += hours
        report(
            f"{name}: {len(pending)} collections, {read:,} texts of about {tokens:,.0f} tokens, "
            f"{speed:.1f} texts a second, {hours:.1f} hours of encoding"
        )
    report(f"all encoders: {total:.1f} hours of encoding; what is encoded already costs nothing")


def collect(task: Task, options: argparse.Namespace, reader: PoolReader | None = None) -> None:
    """Search one collection by all encoders that have no results on it yet."""
    limits = limits_of(options)
    name = task.parent.name
    if not task.is_asked:
        start = time.perf_counter()
        let_write_questions(
            task.parent,
            QuestionOptions(options.generator, options.questions),
            limits,
            bf16=options.bf16,
        )
        report(
            f"{name}, questions by {options.generator}: {time.perf_counter() - start:.0f} seconds"
        )
    with tempfile.TemporaryDirectory() as folder:
        searches = CollectionSearch(
            task.parent,
            limits,
            options.work,
            Path(folder),
            options.sets,
        )
        searches.search_bm25()
        for encoder in task.encoders:
            start = time.perf_counter()
            if isinstance(encoder, TokenEncoder):
                searches.search_tokens(encoder)
            elif isinstance(encoder, Reranker):
                searches.search_reranked(encoder)
            else:
                searches.search(encoder)
            report(f"{name}, {encoder.name}: {time.perf_counter() - start:.0f} seconds")
        if reader is not None and not task.is_read:
            start = time.perf_counter()
            searches.read_pools(reader, options.encoders[0])
            report(f"{name}, read by {options.reader}: {time.perf_counter() - start:.0f} seconds")
        for encoder in task.fitted:
            start = time.perf_counter()
            searches.search_fitted(encoder)
            report(f"{name}, vector:{encoder.name}: {time.perf_counter() - start:.0f} seconds")


def collect_all(encoders: Sequence[AnyEncoder], options: argparse.Namespace) -> None:
    """Plan all searches, print their cost, and search."""
    reader = load_reader(options)
    tasks = []
    for name, source in sources(options).items():
        try:
            task = plan(name, source, encoders, options)
        except InputError as error:
            report(f"{name}: left out, because {error}")
            continue
        if task is not None:
            tasks.append(task)
    if not options.fast:
        report_cost(tasks)
    for task in tasks:
        collect(task, options, reader)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose collections, encoders and queries."""
    choices = {
        "--domains": (list(DOMAINS), None, "Also search these domains of apidocs. Default: all."),
        "--only": ([], None, "Search these collections, in this order. Default: all."),
        "--leave-out": ([], None, "Leave out these collections."),
        "--encoders": (["minilm"], list(ENCODERS), "Search by these encoders. Default: minilm."),
        "--sets": (
            list(SETS),
            SETS,
            "Search by encoders for these sets of queries; fewer cost less. Default: all.",
        ),
    }
    for name, (default, allowed, text) in choices.items():
        parser.add_argument(
            name,
            nargs="*",
            default=default,
            choices=allowed,
            help=text,
        )


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_work(parser, "runs/benchmark-collect")
    parser.add_argument(
        "--collections",
        type=Path,
        metavar="DIR",
        help="Search the BEIR folders of this folder.",
    )
    add_choices(parser)
    parser.add_argument(
        "--models",
        type=Path,
        default=Path("models"),
        metavar="DIR",
        help="Read the weights of encoders from this folder. Default: models.",
    )
    parser.add_argument(
        "--reader",
        metavar="hf:MODEL",
        help="Also let this causal language model read what BM25 and the first encoder rank first.",
    )
    parser.add_argument(
        "--generator",
        metavar="hf:MODEL",
        help="Also let this language model write questions about each collection.",
    )
    parser.add_argument(
        "--fitted",
        action="store_true",
        help="Also search by the hybrid encoder that fuse makes of each encoder.",
    )
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="Run transformers and language models in bfloat16, which is faster on a processor "
        "with units for it.",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="Start without measuring how fast encoders are.",
    )
    integers = {
        "--documents": (3000, "The most documents of a collection."),
        "--characters": (1_200_000, "The most characters of more than 1,000 documents."),
        "--queries": (300, "The most queries of a collection."),
        "--samples": (150, "Queries of each kind that are made of documents."),
        "--questions": (60, "The most questions that the language model writes about each."),
        "--seed": (42, "The seed of every choice."),
    }
    add_integers(parser, integers)
    options = parser.parse_args()
    if options.samples < FEWEST:
        parser.error(
            f"--samples {options.samples}: sets of fewer than {FEWEST} queries are left out, and "
            f"estimates need them; give at least {FEWEST}"
        )
    return options


def main() -> None:
    """Search all collections by all encoders."""
    import torch

    torch.set_num_threads(1)
    options = parse_options()
    collect_all(available_encoders(options), options)


if __name__ == "__main__":
    main()
