"""The first tries of a user of sentence-transformers or ir-measures.

Each test is a script: the calls work, or are refused by one line that names the argument and its
type.
"""

import warnings
from dataclasses import fields
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, R, nDCG
from sentence_transformers import SentenceTransformer

import beir_cocodr
from beir_cocodr import (
    COCODR,
    AdaptOptions,
    CompareOptions,
    DistillOptions,
    EncoderOptions,
    EvaluateOptions,
    ExactSearch,
    FinetuneOptions,
    FuseOptions,
    GateOptions,
    ModelSpec,
    PretrainOptions,
    Searcher,
    SearchOptions,
    adapt,
    compare,
    distill,
    evaluate,
    finetune,
    fuse,
    gate,
    load_collection,
    load_encoder,
    pretrain,
)
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store.store import EmbeddingStore

CORPUS = {
    "sort": {"title": "sort", "text": "Return a sorted copy of an array."},
    "histogram": {"title": "", "text": "Draw a histogram of values."},
    "mean": {"title": "", "text": "Compute the mean of an array."},
}
QUERIES = {"q1": "a sorted array", "q2": "draw values"}
QRELS = {"q1": {"sort": 1}, "q2": {"histogram": 1}}
TRIPLE = (CORPUS, QUERIES, QRELS)


class WordCount:
    """A retriever of a user's own: the number of shared words."""

    def search(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        results = {}
        for query, text in queries.items():
            shared = {
                id: float(len({*text.lower().split()} & {*document["text"].lower().split()}))
                for id, document in CORPUS.items()
            }
            results[query] = dict(sorted(shared.items(), key=lambda hit: -hit[1])[:top_k])
        return results


class Letters:
    """An encoder of a user's own, with nothing but sentence-transformers' ``encode``."""

    def encode(self, texts, batch_size=32):
        alphabet = "abcdefghijklmnopqrstuvwxyz"
        counts = [[text.lower().count(letter) for letter in alphabet] for text in texts]
        return np.array(counts, dtype=np.float32) + 0.01


@pytest.fixture
def model(tiny_cosine):
    return SentenceTransformer(str(tiny_cosine), device="cpu")


def test_output_is_a_string(beir_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate("bm25", str(beir_folder), output="judged")
    assert Path("judged/results.json").is_file()


def test_without_an_output_nothing_is_written(beir_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = evaluate("bm25", beir_folder)
    assert 0 < record.models["bm25"].measures["nDCG@10"] <= 1
    assert list(tmp_path.iterdir()) == []


def test_measures_of_ir_measures(beir_folder):
    record = evaluate(["bm25"], beir_folder, measures=[nDCG @ 10, R @ 20, "AP"])
    assert record.measures == ["nDCG@10", "R@20", "AP"]
    assert evaluate("bm25", beir_folder, measures=AP).measures == ["AP"]


def test_one_model_is_a_string(beir_folder):
    assert list(evaluate("bm25", beir_folder).models) == ["bm25"]


def test_a_loaded_model_is_evaluated(beir_folder, tiny_cosine, model):
    by_name = evaluate(str(tiny_cosine), beir_folder).models[str(tiny_cosine)]
    loaded = evaluate(model, beir_folder).models["SentenceTransformer"]
    assert loaded.measures == by_name.measures
    own = evaluate(load_encoder(tiny_cosine), beir_folder).models["COCODR"]
    assert own.measures == by_name.measures


def test_models_have_the_labels_of_a_mapping(model):
    record = evaluate({"mine": model, "words": "bm25"}, TRIPLE)
    assert list(record.models) == ["mine", "words"]


def test_a_corpus_in_memory_is_evaluated():
    record = evaluate("bm25", TRIPLE, measures="nDCG@10")
    assert record.models["bm25"].measures == {"nDCG@10": 1.0}


def test_any_object_with_encode(model):
    record = evaluate(Letters(), TRIPLE, measures="R@3")
    assert record.models["Letters"].measures == {"R@3": 1.0}


def test_any_object_that_searches():
    record = evaluate([WordCount(), "bm25"], TRIPLE, measures="nDCG@10")
    assert record.models["WordCount"].measures == {"nDCG@10": 1.0}
    assert isinstance(WordCount(), beir_cocodr.Retriever)


def test_a_run_is_a_model(beir_folder, tmp_path):
    run = {"q1": {"sort": 2.0, "mean": 1.0}, "q2": {"mean": 2.0, "histogram": 1.0}}
    record = evaluate({"run": run, "words": "bm25"}, TRIPLE, measures="RR@10")
    assert record.models["run"].measures == {"RR@10": 0.75}
    evaluate("bm25", beir_folder, output=tmp_path)
    again = evaluate(tmp_path / "bm25.run", beir_folder)
    assert again.comparisons == []
    [figures] = again.models.values()
    assert figures.measures == evaluate("bm25", beir_folder).models["bm25"].measures


def test_a_fusion_of_a_loaded_model(model, beir_folder, tiny_cosine):
    fused = evaluate(ModelSpec.of("hybrid", model), beir_folder).models
    by_name = evaluate(f"hybrid:{tiny_cosine}", beir_folder).models
    assert fused["hybrid:SentenceTransformer"].measures == (
        by_name[f"hybrid:{tiny_cosine}"].measures
    )


def test_compare_takes_objects(model):
    labels = {"mine": model, "words": "bm25", "counted": WordCount()}
    record = compare(labels, TRIPLE, measures=[nDCG @ 10])
    assert [(pair.a, pair.b) for pair in record.pairs] == [
        ("mine", "words"),
        ("mine", "counted"),
        ("words", "counted"),
    ]
    assert set(record.ranking) == set(labels)


def test_records_are_frames(beir_folder, model):
    record = evaluate({"words": "bm25", "mine": model}, beir_folder)
    frame = record.to_frame()
    assert list(frame.index) == ["words", "mine"]
    assert list(frame.columns) == ["nDCG@10", "R@100"]
    assert frame.loc["words", "nDCG@10"] == record.models["words"].measures["nDCG@10"]
    assert "<table" in record._repr_html_()
    assert record.to_json()["models"]["words"]["measures"] == record.models["words"].measures
    pairs = compare({"words": "bm25", "mine": model}, beir_folder).to_frame()
    assert list(pairs.columns) == ["a", "b", "measure", "verdict", "difference", "low", "high"]
    assert set(pairs.b) == {"mine"}


def test_a_comparison_without_labels_takes_objects(model, beir_folder):
    options = CompareOptions(labels=False, samples=10)
    record = compare(
        {"mine": model, "words": "bm25"}, load_collection(beir_folder), options=options
    )
    [pair] = record.pairs
    assert pair.verdict in ("better", "worse", "no difference", "cannot tell")
    assert list(record.to_frame().measure) == ["nDCG@10"]
    record = compare({"counted": WordCount(), "words": "bm25"}, TRIPLE, options=options)
    assert record.pairs[0].a == "counted"


def test_a_searcher_takes_a_dict_and_a_model(model):
    assert Searcher(CORPUS).search("sorted array")[0].id == "sort"
    hits = Searcher(CORPUS, model).search("sorted array", top_k=2)
    assert len(hits) == 2


def test_exact_search_takes_a_sentence_transformer(model):
    results = ExactSearch(model, show_progress_bar=False).search(CORPUS, QUERIES, 2)
    assert {query: len(hits) for query, hits in results.items()} == {"q1": 2, "q2": 2}
    by_name = ExactSearch("minilm", show_progress_bar=False).search(CORPUS, QUERIES, 1)
    assert list(by_name["q1"]) == ["sort"]


def test_an_encoder_is_loaded_by_its_alias():
    assert COCODR("minilm").encode_query(["a"]).shape == (1, 384)


def test_former_calls_are_told_the_new_one(beir_folder, tmp_path):
    with pytest.raises(TypeError, match=r"write evaluate\(\['bm25'\], .*output="):
        evaluate(str(beir_folder), ["bm25"], tmp_path)
    with pytest.raises(TypeError, match=r"write evaluate\(\['bm25'\], "):
        evaluate(str(beir_folder), ["bm25"])
    with pytest.raises(TypeError, match=r"write compare\(.*output="):
        compare(["bm25", "minilm"], str(beir_folder), tmp_path)
    with pytest.warns(DeprecationWarning, match=r"queries is now options\.queries"):
        record = evaluate("bm25", beir_folder, queries=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is now options")
        same = evaluate("bm25", beir_folder, options=EvaluateOptions(queries=3))
    assert record.models["bm25"].measures == same.models["bm25"].measures


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate(3, TRIPLE), "models is an int; give a name"),
        (lambda: evaluate([None], TRIPLE), "models is None; give a name"),
        (lambda: evaluate("bm25", [1, 2]), "dataset is a list of int; give a name"),
        (lambda: evaluate("bm25", TRIPLE, measures=10), "measures is an int; give names"),
        (lambda: evaluate("bm25", TRIPLE, measures=[10]), "measures holds an int; give names"),
        (lambda: evaluate([WordCount(), WordCount()], TRIPLE), "two models are called 'WordCount'"),
        (lambda: evaluate("bm25", CORPUS), "dict of 3 documents.*no labels"),
        (lambda: Searcher(CORPUS, 3.5), "model is a float; give a name"),
        (lambda: Searcher(None), "dataset is None; give a name"),
        (lambda: load_encoder(["minilm"]), "model is a list of str; give a name"),
        (lambda: load_encoder(object()), "model is an object; give a name"),
        (lambda: ExactSearch(object()), "model is an object; give an object with encode"),
        (lambda: ModelSpec.of("mixed", object()), "unknown fusion 'mixed'; choose one of hybrid"),
        (lambda: ModelSpec.parse(b"bm25"), "the model is a bytes; give the name"),
        (lambda: evaluate("bm25", TRIPLE, options=3), "options is an int; .* EvaluateOptions"),
        (lambda: evaluate("bm25", TRIPLE, search={}), "search is a dict; .* SearchOptions"),
        (lambda: compare(["bm25"], TRIPLE, options=[]), "options is a list; .* CompareOptions"),
        (lambda: gate("bm25", "bm25", TRIPLE, options=""), "options is a str; .* GateOptions"),
        (lambda: load_encoder("minilm", 7), "options is an int; .* EncoderOptions"),
        (lambda: fuse("minilm", TRIPLE, output="o", options=0), "options is an int; .* FuseOpt"),
        (lambda: fuse("minilm", TRIPLE, output="o", stores=-3), "stores is an int; give a list"),
        (lambda: fuse("minilm", TRIPLE, output="o", stores=[None]), "a folder of stores is None"),
        (lambda: pretrain("m", TRIPLE, output="o", options=1), "options is an int; .* PretrainO"),
        (lambda: pretrain("m", TRIPLE, output="o", queries=dict), "queries is a type; give a fol"),
        (lambda: pretrain("m", [], output="o"), "dataset is an empty list; name at least one"),
        (lambda: finetune("m", TRIPLE, output="o", options=1), "options is an int; .* FinetuneO"),
        (
            lambda: distill("m", TRIPLE, teacher="bm25", output="o", options=1),
            "options is an int; .* DistillOptions",
        ),
        (lambda: adapt("m", TRIPLE, output="o", options=1), "options is an int; .* AdaptOptions"),
        (
            lambda: AdaptOptions(stages="coco", stage_options={"other": 1}).chosen(),
            "stage_options has 'other', which is not among the stages coco",
        ),
        (lambda: AdaptOptions(stages=3).chosen(), "stages is an int; give names of stages"),
        (lambda: AdaptOptions(stages=[3]).chosen(), "a name in stages is an int; give a text"),
        (
            lambda: AdaptOptions(stages="a" * 5000).chosen(),
            "unknown name in stages 'aaa.*choose one of",
        ),
        (
            lambda: AdaptOptions(stages="coco", stage_options={"coco": 1}).chosen(),
            r"stage_options\['coco'\] is an int; .* PretrainOptions",
        ),
        (lambda: AdaptOptions(stage_options=3), "stage_options is 3; it must be Mapping"),
        (lambda: AdaptOptions(queries={"a": "sort"}), "queries is {.*; it must be int"),
        (lambda: AdaptOptions(queries=0), "queries must be at least 1"),
        (lambda: EvaluateOptions(overwrite="no"), "overwrite is 'no'; it must be bool"),
        (lambda: CompareOptions(labels="no"), "labels is 'no'; it must be bool"),
        (lambda: CompareOptions(judgements=3), "judgements is 3; it must be str or Path"),
        (lambda: EmbeddingStore.open("a" * 5000), "store 'aaa.*is too long"),
        (
            lambda: pretrain(Letters(), CORPUS, output="o", resume="no"),
            "resume is a str; give",
        ),
        (lambda: finetune(Letters(), TRIPLE, output="o", resume=1), "resume is an int; give"),
        (
            lambda: distill(Letters(), TRIPLE, teacher="bm25", output="o", resume=""),
            "resume is a str; give",
        ),
        (lambda: distill("minilm", TRIPLE, teacher="", output="o"), "the teacher has no name"),
        (lambda: adapt(Letters(), CORPUS, output="o", resume=[]), "resume is a list; give"),
        (lambda: fuse(Letters(), CORPUS, output="o", resume=0), "resume is an int; give"),
        (lambda: load_collection({"a": {"b": 1}}, labels="none"), "has neither title nor text"),
        (lambda: FinetuneOptions(mining=3), "mining is an int; .* MiningOptions"),
        (lambda: FinetuneOptions(warmup=1.5), "warmup is 1.5; give a share .* or a whole number"),
        (lambda: gate("a" * 5000, "bm25", TRIPLE), "old 'aaa.*is too long"),
        (lambda: gate("bm25", "bm25", TRIPLE, output=[]), "output is a list; give the path"),
        (lambda: PretrainOptions(objective=[None]), "objective.* is|unknown objective"),
        (lambda: Searcher(CORPUS, options=1), "options is an int; .* SearchOptions"),
        (lambda: Searcher(CORPUS, snippet_length=1.5), "snippet_length is a float; give an int"),
        (lambda: Searcher(CORPUS).search(None), "'query' is None; give a text"),
        (lambda: Searcher(CORPUS).search("sort", 1.5), "top_k is a float; give an integer"),
        (lambda: Searcher(CORPUS).search("sort", True), "top_k is a bool; give an integer"),
        (lambda: Searcher(CORPUS).search_all(["sort"]), "queries is a list of str; give a map"),
        (lambda: Searcher(CORPUS).search_within("sort", []), "keeps is a list; give a function"),
        (lambda: Searcher(CORPUS).full_text({}), "has no document {}; give the id of a hit"),
        (lambda: Searcher(CORPUS).full_text("a" * 9), "has no document 'aaaaaaaaa'; give the id"),
        (lambda: Searcher(CORPUS).full_text("a" * 5000), r"has no document 'a{10,100}\.\.\.; give"),
        (lambda: ExactSearch(Letters(), batch_size=""), "batch_size is a str; give an integer"),
        (lambda: ExactSearch(Letters(), store=7), "store is an int; give the path of a folder"),
        (lambda: ExactSearch(Letters(), store="a" * 5000), "store 'aaa.*is too long"),
        (
            lambda: ExactSearch(Letters()).encode(CORPUS, QUERIES, "o", overwrite="no"),
            "overwrite is a str; give True or False",
        ),
        (lambda: ExactSearch(Letters(), store=""), "store is an empty string; name a folder"),
        (
            lambda: ExactSearch(Letters()).search(CORPUS, QUERIES, 1.5, "dot"),
            "top_k is a float; give an integer",
        ),
        (
            lambda: ExactSearch(Letters()).search(CORPUS, ["sort"], 1, "dot"),
            "queries is a list of str; give a mapping",
        ),
        (
            lambda: ExactSearch(Letters()).search(7, QUERIES, 1, "dot"),
            "corpus is an int; give a mapping",
        ),
        (
            lambda: ExactSearch(Letters()).search({"a": None}, QUERIES, 1, "dot"),
            "a document of the corpus is None; give a mapping",
        ),
        (
            lambda: ExactSearch(Letters()).encode(CORPUS, QUERIES, 1.5),
            "output is a float; give the path",
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_by_argument_and_type(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda encoder: encoder.encode_queries(3), "queries is an int; give a list of texts"),
        (lambda encoder: encoder.encode_queries(["a", None]), "a query is None; give a text"),
        (lambda encoder: encoder.encode_queries(["\ud800"]), "query .*; write whole characters"),
        (lambda encoder: encoder.encode_queries(["a"], 1.5), "batch_size is a float; give an int"),
        (lambda encoder: encoder.encode_corpus(True), "corpus is a bool; give a list of docum"),
        (
            lambda encoder: encoder.encode_corpus({"d1": {"title": "", "text": "wing"}}),
            "corpus is a dict of dict and has neither 'title' nor 'text'; give a list",
        ),
        (lambda encoder: encoder.encode_corpus(["a"]), "a document of the corpus is a str; give"),
    ],
)
def test_an_encoder_names_what_it_cannot_encode(tiny_cosine, call, message):
    with pytest.raises(InputError, match=message):
        call(load_encoder(str(tiny_cosine)))


def test_one_text_is_one_query(tiny_cosine):
    encoder = load_encoder(str(tiny_cosine))
    assert np.array_equal(
        encoder.encode_queries("a sorted array"), encoder.encode_queries(["a sorted array"])
    )


#: Fields of options of which only their readers can judge.
READ_LATER = {"stages", "measures", "judge", "stores", "pooling", "targets"}


@pytest.mark.parametrize(
    "kind",
    [
        AdaptOptions,
        CompareOptions,
        DistillOptions,
        EncoderOptions,
        EvaluateOptions,
        FinetuneOptions,
        FuseOptions,
        GateOptions,
        PretrainOptions,
        SearchOptions,
    ],
)
def test_options_name_every_field_of_a_wrong_type(kind):
    for known in fields(kind):
        if known.name not in READ_LATER:
            with pytest.raises(InputError, match=known.name):
                kind(**{known.name: object()})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"query_length": "8"}, "query_length is a str; give an integer"),
        ({"model_name_or_path": None}, "the model is None; give a name or a folder"),
        ({"title_separator": 3}, "title_separator is an int; give a text"),
    ],
)
def test_an_encoder_names_settings_of_a_wrong_type(tiny_cosine, setting, message):
    with pytest.raises(InputError, match=message):
        COCODR(**{"model_name_or_path": str(tiny_cosine)} | setting)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([("q1", "sort")], r"returned a list of tuple; return \{query id"),
        ({"q1": ["sort"]}, "returned a list of str for query 'q1'"),
        (
            {"q1": {"elsewhere": 1.0}},
            "returned document 'elsewhere' for query 'q1', which is not in the",
        ),
        ({"q1": {"sort": float("nan")}}, "returned document 'sort' for query 'q1', the score nan"),
        ({"q1": {"sort": 1e39}}, r"returned document 'sort' for query 'q1', the score 1e\+39"),
        ({"q1": {"sort": None}}, "returned document 'sort' for query 'q1', the score None"),
        ({"q1": {"sort": [1.0]}}, r"returned document 'sort' for query 'q1', the score \[1\.0\]"),
        (
            {"q1": {"histogram": 1.0, "sort": "high"}},
            "returned document 'sort' for query 'q1', the score 'high'; return documents of the",
        ),
    ],
)
def test_what_a_retriever_must_not_return_is_named(returned, message):
    class Wrong:
        def search(self, queries, top_k):
            return returned

    with pytest.raises(InputError, match=rf"Wrong\.search {message}"):
        evaluate(Wrong(), TRIPLE)
    with pytest.raises(InputError, match=rf"Wrong\.search {message}"):
        compare({"wrong": Wrong(), "bm25": "bm25"}, TRIPLE)


def test_measures_are_those_of_ir_measures(model):
    record = evaluate("bm25", TRIPLE, measures=[nDCG @ 10])
    run = {"q1": {"sort": 1.0}, "q2": {"histogram": 1.0}}
    assert record.models["bm25"].measures["nDCG@10"] == pytest.approx(
        ir_measures.calc_aggregate([nDCG @ 10], QRELS, run)[nDCG @ 10]
    )


def test_training_takes_objects(tiny_mlm, tmp_path):
    """The base is a loaded model, the corpus a dict, the output a string."""
    base = SentenceTransformer(str(tiny_mlm), device="cpu")
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    output = str(tmp_path / "pretrained")
    record = pretrain(
        base,
        CORPUS,
        output=output,
        options=PretrainOptions(max_steps=1, batch_size=2, span_tokens=3),
    )
    assert record.stage == "coco"
    assert all((weight == before[name]).all() for name, weight in base.state_dict().items())
    trained = load_encoder(output)
    options = FinetuneOptions(max_steps=1, batch_size=2, negatives=0)
    finetune(trained, TRIPLE, output=str(tmp_path / "tuned"), options=options)
    options = DistillOptions(max_steps=1, batch_size=2, held_out=0, positives=1, m_bm25=1, m_hard=0)
    distill(trained, TRIPLE, teacher="bm25", output=str(tmp_path / "taught"), options=options)
    assert {path.name for path in tmp_path.iterdir()} >= {"pretrained", "tuned", "taught"}


def test_an_adaptation_takes_objects(tiny_mlm, tmp_path):
    base = SentenceTransformer(str(tiny_mlm), device="cpu")
    stage = {"coco": PretrainOptions(max_steps=1, batch_size=2, span_tokens=3)}
    options = AdaptOptions(stages="coco", stage_options=stage, measures=[nDCG @ 10])
    record = adapt(base, TRIPLE, output=str(tmp_path / "adapted"), options=options)
    assert list(record.models) == ["base", "coco"]
    assert "<table" in record._repr_html_()


def test_former_calls_of_training_are_told_the_new_one(tmp_path):
    with pytest.raises(TypeError, match=r"write finetune\('minilm', 'apidocs/numpy', output="):
        finetune("apidocs/numpy", "minilm", tmp_path)
    with pytest.raises(TypeError, match=r"write fuse\('minilm', 'apidocs/numpy', output="):
        fuse("apidocs/numpy", "minilm", tmp_path)
    with pytest.raises(TypeError, match=r"write adapt\('minilm', 'apidocs/numpy'"):
        adapt("apidocs/numpy", None, "minilm", tmp_path)


def test_a_fused_encoder_is_made_of_objects(tiny_cosine, tmp_path):
    options = FuseOptions(sample=3, probes=2)
    fuse(str(tiny_cosine), CORPUS, output=str(tmp_path / "fused"), options=options)
    assert len(Searcher(CORPUS, str(tmp_path / "fused")).search("sorted array", top_k=1)) == 1
