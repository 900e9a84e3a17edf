"""Interpolation, extrapolation, gap and alignment, from models to the table."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import ir_measures
import pytest
from conftest import write_beir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.resampling import RestrainOptions, ResttestOptions
from beir_cocodr.resampling.regimes import Recipe, cells
from beir_cocodr.resampling.regimes.cells import Cell
from beir_cocodr.resampling.regimes.regimes import (
    RegimeOptions,
    RegimePoint,
    Regimes,
    alignment_rows,
    evaluate_regimes,
    gap,
    pooled_score,
    regime_points,
    regime_rows,
)
from beir_cocodr.resampling.regimes.units import REGIMES
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.resampling.resttest import resample_resttest

MEASURE = "nDCG@10"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """36 training and 12 test queries over 96 documents."""
    made = write_beir(tmp_path_factory.mktemp("pair") / "tiny", documents=96, queries=36)
    lines = (made / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (made / "qrels" / "test.tsv").write_text("".join(lines[:25]))
    return made


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("other") / "other", documents=24, queries=6, seed=5)


@pytest.fixture(scope="module")
def restrained(folder, tiny_cosine, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("restrain") / "o"
    resample_restrain(
        str(folder),
        str(folder),
        model=str(tiny_cosine),
        output=output,
        options=RestrainOptions(ks=(2,)),
    )
    return output


@pytest.fixture(scope="module")
def bucketed(folder, tiny_cosine, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("resttest") / "o"
    resample_resttest(
        str(folder),
        str(folder),
        model=str(tiny_cosine),
        output=output,
        options=ResttestOptions(buckets=3),
    )
    return output


def by_query(dataset: Path, model: str, output: Path) -> dict[str, float]:
    """Return query id to nDCG@10 by ir-measures, over a run of ``evaluate``."""
    result = evaluate([model], str(dataset), output=output).models[model]
    run = list(ir_measures.read_trec_run(str(output / result.run)))
    qrels = load_collection(dataset, "test").qrels
    scores = dict.fromkeys(qrels, 0.0)
    scores |= {
        metric.query_id: metric.value
        for metric in ir_measures.iter_calc([ir_measures.nDCG @ 10], qrels, run)
    }
    return scores


@pytest.mark.parametrize(
    ("interpolation", "extrapolation", "expected"),
    [(0.5, 0.25, -0.5), (0.5, 0.75, 0.5), (0.4, 0.4, 0.0), (0.2, 0.0, -1.0), (0.0, 0.3, None)],
)
def test_the_gap_is_relative_to_interpolation(interpolation, extrapolation, expected):
    assert gap(interpolation, extrapolation) == expected


def test_the_papers_gaps_follow_from_its_scores():
    published = [
        ("SPLADE", 0.596, 0.488, -18),
        ("DR", 0.617, 0.529, -14),
        ("ColBERT", 0.567, 0.605, 7),
    ]
    for _, interpolation, extrapolation, percent in published:  # Table 6, 14k
        assert round(100 * gap(interpolation, extrapolation)) == percent


def test_pooled_scores_by_hand():
    # Three buckets: each query is interpolation for two models and extrapolation for one.
    interpolation = [{"b": 0.2, "c": 0.4}, {"a": 1.0, "c": 0.6}, {"a": 0.0, "b": 0.6}]
    extrapolation = [{"a": 0.1}, {"b": 0.3}, {"c": 0.8}]
    assert pooled_score(interpolation) == (pytest.approx((0.5 + 0.4 + 0.5) / 3), 3)
    assert pooled_score(extrapolation) == (pytest.approx(0.4), 3)
    # A bucket with more queries has more weight, a query judged more often has not.
    assert pooled_score([{"a": 0.0, "b": 0.0, "c": 1.0}, {"a": 1.0}]) == (pytest.approx(0.5), 3)


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 5))
@settings(deadline=None)
def test_pooling_the_same_scores_again_changes_nothing(values, times):
    scores = {f"q{number}": value for number, value in enumerate(values)}
    assert pooled_score([scores] * times)[0] == pytest.approx(statistics.fmean(scores.values()))


def test_rows_by_hand():
    def cell(regime, score, outside):
        return Cell(
            "x", None, 1, "s", {regime: {"m": {"q": score}}}, {}, 0.0, 0.0, {"far": {"m": outside}}
        )

    cells = {
        ("g", "x", seed): [cell("interpolation", i, o), cell("extrapolation", e, o / 2)]
        for seed, i, e, o in ((1, 0.5, 0.4, 0.3), (2, 0.7, 0.35, 0.5))
    }
    points = regime_points(cells, ["m"])
    assert points[1].ood["far"]["m"] == {"interpolation": 0.5, "extrapolation": 0.25}
    [row] = regime_rows(points)
    result = row.measures["m"]
    assert (result.interpolation, result.extrapolation) == (
        pytest.approx(0.6),
        pytest.approx(0.375),
    )
    assert result.gap == pytest.approx(-0.375)
    assert result.seeds.gap == [pytest.approx(-0.2), pytest.approx(-0.5)]
    assert result.gap_sd == pytest.approx(0.3 / 2**0.5)
    assert row.seeds == [1, 2]


def test_alignment_by_hand_and_by_scipy():
    regime, outside = [0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.3, 0.2, 0.5, 0.4]

    def rows(regime, outside):
        points = []
        for pair in zip(regime, outside, strict=True):
            inside, there = ({"m": dict.fromkeys(REGIMES, score)} for score in pair)
            points.append(RegimePoint("group", "model", len(points), inside, {"o": there}, {}))
        return alignment_rows(points, "m")

    for result, name in zip(rows(regime, outside), REGIMES, strict=True):
        assert (result.collection, result.measure, result.regime, result.models) == (
            "o",
            "m",
            name,
            5,
        )
        # Ranks differ by 1 in four places: 1 - 6 * 4 / (5 * 24); two of ten pairs are discordant.
        assert result.spearman == pytest.approx(0.8)
        assert result.kendall == pytest.approx(0.6)
        assert result.spearman_p == pytest.approx(stats.spearmanr(regime, outside).pvalue)
        assert result.kendall_p == pytest.approx(stats.kendalltau(regime, outside).pvalue)
    for short in (([0.1, 0.2], [0.3, 0.4]), ([0.1, 0.1, 0.1], [0.1, 0.2, 0.3])):
        assert rows(*short)[0].kendall is None


def test_given_models_are_judged_by_their_own_set(
    folder, other, restrained, deep_bert, tiny_bert, tmp_path, monkeypatch
):
    """A regime has the score of its own model on all test queries.

    Outside the distribution, each model is judged once, whatever the number of sets.
    """
    judged, outside_hash, load = (
        [],
        load_collection(other).documents.content_hash,
        cells.load_ranker,
    )

    def loaded(model, documents, *rest, **options):
        judged.extend([model] if documents.content_hash == outside_hash else [])
        return load(model, documents, *rest, **options)

    monkeypatch.setattr(cells, "load_ranker", loaded)
    models = tmp_path / "models"
    models.mkdir()
    (models / "interpolation").symlink_to(deep_bert)
    (models / "extrapolation").symlink_to(tiny_bert)
    report = evaluate_regimes(
        restrained,
        output=tmp_path / "o",
        models=[f"mine={models}/{{set}}", f"fixed={tiny_bert}", "words=bm25"],
        options=RegimeOptions(ood=[str(other)]),
    )
    near = statistics.fmean(by_query(folder, str(deep_bert), tmp_path / "near").values())
    far = statistics.fmean(by_query(folder, str(tiny_bert), tmp_path / "far").values())
    words = statistics.fmean(by_query(folder, "bm25", tmp_path / "words").values())
    rows = {row.model: row.measures[MEASURE] for row in report.rows}
    assert rows["mine"].interpolation == pytest.approx(near)
    assert rows["mine"].extrapolation == pytest.approx(far)
    assert rows["mine"].gap == pytest.approx((far - near) / near)
    assert sorted(judged) == sorted(
        [
            *(str(models / result) for result in ("interpolation", "extrapolation")),
            str(tiny_bert),
            "bm25",
        ]
    )
    assert near != far
    assert rows["fixed"].gap == 0
    assert rows["words"].interpolation == pytest.approx(words)
    [point] = [point for point in report.points if point.model == "mine"]
    outside = [
        statistics.fmean(by_query(other, str(model), tmp_path / model.name).values())
        for model in (deep_bert, tiny_bert)
    ]
    result = point.ood[str(other)][MEASURE]
    assert [result["interpolation"], result["extrapolation"]] == pytest.approx(outside)
    [first, second] = report.alignment
    x = [p.measures[MEASURE]["extrapolation"] for p in report.points]
    y = [p.ood[str(other)][MEASURE]["extrapolation"] for p in report.points]
    assert second.regime == "extrapolation"
    assert second.kendall == pytest.approx(stats.kendalltau(x, y).statistic)
    assert first.models == 3
    report.write(tmp_path / "regimes.json")
    assert Regimes.read(tmp_path / "regimes.json") == report


def test_given_models_of_resttest_are_pooled(folder, bucketed, tiny_cosine, tiny_bert, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    used = {"bucket-1": tiny_cosine, "bucket-2": tiny_bert, "bucket-3": tiny_cosine}
    for name, model in used.items():
        (models / name).symlink_to(model)
    report = evaluate_regimes(
        bucketed, output=tmp_path / "o", models=[f"mine={models}/{{set}}", "words=bm25"]
    )
    scores = {
        model: by_query(folder, str(model), tmp_path / model.name)
        for model in (tiny_cosine, tiny_bert)
    }
    inside = {
        name: set(load_collection(bucketed / name / "extrapolation", "test").queries)
        for name in used
    }
    queries = scores[tiny_cosine]
    far, near = [], []
    for query in queries:
        [own] = [name for name in used if query in inside[name]]
        far.append(scores[used[own]][query])
        near.append(statistics.fmean(scores[used[name]][query] for name in used if name != own))
    rows = {row.model: row for row in report.rows}
    result = rows["mine"].measures[MEASURE]
    assert result.extrapolation == pytest.approx(statistics.fmean(far))
    assert result.interpolation == pytest.approx(statistics.fmean(near))
    assert rows["mine"].queries == {"interpolation": 12, "extrapolation": 12}
    assert rows["words"].measures[MEASURE].gap == pytest.approx(0)


@pytest.fixture
def recipe(tiny_bert) -> Recipe:
    return Recipe(
        start=str(tiny_bert), max_steps=2, batch_size=4, learning_rate=1e-3, document_length=48
    )


def test_trained_cells_are_kept_and_added_to(restrained, other, recipe, tmp_path, monkeypatch):
    from beir_cocodr.resampling.regimes.architectures import DenseArchitecture

    output, trained = tmp_path / "o", []
    train = DenseArchitecture.train

    def counted(self, dataset, folder, *rest):
        if len(trained) == 3:
            raise RuntimeError("killed")
        trained.append(folder)
        return train(self, dataset, folder, *rest)

    monkeypatch.setattr(DenseArchitecture, "train", counted)
    with pytest.raises(RuntimeError, match="killed"):
        evaluate_regimes(
            restrained,
            output=output,
            architectures=["bm25", "dense"],
            recipe=recipe,
            options=RegimeOptions(
                seeds=(
                    1,
                    2,
                )
            ),
        )
    del trained[1:]
    report = evaluate_regimes(
        restrained,
        output=output,
        architectures=["bm25", "dense"],
        recipe=recipe,
        options=RegimeOptions(
            seeds=(
                1,
                2,
            )
        ),
    )
    assert len(trained) == 2  # one cell was missing
    rows = {row.model: row for row in report.rows}
    assert rows["bm25"].seeds == [1]
    assert rows["dense"].seeds == [1, 2]
    assert rows["dense"].measures[MEASURE].gap_sd is not None
    # The cell's scores are those of the model that it kept.
    model = output / "models" / "extrapolation" / "dense-2"
    expected = by_query(restrained / "extrapolation", str(model), tmp_path / "judged")
    seeds = rows["dense"].measures[MEASURE].seeds
    assert seeds.extrapolation[1] == pytest.approx(statistics.fmean(expected.values()))
    (output / "models").rename(tmp_path / "away")
    again = evaluate_regimes(
        restrained,
        output=output,
        architectures=["bm25", "dense"],
        recipe=recipe,
        options=RegimeOptions(
            seeds=(
                1,
                2,
            )
        ),
    )
    assert len(trained) == 2  # scores are enough
    assert again == report
    (tmp_path / "away").rename(output / "models")
    del trained[:]
    more = evaluate_regimes(
        restrained,
        output=output,
        architectures=["bm25", "dense"],
        recipe=recipe,
        options=RegimeOptions(seeds=(1,), ood=[str(other)], keep_models=False),
    )
    assert len(trained) == 2  # a collection more needs the models
    assert sorted(path.name for path in (output / "models").glob("*/*")) == ["dense-2", "dense-2"]
    assert [point.measures for point in more.points] == [
        point.measures for point in report.points if point.seed == 1
    ]
    assert all(point.ood[str(other)] for point in more.points)


def test_several_starts_in_one_run(
    restrained, tiny_cosine, tiny_bert, deep_bert, tmp_path, monkeypatch
):
    from beir_cocodr.resampling.regimes.architectures import DenseArchitecture

    recipe = Recipe(start=str(tiny_cosine), max_steps=1, batch_size=4, device="cpu")
    started, train = [], DenseArchitecture.train

    def noted(self, dataset, folder, recipe, *rest):
        started.append((folder.name, recipe.start))
        return train(self, dataset, folder, recipe, *rest)

    monkeypatch.setattr(DenseArchitecture, "train", noted)

    def run(starts, names=("bm25", "dense"), **options):
        return evaluate_regimes(
            restrained,
            output=tmp_path / "o",
            architectures=names,
            starts=starts,
            recipe=recipe,
            options=RegimeOptions(seeds=(1,), **options),
        )

    report = run({"bert": tiny_bert})
    assert [row.model for row in report.rows] == ["bm25", "dense", "dense@bert"]
    assert set(started) == {("dense-1", str(tiny_cosine)), ("dense@bert-1", str(tiny_bert))}
    own, other = (row.measures[MEASURE] for row in report.rows[1:])
    assert own.interpolation != other.interpolation
    more = run([f"deep={deep_bert}"], keep_models=False)
    assert [row.model for row in more.rows] == ["bm25", "dense", "dense@deep"]
    report = run({"deep": deep_bert}, names=["bm25", "dense@deep"])
    assert [row.model for row in report.rows] == ["bm25", "dense@deep"]
    with pytest.raises(InputError, match=r"dense@nowhere.*--other-start nowhere=PATH"):
        run({"deep": deep_bert}, names=["dense@nowhere"])
    with pytest.raises(InputError, match=r"other .*start bert"):
        run(f"bert={deep_bert}")
    with pytest.raises(InputError, match="other-start 'bert'"):
        run(["bert"])


def test_the_command_draws_and_prints_the_table(restrained, other, tiny_cosine, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["--folder", str(restrained), "--output", str(tmp_path / "o"), "--ood", str(other)]
    training = ["--start", str(tiny_cosine), "--max-steps", "1", "--batch-size", "4", "--seed", "1"]
    models = ["--architecture", "dense", "--model", "words=bm25", "--model", f"start={tiny_cosine}"]
    with pytest.raises(SystemExit) as status:
        main(["resample", "evaluate", *arguments, *training, *models])
    captured = capsys.readouterr()
    assert status.value.code == 0, captured.err
    assert "gap" in captured.out
    assert "Kendall" in captured.out
    assert (tmp_path / "o" / "alignment.png").read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_one_line(restrained, other, folder, tiny_cosine, tmp_path, capsys):
    wrong = {
        "nothing to evaluate": [],
        "unknown architecture 'colbert'": ["--architecture", "colbert"],
        "'dense' is named twice": ["--architecture", "dense,dense"],
        "give NAME=PATH": ["--model", "bm25"],
        "two models are called 'bm25'": ["--architecture", "bm25", "--model", "bm25=bm25"],
        "seeds 1, 1": ["--architecture", "bm25", "--seed", "1", "--seed", "1"],
        "measure 'nDCG@'": ["--architecture", "bm25", "--measures", "nDCG@"],
        "is named twice": ["--model", "b=bm25", "--ood", str(other), "--ood", str(other)],
        "--ood": ["--model", "b=bm25", "--picture"],
        "batch_size must be at least 2": ["--architecture", "dense", "--batch-size", "1"],
        "max_steps": ["--architecture", "dense", "--max-steps", "0"],
        "--set rerank=x": ["--architecture", "cross-encoder", "--set", "rerank=x"],
    }
    for message, arguments in wrong.items():
        output = tmp_path / "o"
        error = failure(["--folder", str(restrained), "--output", str(output), *arguments], capsys)
        assert message in error, (message, error)
        assert not output.exists(), message
    no_manifest = [
        "--folder",
        str(folder),
        "--output",
        str(tmp_path / "o"),
        "--architecture",
        "bm25",
    ]
    assert "output folder of resample" in failure(no_manifest, capsys)
    nowhere = [
        "--folder",
        str(restrained),
        "--output",
        str(tmp_path / "p"),
        "--model",
        "x=/no/such/{set}",
    ]
    assert "/no/such/interpolation" in failure(nowhere, capsys)


@pytest.mark.parametrize(
    ("file", "old", "new", "part"),
    [
        ("queries.jsonl", '"text": "', '"text": "other ', "queries"),
        ("qrels/test.tsv", "\t1\n", "\t2\n", "judgements"),
        ("corpus.jsonl", '"text": "', '"text": "other ', "documents"),
    ],
)
def test_changed_sets_are_named(file, old, new, part, restrained, tmp_path):
    folder = tmp_path / "sets"
    shutil.copytree(restrained, folder)
    place = folder / "extrapolation" / file
    place.write_text(place.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=f"extrapolation: {part} of .*manifest"):
        evaluate_regimes(folder, output=tmp_path / "o", architectures=["bm25"])
    assert not (tmp_path / "o").exists()


def failure(arguments: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as status:
        main(["resample", "evaluate", *arguments])
    captured = capsys.readouterr()
    assert status.value.code == 2, captured.err
    assert captured.out == ""
    [line] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    return line


def test_another_recipe_or_model_needs_another_output(restrained, tiny_cosine, tiny_bert, tmp_path):
    evaluate_regimes(restrained, output=tmp_path / "o", models=[f"m={tiny_cosine}"])
    with pytest.raises(InputError, match=r"other .*batch_size"):
        evaluate_regimes(
            restrained,
            output=tmp_path / "o",
            models=[f"m={tiny_cosine}"],
            recipe=Recipe(batch_size=9),
        )
    with pytest.raises(InputError, match="another name"):
        evaluate_regimes(restrained, output=tmp_path / "o", models=[f"m={tiny_bert}"])
    model = tmp_path / "model"
    shutil.copytree(tiny_cosine, model)
    evaluate_regimes(restrained, output=tmp_path / "p", models=[f"m={model}"])
    config = model / "tokenizer_config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(InputError, match="changed since"):
        evaluate_regimes(restrained, output=tmp_path / "p", models=[f"m={model}"])
    for broken in ("", "[1]", "{"):
        (tmp_path / "p" / "settings.json").write_text(broken)
        with pytest.raises(InputError, match="damaged"):
            evaluate_regimes(restrained, output=tmp_path / "p", models=[f"m={model}"])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        evaluate_regimes(restrained, output=tmp_path / "taken", models=[f"m={tiny_cosine}"])
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"
