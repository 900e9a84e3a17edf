"""The small scale tells the models of a table apart, on parts of real collections."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import write_beir
from reproduce import runner
from reproduce.scales import HereScale, PaperScale, Scale, is_training, resolve, source_here
from reproduce.shared import DL19, DL20, TRAIN
from reproduce.workshop import Workshop


class NamedHere(HereScale):
    """The small scale, whose collections and models are their names and are not made."""

    def data(self, name: str) -> str:
        return name

    def model(self, name: str) -> str:
        return name


def place_of(paper: str, scale: Scale, output: Path) -> Workshop:
    return Workshop(runner.PAPERS[paper], scale, output)


def commands_of(step: str, place: Workshop) -> tuple[str, ...]:
    """Return a step's commands without its own folder."""
    out = str(place.folder(step))
    return tuple(
        " ".join("OUT" if word.startswith(out) else word for word in words)
        for words in place.words(step)
    )


@pytest.mark.parametrize("paper", runner.PAPERS)
def test_trainings_that_differ_at_the_scale_of_the_papers_differ_here(paper, tmp_path):
    here = place_of(paper, NamedHere(tmp_path), tmp_path / "here")
    papers = place_of(paper, PaperScale(), tmp_path / "paper")
    trained = [name for name in here.steps if any(map(is_training, papers.words(name)))]
    assert trained
    by_commands: dict[tuple[str, ...], str] = {}
    for name in trained:
        before = by_commands.setdefault(commands_of(name, here), name)
        assert commands_of(before, papers) == commands_of(name, papers), (before, name)


def test_rows_of_figure_3_have_clusters_and_temperatures_of_their_own(tmp_path):
    """K = 50, which is also that of the preset, is the default here, too."""
    place = place_of("coco-dr", NamedHere(tmp_path), tmp_path)
    settings = {}
    for name in place.steps:
        if re.fullmatch(r"coco-dr-base(-(K|tau)\d+)?", name):
            [words] = place.words(name)
            settings[name] = sorted(w for w in words if w.startswith(("clusters=", "rho=")))
    assert len(settings) == len(set(map(tuple, settings.values()))) == 7
    assert settings["coco-dr-base"] == ["clusters=5"]
    assert settings["coco-dr-base-K25"] == ["clusters=2"]
    assert settings["coco-dr-base-K250"] == ["clusters=25"]
    assert settings["coco-dr-base-tau200"] == ["clusters=5", "rho=0.25"]


def test_c_of_query_as_context_differs_here_and_so_many_queries_are_generated(tmp_path):
    place = place_of("query-as-context", NamedHere(tmp_path), tmp_path)

    def count(step: str) -> int:
        return int(dict(pairwise(place.words(step)[0]))["--per-passage"])

    counts = [count(f"pretrained/cotmae-qc{name}") for name in ("-C1", "", "-C10", "-C20")]
    assert counts == sorted(set(counts))
    assert counts[-1] == count("queries")


def test_sizes_and_clusters_of_the_papers_are_changed_and_checked_alike(tmp_path):
    scale = HereScale(tmp_path)
    assert [scale.setting("clusters", count) for count in (25, 50, 100, 250)] == [2, 5, 10, 25]
    assert PaperScale().setting("clusters", 250) == 250
    assert resolve("size-{size:45000}", PaperScale(), Path) == "size-45k"
    assert resolve("size-{size:45000}", scale, Path) == "size-50"


def test_sizes_of_restrain_are_different_sets_here(tmp_path):
    """Run the step, and compare the training queries of the three sizes in both regimes."""
    scale = HereScale(tmp_path / "work")
    place = Workshop(runner.PAPERS["extrapolation"], scale, tmp_path / "steps", inside=True)
    place.make("restrain")
    assert not place.failed
    manifest = json.loads((place.folder("restrain") / "manifest.json").read_text())
    assert manifest["parameters"]["k"] == [1, 2, 3]
    assert manifest["test"]["dataset"] == f"{scale.data(DL19)}, {scale.data(DL20)}"
    for regime in ("interpolation", "extrapolation"):
        queries = []
        for record in manifest["sets"]:
            if record["regime"] == regime:
                file = place.folder("restrain") / record["folder"] / "qrels" / "train.tsv"
                queries.append({line.split("\t")[0] for line in file.read_text().splitlines()[1:]})
        assert len(queries) == 3
        for smaller, larger in pairwise(queries):
            assert smaller < larger
    folders = [
        resolve(f"size-{{size:{size}}}", scale, place.folder) for size in (14_000, 45_000, 200_000)
    ]
    assert [record["label"] for record in manifest["sets"][::2]] == folders


def test_small_collections_are_parts_of_real_ones_a_different_one_for_each_task(
    tmp_path, monkeypatch
):
    root = tmp_path / "collections"
    for number, name in enumerate(("scifact", "other")):
        write_beir(root / name, seed=number)
    write_beir(root / "large", documents=120, queries=50, seed=2)
    monkeypatch.setenv("COCODR_COLLECTIONS", str(root))
    assert source_here("scifact", 50) == str(root / "scifact")
    assert source_here("fiqa") in {str(root / name) for name in ("scifact", "other", "large")}
    assert source_here("msmarco", 50) == str(root / "large")
    assert source_here("msmarco", 51) in {
        str(root / name) for name in ("scifact", "other", "large")
    }
    scale = HereScale(tmp_path / "work", documents=5, queries=6, train_queries=4)
    folders = {scale.data(name) for name in ("scifact", "fiqa", "cqadupstack/tex")}
    contents = {(Path(folder) / "queries.jsonl").read_text() for folder in folders}
    assert len(folders) == len(contents) == 3
    assert scale.data("cqadupstack/tex") == scale.data("cqadupstack/unix")
    monkeypatch.delenv("COCODR_COLLECTIONS")
    assert source_here("scifact").startswith("apidocs/")


def test_both_trec_dl_have_queries_of_their_own_for_the_corpus_of_ms_marco(tmp_path, monkeypatch):
    write_beir(tmp_path / "collections" / "one", documents=120, queries=50)
    monkeypatch.setenv("COCODR_COLLECTIONS", str(tmp_path / "collections"))
    scale = HereScale(tmp_path / "work", documents=5, queries=6, train_queries=12)
    queries = {}
    corpora = set()
    for name, split in ((TRAIN, "train"), (TRAIN, "test"), (DL19, "test"), (DL20, "test")):
        folder = Path(scale.data(name))
        corpora.add((folder / "corpus.jsonl").read_text())
        lines = (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
        queries[name, split] = {line.split("\t")[0] for line in lines}
    assert len(corpora) == 1
    assert [len(found) for found in queries.values()] == [12, 6, 4, 4]
    assert len(set.union(*queries.values())) == 26
