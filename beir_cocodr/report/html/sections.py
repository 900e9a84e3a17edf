"""The page's sections: tables and pictures of a comparison and of trainings, what was compared on
what, what models have seen in training, and single queries with the rankings of all models.
"""

import datetime
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from beir_cocodr.data.analyzers import Analyzer, snippet
from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.evaluation.runs import run_tops
from beir_cocodr.models.spec import BM25, ModelSpec
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import ContaminationStatement, Json
from beir_cocodr.report.html import pictures, tables
from beir_cocodr.report.html.headline import Headline, label_free_reference
from beir_cocodr.report.html.results_folder import ResultsFolder, Scores
from beir_cocodr.report.png_pictures import has_matplotlib
from beir_cocodr.report.wording import short_names

log = logging.getLogger(__name__)

#: Tests that are shown without being asked for.
_SHOWN_TESTS = 3


def comparison_parts(
    found: ResultsFolder,
    scores: Scores,
    headline: Headline,
    names: Mapping[str, str],
    published: Sequence[Path],
) -> dict[str, object]:
    """Of models on a collection, with labels or without."""
    parts: dict[str, object] = {
        "models": None,
        "tests": None,
        "published": None,
        "wanted": None,
        "pictures": [],
    }
    evaluation, comparison = found.evaluation, found.comparison
    if comparison is not None and comparison.labels_wanted.pairs:
        parts["wanted"] = tables.annotation_table(comparison.labels_wanted, names)
    if evaluation is not None:
        parts["models"] = tables.model_table(evaluation, names)
        if len(evaluation.results.comparisons) > _SHOWN_TESTS:
            parts["tests"] = tables.test_table(evaluation, names)
        parts["published"] = tables.published_table(evaluation.results, names, published)
        drawn = [pictures.interval_picture(evaluation, names)]
        if headline.pair is not None:
            drawn.append(pictures.query_picture(evaluation, scores, headline.pair, names))
        parts["pictures"] = list(filter(None, drawn))
    elif comparison is not None:
        shown = tables.shown_pairs(
            comparison,
            label_free_reference(comparison, found.candidates),
            found.candidates or {},
            found.chains,
        )
        parts["models"] = tables.verdict_table(
            comparison, names, shown, "Verdicts and estimates without labels"
        )
        if len(shown) < len(comparison.estimated):
            parts["tests"] = tables.verdict_table(
                comparison, names, comparison.estimated, "All pairs of models"
            )
        if comparison.calibration is not None:
            parts["pictures"] = list(
                filter(None, [pictures.reliability_picture(comparison.calibration)])
            )
    return parts


def training_parts(found: ResultsFolder) -> dict[str, object]:
    """Of trained models: how they were trained, their rounds and their clusters."""
    logs = [log for model in found.trained for log in model.clusters.items()]
    curves = [(model.name, model.curves) for model in found.trained if model.curves]
    drawn = [
        pictures.curve_picture(f"curves-{number}", *named) for number, named in enumerate(curves)
    ]
    losses = [(model.name, model.losses) for model in found.trained if model.losses]
    lost = [
        pictures.loss_picture(f"losses-{number}", *named) for number, named in enumerate(losses)
    ]
    clusters = [
        picture
        for n, log in enumerate(logs)
        for picture in pictures.cluster_pictures(f"clusters-{n}", *log)
    ]
    return {
        "loss_pictures": [picture for picture in lost if picture is not None],
        "trainings": tables.training_table(found.trained) if found.trained else None,
        "settings": [tables.settings_table(model) for model in found.trained],
        "cluster_pictures": clusters,
        "curve_pictures": [picture for picture in drawn if picture is not None],
        "curve_tables": [tables.curve_table(*named) for named in curves],
        "can_draw": has_matplotlib(),
    }


def facts(found: ResultsFolder) -> Iterator[tuple[str, str]]:
    """Term and value: collection, hashes, counts, policies, seeds, versions, date, files.

    Only what is on record, and nothing about the machine that the report is made on.
    """
    results, adaptation = (
        found.evaluation.results if found.evaluation is not None else None,
        found.adaptation,
    )
    record = found.judged
    if record is not None:
        yield (
            "Collection",
            f"{record.dataset} (split {record.split})" if record.split else record.dataset,
        )
    if adaptation is not None:
        if adaptation.source:
            yield "Source", adaptation.source
        yield "Base", adaptation.base
        yield "Stages", ", ".join(adaptation.stages)
    if record is not None:
        yield "Documents", f"{record.documents:,}"
        yield ("Judged queries" if results else "Queries"), f"{record.queries:,}"
        if sha256 := record.corpus_sha256 or (found.comparison and found.comparison.corpus_sha256):
            yield "Corpus, sha256", sha256
        if record.identical_ids:
            policies = {"keep": "kept", "drop": "dropped"}
            yield (
                "Document with the query's id",
                policies.get(record.identical_ids, record.identical_ids),
            )
    if results is not None and results.top_k:
        yield "Documents a query", f"{results.top_k:,}"
    if results is not None and results.counts:
        yield (
            "Counted on loading",
            ", ".join(f"{kind}: {n:,}" for kind, n in results.counts.items()),
        )
    if seeds := _seeds(found):
        yield "Seeds", ", ".join(map(str, seeds))
    if versions := _versions(found, results):
        yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    # The date of the youngest file: the commands put none into their files.
    newest = max((found.folder / file).stat().st_mtime for file in found.files)
    yield "Written", f"{datetime.datetime.fromtimestamp(newest, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    yield "Made from", ", ".join(str(file) for file in found.files)


def _seeds(found: ResultsFolder) -> list[int]:
    options = [record.options for model in found.trained for record in model.record.lineage()]
    seeds = [found.comparison.seed] if found.comparison is not None else []
    return sorted(
        {
            seed
            for seed in (*seeds, *(found.get("seed") for found in options))
            if isinstance(seed, int)
        }
    )


def _versions(found: ResultsFolder, results: EvaluationRecord | None) -> dict[str, str]:
    recorded = [found.comparison.versions] if found.comparison is not None else []
    recorded += (
        [result.versions for result in results.models.values()] if results is not None else []
    )
    recorded += [model.record.versions for model in found.trained]
    return next(filter(None, recorded), {})


@dataclass(frozen=True)
class ContaminationSection:
    """Name of a model to its sentences, a table of what training was given, and a remark."""

    statements: dict[str, list[str]]
    table: tables.HtmlTable | None
    remark: str = ""


def contamination_section(
    found: ResultsFolder, judged: Mapping[str, str], collection: Collection | None
) -> ContaminationSection | None:
    """The statement of comparison.json, else one that is made now, else what the records hold by
    themselves. ``judged``: label to the model's name, of everything that was judged;
    ``collection``: on what, where it is at hand.
    """
    if found.comparison is not None and found.comparison.seen:
        return _describe_statements(found.comparison.seen)
    models = {label: _here(name, found.folder) for label, name in judged.items()}
    models |= {model.name: str(model.folder) for model in found.trained if not judged}
    encoders = [ModelSpec.parse(name).encoder for name in models.values()]
    encoders = [
        name for name in dict.fromkeys(encoders) if name != BM25 and not Path(name).is_file()
    ]
    if not encoders:
        return None
    if collection is None:
        return _unjoined(found)
    try:
        statements = contamination_statement(encoders, collection)
    except InputError as error:
        return ContaminationSection({}, None, f"What was seen cannot be told: {error}.")
    section, asked = _describe_statements(statements), len(collection.queries)
    if found.evaluation is None or (count := found.evaluation.results.queries) >= asked:
        return section
    part = (
        f"Queries are counted over all {asked:,} of the split; {count:,} of them were judged here."
    )
    return replace(section, remark=part)


def _here(name: str, folder: Path) -> str:
    """A model's name, in the folder where it lies now: a path on record may begin elsewhere."""
    path = ModelSpec.parse(name).encoder
    moved = folder / "models" / Path(path).name
    return (
        name.removesuffix(path) + str(moved)
        if moved.is_dir() and Path(path).parent.name == "models"
        else name
    )


def _describe_statements(statements: Mapping[str, ContaminationStatement]) -> ContaminationSection:
    """By encoder, under a short name: one that is used in several ways has one history."""
    columns = [
        *tables.text_columns("Model", "Given", "Stages"),
        tables.TableColumn("Documents"),
        tables.TableColumn(
            "Shared", meaning="documents of the evaluated collection that training was given"
        ),
        tables.TableColumn("Queries"),
        tables.TableColumn("Shared", meaning="evaluated queries that training was given"),
    ]
    by_encoder = {ModelSpec.parse(model).encoder: found for model, found in statements.items()}
    by_encoder.pop(BM25, None)
    names = short_names(by_encoder)
    rows = []
    for encoder, statement in by_encoder.items():
        for shown in statement.collections:
            given = f"corpus {_short(shown.corpus_sha256)}"
            if shown.queries_sha256:
                given += f", queries {_short(shown.queries_sha256)}"
            texts = tables.text_cell(names[encoder]), tables.text_cell(shown.dataset, given)
            counts = shown.documents, shown.documents_shared, shown.queries, shown.queries_shared
            numbers = (tables.number_cell(count, ",") for count in counts)
            rows.append([*texts, tables.text_cell(", ".join(shown.stages)), *numbers])
    table = (
        tables.HtmlTable("Collections that training was given, by hash", columns, rows)
        if rows
        else None
    )
    sentences = {names[encoder]: list(found.sentences) for encoder, found in by_encoder.items()}
    return ContaminationSection(sentences, table)


def _unjoined(found: ResultsFolder) -> ContaminationSection | None:
    """What the records name, without looking at the judged collection."""
    statements = {}
    for model in found.trained:
        sentences = [
            f"{record.stage}: {shown.dataset}, corpus {_short(shown.corpus_sha256)}, {tables.describe_sizes(shown)}."
            for record in model.record.lineage()
            for shown in record.seen
        ]
        statements[model.name] = sentences or ["There is nothing on record."]
    if not statements:
        return None
    remark = "The judged collection is not at hand, so what is shared with it was not looked at."
    return ContaminationSection(statements, None, remark if found.judged else "")


def _short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "unknown"


def chosen_queries(spread: Mapping[str, float], most: int) -> list[str]:
    """All queries, or ``most`` of them: half those of the largest spread, half evenly spaced among
    the rest.

    Both orders are that of the collection; ``spread`` has by how much models differ on a query.
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
    """Query id to the largest absolute difference of any model to the first, in the first
    measure.
    """
    first, *others = scores
    return {
        query: max((abs(other[query][0] - values[0]) for other in others), default=0.0)
        for query, values in first.items()
    }


def list_spread(tops: Sequence[Mapping[str, Sequence[str]]], depth: int) -> dict[str, float]:
    """Query id to the largest share of the first model's best documents that another model does not
    have.
    """
    spread = {}
    for query in dict.fromkeys(query for found in tops for query in found):
        lists = [set(found.get(query, ())[:depth]) for found in tops]
        spread[query] = max((1 - len(lists[0] & other) / depth for other in lists[1:]), default=0.0)
    return spread


#: Documents that are shown of a ranking, and how far down the place of a document is known.
SHOWN, KNOWN = 10, 100

_SNIPPET, _TITLE, _QUERY = 180, 140, 400

#: Characters of a document's text that a page holds, and those of all that it shows.
_TEXT, _TEXTS = 20_000, 3_000_000


@dataclass(frozen=True)
class DrillDown:
    """What the script takes, and how many of how many queries are shown."""

    data: dict[str, object]
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
    """Choose queries, and put their rankings together; None without a run of both models of the
    pair.

    Args:
        runs: label to the run file; models without one are left out.
        scores, measures: of single queries, {} where nothing was judged; the first measure decides.
        pair: (a, b), the models that are shown first.
        names: label to the name that is shown.
        collection: for texts and judgements, where it is at hand.
        most: queries that are shown.
    """
    labels = [label for label in names if label in runs]
    if not set(pair) <= set(labels):
        return None
    ordered = [pair[0], *(label for label in labels if label != pair[0])]
    if all(label in scores for label in ordered):
        spread = score_spread([scores[label] for label in ordered])
    else:
        spread = list_spread([run_tops(runs[label], SHOWN) for label in ordered], SHOWN)
    chosen = chosen_queries(spread, most)
    if not chosen:
        return None
    tops = {label: run_tops(runs[label], KNOWN, set(chosen)) for label in labels}
    for label in labels:
        lacking = [
            query
            for query in chosen
            if query not in tops[label] and any(scores.get(label, {}).get(query, ()))
        ]
        if lacking:
            what = "is not whole: it has no document for %d of the queries shown that have a score above 0, such as %r"
            log.warning(f"%s {what}", runs[label], len(lacking), lacking[0])
    ranked = {query: [tops[label].get(query, ()) for label in labels] for query in chosen}
    shown = dict.fromkeys(
        id for lists in ranked.values() for found in lists for id in found[:SHOWN]
    )
    contents = dict(zip(shown, _documents(list(shown), collection), strict=True))
    numbers = {id: number for number, id in enumerate(shown)}
    queries = []
    for query, lists in ranked.items():
        values = [scores.get(label, {}).get(query) for label in labels]
        rounded = [
            None if found is None else [round(value, 4) for value in found] for found in values
        ]
        queries.append(_query(query, lists, numbers, contents, collection) | {"scores": rounded})
    data = {
        "measures": list(measures),
        "models": [names[label] for label in labels],
        "pair": [labels.index(label) for label in pair],
        "queries": queries,
        "documents": list(contents.values()),
        "shown": SHOWN,
        "known": KNOWN,
        "judged": collection is not None and bool(collection.qrels),
    }
    return DrillDown(data, len(chosen), len(spread))


def _query(
    query: str,
    lists: Sequence[Sequence[str]],
    numbers: Mapping[str, int],
    contents: Mapping[str, list[str]],
    collection: Collection | None,
) -> Json:
    """A query with its documents, and of each the part that says most, and where words of the query
    stand in that and in the whole text: first characters and those after the last, one after the
    other.
    """
    shown = dict.fromkeys(id for found in lists for id in found[:SHOWN])
    places = [{id: rank for rank, id in enumerate(found, 1)} for found in lists]
    grades = {} if collection is None else collection.qrels.get(query, {})
    text = "" if collection is None else _cut(collection.queries.get(query, ""), _QUERY)
    made: Json = {
        "id": query,
        "text": text,
        "documents": [numbers[id] for id in shown],
        "ranks": [[place.get(id, 0) for id in shown] for place in places],
        "grades": [grades.get(id) for id in shown],
        "relevant": sum(grade > 0 for grade in grades.values()),
    }
    if collection is not None:
        analyzer, texts = Analyzer("english"), [contents[id][2] for id in shown]
        terms, parts = analyzer(text), [snippet(found, text, analyzer, _SNIPPET) for found in texts]
        made["snippets"] = [
            [part.text, [end for ends in part.matches for end in ends]] for part in parts
        ]
        made["matches"] = [
            [end for ends in analyzer.matches(found, terms) for end in ends[:2]] for found in texts
        ]
    return made


def _documents(ids: list[str], collection: Collection | None) -> list[list[str]]:
    """(id, title, text) of each; long texts are cut."""
    if collection is None or not ids:
        return [[id, "", ""] for id in ids]
    rows = collection.documents.rows(ids)
    found = collection.documents.take(rows[rows >= 0])
    texts = {document["_id"]: (document["title"], document["text"]) for document in found}
    most = max(_SNIPPET, min(_TEXT, _TEXTS // len(ids)))
    return [
        [id, _cut(texts[id][0], _TITLE), _cut(texts[id][1], most)] if id in texts else [id, "", ""]
        for id in ids
    ]


def _cut(text: str, most: int) -> str:
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
