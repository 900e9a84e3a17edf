"""MTEB itself evaluates our models on our collections, with our figures."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset
from lazy_hosts import LazyModule, lazy_or_skip

from beir_cocodr import EncoderOptions, FuseOptions, SearchOptions, fuse
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.models.mrl import MRL

mteb = lazy_or_skip("mteb", "mteb is not installed: pip install 'beir-cocodr[mteb]'")
plugin = LazyModule("beir_cocodr.plugins.mteb")

MEASURES = {
    "ndcg_at_10": "nDCG@10",
    "map_at_100": "AP@100",
    "recall_at_10": "R@10",
    "precision_at_5": "P@5",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory, beir_folder, tiny_bert, tiny_cosine, tiny_cross):
    folder = tmp_path_factory.mktemp("models")
    MRL(str(tiny_bert)).save_pretrained(str(folder / "mrl"))
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=folder / "fused",
        options=FuseOptions(lexical="hash", bytes_per_document=144),
    )
    names = {
        "cosine": tiny_cosine,
        "bare": tiny_bert,
        "mrl": folder / "mrl",
        "fused": folder / "fused",
    }
    return {
        **{name: str(path) for name, path in names.items()},
        "bm25": "bm25",
        "hybrid": f"hybrid:{tiny_cosine}",
        "reranked": f"rerank:{tiny_cross}@bm25",
        "feedback": f"feedback:{folder / 'fused'}",
    }


@pytest.fixture(scope="module")
def ours(models, beir_folder, tmp_path_factory):
    found = evaluate(
        models,
        str(beir_folder),
        output=tmp_path_factory.mktemp("ours") / "o",
        measures=" ".join(MEASURES.values()),
    )
    return {name: result.measures for name, result in found.models.items()}


def check_figures(found, expected):
    assert found["ndcg_at_10"] > 0.1
    for theirs, measure in MEASURES.items():
        assert found[theirs] == pytest.approx(expected[measure], abs=1e-5), theirs


def scores(model, task, **given):
    found = mteb.evaluate(model, task, **{"cache": None, "show_progress_bar": False, **given})
    return found.task_results[0].scores["test"][0]


@pytest.mark.parametrize("name", ["cosine", "bare", "mrl", "fused", "bm25", "hybrid", "reranked"])
def test_its_figures_are_ours(name, models, ours, beir_folder, assert_same_figure):
    found = scores(plugin.load(models[name]), plugin.task(str(beir_folder)))
    check_figures(found, ours[name])
    assert_same_figure(
        "MTEB", f"mteb.evaluate: {name}", "nDCG@10", found["ndcg_at_10"], ours[name]["nDCG@10"]
    )


def test_feedback_of_a_hybrid_encoder_has_our_figures_and_not_its_encoders(
    models, ours, beir_folder
):
    model = plugin.load(models["feedback"])
    assert type(model) is plugin.Search
    check_figures(scores(model, plugin.task(str(beir_folder))), ours["feedback"])
    assert ours["feedback"] != ours["fused"]


def test_a_registered_model_is_found_by_its_name_and_cached_by_its_weights(
    models, ours, beir_folder, tmp_path
):
    names = plugin.register(models["fused"], "bm25")
    assert names == plugin.register(models["fused"], "bm25")
    assert names == ["beir-cocodr/fused", "beir-cocodr/bm25"]
    assert plugin.register("OpenMatch/cocodr-large") == ["OpenMatch/cocodr-large"]
    assert mteb.get_model_meta("OpenMatch/cocodr-large").embed_dim == 1024
    meta, task = mteb.get_model_meta("beir-cocodr/fused"), plugin.task(str(beir_folder))
    assert (meta.embed_dim, meta.similarity_fn_name.value, meta.model_type) == (
        72,
        "dot",
        ["dense"],
    )
    assert meta.n_parameters > 1000
    assert meta.revision != plugin.load(models["cosine"]).mteb_model_meta.revision
    model = mteb.get_model("beir-cocodr/fused", device="cpu")
    assert type(model) is plugin.DenseSearch
    cache = mteb.ResultCache(tmp_path)
    first = mteb.evaluate(
        meta, mteb.get_task(task.metadata.name), cache=cache, show_progress_bar=False
    )
    assert first.task_results[0].get_score() == pytest.approx(ours["fused"]["nDCG@10"], abs=1e-5)
    again = mteb.evaluate(meta, task, cache=cache, overwrite_strategy="only-cache")
    assert again.task_results[0].get_score() == first.task_results[0].get_score()
    [written] = tmp_path.rglob(f"{task.metadata.name}.json")
    assert json.loads(written.read_text())["dataset_revision"] == task.metadata.dataset["revision"]
    assert len(again.to_dataframe()) == 1


def test_given_candidates_alone_are_ranked_and_instructions_are_read(models):
    corpus = Dataset.from_list(
        [
            {"id": str(i), "title": None, "text": text}
            for i, text in enumerate(["wing flow", "x", "flow"])
        ]
    )
    queries = Dataset.from_list([{"id": "q", "text": "wing", "instruction": "flow"}])
    task = mteb.get_task("NFCorpus").metadata
    model = plugin.load("bm25")
    given = {
        "task_metadata": task,
        "encode_kwargs": {},
        "top_k": 5,
        "hf_split": "test",
        "hf_subset": "default",
    }
    with pytest.raises(InputError, match="index"):
        model.search(queries, **given)
    model.index(corpus)
    assert list(model.search(queries, **given)["q"]) == ["0", "2"]
    assert list(model.search(queries, top_ranked={"q": ["1", "2"]}, **given)["q"]) == ["2"]


def test_other_tasks_get_vectors_and_two_sided_ones_do_not_fit(models):
    sts = mteb.get_task("STSBenchmark")
    rows = [
        {"sentence1": "wing flow", "sentence2": "wing", "score": 4.0},
        {"sentence1": "x", "sentence2": "y", "score": 1.0},
    ]
    sts.dataset, sts.data_loaded = {"default": {"test": Dataset.from_list(rows * 2)}}, True
    assert -1 <= scores(plugin.load(models["cosine"]), sts)["cosine_spearman"] <= 1
    for name, kind in (("mrl", "an MRL"), ("fused", "a hybrid encoder")):
        with pytest.raises(TypeError, match=f"{name} .{kind}, which searches.* STSBenchmark does"):
            scores(plugin.load(models[name]), sts)


#: A task of each of MTEB's types for texts, and whether its kind can be searched.
KINDS = {
    "NFCorpus": True,
    "AskUbuntuDupQuestions": True,
    "News21InstructionRetrieval": True,
    "Banking77Classification": False,
    "TwentyNewsgroupsClustering.v2": False,
    "TwitterSemEval2015": False,
    "STS12": False,
    "SummEvalSummarization.v2": False,
    "MultiEURLEXMultilabelClassification": False,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_two_sided_encoder_is_offered_to_tasks_that_search_alone(name, models, monkeypatch):
    """MTEB's refusal comes before the data are used, which here would need a network."""
    task = mteb.get_task(name)
    monkeypatch.setattr(type(task), "load_data", lambda self, **options: None)
    task.data_loaded = True
    with pytest.raises(Exception) as error:  # noqa: PT011 - without data every task fails
        scores(plugin.load(models["fused"]), task)
    is_refused = "a hybrid encoder, which searches" in str(error.value)
    assert is_refused is not KINDS[name]
    assert isinstance(error.value, TypeError) or not is_refused


def test_what_does_not_fit_is_an_error(models, beir_folder, tmp_path, tiny_bert):
    with pytest.raises(InputError, match="stores"):
        plugin.load("bm25", SearchOptions(stores=("s",)))
    with pytest.raises(InputError, match="repeats ids"):
        plugin.load("bm25").index(
            Dataset.from_list([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}])
        )
    with pytest.raises(InputError, match="is not a corpus"):
        plugin.load("bm25").index(Dataset.from_list([{"id": "a", "image": "x"}]))
    plugin.task(str(beir_folder))
    with pytest.raises(InputError, match="already"):
        plugin.task(str(beir_folder), "train")
    (tmp_path / "fused").symlink_to(tiny_bert)
    plugin.register(models["fused"])
    with pytest.raises(InputError, match="beir-cocodr/fused already"):
        plugin.register(str(tmp_path / "fused"))
    with pytest.raises(InputError, match="embed_dim"):
        mteb.get_model("beir-cocodr/fused", embed_dim=72)
    lengths = plugin.load(
        models["cosine"], SearchOptions(encoder=EncoderOptions(query_length=8))
    ).mteb_model_meta
    assert lengths.revision != plugin.load(models["cosine"]).mteb_model_meta.revision
