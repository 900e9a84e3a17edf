"""A hybrid encoder in every host: saved, loaded, stored, indexed, and searched like any encoder."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from beir_cocodr import COCODR, FuseOptions, HybridEncoder, fuse, load_collection, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.provenance import read_record
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.refit import REFIT_FILE, Refit
from beir_cocodr.retrieval.vectors.dense import IN_MEMORY, Dense, EmbeddingPool

TEXTS = ["wing flow shock", "the library index of a journal", "", "unknown wörds"]


@pytest.fixture(scope="module")
def folder(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    """Both kinds of lexical part at once."""
    folder = tmp_path_factory.mktemp("hybrid") / "model"
    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=folder,
        options=FuseOptions(lexical="svd+hash", bytes_per_document=2 * (32 + 40)),
    )
    return folder


@pytest.fixture(scope="module")
def model(folder) -> HybridEncoder:
    return HybridEncoder(folder)


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder)


@pytest.fixture(scope="module")
def store(beir_folder, folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "fp32"
    encode(str(beir_folder), str(folder), path)
    return path


def test_saved_and_loaded_it_gives_the_same_vectors(model, folder, tiny_cosine, tmp_path):
    model.save_pretrained(str(tmp_path))
    again = load_encoder(tmp_path)
    assert isinstance(again, HybridEncoder)
    assert fingerprint(again) == fingerprint(model) != fingerprint(COCODR(tiny_cosine))
    for name in ("encode_query", "encode_document"):
        np.testing.assert_array_equal(getattr(again, name)(TEXTS), getattr(model, name)(TEXTS))
    assert model.get_embedding_dimension() == 72 == model.encode_document(TEXTS).shape[1]
    assert read_record(folder).details["numbers"] == 40


def test_a_document_is_its_dense_vector_and_its_terms(model, tiny_cosine):
    """The dense part is the base's; a text's vector depends on no other text."""
    vectors = model.encode_document(TEXTS)
    np.testing.assert_allclose(
        vectors[:, :32], COCODR(tiny_cosine).encode_document(TEXTS), atol=1e-6
    )
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(model.encode_document([text])[0], vector, atol=1e-5)
    # Nothing known in either: their lexical parts are the same.
    np.testing.assert_allclose(vectors[2, 32:], vectors[3, 32:], atol=1e-6)
    queries = model.encode_query(TEXTS)
    assert not queries[2, 32:].any(), "no term, no deviation, no part"
    assert queries[0, 32:].any()


def test_its_dense_part_is_the_encoder_that_was_fused_and_shares_its_vectors(
    model, tiny_cosine, collection, tmp_path
):
    part, plain = model.dense_part(), COCODR(tiny_cosine)
    assert fingerprint(part) == fingerprint(plain)
    assert (part.text_format, part.similarity_fn_name) == (
        plain.text_format,
        plain.similarity_fn_name,
    )
    encoded = Dense(model, collection.documents, tmp_path).embeddings.load()
    for most in (IN_MEMORY, 0):
        with EmbeddingPool.temporary(tmp_path) as pool:
            dense = Dense(model, collection.documents, tmp_path)
            dense.pool = pool
            dense.in_memory = most
            shared = dense.embeddings.load()
        np.testing.assert_allclose(shared, encoded, atol=1e-5)


def test_encoding_says_when_a_refit_is_due(model, folder, store, collection, tmp_path, capsys):
    """Nothing moved in the corpus of the fit; in another, what is unknown and how scores spread, by
    brute force.
    """
    same = Refit.read(store / REFIT_FILE)
    assert (same.unknown_share, same.unknown_before, same.due) == (0.0, 0.0, False)
    assert max(same.dense_drift, same.lexical_drift) < 1e-3
    texts = [document["text"] for document in collection.documents.values()]
    texts = texts[:8] * 4 + [text + " zyzzyva quokka" * 20 for text in texts[8:12]]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts))
    )
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "encode",
                "--dataset",
                str(corpus),
                "--model",
                str(folder),
                "--output",
                str(tmp_path / "store"),
            ]
        )
    assert not ended.value.code
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refit due")]
    moved = Refit.read(tmp_path / "store" / REFIT_FILE)
    assert str(moved) == line
    terms = [term for text in texts for term in model.head.analyze(text)]
    assert moved.unknown_share == pytest.approx(
        np.mean([t not in model.head.vocabulary for t in terms]), abs=1e-4
    )
    vectors = model.encode_document(texts)
    for part, root, drift in (
        (vectors[:, :32], model.head.dense_spread, moved.dense_drift),
        (
            vectors[:, 32:] / model.head.scale.numpy(),
            model.head.lexical_spread,
            moved.lexical_drift,
        ),
    ):
        changes = np.abs(
            (part @ part.T).std(axis=1) / np.linalg.norm(part @ root.numpy(), axis=1) - 1
        )
        assert drift == pytest.approx(np.quantile(changes, 0.5, method="lower"), abs=1e-3)


@pytest.mark.parametrize(
    ("unknown", "before", "drift", "due"),
    [
        (0.009, 0.0, 0.09, False),
        (0.02, 0.0, 0.0, True),
        (0.02, 0.015, 0.0, False),
        (0.0, None, 0.11, True),
    ],
)
def test_a_refit_is_due_beyond_its_limits(unknown, before, drift, due):
    for drifts in ((drift, 0.0), (0.0, drift)):
        found = Refit(100, unknown, before, *drifts)
        assert found.due == due
        assert str(found).startswith("refit due" if due else "refit not due")


def test_what_would_corrupt_the_vectors_is_an_error(model):
    for call in (
        lambda: model.encode(TEXTS),
        lambda: model.encode_query(TEXTS, normalize_embeddings=True),
        lambda: model.encode_document(TEXTS, truncate_dim=8),
    ):
        with pytest.raises(InputError, match="hybrid encoder"):
            call()


def test_another_process_reads_texts_alike(model):
    """Pools of sentence-transformers send the model by pickle."""
    again = pickle.loads(pickle.dumps(model.head.analyze))
    assert again("the wings flow") == model.head.analyze("the wings flow") == ["wing", "flow"]


def test_store_index_and_beir_give_the_same_ranking(
    model, folder, store, beir_folder, collection, tmp_path
):
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    queries = model.encode_queries(list(collection.queries.values()))
    scores = queries @ model.encode_corpus(list(collection.documents.values())).T
    ids = np.array(collection.documents.ids())
    expected = {
        q: set(ids[np.argsort(-row)[:5]]) for q, row in zip(collection.queries, scores, strict=True)
    }
    beir = DenseRetrievalExactSearch(model, show_progress_bar=False).search(
        dict(collection.documents.items()), collection.queries, 5, "dot"
    )
    assert {q: set(found) for q, found in beir.items()} == expected
    for index in (None, "flat"):
        if index:
            pytest.importorskip("faiss")
        run = tmp_path / f"{index}.run"
        search(store, str(beir_folder), run, StoreSearchOptions(top_k=5, index=index))
        found: dict[str, set[str]] = {}
        for line in run.read_text().splitlines():
            found.setdefault(line.split()[0], set()).add(line.split()[2])
        assert found == expected
    evaluated = evaluate(
        {"fused": str(folder)},
        str(beir_folder),
        output=tmp_path / "judged",
        search=SearchOptions(stores=(store,)),
    )
    assert 0 < evaluated.models["fused"].measures["nDCG@10"] <= 1


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_less_precision_changes_little(
    precision, model, folder, store, beir_folder, collection, tmp_path
):
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    encode(str(beir_folder), str(folder), tmp_path / precision, EncodeOptions(precision=precision))
    whole, rounded = (EmbeddingStore.open(path).load() for path in (store, tmp_path / precision))
    queries = torch.from_numpy(model.encode_queries(list(collection.queries.values())))
    exact, found = queries @ whole.T, queries @ rounded.T
    assert (exact - found).abs().max() < {"fp16": 0.01, "int8": 0.15}[precision] * exact.std()


def test_pyserini_gets_its_vectors(store, tmp_path):
    faiss = pytest.importorskip("faiss")
    from beir_cocodr.plugins.pyserini import write_index

    from beir_cocodr.retrieval.store.store import EmbeddingStore

    index = faiss.read_index(str(write_index(store, tmp_path / "index") / "index"))
    np.testing.assert_array_equal(
        index.reconstruct_n(0, index.ntotal), EmbeddingStore.open(store).load().numpy()
    )


@pytest.mark.parametrize("kind", ["hybrid", "rrf"])
def test_bm25_does_not_count_twice(kind, folder, collection, tmp_path):
    with pytest.raises(InputError, match=r"hybrid encoder.*twice"):
        Resources(collection.documents, tmp_path).ranker(f"{kind}:{folder}")


def fault(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_encoder(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_damaged_folder_is_one_clear_line(folder, tmp_path):
    def copy(name: str) -> tuple[Path, Path]:
        place = Path(shutil.copytree(folder, tmp_path / name))
        record = json.loads((place / "training.json").read_text())
        del record["checksums"]  # which would name any changed file
        (place / "training.json").write_text(json.dumps(record))
        [head] = place.glob("*_HybridHead")
        return place, head

    place, head = copy("no terms")
    (head / "terms.txt").unlink()
    assert "terms.txt" in fault(place)

    place, head = copy("other terms")
    terms = (head / "terms.txt").read_text().split("\n")
    (head / "terms.txt").write_text("\n".join([terms[1], terms[0], *terms[2:]]))
    assert "analyzer" in fault(place)

    place, head = copy("other analyzer")
    settings = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(settings | {"analyzer": "none"}))
    assert "analyzer" in fault(place)

    for name, change in {
        "missing": lambda weights: {k: w for k, w in weights.items() if k != "projection"},
        "of another shape": lambda weights: weights | {"idf": weights["idf"][:-1].clone()},
        "left over": lambda weights: weights | {"more": torch.zeros(2)},
        "not finite": lambda weights: weights | {"mean": weights["mean"] * float("nan")},
    }.items():
        place, head = copy(name)
        save_file(
            change(load_file(head / "model.safetensors")),
            head / "model.safetensors",
            metadata={"format": "pt"},
        )
        fault(place)


def test_a_plain_encoder_is_no_hybrid_encoder(tiny_cosine):
    with pytest.raises(InputError, match="beir-cocodr fuse"):
        HybridEncoder(tiny_cosine)
