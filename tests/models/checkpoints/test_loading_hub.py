"""Models on the hub: a server on this machine that gives the files of folders as the hub does, and
an empty cache.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import torch.distributed.run
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from beir_cocodr import COCODR, MRL, HybridEncoder, fuse, load_encoder
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_cross_encoder

TEXTS = ["wing flow shock layer pressure", "library index catalogue journal"]


class Hub(BaseHTTPRequestHandler):
    """Files at /NAME/resolve/REVISION/PATH, and what the models' API says of them."""

    repositories: dict[str, Path]

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models/").strip("/")
        name = next((name for name in self.repositories if path.startswith(name)), None)
        if name is None:
            return self.send(404, b"", body, {"X-Error-Code": "RepoNotFound"})
        folder = self.repositories[name]
        files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
        if self.path.startswith("/api/"):
            if "/tree/" in path:
                return self.send(200, json.dumps([]).encode(), body)
            siblings = [{"rfilename": file} for file in files]
            about = {
                "id": name,
                "sha": "0" * 40,
                "siblings": siblings,
                "private": False,
                "disabled": False,
            }
            return self.send(200, json.dumps(about).encode(), body)
        file = path.removeprefix(f"{name}/resolve/").partition("/")[2]
        if file not in files:
            return self.send(
                404, b"", body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "0" * 40}
            )
        content = (folder / file).read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        return self.send(200, content, body, {"ETag": f'"{etag}"', "X-Repo-Commit": "0" * 40})

    def send(
        self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, beir_folder, tiny_bert, tiny_cosine):
    folder = tmp_path_factory.mktemp("saved")
    MRL(tiny_bert, k=7).save_pretrained(str(folder / "mrl"))
    fuse(str(tiny_cosine), beir_folder, output=folder / "hybrid")
    return {
        "me/mrl": folder / "mrl",
        "me/hybrid": folder / "hybrid",
        "me/plain": tiny_cosine,
        "me/bare": tiny_bert,
    }


@pytest.fixture(scope="module")
def server():
    """One for all tests, as the hosts keep its address."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def hub(server, saved, tmp_path, monkeypatch):
    """The hub is here, and nothing is in its cache."""
    monkeypatch.setattr(Hub, "repositories", saved, raising=False)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "kind"), [("me/mrl", MRL), ("me/hybrid", HybridEncoder), ("me/plain", COCODR)]
)
def test_a_model_on_the_hub_is_what_its_files_say(name, kind, hub, saved, monkeypatch):
    model, local = load_encoder(name), load_encoder(saved[name])
    assert type(model) is kind
    for one, other in (
        (model.encode_query, local.encode_query),
        (model.encode_document, local.encode_document),
    ):
        np.testing.assert_array_equal(one(TEXTS), other(TEXTS))
    monkeypatch.setattr(Hub, "repositories", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # from now on there is its cache
    assert type(load_encoder(name)) is kind


def test_an_mrl_on_the_hub_loads_in_plain_sentence_transformers(hub, saved):
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer("me/mrl")
    plain, ours = SentenceTransformer("me/mrl", trust_remote_code=True), MRL.load(saved["me/mrl"])
    np.testing.assert_array_equal(plain.encode_query(TEXTS), ours.encode_query(TEXTS))
    np.testing.assert_array_equal(plain.encode_document(TEXTS), ours.encode_document(TEXTS))
    assert plain.similarity_fn_name == "dot"


def test_a_hybrid_encoder_in_plain_sentence_transformers_names_load_encoder(hub):
    plain = SentenceTransformer("me/hybrid", trust_remote_code=True)
    with pytest.raises(InputError, match="load_encoder"):
        plain.encode_query(TEXTS)


def test_what_is_not_on_the_hub(hub):
    with pytest.raises(InputError, match="'me/nothing' is neither"):
        load_encoder("me/nothing")


def test_settings_on_the_hub_are_checked_before_a_host_reads_them(
    hub, tiny_bert, tmp_path, monkeypatch
):
    folder = tmp_path / "cross"
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    named = {"sentence_transformers": {"activation_fn": "torch.distributed.run.main"}}
    (folder / "config.json").write_text(json.dumps(config | named))
    monkeypatch.setattr(Hub, "repositories", {"me/cross": folder})
    calls: list[str] = []
    monkeypatch.setattr(torch.distributed.run, "main", lambda: calls.append("ran"))
    with pytest.raises(InputError, match=r"torch\.distributed\.run\.main"):
        load_cross_encoder("me/cross")
    assert calls == []


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("hybrid:minilm", "give minilm"),
        ("hybrid@0.3:minilm", "give minilm"),
        ("feedback:runs/fused", "give runs/fused"),
        ("splade:some/model", "give an encoder"),
        ("bm25", "give an encoder"),
    ],
)
def test_a_way_to_search_is_no_encoder(name, way_out):
    with pytest.raises(InputError) as caught:
        load_encoder(name)
    assert str(caught.value) == (
        f"{name!r} is a way to search, and an encoder is needed here; {way_out}"
    )
