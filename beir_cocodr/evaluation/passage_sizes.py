"""Comparison of passage sizes: the same questions, asked of a corpus that is cut differently.

Questions are spans that are cut out of documents before the documents are cut into passages, and
queries generated from documents. Their answers do not depend on the passages, so sizes can be
compared without labels: by file, and for spans by how much one reads until the place where the span
was. With labels, the collection's own queries are judged by file as well.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    check_apart,
    load_collection,
    load_source,
    resolve_source,
)
from beir_cocodr.data.documents import Documents, open_corpus, write_arrow
from beir_cocodr.data.files.file_folder import TextFiles
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.passages import split_passages
from beir_cocodr.data.text import word_counter
from beir_cocodr.errors import SEED_MAX, InputError, check_options_type
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    lexical_queries,
)
from beir_cocodr.evaluation.results import NO_BET
from beir_cocodr.models.spec import ModelSpec, Options, SearchOptions, option
from beir_cocodr.records import Json, Record, versions
from beir_cocodr.retrieval.resolve import Models, resolve_models
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder
from beir_cocodr.temporary import TemporaryFolder

log = logging.getLogger(__name__)

#: The file of a comparison of passage sizes.
PASSAGES_FILE = "passages.json"

#: Kinds of questions.
SPANS = "held-out spans"
GENERATED = "generated queries"
LABELLED = "labelled queries"

#: Words of a whole document: a document of fewer is one passage.
_WHOLE = 10**9

# Passages of a query that are looked at; their documents are ranked by their best passage.
_DEPTH = 100
_TOP = 10

# Reading is discounted as in nDCG, a rank for so many words: passages of the default size.
_WORDS_A_RANK = 180

# Documents that are cut at a time.
_CHUNK = 500

# Deviation between the difference by questions and that by labels, of benchmarks/passages.py.
ERROR = 0.031


@dataclass(frozen=True)
class PassageOptions(Options):
    """Options of a comparison of passage sizes.

    Args:
        split: the split of the labels, where there are some.
        language: language of the sentences, an ISO 639 code or an English name; by default that of
            a folder of files, and English for other collections.
        overwrite: replace the results of another run in the output folder.
    """

    samples: int = option(300, "Query with this many spans and as many generated queries.", min=10)
    seed: int = option(
        42, "Seed the choice of the questions with this number.", min=0, max=SEED_MAX
    )
    split: str = "test"
    language: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class SizeFigures:
    """The figures of a model on passages of one size.

    Attributes:
        model: its label.
        words: the most words of a passage.
        passages: their number.
        by_file: kind of questions to nDCG@10, documents ranked by their best passage.
        by_span: how early the place of a held-out span is read, from 0 to 1, where a rank of nDCG
            is 180 words.
    """

    model: str
    words: int
    passages: int
    by_file: dict[str, float]
    by_span: float | None


@dataclass(frozen=True)
class SizePair:
    """Two sizes for one model.

    Attributes:
        model: its label.
        a: words of a passage.
        b: words of a passage.
        difference: of nDCG@10 by file, b − a, over spans and generated queries.
        interval: its 90% interval, with the measured error of such differences.
        probability: the probability that b is better.
    """

    model: str
    a: int
    b: int
    difference: float
    interval: tuple[float, float]
    probability: float

    def chance(self, words: int) -> float:
        """Return the probability that one of the two sizes is the better one."""
        return self.probability if words == self.b else 1 - self.probability

    def other(self, words: int) -> int:
        """Return the size that one of the two sizes is compared with."""
        return self.a if words == self.b else self.b


def better_bet(pairs: Sequence[SizePair]) -> int | None:
    """Return the size that is the better bet for a model, whatever the order of the sizes is.

    Args:
        pairs: all pairs of its sizes.

    Returns:
        The size; None where its chance against another one is nearer to one half than 0.05, which
        is the rule by which models are compared, too.
    """
    return None if _rivals(pairs) else _leader(pairs)


def _leader(pairs: Sequence[SizePair]) -> int:
    """Return the size with the best chance against its strongest rival; of equals the smallest."""
    chances: dict[int, list[float]] = {}
    for pair in pairs:
        for words in (pair.a, pair.b):
            chances.setdefault(words, []).append(pair.chance(words))
    return max(sorted(chances), key=lambda words: min(chances[words]))


def _rivals(pairs: Sequence[SizePair]) -> list[int]:
    """Return the sizes that are as good a bet as the leader."""
    leader = _leader(pairs)
    return [
        pair.other(leader)
        for pair in pairs
        if leader in (pair.a, pair.b) and abs(pair.probability - 0.5) < NO_BET
    ]


@dataclass(frozen=True)
class PassagesRecord(Record):
    """The record of a comparison of passage sizes, ``passages.json``.

    Attributes:
        dataset: the collection.
        documents: documents, or sections of files, that are cut.
        questions: kind to number.
        figures: of each model and size.
        pairs: of each model and two sizes.
        best: model to the size that is the better bet; None where no size is.
        versions: versions of the packages that a number may depend on.
    """

    dataset: str
    documents: int
    questions: dict[str, int]
    figures: list[SizeFigures]
    pairs: list[SizePair]
    best: dict[str, int | None]
    versions: dict[str, str] = field(default_factory=versions)

    def __post_init__(self) -> None:
        """Check that each model has sizes to bet on.

        Raises:
            ValueError: one has none.
        """
        models = {pair.model for pair in self.pairs}
        for model in self.best:
            if model not in models:
                raise ValueError(f"no sizes of {model} are compared")

    def sentence(self, model: str) -> str:
        """Return which size is the better bet for a model, if one is, and how sure that is."""
        pairs = [pair for pair in self.pairs if pair.model == model]
        best = self.best[model]
        words = _leader(pairs) if best is None else best
        odds = ", ".join(
            f"{pair.chance(words):.0%} against {pair.other(words)}"
            for pair in pairs
            if words in (pair.a, pair.b)
        )
        if best is not None:
            return f"{model}: passages of {best} words are the better bet ({odds})."
        equals = " nor ".join(str(size) for size in sorted([words, *_rivals(pairs)]))
        return (
            f"{model}: passages of neither {equals} words are the better bet ({words} words: "
            f"{odds})."
        )

    def describe(self) -> Iterator[str]:
        """Yield the sentences about all models, and what they rest on."""
        for model in self.best:
            yield self.sentence(model)
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.questions.items())
        yield (
            f"The same {counts} were asked of every size. Probabilities count the error of such "
            f"differences on labelled collections, a deviation of {ERROR:g}."
        )


def compare_passages(
    models: Models,
    dataset: Dataset,
    sizes: Sequence[int],
    *,
    output: str | Path | None = None,
    options: PassageOptions = PassageOptions(),
    search: SearchOptions = SearchOptions(),
) -> PassagesRecord:
    """Compare sizes of passages by the same questions.

    Args:
        models: one model or several, as for :func:`~beir_cocodr.evaluation.evaluate.evaluate`; runs
            and retrievers of your own search no other passages and are refused.
        dataset: a folder of files, or any collection, whose documents are cut.
        sizes: the most words of a passage, at least two different numbers.
        output: folder for passages.json; nothing is written without it.
        options: number and seed of the questions, split, language.
        search: how models that are named by strings are loaded and search.

    Raises:
        InputError: If there are fewer than two sizes, a model cannot search passages, no document
            gives a question, or ``output`` holds the results of another run.
    """
    check_options_type(options, PassageOptions)
    check_options_type(search, SearchOptions, "search")
    _check_sizes(sizes)
    check_apart(output, dataset)
    specs = resolve_models(models)
    for label, spec in specs.items():
        if spec.is_black_box:
            raise InputError(
                f"{label} cannot search passages of other sizes, as it has an index of its own; "
                "name a model that is searched here"
            )
    collection = load_whole(dataset, options.split)
    with ExitStack() as stack:
        folder = None
        if output is not None:
            run: Json = {
                "command": "compare passages",
                "dataset": collection.name,
                "sizes": list(sizes),
                "models": list(specs),
                "samples": options.samples,
                "seed": options.seed,
                "split": options.split,
                "language": options.language,
                "search": search.describe(),
            }
            results = results_folder(Path(output), run, options.overwrite)
            folder = stack.enter_context(results)
        work = stack.enter_context(TemporaryFolder())
        questions = Questions.draw(collection, work, options)
        record = _compare(
            specs,
            collection,
            questions,
            sizes,
            work,
            options,
            search,
        )
        if folder is not None:
            record.write(folder / PASSAGES_FILE)
    return record


def _check_sizes(sizes: Sequence[int]) -> None:
    different = set(sizes)
    is_too_few = len(different) < 2
    has_repeated = len(different) < len(sizes)
    if is_too_few or has_repeated or min(sizes) < 1:
        numbers = ",".join(map(str, sizes))
        raise InputError(
            f"passages of {numbers} words cannot be compared; give two or more different numbers "
            "of at least 1, as in 90,180,360"
        )


def load_whole(dataset: Dataset, split: str) -> Collection:
    """Load a collection under its own name; the sections of files are not cut into passages."""
    if isinstance(dataset, str | Path):
        source = resolve_source(str(dataset), split)
        if isinstance(source, TextFiles):
            reading = replace(source.reading, words=_WHOLE)
            return load_source(replace(source, reading=reading), "optional")
    return load_collection(dataset, split, labels="optional")


@dataclass(frozen=True)
class Questions:
    """Questions with known answers, and the corpus from which the spans are cut.

    Attributes:
        corpus: the documents without the spans.
        files: (N,) the number of each document's file, which is the document itself where the
            corpus is no folder of files.
        texts: question id to text.
        kinds: (Q,) the kind of each question.
        grades: for each question the files that answer it, with their grades.
        places: for each question the document and the character at which the span was, or None.
    """

    corpus: Documents
    files: Ints
    texts: dict[str, str]
    kinds: list[str]
    grades: list[dict[int, int]]
    places: list[tuple[int, int] | None]

    @classmethod
    def draw(cls, collection: Collection, folder: Path, options: PassageOptions) -> Questions:
        """Draw spans and generated queries, and take labelled queries where there are some.

        Raises:
            InputError: If no document gives a question.
        """
        spans_folder = folder / "spans"
        terms_folder = folder / "terms"
        spans_folder.mkdir()
        terms_folder.mkdir()
        documents = collection.documents
        spans, corpus = hold_out_crops(
            documents,
            spans_folder,
            options.samples,
            options.seed,
        )
        generated = lexical_queries(
            corpus,
            terms_folder,
            options.samples,
            options.seed,
        )
        if not spans.texts and not generated.texts:
            raise InputError(
                f"{collection.name}: no document gives a question; its documents are too short"
            )
        questions = cls(
            corpus,
            files=_files(collection),
            texts={},
            kinds=[],
            grades=[],
            places=[],
        )
        places = _places(documents, corpus, spans.rows)
        no_places = [None] * len(generated.texts)
        questions._add_known(SPANS, spans, places)
        questions._add_known(GENERATED, generated, no_places)
        for id, grades in collection.qrels.items():
            files = questions._graded_files(grades, documents)
            if files:
                questions._add(LABELLED, collection.queries[id], files, None)
        return questions

    def _add_known(
        self,
        kind: str,
        pseudo: PseudoQueries,
        places: Sequence[tuple[int, int] | None],
    ) -> None:
        rows = pseudo.rows.tolist()
        for text, row, position in zip(pseudo.texts, rows, places, strict=True):
            file = int(self.files[row])
            self._add(kind, text, {file: 1}, position)

    def _add(
        self,
        kind: str,
        text: str,
        grades: dict[int, int],
        place: tuple[int, int] | None,
    ) -> None:
        id = f"{kind} {len(self.texts)}"
        self.texts[id] = text
        self.kinds.append(kind)
        self.grades.append(grades)
        self.places.append(place)

    def _graded_files(self, grades: Mapping[str, int], documents: Documents) -> dict[int, int]:
        files: dict[int, int] = {}
        rows = documents.rows(grades)
        for row, grade in zip(rows.tolist(), grades.values(), strict=True):
            if row >= 0 and grade > 0:
                file = int(self.files[row])
                files[file] = max(files.get(file, 0), grade)
        return files

    def of_kind(self, *kinds: str) -> Ints:
        """Return the rows of questions of some kinds."""
        return np.flatnonzero([kind in kinds for kind in self.kinds])


def _files(collection: Collection) -> Ints:
    """Return (N,) numbers of files, equal for documents of one file."""
    documents = collection.documents
    if not isinstance(collection.source, TextFiles):
        return np.arange(len(documents))
    source = collection.source
    names = [source.begins(id) for id in documents.ids()]
    _, files = np.unique(names, return_inverse=True)
    return files


def _places(documents: Documents, corpus: Documents, rows: Ints) -> list[tuple[int, int] | None]:
    """Return the document and the character at which each span was cut out."""
    places: list[tuple[int, int] | None] = []
    before = documents.take(rows)
    after = corpus.take(rows)
    for row, old, new in zip(rows.tolist(), before, after, strict=True):
        character = _common_start(old["text"], new["text"])
        places.append((row, character))
    return places


def _common_start(first: str, second: str) -> int:
    """Return the number of characters at the start that two texts share."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


@dataclass(frozen=True)
class Passages:
    """A corpus cut into passages.

    Attributes:
        documents: the passages.
        rows: (P,) the document of each passage.
        starts: (P,) its first character in the text.
        ends: (P,) the character after its last.
        lengths: (P,) its words.
    """

    documents: Documents
    rows: Ints
    starts: Ints
    ends: Ints
    lengths: Ints

    @classmethod
    def cut(cls, corpus: Documents, words: int, language: str, file: Path) -> Passages:
        """Cut a corpus into passages of at most so many words.

        The passages keep the facts about the corpus, so that BM25 reads them in its language.

        Args:
            corpus: the documents.
            words: the most words of a passage.
            language: ISO 639 code of the sentences.
            file: where the passages are written.
        """
        count = word_counter().count
        pieces: list[tuple[int, int, int]] = []
        records: list[tuple[int, str, str, str]] = []
        row = 0
        for chunk in corpus.chunks(_CHUNK):
            texts = [document["text"] for document in chunk]
            ranges = split_passages(texts, count, words, language)
            for document, parts in zip(chunk, ranges, strict=True):
                text = document["text"]
                whole_text = [(0, len(text))]
                for start, end in parts or whole_text:
                    number = len(pieces)
                    passage = (number, f"p{number}", document["title"], text[start:end])
                    records.append(passage)
                    pieces.append((row, start, end))
                row += 1
        write_arrow(file, iter(records), facts=corpus.facts.to_json())
        rows, starts, ends = np.array(pieces, np.int64).T
        lengths = count([text for _, _, _, text in records])
        return cls(
            documents=open_corpus(file),
            rows=rows,
            starts=starts,
            ends=ends,
            lengths=np.array(lengths, np.int64),
        )


def _compare(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    questions: Questions,
    sizes: Sequence[int],
    work: Path,
    options: PassageOptions,
    search: SearchOptions,
) -> PassagesRecord:
    cut = {}
    language = collection.documents.facts.language or DEFAULT
    if options.language is not None:
        language = Language.parse(options.language).code
    for words in sizes:
        file = work / f"passages-{words}.arrow"
        cut[words] = Passages.cut(questions.corpus, words, language, file)
    _tell_costs(cut, specs)
    figures = []
    scores: dict[tuple[str, int], Doubles] = {}
    for words, passages in cut.items():
        with Resources.temporary(passages.documents, search, work) as resources:
            for label, spec in specs.items():
                ranker = resources.ranker(spec)
                ranker.prepare()
                ranked = ranker.search(questions.texts, _DEPTH).rows
                by_file = score_files(ranked, passages, questions)
                scores[label, words] = by_file
                of_size = _figures(
                    label,
                    words,
                    ranked,
                    by_file,
                    passages,
                    questions,
                )
                figures.append(of_size)
    known = questions.of_kind(SPANS, GENERATED)
    pairs = []
    best = {}
    for label in specs:
        of_model = []
        for a, b in itertools.combinations(sorted(sizes), 2):
            differences = scores[label, b][known] - scores[label, a][known]
            of_model.append(_pair(label, a, b, differences))
        pairs += of_model
        best[label] = better_bet(of_model)
    kinds = dict.fromkeys(questions.kinds)
    return PassagesRecord(
        dataset=collection.name,
        documents=len(collection.documents),
        questions={kind: questions.kinds.count(kind) for kind in kinds},
        figures=figures,
        pairs=pairs,
        best=best,
    )


def _tell_costs(cut: Mapping[int, Passages], specs: Mapping[str, ModelSpec]) -> None:
    parts = []
    words = 0
    for size, passages in cut.items():
        parts.append(f"{len(passages.rows):,} of {size} words")
        words += int(passages.lengths.sum())
    log.info(
        "passages: %s; each of %d models reads %s words in all",
        ", ".join(parts),
        len(specs),
        f"{words:,}",
    )


def score_files(ranked: Ints, passages: Passages, questions: Questions) -> Doubles:
    """Return (Q,) nDCG@10 of the files, each at the place of its best passage.

    Args:
        ranked: (Q, k) passages, best first, -1 for none.
        passages: the passages.
        questions: the questions.
    """
    scores = np.zeros(len(ranked))
    for number, grades in enumerate(questions.grades):
        best = ranked[number]
        rows = passages.rows[best[best >= 0]]
        files_of_passages = questions.files[rows].tolist()
        files = list(dict.fromkeys(files_of_passages))
        gains = [grades.get(file, 0) for file in files[:_TOP]]
        ideal_gains = sorted(grades.values(), reverse=True)
        ideal = _discounted(ideal_gains[:_TOP])
        scores[number] = _discounted(gains) / ideal
    return scores


def _discounted(gains: Sequence[int]) -> float:
    discounted = [gain / math.log2(2 + rank) for rank, gain in enumerate(gains)]
    return sum(discounted)


def score_spans(ranked: Ints, passages: Passages, questions: Questions) -> Doubles:
    """Return how early each span's place is read, 1 for at once and 0 for never.

    The score is 1 / log2(2 + w / 180), with w the words of the passages before the one with the
    place; it is 0 beyond 1,800 words.
    """
    scores = []
    for number in questions.of_kind(SPANS).tolist():
        span_place = questions.places[number]
        assert span_place is not None
        best = ranked[number]
        score = _score_span(best[best >= 0], passages, span_place)
        scores.append(score)
    return np.array(scores)


def _score_span(best: Ints, passages: Passages, place: tuple[int, int]) -> float:
    """Return how early a place is read in the passages of a ranking.

    Args:
        best: (n,) passages, best first.
        passages: the passages.
        place: the document and the character.
    """
    row, character = place
    words_read = 0
    for passage in best.tolist():
        if words_read >= _TOP * _WORDS_A_RANK:
            break
        is_document = passages.rows[passage] == row
        begins = passages.starts[passage] - 1
        if is_document and begins <= character <= passages.ends[passage]:
            ranks_read = words_read / _WORDS_A_RANK
            return 1 / math.log2(2 + ranks_read)
        words_read += int(passages.lengths[passage])
    return 0.0


def _figures(
    label: str,
    words: int,
    ranked: Ints,
    by_file: Doubles,
    passages: Passages,
    questions: Questions,
) -> SizeFigures:
    means = {}
    for kind in dict.fromkeys(questions.kinds):
        of_kind = by_file[questions.of_kind(kind)]
        means[kind] = float(of_kind.mean())
    by_span = score_spans(ranked, passages, questions)
    return SizeFigures(
        model=label,
        words=words,
        passages=len(passages.rows),
        by_file=means,
        by_span=float(by_span.mean()) if len(by_span) else None,
    )


def _pair(label: str, a: int, b: int, differences: Doubles) -> SizePair:
    """Return a pair with its (Q,) differences, b − a."""
    mean = float(differences.mean())
    sampling = float(differences.std()) / math.sqrt(len(differences))
    normal = NormalDist(mean, math.hypot(sampling, ERROR))
    return SizePair(
        model=label,
        a=a,
        b=b,
        difference=mean,
        interval=(normal.inv_cdf(0.05), normal.inv_cdf(0.95)),
        probability=1 - normal.cdf(0.0),
    )
