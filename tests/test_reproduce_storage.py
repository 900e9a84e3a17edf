"""The disk that vectors of tokens take is measured where they are written."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import write_beir
from reproduce import make


def test_the_storage_of_tokens_is_that_of_the_files(tmp_path):
    folder = tmp_path / "data"
    write_beir(folder)
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").open()]
    make.tiny_colbert(tmp_path / "colbert", texts, 3)
    arguments = ["--model", str(tmp_path / "colbert"), "--dataset", str(folder)]
    make.main(["token-storage", str(tmp_path / "out"), *arguments])
    sizes = json.loads((tmp_path / "out" / make.STORAGE_FILE).read_text())
    files = [path for path in Path(tmp_path / "out" / "tokens").rglob("*") if path.is_file()]
    assert sizes["bytes"] == sum(path.stat().st_size for path in files)
    assert (sizes["model"], sizes["dataset"]) == (arguments[1], arguments[3])
    assert sizes["documents"] == len(texts)
    assert sizes["vectors_bytes"] == sizes["tokens"] * 32 * 2  # float16 of 32 dimensions
    assert sizes["bytes"] > sizes["vectors_bytes"]
