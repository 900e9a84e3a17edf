"""Evaluation with embeddings that encode has written: the same results, and nothing encoded
again.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import write_beir

from beir_cocodr import MRL
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.runs import read_trec_run
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.vectors.pool import Workers


@pytest.fixture(scope="module")
def stores(tmp_path_factory, beir_folder, tiny_bert, tiny_cosine) -> dict[str, Path]:
    """A store for each of two encoders, in shards that are no part of the corpus's length."""
    made = {}
    for name, model in (("dot", tiny_bert), ("cosine", tiny_cosine)):
        made[name] = tmp_path_factory.mktemp("stores") / name
        encode(
            str(beir_folder),
            str(model),
            made[name],
            EncodeOptions(shard_size=13),
            workers=Workers(threads=1),
        )
    return made


def refuse_to_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        COCODR, "encode_corpus", lambda *args, **kwargs: pytest.fail("encoded again")
    )


def test_results_are_those_without_a_store(
    stores, beir_folder, tiny_bert, tiny_cosine, tmp_path, monkeypatch
):
    """Alone, fused with BM25 and with feedback; the store is found whatever its model is called."""
    models = {"dot": str(tiny_bert), "cosine": str(tiny_cosine)}
    models |= {
        f"{kind} of cosine": f"{kind}:{tiny_cosine}" for kind in ("hybrid", "rrf", "feedback")
    }
    models["bm25"] = "bm25"
    expected = evaluate(
        models,
        str(beir_folder),
        output=tmp_path / "without",
        measures="nDCG@10 R@20",
        options=EvaluateOptions(top_k=20),
    )
    moved = tmp_path / "moved"
    moved.symlink_to(tiny_bert)
    models["dot"] = str(moved)
    refuse_to_encode(monkeypatch)
    found = evaluate(
        models,
        str(beir_folder),
        output=tmp_path / "with",
        measures="nDCG@10 R@20",
        search=SearchOptions(stores=tuple(stores.values())),
        options=EvaluateOptions(top_k=20),
    )
    for name in models:
        assert found.models[name].measures == expected.models[name].measures
        runs = [
            read_trec_run(tmp_path / folder / report.models[name].run)
            for folder, report in (("without", expected), ("with", found))
        ]
        assert runs[0].keys() == runs[1].keys()
        for query, documents in runs[0].items():
            assert list(runs[1][query]) == list(documents)
            np.testing.assert_allclose(
                list(runs[1][query].values()), list(documents.values()), rtol=1e-5, atol=1e-5
            )
    described = {name: model.retrieval for name, model in found.models.items()}
    assert described["dot"]["store"]["precision"] == "fp32"
    assert described["hybrid of cosine"]["dense"]["store"] == described["cosine"]["store"]
    assert described["cosine"]["store"]["key"] != described["dot"]["store"]["key"]
    assert "store" not in expected.models["dot"].retrieval


def test_from_the_command_line_and_beside_a_model_without_a_store(
    stores, beir_folder, tiny_bert, tiny_cosine, tmp_path, capsys
):
    given = [
        "evaluate",
        "--dataset",
        beir_folder,
        "--model",
        tiny_bert,
        "--model",
        tiny_cosine,
        "--json",
    ]
    given += ["--store", stores["dot"], "--output", tmp_path / "o"]
    with pytest.raises(SystemExit) as status:
        main([str(word) for word in given])
    assert not status.value.code
    models = json.loads(capsys.readouterr().out)["models"]
    assert [("store" in model["retrieval"]) for model in models.values()] == [True, False]


def test_what_does_not_fit_is_refused_before_anything_is_searched(
    stores, beir_folder, tiny_bert, tiny_cosine, tmp_path
):
    output, other = tmp_path / "o", write_beir(tmp_path / "other", seed=3)
    encode(str(other), str(tiny_bert), tmp_path / "other-store", workers=Workers(threads=1))
    MRL(str(tiny_bert)).save_pretrained(str(tmp_path / "mrl"))
    folded = EncodeOptions(precision="int8")
    encode(
        str(beir_folder),
        str(tmp_path / "mrl"),
        tmp_path / "folded",
        folded,
        workers=Workers(threads=1),
    )
    for stored, model, settings, expected in (
        (stores["cosine"], str(tiny_bert), {}, "cosine was .*weights and other modules"),
        (stores["dot"], "bm25", {}, "dot was .*no model"),
        (tmp_path / "other-store", str(tiny_bert), {}, r"corpus \w{16} there, \w{16} now"),
        (
            stores["dot"],
            str(tiny_bert),
            {"encoder": EncoderOptions(document_length=9)},
            "document_length 128 there, 9 now",
        ),
        (tmp_path / "nowhere", str(tiny_bert), {}, "no embeddings"),
        (tmp_path / "folded", str(tmp_path / "mrl"), {}, "MRL in int8.*fp32"),
    ):
        with pytest.raises(InputError, match=expected):
            evaluate(
                [model],
                str(beir_folder),
                output=output,
                search=SearchOptions(stores=(stored,), **settings),
            )
    assert not list(output.rglob("*.run"))
