"""The gate on passages of two sizes, which it refuses, and the comparison that it names instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import completed, sentences

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.gate import GateOptions, gate
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.vectors.pool import Workers
from tests.http_servers import serving

OPTIONS = GateOptions(samples=20)
BAD_INPUT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of 16 files, each of several passages, and of four short ones, which stay whole."""
    files = tmp_path_factory.mktemp("passages") / "files"
    files.mkdir()
    rng = np.random.default_rng(2)
    for number in range(20):
        count = 30 if number < 16 else 4
        text = sentences(rng, number % 4, count)
        (files / f"page-{number}.txt").write_text(text)
    return files


def cut(folder: Path, words: int) -> str:
    """Name a folder whose passages have so many words."""
    return f"{folder}?words={words}"


@pytest.fixture(scope="module")
def stores(tmp_path_factory, folder, tiny_cosine) -> dict[int, Path]:
    """A store of each size of passages."""
    made = {}
    for words in (90, 180):
        made[words] = tmp_path_factory.mktemp("stores") / f"of-{words}"
        encode(
            cut(folder, words),
            str(tiny_cosine),
            made[words],
            EncodeOptions(shard_size=64),
            workers=Workers(threads=1),
        )
    return made


@pytest.mark.parametrize(
    ("old", "new", "of_collection", "refused"),
    [(180, 90, 180, "NEW"), (180, 90, 90, "OLD"), (90, 180, 180, "OLD"), (90, 90, 180, "OLD")],
)
def test_stores_of_another_size_of_passages_are_refused(
    folder, stores, old, new, of_collection, refused
):
    dataset = cut(folder, of_collection)
    with pytest.raises(InputError, match=rf"of the results of {refused} \(.*of-") as caught:
        gate(stores[old], stores[new], dataset, options=OPTIONS)
    message = str(caught.value)
    assert f"are documents that {dataset} does not have" in message
    assert message.endswith("or compare sizes of passages with compare --passages")
    assert "\n" not in message


def test_an_engine_over_passages_of_another_size_is_refused(folder):
    documents = load_collection(cut(folder, 90), labels="optional").documents
    bm25 = BM25(documents)

    class Engine:
        def search(self, queries, top_k):
            results = bm25.search(queries, top_k).results(documents)
            return {query: dict(hits) for query, hits in results.items()}

    with pytest.raises(InputError, match=r"of the results of NEW \(Engine\)"):
        gate("bm25", Engine(), cut(folder, 180), options=OPTIONS)
    [first] = documents.ids([0])
    with serving(lambda asked: [{"id": first}]) as server:
        name = f"{server.url}/search?q={{query}}"
        with pytest.raises(InputError, match=r"100% of the results of NEW \(http"):
            gate("bm25", name, cut(folder, 180), options=OPTIONS)


def test_the_command_ends_with_2_and_what_it_names_works(folder, stores, capsys):
    words = ["gate", str(stores[180]), str(stores[90]), "--dataset", str(folder)]
    done = completed(main, words)
    assert done.returncode == BAD_INPUT
    assert "compare --passages" in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    with pytest.raises(SystemExit) as ended:
        main(["compare", "bm25", "--passages", "90,180", "--dataset", str(folder)])
    assert not ended.value.code
    assert "passages of several sizes" in " ".join(capsys.readouterr().out.split())


def test_stores_of_one_size_are_judged(folder, stores):
    for words, store in stores.items():
        record = gate(store, store, cut(folder, words), options=OPTIONS)
        assert record.decision == "not worse"
        assert record.unknown == {"old": 0, "new": 0}
