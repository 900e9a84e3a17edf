"""Labelled collections with their facts, cut to a size that many encoders can encode.

A cut keeps all documents that are relevant to its queries, and a seeded sample of the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.io import write_jsonl, write_qrels, write_text

ENGLISH = "english"

#: The folder of cut collections in the working folder, and the file of a collection's facts.
FOLDER = "collections"
_FACTS = "facts.json"

#: The fewest documents of a cut collection, if it has as many.
FEWEST = 1000

# At most this share of a cut are documents that are relevant to its queries.
_RELEVANT_SHARE = 0.5

# In a pool of fewer documents, all rankings are nearly the same.
_SMALLEST_POOL = 3


@dataclass(frozen=True)
class Facts:
    """What is known about a collection beside its texts.

    Attributes:
        family: Collections of one family are left out together.
        kind: What its documents are.
        language: The English name of its language.
        pooled: True if only the judged documents of a query can be ranked for it.
    """

    family: str
    kind: str
    language: str = ENGLISH
    pooled: bool = False


#: Facts of collections by name; any other collection is a family of its own.
KNOWN = {
    "aila-statutes": Facts("aila", "law"),
    "anthropic-docs": Facts("product documentation", "product documentation"),
    "birco-whatsthatbook": Facts("birco", "tip of the tongue", pooled=True),
    "cacm": Facts("cacm", "science"),
    "cisi": Facts("library science", "science"),
    "climatefever-evidence": Facts("climatefever", "fact checking", pooled=True),
    "cosqa-test500": Facts("cosqa", "code"),
    "cranfield": Facts("cranfield", "science"),
    "csfcube": Facts("csfcube", "science"),
    "dbpedia-pool": Facts("dbpedia", "wiki entities"),
    "financebench-pages": Facts("financebench", "finance"),
    "legalquad-de": Facts("legalquad", "law", "german"),
    "lisa": Facts("library science", "science"),
    "liveqa-medquad": Facts("medicine", "medicine"),
    "med": Facts("medicine", "medicine"),
    "msmarco-pool": Facts("msmarco", "web passages"),
    "nfcorpus": Facts("medicine", "medicine"),
    "npl": Facts("npl", "science"),
    "rgb-zh-refine": Facts("rgb", "news", "chinese"),
    "scifact": Facts("medicine", "medicine"),
    "time": Facts("time", "news"),
    "xquad-ar": Facts("xquad", "wiki paragraphs", "arabic"),
    "xquad-de": Facts("xquad", "wiki paragraphs", "german"),
    "xquad-es": Facts("xquad", "wiki paragraphs", "spanish"),
    "xquad-zh": Facts("xquad", "wiki paragraphs", "chinese"),
}
_API_DOCUMENTATION = Facts("apidocs", "API documentation")


@dataclass(frozen=True)
class Limits:
    """How much of a collection is kept.

    Attributes:
        documents: The most documents.
        characters: Fewer documents are kept where together they would be longer than this, but no
            fewer than :data:`FEWEST`.
        queries: The most queries.
        samples: The most queries of each kind that are made of documents.
        seed: The seed of every choice.
    """

    documents: int = 3000
    characters: int = 1_200_000
    queries: int = 300
    samples: int = 150
    seed: int = 42

    def documents_of(self, lengths: Sequence[int]) -> int:
        """Return the most documents of a collection, by the characters of each of its documents."""
        mean = sum(lengths) / max(1, len(lengths))
        fitting = int(self.characters / max(1.0, mean))
        return min(self.documents, max(FEWEST, fitting))


@dataclass(frozen=True)
class Parent:
    """A labelled collection that was cut.

    Attributes:
        name: Its name.
        facts: Its facts.
        folder: The folder of the cut, a BEIR folder.
        total: The number of documents before the cut.
        source_sha256: The content hash of these documents; None for an earlier cut.
    """

    name: str
    facts: Facts
    folder: Path
    total: int
    source_sha256: str | None

    def load(self) -> Collection:
        """Load the cut collection."""
        return load_collection(str(self.folder))


def facts_of(name: str) -> Facts:
    """Return the facts of a collection."""
    if name.startswith("apidocs/"):
        return _API_DOCUMENTATION
    return KNOWN.get(name, Facts(name, "unknown"))


def folder_name(name: str) -> str:
    """Return a name that folders can have."""
    return name.replace("/", "-")


def cut_parent(name: str, source: str, work: Path, limits: Limits) -> Parent:
    """Cut a collection into the working folder, unless it is there.

    Args:
        name: The collection's name.
        source: What it is loaded from.
        work: The working folder.
        limits: How much of it is kept.
    """
    folder = work / FOLDER / folder_name(name)
    facts = facts_of(name)
    file = folder / _FACTS
    if not file.is_file():
        counted = _write_cut(source, folder, limits, facts.pooled)
        content = {"name": name, **counted, "limits": asdict(limits)}
        write_text(file, json.dumps(content))
    return _read_parent(file)


def read_parents(work: Path) -> list[Parent]:
    """Return the collections that were cut into a working folder, by name."""
    parents = []
    for file in sorted((work / FOLDER).glob(f"*/{_FACTS}")):
        parents.append(_read_parent(file))
    return parents


def _read_parent(file: Path) -> Parent:
    content = json.loads(file.read_text())
    name = content["name"]
    return Parent(name, facts_of(name), file.parent, content["total"], content.get("source_sha256"))


def has_pools(parent: Parent) -> bool:
    """Return true if the queries of a collection have judged documents that are not relevant."""
    qrels = parent.load().qrels
    with_pools = sum(len(grades) >= _SMALLEST_POOL for grades in qrels.values())
    return 2 * with_pools >= len(qrels)


def _write_cut(
    source: str,
    folder: Path,
    limits: Limits,
    pooled: bool,
) -> dict[str, int | str]:
    """Write a cut of a collection, and return the number and hash of the documents before it.

    A pool is kept whole.
    """
    collection = load_collection(source)
    lengths = [len(document["text"]) for document in collection.documents.values()]
    limits = replace(limits, documents=limits.documents_of(lengths))
    lowest = 0 if pooled else 1
    qrels = _chosen_qrels(collection, limits, lowest)
    kept = _kept_documents(list(collection.documents), qrels, limits, lowest)
    (folder / "qrels").mkdir(
        parents=True,
        exist_ok=True,
    )
    documents = []
    for identifier in kept:
        document = collection.documents[identifier]
        documents.append({"_id": identifier, "title": document["title"], "text": document["text"]})
    write_jsonl(folder / "corpus.jsonl", documents)
    queries = [{"_id": query, "text": collection.queries[query]} for query in qrels]
    write_jsonl(folder / "queries.jsonl", queries)
    inside = set(kept)
    rows = []
    for query, grades in qrels.items():
        rows += [(query, key, grade) for key, grade in grades.items() if key in inside]
    write_qrels(folder / "qrels" / "test.tsv", rows)
    documents_before = collection.documents
    return {"total": len(documents_before), "source_sha256": documents_before.content_hash}


def _chosen_qrels(
    collection: Collection,
    limits: Limits,
    lowest: int,
) -> dict[str, Mapping[str, int]]:
    """Return the judgements of a seeded sample of queries, in the collection's order.

    Queries are drawn as long as their documents leave room for others.
    """
    known = set(collection.documents)
    most = len(known)
    if most > limits.documents:
        most = int(_RELEVANT_SHARE * limits.documents)
    chosen: set[str] = set()
    kept: set[str] = set()
    for query in _drawn_queries(collection, known, limits.seed):
        with_query = kept | _graded(collection.qrels[query], known, lowest)
        if len(chosen) < limits.queries and len(with_query) <= most:
            chosen.add(query)
            kept = with_query
    return {query: grades for query, grades in collection.qrels.items() if query in chosen}


def _drawn_queries(collection: Collection, known: set[str], seed: int) -> list[str]:
    """Return the queries that have a relevant document, in a random order."""
    queries = []
    for query, grades in collection.qrels.items():
        if query in collection.queries and _graded(grades, known, 1):
            queries.append(query)
    random.Random(seed).shuffle(queries)
    return queries


def _graded(grades: Mapping[str, int], known: set[str], lowest: int) -> set[str]:
    """Return the known documents of a grade or a better one."""
    return {key for key, grade in grades.items() if grade >= lowest and key in known}


def _kept_documents(
    documents: list[str],
    qrels: Mapping[str, Mapping[str, int]],
    limits: Limits,
    lowest: int,
) -> list[str]:
    """Return the ids of all graded documents and of a seeded sample, in the corpus's order."""
    known = set(documents)
    kept: set[str] = set()
    for grades in qrels.values():
        kept |= _graded(grades, known, lowest)
    others = [document for document in documents if document not in kept]
    room = max(0, limits.documents - len(kept))
    kept |= set(_sampled(others, room, limits.seed))
    return [document for document in documents if document in kept]


def _sampled(values: Iterable[str], size: int, seed: int) -> list[str]:
    every = list(values)
    return random.Random(seed).sample(every, min(size, len(every)))
