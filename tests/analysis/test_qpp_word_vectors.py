"""MaxDC and P_clarity against loops and SciPy's Gaussians, and with trained vectors."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.stats import entropy, multivariate_normal

from beir_cocodr.analysis.predictors import WordVectors, word_vector_predictors
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError

needs_gensim = pytest.mark.skipif(
    find_spec("gensim") is None,
    reason="gensim is not installed: pip install 'beir-cocodr[word-vectors]'",
)


@pytest.fixture(scope="module")
def drawn():
    """Sixty terms in three dimensions, of random frequencies."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(60, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return WordVectors({f"t{i}": i for i in range(60)}, vectors, rng.dirichlet(np.ones(60)))


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.99])
def test_max_dc_counts_the_neighbours_of_the_best_connected_term(drawn, alpha):
    degrees = {}
    for term in (4, 17, 30):
        cosines = [
            float(drawn.vectors[term] @ other)
            for row, other in enumerate(drawn.vectors)
            if row != term
        ]
        degrees[term] = sum(cosine >= alpha * max(cosines) for cosine in cosines)
        assert drawn.max_dc(np.array([term]), alpha) == degrees[term]
    assert drawn.max_dc(np.array([*degrees]), alpha) == max(degrees.values())


def test_p_clarity_is_the_divergence_of_the_query_from_the_collection(drawn):
    mixture = drawn.mixture(clusters=4)
    parts = [
        share * multivariate_normal(mean, np.diag(variance)).pdf(drawn.vectors.astype(float))
        for share, mean, variance in zip(
            mixture.weights_, mixture.means_, mixture.covariances_, strict=True
        )
    ]
    generated = np.stack(parts, axis=1) / np.sum(parts, axis=0)[:, None]
    collection = drawn.generated(mixture)
    np.testing.assert_allclose(collection, drawn.shares @ generated, rtol=1e-6)
    for terms in ([5], [1, 2, 50], range(60)):
        expected = entropy(generated[list(terms)].mean(axis=0), collection, base=2)
        assert drawn.p_clarity(np.array(terms), mixture, collection) == pytest.approx(
            expected, rel=1e-6
        )
        assert expected >= 0


def test_a_query_without_known_terms_has_neither_predictor(drawn):
    assert list(drawn.of(["t3", "zebra", "t1", "t3"])) == [1, 3]
    mixture = drawn.mixture(clusters=2)
    assert math.isnan(drawn.max_dc(drawn.of(["zebra"])))
    assert math.isnan(drawn.p_clarity(drawn.of([]), mixture, drawn.generated(mixture)))


@needs_gensim
def test_vectors_are_of_terms_with_five_occurrences_and_repeat_by_the_seed(beir_folder):
    documents = load_collection(beir_folder).documents
    words, again = (WordVectors.train(documents, TextFormat()) for _ in range(2))
    np.testing.assert_array_equal(words.vectors, again.vectors)
    assert words.rows == again.rows
    np.testing.assert_allclose(np.linalg.norm(words.vectors, axis=1), 1, rtol=1e-5)
    assert words.shares.sum() == pytest.approx(1)
    assert (np.diff(words.shares) <= 0).all()


@needs_gensim
def test_the_command_computes_both_if_asked_to(beir_folder, tmp_path, capsys, monkeypatch):
    asked = [
        "qpp",
        "--dataset",
        str(beir_folder),
        "--model",
        "bm25",
        "--output",
        str(tmp_path / "o"),
        "--json",
    ]
    with pytest.raises(SystemExit) as status:
        main([*asked, "--word-vectors"])
    assert not status.value.code
    report = json.loads(capsys.readouterr().out)
    assert {"MaxDC", "P_clarity"} <= {row["predictor"] for row in report["predictors"]}
    assert report["predictors_left_out"] == {}
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(InputError, match=r"gensim.*beir-cocodr\[word-vectors\]"):
        word_vector_predictors(str(beir_folder))


@needs_gensim
def test_a_corpus_of_only_rare_words_is_refused(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "wing flow drag"}\n')
    with pytest.raises(InputError, match="5 times"):
        WordVectors.train(load_collection(tmp_path, labels="none").documents, TextFormat())
