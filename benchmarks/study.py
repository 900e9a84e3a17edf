"""What the studies share: targets, cells that are made once, and their spread over seeds."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.measures import paired_tests
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions

COLLECTIONS = ("cranfield", "cisi", "npl", "time")


def targets(
    own: Sequence[str], collections: Path | None, output: Path, documents: int
) -> dict[str, str]:
    """Name to collection: our own, and those in the folder ``collections``, cut to
    ``documents``.
    """
    found = {name: name for name in own}
    for name in COLLECTIONS if collections else ():
        cut = output / "collections" / name
        cut_collection(collections / name, cut, documents)
        found[name] = str(cut)
    return found


def judge(
    model: str,
    collection: str,
    folder: Path,
    queries: int,
    half: bool = False,
    *,
    encoder: EncoderOptions,
) -> dict[str, Any]:
    """Measures and per-query nDCG@10 of a model, kept in ``folder``; ``half``: documents in
    bfloat16.
    """
    file = folder / "results.json"
    if not file.is_file():
        stores = [folder / "store"] if half else []
        for store in stores:
            encode(collection, model, store, EncodeOptions(backend="bf16"), encoder=encoder)
        search = SearchOptions(encoder, progress=True, stores=tuple(stores))
        evaluate(
            {"model": model},
            collection,
            output=folder,
            search=search,
            options=EvaluateOptions(queries=queries),
        )
        shutil.rmtree(folder / "store", ignore_errors=True)
    record = EvaluationRecord.read(file)
    result = record.models["model"]
    lines = (folder / str(result.per_query)).read_text().splitlines()
    column = lines[0].split("\t").index("nDCG@10")
    per_query = {(cells := line.split("\t"))[0]: float(cells[column]) for line in lines[1:]}
    return {
        "measures": result.measures,
        "per_query": list(per_query.values()),
        "query_ids": list(per_query),
        "queries": record.queries,
        "documents": record.documents,
    }


def seconds_of_cells(output: Path) -> float:
    """Of training and evaluating all cells, whenever they were made; some may have run side by
    side.
    """
    trained = [json.loads(file.read_text()) for file in output.glob("*/*/training.json")]
    judged = [json.loads(file.read_text()) for file in output.glob("results/*/*/results.json")]
    return sum(record["seconds"] for record in trained) + sum(
        record["seconds"] for report in judged for record in report["models"].values()
    )


def cut_collection(source: Path, folder: Path, documents: int) -> None:
    """Copy a BEIR folder with all judged documents and a random sample of the others."""
    if (folder / "qrels" / "test.tsv").is_file():
        return
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    qrels = (source / "qrels" / "test.tsv").read_text()
    judged = {line.split("\t")[1] for line in qrels.splitlines()[1:]}
    lines = (source / "corpus.jsonl").read_text().splitlines()
    others = [i for i, line in enumerate(lines) if json.loads(line)["_id"] not in judged]
    count = max(0, documents - (len(lines) - len(others)))
    left_out = set(others) - set(random.Random(42).sample(others, min(count, len(others))))
    kept = [line for i, line in enumerate(lines) if i not in left_out]
    write_text(folder / "corpus.jsonl", "\n".join(kept) + "\n")
    write_text(folder / "queries.jsonl", (source / "queries.jsonl").read_text())
    write_text(folder / "qrels" / "test.tsv", qrels)


def spread(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Measure to mean, standard deviation and values over the seeds."""
    return {
        measure: {
            "mean": np.mean([cell["measures"][measure] for cell in cells]),
            "sd": np.std([cell["measures"][measure] for cell in cells], ddof=1),
            "seeds": [cell["measures"][measure] for cell in cells],
        }
        for measure in cells[0]["measures"]
    }


def judged_targets(
    rows: Mapping[str, Mapping[str, list[dict[str, Any]]]],
    families: Mapping[str, list[tuple[str, str]]],
) -> dict[str, Any]:
    """Target to the spread of each row over its seeds, and paired tests of nDCG@10 on means over
    seeds.

    Args:
        rows: row to target to the cells of its seeds, as :func:`judge` gives them.
        families: question to the pairs (a, b) of rows that answer it.
    """
    told = {}
    for target, cells in next(iter(rows.values())).items():
        scores = {
            row: {"nDCG@10": np.mean([cell["per_query"] for cell in found[target]], axis=0)}
            for row, found in rows.items()
        }
        told[target] = {
            "queries": cells[0]["queries"],
            "documents": cells[0]["documents"],
            "rows": {row: spread(found[target]) for row, found in rows.items()},
            "comparisons": [asdict(test) for test in paired_tests(scores, families)],
        }
    return told


def markdown_targets(targets: Mapping[str, Any], rows: Sequence[str]) -> list[str]:
    """Lines: nDCG@10 of every row on every target, and the tests."""
    lines = [f"| target | {' | '.join(rows)} |", "| --- " * (len(rows) + 1) + "|"]
    for target, found in targets.items():
        cells = [f"{found['rows'][row]['nDCG@10']['mean']:.3f}" for row in rows]
        lines.append(f"| {target} | {' | '.join(cells)} |")
    lines.append("")
    for target, found in targets.items():
        for test in found["comparisons"]:
            told = f"{test['difference']:+.4f} (p {test['t_p_holm']:.3g})"
            lines.append(f"{target}: {test['b']} against {test['a']}: {told}")
    return lines
