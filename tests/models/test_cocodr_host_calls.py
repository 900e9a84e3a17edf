"""What sentence-transformers' own tests do with a model, done with each of our encoders.

Each call also runs on a plain ``SentenceTransformer`` of the same base. It must succeed there, so
that a failure of ours is one that the host's own class does not have.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from datasets import Dataset
from huggingface_hub import HfApi
from packaging.version import Version
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    util,
)
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from beir_cocodr import COCODR, MRL, FuseOptions, HybridEncoder, fuse
from beir_cocodr.errors import InputError

TEXTS = ["wing flow shock layer pressure", "library", "", "wörds that no corpus has", "drag lift"]
KINDS = ("cocodr", "mrl", "hybrid")

#: Makes a new model of one kind.
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def makers(beir_folder, tiny_cosine, tmp_path_factory) -> dict[str, Make]:
    """Return what makes a model of each kind: a copy of one that is loaded once from one base."""
    folder = tmp_path_factory.mktemp("host-calls")
    options = FuseOptions(lexical="svd+hash", bytes_per_document=2 * (32 + 40))
    fuse(str(tiny_cosine), str(beir_folder), output=folder / "hybrid", options=options)
    MRL(str(tiny_cosine)).save_pretrained(str(folder / "mrl"))
    models = {
        "plain": SentenceTransformer(str(tiny_cosine), device="cpu"),
        "cocodr": COCODR(str(tiny_cosine), device="cpu"),
        "mrl": MRL(str(folder / "mrl"), device="cpu"),
        "hybrid": HybridEncoder(str(folder / "hybrid"), device="cpu"),
    }
    return {kind: partial(copy.deepcopy, model) for kind, model in models.items()}


def pairs() -> Dataset:
    anchors = ["wing flow", "library index", "election treaty", "circuit voltage"]
    positives = ["flow of a wing shock", "the library", "a treaty and an election", "voltage diode"]
    return Dataset.from_dict({"anchor": anchors, "positive": positives})


def same_vectors(one: Any, other: Any, tolerance: float = 0.0) -> None:
    """Assert that two models encode alike."""
    for name in ("encode_query", "encode_document"):
        vectors = getattr(one, name)(TEXTS)
        np.testing.assert_allclose(getattr(other, name)(TEXTS), vectors, atol=tolerance)


def preprocesses_by_row(make: Make, folder: Path) -> None:
    model = make()
    features = model.preprocess(TEXTS)
    assert all(len(value) == len(TEXTS) for value in features.values() if torch.is_tensor(value))
    prompted = model.preprocess(TEXTS, prompt="wing: ")
    assert prompted.keys() >= features.keys()
    assert not torch.equal(prompted["input_ids"], features["input_ids"])
    assert dict(model.preprocess([])) == {}


def encodes_any_shape(make: Make, folder: Path) -> None:
    model = make()
    width = model.get_embedding_dimension()
    vectors = model.encode_document(TEXTS)
    assert (type(vectors), vectors.dtype, vectors.shape) == (
        np.ndarray,
        np.float32,
        (len(TEXTS), width),
    )
    assert model.encode_query(TEXTS[0]).shape == (width,)
    assert model.encode_query(np.array(TEXTS)).shape == (len(TEXTS), width)
    assert len(model.encode_document([])) == 0
    tensors = model.encode_document(TEXTS, convert_to_tensor=True)
    listed = model.encode_document(TEXTS, convert_to_numpy=False)
    assert torch.equal(tensors, torch.stack(listed))
    one_by_one = model.encode_document(TEXTS, batch_size=1)
    np.testing.assert_allclose(one_by_one, vectors, atol=2e-5)
    np.testing.assert_allclose(model.encode_document(TEXTS[::-1])[::-1], vectors, atol=2e-5)


def returns_tokens_and_features(make: Make, folder: Path) -> None:
    model = make()
    tokens = model.encode_document(TEXTS, output_value="token_embeddings")
    assert [part.shape[1] for part in tokens] == [32] * len(TEXTS)
    features = model.encode_document(TEXTS, output_value=None)
    vectors = torch.stack([row["sentence_embedding"] for row in features])
    assert torch.equal(vectors, model.encode_document(TEXTS, convert_to_tensor=True))


def prompts_are_read(make: Make, folder: Path) -> None:
    model = make()
    model.prompts["query"] = "wing: "
    model.prompts["other"] = "library: "
    named = model.encode_query(TEXTS, prompt_name="other")
    assert np.array_equal(named, model.encode_query(TEXTS, prompt="library: "))
    assert not np.array_equal(named, model.encode_query(TEXTS))
    with pytest.raises(ValueError, match="unknown"):
        model.encode_query(TEXTS, prompt_name="unknown")


def similarities_are_the_declared_ones(make: Make, folder: Path) -> None:
    model = make()
    queries = model.encode_query(TEXTS, convert_to_tensor=True)
    documents = model.encode_document(TEXTS, convert_to_tensor=True)
    function = util.cos_sim if model.similarity_fn_name == "cosine" else util.dot_score
    scores = model.similarity(queries, documents)
    assert torch.allclose(scores, function(queries, documents))
    assert torch.allclose(model.similarity_pairwise(queries, documents), scores.diag(), atol=1e-5)
    hits = util.semantic_search(queries, documents, top_k=1, score_function=function)
    assert [hit["corpus_id"] for [hit] in hits] == scores.argmax(dim=1).tolist()


def converts_to_other_types(make: Make, folder: Path) -> None:
    vectors = make().encode_document(TEXTS)
    conversions = {
        "half": lambda model: model.half(),
        "bfloat16": lambda model: model.bfloat16(),
        "to": lambda model: model.to(torch.float16),
        "double": lambda model: model.double(),
    }
    for name, convert in conversions.items():
        converted = convert(make()).encode_document(TEXTS, convert_to_tensor=True).float().numpy()
        scale = np.abs(vectors).max()
        assert np.abs(converted - vectors).max() < 0.05 * scale, name


def moves_and_says_what_it_is(make: Make, folder: Path) -> None:
    model = make()
    assert model.to("cpu").device == torch.device("cpu")
    assert next(model.parameters()).dtype == model.dtype == torch.float32
    assert model.supports("text")
    assert not model.supports("image")
    assert model.max_seq_length == model[0].max_seq_length
    assert "Transformer" in repr(model)
    model.load_state_dict(model.state_dict())
    model.train().encode_query(TEXTS)
    assert not model.training


def is_copied(make: Make, folder: Path) -> None:
    model = make()
    same_vectors(copy.deepcopy(model), model)
    same_vectors(copy.copy(model), model)
    same_vectors(pickle.loads(pickle.dumps(model)), model)


def is_saved_and_loaded(make: Make, folder: Path) -> None:
    model = make()
    model.save_pretrained(str(folder / "a"))
    written = json.loads((folder / "a" / "modules.json").read_text())
    assert len(written) == len(model)
    assert (folder / "a" / "README.md").is_file()
    same_vectors(type(model)(str(folder / "a"), device="cpu"), model)
    by_host = SentenceTransformer(str(folder / "a"), trust_remote_code=True, device="cpu")
    if not isinstance(model, HybridEncoder):
        same_vectors(by_host, model)
    model.save(str(folder / "b"), create_model_card=False, safe_serialization=None)
    assert not (folder / "b" / "README.md").exists()
    model.half().save_pretrained(str(folder / "c"))
    assert type(model)(str(folder / "c"), device="cpu").encode_query(TEXTS).shape[0] == len(TEXTS)


def is_pushed(make: Make, folder: Path) -> None:
    uploads: list[dict[str, Any]] = []

    def upload(self: HfApi, **kwargs: Any) -> Any:
        uploads.append(
            {**kwargs, "files": sorted(p.name for p in Path(kwargs["folder_path"]).iterdir())}
        )
        return type("Commit", (), {"oid": "1", "commit_url": "", "pr_url": ""})()

    with pytest.MonkeyPatch.context() as patch:
        repository = type("Repository", (), {"repo_id": "some/model"})()
        patch.setattr(HfApi, "create_repo", lambda self, repo_id, **kwargs: repository)
        patch.setattr(HfApi, "upload_folder", upload)
        make().push_to_hub("some/model")
    assert uploads[0]["repo_id"] == "some/model"
    assert "modules.json" in uploads[0]["files"]


def trained(make: Make, folder: Path, loss: Callable[[Any], Any]) -> Any:
    model = make()
    options = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=2,
        report_to=[],
        save_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        router_mapping={"anchor": "query", "positive": "document"},
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=options, train_dataset=pairs(), loss=loss(model)
    )
    assert trainer.train().global_step == 2
    return model


def trains_and_describes_itself(make: Make, folder: Path) -> None:
    before = make()
    model = trained(make, folder / "run", losses.MultipleNegativesRankingLoss)
    assert not np.array_equal(model.encode_query(TEXTS), before.encode_query(TEXTS))
    same_vectors(type(model)(str(folder / "run" / "checkpoint-2"), device="cpu"), model, 1e-5)
    model.save_pretrained(str(folder / "saved"))
    card = (folder / "saved" / "README.md").read_text()
    assert "MultipleNegativesRankingLoss" in card
    assert "anchor" in card


def gradients(model: Any, loss: Any) -> torch.Tensor:
    model.zero_grad()
    columns = pairs().to_dict()
    features = []
    for name, task in (("anchor", "query"), ("positive", "document")):
        features.append({**model.preprocess(columns[name], task=task), "task": task})
    loss(features, None).backward()
    parts = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(parts)


def cached_losses_have_the_gradients_of_the_losses(make: Make, folder: Path) -> None:
    """Three mini-batches of 1, 1 and 2 rows, and each row alone, against the whole batch."""
    model = make().eval()
    loss_pairs = {
        "ranking": (
            losses.MultipleNegativesRankingLoss(model),
            losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=1),
        ),
        "ranking by tokens": (
            losses.MultipleNegativesRankingLoss(model),
            losses.CachedMultipleNegativesRankingLoss(model, mini_batch_num_tokens=14),
        ),
        "symmetric": (
            losses.MultipleNegativesSymmetricRankingLoss(model),
            losses.CachedMultipleNegativesSymmetricRankingLoss(model, mini_batch_size=3),
        ),
        "guided": (
            losses.GISTEmbedLoss(model, guide=model),
            losses.CachedGISTEmbedLoss(model, guide=model, mini_batch_size=3),
        ),
    }
    for name, (whole, cached) in loss_pairs.items():
        expected = gradients(model, whole)
        assert expected.abs().max() > 0, name
        difference = (gradients(model, cached) - expected).abs().max()
        assert difference < 1e-4 * expected.abs().max(), name


def is_evaluated(make: Make, folder: Path) -> None:
    evaluator = InformationRetrievalEvaluator(
        {"q": "wing flow"},
        dict(enumerate(TEXTS)),
        {"q": {0}},
        mrr_at_k=[5],
        ndcg_at_k=[5],
        map_at_k=[5],
        precision_recall_at_k=[1],
    )
    assert make().evaluate(evaluator, str(folder))[evaluator.primary_metric] > 0.3


CALLS = (
    preprocesses_by_row,
    encodes_any_shape,
    returns_tokens_and_features,
    prompts_are_read,
    similarities_are_the_declared_ones,
    converts_to_other_types,
    moves_and_says_what_it_is,
    is_copied,
    is_saved_and_loaded,
    is_pushed,
    trains_and_describes_itself,
    cached_losses_have_the_gradients_of_the_losses,
    is_evaluated,
)


#: Calls that fail with the host's own class; none does from sentence-transformers 6.2 on.
IS_OLD = Version(sentence_transformers.__version__) < Version("6.2")
FAULTS_OF_THE_HOST = {"returns_tokens_and_features"} if IS_OLD else set()


def failures(make: Make, folder: Path) -> dict[str, str]:
    """Return the calls that fail, and how."""
    problems = {}
    for call in CALLS:
        name = call.__name__
        (folder / name).mkdir()
        try:
            call(make, folder / name)
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return problems


@pytest.fixture(scope="module")
def failures_of_the_host(makers, tmp_path_factory) -> dict[str, str]:
    """Return the calls that fail with a plain ``SentenceTransformer`` of the same base."""
    return failures(makers["plain"], tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_fails_that_does_not_fail_with_the_hosts_own_class(
    kind, makers, failures_of_the_host, tmp_path, assert_same_figure
):
    ours = failures(makers[kind], tmp_path)
    assert ours.keys() <= failures_of_the_host.keys() <= FAULTS_OF_THE_HOST
    assert_same_figure(
        "sentence-transformers",
        f"calls of its model tests: {kind}",
        "calls that work",
        len(CALLS) - len(failures_of_the_host),
        len(CALLS) - len(ours),
    )


#: Calls of the host to what the refusal names. Two-sided encoders refuse them, others do not.
REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "encode": (lambda model: model.encode(TEXTS), "encode_query or encode_document"),
    "normalize": (
        lambda model: model.encode_query(TEXTS, normalize_embeddings=True),
        "normalize_embeddings would corrupt",
    ),
    "mine": (
        lambda model: util.mine_hard_negatives(pairs(), model, num_negatives=1, verbose=False),
        "beir-cocodr export --model",
    ),
    "truncate": (lambda model: model.encode_query(TEXTS, truncate_dim=8), "truncate_dim"),
    "int8": (
        lambda model: model.encode_document(TEXTS * 25, precision="int8"),
        "encode --precision int8 stores",
    ),
    "ubinary": (
        lambda model: model.encode_document(TEXTS, precision="ubinary"),
        "precision ubinary",
    ),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_would_corrupt_the_vectors_of_a_two_sided_encoder_is_refused(call, makers):
    function, way_out = REFUSED[call]
    for kind in ("plain", "cocodr"):
        function(makers[kind]())
    for kind in ("mrl", "hybrid"):
        with pytest.raises(InputError, match=way_out):
            function(makers[kind]())


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_several_processes_encode_as_one_does(kind, makers, monkeypatch):
    model = makers[kind]()
    # The host starts new interpreters, which import everything first; forked ones have it.
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda method=None: context)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        vectors = model.encode_document(TEXTS, pool=pool, chunk_size=2)
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(vectors, model.encode_document(TEXTS), atol=1e-5)
