"""Tables and pictures of the page's sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.report.html.cluster_pictures import cluster_pictures
from beir_cocodr.report.html.curve_picture import curve_picture
from beir_cocodr.report.html.difference_pictures import interval_picture, query_picture
from beir_cocodr.report.html.found_files import Found
from beir_cocodr.report.html.headline import Headline
from beir_cocodr.report.html.judgement import Judgement
from beir_cocodr.report.html.label_free_headline import label_free_reference
from beir_cocodr.report.html.label_free_tables import shown_pairs, verdict_table, wanted_table
from beir_cocodr.report.html.model_table import model_table, test_table
from beir_cocodr.report.html.per_query import Scores
from beir_cocodr.report.html.published_table import published_table
from beir_cocodr.report.html.training_tables import curve_table, settings_table, training_table
from beir_cocodr.report.scatter import has_matplotlib

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
        parts["wanted"] = wanted_table(wanted, names)
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
