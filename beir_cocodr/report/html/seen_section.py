"""What models have seen in training of the collection that they are judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.encoder_name import encoder_name
from beir_cocodr.evaluation.seen import statement_of_seen
from beir_cocodr.report.html.found_files import Found
from beir_cocodr.report.html.short_names import short_names
from beir_cocodr.report.html.table import Column, HtmlTable, number_cell, text_cell

_UNTRAINED = "bm25"


@dataclass(frozen=True)
class Seen:
    """Attributes: statements: name of a model to its sentences; table: what training was given; remark."""

    statements: dict[str, list[str]]
    table: HtmlTable | None
    remark: str = ""


def seen_section(
    found: Found, judged: Mapping[str, Any], collection: Collection | None, count: int | None = None
) -> Seen | None:
    """The statement of comparison.json, else one that is made now, else what the records say by themselves.

    Args:
        found: the files.
        judged: label to the model's name, of everything that was judged.
        collection: what was judged on, where it is at hand.
        count: how many queries were judged, where labels did.
    """
    if (found.comparison or {}).get("seen"):
        return _told(_by_encoder(found.comparison["seen"]))  # type: ignore[index]
    models = {label: _here(str(name), found.folder) for label, name in judged.items()}
    models |= {model.name: str(model.folder) for model in found.trained if not judged}
    encoders = [encoder_name(name) for name in models.values()]
    encoders = [name for name in dict.fromkeys(encoders) if name != _UNTRAINED and not Path(name).is_file()]
    if not encoders:
        return None
    if collection is None:
        return _unjoined(found)
    try:
        statement = statement_of_seen(encoders, collection)
    except InputError as error:
        return Seen({}, None, f"What was seen cannot be told: {error}.")
    told, asked = _told(_by_encoder(statement)), len(collection.queries)
    if count is None or count >= asked:
        return told
    part = f"Queries are counted over all {asked:,} of the split; {count:,} of them were judged here."
    return replace(told, remark=part)


def _here(name: str, folder: Path) -> str:
    """A model's name, in the folder where it lies now: a path on record may begin elsewhere."""
    path = encoder_name(name)
    moved = folder / "models" / Path(path).name
    return (
        name.removesuffix(path) + str(moved)
        if moved.is_dir() and Path(path).parent.name == "models"
        else name
    )


def _by_encoder(statement: Mapping[str, Any]) -> dict[str, Any]:
    """One entry an encoder, by a short name: one that is used in several ways has one history."""
    told = {encoder_name(model): found for model, found in statement.items()}
    told.pop(_UNTRAINED, None)
    names = short_names(told)
    return {names[encoder]: found for encoder, found in told.items()}


def _told(statement: Mapping[str, Any]) -> Seen:
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
    return Seen({model: list(told["sentences"]) for model, told in statement.items()}, table)


def _unjoined(found: Found) -> Seen | None:
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
    return Seen(statements, None, remark if judged else "")


def _short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "unknown"
