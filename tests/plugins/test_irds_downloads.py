"""Downloads by ir_datasets from a local server that misbehaves in every way that servers do."""

from __future__ import annotations

import hashlib
import http.server
import io
import itertools
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import ir_datasets
import pytest
from ir_datasets.datasets.beir import BeirDocs, BeirQrels, BeirQueries, BeirTitleDoc
from ir_datasets.formats import GenericQuery
from ir_datasets.util import Cache, Download, RequestsDownload, ZipExtract, ZipExtractCache

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError

# Seconds: the first is what ir_datasets is told to wait, and the server keeps it waiting for the
# second.
TIMEOUT, STALL = 0.5, 60.0

numbers = itertools.count()


class Server(http.server.ThreadingHTTPServer):
    """Serves one body for every address.

    Attributes:
        body: what is served.
        behaviour: "whole"; "truncated", the announced length and half the body; "silent", nothing
            at all; "stalled", half the body and then nothing.
        requests: how many there were.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.behaviour, self.requests = b"", "whole", 0
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/toy.zip"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.requests += 1
        if server.behaviour == "silent":
            server.ended.wait(STALL)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        whole = server.behaviour == "whole"
        self.wfile.write(server.body if whole else server.body[: len(server.body) // 2])
        self.wfile.flush()
        if server.behaviour == "stalled":
            server.ended.wait(STALL)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))
    monkeypatch.setenv("IR_DATASETS_DL_TIMEOUT", str(TIMEOUT))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "2")


def archive(**more: str) -> bytes:
    """A BEIR archive of three documents, and whatever else is to be in it."""
    documents = [
        {"_id": f"d{n}", "title": f"t{n}", "text": "lift and drag " * 400} for n in range(3)
    ]
    files = {
        "toy/corpus.jsonl": "\n".join(map(json.dumps, documents)),
        "toy/queries.jsonl": '{"_id": "q", "text": "wing"}\n',
        "toy/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\td1\t1\n",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in {**files, **more}.items():
            file.writestr(name, content)
    return packed.getvalue()


def registered(url: str, content: bytes, home: Path) -> str:
    """An id that is downloaded and unpacked as ir_datasets does BEIR's own."""
    name, md5 = f"toy-download-{next(numbers)}", hashlib.md5(content).hexdigest()
    folder = home / "irds" / "beir" / name
    source = Download([RequestsDownload(url)], str(folder / "source.zip"), expected_md5=md5)
    queries = Cache(ZipExtract(source, "toy/queries.jsonl"), folder / "queries.json")
    qrels = Cache(ZipExtract(source, "toy/qrels/test.tsv"), folder / "test.qrels")
    dataset = ir_datasets.Dataset(
        BeirDocs(name, ZipExtract(source, "toy/corpus.jsonl"), BeirTitleDoc),
        BeirQueries(name, queries, GenericQuery),
        BeirQrels(qrels, {}),
    )
    ir_datasets.registry.register(name, dataset)
    return name


def with_content(folder: Path) -> set[str]:
    """The files below a folder that hold anything but a description of what is going to be
    there.
    """
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "bin.meta")
    return {str(file.relative_to(folder)) for file in files if file.stat().st_size}


def assert_right(name: str) -> None:
    collection = load_collection(f"irds:{name}")
    assert list(collection.documents) == ["d0", "d1", "d2"]
    assert collection.documents["d2"]["text"] == "lift and drag " * 400
    assert (collection.queries, collection.qrels) == ({"q": "wing"}, {"q": {"d1": 1}})


FAULTS = {
    "wrong hash": "Expected md5 hash to be",
    "truncated": "IncompleteRead",
    "silent": "Read timed out",
    "stalled": "Read timed out",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_download_is_one_line_leaves_nothing_and_is_done_again(server, tmp_path, fault):
    right = archive()
    name = registered(server.url, right, tmp_path)
    server.behaviour = "whole" if fault == "wrong hash" else fault
    server.body = archive(extra="not what was published") if fault == "wrong hash" else right
    for _ in range(2):  # what the first attempt left must not be taken for something by the second
        with pytest.raises(InputError, match=FAULTS[fault]) as caught:
            load_collection(f"irds:{name}")
        message = str(caught.value)
        assert message.startswith(f"irds:{name}: ir_datasets cannot read its docs after record 0 (")
        assert "check the network and IR_DATASETS_HOME" in message
        assert "\n" not in message
    assert with_content(tmp_path) == set()

    server.body, server.behaviour = right, "whole"
    assert_right(name)
    served = server.requests
    assert_right(name)
    assert server.requests == served


def test_the_command_ends_with_status_2_and_one_line(server, tmp_path, capsys):
    name = registered(server.url, archive(), tmp_path)
    server.body, server.behaviour = archive(), "truncated"
    given = [
        "evaluate",
        "--dataset",
        f"irds:{name}",
        "--model",
        "bm25",
        "--output",
        str(tmp_path / "o"),
    ]
    with pytest.raises(SystemExit) as status:
        main(given)
    assert status.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith(f"error: irds:{name}: ir_datasets cannot read its docs")
    assert "IncompleteRead" in last
    assert with_content(tmp_path) == set()


def test_a_stall_ends_when_the_timeout_says(server, tmp_path):
    """Two tries of half a second each, where the server would keep it waiting for two minutes."""
    name = registered(server.url, archive(), tmp_path)
    server.body, server.behaviour = archive(), "silent"
    begun = time.monotonic()
    with pytest.raises(InputError, match=rf"read timeout={TIMEOUT}"):
        load_collection(f"irds:{name}")
    assert 2 * TIMEOUT <= time.monotonic() - begun < STALL / 2
    assert server.requests == 2


def test_an_archive_that_climbs_out_of_its_folder_writes_nothing_there(server, tmp_path):
    """By BEIR's way of reading an archive, one file at a time, and by the one that unpacks all of
    it.
    """
    home = tmp_path / "deep" / "down"
    climbing = [
        "../climbed",
        "toy/../../climbed-too",
        "../../../../climbed-far",
        f"{tmp_path}/climbed-down",
    ]
    server.body = archive(**dict.fromkeys(climbing, "out"))
    assert_right(registered(server.url, server.body, home))
    assert not list(tmp_path.parent.rglob("climbed*"))

    md5 = hashlib.md5(server.body).hexdigest()
    source = Download([RequestsDownload(server.url)], str(home / "source.zip"), expected_md5=md5)
    unpacked = Path(ZipExtractCache(source, str(home / "unpacked")).path())
    assert (unpacked / "toy" / "corpus.jsonl").is_file()
    written = list(tmp_path.parent.rglob("climbed*"))
    assert len(written) == len(climbing)
    assert all(path.is_relative_to(unpacked) for path in written)


def test_an_archive_without_the_file_under_its_own_name_is_refused(server, tmp_path):
    """One that holds ``../toy/corpus.jsonl`` has no ``toy/corpus.jsonl``."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("../toy/corpus.jsonl", '{"_id": "d", "title": "", "text": "x"}\n')
    server.body = packed.getvalue()
    name = registered(server.url, server.body, tmp_path)
    with pytest.raises(InputError, match=r"'toy/corpus.jsonl' .*archive") as caught:
        load_collection(f"irds:{name}", labels="none")
    assert "\n" not in str(caught.value)
    assert not (tmp_path.parent / "toy").exists()
