"""Sharpened vectors, against their definition in a loop, and what reads a store of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import completed, write_beir

from beir_cocodr import Searcher, compare, evaluate, fuse, gate, load_collection, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions
from beir_cocodr.evaluation.gate import GateOptions
from beir_cocodr.evaluation.gate_sides import open_side
from beir_cocodr.evaluation.judged_vectors import key_of
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.query_context import GeneratedQueries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.handover.hand_over import hand_over
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions, Sharpening
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers
from beir_cocodr.retrieval.vectors.sharpening import sharpened

SIZE = 20
WEIGHT = 0.3


@pytest.fixture(scope="module")
def generated(beir_folder, tmp_path_factory) -> Path:
    """Two claims or keywords for each passage; some are left out."""
    output = tmp_path_factory.mktemp("sharpening") / "generated"
    options = GenerationOptions(
        per_passage=2, passage_tokens=30, query_kinds="claims,keywords", dedupe=True
    )
    generate_queries(beir_folder, "lexical", output, options)
    return output


def stored(dataset: Path, model: Path, output: Path, **options) -> EmbeddingStore:
    settings = EncodeOptions(shard_size=SIZE, **options)
    encode(str(dataset), str(model), output, settings, workers=Workers(threads=1))
    return EmbeddingStore.open(output)


@pytest.fixture(scope="module")
def plain(beir_folder, tiny_cosine, tmp_path_factory) -> EmbeddingStore:
    return stored(beir_folder, tiny_cosine, tmp_path_factory.mktemp("stores") / "plain")


@pytest.fixture(scope="module")
def sharp(beir_folder, tiny_cosine, generated, tmp_path_factory) -> EmbeddingStore:
    sharpening = Sharpening(GeneratedQueries(generated), WEIGHT)
    output = tmp_path_factory.mktemp("stores") / "sharp"
    return stored(beir_folder, tiny_cosine, output, sharpening=sharpening)


def texts_by_document(generated: Path) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for line in (generated / "queries.jsonl").read_text().splitlines():
        query = json.loads(line)
        texts.setdefault(query["metadata"]["document"], []).append(query["text"])
    return texts


def moved(vector: torch.Tensor, queries: torch.Tensor, weight: float) -> torch.Tensor:
    """One vector by the definition, in float64."""
    vector, queries = vector.double(), queries.double()
    directions = torch.stack([query / query.norm() for query in queries])
    target = vector / vector.norm() + weight * directions.mean(dim=0)
    return vector.norm() * target / target.norm()


def test_a_store_has_the_vectors_of_the_definition(
    beir_folder, tiny_cosine, generated, plain, sharp
):
    model = load_encoder(str(tiny_cosine))
    texts = texts_by_document(generated)
    documents = load_collection(beir_folder, labels="none").documents
    before, after = plain.load(), sharp.load()
    assert len(texts) > SIZE  # more than one shard
    for row, document in enumerate(documents):
        vector = torch.from_numpy(np.asarray(before[row]))
        expected = vector
        if document in texts:
            expected = moved(vector, model.query_vectors(texts[document]), WEIGHT)
            assert float(expected @ vector.double()) < 0.9999
        np.testing.assert_allclose(after[row], expected, atol=2e-6)


def test_lengths_stay_and_documents_without_queries_keep_their_vectors():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(5, 8)).astype(np.float32) * 3
    queries = rng.normal(size=(4, 8)).astype(np.float32)
    numbers = np.array([3, 0, 3, 3])
    after = sharpened(vectors, numbers, queries, 0.5)
    np.testing.assert_array_equal(after[[1, 2, 4]], vectors[[1, 2, 4]])
    np.testing.assert_allclose(
        np.linalg.norm(after, axis=1), np.linalg.norm(vectors, axis=1), rtol=1e-5
    )
    for row in (0, 3):
        own = torch.from_numpy(queries[numbers == row])
        np.testing.assert_allclose(
            after[row], moved(torch.from_numpy(vectors[row]), own, 0.5), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("weight", [0, -0.1, 1.01, float("nan"), "0.2", None])
def test_a_wrong_weight_is_refused(generated, weight):
    with pytest.raises(InputError, match="choose one above 0 and at most 1"):
        Sharpening(GeneratedQueries(generated), weight)


def test_the_option_takes_a_sharpening_alone(generated):
    with pytest.raises(InputError, match="sharpening"):
        EncodeOptions(sharpening=str(generated))


def test_processes_and_a_resumed_run_write_the_same(
    beir_folder, tiny_cosine, generated, sharp, tmp_path
):
    settings = EncodeOptions(
        shard_size=SIZE, sharpening=Sharpening(GeneratedQueries(generated), WEIGHT)
    )
    encode(
        str(beir_folder),
        str(tiny_cosine),
        tmp_path / "two",
        settings,
        workers=Workers(processes=2, threads=1),
    )
    two = EmbeddingStore.open(tmp_path / "two")
    np.testing.assert_allclose(two.load(), sharp.load(), atol=1e-6)
    assert two.record == sharp.record
    shutil.copytree(sharp.folder, tmp_path / "cut")
    (tmp_path / "cut" / "shard-00001.safetensors").unlink()
    report = encode(
        str(beir_folder),
        str(tiny_cosine),
        tmp_path / "cut",
        settings,
        workers=Workers(threads=1),
    )
    assert report["documents_encoded"] == SIZE
    np.testing.assert_array_equal(EmbeddingStore.open(tmp_path / "cut").load(), sharp.load())


def test_searches_read_it_for_its_encoder_and_say_so(
    beir_folder, tiny_cosine, generated, plain, sharp, tmp_path
):
    figures = {}
    for store in (plain, sharp):
        search = SearchOptions(stores=(store.folder,))
        record = evaluate(
            str(tiny_cosine), beir_folder, output=tmp_path / store.folder.name, search=search
        )
        [result] = record.models.values()
        figures[store.folder.name] = result
    described = figures["sharp"].retrieval["store"]
    assert described["sharpen_weight"] == WEIGHT
    assert "sharpen_weight" not in figures["plain"].retrieval["store"]
    runs = [(tmp_path / name / figures[name].run).read_text() for name in ("plain", "sharp")]
    assert runs[0] != runs[1]
    record = compare(
        [str(tiny_cosine), "bm25"], beir_folder, search=SearchOptions(stores=(sharp.folder,))
    )
    [of_encoder] = [one for label, one in record.seen.items() if label != "bm25"]
    assert str(generated.resolve()) in of_encoder.sentences[-1]
    assert "sharpened" in of_encoder.sentences[-1]


def test_a_lead_on_such_queries_is_no_evidence_for_it(
    beir_folder, tiny_cosine, generated, plain, tmp_path
):
    sharpening = Sharpening(GeneratedQueries(generated), weight=1.0)
    store = stored(beir_folder, tiny_cosine, tmp_path / "store", sharpening=sharpening)
    options = GateOptions(samples=30)
    record = gate(str(plain.folder), str(store.folder), str(beir_folder), options=options)
    remarks = [one.remark for one in record.evidence if one.remark]
    reason = "NEW was sharpened by queries generated from this corpus, and OLD was not"
    assert remarks
    assert set(remarks) == {reason}
    back = gate(str(store.folder), str(plain.folder), str(beir_folder), options=options)
    assert any("OLD was sharpened" in one.remark for one in back.evidence)


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("other") / "corpus", documents=40, seed=5)


def failed(*arguments: object) -> str:
    done = completed(main, list(map(str, arguments)))
    assert done.returncode == 2
    return done.stderr


def test_the_command_writes_it_and_refuses_what_does_not_fit(
    beir_folder, tiny_cosine, generated, other_corpus, tmp_path
):
    encoding = ("encode", "--dataset", beir_folder, "--model", tiny_cosine, "--output")
    store = tmp_path / "store"
    sharpen = ("--sharpen", generated)
    arguments = (*encoding, store, *sharpen, "--threads", 1)
    done = completed(main, list(map(str, arguments)))
    assert done.returncode == 0
    of_documents = f"{len(texts_by_document(generated))} of 48 documents have generated queries"
    assert of_documents in done.stdout
    record = EmbeddingStore.open(store).record
    assert record.sharpening["sharpen_weight"] == 0.25
    assert record.generated == str(generated.resolve())
    message = failed(*encoding, store)
    options = f"--sharpen {generated.resolve()} --sharpen-weight 0.25"
    assert f"was encoded with {options}: give both, and the same queries" in message
    message = failed(*encoding, store, "--update")
    assert "and new documents have none; generate queries again" in message
    output = tmp_path / "none"
    message = failed(*encoding, output, "--sharpen-weight", 0.2)
    assert "does nothing without --sharpen" in message
    message = failed(*encoding, output, *sharpen, "--sharpen-weight", 1.5)
    assert "choose one above 0 and at most 1" in message
    message = failed(*encoding, output, *sharpen, "--update")
    assert "--sharpen" in message
    message = failed(*encoding, output, "--sharpen", beir_folder)
    assert "make the folder with beir-cocodr generate-queries" in message
    for name in ("empty", "without"):
        shutil.copytree(generated, tmp_path / name)
        (tmp_path / name / "queries.jsonl").unlink()
    (tmp_path / "empty" / "queries.jsonl").touch()
    for name in ("empty", "without"):
        message = failed(*encoding, output, "--sharpen", tmp_path / name)
        assert "queries.jsonl has no queries; generate them again" in message
    of_other = ("encode", "--dataset", other_corpus, "--model", tiny_cosine, "--output", output)
    message = failed(*of_other, *sharpen)
    assert "were generated from another corpus" in message
    assert not (output / "store.json").exists()


def test_what_has_no_use_for_it_refuses_it(
    beir_folder, tiny_cosine, tiny_bert, generated, plain, sharp, tmp_path
):
    with pytest.raises(InputError, match="the fused encoder would encode documents as they are"):
        fuse(str(tiny_cosine), beir_folder, output=tmp_path / "fused", stores=[sharp.folder])
    fuse(str(tiny_cosine), beir_folder, output=tmp_path / "fused", stores=[plain.folder])
    sharpening = Sharpening(GeneratedQueries(generated))
    with pytest.raises(InputError, match="the vectors of a hybrid encoder cannot be sharpened"):
        stored(beir_folder, tmp_path / "fused", tmp_path / "store", sharpening=sharpening)
    encoding = ("encode", "--dataset", beir_folder, "--model", tmp_path / "fused", "--output")
    message = failed(*encoding, tmp_path / "store", "--dense", sharp.folder)
    assert "name a store without --sharpen" in message


def test_a_verdict_without_labels_does_not_ask_it_for_parts_of_documents(
    beir_folder, tiny_cosine, plain, sharp
):
    options = CompareOptions(labels=False, samples=30)
    rows = {}
    for store in (plain, sharp):
        search = SearchOptions(stores=(store.folder,))
        record = compare(
            ["bm25", str(tiny_cosine)], str(beir_folder), options=options, search=search
        )
        [pair] = record.pairs
        rows[store.folder.name] = {one.estimator: one for one in pair.estimates}
    crops = rows["sharp"]["held-out crops"]
    assert not crops.applies
    assert "cannot be queried with held-out crops" in crops.remark
    assert "cannot be queried" not in rows["plain"]["held-out crops"].remark


def test_what_was_learned_from_it_is_refused_for_plain_vectors(
    beir_folder, tiny_cosine, plain, sharp
):
    keys = set()
    for stores in ((), (plain.folder,), (sharp.folder,)):
        searcher = Searcher(beir_folder, str(tiny_cosine), SearchOptions(stores=stores))
        keys.add(key_of(searcher.dense))
    assert len(keys) == 2


def test_a_store_knows_where_its_queries_are_now(
    beir_folder, tiny_cosine, generated, sharp, tmp_path
):
    shutil.copytree(sharp.folder, tmp_path / "store")
    shutil.copytree(generated, tmp_path / "moved")
    sharpening = Sharpening(GeneratedQueries(tmp_path / "moved"), WEIGHT)
    store = stored(beir_folder, tiny_cosine, tmp_path / "store", sharpening=sharpening)
    assert store.record.generated == str((tmp_path / "moved").resolve())
    assert store.record.key == sharp.record.key


def test_an_engine_with_its_vectors_is_sharpened_as_well(
    beir_folder, tiny_cosine, generated, sharp, plain, tmp_path
):
    for store in (plain, sharp):
        hand_over(str(store.folder), beir_folder, output=tmp_path / store.folder.name)
    engines = {name: f"http:{tmp_path / name / 'http.json'}" for name in ("plain", "sharp")}
    documents = load_collection(beir_folder, labels="none").documents
    with Resources.temporary(documents, SearchOptions()) as resources:
        assert resources.sharpened(engines) == {"sharp": str(generated.resolve())}
        sides = [open_side(engine, "NEW", resources) for engine in engines.values()]
    assert [side.sharpened for side in sides] == ["", str(generated.resolve())]


def test_the_page_of_an_evaluation_says_it(beir_folder, tiny_cosine, sharp, tmp_path):
    search = SearchOptions(stores=(sharp.folder,))
    models = {"ours": str(tiny_cosine), "fused": f"hybrid:{tiny_cosine}", "bm25": "bm25"}
    evaluate(models, beir_folder, output=tmp_path / "out", search=search)
    assert completed(main, ["report", str(tmp_path / "out")]).returncode == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The document vectors of ours, fused were sharpened by generated queries." in page
