from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import sentences
from divergence import negative_kl

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.models.kl import flatten_document, flatten_query
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.mrl_head import VARIANCE_TOKEN, MRLHead

TEXTS = [sentences(np.random.default_rng(i), i % 4, 1 + 2 * i) for i in range(7)]


@pytest.fixture(scope="module")
def model(tiny_bert) -> MRL:
    return MRL(str(tiny_bert))


def ids(model: MRL, texts: list[str], task: str, **kwargs) -> list[list[int]]:
    features = model.preprocess(texts, task=task, **kwargs)
    lengths = features["attention_mask"].sum(dim=1).tolist()
    return [row[:n] for row, n in zip(features["input_ids"].tolist(), lengths, strict=True)]


def hidden_states(folder: Path, model: MRL, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, L, d) of a plain transformer that reads the model's tokens, and the mask."""
    from transformers import AutoModel

    plain = AutoModel.from_pretrained(folder).eval()
    plain.resize_token_embeddings(len(model.tokenizer), mean_resizing=False)
    with torch.no_grad():
        table = plain.get_input_embeddings().weight
        table[-1] = table[model.tokenizer.cls_token_id]
        features = model.preprocess(texts, task="document")
        tokens = {
            name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")
        }
        return plain(**tokens).last_hidden_state, features["attention_mask"]


def test_mean_and_variance_are_the_projections_of_cls_and_var(tiny_bert, model):
    hidden, _ = hidden_states(tiny_bert, model, TEXTS)
    head = model.head
    mean, variance = model.encode_distribution(TEXTS, "document")
    torch.testing.assert_close(
        mean, hidden[:, 0] @ head.mean_projection.weight.T, rtol=1e-4, atol=1e-4
    )
    expected = torch.log(1 + torch.exp(hidden[:, 1] @ head.variance_projection.weight.T))
    torch.testing.assert_close(variance, expected, rtol=1e-4, atol=1e-4)
    assert mean.dtype == variance.dtype == torch.float32
    assert mean.shape == variance.shape == (7, 15)  # the most with 2k + 1 numbers in 32


def test_vectors_are_the_flattened_distribution(model):
    for task, encode, flatten in (
        ("query", model.encode_query, flatten_query),
        ("document", model.encode_document, flatten_document),
    ):
        vectors = encode(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (7, 31) == (7, model.get_embedding_dimension())
        expected = flatten(*model.encode_distribution(TEXTS, task)).numpy()
        np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(model.encode_queries(TEXTS), model.encode_query(TEXTS))
    corpus = [{"title": "", "text": text} for text in TEXTS]
    np.testing.assert_array_equal(
        model.encode_corpus(corpus), model.encode_document(TEXTS, batch_size=128)
    )
    assert model.encode_query("wing").shape == (31,)
    assert model.similarity_fn_name == "dot"


def test_var_stands_right_after_cls_and_counts_in_the_length(tiny_bert):
    model = MRL(str(tiny_bert), query_length=6, document_length=9, document_prompt="the ")
    token = model.tokenizer.convert_tokens_to_ids
    start, end = [token("[CLS]"), token(VARIANCE_TOKEN)], [token("[SEP]")]
    words = "wing flow drag lift heat plate wing flow drag lift"
    assert ids(model, [words, "wing"], "query") == [
        [*start, *(token(word) for word in words.split()[:3]), *end],
        [*start, token("wing"), *end],
    ]
    (cut,) = ids(model, [words], "document", prompt="the ")
    assert cut == [*start, token("the"), *(token(word) for word in words.split()[:5]), *end]
    assert ids(model, [words], "query", max_length=5)[0] == [
        *start,
        token("wing"),
        token("flow"),
        *end,
    ]
    assert model.truncated_share(["wing flow drag", "wing flow drag lift"], "query") == 0.5
    assert model.truncated_share(["wing flow drag lift heat", "wing"], "document") == 0.0


def _families():
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        DistilBertConfig,
        DistilBertModel,
        DistilBertTokenizer,
        MPNetConfig,
        MPNetModel,
        MPNetTokenizer,
        RobertaConfig,
        RobertaModel,
        RobertaTokenizer,
        XLMRobertaConfig,
        XLMRobertaModel,
        XLMRobertaTokenizer,
    )

    words = ["the", "wing", "flow"]
    bert = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    mpnet = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *words])}
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = {t: i for i, t in enumerate(special + sorted(ByteLevel.alphabet()))}
    pieces = [(t, 0.0) for t in special] + [("▁" + word, -1.0) for word in words]
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    tiny = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    return {
        "distilbert": (
            DistilBertTokenizer(vocab=bert),
            DistilBertModel,
            DistilBertConfig(**tiny, vocab_size=8),
        ),
        "mpnet": (MPNetTokenizer(vocab=mpnet), MPNetModel, MPNetConfig(**small, vocab_size=8)),
        # Rows to spare, as where a vocabulary was padded.
        "roberta": (
            RobertaTokenizer(vocab=letters, merges=[]),
            RobertaModel,
            RobertaConfig(**small, vocab_size=300),
        ),
        "xlm-roberta": (
            XLMRobertaTokenizer(vocab=pieces),
            XLMRobertaModel,
            XLMRobertaConfig(**small, vocab_size=9, pad_token_id=1),
        ),
    }


@pytest.mark.parametrize("family", ["distilbert", "mpnet", "roberta", "xlm-roberta"])
def test_every_familys_tokenizer_reads_var_also_after_loading(family, tmp_path):
    tokenizer, kind, config = _families()[family]
    tokenizer.save_pretrained(tmp_path / "start")
    kind(config).save_pretrained(tmp_path / "start")
    before = tokenizer("the wing flow")["input_ids"]
    rows = config.vocab_size
    model = MRL(str(tmp_path / "start"))
    variance_id = model.tokenizer.convert_tokens_to_ids(VARIANCE_TOKEN)
    expected = [before[0], variance_id, *before[1:]]
    assert ids(model, ["the wing flow"], "query") == [expected]
    table = model.transformers_model.get_input_embeddings().weight
    assert len(table) == max(rows, variance_id + 1)
    assert torch.equal(table[variance_id], table[before[0]])
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = MRL.load(tmp_path / "saved")
    assert ids(loaded, ["the wing flow"], "query") == [expected]
    np.testing.assert_array_equal(
        loaded.encode_document(["the wing"]), model.encode_document(["the wing"])
    )


def test_saved_and_loaded_gives_identical_vectors(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = MRL(
        str(tiny_bert), k=11, beta=2.5, query_length=9, document_length=17, title_separator=" | "
    )
    torch.nn.init.normal_(
        model.transformers_model.get_input_embeddings().weight[-1]
    )  # as if trained
    model.save_pretrained(str(tmp_path))
    trusting = SentenceTransformer(str(tmp_path), trust_remote_code=True)
    for loaded in (MRL.load(tmp_path), MRL(str(tmp_path)), trusting):
        np.testing.assert_array_equal(loaded.encode_query(TEXTS), model.encode_query(TEXTS))
        np.testing.assert_array_equal(loaded.encode_document(TEXTS), model.encode_document(TEXTS))
        assert loaded.similarity_fn_name == "dot"
    assert MRL.load(tmp_path).text_format == model.text_format
    assert MRL.load(tmp_path).head.get_config_dict() == model.head.get_config_dict()
    with pytest.raises(ValueError, match="trust_remote_code"):  # what MRL.load is for
        SentenceTransformer(str(tmp_path))


def test_loading_trusts_our_own_head_and_nothing_else(tiny_bert, tmp_path, model):
    """Fails as well when the host moves the private name that MRL.load relies on."""
    model.save_pretrained(str(tmp_path))
    file = tmp_path / "modules.json"
    modules = json.loads(file.read_text())
    assert [module["type"].rsplit(".", 1)[-1] for module in modules] == ["Transformer", "MRLHead"]
    modules.append({"idx": 2, "name": "2", "path": "2_Other", "type": "collections.OrderedDict"})
    file.write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"collections\.OrderedDict"):
        MRL.load(tmp_path)
    for folder in (tiny_bert, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"no saved MRL .*MRL\("):
            MRL.load(folder)


def test_saved_options_stand_but_for_the_formula(tiny_bert, tmp_path, model):
    model.save_pretrained(str(tmp_path))
    assert MRL.load(tmp_path, k=15, pooling="cls").head.k == 15
    for name, value in {"k": 4, "beta": 2.0, "pooling": "mean", "normalize_mean": True}.items():
        with pytest.raises(InputError, match=f"{name}"):
            MRL.load(tmp_path, **{name: value})
    paper = MRL.load(tmp_path, formula="paper")
    assert paper.get_embedding_dimension() == 32
    query, document = (paper.encode_distribution(TEXTS, task) for task in ("query", "document"))
    expected = 2 * negative_kl(
        *(x.double()[:, None] for x in query), *(x.double() for x in document), "paper"
    )
    found = paper.encode_query(TEXTS).astype(np.float64) @ paper.encode_document(TEXTS).T
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_what_would_corrupt_the_vectors_is_refused(tiny_bert, model):
    for refused, call in {
        "encode_query or encode_document": lambda: model.encode(TEXTS),
        "normalize_embeddings": lambda: model.encode_query(TEXTS, normalize_embeddings=True),
        "truncate_dim": lambda: model.encode_document(TEXTS, truncate_dim=8),
        "precision int8": lambda: model.encode_document(TEXTS, precision="int8"),
        "task": lambda: model.encode_distribution(TEXTS, "passage"),
        "router_mapping": lambda: model(dict(model.preprocess(TEXTS))),
        "not by cosine": lambda: MRL(str(tiny_bert), similarity_fn_name="cosine"),
        "truncate_dim would": lambda: MRL(str(tiny_bert), truncate_dim=8),
        "k must be .*at most 32, not 33": lambda: MRL(str(tiny_bert), k=33),
        "k must be at least 1": lambda: MRL(str(tiny_bert), k=0),
        "beta": lambda: MRL(str(tiny_bert), beta=0.0),
        "pooling 'max'": lambda: MRL(str(tiny_bert), pooling="max"),
        "formula 'wrong'": lambda: MRL(str(tiny_bert), formula="wrong"),
        "leaves no room": lambda: MRL(str(tiny_bert), query_length=3),
        "neither a folder": lambda: MRL("/no/such/folder"),
    }.items():
        with pytest.raises(InputError, match=refused) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="truncate_dim"), model.truncate_embeddings(8):
        model.encode_query(TEXTS)


def test_the_default_k_fills_the_start_encoders_width(tmp_path, wordpiece):
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(wordpiece),
        hidden_size=768,
        num_hidden_layers=1,
        num_attention_heads=12,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    model = MRL(str(tmp_path))
    assert model.head.k == 383
    assert model.encode_query(TEXTS[:1]).shape == (1, 767)


def test_w_m_starts_semi_orthogonal_from_its_own_seed(tiny_bert, model):
    weight = model.head.mean_projection.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(15), rtol=0, atol=1e-5)
    torch.manual_seed(77)
    again, other = MRL(str(tiny_bert)), MRL(str(tiny_bert), seed=1)
    np.testing.assert_array_equal(again.encode_query(TEXTS), model.encode_query(TEXTS))
    assert not torch.equal(other.head.mean_projection.weight, weight)


def test_a_mean_pooled_cosine_encoder_keeps_its_pooling_and_begins_as_20_times_its_cosine(
    tiny_cosine,
):
    model = MRL(str(tiny_cosine), k=32)  # as many as the width: nothing is projected away
    assert (model.head.pooling, model.head.normalize_mean, model.similarity_fn_name) == (
        "mean",
        True,
        "dot",
    )
    assert model.text_format.query_length == 48
    hidden, mask = hidden_states(tiny_cosine, model, TEXTS)
    mask = mask.clone()
    mask[:, 1] = 0  # [VAR]
    pooled = F.normalize(
        (hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True), dim=-1
    )
    mean, variance = model.encode_distribution(TEXTS, "document")
    expected = pooled @ model.head.mean_projection.weight.T
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-4)
    same = torch.full_like(mean, math.log(2))  # what every variance is about at first
    kl = negative_kl(mean[:, None], same[:, None], mean, same)
    torch.testing.assert_close(kl, 20 * (pooled @ pooled.T - 1), rtol=1e-3, atol=1e-3)
    assert (variance - same).abs().mean() < 0.2
    assert MRL(str(tiny_cosine), pooling="cls", normalize_mean=False).head.pooling == "cls"


def test_a_start_encoder_whose_mean_would_be_another_is_refused(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    transformer = Transformer(str(tiny_bert))
    SentenceTransformer(modules=[transformer, Pooling(32, "max")]).save_pretrained(
        str(tmp_path / "max")
    )
    with pytest.raises(InputError, match=r"max.*pooling"):
        MRL(str(tmp_path / "max"))
    assert MRL(str(tmp_path / "max"), pooling="mean").head.pooling == "mean"
    modules = [transformer, Pooling(32, "mean"), Dense(32, 8)]
    SentenceTransformer(modules=modules).save_pretrained(str(tmp_path / "dense"))
    with pytest.raises(InputError, match="Transformer, Pooling, Dense"):
        MRL(str(tmp_path / "dense"))


@pytest.mark.parametrize("beta", [0.5, 1.0, 10.0])
def test_softplus_and_floor_with_a_gradient_at_and_below_it(beta):
    head = MRLHead(hidden_size=3, k=3, beta=beta)
    with torch.no_grad():
        head.variance_projection.weight.copy_(torch.eye(3))
    raw = torch.tensor([[-40.0, 0.3, 90.0]], dtype=torch.float64, requires_grad=True)
    tokens = torch.stack([torch.zeros_like(raw), raw], dim=1)  # (1, 2, 3): [CLS], [VAR]
    _, variance = head.distribution(
        {"token_embeddings": tokens, "attention_mask": torch.ones(1, 2)}
    )
    softplus = math.log1p(math.exp(beta * 0.3)) / beta
    expected = [[max(1e-4, math.exp(-40 * beta) / beta), softplus, 90.0]]
    torch.testing.assert_close(
        variance, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )
    variance.sum().backward()
    torch.testing.assert_close(raw.grad, torch.sigmoid(beta * raw.detach()), rtol=1e-9, atol=1e-30)
    assert (raw.grad > 0).all()


def test_autocast_leaves_the_head_in_full_precision(model):
    features = {
        "token_embeddings": torch.randn(2, 4, 32),
        "attention_mask": torch.ones(2, 4),
        "task": "query",
    }
    with torch.autocast("cpu", torch.bfloat16):
        inside = model.head(dict(features))["sentence_embedding"]
    assert torch.equal(inside, model.head(dict(features))["sentence_embedding"])


def test_beirs_exact_search_by_dot_product_ranks_as_brute_force_kl(model):
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    rng = np.random.default_rng(3)
    corpus = {f"d{i}": {"title": "", "text": sentences(rng, i % 4, 1 + i % 3)} for i in range(30)}
    queries = {f"q{i}": sentences(rng, i % 4, 1, 5) for i in range(6)}
    search = DenseRetrievalExactSearch(model, batch_size=8, show_progress_bar=False)
    found = search.search(corpus, queries, 30, "dot")
    query = (
        x.double()[:, None] for x in model.encode_distribution(list(queries.values()), "query")
    )
    texts = [model.text_format.document(document) for document in corpus.values()]
    document = (x.double() for x in model.encode_distribution(texts, "document"))
    kl = negative_kl(*query, *document)  # (Q, N)
    for row, name in enumerate(queries):
        expected = [f"d{i}" for i in kl[row].argsort(descending=True).tolist()]
        assert sorted(found[name], key=found[name].get, reverse=True) == expected


def test_it_is_searched_and_formatted_like_any_encoder_of_ours(model, beir_folder, tmp_path):
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.retrieval.vectors.dense import Dense

    collection = load_collection(str(beir_folder), labels="none")
    dense = Dense(model, collection.documents, tmp_path / "vectors.npy")
    ranking = dense.search({"q": "wing flow"}, 5)
    assert isinstance(model, COCODR)
    assert dense.embeddings.dimensions == 31
    assert np.isfinite(ranking.scores).all()


def test_prompts_count_in_both_kinds_of_output(tiny_bert):
    model = MRL(str(tiny_bert), query_prompt="find ", document_prompt="the ")
    expected = MRL(str(tiny_bert)).encode_query(["find wing"])
    np.testing.assert_array_equal(model.encode_query(["wing"]), expected)
    found = flatten_query(*model.encode_distribution(["wing"], "query"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    found = flatten_document(*model.encode_distribution(["wing"], "document"))
    np.testing.assert_allclose(found, model.encode_document(["wing"]), rtol=1e-5, atol=1e-5)


def test_several_texts_none_or_one(model):
    mean, variance = model.encode_distribution([], "query")
    assert mean.shape == variance.shape == (0, 15)
    both = model.encode_distribution(TEXTS, "query", batch_size=2)
    one = model.encode_distribution(TEXTS[3:4], "query")
    for all_of_them, single in zip(both, one, strict=True):
        torch.testing.assert_close(all_of_them[3:4], single, rtol=1e-4, atol=1e-4)


def test_the_start_does_not_depend_on_the_number_of_threads():
    starts, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        head = MRLHead(hidden_size=384, k=191, pooling="cls", normalize_mean=True)
        head.initialize(3)
        starts.append(head.state_dict())
    torch.set_num_threads(before)
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
