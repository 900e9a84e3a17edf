"""How biased a benchmark is: what its training set gives away of its test set."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.files import atomic_writer, output_folder, write_text
from beir_cocodr.report.histogram import write_histogram
from beir_cocodr.report.scatter import has_matplotlib, require_matplotlib
from beir_cocodr.resampling.overlap_summary import label_overlaps, similarity_summary
from beir_cocodr.resampling.train_test import TrainTest
from beir_cocodr.resampling.word_similarity import nearest_by_words
from beir_cocodr.versions import versions

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
    **options: Any,
) -> dict[str, Any]:
    """Compare the labels and the queries of a training set with those of a test set.

    Args:
        train, test: datasets as the command line names them.
        train_split, test_split: splits of their judgements.
        encoder: whose query embeddings say, by cosine, which training query is nearest; without one it is
            the Jaccard similarity of stemmed words, stop words taken out.
        output: folder for overlap.json, nearest.tsv and similarity.png.
        picture: draw the histogram of similarities; by default where there are an output and matplotlib.
        **options: passed on to :class:`QueryEncoder`.

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
    scores, rows, described = _nearest(pair, encoder, options)
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
    pair: TrainTest, encoder: str | None, options: dict[str, Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], dict[str, Any] | None]:
    """Similarity and row of the nearest training query of every test query, (T,) each."""
    if encoder is None:
        found, described = nearest_by_words(*pair.words), None
    else:
        # Imported here because a comparison of words must not wait six seconds for torch.
        from beir_cocodr.resampling.embedding_cache import query_embeddings
        from beir_cocodr.resampling.query_encoder import QueryEncoder
        from beir_cocodr.resampling.similarity import nearest

        model = QueryEncoder(encoder, **options)
        train, tests = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
        found, described = nearest(train, tests.load(), 1), model.describe()
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
