"""Query embeddings: those of the host, encoded once, and never those of another encoder."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.resampling.similarity import QueryEncoder, query_embeddings
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore

QUERIES = {
    "q1": "wing flow",
    "q2": "library index of the journal",
    "q3": "treaty",
    "q4": "diode noise",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "query_embeddings"


def calls(encoder, monkeypatch) -> list[int]:
    """Record how many texts each later call encodes."""
    made, encode = [], encoder.encode

    def counted(texts):
        made.append(len(texts))
        return encode(texts)

    monkeypatch.setattr(encoder, "encode", counted)
    return made


def test_vectors_are_those_of_the_host_at_length_one(tiny_bert, tiny_cosine):
    from sentence_transformers import SentenceTransformer

    host = SentenceTransformer(str(tiny_cosine)).encode_query(list(QUERIES.values()))
    result = query_embeddings(QueryEncoder(str(tiny_cosine)), QUERIES).load()
    np.testing.assert_allclose(result, host, atol=1e-6)
    # A model that compares by dot product is taken by its directions.
    dot = QueryEncoder(str(tiny_bert))
    assert dot.model.similarity_fn_name == "dot"
    raw = dot.model.encode_query(list(QUERIES.values()))
    assert np.linalg.norm(raw, axis=1).min() > 1.5
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(query_embeddings(dot, QUERIES).load(), expected, atol=1e-6)


def test_an_mrl_is_used_by_its_means(tiny_cosine, tmp_path):
    model = MRL(str(tiny_cosine), k=8)
    model.save_pretrained(str(tmp_path / "mrl"))
    encoder = QueryEncoder(str(tmp_path / "mrl"), SearchOptions(batch_size=2))
    means, _ = model.encode_distribution(list(QUERIES.values()), "query")
    expected = means / means.norm(dim=1, keepdim=True)
    result = query_embeddings(encoder, QUERIES)
    assert result.dimensions == 8
    np.testing.assert_allclose(result.load(), expected.cpu().numpy(), atol=1e-6)
    assert encoder.describe().vectors == "means"


def test_queries_are_encoded_in_chunks_and_only_once(tiny_cosine, own_cache, monkeypatch):
    from beir_cocodr.resampling import similarity as embedding_cache

    monkeypatch.setattr(embedding_cache, "SHARD_SIZE", 3)
    encoder = QueryEncoder(str(tiny_cosine))
    made = calls(encoder, monkeypatch)
    first = query_embeddings(encoder, QUERIES)
    assert made == [3, 1]
    # Ids may change: rows are those of the texts.
    again = query_embeddings(encoder, dict(zip("abcd", QUERIES.values(), strict=True)))
    assert made == [3, 1]
    assert again.folder == first.folder
    assert [path.name for path in own_cache.iterdir()] == [first.folder.name]


def test_another_text_encoder_or_format_has_another_key(tiny_cosine, tmp_path, own_cache):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    def key(model: str, queries=QUERIES, **options):
        return query_embeddings(
            QueryEncoder(model, SearchOptions(EncoderOptions(**options))), queries
        ).folder.name

    keys = [key(str(tiny_cosine))]
    keys.append(key(str(tiny_cosine), QUERIES | {"q4": "diode noises"}))
    keys.append(key(str(tiny_cosine), dict(reversed(QUERIES.items()))))
    keys.append(key(str(tiny_cosine), query_length=5))
    keys.append(key(str(tiny_cosine), query_prompt="query: "))
    # Pooling has no weights of its own.
    host = SentenceTransformer(str(tiny_cosine))
    modules = [host[0], Pooling(32, "max"), host[2]]
    SentenceTransformer(modules=modules, similarity_fn_name="cosine").save_pretrained(
        str(tmp_path / "max")
    )
    keys.append(key(str(tmp_path / "max")))
    trained = SentenceTransformer(str(tiny_cosine))
    next(trained.parameters()).data += 1e-3
    trained.save_pretrained(str(tmp_path / "trained"))
    keys.append(key(str(tmp_path / "trained")))
    assert len(set(keys)) == len(keys) == len(list(own_cache.iterdir()))
    # The place of a model is not part of it.
    shutil.copytree(tiny_cosine, tmp_path / "copy")
    assert key(str(tmp_path / "copy")) == keys[0]


def test_another_dimension_or_number_than_the_cache_is_refused(tiny_cosine, tmp_path):
    encoder = QueryEncoder(str(tiny_cosine))
    result = query_embeddings(encoder, QUERIES)
    for change, expected in (
        ({"dimensions": 7}, "embeddings of 7 dimensions, the encoder .* gives 32"),
        ({"documents": 3}, "3 embeddings .* for 4 queries.*: delete"),
    ):
        shutil.rmtree(result.folder)
        result.folder.mkdir()
        record = dataclasses.replace(result.record, **change)
        store = EmbeddingStore(result.folder, record)
        store.write_record()
        for shard in store.shards:
            shard.write(pack(np.zeros((len(shard), record.dimensions), np.float32), "fp32"))
        with pytest.raises(InputError, match=expected):
            query_embeddings(encoder, QUERIES)


def test_a_damaged_store_is_made_anew(tiny_cosine, caplog):
    encoder = QueryEncoder(str(tiny_cosine))
    result = query_embeddings(encoder, QUERIES)
    expected = result.load()
    shard = result.shards[0].path
    shard.write_bytes(shard.read_bytes()[:-5])
    np.testing.assert_array_equal(query_embeddings(encoder, QUERIES).load(), expected)
    assert "encoded again" in caplog.text
    shutil.rmtree(result.folder)
    result.folder.mkdir()
    np.testing.assert_array_equal(query_embeddings(encoder, QUERIES).load(), expected)


def test_interrupted_encoding_leaves_nothing(tiny_cosine, own_cache, monkeypatch):
    from beir_cocodr.resampling import similarity as embedding_cache

    monkeypatch.setattr(embedding_cache, "SHARD_SIZE", 2)
    encoder = QueryEncoder(str(tiny_cosine))
    encode = encoder.encode

    def broken(texts):
        if texts[0] == QUERIES["q3"]:
            raise KeyboardInterrupt
        return encode(texts)

    monkeypatch.setattr(encoder, "encode", broken)
    with pytest.raises(KeyboardInterrupt):
        query_embeddings(encoder, QUERIES)
    assert list(own_cache.iterdir()) == []


def test_an_embedding_of_nan_names_the_query_and_is_never_cached(
    tiny_cosine, own_cache, monkeypatch
):
    encoder = QueryEncoder(str(tiny_cosine))
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts: encode(texts) * [[1], [1], [np.nan], [1]])
    with pytest.raises(InputError, match=r"NaN .*'q3'"):
        query_embeddings(encoder, QUERIES)
    assert list(own_cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tiny_cosine, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="BEIR_COCODR_CACHE"):
        query_embeddings(QueryEncoder(str(tiny_cosine)), QUERIES)
