"""Overlap of the labels of training and test queries.

How much a training set gives away of a test set, in a few numbers.

How biased a benchmark is: what its training set gives away of its test set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_writer, output_folder, write_text
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import versions
from beir_cocodr.report.pictures import has_matplotlib, require_matplotlib, write_histogram
from beir_cocodr.resampling.inputs import TrainTest
from beir_cocodr.resampling.similarity import nearest_by_words

Qrels = Mapping[str, Mapping[str, int]]


class LabelOverlap(NamedTuple):
    """How many test queries share relevant passages with training queries.

    Attributes:
        grade: passages of the test query count from this grade on.
        minimum: so many of them must be relevant to a training query.
        overlapping: test queries for which that holds.
        queries: all test queries.
    """

    grade: int
    minimum: int
    overlapping: int
    queries: int

    @property
    def share(self) -> float:
        """Of all test queries, in 0..1."""
        return self.overlapping / self.queries if self.queries else 0.0


def label_overlap(train_qrels: Qrels, test_qrels: Qrels, minimum: int = 1) -> list[LabelOverlap]:
    """Test queries of which enough relevant passages are relevant to training queries, at every grade.

    A passage is relevant to a training query from grade 1 on.

    Args:
        train_qrels: training query id to {document id: grade}.
        test_qrels: test query id to {document id: grade}; all of them are counted, also those without a
            passage of the grade.
        minimum: 1, "any of its passages", is the rule that the paper states; 2, "more than one", the one
            that its published script applies.

    Returns:
        One row for every positive grade of the test judgements, the highest first.

    Raises:
        InputError: ``minimum`` below 1.

    Source: Zhan et al., 2022, section 3.2 and Table 3.
    """
    if minimum < 1:
        raise InputError(f"minimum is {minimum}: an overlap has at least one passage")
    seen = {document for grades in train_qrels.values() for document, grade in grades.items() if grade > 0}
    grades = sorted({grade for judged in test_qrels.values() for grade in judged.values() if grade > 0})
    shared = [
        [grade for document, grade in judged.items() if document in seen] for judged in test_qrels.values()
    ]
    return [
        LabelOverlap(
            least,
            minimum,
            sum(sum(grade >= least for grade in found) >= minimum for found in shared),
            len(test_qrels),
        )
        for least in reversed(grades)
    ]


#: The rule that the paper states, "any of its passages", and that of its script, "more than one".
MINIMA = (1, 2)


def overlap_summary(
    pair: TrainTest,
    train: Collection[str],
    test: Collection[str],
    similarities: npt.NDArray[np.floating[Any]],
) -> dict[str, Any]:
    """Label overlap by both rules, repeated queries, and similarity to the nearest training query.

    Args:
        pair: the full sets.
        train, test: ids of the training and test queries that are looked at; sets are fast.
        similarities: (t,) of those test queries to their nearest of those training queries.
    """
    train_qrels = {query: grades for query, grades in pair.train.qrels.items() if query in train}
    test_qrels = {query: grades for query, grades in pair.test.qrels.items() if query in test}
    return {
        "training_queries": len(train_qrels),
        "test_queries": len(test_qrels),
        "label_overlap": label_overlaps(train_qrels, test_qrels),
        **pair.duplicates.among(train, test),
        "nearest_similarity": similarity_summary(similarities),
    }


def label_overlaps(train_qrels: Qrels, test_qrels: Qrels) -> list[dict[str, Any]]:
    """Label overlap at every grade, by both rules."""
    return [
        {**row._asdict(), "share": row.share}
        for minimum in MINIMA
        for row in label_overlap(train_qrels, test_qrels, minimum)
    ]


def similarity_summary(similarities: npt.NDArray[np.floating[Any]]) -> dict[str, float]:
    """Mean, median and range; the last bits, which depend on the processor, are cut off."""
    found = np.asarray(similarities, np.float64)
    return {
        name: round(float(value), 5)
        for name, value in (
            ("mean", found.mean()),
            ("median", np.median(found)),
            ("least", found.min()),
            ("most", found.max()),
        )
    }


_BIN = 0.05


def overlap(
    train: str,
    test: str,
    *,
    train_split: str = "train",
    test_split: str = "test",
    encoder: str | None = None,
    output: Path | None = None,
    picture: bool | None = None,
    search: SearchOptions = SearchOptions(),
) -> dict[str, Any]:
    """Compare the labels and the queries of a training set with those of a test set.

    Args:
        train, test: datasets as the command line names them.
        train_split, test_split: splits of their judgements.
        encoder: whose query embeddings say, by cosine, which training query is nearest; without one it is
            the Jaccard similarity of stemmed words, stop words taken out.
        output: folder for overlap.json, nearest.tsv and similarity.png.
        picture: draw the histogram of similarities; by default where there are an output and matplotlib.
        search: how queries are encoded.

    Returns:
        The content of overlap.json: "label_overlap", a row for every grade and rule ("minimum" 1: any of the
        passages of that grade or more is relevant to a training query; 2: more than one);
        "exact_duplicates" and "near_duplicates", see `QueryDuplicates`; "nearest", the most similar training
        query of every test query, None where none shares a word.

    Raises:
        InputError: what has to be corrected in a collection or the encoder; a picture without an output or
            without matplotlib.

    Source: Zhan et al., 2022, section 3.2, Tables 3 and 4.
    """
    drawn = _will_draw(picture, output)
    if output is not None:
        output_folder(output)
    pair = TrainTest.load(train, test, train_split, test_split)
    scores, rows, described = _nearest(pair, encoder, search)
    report = {
        "train": _side(train, pair.train.split, len(pair.train.queries)),
        "test": _side(test, pair.test.split, len(pair.test.queries)),
        "same_corpus": pair.same_corpus,
        "label_overlap": label_overlaps(pair.train.qrels, pair.test.qrels),
        "exact_duplicates": _repeated(pair.duplicates.exact, pair),
        "near_duplicates": _repeated(pair.duplicates.near, pair),
        "nearest": {
            "similarity": "words" if encoder is None else "cosine",
            "encoder": described,
            **similarity_summary(scores),
            "histogram": _histogram(scores),
            "queries": _pairs(pair, scores, rows),
        },
        "picture": "similarity.png" if drawn else None,
        "versions": versions(),
    }
    if output is not None:
        _write(output, report, drawn)
    return report


def _nearest(
    pair: TrainTest, encoder: str | None, search: SearchOptions
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], dict[str, Any] | None]:
    """Similarity and row of the nearest training query of every test query, (T,) each."""
    if encoder is None:
        found, described = nearest_by_words(*pair.words), None
    else:
        # Imported here because a comparison of words must not wait six seconds for torch.
        from beir_cocodr.resampling.embeddings import QueryEncoder, query_embeddings
        from beir_cocodr.resampling.similarity import nearest

        model = QueryEncoder(encoder, search)
        train, tests = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
        found, described = nearest(train, tests.load().numpy(), 1), model.describe()
    return found.scores[:, 0].astype(np.float64), found.rows[:, 0], described


def _side(dataset: str, split: str | None, queries: int) -> dict[str, Any]:
    return {"dataset": dataset, "split": split, "queries": queries}


def _repeated(pairs: dict[str, list[str]], pair: TrainTest) -> dict[str, Any]:
    return {"queries": len(pairs), "share": len(pairs) / len(pair.test.queries), "pairs": pairs}


def _histogram(scores: npt.NDArray[np.float64]) -> dict[str, list[float]]:
    # Cosines may be negative, and by rounding a little more than 1.
    least = min(0.0, math.floor(float(scores.min()) / _BIN) * _BIN)
    edges = np.linspace(least, 1.0, round((1.0 - least) / _BIN) + 1)
    counts, _ = np.histogram(scores.clip(least, 1.0), edges)
    return {"edges": [round(edge, 2) for edge in edges.tolist()], "counts": counts.tolist()}


def _pairs(
    pair: TrainTest, scores: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]
) -> list[dict[str, Any]]:
    ids = list(pair.train.queries)
    found = []
    for (query, text), score, row in zip(
        pair.test.queries.items(), scores.tolist(), rows.tolist(), strict=True
    ):
        other = ids[row] if row >= 0 else None
        found.append(
            {
                "query": query,
                "text": text,
                "training_query": other,
                "training_text": None if other is None else pair.train.queries[other],
                "similarity": round(score, 5),
            }
        )
    return found


def _write(output: Path, report: dict[str, Any], drawn: bool) -> None:
    nearest = report["nearest"]
    with atomic_writer(output / "nearest.tsv") as file:
        columns = ("query", "training_query", "similarity", "text", "training_text")
        file.write("\t".join(columns) + "\n")
        for row in nearest["queries"]:
            # Texts may hold tabs and line ends, which would break the table.
            cells = (" ".join(str("" if row[name] is None else row[name]).split()) for name in columns)
            file.write("\t".join(cells) + "\n")
    if drawn:
        label = "similarity to the nearest training query (" + (
            "Jaccard, words)" if nearest["encoder"] is None else f"cosine, {nearest['encoder']['name']})"
        )
        title = f"{report['test']['dataset']}: {report['test']['queries']:,} test queries"
        write_histogram(
            output / "similarity.png",
            nearest["histogram"]["edges"],
            nearest["histogram"]["counts"],
            title,
            label,
        )
    write_text(output / "overlap.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _will_draw(picture: bool | None, output: Path | None) -> bool:
    if picture:
        require_matplotlib()
        if output is None:
            raise InputError("a picture needs a folder to stand in: give --output")
    return output is not None and (has_matplotlib() if picture is None else picture)
