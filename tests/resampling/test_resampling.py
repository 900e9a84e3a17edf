"""`resample` from datasets to folders: it writes the right content, and all of it or nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import write_beir

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.validation import validate
from beir_cocodr.errors import InputError
from beir_cocodr.resampling import RestrainOptions, ResttestOptions
from beir_cocodr.resampling.manifest import read_manifest
from beir_cocodr.resampling.overlap import label_overlap
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.resampling.resttest import resample_resttest
from beir_cocodr.same_run import as_read

TRAIN, TEST = 80, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """80 training and 8 test queries over 200 documents."""
    made = write_beir(tmp_path_factory.mktemp("pair") / "tiny", documents=200, queries=TRAIN)
    lines = (made / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (made / "qrels" / "test.tsv").write_text("".join(lines[: 1 + 2 * TEST]))
    return made


@pytest.fixture(scope="module")
def cosines(folder, tiny_cosine) -> np.ndarray:
    """Return the (TEST, TRAIN) cosines of the host itself."""
    from sentence_transformers import SentenceTransformer

    host = SentenceTransformer(str(tiny_cosine))
    train, test = (
        list(load_collection(folder, split).queries.values()) for split in ("train", "test")
    )
    return host.encode_query(test) @ host.encode_query(train).T


def restrain(folder, encoder, output, **options):
    return resample_restrain(
        str(folder),
        str(folder),
        model=str(encoder),
        output=output,
        options=RestrainOptions(**options),
    )


def queries(folder: Path, split: str) -> list[str]:
    return list(load_collection(folder, split).queries)


def content(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_restrain_writes_the_sets_of_its_manifest(folder, tiny_cosine, tmp_path, cosines):
    output = tmp_path / "new" / "o"
    manifest = restrain(folder, tiny_cosine, output, sizes=(20,))
    assert sorted(path.name for path in output.iterdir()) == [
        "extrapolation",
        "interpolation",
        "manifest.json",
    ]
    assert json.loads((output / "manifest.json").read_text()) == as_read(manifest.to_json())
    [k], top = manifest.parameters.k, manifest.parameters.exclude_top
    assert k == top
    order = np.argsort(-cosines, axis=1)
    inside = {f"q{row}" for row in order[:, :k].ravel()}
    assert set(queries(output / "interpolation", "train")) == inside
    drawn = queries(output / "extrapolation", "train")
    assert not set(drawn) & inside
    assert len(set(drawn)) == len(inside)
    whole = load_collection(folder, "train")
    for regime in ("interpolation", "extrapolation"):
        made = output / regime
        assert [
            d for d in validate(made, "train") + validate(made, "test") if d.severity == "error"
        ] == []
        assert (made / "corpus.jsonl").is_symlink()
        assert (made / "corpus.jsonl").samefile(folder / "corpus.jsonl")
        train, test = load_collection(made, "train"), load_collection(made, "test")
        assert train.qrels == {query: whole.qrels[query] for query in train.queries}
        assert list(train.queries) == [query for query in whole.queries if query in train.queries]
        assert (test.queries, test.qrels) == (
            load_collection(folder, "test").queries,
            load_collection(folder, "test").qrels,
        )


def test_a_manifest_that_was_changed_is_refused_and_one_that_was_formatted_anew_is_not(
    folder, tiny_cosine, tmp_path
):
    resample_restrain(
        str(folder),
        str(folder),
        model=str(tiny_cosine),
        output=tmp_path / "o",
        options=RestrainOptions(ks=(2,)),
    )
    manifest = read_manifest(tmp_path / "o")
    file = tmp_path / "o" / "manifest.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content, sort_keys=True))
    assert read_manifest(tmp_path / "o") == manifest
    assert content["same_corpus"] is True
    changes = {
        "same_corpus": False,
        "parameters": content["parameters"] | {"seed": 7},
        "content_sha256": "0" * 64,
    }
    for name, value in changes.items():
        file.write_text(json.dumps(content | {name: value}))
        with pytest.raises(InputError, match=f"{file} was changed since it was written"):
            read_manifest(tmp_path / "o")


def test_the_manifest_counts_right(folder, tiny_cosine, tmp_path, cosines):
    from beir_cocodr.provenance import collection_provenance

    manifest = restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    assert manifest.encoder.dimensions == 32
    train = load_collection(folder, "train")
    recorded = collection_provenance(train, queries=True)
    # The hashes are those that a training.json has, so that the two can be compared.
    for name in (
        "corpus_sha256",
        "queries_sha256",
        "qrels_sha256",
        "documents",
        "queries",
        "split",
    ):
        assert getattr(manifest.train, name) == getattr(recorded, name)
    test = load_collection(folder, "test")
    before = manifest.overlap.before
    assert (before.training_queries, before.test_queries) == (TRAIN, TEST)
    assert before.nearest_similarity.mean == pytest.approx(cosines.max(axis=1).mean(), abs=1e-4)
    for result in manifest.sets:
        made = load_collection(tmp_path / "o" / result.folder, "train")
        record = collection_provenance(made, queries=True)
        assert result.train.queries == len(made.queries)
        assert result.train.judgements == sum(map(len, made.qrels.values()))
        assert result.train.queries_sha256 == record.queries_sha256
        assert result.train.qrels_sha256 == record.qrels_sha256
        after = manifest.overlap.after[result.folder]
        expected = label_overlap(made.qrels, test.qrels)
        assert [row.overlapping for row in after.label_overlap] == [
            row.overlapping for row in expected
        ]
        rows = [int(query[1:]) for query in made.queries]
        nearest = cosines[:, rows].max(axis=1)
        assert after.nearest_similarity.mean == pytest.approx(nearest.mean(), abs=1e-4)
        assert after.nearest_similarity.least == pytest.approx(nearest.min(), abs=1e-4)
    after = manifest.overlap.after
    similarity = [
        after[name].nearest_similarity.mean for name in ("interpolation", "extrapolation")
    ]
    assert similarity[0] == before.nearest_similarity.mean > similarity[1]


def test_sizes_are_nested_and_same_seeds_same_bytes(folder, tiny_cosine, tmp_path):
    options = {"sizes": (10, 16, 24), "seed": 3}
    restrain(folder, tiny_cosine, tmp_path / "a", **options)
    restrain(folder, tiny_cosine, tmp_path / "b", **options)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    restrain(folder, tiny_cosine, tmp_path / "c", sizes=(10, 16, 24), seed=4)
    near, far = (
        [set(queries(tmp_path / "a" / f"size-{size}" / regime, "train")) for size in (10, 16, 24)]
        for regime in ("interpolation", "extrapolation")
    )
    for sets in (near, far):
        assert sets[0] <= sets[1] <= sets[2]
        assert len(sets[0]) < len(sets[2])
    assert not near[2] & far[2]
    changed = {
        name
        for name, bytes_ in content(tmp_path / "a").items()
        if content(tmp_path / "c")[name] != bytes_ and "/qrels/" in name
    }
    assert {name.split("/")[1] for name in changed} == {"extrapolation"}
    # One L for all sizes: alone, the smallest set has a smaller one.
    alone = restrain(folder, tiny_cosine, tmp_path / "d", sizes=(10,))
    both = json.loads((tmp_path / "a" / "manifest.json").read_text())["parameters"]
    assert alone.parameters.k == both["k"][:1]
    assert alone.parameters.exclude_top < both["exclude_top"] == max(both["k"])


def test_sets_by_k_with_faiss_and_another_exclusion(folder, tiny_cosine, tmp_path, cosines):
    pytest.importorskip("faiss")
    manifest = restrain(
        folder, tiny_cosine, tmp_path / "o", ks=(2, 1), exclude_top=4, method="faiss"
    )
    assert [result.folder for result in manifest.sets][::2] == [
        "k-2/interpolation",
        "k-1/interpolation",
    ]
    assert manifest.sets[0].id == "cocodr/restrain/tiny/k-2/interpolation"
    order = np.argsort(-cosines, axis=1)
    for k in (1, 2):
        inside = queries(tmp_path / "o" / f"k-{k}" / "interpolation", "train")
        assert set(inside) == {f"q{row}" for row in order[:, :k].ravel()}
        outside = set(queries(tmp_path / "o" / f"k-{k}" / "extrapolation", "train"))
        assert not outside & {f"q{row}" for row in order[:, :4].ravel()}


def test_a_size_that_is_too_small_is_logged(folder, tiny_cosine, tmp_path, caplog):
    manifest = restrain(folder, tiny_cosine, tmp_path / "o", sizes=(1,))
    least = manifest.sets[0].train.queries
    assert (
        f"--size 1 is impossible: the nearest training queries of 8 test queries are {least}"
        in caplog.text
    )


def test_resttest_holds_out_every_bucket_once(folder, two_layer_cosine, tmp_path):
    output = tmp_path / "o"
    manifest = resample_resttest(
        str(folder),
        str(folder),
        model=str(two_layer_cosine),
        output=output,
        options=ResttestOptions(buckets=3, seed=1),
    )
    again = resample_resttest(
        str(folder),
        str(folder),
        model=str(two_layer_cosine),
        output=tmp_path / "b",
        options=ResttestOptions(buckets=3, seed=1),
    )
    assert again == manifest
    assert content(output) == content(tmp_path / "b")
    all_train, all_test = queries(folder, "train"), queries(folder, "test")
    held_out, extrapolated, interpolated = [], [], []
    for bucket in (1, 2, 3):
        place = output / f"bucket-{bucket}"
        train = queries(place / "interpolation", "train")
        assert train == queries(place / "extrapolation", "train")
        held_out += sorted(set(all_train) - set(train))
        inside, outside = (
            queries(place / regime, "test") for regime in ("extrapolation", "interpolation")
        )
        assert sorted(inside + outside) == sorted(all_test)
        extrapolated += inside
        interpolated += outside
    assert sorted(held_out) == sorted(all_train)
    assert sorted(extrapolated) == sorted(all_test)
    assert sorted(interpolated) == sorted(2 * all_test)
    assert sum(manifest.parameters.training_queries) == TRAIN
    assert sum(manifest.parameters.test_queries) == TEST
    after = manifest.overlap.after
    assert after["bucket-1/extrapolation"].test_queries == len(
        queries(output / "bucket-1/extrapolation", "test")
    )


def test_beirs_own_loader_reads_the_folders(folder, tiny_cosine, tmp_path):
    from beir.datasets.data_loader import GenericDataLoader

    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    for split in ("train", "test"):
        made = tmp_path / "o" / "extrapolation"
        corpus, texts, qrels = GenericDataLoader(str(made)).load(split)
        ours = load_collection(made, split)
        assert (len(corpus), texts, qrels) == (200, ours.queries, ours.qrels)


def test_a_compressed_corpus_is_linked_under_its_name(folder, tiny_cosine, tmp_path):
    packed = tmp_path / "packed"
    shutil.copytree(folder, packed)
    (packed / "corpus.jsonl.gz").write_bytes(gzip.compress((packed / "corpus.jsonl").read_bytes()))
    (packed / "corpus.jsonl").unlink()
    restrain(packed, tiny_cosine, tmp_path / "o", sizes=(16,))
    assert (tmp_path / "o" / "interpolation" / "corpus.jsonl.gz").samefile(
        packed / "corpus.jsonl.gz"
    )
    assert len(load_collection(tmp_path / "o" / "interpolation", "train").documents) == 200


def test_a_corpus_without_a_file_of_the_user_is_written_once_and_may_be_moved(
    tiny_cosine, tmp_path, monkeypatch
):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    manifest = restrain("apidocs/numpy", tiny_cosine, tmp_path / "o", sizes=(200,))
    assert manifest.base == "apidocs/numpy"
    assert (tmp_path / "o" / "corpus.jsonl").is_file()
    expected = load_collection("apidocs/numpy", "train").documents.content_hash
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "o").rename(tmp_path / "moved")
    result = tmp_path / "moved" / "extrapolation"
    assert (result / "corpus.jsonl").readlink() == Path("../corpus.jsonl")
    assert load_collection(result, "train").documents.content_hash == expected


def test_resampled_folders_can_be_resampled(folder, tiny_cosine, tmp_path):
    restrain(folder, tiny_cosine, tmp_path / "o", ks=(3,))
    restrain(tmp_path / "o" / "interpolation", tiny_cosine, tmp_path / "p", ks=(1,))
    # The link leads to the corpus, not to another link.
    link = tmp_path / "p" / "interpolation" / "corpus.jsonl"
    assert link.readlink() == (folder / "corpus.jsonl").resolve()


def test_test_queries_with_another_corpus_have_another_folder(folder, tiny_cosine, tmp_path):
    other = write_beir(tmp_path / "other", documents=30, queries=6, seed=5)
    manifest = resample_restrain(
        str(folder),
        str(other),
        model=str(tiny_cosine),
        output=tmp_path / "o",
        options=RestrainOptions(sizes=(10,)),
    )
    assert manifest.same_corpus is False
    for result in manifest.sets:
        assert result.train.folder == result.folder
        assert result.test.folder == f"{result.folder}/test"
        train = load_collection(tmp_path / "o" / result.train.folder, "train")
        test = load_collection(tmp_path / "o" / result.test.folder, "test")
        assert (len(train.documents), len(test.documents)) == (200, 30)
        # Ids that both have are two queries here.
        assert set(test.queries) & {f"q{i}" for i in range(TRAIN)}
        assert test.qrels == load_collection(other, "test").qrels
        with pytest.raises(InputError, match=": train"):
            load_collection(tmp_path / "o" / result.folder, "test")


def test_an_interrupted_write_leaves_nothing(folder, tiny_cosine, tmp_path, monkeypatch):
    from beir_cocodr.resampling.manifest import Manifest

    monkeypatch.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_not_empty_stays_unchanged(folder, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    for taken in ("o", "file"):
        with pytest.raises(InputError, match="is not empty"):
            restrain(folder, "no encoder is loaded for this", tmp_path / taken, sizes=(16,))
    assert (tmp_path / "o" / "mine").read_text() == "x"


def test_several_test_sets_count_as_one(folder, tiny_cosine, tmp_path):
    header, *lines = (folder / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    halves = []
    for name, part in {"one": lines[:TEST], "two": lines[TEST:]}.items():
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / "qrels" / "test.tsv").write_text("".join([header, *part]))
        halves.append(str(tmp_path / name))
    whole = restrain(folder, tiny_cosine, tmp_path / "whole", sizes=(16,))
    joined = resample_restrain(
        str(folder),
        halves,
        model=str(tiny_cosine),
        output=tmp_path / "joined",
        options=RestrainOptions(sizes=(16,)),
    )
    assert joined.sets == [
        replace(one, id=other.id) for one, other in zip(whole.sets, joined.sets, strict=True)
    ]
    assert joined.overlap == whole.overlap
    assert (joined.test.dataset, joined.test.queries) == (", ".join(halves), TEST)
    (tmp_path / "two" / "qrels" / "test.tsv").write_text(
        "".join([header, *part, lines[0].replace("\t2", "\t1")])
    )
    with pytest.raises(InputError, match=r"other texts or judgements in .*one.*two"):
        resample_restrain(
            str(folder),
            halves,
            model=str(tiny_cosine),
            output=tmp_path / "o",
            options=RestrainOptions(sizes=(16,)),
        )
    with (tmp_path / "two" / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "more", "title": "", "text": "wing"}\n')
    with pytest.raises(InputError, match="different corpora"):
        resample_restrain(
            str(folder),
            halves,
            model=str(tiny_cosine),
            output=tmp_path / "o",
            options=RestrainOptions(sizes=(16,)),
        )
    assert not (tmp_path / "o").exists()


def test_points_are_main_components_of_queries(folder, tiny_cosine, tmp_path):
    """Compare with singular vectors, up to the signs of the axes."""
    from sentence_transformers import SentenceTransformer

    result = restrain(folder, tiny_cosine, tmp_path / "o", sizes=(8, 16))
    assert list(result.points) == ["interpolation", "extrapolation", "test"]
    host, vectors = SentenceTransformer(str(tiny_cosine)), []
    for regime in ("interpolation", "extrapolation"):
        texts = list(load_collection(tmp_path / "o" / "size-16" / regime, "train").queries.values())
        assert len(result.points[regime]) == len(texts)
        vectors.append(host.encode_query(texts))
    vectors.append(host.encode_query(list(load_collection(folder, "test").queries.values())))
    unit = np.concatenate([part / np.linalg.norm(part, axis=1, keepdims=True) for part in vectors])
    centred = unit - unit.mean(0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    points = np.array([point for part in result.points.values() for point in part])
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-3)
    buckets = resample_resttest(
        str(folder),
        str(folder),
        model=str(tiny_cosine),
        output=tmp_path / "b",
        options=ResttestOptions(buckets=2),
    )
    assert list(buckets.points) == ["bucket 1", "bucket 2", "test"]
    assert sum(map(len, buckets.points.values())) == TRAIN + TEST
