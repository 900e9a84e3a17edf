"""What a page answers before its encoders are ready, and after its files have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

from beir_cocodr.data.collection import resolve_source
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.serve import app, corpus_watch
from beir_cocodr.serve.corpus_watch import CorpusWatch
from beir_cocodr.serve.session import Session

SECRET = "a token that nobody knows"


@contextmanager
def served(session: Session) -> Iterator[httpx2.Client]:
    """Answer for a session at a port of this machine, and yield a browser that may ask."""
    listening = app.listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    guarded = app.guarded(session, "127.0.0.1", port, SECRET)
    server = uvicorn.Server(uvicorn.Config(guarded, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as browser:
        assert browser.post("/api/login", json={"secret": SECRET}).status_code == 200
        yield browser
    server.should_exit = True
    thread.join(10)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def files(tmp_path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "wing.txt").write_text("A wing in supersonic flow.")
    (folder / "library.txt").write_text("The library has an index of journals.")
    return folder


def test_bm25_answers_a_browser_before_the_encoder_has_encoded_anything(
    files, tiny_cosine, tmp_path, monkeypatch
):
    may_encode = threading.Event()
    forward = CorpusEncoder._forward

    def slow_forward(self, rows):
        assert may_encode.wait(60)
        return forward(self, rows)

    monkeypatch.setattr(CorpusEncoder, "_forward", slow_forward)
    dense = str(tiny_cosine)
    session = Session(str(files), ["bm25", dense], tmp_path / "out", samples=4)
    session.start()
    with served(session) as browser:
        asked = {"model": "bm25", "query": "supersonic wing"}
        answer = browser.get("/api/search", params=asked).json()
        assert [hit["place"] for hit in answer["hits"]] == ["wing.txt"]
        asked = {"model": dense, "query": "supersonic wing"}
        assert browser.get("/api/search", params=asked).json()["hits"] is None
        assert not may_encode.is_set()
        may_encode.set()
        wait_for(lambda: browser.get("/api/search", params=asked).json()["hits"] is not None)
        assert len(browser.get("/api/search", params=asked).json()["hits"]) == 2
    assert session.stop(60)


def test_new_changed_and_deleted_files_are_noticed_and_only_new_texts_are_encoded(
    files, tiny_cosine, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus_watch, "INTERVAL", 0.05)
    encoded: list[str] = []
    encode = CorpusEncoder._encode

    def counted(self, rows, *rest):
        encoded.extend(document["text"] for document in self.documents.take(rows))
        return encode(self, rows, *rest)

    monkeypatch.setattr(CorpusEncoder, "_encode", counted)
    dense = str(tiny_cosine)
    session = Session(str(files), ["bm25", dense], tmp_path / "out", samples=4)
    session.comparison.prepare = lambda models, folder: None  # its crops are encoded as well
    session.start()
    wait_for(lambda: session.columns[dense].state == "ready")
    assert len(encoded) == 2
    encoded.clear()
    (files / "treaty.md").write_text("A treaty of the parliament.")
    (files / "wing.txt").write_text("A wing in turbulent flow.")
    (files / "library.txt").unlink()

    def places(model: str, query: str) -> set[str]:
        hits = session.search(model, query)["hits"]
        return {hit["place"] for hit in hits or []}

    wait_for(lambda: places("bm25", "treaty turbulent library") == {"treaty.md", "wing.txt"})
    wait_for(lambda: places(dense, "treaty") == {"treaty.md", "wing.txt"})
    state = session.state()
    assert state["corpus_version"] > 1
    assert "have changed" in state["corpus_remark"]
    assert sorted(set(encoded)) == ["A treaty of the parliament.", "A wing in turbulent flow."]
    for file in files.iterdir():
        file.unlink()
    wait_for(lambda: "cannot be read" in session.state()["corpus_remark"])
    assert places("bm25", "treaty") == {"treaty.md"}  # the last corpus that could be read
    assert session.stop(60)


def test_a_change_counts_once_and_only_when_writing_has_ended(files):
    watch = CorpusWatch(resolve_source(files, "test"))
    assert not watch.has_changed()
    (files / "new.txt").write_text("One.")
    assert not watch.has_changed()  # it may still be written
    (files / "new.txt").write_text("One and two.")
    assert not watch.has_changed()
    assert watch.has_changed()
    assert not watch.has_changed()
    assert not CorpusWatch(None).has_changed()
