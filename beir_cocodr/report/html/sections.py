"""Tables and pictures of the page's sections.

What was compared on what.

What models have seen in training of the collection that they are judged on.

Single queries with the rankings of all models, as the page's script takes them.

Which queries a page of bounded size shows.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.report.html.outputs import KNOWN, Found, Judgement, Scores, run_tops
from beir_cocodr.report.html.pictures import cluster_pictures, curve_picture, interval_picture, query_picture
from beir_cocodr.report.html.tables import (
    Column,
    HtmlTable,
    annotation_table,
    curve_table,
    model_table,
    number_cell,
    published_table,
    settings_table,
    shown_pairs,
    test_table,
    text_cell,
    training_table,
    verdict_table,
)
from beir_cocodr.report.html.text import short_names
from beir_cocodr.report.html.verdict import Headline, label_free_reference
from beir_cocodr.report.pictures import has_matplotlib

#: Tests that are shown without being asked for.
_SHOWN_TESTS = 3


def comparison_parts(
    found: Found,
    judged: Judgement | None,
    scores: Scores,
    headline: Headline,
    names: Mapping[str, str],
    published: Sequence[Path],
) -> dict[str, Any]:
    """Of models on a collection, with labels or without."""
    parts: dict[str, Any] = {"models": None, "tests": None, "published": None, "wanted": None, "pictures": []}
    wanted = (found.comparison or {}).get("labels_wanted")
    if wanted and wanted["pairs"]:
        parts["wanted"] = annotation_table(wanted, names)
    if judged is None:
        if found.comparison is not None:
            parts |= _label_free(found, names)
        return parts
    parts["models"] = model_table(judged, names)
    if len(judged.tests) > _SHOWN_TESTS:
        parts["tests"] = test_table(judged, names)
    parts["published"] = published_table(judged, names, published)
    pictures = [interval_picture(judged, names)]
    if headline.pair is not None:
        pictures.append(query_picture(judged, scores, headline.pair, names))
    parts["pictures"] = [drawn for drawn in pictures if drawn is not None]
    return parts


def _label_free(found: Found, names: Mapping[str, str]) -> dict[str, Any]:
    comparison = found.comparison or {}
    adaptation = found.adaptation if (found.adaptation or {}).get("comparison") else None
    pairs = comparison["pairs"]
    shown = shown_pairs(comparison, label_free_reference(comparison, adaptation), names)
    parts = {"models": verdict_table(comparison, names, shown, "Verdicts and estimates without labels")}
    if len(shown) < len(pairs):
        parts["tests"] = verdict_table(comparison, names, pairs, "All pairs of models")
    return parts


def training_parts(found: Found) -> dict[str, Any]:
    """Of trained models: how they were trained, their rounds and their clusters."""
    clusters = [
        drawn
        for number, (title, lines) in enumerate(
            (title, lines) for model in found.trained for title, lines in model.clusters.items()
        )
        for drawn in cluster_pictures(f"clusters-{number}", title, lines)
    ]
    curves = [
        curve_picture(f"curves-{number}", name, points)
        for number, (name, points) in enumerate(found.curves.items())
    ]
    return {
        "trainings": training_table(found.trained) if found.trained else None,
        "settings": [settings_table(model) for model in found.trained],
        "cluster_pictures": clusters,
        "clusters_logged": any(model.clusters for model in found.trained),
        "curve_pictures": [drawn for drawn in curves if drawn is not None],
        "curve_tables": [curve_table(name, points) for name, points in found.curves.items()],
        "can_draw": has_matplotlib(),
    }


def facts(found: Found, judged: Judgement | None) -> list[tuple[str, str]]:
    """Term and value: collection, hashes, counts, policies, seeds, machine, versions, date, files.

    Only what is on record; nothing is said of the machine that the report is made on.
    """
    return list(_facts(found, judged))


def _facts(found: Found, judged: Judgement | None) -> Iterator[tuple[str, str]]:
    results = dict(judged.results) if judged else {}
    told = {**results, **{k: v for k, v in (found.comparison or {}).items() if k not in results}}
    adaptation = found.adaptation or {}
    dataset = told.get("dataset") or adaptation.get("corpus")
    if dataset:
        split = told.get("split")
        yield "Collection", f"{dataset} (split {split})" if split else str(dataset)
    for key, term in (("source", "Source"), ("base", "Base")):
        if adaptation.get(key):
            yield term, str(adaptation[key])
    if adaptation.get("stages"):
        yield "Stages", ", ".join(adaptation["stages"])
    if told.get("documents") is not None:
        yield "Documents", f"{told['documents']:,}"
    if told.get("queries") is not None:
        yield ("Judged queries" if judged else "Queries"), f"{told['queries']:,}"
    if told.get("corpus_sha256"):
        yield "Corpus, sha256", told["corpus_sha256"]
    if told.get("identical_ids"):
        yield (
            "Document with the query's id",
            {"keep": "kept", "drop": "dropped"}.get(told["identical_ids"], told["identical_ids"]),
        )
    if told.get("top_k"):
        yield "Documents a query", f"{told['top_k']:,}"
    if told.get("counts"):
        yield "Counted on loading", ", ".join(f"{kind}: {n:,}" for kind, n in told["counts"].items())
    seeds = _seeds(found)
    if seeds:
        yield "Seeds", ", ".join(map(str, seeds))
    if machine := told.get("machine"):
        yield (
            "Machine",
            ", ".join(f"{k} {v}" for k, v in machine.items())
            if isinstance(machine, Mapping)
            else str(machine),
        )
    if versions := _versions(found, judged):
        yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Written", _written(found)
    yield "Made from", ", ".join(str(file) for file in found.files)


def _seeds(found: Found) -> list[int]:
    seeds = []
    for model in found.trained:
        record: dict[str, Any] | None = model.record
        while record is not None:
            seeds.append(record.get("options", {}).get("seed"))
            record = record.get("parent")
    seeds.append((found.comparison or {}).get("seed"))
    return sorted({seed for seed in seeds if seed is not None})


def _versions(found: Found, judged: Judgement | None) -> dict[str, str]:
    records = [found.comparison or {}]
    records += list(judged.models.values()) if judged else []
    records += [model.record for model in found.trained]
    return next((record["versions"] for record in records if record.get("versions")), {})


def _written(found: Found) -> str:
    """The date of the youngest file: the commands put none into their files."""
    newest = max((found.folder / Path(file)).stat().st_mtime for file in found.files)
    return f"{datetime.datetime.fromtimestamp(newest, datetime.UTC):%Y-%m-%d %H:%M} UTC"


_UNTRAINED = "bm25"


@dataclass(frozen=True)
class ContaminationSection:
    """Attributes: statements: name of a model to its sentences; table: what training was given; remark."""

    statements: dict[str, list[str]]
    table: HtmlTable | None
    remark: str = ""


def contamination_section(
    found: Found, judged: Mapping[str, Any], collection: Collection | None, count: int | None = None
) -> ContaminationSection | None:
    """The statement of comparison.json, else one that is made now, else what the records say by themselves.

    Args:
        found: the files.
        judged: label to the model's name, of everything that was judged.
        collection: what was judged on, where it is at hand.
        count: how many queries were judged, where labels did.
    """
    if (found.comparison or {}).get("seen"):
        return _describe_statement(_by_encoder(found.comparison["seen"]))  # type: ignore[index]
    models = {label: _here(str(name), found.folder) for label, name in judged.items()}
    models |= {model.name: str(model.folder) for model in found.trained if not judged}
    encoders = [ModelSpec.parse(name).encoder for name in models.values()]
    encoders = [name for name in dict.fromkeys(encoders) if name != _UNTRAINED and not Path(name).is_file()]
    if not encoders:
        return None
    if collection is None:
        return _unjoined(found)
    try:
        statement = contamination_statement(encoders, collection)
    except InputError as error:
        return ContaminationSection({}, None, f"What was seen cannot be told: {error}.")
    told, asked = (
        _describe_statement(_by_encoder({n: asdict(s) for n, s in statement.items()})),
        len(collection.queries),
    )
    if count is None or count >= asked:
        return told
    part = f"Queries are counted over all {asked:,} of the split; {count:,} of them were judged here."
    return replace(told, remark=part)


def _here(name: str, folder: Path) -> str:
    """A model's name, in the folder where it lies now: a path on record may begin elsewhere."""
    path = ModelSpec.parse(name).encoder
    moved = folder / "models" / Path(path).name
    return (
        name.removesuffix(path) + str(moved)
        if moved.is_dir() and Path(path).parent.name == "models"
        else name
    )


def _by_encoder(statement: Mapping[str, Any]) -> dict[str, Any]:
    """One entry an encoder, by a short name: one that is used in several ways has one history."""
    told = {ModelSpec.parse(model).encoder: found for model, found in statement.items()}
    told.pop(_UNTRAINED, None)
    names = short_names(told)
    return {names[encoder]: found for encoder, found in told.items()}


def _describe_statement(statement: Mapping[str, Any]) -> ContaminationSection:
    columns = [
        Column("Model", number=False),
        Column("Given", number=False),
        Column("Stages", number=False),
        Column("Documents"),
        Column("Shared", meaning="documents of the evaluated collection that training was given"),
        Column("Queries"),
        Column("Shared", meaning="evaluated queries that training was given"),
    ]
    rows = []
    for model, told in statement.items():
        for shown in told["collections"]:
            numbers = [shown[key] for key in ("documents", "documents_shared", "queries", "queries_shared")]
            given = f"corpus {_short(shown.get('corpus_sha256'))}"
            if shown.get("queries_sha256"):
                given += f", queries {_short(shown['queries_sha256'])}"
            rows.append(
                [
                    text_cell(model),
                    text_cell(str(shown["dataset"]), given),
                    text_cell(", ".join(shown["stages"])),
                    *(
                        number_cell(value, f"{value:,}") if value is not None else number_cell(None, "")
                        for value in numbers
                    ),
                ]
            )
    table = HtmlTable("Collections that training was given, by hash", columns, rows) if rows else None
    return ContaminationSection({model: list(told["sentences"]) for model, told in statement.items()}, table)


def _unjoined(found: Found) -> ContaminationSection | None:
    """What the records name, without looking at the judged collection."""
    statements = {}
    for model in found.trained:
        record: dict[str, Any] | None = model.record
        told = []
        while record is not None:
            for shown in record.get("seen", []):
                corpus = _short(shown.get("corpus_sha256"))
                queries = f", {shown['queries']:,} queries" if shown.get("queries") is not None else ""
                told.append(
                    f"{record['stage']}: {shown.get('dataset')}, corpus {corpus}, "
                    f"{shown.get('documents', 0):,} documents{queries}."
                )
            record = record.get("parent")
        statements[model.name] = told[::-1] or ["There is nothing on record."]
    if not statements:
        return None
    judged = found.results or found.adaptation or found.comparison
    remark = "The judged collection is not at hand, so what is shared with it was not looked at."
    return ContaminationSection(statements, None, remark if judged else "")


def _short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "unknown"


def chosen_queries(spread: Mapping[str, float], most: int) -> list[str]:
    """All queries, or ``most`` of them: half those of the largest spread, half evenly spaced among the rest.

    Args:
        spread: query id to by how much models differ on it, in the order of the collection.
        most: how many are shown.

    Returns:
        ids in the order of the collection.
    """
    queries = list(spread)
    if len(queries) <= most:
        return queries
    largest = sorted(queries, key=lambda query: -spread[query])[: (most + 1) // 2]
    rest = [query for query in queries if query not in set(largest)]
    places = np.linspace(0, len(rest) - 1, most - len(largest)).round().astype(int).tolist()
    kept = {*largest, *(rest[place] for place in places)}
    return [query for query in queries if query in kept]


def score_spread(scores: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Query id to the largest absolute difference of any model to the first, in the first measure."""
    first = scores[0]
    return {
        query: max((abs(other[query][0] - values[0]) for other in scores[1:]), default=0.0)
        for query, values in first.items()
    }


def list_spread(tops: Sequence[Mapping[str, Sequence[str]]], depth: int) -> dict[str, float]:
    """Query id to the largest share of the first model's best documents that another model does not have."""
    queries = dict.fromkeys(query for found in tops for query in found)
    spread = {}
    for query in queries:
        lists = [set(found.get(query, ())[:depth]) for found in tops]
        spread[query] = max((1 - len(lists[0] & other) / depth for other in lists[1:]), default=0.0)
    return spread


#: Documents that are shown of a ranking.
SHOWN = 10

_TEXT, _TITLE, _QUERY = 180, 140, 400


@dataclass(frozen=True)
class DrillDown:
    """Attributes: data: for the script; shown, queries: how many of how many queries."""

    data: dict[str, Any]
    shown: int
    queries: int


def drill_down(
    runs: Mapping[str, Path],
    scores: Scores,
    measures: Sequence[str],
    pair: tuple[str, str],
    names: Mapping[str, str],
    collection: Collection | None,
    most: int,
) -> DrillDown | None:
    """Choose queries, and put their rankings together.

    Args:
        runs: label to the run file; models without one are left out.
        scores: of single queries; {} where nothing was judged.
        measures: of the scores, the first one decides.
        pair: (a, b), the models that are shown first.
        names: label to the name that is shown.
        collection: for texts and judgements, where it is at hand.
        most: queries that are shown.

    Returns:
        None without a run of both models of the pair.
    """
    labels = [label for label in names if label in runs]
    if not set(pair) <= set(labels):
        return None
    ordered = [pair[0], *(label for label in labels if label != pair[0])]
    if all(label in scores for label in ordered):
        spread = score_spread([scores[label] for label in ordered])
        chosen = chosen_queries(spread, most)
        tops = {label: run_tops(runs[label], set(chosen)) for label in labels}
    else:
        whole = {label: run_tops(runs[label], depth=SHOWN) for label in ordered}
        spread = list_spread([whole[label] for label in ordered], SHOWN)
        chosen = chosen_queries(spread, most)
        tops = {label: run_tops(runs[label], set(chosen)) for label in labels}
    if not chosen:
        return None
    documents: dict[str, int] = {}
    queries = [_query(query, labels, tops, scores, documents, collection) for query in chosen]
    data = {
        "measures": list(measures),
        "models": [names[label] for label in labels],
        "pair": [labels.index(label) for label in pair],
        "queries": queries,
        "documents": _documents(list(documents), collection),
        "shown": SHOWN,
        "known": KNOWN,
        "judged": collection is not None and bool(collection.qrels),
    }
    return DrillDown(data, len(chosen), len(spread))


def _query(
    query: str,
    labels: Sequence[str],
    tops: Mapping[str, Mapping[str, Sequence[str]]],
    scores: Scores,
    documents: dict[str, int],
    collection: Collection | None,
) -> dict[str, Any]:
    shown = dict.fromkeys(document for label in labels for document in tops[label].get(query, ())[:SHOWN])
    ranks = []
    for label in labels:
        place = {document: rank for rank, document in enumerate(tops[label].get(query, ()), 1)}
        ranks.append([place.get(document, 0) for document in shown])
    grades = collection.qrels.get(query, {}) if collection is not None else {}
    text = collection.queries.get(query, "") if collection is not None else ""
    return {
        "id": query,
        "text": _cut(text, _QUERY),
        "documents": [documents.setdefault(document, len(documents)) for document in shown],
        "ranks": ranks,
        "grades": [grades.get(document) for document in shown],
        "relevant": sum(grade > 0 for grade in grades.values()),
        "scores": [_rounded(scores.get(label, {}).get(query)) for label in labels],
    }


def _documents(ids: list[str], collection: Collection | None) -> list[list[str]]:
    """(id, title, beginning of the text) of each."""
    if collection is None or not ids:
        return [[id, "", ""] for id in ids]
    rows = collection.documents.rows(ids)
    found = collection.documents.take(rows[rows >= 0])
    texts = {document["_id"]: (document["title"], document["text"]) for document in found}
    return [
        [id, _cut(texts[id][0], _TITLE), _cut(texts[id][1], _TEXT)] if id in texts else [id, "", ""]
        for id in ids
    ]


def _cut(text: str, most: int) -> str:
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [round(value, 4) for value in values]
