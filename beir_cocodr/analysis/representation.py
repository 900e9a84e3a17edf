"""How well a model represents a corpus, before and after it was adapted to it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.analysis.gains import Gains, read_judged
from beir_cocodr.analysis.qpp import correlations
from beir_cocodr.analysis.spans import SpanMeasures, SpanPairs, measure_spans, sample_span_pairs
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import output_folder, write_text
from beir_cocodr.losses.coco import COCOLoss
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import versions
from beir_cocodr.report.pictures import Panel, will_draw, write_labelled_scatter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RepresentationOptions:
    """What is sampled and how it is measured.

    Args:
        sample: the most documents of a corpus, a pair of spans of each.
        batch_size: documents contrasted with each other in the contrastive loss. The loss depends on it, so
            corpora are to be compared with the same.
        temperature: t of uniformity (paper: 2).
        span_tokens: the most tokens of a span.
        seed: of the sample and the spans.
    """

    sample: int = 1024
    batch_size: int = 128
    temperature: float = 2.0
    span_tokens: int = 30
    seed: int = 42

    def __post_init__(self) -> None:
        for name, least in (("sample", 2), ("batch_size", 2), ("span_tokens", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be positive, not {self.temperature}")


def representation(
    datasets: Sequence[str],
    models: Sequence[str],
    options: RepresentationOptions | None = None,
    output: Path | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    picture: bool | None = None,
    search: SearchOptions = SearchOptions(),
) -> dict[str, Any]:
    """Alignment, uniformity and contrastive loss of one model, or of two, on span pairs of corpora.

    The pairs are those that COCO contrasts: two spans of a document. They are cut by the first model's
    tokenizer, and both models see the same texts, unmasked and without gradient. In memory are the spans of
    all samples, the embeddings of one, and one model.

    Args:
        datasets: as the command line names them; only their documents are read.
        models: one, or two: before and after.
        options: see :class:`RepresentationOptions`.
        output: folder for representation.json and representation.png.
        results: results.json files of `evaluate` with both models: then the reduction of the contrastive
            loss stands against the gain in ``measure``, as in Figure 5a.
        picture: draw uniformity against alignment, as in Figure 5b, and Figure 5a with ``results``; by
            default where there are an output and matplotlib.
        search: how models are loaded and encode.

    Returns:
        The content of representation.json. Intervals are bootstrap 95% intervals, of alignment over documents
        and of the loss over batches; None for a single one.

    Raises:
        InputError: a corpus has no two documents with two spans, a model cannot be found or is an MRL, its
            embeddings are not finite, or the results lack a model.

    Source: COCO-DR, section 5.4, Figure 5 and appendix H.
    """
    options = options or RepresentationOptions()
    _check(datasets, models, results)
    gains: dict[str, float] = {}
    if results:
        found = Gains(read_judged(results, datasets, measure), *models)
        gains = {name: gain for name in datasets if (gain := found.of(name)) is not None}
    drawn = will_draw(picture, output is not None, "give --output")
    if output is not None:
        output_folder(output)

    study = _Study(options, search)
    for model in models:
        study.look(model, datasets)
    report = study.report(gains)
    report |= {
        "measure": measure if gains else None,
        "picture": "representation.png" if drawn else None,
        "versions": versions(),
    }
    if output is not None:
        if drawn:
            write_labelled_scatter(output / "representation.png", _panels(report), "representation of spans")
        write_text(output / "representation.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


class _Study:
    """What is found of one model after another on the same samples."""

    def __init__(self, options: RepresentationOptions, search: SearchOptions) -> None:
        self.options, self.search = options, search
        self.pairs: dict[str, SpanPairs] = {}
        self.corpora: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.found: dict[str, dict[str, SpanMeasures]] = {}

    def look(self, name: str, datasets: Sequence[str]) -> None:
        """Measure one model on every corpus; the first one's tokenizer cuts the spans."""
        model = load_encoder(name, self.search.encoder)
        if isinstance(model, MRL):
            raise InputError(f"{name} is an MRL: its texts are distributions, without a place on a sphere")
        loss = COCOLoss(model)
        for dataset in datasets:
            if dataset not in self.pairs:
                self._sample(dataset, model)
            log.info("%s on %s", name, dataset)
            search, size, temperature = self.search, self.options.batch_size, self.options.temperature
            measured = measure_spans(
                model, self.pairs[dataset], size, temperature, search.batch_size, search.progress
            )
            self.found.setdefault(dataset, {})[name] = measured
        self.models[name] = {
            "similarity": model.similarity_fn_name,
            "scale": loss.scale,
            "dimensions": model.get_embedding_dimension(),
            "text_format": model.text_format.as_dict(),
            "weights_sha256": weights_sha256(model),
        }

    def _sample(self, dataset: str, model: Any) -> None:
        documents = load_collection(dataset, labels="none").documents
        options = self.options
        pairs = sample_span_pairs(
            documents, model.tokenizer, model.text_format, options.sample, options.seed, options.span_tokens
        )
        used = len(pairs.ids)
        size = min(options.batch_size, used)
        log.info("%s: %d documents sampled, %d too short for two spans", dataset, used, pairs.too_short)
        self.pairs[dataset] = pairs
        self.corpora[dataset] = {
            "documents": len(documents),
            "corpus_sha256": documents.content_hash,
            "sampled": used,
            "too_short": pairs.too_short,
            "batch_size": size,
            "batches": used // size,
            "left_over": used % size,
            "loss_of_chance": math.log(2 * size - 1),
        }

    def report(self, gains: dict[str, float]) -> dict[str, Any]:
        scales = {(model["similarity"], model["scale"]) for model in self.models.values()}
        corpora = {}
        for dataset, found in self.found.items():
            records = {name: measured.record() for name, measured in found.items()}
            corpora[dataset] = self.corpora[dataset] | {"models": records, "change": None}
            if len(found) == 2:
                before, after = found.values()
                change = after.change(before, comparable=len(scales) == 1)
                corpora[dataset]["change"] = change | {"gain": gains.get(dataset)}
        return {
            "datasets": corpora,
            "models": self.models,
            **asdict(self.options),
            "losses_comparable": len(scales) == 1,
            "reduction_against_gain": _correlated(corpora) if gains else None,
        }


def _correlated(corpora: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Pearson's r and Kendall's tau of the loss's reduction with the gain, over corpora that have both."""
    changes = {name: record["change"] for name, record in corpora.items()}
    gains = {name: change["gain"] for name, change in changes.items() if change["gain"] is not None}
    reductions = {name: change["contrastive_loss_reduction"] for name, change in changes.items()}
    finite = {name: value for name, value in reductions.items() if value is not None}
    [row] = correlations({"reduction of the contrastive loss": finite}, gains)
    return {"of": row.pop("predictor"), "datasets": row.pop("queries"), **row}


def _panels(report: dict[str, Any]) -> list[Panel]:
    """Figure 5b, and where there are gains Figure 5a."""
    models, datasets = file_names(report["models"]), file_names(report["datasets"])  # paths are too long
    points = {
        f"{model}, {dataset}": (model, dataset, found)
        for dataset, record in report["datasets"].items()
        for model, found in record["models"].items()
    }
    both = Panel(
        {point: found["alignment"] for point, (_, _, found) in points.items()},
        {point: found["uniformity"] for point, (_, _, found) in points.items()},
        "ℓ_align",
        "ℓ_uniform",
        names={point: datasets[dataset] for point, (_, dataset, _) in points.items()},
        groups={point: models[model] for point, (model, _, _) in points.items()},
    )
    panels = [both]
    row = report["reduction_against_gain"]
    if row is not None:
        changes = {datasets[name]: record["change"] for name, record in report["datasets"].items()}
        reduction = {name: change["contrastive_loss_reduction"] for name, change in changes.items()}
        gain = {name: change["gain"] for name, change in changes.items()}
        told = "" if row["pearson"] is None else f"r = {row['pearson']:+.3f}, τ = {row['kendall']:+.3f}"
        panels.append(
            Panel(reduction, gain, "reduction of contrastive loss", f"gain in {report['measure']}", told)
        )
    return panels


def _check(datasets: Sequence[str], models: Sequence[str], results: Sequence[Path]) -> None:
    for kind, names in (("dataset", datasets), ("model", models)):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"{kind} {twice[0]!r} is named twice")
    if not datasets:
        raise InputError("no dataset; name at least one with --dataset")
    if len(models) not in (1, 2):
        raise InputError(f"one model, or two for before and after, not {len(models)}")
    if results and len(models) == 1:
        raise InputError("a gain is between two models; give --model a second time, or no --results")
