"""BEIR's own examples of evaluation that need no server, as scripts of their form, with two lines
changed.
"""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch

from beir_cocodr import load_encoder
from beir_cocodr.errors import InputError

LOAD = """
from beir.datasets.data_loader import GenericDataLoader
corpus, queries, qrels = GenericDataLoader(data_folder=DATA).load(split="test")
"""

MEASURE = """
ndcg, _map, recall, precision = retriever.evaluate(qrels, results, retriever.k_values)
mrr = retriever.evaluate_custom(qrels, results, retriever.k_values, metric="mrr")
recall_cap = retriever.evaluate_custom(qrels, results, retriever.k_values, metric="r_cap")
hole = retriever.evaluate_custom(qrels, results, retriever.k_values, metric="hole")
FOUND = [ndcg, _map, recall, precision, mrr, recall_cap, hole]
query_id, ranking_scores = list(results.items())[0]
ranked = sorted(ranking_scores.items(), key=lambda item: item[1], reverse=True)
"""

SHOW = """
for doc_id, _ in ranked[:10]:
    print(doc_id, corpus[doc_id].get("title"), corpus[doc_id].get("text"))
"""

EXACT = "from beir.retrieval.search.dense import DenseRetrievalExactSearch as DRES\n"

OURS = {
    "from beir.retrieval.search.dense": (
        "from beir_cocodr.plugins.beir import ExactSearch as DRES, load_encoder"
    )
}

#: Name to (script, changed lines): each line of the script that starts as the left one becomes the
#: right one.
SCRIPTS: dict[str, tuple[str, dict[str, str]]] = {
    "dense/evaluate_sbert.py": (
        LOAD
        + """
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
model = DRES(models.SentenceBERT(MODEL), batch_size=16, score_function="cos_sim")
retriever = EvaluateRetrieval(model)
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + SHOW,
        OURS
        | {
            "model = DRES": (
                'model = DRES(load_encoder(MODEL), batch_size=16, score_function="cos_sim")'
            )
        },
    ),
    "dense/evaluate_sbert_hf_loader.py": (
        """
from beir import util
from beir.datasets.data_loader_hf import HFDataLoader
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
corpus, queries, qrels = HFDataLoader(data_folder=DATA, streaming=False).load(split="test")
beir_model = models.SentenceBERT(MODEL, max_length=512)
model = DRES(beir_model, batch_size=128)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + """
util.save_runfile(OUT + "/run.trec", results)
util.save_results(OUT + "/results.json", ndcg, _map, recall, precision, mrr)
query = queries.filter(lambda x: x["id"] == query_id)[0]["text"]
for doc_id, _ in ranked[:10]:
    print(corpus.filter(lambda x: x["id"] == doc_id)[0].get("title"))
""",
        OURS | {"beir_model =": "beir_model = load_encoder(MODEL)"},
    ),
    "dense/evaluate_sbert_multi_gpu.py": (
        """
from beir.datasets.data_loader_hf import HFDataLoader
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalParallelExactSearch as DRPES
loader = HFDataLoader(data_folder=DATA, streaming=False, keep_in_memory=False)
corpus, queries, qrels = loader.load(split="test")
beir_model = models.SentenceBERT(MODEL)
model = DRPES(beir_model, batch_size=16, target_devices=None, corpus_chunk_size=20)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE,
        {
            "from beir.retrieval.search.dense": (
                OURS["from beir.retrieval.search.dense"].replace("DRES", "DRPES")
            ),
            "beir_model =": "beir_model = load_encoder(MODEL)",
        },
    ),
    "dense/evaluate_huggingface_pkl_embs.py": (
        LOAD
        + """
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
dense_model = models.HuggingFace(model_path=MODEL, max_length=48, pooling="mean", normalize=True)
model = DRES(dense_model, batch_size=128)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.encode_and_retrieve(
    corpus=corpus, queries=queries, encode_output_path=OUT, overwrite=False
)
"""
        + MEASURE
        + SHOW,
        OURS | {"dense_model =": "dense_model = load_encoder(MODEL)"},
    ),
    "dense/evaluate_faiss_dense.py": (
        LOAD
        + """
import os
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import KIND
model = models.SentenceBERT(MODEL)
faiss_search = KIND(model, batch_size=128, **SETTINGS)
prefix, ext = "my-index", "ext"
if os.path.exists(os.path.join(OUT, f"{prefix}.{ext}.faiss")):
    faiss_search.load(input_dir=OUT, prefix=prefix, ext=ext)
retriever = EvaluateRetrieval(faiss_search, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
faiss_search.save(output_dir=OUT, prefix=prefix, ext=ext)
"""
        + MEASURE
        + SHOW,
        {
            "from beir.retrieval.search.dense": "from beir_cocodr.plugins.beir_faiss import KIND",
            "model = models": "from beir_cocodr import load_encoder; model = load_encoder(MODEL)",
        },
    ),
    "custom/evaluate_custom_model.py": (
        LOAD
        + """
import numpy as np
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
from sentence_transformers import SentenceTransformer
class YourCustomModel:
    def __init__(self, model_path=None, **kwargs):
        self.model = SentenceTransformer(model_path)
    def encode_queries(self, queries, batch_size=16, **kwargs):
        return np.asarray(self.model.encode(queries, batch_size=batch_size))
    def encode_corpus(self, corpus, batch_size=8, **kwargs):
        sentences = [(doc["title"] + " " + doc["text"]).strip() for doc in corpus]
        return np.asarray(self.model.encode(sentences, batch_size=batch_size))
model = DRES(YourCustomModel(model_path=MODEL))
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + SHOW,
        OURS,
    ),
    "custom/evaluate_custom_dataset_files.py": (
        """
from beir.datasets.data_loader import GenericDataLoader
corpus, queries, qrels = GenericDataLoader(
    corpus_file=DATA + "/corpus.jsonl",
    query_file=DATA + "/queries.jsonl",
    qrels_file=DATA + "/qrels/test.tsv",
).load_custom()
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
model = DRES(models.SentenceBERT(MODEL), batch_size=16)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + SHOW,
        OURS | {"model = DRES": "model = DRES(load_encoder(MODEL), batch_size=16)"},
    ),
    "custom/evaluate_custom_dataset.py": (
        """
corpus = {
    "doc1": {"title": "Wing", "text": "wing flow shock layer pressure"},
    "doc2": {"title": "", "text": "election treaty minister parliament"},
}
queries = {"q1": "wing shock", "q2": "parliament election"}
qrels = {"q1": {"doc1": 1}, "q2": {"doc2": 1}}
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
model = DRES(models.SentenceBERT(MODEL), batch_size=16)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE,
        OURS | {"model = DRES": "model = DRES(load_encoder(MODEL), batch_size=16)"},
    ),
    "custom/evaluate_custom_metrics.py": (
        LOAD
        + """
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
"""
        + EXACT
        + """
model = DRES(models.SentenceBERT(MODEL))
retriever = EvaluateRetrieval(model, score_function="cos_sim", k_values=[1, 3, 5])
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + """
FOUND.append(retriever.evaluate_custom(qrels, results, retriever.k_values, metric="top_k_accuracy"))
""",
        OURS | {"model = DRES": "model = DRES(load_encoder(MODEL))"},
    ),
    "sparse/evaluate_splade.py": (
        LOAD
        + """
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.sparse import SparseSearch
sparse_model = SparseSearch(models.SPLADE(SPARSE, max_length=256), batch_size=48)
retriever = EvaluateRetrieval(sparse_model)
results = retriever.retrieve(corpus, queries)
"""
        + MEASURE
        + SHOW,
        {
            "from beir.retrieval.search.sparse": "from beir_cocodr.plugins.beir import ModelSearch",
            "sparse_model =": 'sparse_model = ModelSearch("splade:" + SPARSE)',
        },
    ),
    "reranking/evaluate_bm25_ce_reranking.py": (
        LOAD
        + """
from beir.reranking import Rerank
from beir.reranking.models import CrossEncoder
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.lexical import BM25Search
model = BM25Search(index_name="index", hostname="host", initialize=True)
retriever = EvaluateRetrieval(model)
first = retriever.retrieve(corpus, queries)
reranker = Rerank(CrossEncoder(CROSS), batch_size=128)
results = reranker.rerank(corpus, queries, first, top_k=20)
"""
        + MEASURE
        + SHOW,
        {
            "from beir.retrieval.search.lexical": (
                "from beir_cocodr.plugins.beir import ModelSearch"
            ),
            "model = BM25Search": 'model = ModelSearch("bm25")',
        },
    ),
    "reranking/evaluate_bm25_sbert_reranking.py": (
        LOAD
        + """
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch as DRES
scores = {doc: float(len(corpus) - n) for n, doc in enumerate(sorted(corpus))}
first = {query: dict(scores) for query in queries}
model = DRES(models.SentenceBERT(MODEL), batch_size=128, score_function="cos_sim")
retriever = EvaluateRetrieval(model, k_values=[1, 3, 5, 10, 100])
results = retriever.rerank(corpus, queries, first, top_k=100)
"""
        + MEASURE,
        {
            "from beir.retrieval.evaluation": (
                "from beir_cocodr.plugins.beir import EvaluateRetrieval, load_encoder"
            ),
            "model = DRES": "model = DRES(load_encoder(MODEL), batch_size=128)",
        },
    ),
}


def changed(name: str) -> str:
    """A script with its two lines changed, and no other."""
    script, lines = SCRIPTS[name]
    new = script
    for old, line in lines.items():
        new, count = re.subn(rf"(?m)^{re.escape(old)}.*$", line.replace("\\", r"\\"), new)
        assert count == 1, old
    diff = difflib.unified_diff(script.splitlines(), new.splitlines(), n=0, lineterm="")
    assert 1 <= sum(line[0] == "+" and line[:3] != "+++" for line in diff) <= 2
    return new


@pytest.fixture
def scene(beir_folder, tiny_cosine, tmp_path) -> dict[str, Any]:
    return {"DATA": str(beir_folder), "MODEL": str(tiny_cosine), "OUT": str(tmp_path)}


def run(script: str, scene: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = {**scene, **more}
    exec(script, made)
    return made


@pytest.fixture(scope="module")
def there(beir_folder, tiny_cosine) -> list[dict[str, float]]:
    """Return the figures of BEIR's own exact search."""
    made = {"DATA": str(beir_folder), "MODEL": str(tiny_cosine)}
    exec(SCRIPTS["dense/evaluate_sbert.py"][0], made)
    return made["FOUND"]


def ndcg(found: dict[str, Any], results: dict[str, dict[str, float]]) -> float:
    """nDCG@10 by BEIR's own evaluation of what its parts scored."""
    return EvaluateRetrieval.evaluate(found["qrels"], results, [10])[0]["NDCG@10"]


WORKING = [
    name for name in SCRIPTS if name.startswith("custom") or name.endswith("evaluate_sbert.py")
]


@pytest.mark.parametrize("name", WORKING)
def test_scripts_that_work_in_beir_measure_the_same(name, scene, assert_same_figure):
    ours, theirs = run(changed(name), scene)["FOUND"], run(SCRIPTS[name][0], scene)["FOUND"]
    assert ours == theirs
    measure = next(m for m in reversed(theirs[0]) if m in ("NDCG@10", "NDCG@5"))
    assert_same_figure("BEIR", name, measure, theirs[0][measure], ours[0][measure])


def test_the_default_score_function_is_obeyed_for_a_model_of_another(scene, tiny_bert, caplog):
    """BEIR's default is cosine; our own models compare by dot product."""
    name = "dense/evaluate_sbert.py"
    scene["MODEL"] = str(tiny_bert)
    found = run(changed(name), scene)
    corpus, queries, _ = GenericDataLoader(scene["DATA"]).load(split="test")
    theirs = DenseRetrievalExactSearch(load_encoder(tiny_bert), show_progress_bar=False)
    expected = theirs.search(corpus, queries, 1000, "cos_sim")
    for query, scores in found["results"].items():
        assert scores == pytest.approx(expected[query], abs=1e-5)
    assert "'dot'" in caplog.text
    assert "'cos_sim'" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "dense/evaluate_sbert_hf_loader.py",
        "dense/evaluate_sbert_multi_gpu.py",
        "dense/evaluate_huggingface_pkl_embs.py",
    ],
)
def test_scripts_that_fail_in_beir_measure_what_its_exact_search_does(
    name, scene, there, assert_same_figure
):
    found = run(changed(name), scene)["FOUND"]
    assert found == there
    assert_same_figure("BEIR", name, "NDCG@10", there[0]["NDCG@10"], found[0]["NDCG@10"])


FAISS: dict[str, dict[str, Any]] = {
    "FlatIPFaissSearch": {},
    "HNSWFaissSearch": {"hnsw_store_n": 16},
    "HNSWSQFaissSearch": {"hnsw_store_n": 16},
    "SQFaissSearch": {},
    "PQFaissSearch": {"num_of_centroids": 16, "code_size": 4},
    "PCAFaissSearch": {"output_dimension": 32},
    "BinaryFaissSearch": {},
}


@pytest.mark.parametrize("kind", FAISS)
def test_faiss_searches(kind, scene, there, assert_same_figure):
    """dense/evaluate_faiss_dense.py, evaluate_dim_reduction.py and evaluate_bpr.py."""
    import faiss

    settings = FAISS[kind] | (
        {"base_index": faiss.IndexFlatIP(32)} if kind == "PCAFaissSearch" else {}
    )
    script = changed("dense/evaluate_faiss_dense.py").replace("KIND", kind)
    found = run(script, scene, SETTINGS=settings)
    assert {len(hits) for hits in found["results"].values()} == {
        48
    }  # every document once, though 1,000 are asked for
    assert found["FOUND"][0]["NDCG@100"] == pytest.approx(there[0]["NDCG@100"], abs=0.15)
    if kind == "FlatIPFaissSearch":
        assert found["FOUND"] == there
        assert_same_figure(
            "BEIR",
            "dense/evaluate_faiss_dense.py",
            "NDCG@10",
            there[0]["NDCG@10"],
            found["FOUND"][0]["NDCG@10"],
        )
    again = run(script, scene, SETTINGS=settings)  # from the files that the first one saved
    assert again["results"] == found["results"]
    assert Path(scene["OUT"], "my-index.ext.faiss").is_file()


def test_a_learned_sparse_encoder(scene, tiny_mlm, assert_same_figure):
    found = run(changed("sparse/evaluate_splade.py"), scene, SPARSE=str(tiny_mlm))
    from sentence_transformers import SparseEncoder

    host, corpus = SparseEncoder(str(tiny_mlm)), found["corpus"]
    documents = host.encode_document(
        [f"{text['title']} {text['text']}".strip() for text in corpus.values()]
    )
    scores = host.similarity(host.encode_query([*found["queries"].values()]), documents)
    expected = {}
    for query, row in zip(found["queries"], scores.tolist(), strict=True):
        expected[query] = {id: score for id, score in zip(corpus, row, strict=True) if score > 0}
        assert found["results"][query] == pytest.approx(expected[query], abs=1e-3)
    there = ndcg(found, expected)
    assert_same_figure(
        "BEIR", "sparse/evaluate_splade.py", "NDCG@10", there, found["FOUND"][0]["NDCG@10"]
    )


def test_reranking_by_a_cross_encoder(scene, tiny_cross, assert_same_figure):
    found = run(changed("reranking/evaluate_bm25_ce_reranking.py"), scene, CROSS=str(tiny_cross))
    corpus, queries, first = found["corpus"], found["queries"], found["first"]
    from sentence_transformers import CrossEncoder

    model, expected = CrossEncoder(str(tiny_cross)), {}
    for query, scores in found["results"].items():
        assert scores.keys() == set(
            sorted(first[query], key=first[query].__getitem__, reverse=True)[:20]
        )
        texts = [
            (queries[query], f"{corpus[id]['title']} {corpus[id]['text']}".strip()) for id in scores
        ]
        expected[query] = dict(zip(scores, model.predict(texts).tolist(), strict=True))
        assert scores == pytest.approx(expected[query], abs=1e-5)
    there = ndcg(found, expected)
    assert_same_figure(
        "BEIR",
        "reranking/evaluate_bm25_ce_reranking.py",
        "NDCG@10",
        there,
        found["FOUND"][0]["NDCG@10"],
    )


def test_reranking_by_an_encoder(scene, there, assert_same_figure):
    found = run(changed("reranking/evaluate_bm25_sbert_reranking.py"), scene)
    measured = {measure: score for part in found["FOUND"] for measure, score in part.items()}
    expected = {measure: score for part in there for measure, score in part.items()}
    assert measured.items() <= expected.items()  # of all documents, which is the exact search
    assert_same_figure(
        "BEIR",
        "reranking/evaluate_bm25_sbert_reranking.py",
        "NDCG@10",
        expected["NDCG@10"],
        measured["NDCG@10"],
    )


def test_reranking_takes_datasets_and_names_what_is_missing(scene, tiny_cross, tiny_cosine):
    from beir.datasets.data_loader_hf import HFDataLoader

    plugin = import_module("beir_cocodr.plugins.beir")
    corpus, queries, _ = HFDataLoader(data_folder=scene["DATA"]).load(split="test")
    plain = {row["id"]: {"title": row["title"] or None, "text": row["text"]} for row in corpus}
    texts = {row["id"]: row["text"] for row in queries}
    first = {query: {f"d{n}": float(n) for n in range(12)} for query in texts}
    dense = plugin.evaluator(tiny_cosine, [1, 5], show_progress_bar=False)
    for reranker in (plugin.Rerank(str(tiny_cross)), dense):
        found = reranker.rerank(corpus, queries, first, top_k=5)
        assert found == reranker.rerank(plain, texts, first, top_k=5)
        assert {frozenset(hits) for hits in found.values()} == {
            frozenset(f"d{n}" for n in range(7, 12))
        }
        assert all(
            list(hits.values()) == sorted(hits.values(), reverse=True) for hits in found.values()
        )
        with pytest.raises(InputError, match="document 'nowhere'"):
            reranker.rerank(plain, texts, {"q16": {"nowhere": 1.0}}, top_k=5)
        with pytest.raises(InputError, match="query 'nobody'"):
            reranker.rerank(plain, texts, {"nobody": {"d1": 1.0}}, top_k=5)
