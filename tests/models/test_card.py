"""The card of a trained model: true of it, free of its base's claims, and kept by those who save
and upload it.
"""

from __future__ import annotations

import re

import pytest
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

from beir_cocodr import COCODR, MRL, FuseOptions, HybridEncoder, fuse, load_encoder
from beir_cocodr.analysis.predictors import PREDICTORS
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS
from beir_cocodr.models.card import papers, write_card
from beir_cocodr.models.papers import PAPERS
from beir_cocodr.models.spec import FUSIONS, HOSTED
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import CollectionProvenance
from beir_cocodr.resampling.regimes.architecture_rows import ARCHITECTURES
from beir_cocodr.training.distillation.teacher_rows import STUDENTS, TEACHERS
from beir_cocodr.training.finetuning.loss_rows import DISTILLATION_LOSSES
from beir_cocodr.training.finetuning.weightings import WEIGHTINGS
from beir_cocodr.training.presets import ADAPT_STAGES
from beir_cocodr.training.pretraining.objectives import OBJECTIVES

THEIRS = (
    "---\nlicense: mit\ndatasets:\n- secret/data\n---\n# Their great model\n\nScores 99 on"
    " everything.\n"
)


def record(stage: str = "coco", base: str = "OpenMatch/cocodr-base", **more) -> TrainingRecord:
    seen = CollectionProvenance("/home/me/notes", 12, "c" * 64)
    return TrainingRecord(
        stage, base, "b" * 64, options={"max_steps": 3, "seed": 7}, seen=(seen,), steps=3, **more
    )


@pytest.fixture(scope="module")
def trained(tiny_bert, tmp_path_factory):
    """A folder with the card of a base beside it, over which ours was written."""
    folder = tmp_path_factory.mktemp("trained")
    COCODR(str(tiny_bert), query_length=16).save_pretrained(str(folder), create_model_card=False)
    (folder / "README.md").write_text(THEIRS)
    child = record("finetune", "/tmp/runs/coco", parent=record())
    write_card(folder, child)
    return folder


def test_the_card_has_what_training_recorded_and_nothing_of_the_base(trained):
    card = ModelCard.load(trained / "README.md")
    assert card.data.base_model == "OpenMatch/cocodr-base"
    assert card.data.library_name == "sentence-transformers"
    assert {"coco", "finetune", "beir-cocodr"} <= set(card.data.tags)
    for there in (
        "coco, finetune",
        "`notes`",
        "12 documents",
        "c" * 16,
        "b" * 16,
        "max_steps 3",
        "seed 7",
        "3 steps",
    ):
        assert there in card.text
    for absent in ("Their great", "99", "secret", "mit\n", "/home", "/tmp"):
        assert absent not in card.content
    assert "Not measured" in card.text.split("## Figures")[1]


def test_a_base_in_a_folder_is_no_name_on_the_hub(tmp_path):
    for base, hub in ((str(tmp_path), None), ("minilm", "sentence-transformers/all-MiniLM-L6-v2")):
        write_card(tmp_path, record(base=base))
        assert ModelCard.load(tmp_path / "README.md").data.base_model == hub


@pytest.mark.parametrize("kind", [COCODR, SentenceTransformer, load_encoder])
def test_whoever_saves_or_uploads_the_model_writes_our_card(trained, tmp_path, kind):
    """push_to_hub sets the name and saves, as here; the host's copy of the card is a private name
    of it.
    """
    model, ours = kind(str(trained)), (trained / "README.md").read_text()
    model.save_pretrained(str(tmp_path / "a"))
    assert (tmp_path / "a" / "README.md").read_text() == ours
    model.model_card_data.set_model_id("me/mine")
    model.save(str(tmp_path / "b"), model_name="me/mine")
    uploaded = (tmp_path / "b" / "README.md").read_text()
    assert uploaded == ours.replace("sentence_transformers_model_id", "me/mine")
    assert "me/mine" in uploaded


@pytest.mark.parametrize("kind", ["stock", "MRL"])
def test_the_model_is_loaded_as_the_card_shows(tiny_bert, trained, tmp_path, kind, capsys):
    folder = trained
    if kind == "MRL":
        folder = tmp_path / "mrl"
        MRL(str(tiny_bert), k=4).save_pretrained(str(folder), create_model_card=False)
        write_card(folder, record("distill"))
    text = (folder / "README.md").read_text()
    assert ("pip install beir-cocodr" in text) == (kind == "MRL")
    [snippet] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(snippet.replace("sentence_transformers_model_id", str(folder)), {})
    assert "tensor" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["MRL", "hybrid"])
def test_the_card_of_a_base_is_not_that_of_what_is_made_of_it(
    tiny_bert, beir_folder, tmp_path, kind
):
    COCODR(str(tiny_bert)).save_pretrained(str(tmp_path / "base"), create_model_card=False)
    (tmp_path / "base" / "README.md").write_text(THEIRS)
    base, made = str(tmp_path / "base"), tmp_path / "made"
    if kind == "MRL":
        MRL(base, k=4).save_pretrained(str(made))
    else:
        fuse(base, str(beir_folder), output=made, options=FuseOptions(sample=8, probes=2))
        head = HybridEncoder(str(made)).head
        text = (made / "README.md").read_text()
        assert {"fuse", "load_encoder", "Robertson"} <= set(re.findall(r"\w+", text))
        HybridEncoder(base, head=head).save_pretrained(str(made))
    assert "Their great model" not in (made / "README.md").read_text()


def test_every_method_is_cited():
    """By a key of the papers; rows that scripts add may bring an entry of their own."""
    tables = (OBJECTIVES, WEIGHTINGS, DISTILLATION_LOSSES, TEACHERS, STUDENTS, ADAPT_STAGES)
    rows = [row for table in tables for row in table.values()]
    cited = {key for row in rows for key in row.citations if not key.startswith("@")}
    beside = {"reimers2019sbert", "xiong2021ance"}  # the library, and mining in episodes
    assert cited | beside <= PAPERS.keys()
    methods = {**OBJECTIVES, **WEIGHTINGS}
    assert {name for name, row in methods.items() if not row.citations} == {"erm"}
    for entry in PAPERS.values():
        assert entry.startswith("@")
        fields = set(re.findall(r"^  (\w+) = ", entry, flags=re.MULTILINE))
        assert {"author", "title", "year"} <= fields


@pytest.mark.parametrize("table", [FUSIONS, HOSTED, ESTIMATORS, ARCHITECTURES, PREDICTORS])
def test_what_a_row_cites_is_among_the_papers(table):
    cited = {row.citation for row in table.values() if row.citation}
    assert cited
    assert cited <= PAPERS.keys()
    assert all(row.help for row in table.values())


def test_papers_are_those_of_the_lineage_each_once_and_of_ones_own():
    mine = "@misc{me, title = {Mine}}"
    parent = TrainingRecord("coco", citations=("yu2022cocodr",))
    child = TrainingRecord("finetune", parent=parent, citations=("yu2022cocodr", mine))
    entries = papers(child.lineage())
    assert entries == [PAPERS["reimers2019sbert"], PAPERS["yu2022cocodr"], mine]
