"""Output folders, written by the commands' own functions, for tests of the report page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from filelock import FileLock

NASTY = (
    "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'> &"
    " \u2028 \x00"
)


@pytest.fixture(scope="session")
def filled(cache_root):
    """Return a function that fills a named folder once for all workers, and returns it."""

    def once(name, fill):
        folder = cache_root.parent / name
        with FileLock(f"{folder}.lock"):
            if not (whole := folder.with_name(f"{name}.whole")).exists():
                fill(folder)
                whole.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def nasty_folder(filled):
    """Return a collection whose every title, text and query holds markup."""
    from conftest import write_beir

    def fill(folder):
        write_beir(folder, 60, 20)
        for name in ("corpus", "queries"):
            rows = [
                json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()
            ]
            for row in rows:
                row["text"] += f" {NASTY}"
                if row.get("title"):
                    row["title"] += " <script>window.broken = true</script>"
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return filled("no<b>sy", fill)


@pytest.fixture(scope="session")
def two_models(nasty_folder, tiny_cosine, filled):
    """Return the output of evaluate for two models."""
    from beir_cocodr.evaluation.evaluate import evaluate

    def fill(output):
        evaluate(
            ["bm25", str(tiny_cosine)], str(nasty_folder), output=output, measures="nDCG@10 R@100"
        )

    return filled("two", fill)


@pytest.fixture(scope="session")
def nine_models(nasty_folder, tiny_cosine, tiny_bert, filled):
    """Return the output of compare, with labels, for nine models."""
    from beir_cocodr.evaluation.compare import compare

    def fill(output):
        kinds = ("", "hybrid:", "rrf:", "feedback:")
        models = [
            "bm25",
            *(kind + str(model) for model in (tiny_cosine, tiny_bert) for kind in kinds),
        ]
        compare(models, str(nasty_folder), output=output)

    return filled("nine", fill)


@pytest.fixture(scope="session")
def without_labels(nasty_folder, tiny_cosine, filled):
    """Return the output of compare without labels."""
    from beir_cocodr.evaluation.compare import CompareOptions, compare

    def fill(output):
        models = ["bm25", str(tiny_cosine), f"hybrid:{tiny_cosine}"]
        compare(
            models,
            str(nasty_folder),
            output=output,
            options=CompareOptions(labels=False, samples=30),
        )

    return filled("unlabelled", fill)


@pytest.fixture(scope="session")
def adapted(nasty_folder, tiny_cosine, tiny_bert, filled):
    """An adaptation whose second encoder was not trained, but says so; with episodes and
    clusters.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.evaluation.chains import MODES, Chain
    from beir_cocodr.evaluation.evaluate import EvaluationTask, evaluate_collection
    from beir_cocodr.evaluation.recommendation import ablation_families, recommend
    from beir_cocodr.evaluation.results import AdaptationRecord
    from beir_cocodr.retrieval.resolve import resolve_models

    def fill(output):
        model = write_training(output / "models" / "source")
        candidates = {"bm25": "bm25"}
        encoders = [Chain(), Chain(("source",))]
        chains = {}
        for encoder, path in zip(encoders, (tiny_bert, tiny_cosine), strict=True):
            for mode, kind in zip(MODES, ("", "feedback:", "hybrid:", "rm3:"), strict=True):
                chains[encoder.used(mode).label] = encoder.used(mode)
                candidates[encoder.used(mode).label] = f"{kind}{path}"
        results = evaluate_collection(
            resolve_models(candidates),
            load_collection(nasty_folder),
            EvaluationTask.of("nDCG@10 R@100", families=ablation_families(encoders)),
            output,
        )
        recommendation = recommend(results, encoders)
        report = AdaptationRecord(
            corpus=str(nasty_folder),
            source="apidocs/numpy",
            base=str(tiny_bert),
            stages=["finetune"],
            models={"base": str(tiny_bert), "source": str(model)},
            results=results,
            chains=chains,
            recommendation=recommendation,
            path=candidates[recommendation.model],
        )
        report.write(output / "adapt.json")

    return filled("adapted", fill)


@pytest.fixture(scope="session")
def adapted_without_labels(nasty_folder, tiny_cosine, tiny_bert, filled):
    """An adaptation to a corpus without labels, as far as the page about it goes."""
    from beir_cocodr.evaluation.chains import MODES, Chain
    from beir_cocodr.evaluation.compare import CompareOptions, compare
    from beir_cocodr.evaluation.label_free.choice import recommend_label_free
    from beir_cocodr.evaluation.results import AdaptationRecord

    def fill(output):
        candidates = {"bm25": "bm25"}
        encoders = [Chain(), Chain(("source",))]
        chains = {}
        for encoder, path in zip(encoders, (tiny_bert, tiny_cosine), strict=True):
            for mode, kind in zip(MODES, ("", "feedback:", "hybrid:", "rm3:"), strict=True):
                chains[encoder.used(mode).label] = encoder.used(mode)
                candidates[encoder.used(mode).label] = f"{kind}{path}"
        names = [*list(candidates.values())[1:], "bm25"]
        options = CompareOptions(labels=False, samples=20, against=candidates["base"])
        comparison = compare(names, str(nasty_folder), output=output, options=options)
        recommendation = recommend_label_free(comparison, candidates, chains)
        report = AdaptationRecord(
            corpus=str(nasty_folder),
            base=str(tiny_bert),
            stages=["finetune"],
            models={"base": str(tiny_bert)},
            candidates=candidates,
            chains=chains,
            comparison=comparison,
            recommendation=recommendation,
            path=candidates[recommendation.model],
        )
        report.write(output / "adapt.json")

    return filled("adapted-unlabelled", fill)


def write_training(folder: Path, clusters: int = 50, lines: int = 40) -> Path:
    """Write the files of fine-tuning in episodes: its record, curves and cluster weights."""
    folder.mkdir(parents=True)
    seen = {
        "dataset": "irds:msmarco",
        "documents": 8_841_823,
        "corpus_sha256": "ab" * 32,
        "split": "train",
        "queries": 502_939,
        "queries_sha256": "cd" * 32,
        "qrels_sha256": "ef" * 32,
    }
    record = {
        "stage": "finetune",
        "base": "somewhere/base",
        "options": {"seed": 13, "learning_rate": 2e-5, "weighting": "idro"},
        "encoder": {},
        "seen": [seen],
        "steps": 400,
        "seconds": 91.5,
        "training_loss": 0.25,
        "episodes": [
            {"episode": n, "logged_loss": [[100, 0.9 - n / 4], [200, 0.5 - n / 4]]} for n in (0, 1)
        ],
        "versions": {"torch": "2.13.0"},
        "parent": None,
    }
    (folder / "training.json").write_text(json.dumps(record))
    points = [
        {"model": name, "dataset": dataset, "nDCG@10": 0.3 + 0.02 * i, "R@100": 0.6 + 0.01 * i}
        for i, name in enumerate(("base", "episode 0", "episode 1"))
        for dataset in ("apidocs/numpy", "somewhere/else")
    ]
    (folder / "curves.json").write_text(json.dumps(points))
    for episode in (0, 1):
        place = folder / "episodes" / str(episode)
        place.mkdir(parents=True)
        with (place / "cluster_weights.jsonl").open("w") as file:
            for step in range(10, 10 * lines + 1, 10):
                raw = [math.exp(math.sin(k) * step / 300) for k in range(clusters)]
                weights = [value / sum(raw) for value in raw]
                file.write(
                    json.dumps({"step": step, "weights": weights, "losses": [], "examples": []})
                    + "\n"
                )
    return folder
