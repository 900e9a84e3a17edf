"""Adapt a base to a corpus: the stages in their right order, the ablation, and a recommendation."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.generation.options import GenerationOptions
from beir_cocodr.data.generation.record import read_generation
from beir_cocodr.data.query_generation import generate_queries
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.recommendation import recommend_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.model_comparison import compare_models
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.recommendation import BASE, MODES, ablation_families, recommend
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.training.adapt_stages import ADAPT_STAGES, Data, adapt_options
from beir_cocodr.training.options import TrainingOptions

log = logging.getLogger(__name__)

#: What is done unless stages are named.
DEFAULT_STAGES = ("coco", "finetune")
#: The cross-encoder of GPL.
GPL_TEACHER = "cross-encoder/ms-marco-MiniLM-L-6-v2"


def adapt(
    corpus: str,
    source: str | None,
    base: str,
    output: Path,
    stages: Sequence[str] = DEFAULT_STAGES,
    split: str = "test",
    source_split: str = "train",
    measures: str = DEFAULT_MEASURES,
    options: Mapping[str, TrainingOptions] | None = None,
    generated: str | Path | None = None,
    generator: str = "lexical",
    generation: GenerationOptions | None = None,
    teacher: str = GPL_TEACHER,
    resume: bool = False,
    queries: int | None = None,
    samples: int = 300,
    encoder: dict[str, Any] | None = None,
    **retrieval: Any,
) -> dict[str, Any]:
    """Adapt ``base`` to ``corpus`` with labels from ``source``, and tell whether it got better.

    Each stage is trained from the base alone, and all of them one after the other: with the stages ``coco``
    and ``finetune`` that makes ``output/models/source`` (base fine-tuned on the source),
    ``output/models/coco`` (base pre-trained on the corpus) and ``output/models/coco+source`` (both, in this
    order). If the corpus has labels in ``split``, base and trained models are each evaluated alone, with
    hybrid feedback and fused with BM25, beside BM25 itself; no label of the corpus is used in training. If it
    has none, :func:`~beir_cocodr.evaluation.model_comparison.compare_models` compares the same methods
    without: every encoder encodes the corpus once, and what stands for judged queries is drawn with a seed
    that no stage used. The base is recommended unless the rule finds something better, and how often the rule
    was right is told.

    Args:
        corpus: the target collection, with or without queries and labels.
        source: a labelled collection; needed by the stage ``finetune``.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for models, runs, adapt.json and results.json, or without labels comparison.json and
            labels_wanted.tsv.
        stages: any of :data:`ADAPT_STAGES`; their order here does not matter.
        split, source_split: which labels to evaluate on, and which to train on.
        measures: the first one decides the recommendation.
        options: stage to its options; see :func:`adapt_options` for the others.
        generated: a folder of ``generate-queries`` for the corpus, for the stages that need one; by default
            ``output/queries`` is made.
        generator, generation: how, as for ``generate-queries`` (model-free, 5 queries a passage).
        teacher: cross-encoder of the stage ``gpl``.
        resume: keep finished models and go on with interrupted ones.
        queries: evaluate only that many queries of the target, evenly spaced.
        samples: without labels: held-out crops, and generated queries, that models are compared on.
        encoder: overrides for loading encoders (lengths, prompts, separator, device), in training and
            evaluation alike.
        **retrieval: passed on to the retrievers.

    Returns:
        The content of adapt.json: among others ``results`` (None without labels), ``comparison`` and
        ``candidates`` (label to model name; both without labels only), ``recommendation``, and ``path``, the
        name of the recommended model.

    Raises:
        InputError: an unknown stage, no source, no samples, a bad collection or model.
    """
    chosen = chosen_stages(stages)
    if "finetune" in chosen and source is None:
        raise InputError(
            "the stage finetune needs a labelled collection: name it with --source, or leave the stage out"
        )
    if samples < 1:
        raise InputError(f"samples is {samples}: ask for at least one crop")
    parse_measures(measures)
    target = load_collection(corpus, split, labels="optional")
    if not target.qrels and any((Path(corpus) / "qrels").glob("*")):
        load_collection(corpus, split)  # it has labels, but not these: say which there are
    output_folder(output)
    if any(output.iterdir()) and not resume:
        raise InputError(f"{output} is not empty; choose another --output, or --resume to go on with it")
    encoder = encoder or {}
    folder = None
    if any(ADAPT_STAGES[stage].needs_queries for stage in chosen):
        folder = _queries(target, corpus, generated, generator, generation, output, encoder)
    data = Data(corpus, source, source_split, folder, teacher)
    settings = {stage: adapt_options(stage) for stage in chosen} | dict(options or {})
    labels: dict[str, str] = {}
    trained: dict[str, str] = {}
    seconds: dict[str, Any] = {}
    for chain in _chains(chosen):
        before = "+".join(ADAPT_STAGES[stage].name for stage in chain[:-1])
        last = ADAPT_STAGES[chain[-1]]
        name = f"{before}+{last.name}" if before else last.name
        start, place = trained.get(before, base), output / "models" / name
        seconds[name] = last.train(data, start, place, settings[chain[-1]], resume, encoder).get("seconds")
        trained[name] = str(place)
        labels[name] = " + ".join([BASE, *(ADAPT_STAGES[stage].label for stage in chain)])
    report: dict[str, Any] = {
        "corpus": corpus,
        "source": source,
        "base": base,
        "stages": chosen,
        "models": {BASE: base, **trained},
        "generated_queries": folder,
        "seconds": seconds,
    }
    encoders = {BASE: base} | {labels[name]: path for name, path in trained.items()}
    candidates = _candidates(encoders)
    judging: dict[str, Any] = {"queries": queries, **encoder, **retrieval}
    if target.qrels:
        families = ablation_families(list(encoders))
        results = evaluate(corpus, candidates, output, measures, split, families=families, **judging)
        report |= {"results": results, "recommendation": recommend(results)}
    else:
        judging |= {"samples": samples, "seed": _unused_seed(settings, folder)}
        report |= _label_free(corpus, candidates, output, split, **judging)
    report["path"] = candidates[report["recommendation"]["model"]]
    write_text(output / "adapt.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def chosen_stages(stages: Sequence[str]) -> list[str]:
    """The stages in the order that is right.

    Raises:
        InputError: there is none, or one is unknown.
    """
    unknown = [stage for stage in stages if stage not in ADAPT_STAGES]
    if unknown or not stages:
        raise InputError(
            f"unknown stage {', '.join(unknown) or 'list (empty)'}; there are {', '.join(ADAPT_STAGES)}"
        )
    return [stage for stage in ADAPT_STAGES if stage in stages]


def _chains(chosen: list[str]) -> list[list[str]]:
    """Each stage alone, the source first, then all of them one after the other."""
    alone = sorted(chosen, key=lambda stage: stage != "finetune")
    return [[stage] for stage in alone] + [chosen[:length] for length in range(2, len(chosen) + 1)]


def _queries(
    target: Collection,
    corpus: str,
    generated: str | Path | None,
    generator: str,
    generation: GenerationOptions | None,
    output: Path,
    encoder: dict[str, Any],
) -> str:
    """The folder of queries generated for the target; made where none is given."""
    if generated is None:
        folder = output / "queries"
        generate_queries(corpus, generator, folder, generation, device=encoder.get("device"))
        return str(folder)
    if read_generation(Path(generated))["dataset"]["corpus_sha256"] != target.documents.content_hash:
        raise InputError(
            f"the queries of {generated} were generated for another corpus than {corpus}; generate queries "
            "for this one, or leave the folder out"
        )
    return str(generated)


def _label_free(
    corpus: str, candidates: dict[str, str], output: Path, split: str, **judging: Any
) -> dict[str, Any]:
    """The part of adapt.json that estimates give."""
    # BM25 last: what is asked of a pair is then b against a for all of them.
    names = [candidates[label] for label in sorted(candidates, key=lambda label: label == "bm25")]
    comparison = compare_models(
        names, corpus, output, split, labels=False, against=candidates[BASE], **judging
    )
    recommendation = recommend_label_free(comparison, candidates)
    return {
        "results": None,
        "candidates": candidates,
        "comparison": comparison,
        "recommendation": recommendation,
    }


def _unused_seed(settings: Mapping[str, TrainingOptions], folder: str | None) -> int:
    """A seed that neither the stages nor the generation of queries used."""
    seeds = [options.seed for options in settings.values()]
    if folder is not None:
        seeds.append(int(read_generation(Path(folder))["settings"].get("seed", 0)))
    return 1 + max(seeds)


def _candidates(encoders: dict[str, str]) -> dict[str, str]:
    """Label to model name: BM25, and each encoder alone, with feedback, and fused."""
    kinds = dict(zip(MODES, ("", "feedback:", "hybrid:"), strict=True))
    return {"bm25": "bm25"} | {
        label + mode: kinds[mode] + path for label, path in encoders.items() for mode in MODES
    }
