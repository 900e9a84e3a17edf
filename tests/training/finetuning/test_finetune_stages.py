"""Two-stage fine-tuning on a tiny BERT: retriever 1 mines for retriever 2, which starts anew."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.training.finetuning import finetune as finetune_stage
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.presets import stage_options

# All 12 best documents are kept, so that the pools are the retriever's own answer.
SMALL = FinetuneOptions.of(
    max_steps=4,
    batch_size=4,
    learning_rate=1e-3,
    negatives=2,
    negative_depth=6,
    stages=2,
    mining_depth=12,
    mining_keep=12,
    save_steps=2,
    query_length=20,
    document_length=50,
)


@pytest.fixture(scope="module")
def whole(beir_folder, tiny_mlm, tmp_path_factory):
    """The result, and the pools that negatives were drawn from, stage by stage."""
    folder, pools = tmp_path_factory.mktemp("stages") / "whole", []

    class Seen(TrainingPairs):
        def __post_init__(self):
            pools.append(self.pool)
            super().__post_init__()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finetune_stage, "TrainingPairs", Seen)
        record = finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=folder,
            options=SMALL.with_overrides(targets=[str(beir_folder)]),
        )
    return folder, record, pools


def mined_by(folder, collection) -> dict[str, set[int]]:
    """Return each query's best documents that are not relevant, from all scores at once."""
    model = COCODR(str(folder))
    documents = model.encode_corpus(collection.documents.take(range(len(collection.documents))))
    queries = model.encode_queries(list(collection.queries.values()))
    found = {}
    for id, scores in zip(collection.queries, queries @ documents.T, strict=True):
        grades = collection.qrels[id]
        relevant = collection.documents.rows([d for d, grade in grades.items() if grade > 0])
        best = np.argsort(-scores, kind="stable")[: SMALL.mining.depth]
        found[id] = set(best.tolist()) - set(relevant.tolist())
    return found


def test_both_retrievers_start_from_the_given_model(whole, beir_folder, tiny_mlm):
    folder, record, _ = whole
    assert record.steps == 8
    assert [stage["episode"] for stage in record.details["stages"]] == [0, 1]
    records = [json.loads((folder / f"stages/{i}/training.json").read_text()) for i in (1, 2)]
    assert len({found["base_sha256"] for found in [*records, record.to_json()]}) == 1
    assert [found["base"] for found in records] == [str(tiny_mlm)] * 2
    assert records[0]["mining"] is None
    assert records[1]["miner"] == str(folder / "stages" / "1")
    assert records[1]["mining"]["candidates"] == 16 * 12
    last, copied = (load_file(path / "model.safetensors") for path in (folder / "stages/2", folder))
    assert all(np.array_equal(last[name], copied[name]) for name in last)
    text_format = COCODR(str(folder)).text_format
    assert (text_format.query_length, text_format.document_length) == (20, 50)


def test_the_first_retriever_is_plain_fine_tuning(whole, beir_folder, tiny_mlm, tmp_path):
    folder, _, _ = whole
    finetune(
        str(tiny_mlm),
        str(beir_folder),
        output=tmp_path / "m",
        options=SMALL.with_overrides(stages=1),
    )
    first, plain = (
        load_file(path / "model.safetensors") for path in (folder / "stages/1", tmp_path / "m")
    )
    assert all(np.array_equal(first[name], plain[name]) for name in first)
    second = load_file(folder / "model.safetensors")
    assert not all(np.array_equal(first[name], second[name]) for name in first)


def test_negatives_of_the_second_are_mined_by_the_first_beside_bm25s(
    whole, beir_folder, tiny_mlm, tmp_path
):
    folder, _, pools = whole
    collection = load_collection(beir_folder, "train")
    model = COCODR(str(tiny_mlm))
    bm25 = {
        q: set(rows.tolist())
        for q, rows in bm25_negatives(collection, model.text_format, 6).items()
    }
    mined = mined_by(folder / "stages/1", collection)
    assert mined != mined_by(tiny_mlm, collection)
    first, second = ({q: set(rows.tolist()) for q, rows in pool.items()} for pool in pools)
    assert first == bm25
    assert second == {query: bm25[query] | mined[query] for query in bm25}
    assert all(len(rows) == len(set(rows.tolist())) for rows in pools[1].values())

    class Stop(Exception):
        pass

    class Seen(TrainingPairs):
        def __post_init__(self):
            raise Stop(self.pool)

    shutil.copytree(folder / "stages/1", tmp_path / "stages/1")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finetune_stage, "TrainingPairs", Seen)
        options = SMALL.with_overrides(stage2_negatives="mined")
        with pytest.raises(Stop) as stopped:
            finetune_stage.finetune_round(
                finetune_stage.FinetuneData(collection, None),
                finetune_stage.FinetuneRound(
                    "stage 2",
                    str(tiny_mlm),
                    tmp_path / "stages/2",
                    options,
                    1,
                    tmp_path / "stages/1",
                ),
                False,
            )
    [pool] = stopped.value.args
    assert {query: set(rows.tolist()) for query, rows in pool.items()} == mined


def test_both_are_measured_on_every_target(whole, beir_folder):
    folder, record, _ = whole
    points = json.loads((folder / "curves.json").read_text())
    assert [point["model"] for point in points] == ["base", "stage 1", "stage 2"]
    assert all(
        point["dataset"] == str(beir_folder) and 0 <= point["nDCG@10"] <= 1 for point in points
    )
    assert record.details["curves"] == points


@pytest.mark.parametrize("episode", [0, 1])
def test_a_killed_stage_goes_on_to_the_same_weights(
    episode, whole, beir_folder, tiny_mlm, tmp_path, dies_at
):
    with dies_at(3, lambda stage: stage.plan.episode == episode):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=SMALL)
    finished = tmp_path / "m" / "stages" / "1" / "training.json"
    assert finished.is_file() == (episode == 1)
    before = finished.read_text() if episode else None
    record = finetune(
        str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=SMALL, resume=True
    )
    if episode:
        assert finished.read_text() == before  # it is not trained again
    assert json.loads((tmp_path / f"m/stages/{episode + 1}/training.json").read_text())[
        "resumed_from"
    ] == ("checkpoint-2")
    assert record.steps == 8
    for file in ("stages/1/model.safetensors", "model.safetensors"):
        first, second = (load_file(path / file) for path in (whole[0], tmp_path / "m"))
        assert all(np.array_equal(first[name], second[name]) for name in first)
    kept = finetune(
        str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=SMALL, resume=True
    )
    assert kept == record


def test_weighted_clusters_train_in_two_stages(beir_folder, two_layer_mlm, tmp_path):
    options = SMALL.with_overrides(weighting="idro", clusters=3, min_cluster_size=1, max_steps=2)
    finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert (tmp_path / "m" / "stages" / "2" / "cluster_weights.jsonl").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 1}, "stages 2 .*episodes 1"),
        ({"stages": 3}, "stages .*3"),
        ({"negatives": 0}, "stages 2 .*negatives"),
        ({"stage2_negatives": "bm25"}, "stage2_negatives .*'bm25'"),
        ({"mining_keep": 13}, "mining_depth 12 .*mining_keep 13"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        SMALL.with_overrides(**changes)


def test_bad_input_leaves_nothing_behind(beir_folder, tiny_mlm, tmp_path):
    with pytest.raises(InputError, match=r"episodes .*stages"):
        finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=SMALL.with_overrides(stages=1).with_overrides(targets=[str(beir_folder)]),
        )
    with pytest.raises(InputError, match="document_length is 500"):
        finetune(
            str(tiny_mlm),
            str(beir_folder),
            output=tmp_path / "m",
            options=SMALL.with_overrides(document_length=500),
        )
    data = tmp_path / "data"
    shutil.copytree(beir_folder, data)
    documents = [
        json.loads(line)["_id"] for line in (data / "corpus.jsonl").read_text().splitlines()
    ]
    lines = [f"q0\t{document}\t1" for document in documents]
    (data / "qrels" / "train.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    )
    with pytest.raises(InputError, match=r"every document .*'q0'"):
        finetune(str(tiny_mlm), str(data), output=tmp_path / "n", options=SMALL)
    assert not list((tmp_path / "n").rglob("*"))


@pytest.mark.parametrize("preset", ["qc", "cotmae"])
def test_the_papers_settings_are_a_preset(preset):
    found = stage_options(FinetuneOptions, "finetune", preset)
    mining = found.mining
    assert (mining.stages, mining.stage2_negatives, found.loss) == (2, "both", "infonce")
    assert (found.batch_size, found.negatives, mining.depth) == (64, 15, 200)
    assert (found.learning_rate, found.epochs, found.weight_decay, found.seed) == (
        2e-5,
        3,
        0.01,
        42,
    )
    assert (found.encoder.query_length, found.encoder.document_length) == (32, 144)
    mined = stage_options(FinetuneOptions, "finetune", None, stages=2, stage2_negatives="mined")
    assert mined.mining.stages == 2
