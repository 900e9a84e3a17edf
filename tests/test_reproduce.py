"""Published figures have a command or a reason, killed tables resume, and pages name commands."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from functools import cache
from inspect import signature
from itertools import pairwise
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from conftest import process, write_beir
from reproduce import pages, runner
from reproduce.commands import command_line, options_of
from reproduce.costs import Cost, cost, throughputs
from reproduce.plans import describe_plan, plan
from reproduce.scales import PaperScale, is_cached, is_training, resolve
from reproduce.settings import HEAD_BETA, settings_rows
from reproduce.settings import TABLES as SETTINGS_TABLES
from reproduce.shared import BY_HAND, FORUMS, IRDS, TASKS
from reproduce.specification import Cell, Step, figures, leaves, read
from reproduce.tables import leave_out
from reproduce.workshop import Workshop

from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.models.mrl_head import MRLHead
from beir_cocodr.training.presets import PRESETS

ROOT = Path(__file__).parents[1]
TABLES = {name: table for name, (_, table) in runner.TABLES.items()}


def shop(paper: str, tmp_path: Path, scale=None) -> Workshop:
    return Workshop(runner.PAPERS[paper], scale or PaperScale(), tmp_path)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return a function that plans a paper for some GPUs once, in a folder that stays empty."""
    folder = tmp_path_factory.mktemp("planned")
    return cache(lambda paper, gpus=8: shop(paper, folder, PaperScale(gpus=gpus)))


def test_the_tables_are_those_of_the_papers():
    numbers = {
        paper: {table.name.removeprefix(f"{paper}-") for table in found.tables}
        for paper, found in runner.PAPERS.items()
    }
    assert numbers == {
        "coco-dr": {*(f"table{n}" for n in (1, 2, 3, 6, 7)), *(f"figure{n}" for n in (3, 4, 5, 6))},
        "mrl": {f"table{n}" for n in range(2, 7)},
        "query-as-context": {*(f"table{n}" for n in range(1, 5)), "speed"},
        "extrapolation": {*(f"table{n}" for n in range(3, 10)), "figure2"},
    }


@pytest.mark.parametrize("name", TABLES)
def test_every_published_figure_has_a_command_or_a_reason(name, planned):
    paper, table = runner.TABLES[name]
    place = planned(paper.name)
    for top in table.of:
        printed = {f"{top}|{path}": value for path, value in leaves(figures(table.file, top))}
        assert printed
        assert set(printed) <= {cell.published for cell in table.cells.values()}
    found = plan(place, table)
    explained = {cell for where in found["reasons"].values() for cell in where}
    steps = {step["step"] for step in found["steps"]}
    for (row, column), cell in table.cells.items():
        if f"{row}, {column}" not in explained:
            assert cell.steps()
            assert {place.first_equal(step) for step in cell.steps()} <= steps
    for step in found["steps"]:
        assert step["commands"]
        assert not any("{" in line for line in step["commands"])
    text = describe_plan(place, table)
    assert f"{len(table.cells)} cells" in text
    assert all(line in text for step in found["steps"] for line in step["commands"])
    assert "hours on 8 GPUs" in text
    assert "none was measured" in text or throughputs()["gpu"]["measured"]


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("paper", runner.PAPERS)
def test_every_planned_training_can_share_its_batch(paper, gpus, planned):
    """Ask the options themselves, for the processes that the command line names."""
    place = planned(paper, gpus)
    counts = set()
    for name in place.steps:
        for words in place.words(name):
            if not is_training(words):
                continue
            line = command_line(words, gpus)
            processes = 1
            if line[0] == "torchrun":
                processes = int(line[line.index("--nproc-per-node") + 1])
            assert 1 <= processes <= gpus
            assert options_of(words, processes).batch_size % processes == 0, words
            counts.add(processes)
    assert max(counts) == gpus


def test_a_batch_of_75_is_shared_by_five_of_eight_gpus_and_costs_so():
    words = ["finetune", "--dataset", "d", "--model", "m", "--output", "o", "--batch-size", "75"]
    assert command_line(words, 8)[:4] == ["torchrun", "--standalone", "--nproc-per-node", "5"]
    assert command_line(words, 2)[0] == "beir-cocodr"
    line = f"{shlex.join(words)} --max-steps 100000"
    on_eight, on_five = (cost(Step((line,)), gpus, {}) for gpus in (8, 5))
    assert on_eight == on_five


def test_table_5_correlates_over_the_dense_models_of_the_paper(tmp_path):
    """Six pre-trained models, hard negatives and distillation, in three sizes; nothing else."""
    place = shop("extrapolation", tmp_path)
    [sets] = place.words("restrain")
    assert [value for flag, value in pairwise(sets) if flag == "--size"] == [
        "14000",
        "45000",
        "200000",
    ]
    [words] = place.words("alignment")
    values = dict(pairwise(words))
    assert values["--folder"] == str(place.folder("restrain"))
    models = values["--architecture"].split(",")
    assert all(model.startswith("dense") for model in models)
    starts = dict(v.split("=", 1) for flag, v in pairwise(words) if flag == "--other-start")
    assert {model.partition("@")[2] for model in models} == {"", *starts}
    assert {values["--start"], *starts.values()} == {
        "bert-base-uncased",
        "roberta-base",
        "nghuyong/ernie-2.0-base-en",
        "Luyu/condenser",
        "Luyu/co-condenser-wiki",
        "Luyu/co-condenser-marco",
    }
    assert len(models) * 3 == 24
    assert len(TABLES["extrapolation-figure2"].rows) == 24


SIMILARITY = "query_intent_similarity"
LICENSED = ("bioasq", "signal1m", "trec-news", "robust04")


def planned_data(capsys, *arguments: str) -> str:
    runner.main([*arguments, "--plan"])
    return capsys.readouterr().out


def test_tasks_are_left_out_of_rows_averages_and_pretraining(capsys, tmp_path):
    text = planned_data(capsys, "coco-dr-table2", "--without", ",".join(LICENSED))
    assert "Without bioasq, signal1m, trec-news, robust04." in text
    assert "by hand" not in text
    assert "--dataset irds:beir/scidocs" in text
    paper, table = runner.TABLES["coco-dr-table2"]
    place = Workshop(paper, PaperScale(), tmp_path, without=LICENSED)
    cells = leave_out(place, table).cells
    column = table.columns[0]
    assert "left out by --without bioasq" in cells["bioasq", column].why
    kept = [task for task in TASKS if task not in LICENSED]
    average = leave_out(place, table).published(cells["avg", column])
    scores = figures("cocodr", "table2|scores")
    assert average == pytest.approx(np.mean([scores[task][column] for task in kept]))


def test_an_unknown_task_to_leave_out_is_refused(capsys):
    with pytest.raises(SystemExit) as error:
        runner.main(["coco-dr-table2", "--plan", "--without", "bioasc"])
    assert error.value.code == 2
    assert "bioasc" in capsys.readouterr().err


def test_what_is_missing_by_licence_names_the_way_out(tmp_path):
    assert "--without bioasq" in PaperScale(tmp_path).missing("bioasq")


def test_no_corpus_is_read_twice_in_pretraining(tmp_path):
    place = shop("coco-dr", tmp_path)
    [words] = place.words("coco-base")
    read = [value for flag, value in pairwise(words) if flag == "--dataset"]
    assert len(read) == len(set(read))
    assert not ({"irds:beir/fever", "irds:beir/climate-fever"} <= set(read))


def test_chosen_rows_read_no_other_collections(capsys):
    text = planned_data(capsys, "coco-dr-table6", "--rows", "scifact", "--columns", SIMILARITY)
    assert "irds:beir/scifact" in text
    assert "irds:beir/nfcorpus" not in text
    assert "by hand" not in text


def test_figures_are_read_by_path(tmp_path):
    content = {
        "rows": [{"model": "a", "x": 1}, {"model": "b", "x": 2}, {"model": "b", "x": 3}],
        "of": {"only": {"y": 4}},
    }
    (tmp_path / "f.json").write_text(json.dumps(content))
    assert read(tmp_path, "f.json:rows[model=b]|x") == 2
    assert read(tmp_path, "f.json:rows[model=b]#1|x") == 3
    assert read(tmp_path, "f.json:of|*|y") == 4
    with pytest.raises(LookupError):
        read(tmp_path, "f.json:rows[model=c]|x")


def test_presets_give_the_steps_that_costs_count():
    words = ["finetune", "--preset", "cocodr-base", "--weighting", "idro"]
    assert (options_of(words, 8).batch_size, options_of(words, 8).max_steps) == (512, 45_000)
    command = (
        "finetune --preset cocodr-base --dataset {data:msmarco-train} --model m --output {out}"
    )
    found = cost(Step((command,)), 8, {})
    assert found.steps == 4 * 45_000
    # 512 triplets of 3 texts of 89.6 tokens, 45,000 steps in each of four rounds, at 6 FLOPs a
    # weight and token, or 8 with gradient caching, and no more than a tenth beside for mining and
    # BM25.
    sustained = throughputs()["gpu"]["sustained_tflops"] * 1e12 * 8 * 3600
    training = 110e6 * 512 * 3 * 128 * 0.7 * 180_000 / sustained
    # iDRO's products are of the last three layers, for 64 triplets of a GPU and 50 clusters.
    products = 192 * 128 * 0.7 + 50 * 64 + 50**2
    gram = 2 * 3 * 12 * 768**2 * products * 180_000 / throughputs()["gram_tflops"]["value"]
    gram /= 1e12 * 3600
    assert 6 * training + gram < found.hours < 8 * training * 1.1 + gram + 3
    assert (Cost(1, 2, 3, 4) + Cost(1, 1, 1, 1)) == Cost(2, 2, 4, 5)


def test_placeholders_are_filled(tmp_path):
    scale = PaperScale(tmp_path)
    (tmp_path / "scifact").mkdir()
    text = (
        "--dataset {data:scifact} --dataset {data:nq} --model {model:condenser-base} --store"
        " {step:a/b} -o {out}"
    )
    found = resolve(text, scale, lambda name: Path("S") / name, Path("O"))
    given = (
        f"--dataset {tmp_path}/scifact --dataset irds:beir/nq --model Luyu/condenser --store S/a/b"
        " -o O"
    )
    assert found == given


def here(tmp_path: Path, *arguments: str) -> list[str]:
    table = ["extrapolation-table3", "--scale", "here", "--output", str(tmp_path / "out")]
    return [*table, *arguments]


def program(arguments: list[str]) -> None:
    """Run `python benchmarks/reproduce` in this process."""
    sys.argv = ["reproduce", *arguments]
    run_path(str(ROOT / "benchmarks" / "reproduce"), run_name="__main__")


def test_a_table_runs_here_is_killed_and_goes_on(tmp_path, capsys):
    """Run in a process of its own until the first step has begun, then in this process."""
    begun = tmp_path / "out" / "extrapolation" / "steps" / "overlap" / "trec-dl-2019.progress.json"
    running = process(program, here(tmp_path))
    end = time.monotonic() + 120
    while not begun.is_file() and running.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    assert running.is_alive()
    running.kill()
    running.join()
    assert json.loads(begun.read_text())["finished"] == 0

    begun.rename(tmp_path / begun.name)  # as if it was killed a moment before
    for folder in (tmp_path / "out", begun.parent):
        (folder / ".unfinished-0").mkdir()
    runner.main(here(tmp_path))
    out = capsys.readouterr()
    assert "Not comparable" in out.out
    assert not list((tmp_path / "out").rglob(".unfinished-*"))
    found = json.loads((tmp_path / "out" / "extrapolation-table3.json").read_text())
    assert found["comparable"] is False
    cells = [cell for row in found["cells"].values() for cell in row.values()]
    assert len(cells) == 6
    assert all(cell.keys() == {"ours"} or "no such figure" in cell["why"] for cell in cells)
    assert any(cell["ours"] is not None for cell in cells)
    records = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    runner.main(here(tmp_path))
    assert "overlap" not in capsys.readouterr().err
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    assert {path for path in again if again[path] != records[path]} == {
        tmp_path / "out" / "extrapolation-table3.json"
    }


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Two tasks and one forum of cqadupstack as BEIR folders; nothing in the cache of
    ir_datasets.
    """
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))
    for name in ("arguana", "nfcorpus", "cqadupstack/android"):
        write_beir(tmp_path / "data" / name, seed=len(name))
    return tmp_path / "data"


def table1(data: Path, tmp_path: Path, *arguments: str) -> dict:
    output = tmp_path / "out"
    given = [
        "coco-dr-table1",
        "--inside",
        "--gpus",
        "1",
        "--data",
        str(data),
        "--output",
        str(output),
        *arguments,
    ]
    runner.main(given)
    return json.loads((output / "coco-dr-table1.json").read_text())


def judged(tmp_path: Path, model: str, task: str) -> dict:
    folder = (
        tmp_path
        / "out"
        / "coco-dr"
        / "steps"
        / "judged"
        / model.replace("/", "--")
        / task
        / "judged"
    )
    return json.loads((folder / "results.json").read_text())


def test_further_models_stand_beside_what_is_published(data, tmp_path, tiny_bert, capsys):
    models = [str(tiny_bert), "bm25"]
    report = table1(data, tmp_path, "--model", models[0], "--model", models[1])
    cells = report["cells"]
    ran = [row for row in TASKS if cells[row]["bm25"]["ours"] is not None]
    assert ran == ["nfcorpus", "arguana"]
    for task, lengths in (("nfcorpus", (64, 128)), ("arguana", (128, 128))):
        results = judged(tmp_path, models[0], task)
        found = results["models"][models[0]]["retrieval"]["text_format"]
        assert (found["query_length"], found["document_length"]) == lengths
        assert results["identical_ids"] == ("drop" if task == "arguana" else "keep")
        steps = tmp_path / "out" / "coco-dr" / "steps" / "judged"
        assert not list(steps.rglob("store"))
    assert report["averages"]["avg"] == "2 of 18"
    for model in models:
        scores = [cells[task][model]["ours"] for task in ran]
        assert cells["avg"][model]["ours"] == pytest.approx(np.mean(scores))
    assert cells["avg"]["coco-dr-base"]["published"] == pytest.approx((0.355 + 0.493) / 2)
    assert cells["avg"]["cpt-xl"]["published"] == pytest.approx((0.407 + 0.435) / 2)
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[0].count("|") == 1 + 1 + 1 + 13
    assert "scifact is missing" in out
    assert "arguana: 48 documents and 16 queries, published 8,674 and 1,406: another version" in out
    ours = judged(tmp_path, "bm25", "nfcorpus")["models"]["bm25"]["measures"]["nDCG@10"]
    alone = evaluate(
        ["bm25"], str(data / "nfcorpus"), output=tmp_path / "again", measures="nDCG@10"
    )
    assert cells["nfcorpus"]["bm25"]["ours"] == ours == alone.models["bm25"].measures["nDCG@10"]
    assert cells["nfcorpus"]["bm25"]["gap"] == pytest.approx(ours - 0.325)


def test_cqadupstack_is_the_mean_of_its_12_forums_or_nothing(data, tmp_path, capsys):
    arguments = ("--model", "bm25", "--rows", "cqadupstack")
    with pytest.raises(SystemExit) as status:
        table1(data, tmp_path, *arguments)
    assert status.value.code == 1
    assert "cqadupstack/english is missing" in capsys.readouterr().out
    for i, forum in enumerate(FORUMS[1:], 1):
        write_beir(data / "cqadupstack" / forum, documents=24, queries=4 + i % 3, seed=i)
    report = table1(data, tmp_path, *arguments)
    scores = [judged(tmp_path, "bm25", f"cqadupstack/{forum}") for forum in FORUMS]
    mean = np.mean([found["models"]["bm25"]["measures"]["nDCG@10"] for found in scores])
    assert report["cells"]["cqadupstack"]["bm25"]["ours"] == pytest.approx(mean)
    assert report["cells"]["avg"]["gpl"]["published"] == 0.357
    assert report["cells"]["avg"]["cpt-l"]["published"] is None  # that cell is empty
    assert "avg_cpt_sub" not in report["cells"]


def test_a_broken_task_stops_no_other_and_is_listed(data, tmp_path, capsys):
    (data / "arguana" / "corpus.jsonl").write_text('{"_id": "1", \n')
    with pytest.raises(SystemExit):
        table1(data, tmp_path, "--model", "bm25", "--rows", "arguana", "nfcorpus")
    report = json.loads((tmp_path / "out" / "coco-dr-table1.json").read_text())
    assert report["cells"]["nfcorpus"]["bm25"]["ours"] > 0
    assert "corpus.jsonl:1" in report["cells"]["arguana"]["bm25"]["why"]


def test_the_cache_of_ir_datasets_is_looked_at_and_never_filled(data, tmp_path):
    home = tmp_path / "irds" / "beir"
    assert not is_cached("beir/nq")
    assert not home.exists()
    assert "--download" in PaperScale().missing("nq")
    assert PaperScale(download=True).missing("nq") == ""
    assert "robust04 is missing" in PaperScale(download=True).missing("robust04")
    (home / "webis-touche2020" / "v2").mkdir(parents=True)
    (home / "webis-touche2020" / "v2" / "source.zip").touch()
    assert is_cached("beir/webis-touche2020/v2")
    for part in ("docs.pklz4", "queries.json", "test.qrels"):
        (home / "nq").mkdir(exist_ok=True)
        assert not is_cached("beir/nq")
        (home / "nq" / part).touch()
    assert is_cached("beir/nq")
    (home / "cqadupstack").mkdir()
    (home / "cqadupstack" / "source.zip").touch()
    assert is_cached("beir/cqadupstack/tex")


def test_weights_that_the_cache_lacks_are_named_and_only_downloaded_if_asked(tmp_path, monkeypatch):
    """Without --download a step does not begin, and the hub is not asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = shop("mrl", tmp_path)
    monkeypatch.setattr(PaperScale, "missing", lambda scale, data: "")
    for name in ("msmarco-distilbert-base-tas-b", "--download"):
        assert name in found.obstacle("mrl")
    allowed = Workshop(runner.PAPERS["mrl"], PaperScale(download=True), tmp_path)
    assert allowed.obstacle("mrl") == ""
    assert found.obstacle("mrl", needs_data=False) == ""
    assert PaperScale().missing_model(str(tmp_path)) == ""


def test_every_collection_has_a_name_in_ir_datasets_or_is_made_by_hand():
    from beir_cocodr.data.irds_source import is_registered

    names = {
        data
        for paper in runner.PAPERS.values()
        for step in paper.steps.values()
        for data in step.needs("data")
    }
    assert {name.split("/")[0] for name in names} >= {*TASKS, *BY_HAND}
    for name in names:
        if name.split("/")[0] not in BY_HAND:
            assert is_registered(IRDS.get(name, f"beir/{name}")), name


@pytest.mark.parametrize("name", SETTINGS_TABLES)
def test_the_page_has_the_settings_of_the_presets(name):
    page = (ROOT / "docs" / "reproduce" / f"{SETTINGS_TABLES[name].page}.md").read_text()
    assert pages.settings_marks(name).read(page) == pages.settings_table(name)


def test_each_preset_of_a_training_of_the_papers_stands_in_a_table():
    """GPL's and the resampled sets' presets are other papers'; base, large and cpu are ours."""
    shown = {preset for table in SETTINGS_TABLES.values() for preset in table.presets}
    assert shown == set(PRESETS) - {"gpl", "extrapolation", "base", "large", "cpu"}
    assert PRESETS["cotmae"]["finetune"] == PRESETS["qc"]["finetune"]  # so says the page
    rows = {(row[0], row[1]): row[2:] for row in settings_rows("coco-dr-large")}
    assert rows["COCO", "peak rate"][2:] == ["1e-5", "1e-5"]
    assert rows["fine-tuning", "steps of an episode"][2].startswith("30,000")
    assert ("fine-tuning", "clusters") not in rows  # as of the base model
    large = options_of(["finetune", "--preset", "cocodr-large", "--weighting", "idro"], 1)
    assert large.weighting_options.gradient_layers == 2
    assert signature(MRLHead).parameters["beta"].default == HEAD_BETA
    assert settings_rows("mrl")[3][1:] == ["queries of a step", "512", "512"]
    assert settings_rows("cotmae")[3][1:] == ["batch", "16k", "", "16,384"]


def test_presets_state_the_paper_or_the_released_commands():
    """What an audit of the authors' code found, against what a preset takes."""
    rows = {(row[0], row[1]): row[2:] for row in settings_rows("coco-dr")}
    paper, released, of_paper, of_released = rows["fine-tuning", "optimiser"]
    assert (of_paper, of_released) == ("AdamW", "LAMB") == (paper, released[:4])
    _, released, of_paper, of_released = rows["fine-tuning", "peak rates of the episodes"]
    assert of_paper == "5e-6, 5e-6, 5e-6"
    assert of_released == "5e-6, 4.25e-6, 3.5e-6"
    _, released, of_paper, of_released = rows["fine-tuning", "iDRO over several processes"]
    assert of_released == released != of_paper
    assert rows["fine-tuning", "tokens of queries and documents"][2:] == ["64, 128", "64, 256"]
    assert rows["fine-tuning", "order of triplets"][3].startswith("6 consecutive")
    assert rows["COCO", "tokens of a span"][3] == "30, and a longer sentence is kept whole"
    warm_up = rows["fine-tuning", "warm-up on BM25's negatives"][3]
    assert "without weights, 2e-4, LAMB, 256 triplets a GPU" in warm_up
    large = options_of(["finetune", "--preset", "cocodr-large-released", "--weighting", "idro"], 8)
    assert (large.batch_size, large.episode_options.bm25_learning_rate) == (8 * 32, 5e-5)
    assert options_of(["pretrain", "--preset", "cocodr-large-released"], 8).batch_size == 8 * 100


def test_a_mean_with_a_missing_part_says_which(tmp_path):
    place = shop("coco-dr", tmp_path)
    parts = (Cell(why="quoted"), Cell(why="other"))
    assert place.figure(Cell(combine="mean", parts=parts)) == (None, "quoted")


def test_bad_options_are_status_2(data, tmp_path):
    for arguments in (
        ["coco-dr-table1", "--model", "bm25", "--model", "bm25"],
        ["coco-dr-table1", "--rows", "nowhere"],
        ["coco-dr-table1", "--columns", "nowhere"],
        ["coco-dr-table1", "--data", str(tmp_path / "nowhere")],
        ["mrl-table2", "--model", "bm25"],
        ["coco-dr-table8"],
        [],
    ):
        with pytest.raises(SystemExit) as status:
            runner.main([*arguments, "--output", str(tmp_path / "out")])
        assert status.value.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("paper", runner.PAPERS)
def test_pages_have_the_commands_of_the_plans(paper):
    """`python benchmarks/reproduce/pages.py` writes them anew."""
    page = (ROOT / "docs" / "reproduce" / f"{paper}.md").read_text()
    assert pages.COMMANDS.read(page) == pages.command_blocks(paper)
    place = Workshop(
        runner.PAPERS[paper], PaperScale(Path("DATA")), Path("runs/reproduce/paper") / paper
    )
    planned = {
        shlex.join(command_line(words, 8)) for name in place.steps for words in place.words(name)
    }
    joined = pages.COMMANDS.read(page).replace("\\\n    ", "").splitlines()
    commands = [line for line in joined if line.startswith(("torchrun", "beir-cocodr", "python"))]
    assert len(commands) > 3
    assert set(commands) <= planned


def test_the_page_says_what_came_of_every_table_at_the_small_scale_or_that_it_was_not_run():
    """`python benchmarks/reproduce/pages.py` writes it anew."""
    page = (pages.DOCS / "index.md").read_text()
    assert pages.RUN_HERE.read(page) == pages.describe_runs()
    for name in runner.TABLES:
        file = pages.RESULTS / f"{name}.here.json"
        if not file.is_file():
            assert re.search(rf"\| {name} \| \d+ \|  \|  \| not run yet \|", page)
            continue
        found = json.loads(file.read_text())
        assert (found["table"], found["scale"], found["comparable"]) == (name, "here", False)
        reasons = [
            cell["why"]
            for row in found["cells"].values()
            for cell in row.values()
            if cell["ours"] is None
        ]
        assert [why for why in reasons if "failed" in why or why == "not run"] == []


def test_the_pages_of_the_papers_name_tables_that_there_are():
    lines = re.findall(
        r"^python benchmarks/reproduce (.*)$",
        "\n".join(map(Path.read_text, pages.DOCS.glob("*.md"))),
        re.M,
    )
    assert len(lines) > len(runner.PAPERS)
    for line in lines:
        assert set(runner.option_parser().parse_args(shlex.split(line)).table) <= {
            *runner.PAPERS,
            *runner.TABLES,
        }
    assert (pages.DOCS / "index.md").read_text().count("](") >= len(runner.PAPERS)


def test_throughputs_are_stated_assumptions_or_stand_in_results():
    found = json.loads((ROOT / "benchmarks" / "reproduce" / "throughputs.json").read_text())
    for name, entry in found.items():
        assert entry["measured"] or "assumption" in entry["why"], name
    measured = json.loads((ROOT / "benchmarks" / "results" / found["cpu"]["from"]).read_text())
    assert measured["date"].startswith(found["cpu"]["date"])
    assert (
        f"{measured['machine']['cores']} cores of {measured['machine']['cpu']}"
        == found["cpu"]["machine"]
    )
