"""The searches that evidence rests on."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from beir_cocodr.arrays import Bools, Doubles, Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.judgement_log import typed_id
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.contamination import find_contamination
from beir_cocodr.evaluation.label_free.estimators import (
    CROPS,
    FEWEST_QUERIES,
    GENERATED,
    MATCHED,
    TITLES,
    WRITTEN,
)
from beir_cocodr.evaluation.label_free.evidence import (
    ASKED,
    LIST_DEPTH,
    Evidence,
    SearchedQueries,
    consistent_questions,
)
from beir_cocodr.evaluation.label_free.held_out_corpus import HeldOutResources
from beir_cocodr.evaluation.label_free.held_out_queries import HeldOutQueries, count_words
from beir_cocodr.evaluation.label_free.margins import margins
from beir_cocodr.evaluation.label_free.pooled_relevance import (
    PooledScores,
    PoolReader,
    read_pools,
)
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    DEPTH,
    PseudoQueries,
    lexical_queries,
)
from beir_cocodr.evaluation.label_free.query_texts import (
    asked_by_people,
    held_words,
    nonletter_excess,
)
from beir_cocodr.evaluation.label_free.ranking_parts import (
    best_rows,
    describe_search,
    no_results,
    numbered_queries,
    part_of,
    parts_of,
    rank,
)
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions, write_questions
from beir_cocodr.evaluation.runs import RunRanker
from beir_cocodr.models.spec import (
    BM25,
    HOSTED,
    RETRIEVERS,
    RUN,
    ModelSpec,
    calibration_kind,
)
from beir_cocodr.progress import step, steps
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker, Ranking, Results
from beir_cocodr.retrieval.resources import Resources

# The fusion that is fitted to the corpus before it searches.
_FITTED = "vector"


@dataclass(frozen=True)
class ProposedQueries:
    """Queries to judge where nobody asked any.

    Attributes:
        kind: What they are: "written questions" or "generated queries".
        queries: Id, as of a typed query, to text.
        results: Model to its results.
    """

    kind: str
    queries: dict[str, str]
    results: dict[str, Results]


@dataclass(frozen=True)
class _PseudoSearch:
    """A model's results on the pseudo-queries.

    Attributes:
        over_corpus: Kind of queries that are searched for in the corpus as it is to its ranking;
            none for a run.
        scores: Kind of pseudo-queries to its (S,) nDCG@10; those that are cut out of documents are
            missing if it cannot search a changed corpus.
        cut: Kind of queries that were cut out of documents to its ranking.
    """

    over_corpus: dict[str, Ranking] = field(default_factory=dict)
    scores: dict[str, Doubles] = field(default_factory=dict)
    cut: dict[str, Ranking] = field(default_factory=dict)


@dataclass(frozen=True)
class _CutCorpus:
    """A copy of the corpus, and the queries that were cut out of it.

    Attributes:
        queries: Kind to queries.
        resources: What the models share over the copy.
    """

    queries: dict[str, PseudoQueries]
    resources: HeldOutResources


class Gatherer:
    """The searches that evidence rests on.

    Pseudo-queries are searched for once, real queries as often as they change. Pseudo-queries that
    a model was trained on are left out, see
    :func:`~beir_cocodr.evaluation.label_free.contamination.find_contamination`. Every encoder
    encodes the corpus once, and again only the documents that lose a text; its queries are encoded
    in one batch at first.
    """

    def __init__(
        self,
        resources: Resources,
        models: Sequence[str],
        *,
        samples: int = 300,
        seed: int = 42,
        drop_identical_ids: bool = False,
        collection: Collection | None = None,
        questions: QuestionOptions | None = None,
    ) -> None:
        """Load the models and draw the pseudo-queries.

        Args:
            resources: What the models share over the corpus. The changed corpus and term counts are
                written to its folder.
            models: Names that ``resources`` knows.
            samples: The most pseudo-queries of each kind.
            seed: Seed of the drawing.
            drop_identical_ids: Leave documents whose id is the query's out of the lists.
            collection: The collection of the corpus. Its name is looked for in the records of
                trainings, and matched crops are as long as its queries.
            questions: How a language model writes questions, and reads what models rank first for
                real queries; by default there is none.

        Raises:
            InputError: A model cannot be loaded, or the record of its training cannot be read.
        """
        self.resources = resources
        self.documents = resources.documents
        self.models = list(models)
        self.drop = drop_identical_ids
        self.samples = samples
        self.seed = seed
        # Names come first: an unknown one fails before a large corpus is read.
        self._rankers = {name: self._ranker(name) for name in [*models, BM25]}
        self.contamination = find_contamination(
            {name: _origin(resources.spec(name)) for name in models},
            self.documents.content_hash,
            None if collection is None else collection.name,
            resources.sharpened({name: name for name in models}),
        )
        folder = Path(mkdtemp(dir=resources.folder))
        real = {} if collection is None else collection.queries
        self._cut_corpora = (self._hold_out(folder), self._hold_out_further(folder, real))
        self._questions = questions
        self._whole = self._make(folder, questions)
        self._pseudo: dict[str, _PseudoSearch] = {}

    @property
    def encoders(self) -> dict[str, str | None]:
        """Return model to what tells its encoder apart; None where it has none."""
        return {name: self.resources.encoder_of(name) for name in self._rankers}

    @property
    def generated(self) -> PseudoQueries:
        """Return the queries that were generated without a model."""
        return self._whole[GENERATED]

    def _hold_out(self, folder: Path) -> _CutCorpus:
        """Cut crops out of documents."""
        held_out = self._start_cutting()
        held_out.draw_crops(CROPS)
        return self._cut_corpus(held_out, folder / "crops")

    def _hold_out_further(self, folder: Path, real: Mapping[str, str]) -> _CutCorpus:
        """Cut crops as long as real queries, and titles, out of documents of another copy."""
        held_out = self._start_cutting()
        lengths = [count_words(text) for text in real.values()]
        held_out.draw_matched_crops(MATCHED, [length for length in lengths if length])
        held_out.draw_titles(TITLES)
        return self._cut_corpus(held_out, folder / "further")

    def _start_cutting(self) -> HeldOutQueries:
        return HeldOutQueries(
            self.documents,
            self.samples,
            self.seed,
            self.contamination.has,
        )

    def _cut_corpus(self, held_out: HeldOutQueries, folder: Path) -> _CutCorpus:
        folder.mkdir()
        resources = HeldOutResources(
            self.resources,
            held_out.write_corpus(folder),
            np.array(sorted(held_out.changed), np.int64),
            folder,
        )
        return _CutCorpus(held_out.queries(), resources)

    def _make(
        self,
        folder: Path,
        questions: QuestionOptions | None,
    ) -> dict[str, PseudoQueries]:
        """Return the queries that are searched for in the corpus as it is."""
        terms_folder = folder / "terms"
        terms_folder.mkdir()
        queries = {
            GENERATED: lexical_queries(
                self.documents,
                terms_folder,
                self.samples,
                self.seed,
                self.contamination.has,
            )
        }
        if questions is not None and questions.count:
            queries[WRITTEN] = write_questions(
                self.documents,
                questions,
                self.seed,
                self.contamination.has,
                bf16=self.resources.options.bf16,
            )
        return queries

    def gather(
        self,
        queries: Mapping[str, str],
        *,
        proposed: Set[str] = frozenset(),
    ) -> Evidence:
        """Search for queries; lists are compared on those that people asked, or on generated ones.

        From fewer than ten queries of people nothing is concluded: the evidence is then that of the
        corpus alone.

        Args:
            queries: Id to text; may be empty.
            proposed: Ids of queries that were proposed, and that nobody asked. Those that this
                gatherer proposed are known by their texts.
        """
        own_texts = {text for kind in self._whole.values() for text in kind.texts}
        asked = asked_by_people(queries, proposed, own_texts)
        real = bool(asked)
        asked_rows = [row for row, id in enumerate(queries) if id in asked]
        if not real:
            asked = self.generated.queries
        texts = list(asked.values())
        rankings: dict[str, Ranking] = {}
        all_rankings: dict[str, Ranking] = {}
        retrieval: dict[str, Json] = {}
        with steps({name: None for name in self._rankers if name not in self._pseudo}):
            for name, ranker in self._rankers.items():
                ranking = self._search(name, ranker, queries)
                all_rankings[name] = ranking
                if real:
                    rankings[name] = Ranking(
                        list(asked), ranking.scores[asked_rows], ranking.rows[asked_rows]
                    )
                else:
                    over_corpus = self._pseudo[name].over_corpus
                    rankings[name] = over_corpus.get(GENERATED, no_results(asked))
                retrieval[name] = describe_search(
                    name, ranker, ranking, is_black_box=self.resources.spec(name).is_black_box
                )
        lists = {name: self._list(ranking) for name, ranking in rankings.items()}
        searched = self._searched_queries()
        crops = searched.pop(CROPS)
        generated = searched.pop(GENERATED)
        return Evidence(
            crops=crops.scores,
            generated=generated.scores,
            lists=lists,
            rankings=rankings,
            queries=asked,
            real=real,
            crop_queries=crops.queries,
            generated_queries=generated.queries,
            retrieval=retrieval,
            contamination=self.contamination,
            kinds={name: self._kind(name, ranker) for name, ranker in self._rankers.items()},
            answered=self._answered(asked if real else {}, len(asked)),
            further=searched,
            crop_lists={
                name: pseudo.cut[CROPS].rows
                for name, pseudo in self._pseudo.items()
                if CROPS in pseudo.cut
            },
            held_words={
                name: held_words(texts, rows, self.documents)
                for name, rows in lists.items()
                if (rows >= 0).any()
            },
            margins=self._margins(rankings if real else {}),
            cut_words=self._cut_words(),
            nonletter_excess=nonletter_excess(texts, self.documents) if real else 0.0,
            pooled=self._read_pools(texts, list(lists.values())) if real else None,
            all_rankings=all_rankings,
        )

    def _read_pools(self, queries: Sequence[str], lists: Sequence[Ints]) -> PooledScores | None:
        """Let the language model, if there is a local one, read what models rank first.

        From fewer than ten queries nothing is concluded.
        """
        if len(queries) < FEWEST_QUERIES or self._reader is None:
            return None
        return read_pools(self._reader, queries, lists, self.documents)

    @cached_property
    def _reader(self) -> PoolReader | None:
        if self._questions is None:
            return None
        # Imported here because a comparison without a language model must not pay for torch.
        from beir_cocodr.evaluation.label_free.likelihood_reader import load_likelihood_reader

        return load_likelihood_reader(self._questions, bf16=self.resources.options.bf16)

    def _ranker(self, name: str) -> Ranker:
        """Return the ranker of a model, or what a run has ranked."""
        spec = self.resources.spec(name)
        return RunRanker(spec, self.documents) if spec.kind == RUN else self.resources.ranker(name)

    def _answered(self, queries: Mapping[str, str], count: int) -> dict[str, Bools]:
        """Return run to (Q,) True for the queries that it answers; without queries, all False."""
        nothing = np.zeros(count, bool)
        return {
            name: ranker.answers(queries) if queries else nothing
            for name, ranker in self._rankers.items()
            if isinstance(ranker, RunRanker)
        }

    def _searched_queries(self) -> dict[str, SearchedQueries]:
        """Return the pseudo-queries of each kind that the corpus gives, with all scores."""
        searched = {}
        crops, further = self._cut_corpora
        for kind, queries in (crops.queries | self._whole | further.queries).items():
            scores = {}
            for name in self._rankers:
                if kind in self._pseudo[name].scores:
                    scores[name] = self._pseudo[name].scores[kind]
            of_kind = SearchedQueries(queries, scores)
            if kind == WRITTEN:
                rankings = {name: self._pseudo[name].over_corpus[kind].rows for name in scores}
                of_kind = consistent_questions(of_kind, rankings)
            if of_kind.queries.texts or kind in (CROPS, GENERATED):
                searched[kind] = of_kind
        return searched

    def _margins(self, asked: Mapping[str, Ranking]) -> dict[str, dict[str, Doubles]]:
        """Return kind of queries to model to the margins of its rankings.

        Args:
            asked: Model to its ranking for the collection's own queries, if there are any.
        """
        by_kind: dict[str, dict[str, Doubles]] = {}
        for name, searched in self._pseudo.items():
            for kind, ranking in searched.cut.items():
                by_kind.setdefault(kind, {})[name] = margins(ranking.scores, ranking.rows)
        for name, ranking in asked.items():
            rows = ranking.rows
            if self.drop:
                is_identical = rows == self.documents.rows(ranking.queries)[:, None]
                rows = np.where(is_identical, -1, rows)
            by_kind.setdefault(ASKED, {})[name] = margins(ranking.scores, rows)
        return by_kind

    def _cut_words(self) -> float | None:
        """Return the mean share of the words of crops that BM25's three best documents hold.

        Crops that are as long as real queries count if there are any.
        """
        cut = self._pseudo[BM25].cut
        crops, further = self._cut_corpora
        for kind, queries in (*further.queries.items(), *crops.queries.items()):
            if kind in (MATCHED, CROPS) and kind in cut and queries.texts:
                return held_words(queries.texts, cut[kind].rows, self.documents)
        return None

    def _search(
        self,
        name: str,
        ranker: Ranker,
        real: Mapping[str, str],
    ) -> Ranking:
        """Search for real queries, and the first time for the pseudo-queries with them."""
        depth = LIST_DEPTH + 1 if self.drop else LIST_DEPTH
        if isinstance(ranker, RunRanker):
            if not ranker.answers(real).any():
                raise InputError(
                    f"model {name!r}: the run answers none of the {len(real)} queries that are "
                    "searched for; give a run of the queries of the collection"
                )
            self._pseudo[name] = _PseudoSearch()
            return ranker.search(dict(real), depth)
        wanted = dict(real)
        is_first = name not in self._pseudo
        if is_first:
            step(name)
            ranker.prepare()
            pseudo = list(self._whole.values())
            for corpus in self._corpora_for(name):
                pseudo += corpus.queries.values()
            texts = list(real.values())
            for queries in pseudo:
                texts += queries.texts
            if texts:
                # Two kinds may have drawn the same title.
                different = list(dict.fromkeys(texts))
                self.resources.encode_queries(name, different)
            wanted |= numbered_queries(self._whole, apart_from=real)
        ranking = rank(ranker, wanted, depth)
        if is_first:
            self._pseudo[name] = self._score_pseudo(name, ranking, len(real))
        return part_of(ranking, list(real), 0)

    def _score_pseudo(
        self,
        name: str,
        ranking: Ranking,
        start: int,
    ) -> _PseudoSearch:
        """Return a model's results on the pseudo-queries.

        Args:
            name: The model.
            ranking: Its ranking, in which those of the whole corpus begin at ``start``.
            start: The number of real queries.
        """
        over_corpus = parts_of(ranking, self._whole, start)
        scores = {}
        for kind, part in over_corpus.items():
            scores[kind] = self._whole[kind].score(part.rows)
        cut = {}
        for corpus in self._corpora_for(name):
            ranker = corpus.resources.ranker(name)
            over_rest = rank(ranker, numbered_queries(corpus.queries), DEPTH)
            for kind, part in parts_of(over_rest, corpus.queries, 0).items():
                scores[kind] = corpus.queries[kind].score(part.rows)
                cut[kind] = part
        return _PseudoSearch(over_corpus, scores, cut)

    def _corpora_for(self, name: str) -> tuple[_CutCorpus, ...]:
        """Return the cut copies of the corpus that a model searches.

        A black box cannot be given any, and generated queries sharpen only whole documents. A model
        that reads every document anew searches the first alone, because its time counts more.
        """
        spec = self.resources.spec(name)
        if spec.is_black_box or name in self.contamination.sharpened:
            return ()
        reads_anew = spec.kind in HOSTED or spec.kind in RETRIEVERS or spec.kind == _FITTED
        if reads_anew:
            return self._cut_corpora[:1]
        return self._cut_corpora

    def propose(self) -> ProposedQueries:
        """Return queries to judge where nobody asked any, after :meth:`gather`.

        They are what a language model wrote, or else generated queries.
        """
        kind = GENERATED
        if WRITTEN in self._whole and self._whole[WRITTEN].texts:
            kind = WRITTEN
        queries = self._whole[kind].queries
        ids = {number: typed_id(text) for number, text in queries.items()}
        results = {}
        for name in self.models:
            ranking = self._pseudo[name].over_corpus.get(kind)
            if ranking is not None:
                by_number = ranking.results(self.documents, self.drop, LIST_DEPTH)
                results[name] = {ids[number]: hits for number, hits in by_number.items()}
        texts = {ids[number]: text for number, text in queries.items()}
        return ProposedQueries(kind, texts, results)

    def _list(self, ranking: Ranking) -> Ints:
        return best_rows(
            ranking,
            self.documents,
            LIST_DEPTH,
            drop_identical_ids=self.drop,
        )

    def _kind(self, name: str, ranker: Ranker) -> str | None:
        """Return a model's kind in the calibration.

        A ranker with a kind of its own, or a loaded encoder's class, says it.
        """
        spec = self.resources.spec(name)
        kind = calibration_kind(spec)
        if hasattr(ranker, "calibration_kind"):
            return str(ranker.calibration_kind)
        if spec.kind != "dense":
            return kind
        model = getattr(ranker, "model", None)
        return getattr(model, "calibration_kind", kind)


def _origin(spec: ModelSpec) -> str:
    """Return the name or the folder of a model's encoder, also of one that is loaded."""
    if spec.loaded is None:
        return spec.encoder
    transformer = getattr(spec.loaded, "transformers_model", None)
    return str(getattr(transformer, "name_or_path", "") or spec.encoder)
