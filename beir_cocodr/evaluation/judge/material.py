"""The material of a judge: the queries that it judges, their results, and the labels of some."""

from collections.abc import Mapping
from dataclasses import dataclass

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.defects import ignore
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.judgements import JudgedQuery, Judgements
from beir_cocodr.evaluation.annotation import DEPTH
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.models.spec import RUN, ModelSpec
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources


@dataclass(frozen=True)
class Material:
    """The queries that a judge judges.

    Attributes:
        results: Model to its results.
        queries: Query id to text, the labelled ones first.
        documents: The corpus.
        labels: The labels of some queries, judged or not; None without labels.
    """

    results: Mapping[str, Results]
    queries: Mapping[str, str]
    documents: Documents
    labels: Judgements | None = None

    @property
    def labelled(self) -> Judgements | None:
        """Return the labels of the judged queries, None if there are none."""
        if self.labels is None:
            return None
        kept = {
            query: labels for query, labels in self.labels.queries.items() if query in self.queries
        }
        if kept:
            return Judgements(self.labels.file, kept)
        return None


@dataclass(frozen=True)
class Searched:
    """The results of models on a collection, and what they were searched with.

    Attributes:
        specs: Label to model.
        collection: The collection.
        results: Label to the results of the model.
        resources: What the models share; None where no further query is searched for.
    """

    specs: Mapping[str, ModelSpec]
    collection: Collection
    results: Mapping[str, Results]
    resources: Resources | None

    @property
    def queries(self) -> list[str]:
        """Return the queries that some model has results for."""
        return list(dict.fromkeys(query for run in self.results.values() for query in run))

    def all_runs_have(self, query: str) -> bool:
        """Return true if no model is a run without this query, which nothing can be searched in."""
        return all(
            query in self.results[label] for label, spec in self.specs.items() if spec.kind == RUN
        )


def complete_judgements(
    grades: Mapping[str, Mapping[str, int]],
    source: str,
) -> Judgements:
    """Return grades as judgements that were not drawn.

    Args:
        grades: Query id to document id to grade.
        source: What gave the grades.
    """
    queries = {
        query: JudgedQuery(dict(of_query), dict.fromkeys(of_query, 1.0))
        for query, of_query in grades.items()
    }
    return Judgements(source, queries)


def material_of_queries(
    searched: Searched,
    labels: Judgements | None,
    most: int,
) -> Material:
    """Return queries that every run answers: those with labels, and others, evenly spaced.

    Args:
        searched: The results.
        labels: Judgements of a file; None if nothing is labelled.
        most: The most queries.
    """
    texts = dict(searched.collection.queries)
    labelled: list[str] = []
    if labels is not None:
        texts |= {query: judgement.text for query, judgement in labels.queries.items()}
        labelled = [query for query in labels.queries if searched.all_runs_have(query)]
    chosen = spaced(labelled, most)
    known = set(labelled)
    others = [
        query for query in searched.queries if query not in known and searched.all_runs_have(query)
    ]
    chosen += spaced(others, most - len(chosen))
    queries = {query: texts[query] for query in chosen}
    return Material(searched.results, queries, searched.collection.documents, labels)


def material_of_split(
    searched: Searched,
    most: int,
    drop_identical_ids: bool,
) -> Material:
    """Return the queries with labels of the split, and others of the collection, evenly spaced.

    With the labels of a split only the labelled queries were searched for, and the others are
    searched for now.

    Args:
        searched: The results.
        most: The most queries.
        drop_identical_ids: Leave out the document whose id is the query's.
    """
    collection = searched.collection
    has_results = set(searched.queries)
    grades = {
        query: of_query for query, of_query in collection.qrels.items() if query in has_results
    }
    queries = {query: collection.queries[query] for query in spaced(grades, most)}
    unlabelled = _unlabelled(searched)
    others = spaced(unlabelled, most - len(queries))
    further = {query: unlabelled[query] for query in others}
    results = _search_further(searched, further, drop_identical_ids)
    queries |= further
    labels = complete_judgements(grades, collection.name)
    return Material(results, queries, collection.documents, labels)


def _unlabelled(searched: Searched) -> dict[str, str]:
    """Return the queries without labels that every run among the models has, too."""
    collection = searched.collection
    if collection.source is None:
        return {}
    queries = {}
    for _, query, text in collection.source.queries(ignore):
        is_unlabelled = query not in collection.qrels and bool(text.strip())
        if is_unlabelled and searched.all_runs_have(query):
            queries[query] = text
    return queries


def _search_further(
    searched: Searched,
    queries: dict[str, str],
    drop_identical_ids: bool,
) -> dict[str, Results]:
    """Return the results of all models with those of further queries."""
    documents = searched.collection.documents
    results = {}
    for label, spec in searched.specs.items():
        results[label] = dict(searched.results[label])
        if queries and spec.kind != RUN:
            assert searched.resources is not None
            ranking = searched.resources.ranker(spec).search(queries, DEPTH + 1)
            results[label] |= ranking.results(documents, drop_identical_ids, DEPTH)
    return results
