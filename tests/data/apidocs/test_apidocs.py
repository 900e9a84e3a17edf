"""The embedded collection: properties of what is made from the installed NumPy and scikit-learn."""

from __future__ import annotations

import contextlib
import csv
import filecmp
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import bm25s
import ir_measures
import numpy as np
import pytest
from beir.datasets.data_loader import GenericDataLoader

from beir_cocodr.data.apidocs import apidocs_folder
from beir_cocodr.errors import InputError
from beir_cocodr.records import installed_version

FILES = ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "statistics.json"]
PROGRAM = """
import json, sys
from pathlib import Path
from beir_cocodr.data.apidocs import apidocs_folder
folder = apidocs_folder(sys.argv[1], Path(sys.argv[2]))
print(json.dumps([str(folder), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def _records(path: Path) -> dict[str, str]:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len({row["_id"] for row in rows}) == len(rows)
    return {row["_id"]: row["text"] for row in rows}


def _qrels(folder: Path, split: str) -> dict[str, str]:
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {row["score"] for row in rows} == {"1"}
    assert len({row["query-id"] for row in rows}) == len(rows)
    return {row["query-id"]: row["corpus-id"] for row in rows}


def _started(domain: str, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", PROGRAM, domain, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def cache(cache_root: Path) -> Path:
    return cache_root


@pytest.fixture(scope="module")
def numpy(cache: Path) -> Path:
    return apidocs_folder("numpy", cache)


@pytest.fixture(scope="module")
def union(cache: Path) -> Path:
    return apidocs_folder("numpy+sklearn", cache)


def test_ids_and_splits(numpy: Path) -> None:
    documents, queries = _records(numpy / "corpus.jsonl"), _records(numpy / "queries.jsonl")
    train, test = _qrels(numpy, "train"), _qrels(numpy, "test")
    assert not set(train) & set(test)
    assert set(train) | set(test) == set(queries)
    assert sorted([*train.values(), *test.values()]) == sorted(documents)
    assert not set(queries) & set(documents)
    assert all(id_.startswith("numpy:numpy.") and not set(id_) & set(" \t\n") for id_ in documents)
    # A fair coin of weight 0.3: five standard deviations around the expected count.
    spread = 5 * (0.3 * 0.7 * len(queries)) ** 0.5
    assert abs(len(test) - 0.3 * len(queries)) < spread


def test_no_query_is_answered_by_a_copy_of_itself(numpy: Path) -> None:
    documents, queries = _records(numpy / "corpus.jsonl"), _records(numpy / "queries.jsonl")
    for query_id, document_id in {**_qrels(numpy, "train"), **_qrels(numpy, "test")}.items():
        query, passage = queries[query_id].split(), documents[document_id].split()
        assert " ".join(query) not in " ".join(passage), query_id
        assert len(query) >= 3
        assert len(passage) >= 20


def test_nothing_is_there_twice(union: Path) -> None:
    for name in ("corpus.jsonl", "queries.jsonl"):
        texts = [" ".join(text.split()) for text in _records(union / name).values()]
        assert len(set(texts)) == len(texts)


def test_beir_loads_it(numpy: Path) -> None:
    corpus, queries, qrels = GenericDataLoader(str(numpy)).load(split="test")
    assert {id_: document["text"] for id_, document in corpus.items()} == _records(
        numpy / "corpus.jsonl"
    )
    assert {document["title"] for document in corpus.values()} == {""}
    assert qrels == {query: {document: 1} for query, document in _qrels(numpy, "test").items()}
    assert set(queries) == set(qrels)


def test_ids_name_objects_that_can_be_imported(numpy: Path) -> None:
    names = [id_.partition(":")[2] for id_ in _records(numpy / "corpus.jsonl")]
    missing = [name for name in names if not _exists(name)]
    # Some helpers are deleted at the end of the module that imported them, which the source cannot
    # show.
    assert len(missing) < 0.02 * len(names), missing


def _exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(".".join(parts[:length]))
            for part in parts[length:]:
                found = getattr(found, part, None)
            return found is not None
    return False


def test_unions_keep_the_splits_of_their_parts(numpy: Path, union: Path, cache: Path) -> None:
    sklearn = apidocs_folder("sklearn", cache)
    for split in ("train", "test"):
        assert set(_qrels(union, split)) <= set(_qrels(sklearn, split)) | set(_qrels(numpy, split))
    assert (
        apidocs_folder("sklearn+numpy", cache)
        == apidocs_folder("numpy+sklearn+sklearn", cache)
        == union
    )
    domains = Counter(id_.partition(":")[0] for id_ in _records(union / "corpus.jsonl"))
    assert set(domains) == {"sklearn", "numpy"}


def test_statistics_account_for_every_text(union: Path) -> None:
    statistics = json.loads((union / "statistics.json").read_text())
    documents, queries = _records(union / "corpus.jsonl"), _records(union / "queries.jsonl")
    for domain, counts in statistics["domains"].items():
        passages = [text for id_, text in documents.items() if id_.startswith(f"{domain}:")]
        summaries = [text for id_, text in queries.items() if id_.startswith(f"query:{domain}:")]
        assert counts["kept"] == len(passages) == len(summaries)
        assert counts["docstrings"] == counts["kept"] + sum(counts["left_out"].values())
        assert counts["passage_words"] == pytest.approx(
            np.mean([len(p.split()) for p in passages]), abs=0.01
        )
        assert counts["query_words"] == pytest.approx(
            np.mean([len(s.split()) for s in summaries]), abs=0.01
        )
        for split in ("train", "test"):
            judged = [id_ for id_ in _qrels(union, split).values() if id_.startswith(f"{domain}:")]
            assert counts[f"{split}_queries"] == len(judged)


def test_the_task_is_neither_trivial_nor_hopeless_for_bm25(numpy: Path) -> None:
    documents, queries, judged = (
        _records(numpy / "corpus.jsonl"),
        _records(numpy / "queries.jsonl"),
        _qrels(numpy, "test"),
    )
    retriever = bm25s.BM25(k1=0.9, b=0.4)
    retriever.index(
        bm25s.tokenize(list(documents.values()), show_progress=False), show_progress=False
    )
    tokens = bm25s.tokenize([queries[id_] for id_ in judged], show_progress=False)
    found = retriever.retrieve(tokens, corpus=np.array(list(documents)), k=10, show_progress=False)
    run = [
        ir_measures.ScoredDoc(query, str(document), float(score))
        for query, ids, scores in zip(judged, *found, strict=True)
        for document, score in zip(ids, scores, strict=True)
    ]
    qrels = [ir_measures.Qrel(query, document, 1) for query, document in judged.items()]
    ndcg = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], qrels, run)[ir_measures.nDCG @ 10]
    assert 0.3 < ndcg < 0.9


def test_a_cached_folder_is_used_as_it_is(numpy: Path, cache: Path) -> None:
    witness = numpy / "witness"
    witness.touch()
    try:
        assert apidocs_folder("numpy", cache) == numpy
        assert witness.exists()
    finally:
        witness.unlink()


def test_two_processes_that_race_leave_one_whole_folder_as_elsewhere_and_import_nothing(
    cache: Path, tmp_path: Path
) -> None:
    processes = [_started("numpy", tmp_path) for _ in range(2)]
    found = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    [folder] = {name for name, _ in found}
    assert [str(path) for path in (tmp_path / "apidocs").iterdir()] == [folder]
    for _, modules in found:
        assert not {"scipy", "numpy", "torch", "pandas", "sklearn"} & set(modules)
    reference = apidocs_folder("numpy", cache)
    assert Path(folder).name == reference.name
    assert filecmp.cmpfiles(reference, folder, FILES, shallow=False) == (FILES, [], [])


def test_the_environment_names_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "apidocs" / apidocs_folder("numpy", cache).name
    shutil.copytree(apidocs_folder("numpy", cache), there)
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path))
    assert apidocs_folder("numpy") == there


@pytest.mark.parametrize("domain", ["", "cobol", "scipy+cobol", "scipy+", "SciPy", "../scipy"])
def test_unknown_domains(domain: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="domain") as error:
        apidocs_folder(domain, tmp_path)
    assert "\n" not in str(error.value)
    for known in ("stdlib", "numpy", "pandas", "torch", "scipy", "sklearn"):
        assert known in str(error.value)
    assert not any(tmp_path.iterdir())


def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    installed_version.cache_clear()
    with pytest.raises(InputError, match=r"'torch' .*installed") as error:
        apidocs_folder("torch", tmp_path / "cache")
    installed_version.cache_clear()  # torch is found again
    assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="BEIR_COCODR_CACHE") as error:
        apidocs_folder("numpy", tmp_path / "file")
    assert "\n" not in str(error.value)


def test_statistics_and_key_are_said_when_a_collection_is_made(tmp_path, caplog):
    with caplog.at_level("INFO", logger="beir_cocodr"):
        folder = apidocs_folder("numpy", tmp_path)
    counts = json.loads((folder / "statistics.json").read_text())["domains"]["numpy"]
    assert f"{counts['kept']} of {counts['docstrings']} texts of numpy" in caplog.text
    assert folder.name in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", logger="beir_cocodr"):
        apidocs_folder("numpy", tmp_path)
    assert not caplog.text  # from the cache
