"""What was compared on what."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from beir_cocodr.report.html.found_files import Found
from beir_cocodr.report.html.judgement import Judgement


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
