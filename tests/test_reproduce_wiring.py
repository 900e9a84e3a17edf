"""A figure of the papers' tables stands only where its step was made of what its row says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reproduce import runner
from reproduce.cocodr_models import IDRO_SETTINGS
from reproduce.commands import options_of
from reproduce.lineage import Making, mismatch
from reproduce.scales import PaperScale, resolve
from reproduce.specification import Cell
from reproduce.tables import single_cells
from reproduce.workshop import Workshop

from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import CollectionProvenance

TABLES = {name: table for name, (_, table) in runner.TABLES.items()}
PAPER_OF = {name: paper for name, (paper, _) in runner.TABLES.items()}

#: The weightings of a fine-tuning; what stands behind the + of a distillation is its loss.
WEIGHTINGS = ("erm", "idro", "groupdro")

#: The figure that every step has made.
FIGURE = 2


def shop(table: str, tmp_path: Path, **options: Any) -> Workshop:
    return Workshop(PAPER_OF[table], PaperScale(), tmp_path, **options)


def filled(place: Workshop, text: str) -> str:
    return resolve(text, place.scale, place.folder)


def put(content: dict[str, Any], path: str, value: object) -> None:
    """Put a value where ``reproduce.specification.read`` finds it."""
    part, _, rest = path.partition("|")
    selector = re.fullmatch(r"([^\[\]]+)\[([^\[\]]*)\](?:#(\d+))?", part)
    if part == "?":
        for key in str(value).split(", "):
            content.setdefault(key, {})
        return
    if selector is None:
        key = next(iter(content), "m") if part == "*" else part
        if rest:
            put(content.setdefault(key, {}), rest, value)
        else:
            content[key] = value
        return
    wanted = dict(pair.split("=", 1) for pair in selector[2].split(",") if pair)
    records = content.setdefault(selector[1], [])
    while True:
        matching = [one for one in records if not rest or wanted.items() <= one.items()]
        if len(matching) > int(selector[3] or 0):
            break
        records.append(dict(wanted) if rest else value)
    if rest:
        put(matching[int(selector[3] or 0)], rest, value)


def write_files(place: Workshop, cell: Cell, values: dict[str, object]) -> None:
    """Write the files of a cell's step with these values, address to value, and finish the step."""
    folder = place.folder(cell.step)
    files: dict[str, dict[str, Any]] = {}
    # Names of models come first, because another address may mean the only one.
    for address in sorted(values, key=lambda address: not address.endswith("?")):
        name, path = filled(place, address).split(":", 1)
        put(files.setdefault(name, {}), path, values[address])
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    commands = place.words(cell.step)
    progress = {"finished": len(commands), "seconds": [], "commands": commands}
    record = folder.with_name(f"{folder.name}.progress.json")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(progress))


def as_stated(place: Workshop, cell: Cell) -> dict[str, object]:
    """Return what the files of a cell's step must have, with a figure."""
    values: dict[str, object] = {}
    for address, expected in cell.expects:
        values[address] = filled(place, expected)
    values[cell.read] = FIGURE
    return values


def options_for(training: str) -> tuple[str, dict[str, Any]]:
    """Return the stage and the options of a training with this name."""
    first, plus, second = training.partition("+")
    if not plus:
        return training, {}
    if second in WEIGHTINGS:
        return "finetune", {"loss": first, "weighting": second}
    return "distill", {"student": first, "loss": second}


def record_of(place: Workshop, making: Making) -> TrainingRecord:
    """Return the record of a model that was made in this way."""
    record = None
    for number, training in enumerate(making.trainings):
        stage, options = options_for(training)
        is_last = number == len(making.trainings) - 1
        settings = dict(making.settings) if is_last else {}
        data = making.data if is_last else making.data[:1]
        record = TrainingRecord(
            stage=stage,
            base=filled(place, making.start) if record is None else "runs/before",
            options=options | {"further": settings},
            seen=tuple(CollectionProvenance(filled(place, name)) for name in data),
            episode=making.round if is_last else None,
            steps=FIGURE,
            seconds=FIGURE,
            parent=record,
        )
    assert record is not None
    return record


def models_of(cell: Cell) -> list[tuple[str, Making]]:
    own = [] if cell.making is None else [(cell.model, cell.making)]
    return [*own, *cell.others]


def finish(place: Workshop, cell: Cell) -> None:
    """Pretend that the step of a cell is done, and that all is made as the cell's row says."""
    write_files(place, cell, as_stated(place, cell))
    for model, making in models_of(cell):
        folder = Path(filled(place, model))
        folder.mkdir(parents=True, exist_ok=True)
        record_of(place, making).write(folder / "training.json")


def wrong_makings(making: Making) -> Iterator[Making]:
    """Yield makings of neighbours, each of which differs in one thing."""
    yield replace(making, start="{model:another}")
    yield replace(making, trainings=(*making.trainings, making.trainings[-1]))
    yield replace(making, round=7)
    yield replace(making, data=(*making.data, "{data:quora-of-others}"))
    for left_out in {making.data[0], making.data[-1]}:
        yield replace(making, data=tuple(name for name in making.data if name != left_out))
    for name, _ in making.settings:
        yield making.then(settings={name: 1234.0})


@cache
def kinds_of_cells() -> list[tuple[str, Cell]]:
    """Return a cell of each table for each kind of steps that it reads, which checks alike."""
    found: dict[tuple[object, ...], tuple[str, Cell]] = {}
    for name, table in TABLES.items():
        for whole in table.cells.values():
            for cell in single_cells(whole):
                addresses = tuple(address for address, _ in cell.expects)
                made = tuple((making.trainings, making.settings) for _, making in models_of(cell))
                kind = (name, cell.step.split("/")[0], addresses, made)
                found.setdefault(kind, (name, cell))
    return list(found.values())


def test_every_figure_is_checked_and_every_trained_model_says_what_it_is_made_of():
    for name, table in TABLES.items():
        for position, whole in table.cells.items():
            for cell in single_cells(whole):
                assert cell.expects or cell.making, (name, position)
                is_trained = cell.step.startswith("judged/") and cell.model
                assert not is_trained or cell.making is not None, (name, position)
                for _, making in models_of(cell):
                    assert making.data, (name, position)
                    assert making.trainings, (name, position)


@pytest.mark.parametrize("name", TABLES)
def test_a_wrong_folder_or_a_model_that_was_made_otherwise_fails(name, tmp_path):
    """Each thing that a cell states is made wrong, and nothing else."""
    cells = [cell for table, cell in kinds_of_cells() if table == name]
    assert cells
    for number, cell in enumerate(cells):
        place = shop(name, tmp_path / str(number))
        finish(place, cell)
        assert place.figure(cell) == (FIGURE * cell.factor, "")
        for address, expected in cell.expects:
            values = as_stated(place, cell)
            values[address] = "elsewhere"
            write_files(place, cell, values)
            figure, why = place.figure(cell)
            assert figure is None
            assert "wired wrongly" in why, (address, expected)
        write_files(place, cell, as_stated(place, cell))
        for model, making in models_of(cell):
            file = Path(filled(place, model)) / "training.json"
            for wrong in wrong_makings(making):
                record_of(place, wrong).write(file)
                figure, why = place.figure(cell)
                assert figure is None
                assert "wired wrongly" in why, wrong
            record_of(place, making).write(file)


FINETUNED = TrainingRecord(
    stage="finetune",
    base="runs/coco-base",
    options={
        "loss": "triplet",
        "weighting": "idro",
        "weighting_options": {"clusters": 50, "rho": 0.05},
    },
    parent=TrainingRecord(stage="coco", base="Luyu/condenser"),
)


def finetuned(place: Workshop, cell: Cell) -> TrainingRecord:
    """Return the record of COCO-DR as a training writes it, with all corpora."""
    assert cell.making is not None
    seen = tuple(CollectionProvenance(filled(place, name)) for name in cell.making.data)
    assert FINETUNED.parent is not None
    return replace(FINETUNED, seen=seen[:1], parent=replace(FINETUNED.parent, seen=seen))


def test_the_message_says_what_a_model_was_made_of(tmp_path):
    place = shop("coco-dr-table2", tmp_path)
    cell = TABLES["coco-dr-table2"].cells["scifact", "coco-dr-base"]
    finish(place, cell)
    right = finetuned(place, cell)
    file = place.folder("coco-dr-base") / "training.json"
    right.write(file)
    assert place.figure(cell) == (FIGURE, "")
    assert not place.failed
    coco = right.parent
    assert coco is not None
    for changed, problem in (
        (replace(right, options={"loss": "triplet", "weighting": "erm"}), "triplet\\+erm"),
        (replace(right, parent=None), "made by triplet\\+idro, not by coco, triplet\\+idro"),
        (replace(right, parent=replace(coco, base="Luyu/other")), "from Luyu/other, not from"),
        (replace(right, parent=replace(coco, seen=coco.seen[:-1])), "not of irds:beir/"),
        (replace(right, seen=(CollectionProvenance("irds:beir/fever/dev"),)), "fever/dev, too"),
    ):
        changed.write(file)
        figure, why = place.figure(cell)
        assert figure is None
        assert re.search(f"wired wrongly: .*{problem}", why)
        assert place.failed


def test_a_corpus_that_is_left_out_is_not_missed(tmp_path):
    cell = TABLES["coco-dr-table2"].cells["scifact", "coco-dr-base"]
    assert cell.making is not None
    without = shop("coco-dr-table2", tmp_path / "without", without=["bioasq", "cqadupstack"])
    finish(without, cell)
    assert "too" in without.figure(cell)[1]  # as if they had been read all the same
    kept = [name for name in cell.making.data if "bioasq" not in name and "cqadup" not in name]
    making = replace(cell.making, data=tuple(kept))
    record_of(without, making).write(without.folder("coco-dr-base") / "training.json")
    assert without.figure(cell) == (FIGURE, "")


def swapped(place: Workshop, cell: Cell, other: Cell) -> str:
    """Say what is wrong if the model of a cell is made as that of another one."""
    finish(place, cell)
    assert cell.making is not None
    assert other.making is not None
    record_of(place, other.making).write(Path(filled(place, cell.model)) / "training.json")
    return place.figure(cell)[1]


@pytest.mark.parametrize(
    ("row", "other", "problem"),
    [
        ("K = 25", "K = 100", "clusters [100], not 25"),
        ("K = 50", "K = 250", "clusters [250], not 50"),
        ("τ = 200", "τ = 500", "rho [0.1], not 0.25"),
        ("τ = 2,000", "K = 50", "rho [0.05], not 0.025"),
        ("K = 25", "τ = 200", "clusters [50], not 25"),
    ],
)
def test_a_row_of_figure_3_with_the_model_of_another_row_fails(row, other, problem, tmp_path):
    cells = TABLES["coco-dr-figure3"].cells
    place = shop("coco-dr-figure3", tmp_path)
    assert problem in swapped(place, cells[row, "scifact"], cells[other, "scifact"])


def test_figure_3_varies_clusters_and_temperature_alone(tmp_path):
    """The preset is K = 50 and τ = 1,000, one model in two rows."""
    place = shop("coco-dr-figure3", tmp_path)
    [preset] = place.words("coco-dr-base")
    options = options_of(preset, 1)
    assert options.clustering.clusters == IDRO_SETTINGS["clusters"] == 50
    assert options.weighting_options.rho == IDRO_SETTINGS["rho"]
    settings = {}
    for name in place.steps:
        if re.fullmatch(r"coco-dr-base-(K|tau)\d+", name):
            [words] = place.words(name)
            changed = [word for word in words if word not in preset and str(tmp_path) not in word]
            settings[name] = changed
    assert settings["coco-dr-base-K250"] == ["--set", "clusters=250"]
    assert settings["coco-dr-base-tau500"] == ["--set", "rho=0.1"]
    options = options_of(place.words("coco-dr-base-tau200")[0], 1)
    assert options.clustering.clusters / options.weighting_options.rho == 200
    assert len(settings) == 6
    cells = TABLES["coco-dr-figure3"].cells
    assert cells["K = 50", "scifact"] == cells["τ = 1,000", "scifact"]
    assert cells["K = 50", "scifact"].model == "{step:coco-dr-base}"


def test_retriever_1_in_the_place_of_retriever_2_fails_and_the_reverse(tmp_path):
    cells = TABLES["query-as-context-table1"].cells
    first = cells["cocondenser-qc-120k-retriever1", "msmarco, mrr@10"]
    second = cells["cocondenser-qc-120k-retriever2", "msmarco, mrr@10"]
    place = shop("query-as-context-table1", tmp_path)
    assert "is of round None, not 0" in swapped(place, first, second)
    assert "is of round 0, not None" in swapped(place, second, first)


def test_a_model_of_coco_that_lacks_a_corpus_fails(tmp_path):
    cell = TABLES["coco-dr-table1"].cells["nq", "coco-dr-large"]
    place = shop("coco-dr-table1", tmp_path)
    finish(place, cell)
    assert cell.making is not None
    assert len(cell.making.data) == 1 + 17 - 1 + 12  # MS MARCO, and 12 forums for one task
    lacking = [name for name in cell.making.data if "nfcorpus" not in name]
    record = record_of(place, replace(cell.making, data=tuple(lacking)))
    record.write(place.folder("coco-dr-large") / "training.json")
    assert "not of irds:beir/nfcorpus" in place.figure(cell)[1]


@pytest.mark.parametrize(
    ("table", "row", "column", "address", "wrong", "problem"),
    [
        (
            "extrapolation-table6",
            "45k, dr-base",
            "ndcg@10, inter",
            "regimes.json:folder",
            "{step:restrain-45k}",
            "not {step:restrain}",
        ),
        (
            "extrapolation-table6",
            "45k, dr-base",
            "ndcg@10, inter",
            "regimes.json:rows[model=dense]#1|group",
            "size-14k",
            "is size-14k, not size-{size:45000}",
        ),
        (
            "extrapolation-table8",
            "dr-hardneg",
            "msmarco, mrr@10, extra",
            "regimes.json:folder",
            "{step:restrain-45k}",
            "not {step:resttest}",
        ),
        (
            "extrapolation-figure2",
            "14k, dense@roberta",
            "extrapolation, trec-covid",
            "settings.json:other_starts|roberta[]#0",
            "{model:bert-base}",
            "not {model:roberta-base}",
        ),
        (
            "extrapolation-table3",
            "highly-relevant",
            "trec-dl-2019",
            "overlap.json:test|dataset",
            "{data:trec-dl-2020}",
            "not {data:trec-dl-2019}",
        ),
        (
            "extrapolation-table4",
            "trec-dl-2020, 1",
            "training_text",
            "overlap.json:nearest|encoder|name",
            "{model:tas-b}",
            "not {model:ance}",
        ),
        (
            "mrl-table3",
            "multi",
            "gigabytes",
            "storage.json:model",
            "{model:tas-b}",
            "not {model:colbertv2}",
        ),
        (
            "mrl-table3",
            "single",
            "milliseconds",
            "store/store.json:model|name",
            "{step:mrl-beta-10}",
            "not {step:mrl}",
        ),
        (
            "coco-dr-table6",
            "scifact",
            "document_lexical_similarity",
            "shift.json:source|dataset",
            "{data:nq}",
            "not {data:msmarco-train}",
        ),
        (
            "coco-dr-figure5",
            "scifact",
            "left: reduction of COCO's loss",
            "representation.json:models|?",
            "{model:condenser-base}, {step:coco-base}",
            "not {model:cocondenser-base}, {step:coco-base}",
        ),
        (
            "coco-dr-figure5",
            "scifact",
            "right: reduction of the nearest cluster's loss",
            "source_clusters.json:before",
            "{step:cocondenser-base}",
            "not {step:coco-dr-base-no-idro}",
        ),
    ],
)
def test_an_analysis_of_another_folder_fails(table, row, column, address, wrong, problem, tmp_path):
    place = shop(table, tmp_path)
    [cell] = single_cells(TABLES[table].cells[row, column])
    finish(place, cell)
    assert place.figure(cell) == (FIGURE * cell.factor, "")
    values = as_stated(place, cell)
    assert address in values
    write_files(place, cell, values | {address: filled(place, wrong)})
    figure, why = place.figure(cell)
    assert figure is None
    assert problem in why


def test_a_cell_of_another_collection_fails(tmp_path):
    place = shop("coco-dr-table2", tmp_path)
    cell = TABLES["coco-dr-table2"].cells["scifact", "coco-dr-base"]
    finish(place, cell)
    values = as_stated(place, cell) | {"judged/results.json:dataset": "irds:beir/fiqa"}
    write_files(place, cell, values)
    assert "is irds:beir/fiqa, not {data:scifact}" in place.figure(cell)[1]


def test_settings_of_a_training_are_compared_at_the_scale(tmp_path):
    options = {"student": "mrl", "loss": "lambdarank", "student_options": {"beta": 0.1}}
    record = TrainingRecord(stage="distill", base="b", options=options)
    record.write(tmp_path / "training.json")
    making = Making("b", ("mrl+lambdarank",), settings=(("beta", 0.1),))
    assert mismatch(tmp_path, making, str) == ""
    other = replace(making, settings=(("beta", 10.0),))
    assert "beta [0.1], not 10.0" in mismatch(tmp_path, other, str)
    assert mismatch(tmp_path, other, str, lambda name, value: value / 100) == ""
    assert "no training.json" in mismatch(tmp_path / "nowhere", making, str)


def test_queries_count_as_the_collection_that_they_were_generated_for(tmp_path):
    queries = tmp_path / "queries"
    queries.mkdir()
    generation = {"dataset": {"corpus_sha256": "0", "name": "d"}, "settings": {}}
    (queries / "generation.json").write_text(json.dumps({"schema": 1, **generation}))
    record = TrainingRecord(stage="coco", base="b", seen=(CollectionProvenance(str(queries)),))
    record.write(tmp_path / "training.json")
    assert mismatch(tmp_path, Making("b", ("coco",), ("d",)), str) == ""
    assert "made of d, not of e" in mismatch(tmp_path, Making("b", ("coco",), ("e",)), str)
