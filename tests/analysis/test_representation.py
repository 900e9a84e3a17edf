"""Representation: closed forms on the sphere, direct formulas, and real tiny encoders."""

from __future__ import annotations

import json
import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.spatial.distance import pdist
from scipy.special import i0

from beir_cocodr import COCODR
from beir_cocodr.analysis import RepresentationOptions
from beir_cocodr.analysis.representation import (
    Representation,
    SpanPairs,
    alignment,
    measure_spans,
    representation,
    sample_span_pairs,
    uniformity,
)
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.report.png_pictures import has_matplotlib, representation_picture

SMALL = RepresentationOptions(sample=24, batch_size=8, span_tokens=12)


def tensor(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_alignment_of_equal_orthogonal_and_opposite_directions():
    first = tensor([[3, 0], [1, 0], [0, 0.5], [1, 0]])
    second = tensor([[7, 0], [0, 2], [0, -9], [1, math.sqrt(3)]])
    assert alignment(first, second).tolist() == pytest.approx(
        [0, 2, 4, 1], abs=1e-12
    )  # 60 degrees: 1


def test_uniformity_of_one_point_two_opposite_points_a_cross_and_a_simplex():
    assert uniformity(tensor([[1, 2], [2, 4], [0.5, 1]])) == pytest.approx(0, abs=1e-12)
    assert uniformity(tensor([[1, 2], [-3, -6]])) == pytest.approx(-8, abs=1e-12)
    assert uniformity(tensor(np.eye(5))) == pytest.approx(-4, abs=1e-12)
    simplex = np.eye(4) - 1 / 4  # four points, all cosines -1/3
    assert uniformity(tensor(simplex)) == pytest.approx(-2 * (2 + 2 / 3), abs=1e-12)
    # Two points, each twice: 2 pairs at distance 0, 4 at squared distance 4.
    doubled = tensor([[1, 0], [1, 0], [-1, 0], [-1, 0]])
    assert uniformity(doubled) == pytest.approx(math.log((2 + 4 * math.exp(-8)) / 6), abs=1e-12)


@pytest.mark.parametrize(("points", "temperature"), [(64, 2.0), (200, 2.0), (128, 0.7)])
def test_uniformity_of_a_uniform_circle_is_a_bessel_function(points, temperature):
    angles = 2 * np.pi * np.arange(points) / points
    result = uniformity(tensor(np.c_[np.cos(angles), np.sin(angles)]), temperature)
    # Over the circle the mean of exp(-2t(1 - cos)) is exp(-2t) I0(2t), here without the pair with
    # itself.
    mean = math.exp(-2 * temperature) * i0(2 * temperature)
    assert result == pytest.approx(math.log((points * mean - 1) / (points - 1)), abs=1e-12)


finite = st.floats(-50, 50).map(lambda x: round(x, 3))
embeddings = st.tuples(st.integers(2, 40), st.integers(1, 6)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=finite)
)


@given(embeddings, st.integers(1, 50), st.floats(0.1, 5))
def test_uniformity_equals_its_definition_for_any_block_size(points, block, temperature):
    points = points + (np.abs(points).sum(axis=1, keepdims=True) == 0)  # no vector of zeros
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    expected = math.log(np.mean(np.exp(-temperature * pdist(unit, "sqeuclidean"))))
    result = uniformity(torch.from_numpy(points), temperature, block)
    assert result == pytest.approx(expected, abs=1e-9)
    assert -4 * temperature - 1e-9 <= result <= 1e-9
    scaled = torch.from_numpy(points * np.linspace(1, 9, len(points))[:, None])
    assert uniformity(scaled.flip(0), temperature) == pytest.approx(result, abs=1e-9)


@given(embeddings)
def test_alignment_equals_its_definition(points):
    points = points + (np.abs(points).sum(axis=1, keepdims=True) == 0)
    other = np.roll(points, 1, axis=0)
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (points, other))
    result = alignment(torch.from_numpy(points), torch.from_numpy(other)).numpy()
    np.testing.assert_allclose(result, ((first - second) ** 2).sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(result, 2 - 2 * (first * second).sum(axis=1), atol=1e-12)


class Lookup:
    """An encoder with fixed embeddings: a text is a row number."""

    def __init__(self, rows, similarity="dot"):
        self.rows, self.similarity_fn_name = (
            torch.as_tensor(np.asarray(rows, np.float32)),
            similarity,
        )

    def get_embedding_dimension(self):
        return self.rows.shape[1]

    def encode_document(self, texts, **options):
        return self.rows[[int(text) for text in texts]]


def pairs(count: int) -> SpanPairs:
    numbers = [str(n) for n in range(2 * count)]
    return SpanPairs([f"d{n}" for n in range(count)], numbers[::2], numbers[1::2], 0)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_measures_equal_their_definitions_batch_by_batch(similarity):
    rows = np.random.default_rng(0).normal(size=(14, 5)).astype(np.float32)
    result = measure_spans(Lookup(rows, similarity), pairs(7), RepresentationOptions(batch_size=3))
    wide = rows.astype(np.float64)
    unit = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(
        result.alignment, ((unit[::2] - unit[1::2]) ** 2).sum(axis=1), atol=1e-12
    )
    sides = [math.log(np.mean(np.exp(-2 * pdist(unit[i::2], "sqeuclidean")))) for i in (0, 1)]
    assert result.uniformity == pytest.approx(np.mean(sides), abs=1e-12)
    vectors, scale = (unit, 20.0) if similarity == "cosine" else (wide, 1.0)
    losses = []
    for batch in (vectors[:6], vectors[6:12]):  # the seventh document is left over
        scores = scale * batch @ batch.T
        np.fill_diagonal(scores, -np.inf)
        own = scores[np.arange(6), np.arange(6) ^ 1]
        losses.append(np.mean(np.log(np.exp(scores).sum(axis=1)) - own))
    np.testing.assert_allclose(result.losses, losses, rtol=1e-9)


def test_an_encoder_without_distinctions_has_the_loss_of_chance():
    result = measure_spans(
        Lookup(np.ones((20, 4))), pairs(10), RepresentationOptions(batch_size=5)
    ).record()
    assert result.alignment == pytest.approx(0, abs=1e-12)
    assert result.uniformity == pytest.approx(0, abs=1e-12)
    assert result.contrastive_loss == pytest.approx(math.log(2 * 5 - 1), abs=1e-6)


def test_a_perfect_encoder_is_aligned_and_uniform_and_has_no_loss():
    rows = np.repeat(np.eye(8), 2, axis=0)  # both spans of a document at one corner
    before = measure_spans(
        Lookup(np.ones((16, 8)), "cosine"), pairs(8), RepresentationOptions(batch_size=8)
    )
    after = measure_spans(Lookup(rows, "cosine"), pairs(8), RepresentationOptions(batch_size=8))
    change = after.change(before, comparable=True)
    assert after.record().alignment == pytest.approx(0, abs=1e-12)
    assert change.uniformity == pytest.approx(-4, abs=1e-9)
    assert change.contrastive_loss_reduction == pytest.approx(1, abs=1e-6)
    assert after.change(before, comparable=False).contrastive_loss is None


def test_embeddings_that_are_not_finite_name_their_document():
    rows = np.ones((8, 3))
    rows[5] = np.nan  # the second span of d2
    with pytest.raises(InputError, match=r"1 documents.*'d2'"):
        measure_spans(Lookup(rows), pairs(4), RepresentationOptions(batch_size=2))


def drawn(folder, tokenizer, size=20, seed=42, span_tokens=12):
    documents = load_collection(folder, labels="none").documents
    model = SimpleNamespace(tokenizer=tokenizer, text_format=TextFormat())
    return sample_span_pairs(
        documents, model, RepresentationOptions(sample=size, seed=seed, span_tokens=span_tokens)
    )


def test_pairs_are_two_different_spans_of_one_document(beir_folder, wordpiece):
    result = drawn(beir_folder, wordpiece)
    documents = load_collection(beir_folder, labels="none").documents
    assert len(set(result.ids)) == 20
    for id, first, second in zip(result.ids, result.first, result.second, strict=True):
        text = TextFormat().document(documents[id])
        places = sorted(
            (text.index(span), text.index(span) + len(span)) for span in (first, second)
        )
        assert places[0][1] <= places[1][0]
        assert all(
            len(wordpiece(span, add_special_tokens=False)["input_ids"]) <= 12
            for span in (first, second)
        )


def test_pairs_depend_only_on_the_seed_and_smaller_samples_begin_larger_ones(
    beir_folder, wordpiece
):
    result = drawn(beir_folder, wordpiece)
    assert result == drawn(beir_folder, wordpiece)
    assert drawn(beir_folder, wordpiece, size=7).first == result.first[:7]
    assert drawn(beir_folder, wordpiece, seed=1).ids != result.ids
    assert sorted(drawn(beir_folder, wordpiece, size=999).ids) == sorted(f"d{n}" for n in range(48))


def test_documents_without_two_spans_are_left_out_and_counted(tmp_path, wordpiece):
    texts = ["wing flow", "", "drag " * 30, "the plate", "heat " * 13]
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    result = drawn(tmp_path, wordpiece, size=99)
    assert (sorted(result.ids), result.too_short) == (["d2", "d4"], 3)
    with pytest.raises(InputError, match=r"1 of 5 .*20 tokens"):
        drawn(tmp_path, wordpiece, span_tokens=20)


@pytest.fixture(scope="module")
def changed_bert(tiny_bert, tmp_path_factory):
    """The tiny encoder with its last layers almost removed, so that texts hardly differ."""
    folder = tmp_path_factory.mktemp("changed-bert")
    shutil.copytree(tiny_bert, folder, dirs_exist_ok=True)
    model = COCODR(str(tiny_bert)).transformers_model
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.mul_(0.02)
        model.encoder.layer[-1].output.LayerNorm.bias.fill_(1.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def report(beir_folder, tiny_bert, changed_bert):
    return representation([tiny_bert, changed_bert], beir_folder, options=SMALL)


def test_the_report_follows_from_its_parts(report, beir_folder, tiny_bert, changed_bert):
    [corpus] = report.datasets.values()
    model = COCODR(str(tiny_bert))
    result = drawn(beir_folder, model.tokenizer, size=24)
    vectors = [
        model.encode_document(side, convert_to_tensor=True).double().cpu()
        for side in (result.first, result.second)
    ]
    before = corpus.models[str(tiny_bert)]
    assert before.alignment == pytest.approx(alignment(*vectors).mean().item(), rel=1e-6)
    assert before.uniformity == pytest.approx(
        np.mean([uniformity(side) for side in vectors]), rel=1e-6
    )
    low, high = before.alignment_interval
    assert low < before.alignment < high
    assert (corpus.sampled, corpus.batches, corpus.left_over) == (24, 3, 0)
    assert corpus.loss_of_chance == pytest.approx(math.log(15))
    after = corpus.models[str(changed_bert)]
    for name in ("alignment", "uniformity", "contrastive_loss"):
        difference = getattr(after, name) - getattr(before, name)
        assert getattr(corpus.change, name) == pytest.approx(difference, abs=1e-12)


def test_a_model_whose_texts_hardly_differ_is_less_uniform_and_nearer_to_chance(
    report, tiny_bert, changed_bert
):
    [corpus] = report.datasets.values()
    before, after = (corpus.models[str(folder)] for folder in (tiny_bert, changed_bert))
    assert after.uniformity > before.uniformity
    assert after.uniformity == pytest.approx(0, abs=0.05)
    assert after.alignment < before.alignment
    distances = [abs(result.contrastive_loss - corpus.loss_of_chance) for result in (before, after)]
    assert distances[1] < distances[0]


def test_the_same_model_twice_changes_nothing(beir_folder, tiny_bert, tmp_path):
    copy = shutil.copytree(tiny_bert, tmp_path / "copy")
    result = representation([tiny_bert, copy], beir_folder, options=SMALL)
    change = result.datasets[str(beir_folder)].change
    assert (change.alignment, change.uniformity, change.contrastive_loss) == (0, 0, 0)


def test_losses_of_dot_product_and_cosine_are_not_compared(beir_folder, tiny_bert, tiny_cosine):
    result = representation([tiny_bert, tiny_cosine], beir_folder, options=SMALL)
    change = result.datasets[str(beir_folder)].change
    assert not result.losses_comparable
    assert change.contrastive_loss is change.contrastive_loss_reduction is None
    assert change.alignment is not None


def test_the_reduction_of_the_loss_is_correlated_with_the_gain(
    report, beir_folder, tiny_bert, changed_bert, tmp_path
):
    models = [str(tiny_bert), str(changed_bert)]
    judged = evaluate(models, str(beir_folder), output=tmp_path / "judged")
    results = tmp_path / "judged" / "results.json"
    result = representation(models, beir_folder, results=results, options=SMALL)
    values = [judged.models[model].measures["nDCG@10"] for model in models]
    change = result.datasets[str(beir_folder)].change
    assert change.gain == pytest.approx(values[1] - values[0])
    losses = [result.datasets[str(beir_folder)].models[model].contrastive_loss for model in models]
    assert change.contrastive_loss_reduction == pytest.approx(1 - losses[1] / losses[0])
    row = result.reduction_against_gain
    assert (row.datasets, row.pearson) == (1, None)  # one corpus lies on every line
    result.write(tmp_path / "representation.json")
    assert Representation.read(tmp_path / "representation.json") == result
    json.dumps(result.to_json(), allow_nan=False)
    if has_matplotlib():
        representation_picture(tmp_path / "representation.png", result)
        assert (tmp_path / "representation.png").read_bytes().startswith(b"\x89PNG")


def test_one_model_is_measured_on_several_corpora(beir_folder, tiny_cosine, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"d{n}\t{'wing drag plate ' * (n + 5)}\n" for n in range(6)))
    result = representation(tiny_cosine, [beir_folder, other], options=SMALL)
    assert list(result.datasets) == [str(beir_folder), str(other)]
    small = result.datasets[str(other)]
    assert (small.sampled, small.batch_size, small.batches, small.change) == (6, 6, 1, None)
    assert small.models[str(tiny_cosine)].contrastive_loss_interval is None


def test_bad_input_is_refused_by_name(beir_folder, tiny_bert, tiny_cosine, tmp_path):
    data, model = [str(beir_folder)], [str(tiny_bert)]

    def refused(match: str, *arguments, **options):
        with pytest.raises(InputError, match=match) as error:
            representation(*(arguments or (model, data)), **options)
        assert "\n" not in str(error.value)

    refused("the dataset is an empty list", model, [])
    refused("no model", [], data)
    refused("not 3", [*model, str(tiny_cosine), "x"], data)
    refused("model .*twice", model * 2, data)
    refused("dataset .*twice", model, data * 2)
    refused("gain .*two models", results=[tmp_path / "x.json"])
    refused("no-such/model", ["no-such/model"], data)
    too_long = RepresentationOptions(span_tokens=120)
    refused(f"{beir_folder}: .*--span-tokens", options=too_long)
    with pytest.raises(InputError, match=r"sample .*2"):
        RepresentationOptions(sample=1)
    with pytest.raises(InputError, match="temperature"):
        RepresentationOptions(temperature=math.nan)


def test_an_mrl_is_refused(beir_folder, tiny_bert, tmp_path):
    from beir_cocodr import MRL

    MRL(str(tiny_bert), k=5).save_pretrained(str(tmp_path / "mrl"))
    with pytest.raises(InputError, match="an MRL"):
        representation(tmp_path / "mrl", beir_folder, options=SMALL)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["representation", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_the_command_prints_and_writes_the_report(
    capsys, beir_folder, tiny_bert, changed_bert, tmp_path
):
    arguments = [
        "--dataset",
        str(beir_folder),
        "--sample",
        "24",
        "--batch-size",
        "10",
        "--span-tokens",
        "12",
    ]
    models = ["--model", str(tiny_bert), "--model", str(changed_bert)]
    status, out, _ = run(capsys, *arguments, *models, "--json", "--output", str(tmp_path))
    assert status == 0
    assert json.loads(out) == json.loads((tmp_path / "representation.json").read_text())
    status, out, _ = run(capsys, *arguments, *models)
    assert status == 0
    for told in (
        "ℓ_align",
        "ℓ_uniform",
        "reduction",
        "at chance level it is 2.9444",
        "4 documents fill no batch",
    ):
        assert told in out
    status, out, err = run(capsys, *arguments, "--model", str(tiny_bert), "--batch-size", "1")
    assert (status, out) == (2, "")
    assert re.match(r"error: .*batch_size .*2.* 1", err.splitlines()[-1])
