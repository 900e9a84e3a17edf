"""The sections of the page: the comparison, the trainings, what was compared, and what was seen."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError, listed
from beir_cocodr.evaluation.results import ComparisonRecord, EvaluationRecord
from beir_cocodr.models.spec import BM25, ModelSpec
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import CollectionProvenance, ContaminationStatement
from beir_cocodr.report.html import pictures, tables
from beir_cocodr.report.html.gate_section import gate_table
from beir_cocodr.report.html.headline import label_free_reference
from beir_cocodr.report.html.headline_record import Headline
from beir_cocodr.report.html.passages_section import passages_tables
from beir_cocodr.report.html.published import published_table
from beir_cocodr.report.html.results_folder import LabelledEvaluation, ResultsFolder, Scores
from beir_cocodr.report.png_pictures import has_matplotlib
from beir_cocodr.report.wording import short_names

#: The most tests that the first table shows; if there are more, all have a table of their own.
_MOST_TESTS = 3

Names = Mapping[str, str]


def comparison_parts(
    output: ResultsFolder,
    scores: Scores,
    headline: Headline,
    names: Names,
    published: Sequence[Path],
) -> dict[str, object]:
    """Return the parts about models on a collection, with labels or without.

    Args:
        output: the output folder of a command.
        scores: scores of single queries.
        headline: the verdict.
        names: label to the name that the page shows.
        published: files of published figures, instead of the packaged ones.
    """
    parts: dict[str, object] = {
        "models": None,
        "tests": None,
        "published": None,
        "wanted": None,
        "judge": None,
        "pictures": [],
    }
    comparison = output.comparison
    if comparison is not None and comparison.judge is not None:
        parts["judge"] = tables.judge_table(comparison.judge, names)
    if comparison is not None and comparison.labels_wanted.pairs:
        parts["wanted"] = tables.annotation_table(comparison.labels_wanted, names)
    if output.evaluation is not None:
        parts |= _labelled_parts(output.evaluation, scores, headline, names, published)
    elif comparison is not None:
        parts |= _label_free_parts(output, comparison, names)
    return parts


def _labelled_parts(
    evaluation: LabelledEvaluation,
    scores: Scores,
    headline: Headline,
    names: Names,
    published: Sequence[Path],
) -> dict[str, object]:
    tests = None
    if len(evaluation.results.comparisons) > _MOST_TESTS:
        tests = tables.test_table(evaluation, names)
    drawn = [pictures.interval_picture(evaluation, names)]
    if headline.pair is not None:
        drawn.append(pictures.query_picture(evaluation, scores, headline.pair, names))
    return {
        "models": tables.model_table(evaluation, names),
        "tests": tests,
        "published": published_table(evaluation.results, names, published),
        "pictures": [picture for picture in drawn if picture is not None],
    }


def _label_free_parts(
    output: ResultsFolder, comparison: ComparisonRecord, names: Names
) -> dict[str, object]:
    reference = label_free_reference(comparison, output.candidates)
    pairs = tables.pairs_to_show(comparison, reference, output.candidates, output.chains)
    title = "Verdicts and estimates without labels"
    parts: dict[str, object] = {}
    parts["models"] = tables.verdict_table(comparison, names, pairs, title)
    all_pairs = comparison.estimated
    if len(pairs) < len(all_pairs):
        title = "All pairs of models"
        parts["tests"] = tables.verdict_table(comparison, names, all_pairs, title)
    if comparison.calibration is not None:
        picture = pictures.reliability_picture(comparison.calibration)
        parts["pictures"] = []
        if picture is not None:
            parts["pictures"] = [picture]
    return parts


def other_tables(output: ResultsFolder) -> list[tables.HtmlTable]:
    """Return the tables of a gate, and of a comparison of passage sizes."""
    drawn = []
    if output.gate is not None:
        drawn.append(gate_table(output.gate))
    if output.passages is not None:
        drawn += passages_tables(output.passages)
    return drawn


def training_parts(output: ResultsFolder) -> dict[str, object]:
    """Return the parts about trained models: settings, rounds, losses and clusters."""
    loss_pictures: list[pictures.Picture | None] = []
    curve_pictures: list[pictures.Picture | None] = []
    curve_tables = []
    cluster_pictures: list[pictures.Picture] = []
    logs = 0
    for model in output.trained:
        if model.losses:
            name = f"losses-{len(loss_pictures)}"
            losses = pictures.loss_picture(name, model.name, model.losses)
            loss_pictures.append(losses)
        if model.curves:
            name = f"curves-{len(curve_pictures)}"
            curves = pictures.curve_picture(name, model.name, model.curves)
            curve_pictures.append(curves)
            curve_tables.append(tables.curve_table(model.name, model.curves))
        for title, lines in model.clusters.items():
            name = f"clusters-{logs}"
            cluster_pictures += pictures.cluster_pictures(name, title, lines)
            logs += 1
    return {
        "loss_pictures": [picture for picture in loss_pictures if picture is not None],
        "trainings": tables.training_table(output.trained) if output.trained else None,
        "settings": [tables.settings_table(model) for model in output.trained],
        "cluster_pictures": cluster_pictures,
        "curve_pictures": [picture for picture in curve_pictures if picture is not None],
        "curve_tables": curve_tables,
        "can_draw": has_matplotlib(),
    }


def facts(output: ResultsFolder) -> Iterator[tuple[str, str]]:
    """Yield terms and values: collection, hashes, counts, policies, seeds, versions, date, files.

    All of them are recorded. Nothing is about the machine that makes the report.
    """
    record = output.judged
    if output.dataset is not None:
        split = ""
        if record is not None and record.split:
            split = f" (split {record.split})"
        yield "Collection", output.dataset + split
    if output.adaptation is not None:
        if output.adaptation.source:
            yield "Source", output.adaptation.source
        yield "Base", output.adaptation.base
        yield "Stages", ", ".join(output.adaptation.stages)
    yield from _size_facts(output)
    if record is not None:
        yield from _collection_facts(output, record)
    if output.evaluation is not None:
        yield from _evaluation_facts(output.evaluation.results)
    seeds = _seeds(output)
    if seeds:
        yield "Seeds", ", ".join(map(str, seeds))
    versions = _versions(output)
    if versions:
        packages = [f"{name} {version}" for name, version in versions.items()]
        yield "Versions", ", ".join(packages)
    # Commands record no date, so that the same run writes the same files.
    newest = max((output.folder / file).stat().st_mtime for file in output.files)
    written = datetime.datetime.fromtimestamp(newest, datetime.UTC)
    yield "Written", f"{written:%Y-%m-%d %H:%M} UTC"
    yield "Made from", ", ".join(map(str, output.files))


_POLICIES = {"keep": "kept", "drop": "dropped"}


def _size_facts(output: ResultsFolder) -> Iterator[tuple[str, str]]:
    for record in (output.judged, output.gate, output.passages):
        if record is not None:
            yield "Documents", f"{record.documents:,}"


def _collection_facts(
    output: ResultsFolder, record: EvaluationRecord | ComparisonRecord
) -> Iterator[tuple[str, str]]:
    term = "Judged queries"
    if output.evaluation is None:
        term = "Queries"
    yield term, f"{record.queries:,}"
    sha256 = record.corpus_sha256
    if not sha256 and output.comparison is not None:
        sha256 = output.comparison.corpus_sha256
    if sha256:
        yield "Corpus, sha256", sha256
    policy = record.identical_ids
    if policy:
        yield "Document with the query's id", _POLICIES.get(policy, policy)


def _evaluation_facts(results: EvaluationRecord) -> Iterator[tuple[str, str]]:
    if results.top_k:
        yield "Documents per query", f"{results.top_k:,}"
    if results.counts:
        counts = [f"{kind}: {count:,}" for kind, count in results.counts.items()]
        yield "Counted on loading", ", ".join(counts)


def _seeds(output: ResultsFolder) -> list[int]:
    seeds: list[object] = []
    if output.comparison is not None:
        seeds.append(output.comparison.seed)
    for model in output.trained:
        seeds += [record.options.get("seed") for record in model.record.lineage()]
    return sorted({seed for seed in seeds if isinstance(seed, int)})


def _versions(output: ResultsFolder) -> dict[str, str]:
    """Return the first recorded versions."""
    recorded = []
    if output.comparison is not None:
        recorded.append(output.comparison.versions)
    if output.evaluation is not None:
        results = output.evaluation.results.models.values()
        recorded += [result.versions for result in results]
    recorded += [model.record.versions for model in output.trained]
    if output.gate is not None:
        recorded.append(output.gate.versions)
    if output.passages is not None:
        recorded.append(output.passages.versions)
    return next(filter(None, recorded), {})


@dataclass(frozen=True)
class ContaminationSection:
    """The section about the collections that training has seen.

    Attributes:
        statements: name of a model to its sentences.
        table: the collections of all models.
        remark: a sentence about the whole section.
    """

    statements: dict[str, list[str]]
    table: tables.HtmlTable | None
    remark: str = ""


def contamination_section(
    output: ResultsFolder, models: Mapping[str, str], collection: Collection | None
) -> ContaminationSection | None:
    """Return what training has seen of the judged collection.

    It is the statement of comparison.json if there is one. Otherwise the records of training are
    compared with the collection, or only listed if the collection is not at hand.

    Args:
        output: the output folder of a command.
        models: label to model name, of everything that was judged.
        collection: the judged collection, if it is at hand.
    """
    if output.comparison is not None and output.comparison.seen:
        return _describe_statements(output.comparison.seen)
    encoders = _encoders(output, models)
    if not encoders:
        return None
    if collection is None:
        return _recorded(output)
    try:
        statements = contamination_statement(encoders, collection)
    except InputError as error:
        return ContaminationSection({}, None, f"What training has seen is unknown: {error}.")
    section = _describe_statements(statements)
    if output.evaluation is None:
        return section
    results = output.evaluation.results
    remarks = []
    sharpened = [label for label, one in results.models.items() if _is_sharpened(one.retrieval)]
    if sharpened:
        remarks.append(
            f"The document vectors of {listed(sharpened)} were sharpened by generated queries."
        )
    split = len(collection.queries)
    if results.queries < split:
        remarks.append(
            f"Queries are counted over all {split:,} of the split; {results.queries:,} were judged "
            "here."
        )
    return replace(section, remark=" ".join(remarks))


def _is_sharpened(retrieval: object) -> bool:
    """Return true if a retriever, alone or in a fusion, read a store that was sharpened."""
    if not isinstance(retrieval, dict):
        return False
    return "sharpen_weight" in retrieval or any(map(_is_sharpened, retrieval.values()))


def _encoders(output: ResultsFolder, models: Mapping[str, str]) -> list[str]:
    """Return the encoders of the judged models, or of the trained ones if none was judged."""
    names = [_present_name(name, output.folder) for name in models.values()]
    if not models:
        names = [str(model.folder) for model in output.trained]
    encoders: dict[str, None] = {}
    for name in names:
        encoder = ModelSpec.parse(name).encoder
        is_run = Path(encoder).is_file()
        if encoder != BM25 and not is_run:
            encoders[encoder] = None
    return list(encoders)


def _present_name(name: str, folder: Path) -> str:
    """Return a model's name with the present place of its folder.

    A recorded path may begin elsewhere, because the whole output folder was moved.
    """
    spec = ModelSpec.parse(name)
    recorded = Path(spec.encoder)
    moved = folder / "models" / recorded.name
    if recorded.parent.name == "models" and moved.is_dir():
        return spec.prefix + str(moved)
    return name


def _describe_statements(statements: Mapping[str, ContaminationStatement]) -> ContaminationSection:
    """Return the section of statements, one for each encoder, however it was used."""
    by_encoder: dict[str, ContaminationStatement] = {}
    for model, statement in statements.items():
        encoder = ModelSpec.parse(model).encoder
        if encoder != BM25:
            by_encoder[encoder] = statement
    names = short_names(by_encoder)
    rows = []
    for encoder, statement in by_encoder.items():
        for seen in statement.collections:
            hashes = f"corpus {_short(seen.corpus_sha256)}"
            if seen.queries_sha256:
                hashes += f", queries {_short(seen.queries_sha256)}"
            rows.append(
                [
                    tables.text_cell(names[encoder]),
                    tables.text_cell(seen.dataset, hashes),
                    tables.text_cell(", ".join(seen.stages)),
                    tables.number_cell(seen.documents, ","),
                    tables.number_cell(seen.documents_shared, ","),
                    tables.number_cell(seen.queries, ","),
                    tables.number_cell(seen.queries_shared, ","),
                ]
            )
    table = None
    if rows:
        caption = "Collections that training has seen, by hash"
        table = tables.HtmlTable(caption, _CONTAMINATION_COLUMNS, rows)
    sentences = {}
    for encoder, statement in by_encoder.items():
        sentences[names[encoder]] = list(statement.sentences)
    return ContaminationSection(sentences, table)


_CONTAMINATION_COLUMNS = [
    *tables.text_columns("Model", "Collection", "Stages"),
    tables.TableColumn("Documents"),
    tables.TableColumn(
        "Shared",
        meaning="documents of the evaluated collection that training has seen",
    ),
    tables.TableColumn("Queries"),
    tables.TableColumn(
        "Shared",
        meaning="evaluated queries that training has seen",
    ),
]


def _recorded(output: ResultsFolder) -> ContaminationSection | None:
    """Return what the records of training list, without looking at the judged collection."""
    statements = {}
    for model in output.trained:
        sentences = []
        for record in model.record.lineage():
            sentences += [_describe_seen(record.stage, seen) for seen in record.seen]
        statements[model.name] = sentences or ["Nothing is recorded."]
    if not statements:
        return None
    remark = ""
    if output.judged is not None:
        remark = "The judged collection is not available, so shared documents were not counted."
    return ContaminationSection(statements, None, remark)


def _describe_seen(stage: str, seen: CollectionProvenance) -> str:
    sizes = tables.describe_sizes(seen)
    return f"{stage}: {seen.dataset}, corpus {_short(seen.corpus_sha256)}, {sizes}."


def _short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "unknown"
