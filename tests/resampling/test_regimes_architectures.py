"""Every architecture trains and ranks as the host's own similarity does over all documents."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import ir_measures
import pytest
import torch
from conftest import write_beir

from beir_cocodr.data.collection import load_collection
from beir_cocodr.provenance import read_record
from beir_cocodr.resampling.regimes import Recipe, host_architectures
from beir_cocodr.resampling.regimes.architecture_rows import ARCHITECTURES
from beir_cocodr.resampling.regimes.architectures import find_architectures, load_architecture
from beir_cocodr.resampling.regimes.rankers import load_ranker
from beir_cocodr.resampling.regimes.starts import masked_language_model
from beir_cocodr.resampling.regimes.tuned_bm25 import K1, B
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.training.checkpoints import Seal
from beir_cocodr.training.held_out import hold_out
from beir_cocodr.training.options import FinetuneOptions

TOP = 15
SETTINGS = {
    "max_steps": 2,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "warmup": 0,
    "negatives": 2,
    "list_size": 4,
    "mlm_steps": 2,
    "document_length": 64,
    "query_length": 16,
    "rerank": 20,
    "device": "cpu",
    # Four of twenty queries choose between the checkpoints of both steps.
    "held_out": 0.2,
    "select_epochs": 0.15,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("regimes") / "tiny", documents=60, queries=20)


@pytest.fixture(scope="module")
def recipe(tiny_cosine) -> Recipe:
    return Recipe(start=str(tiny_cosine), **SETTINGS)


@pytest.fixture(scope="module")
def models(folder, recipe, tmp_path_factory) -> dict[str, str]:
    """Train the model of each architecture for two steps."""
    output = tmp_path_factory.mktemp("models") / "models"
    shared = output.parent / "shared"
    return {
        result.name: str(result.train(str(folder), output / result.name, recipe, 1, shared))
        for result in find_architectures(["all"])
    }


@pytest.fixture(scope="module")
def texts(folder) -> dict[str, dict[str, str]]:
    """Read documents and test queries, id to text, directly from the files."""
    documents = {}
    for line in (folder / "corpus.jsonl").read_text().splitlines():
        result = json.loads(line)
        documents[result["_id"]] = f"{result['title']} {result['text']}".strip()
    return {"documents": documents, "queries": load_collection(folder, "test").queries}


def ranked(model: str, folder: Path, recipe: Recipe, work: Path, top: int = TOP) -> dict:
    collection = load_collection(folder, "test")
    retriever = load_ranker(model, collection.documents, work, recipe)
    retriever.prepare()
    result = retriever.search(collection.queries, top).results(collection.documents)
    assert retriever.describe()["model"]
    return result


def assert_ranked_by(
    result: dict, scores: torch.Tensor, texts: dict, keep_zero: bool = True
) -> None:
    """Check a ranking against (Q, N) scores of the host, with ties by descending id."""
    ids = list(texts["documents"])
    for query, row in zip(texts["queries"], scores.tolist(), strict=True):
        order = sorted(zip(row, ids, strict=True), reverse=True)
        expected = [(name, score) for score, name in order if keep_zero or score > 0][:TOP]
        assert [name for name, _ in result[query]] == [name for name, _ in expected]
        assert [s for _, s in result[query]] == pytest.approx([s for _, s in expected], abs=1e-4)


@pytest.mark.parametrize("name", ["dense", "dense-hard", "dense-distilled"])
def test_a_dense_model_ranks_as_the_host_does(models, name, folder, recipe, texts, tmp_path):
    from sentence_transformers import SentenceTransformer

    host = SentenceTransformer(models[name], device="cpu")
    queries = host.encode_query(list(texts["queries"].values()), convert_to_tensor=True)
    documents = host.encode_document(list(texts["documents"].values()), convert_to_tensor=True)
    assert_ranked_by(
        ranked(models[name], folder, recipe, tmp_path), host.similarity(queries, documents), texts
    )


def test_splade_ranks_as_the_host_does(models, folder, recipe, texts, tmp_path):
    from sentence_transformers import SparseEncoder

    host = SparseEncoder(models["splade"], device="cpu")
    queries = host.encode_query(list(texts["queries"].values()))
    documents = host.encode_document(list(texts["documents"].values()))
    result = ranked(models["splade"], folder, recipe, tmp_path)
    assert_ranked_by(result, host.similarity(queries, documents).to_dense(), texts, keep_zero=False)


def test_late_interaction_ranks_by_maxsim(models, folder, recipe, texts, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    host = MultiVectorEncoder(models["late-interaction"], device="cpu")
    queries = host.encode_query(list(texts["queries"].values()))
    documents = host.encode_document(list(texts["documents"].values()))
    assert queries[0].shape[1] == 128
    # MaxSim once more by its definition: for every query vector the best document vector.
    best = [[float((q @ d.T).max(dim=1).values.sum()) for d in documents] for q in queries]
    result = ranked(models["late-interaction"], folder, recipe, tmp_path)
    assert_ranked_by(result, torch.tensor(best), texts)
    assert torch.allclose(host.similarity(queries, documents), torch.tensor(best), atol=1e-4)
    by_tokens = ranked(
        models["late-interaction"], folder, replace(recipe, candidates="tokens"), tmp_path
    )
    assert_ranked_by(by_tokens, torch.tensor(best), texts)


def test_late_interaction_ranks_the_same_in_small_chunks(
    models, folder, recipe, tmp_path, monkeypatch
):
    from beir_cocodr.retrieval import late_interaction

    whole = ranked(models["late-interaction"], folder, recipe, tmp_path)
    monkeypatch.setattr(late_interaction, "CHUNK", 7)
    pieces = ranked(models["late-interaction"], folder, recipe, tmp_path)
    assert {q: [d for d, _ in result] for q, result in pieces.items()} == {
        q: [d for d, _ in result] for q, result in whole.items()
    }


def test_cross_encoder_reranks_the_first_stage(models, folder, recipe, texts, tmp_path):
    from sentence_transformers import CrossEncoder

    collection = load_collection(folder, "test")
    host = CrossEncoder(models["cross-encoder"], device="cpu")
    first = BM25(collection.documents).search(collection.queries, 20).results(collection.documents)
    result = ranked(models["cross-encoder"], folder, recipe, tmp_path, top=100)
    moved = 0
    for query, text in collection.queries.items():
        candidates = [name for name, _ in first[query]]
        order = host.rank(text, [texts["documents"][name] for name in candidates])
        # The host ranks by the sigmoid, which orders as the raw scores do.
        assert [name for name, _ in result[query]] == [
            candidates[row["corpus_id"]] for row in order
        ]
        moved += [name for name, _ in result[query]] != candidates
    assert moved


def test_bm25_has_the_best_parameters_of_the_grid_on_training_queries(
    models, folder, recipe, tmp_path
):
    train, test = load_collection(folder, "train"), load_collection(folder, "test")
    chosen = json.loads((Path(models["bm25"]) / "bm25.json").read_text())
    values = {}
    for k1, b in itertools.product(K1, B):
        ranking = (
            BM25(train.documents, k1=k1, b=b).search(train.queries, 60).results(train.documents)
        )
        run = {query: dict(result) for query, result in ranking.items()}
        values[k1, b] = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], train.qrels, run)[
            ir_measures.nDCG @ 10
        ]
    assert values[chosen["k1"], chosen["b"]] == pytest.approx(max(values.values()))
    assert len(set(values.values())) > 1
    own = BM25(test.documents, k1=chosen["k1"], b=chosen["b"]).search(test.queries, TOP)
    assert ranked(models["bm25"], folder, recipe, tmp_path) == own.results(test.documents)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "bm25"])
def test_training_is_recorded_and_changes_the_weights(models, name, recipe, tiny_cosine):
    from safetensors.torch import load_file

    record = json.loads((Path(models[name]) / "training.json").read_text())
    assert record["steps"] == 2
    assert record["seen"][0]["split"] == "train"
    assert record["selection"]["steps"] == [1, 2]
    after = load_file(Path(models[name]) / "model.safetensors")
    before = load_file(tiny_cosine / "model.safetensors")
    layer = "encoder.layer.0.output.dense.weight"
    [moved] = [weight for key, weight in after.items() if key.endswith(layer)]
    [start] = [weight for key, weight in before.items() if key.endswith(layer)]
    assert moved.shape == start.shape
    assert not torch.equal(moved, start)


@pytest.mark.parametrize(
    "name", ["dense", "dense-distilled", "splade", "late-interaction", "cross-encoder"]
)
def test_held_out_queries_choose_the_checkpoint_of_every_architecture(
    models, name, folder, recipe, tmp_path
):
    result = json.loads((Path(models[name]) / "training.json").read_text())["selection"]
    assert result["best"] == result["steps"][result["values"].index(max(result["values"]))]
    _, held = hold_out(load_collection(folder, "train"), None, FinetuneOptions(held_out=0.2), 1)
    assert result["queries"] == len(held.queries) == 4
    # The same from a search of the whole corpus, in which BM25's 100 best documents and the
    # relevant ones count.
    documents = held.documents
    retriever = load_ranker(models[name], documents, tmp_path, replace(recipe, rerank=60))
    every = retriever.search(held.queries, 60).results(documents)
    bm25 = BM25(documents).search(held.queries, 60).results(documents)
    run = {}
    for query, ranked_documents in every.items():
        candidates = {*dict(bm25[query]), *held.qrels[query]}
        run[query] = {
            document: score for document, score in ranked_documents if document in candidates
        }
    measured = ir_measures.calc_aggregate([ir_measures.RR @ 10], held.qrels, run)[
        ir_measures.RR @ 10
    ]
    assert measured == pytest.approx(max(result["values"]))


@pytest.mark.parametrize("name", ["splade", "late-interaction", "cross-encoder"])
def test_held_out_queries_are_not_trained_on(name, folder, recipe, tmp_path, monkeypatch):
    stages = []
    monkeypatch.setattr(
        host_architectures, "run_stage", lambda stage, *rest, **more: stages.append(stage)
    )
    load_architecture(name).train(str(folder), tmp_path / "m", recipe, 1, tmp_path / "shared")
    rest, held = hold_out(load_collection(folder, "train"), None, FinetuneOptions(held_out=0.2), 1)
    trained = {row["query"] for row in stages[0].dataset}
    assert trained == set(rest.queries.values())
    assert not trained & set(held.queries.values())


@pytest.mark.parametrize("name", ["splade", "late-interaction", "cross-encoder"])
def test_interrupted_training_resumes_to_the_same_weights(
    models, name, folder, recipe, tmp_path, monkeypatch
):
    from safetensors.torch import load_file

    [result] = find_architectures([name])
    whole, on_save, saved = Path(models[name]), Seal.on_save, []

    def killed(self, arguments, state, *rest, **more):
        on_save(self, arguments, state, *rest, **more)
        saved.append(state.global_step)
        raise KeyboardInterrupt

    shutil.copytree(whole.parent.parent / "shared", tmp_path / "shared", dirs_exist_ok=True)
    monkeypatch.setattr(Seal, "on_save", killed)
    with pytest.raises(KeyboardInterrupt):
        result.train(str(folder), tmp_path / "m", recipe, 1, tmp_path / "shared")
    monkeypatch.setattr(Seal, "on_save", on_save)
    assert saved == [1]
    result.train(str(folder), tmp_path / "m", recipe, 1, tmp_path / "shared")
    record = read_record(tmp_path / "m")
    assert record.resumed_from == "checkpoint-1"
    assert record.details["selection"] == read_record(whole).details["selection"]
    files = [path.relative_to(whole) for path in whole.rglob("*.safetensors")]
    assert files
    for file in files:
        for key, weight in load_file(whole / file).items():
            assert torch.equal(weight, load_file(tmp_path / "m" / file)[key]), (file, key)


def test_training_is_reproducible_and_finished_training_is_kept(models, folder, recipe, tmp_path):
    from safetensors.torch import load_file

    def weights(model: str | Path) -> torch.Tensor:
        return load_file(Path(model) / "1_Dense" / "model.safetensors")["linear.weight"]

    [late] = find_architectures(["late-interaction"])
    expected = weights(models["late-interaction"])
    same = Path(shutil.copytree(models["late-interaction"], tmp_path / "same"))
    late.train(str(folder), tmp_path / "other", recipe, 2, tmp_path)
    assert not torch.equal(weights(tmp_path / "other"), expected)
    (same / "model.safetensors").unlink()
    late.train(str(folder), same, recipe, 1, tmp_path)  # its record exists, so it is complete
    assert not (same / "model.safetensors").exists()
    (same / "training.json").unlink()
    late.train(str(folder), same, recipe, 1, tmp_path)
    assert torch.equal(weights(same), expected)


def test_a_start_without_a_head_gets_a_tied_one_and_learns(folder, recipe, tmp_path):
    from transformers import AutoModelForMaskedLM

    collection = load_collection(folder, "train")
    source, text_format = masked_language_model(collection, recipe, 1, tmp_path)
    assert (text_format.query_length, text_format.document_length) == (16, 64)
    model = AutoModelForMaskedLM.from_pretrained(source)
    decoder, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    assert decoder.weight.data_ptr() == embeddings.weight.data_ptr()
    assert [path.name for path in tmp_path.iterdir()] == [Path(source).name]
    longer, _ = masked_language_model(
        collection,
        Recipe(start=recipe.start, **SETTINGS | {"mlm_steps": 40}),
        1,
        tmp_path / "longer",
    )
    assert masked_loss(longer, collection) < masked_loss(source, collection)


def masked_loss(source: str, collection) -> float:
    """Return the host's masked language modelling loss with every seventh token masked."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForMaskedLM.from_pretrained(source).eval()
    texts = [document["text"] for document in collection.documents.take(range(30))]
    batch = tokenizer(texts, truncation=True, max_length=64, padding=True, return_tensors="pt")
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, 1:-1:7] = batch["input_ids"][:, 1:-1:7]
    batch["input_ids"][:, 1:-1:7] = tokenizer.mask_token_id
    with torch.no_grad():
        return float(model(**batch, labels=labels).loss)


@pytest.mark.parametrize("name", ["cross-encoder", "late-interaction"])
def test_texts_are_trained_on_as_they_are_searched(name, folder, recipe, tmp_path, monkeypatch):
    """Special tokens are read as text, and texts that are far too long are cut."""
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    lines = (data / "corpus.jsonl").read_text().splitlines()
    long = {"_id": "d4", "title": "", "text": "[SEP] " * 200_000}
    (data / "corpus.jsonl").write_text("\n".join([*lines[:4], json.dumps(long), *lines[5:]]) + "\n")
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td4\t1\nq1\td5\t1\n")
    stages = []
    monkeypatch.setattr(
        host_architectures, "run_stage", lambda stage, *rest, **more: stages.append(stage)
    )
    load_architecture(name).train(
        str(data), tmp_path / "m", replace(recipe, negatives=1), 1, tmp_path / "shared"
    )
    [stage] = stages
    row = stage.dataset[0]
    text = row["documents"][0] if name == "cross-encoder" else row["positive"]
    assert text.startswith("[SEP] [SEP]")
    assert len(text) == 64 * 8_192
    assert stage.model.tokenizer.split_special_tokens


def test_a_start_with_a_head_keeps_it(folder, tiny_mlm, tmp_path):
    recipe = Recipe(start=str(tiny_mlm), **SETTINGS)
    source, _ = masked_language_model(load_collection(folder, "train"), recipe, 1, tmp_path)
    assert source == str(tiny_mlm)
    assert list(tmp_path.iterdir()) == []
