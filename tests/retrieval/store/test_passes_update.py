"""A store that is brought to what its corpus is now equals one that is encoded anew, and encodes
only what is new.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from beir_cocodr import EncoderOptions, load_collection, load_encoder
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store.encode import encode, encode_documents
from beir_cocodr.retrieval.store.passes import update
from beir_cocodr.retrieval.store.record import STORE_FILE, EncodeOptions
from beir_cocodr.retrieval.store.store import TEXTS_FILE, EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Ids of what is encoded from now on."""
    seen: list[str] = []
    original = CorpusEncoder.encode

    def counted(self, rows, *rest):
        seen.extend(self.documents.ids(rows))
        return original(self, rows, *rest)

    monkeypatch.setattr(CorpusEncoder, "encode", counted)
    return seen


def change(folder: Path, beir_folder: Path) -> Path:
    """The corpus without every fifth document, in another order, with one text changed and one
    added.
    """
    lines = [json.loads(line) for line in (beir_folder / "corpus.jsonl").read_text().splitlines()]
    kept = [line for i, line in enumerate(lines) if i % 5][::-1]
    kept[3]["text"] = "a text that was changed"
    kept.append({"_id": "new", "title": "", "text": "a text that was added"})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    return folder


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_what_is_there_is_not_encoded_again_and_what_is_gone_leaves(
    beir_folder, tiny_cosine, tmp_path, encoded, precision
):
    options, model = EncodeOptions(shard_size=20, precision=precision), load_encoder(tiny_cosine)
    encode(str(beir_folder), str(tiny_cosine), tmp_path / "store", options)
    (tmp_path / "store" / "flat.index").mkdir()
    documents = load_collection(change(tmp_path, beir_folder), labels="none").documents
    encoded.clear()
    updated = update(model, documents, tmp_path / "store")
    store, kept, new = updated.store, updated.kept, updated.encoded
    changed = [
        id for id, document in documents.items() if document["text"].startswith("a text that was")
    ]
    assert (set(encoded), kept, new) == (set(changed), len(documents) - 2, 2)
    assert not (tmp_path / "store" / "flat.index").exists()
    anew = encode_documents(model, documents, tmp_path / "anew", options)
    assert store.record.identity == anew.record.identity
    assert store.record.model.name == str(tiny_cosine)
    np.testing.assert_allclose(
        store.load(), anew.load(), atol=1e-5 if precision == "fp32" else 1e-2
    )
    np.testing.assert_array_equal(
        np.load(store.folder / TEXTS_FILE), np.load(anew.folder / TEXTS_FILE)
    )
    encoded.clear()
    again = update(model, documents, tmp_path / "store")
    assert (again.kept, again.encoded) == (len(documents), 0)
    assert encoded == []


@pytest.mark.parametrize("chunk_pooling", ["first", "first+mean"])
def test_an_update_says_its_cost_as_a_first_encoding_does(
    chunk_pooling, beir_folder, tiny_cosine, tmp_path, caplog
):
    """Two documents of 24 tokens are encoded, each in three pieces of 8."""
    caplog.set_level("INFO")
    settings = EncoderOptions(document_length=10, chunk_pooling=chunk_pooling)
    model = load_encoder(tiny_cosine, settings)
    store = tmp_path / "store"
    encode_documents(model, load_collection(beir_folder).documents, store)
    lines = (beir_folder / "corpus.jsonl").read_text().splitlines()
    for name in ("new", "newer"):
        lines.append(json.dumps({"_id": name, "text": "wing flow shock layer " * 6}))
    (tmp_path / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))
    documents = load_collection(tmp_path / "corpus.jsonl", labels="none").documents
    caplog.clear()
    assert update(model, documents, store).encoded == 2
    [said] = [line for line in caplog.messages if "documents to encode" in line]
    assert said.startswith("2 documents to encode: about ")
    assert " of disk, " in said
    if chunk_pooling == "first":
        assert "100% of these are cut to the document length" in said
    else:
        assert "in about 6 pieces altogether" in said


def test_an_update_counts_the_disk_of_the_whole_store(tiny_cosine, tmp_path, monkeypatch):
    """There is room for the document that is new, but not for all of them."""
    model = load_encoder(tiny_cosine)
    texts = [f"wing flow {number}" for number in range(50)]
    rows = [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    store = tmp_path / "store"
    encode_documents(model, load_collection(corpus, labels="none").documents, store)
    before = (store / STORE_FILE).read_bytes()
    room = 50 * 32 * 4  # 32 float32 numbers each; the ids need more
    usage = shutil.disk_usage(tmp_path)._replace(free=room)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    for present in (rows, rows[:-2]):  # one document more, and one less
        corpus.write_text("".join(json.dumps(row) + "\n" for row in present))
        documents = load_collection(corpus, labels="none").documents
        with pytest.raises(InputError, match=r"store: the embeddings take .* is free; make room"):
            update(model, documents, store)
        assert (store / STORE_FILE).read_bytes() == before


def test_a_store_that_was_interrupted_gives_what_it_has(
    beir_folder, tiny_cosine, tmp_path, encoded
):
    model = load_encoder(tiny_cosine)
    encode(str(beir_folder), str(tiny_cosine), tmp_path / "store", EncodeOptions(shard_size=20))
    (tmp_path / "store" / "shard-00001.safetensors").unlink()
    documents = load_collection(change(tmp_path, beir_folder), labels="none").documents
    encoded.clear()
    updated = update(model, documents, tmp_path / "store")
    kept, new = updated.kept, updated.encoded
    lost = {f"d{i}" for i in range(20, 40) if i % 5}
    assert lost < set(encoded)
    assert (kept, new) == (len(documents) - len(set(encoded)), len(set(encoded)))


def test_what_cannot_be_updated_is_one_line(beir_folder, tiny_cosine, tiny_bert, tmp_path):
    model = load_encoder(tiny_cosine)
    encode(str(beir_folder), str(tiny_cosine), tmp_path / "store")
    documents = load_collection(change(tmp_path, beir_folder), labels="none").documents
    with pytest.raises(InputError, match="architecture"):
        update(load_encoder(tiny_bert), documents, tmp_path / "store")
    (tmp_path / "store" / TEXTS_FILE).unlink()
    with pytest.raises(InputError, match=TEXTS_FILE):
        update(model, documents, tmp_path / "store")
    assert len(EmbeddingStore.open(tmp_path / "store")) == 48


def test_the_command_updates_a_folder_of_files(capsys, tiny_cosine, tmp_path):
    folder, store = tmp_path / "mine", tmp_path / "store"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"wing flow {name}")
    given = [
        "encode",
        "--dataset",
        str(folder),
        "--model",
        str(tiny_cosine),
        "--output",
        str(store),
    ]

    def run(*more: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            main([*given, *more])
        return (int(status.value.code or 0), *capsys.readouterr())

    assert run()[0] == 0
    (folder / "b.txt").unlink()
    (folder / "d.txt").write_text("library index")
    status, _, err = run()
    assert (status, "--update" in err.splitlines()[-1]) == (2, True)
    status, out, _ = run("--update", "--json")
    report = json.loads(out)
    assert (status, report["documents"], report["documents_encoded"]) == (0, 3, 1)
    assert run("--update", "--dense", str(store))[0] == 2
    for unused in ("--processes", "--threads"):
        status, _, err = run("--update", unused, "2")
        assert (status, f"{unused} is not used with --update" in err) == (2, True)


def test_an_update_keeps_what_a_store_was_encoded_with(capsys, tiny_cosine, tmp_path):
    folder, store = tmp_path / "mine", tmp_path / "store"
    folder.mkdir()
    (folder / "a.txt").write_text("wing flow")
    command = ["encode", "--dataset", str(folder), "--model", str(tiny_cosine), "--update"]
    command += ["--output", str(store), "--precision"]

    def run(precision: str) -> object:
        with pytest.raises(SystemExit) as ended:
            main([*command, precision])
        return ended.value.code

    for _ in range(2):  # the first call makes the store
        assert run("fp16") == 0
    before = (store / STORE_FILE).read_bytes()
    assert run("int8") == 2
    err = capsys.readouterr().err
    assert "was encoded with --precision fp16, which --update keeps; leave --precision int8" in err
    assert (store / STORE_FILE).read_bytes() == before
