"""Shift: words and query types against counts by hand and by plain Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import write_beir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.analysis import shift as unigrams_module
from beir_cocodr.analysis.gains import read_scores
from beir_cocodr.analysis.shift import Shift, Unigrams, shift
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate


def collection(
    folder: Path, texts: list, queries: list[str] = (), split: str | None = "test"
) -> str:
    """Write a BEIR folder, whose texts may be (title, text) pairs; all queries are judged."""
    folder.mkdir(parents=True)
    pairs = [("", text) if isinstance(text, str) else text for text in texts]
    lines = [
        json.dumps({"_id": f"d{i}", "title": title, "text": text})
        for i, (title, text) in enumerate(pairs)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    if queries:
        lines = [json.dumps({"_id": f"q{i}", "text": text}) for i, text in enumerate(queries)]
        (folder / "queries.jsonl").write_text("\n".join(lines) + "\n")
        if split:
            (folder / "qrels").mkdir()
            rows = "".join(f"q{i}\td0\t1\n" for i in range(len(queries)))
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return str(folder)


def counted(folder: str, **options) -> dict[str, int]:
    result = Unigrams.of(load_collection(folder, labels="none").documents, **options)
    return dict(zip(result.words.to_pylist(), result.counts.tolist(), strict=True))


def in_memory(texts: list[str]) -> dict[str, dict[str, str]]:
    return {f"d{i}": {"title": "", "text": text} for i, text in enumerate(texts)}


def by_python(texts: list[str]) -> Counter:
    """Count words by a loop over letters: categories L, M, N and the underscore."""
    words: Counter = Counter()
    for text in texts:
        kept = (c if c == "_" or unicodedata.category(c)[0] in "LMN" else " " for c in text.lower())
        words.update("".join(kept).split(" "))
    del words[""]
    return words


def test_words_of_title_and_text_are_counted(tmp_path):
    texts = [
        ("Wing flow", "The wing's flow: 2 wings."),
        ("", "FLOW_rate café नमस्ते"),
        ("only title", ""),
    ]
    result = counted(collection(tmp_path / "c", texts))
    assert result == by_python([part for pair in texts for part in pair])
    assert (result["wing"], result["flow"], result["s"], result["नमस्ते"]) == (2, 2, 1, 1)


letters = st.text(st.sampled_from("aAbBéßИ中०_9 .,-'\n\t—«\u0301"), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(st.lists(letters.filter(str.strip), min_size=1, max_size=12))
def test_counts_equal_those_of_a_loop_for_any_chunk_size(texts):
    documents = load_collection(in_memory(texts), labels="none").documents
    expected = by_python(texts)
    for rows in (1, 3, 4096):
        result = Unigrams.of(documents, chunk_rows=rows)
        counts = dict(zip(result.words.to_pylist(), result.counts.tolist(), strict=True))
        assert counts == dict(expected)


def test_merging_early_and_often_changes_nothing(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.geometric(0.01, 30)) for _ in range(200)]
    folder = collection(tmp_path / "c", texts)
    once = counted(folder)
    monkeypatch.setattr(unigrams_module, "_WAITING_ROWS", 10)
    assert counted(folder, chunk_rows=7) == once == dict(by_python(texts))


def test_similarities_by_hand(tmp_path):
    source = collection(
        tmp_path / "s",
        ["wing wing flow", ("wing", "")],
        ["what is it", "is it", "it", "it"],
        "train",
    )
    target = collection(tmp_path / "t", ["wing drag", "flow drag"], ["what is it", "when is it"])
    result = shift([target], source=source)
    # Words: 3/4, 1/4, 0 and 1/4, 1/4, 1/2. Types: 1/4, 1/4, 1/2, 0 and 1/2, 0, 0, 1/2.
    assert result.document_jaccard == pytest.approx(1 / 3, abs=1e-15)
    assert result.query_type_jaccard == pytest.approx(0.25 / 1.75, abs=1e-15)
    assert (result.source.words, result.source.different_words) == (4, 2)
    assert (result.source.split, result.targets[0].split) == ("train", "test")
    for record in (result.source, *result.targets):
        assert sum(record.query_types.values()) == pytest.approx(1, abs=1e-12)


def test_a_collection_has_similarity_one_with_itself(beir_folder):
    result = shift(beir_folder, source=beir_folder, source_split="test")
    assert (result.document_jaccard, result.query_type_jaccard) == (1, 1)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=9), min_size=2, max_size=2)
)
def test_similarity_of_documents_is_that_of_dense_counts_and_symmetric(sides):
    first, second = (in_memory([" ".join(words)]) for words in sides)
    result = shift(second, source=first).document_jaccard
    shares = [[words.count(letter) / len(words) for letter in "abcdef"] for words in sides]
    expected = np.minimum(*shares).sum() / np.maximum(*shares).sum()
    assert result == pytest.approx(expected, abs=1e-14)
    assert result == shift(first, source=second).document_jaccard
    assert 0 <= result <= 1


def test_several_targets_in_one_pass_equal_one_at_a_time(tmp_path, monkeypatch):
    folders = [str(write_beir(tmp_path / name, seed=i)) for i, name in enumerate("sabc")]
    source, targets = folders[0], folders[1:]
    read: Counter = Counter()
    original = Unigrams.of.__func__

    def spy(cls, documents, **options):
        read[documents.content_hash] += 1
        return original(cls, documents, **options)

    monkeypatch.setattr(Unigrams, "of", classmethod(spy))
    together = shift(targets, source=source)
    assert set(read.values()) == {1}
    assert len(read) == 4
    for key in ("document_jaccard", "query_type_jaccard"):
        assert list(getattr(together, key)) == targets
        for target in targets:
            assert getattr(together, key)[target] == getattr(shift([target], source=source), key)
    assert [record.dataset for record in together.targets] == targets


def test_without_queries_there_is_no_similarity_of_types_and_the_log_says_so(tmp_path, caplog):
    source = str(write_beir(tmp_path / "s"))
    bare = collection(tmp_path / "bare", ["wing flow"])
    with caplog.at_level("INFO"):
        result = shift([bare, f"{bare}/corpus.jsonl"], source=source)
    assert [record.query_type_jaccard for record in result.targets] == [None, None]
    assert all(value is not None for value in result.document_jaccard.values())
    assert result.targets[0].query_types is None
    assert f"{bare} has no queries" in caplog.text


def test_a_missing_default_split_is_logged_and_a_named_one_is_refused(tmp_path, caplog):
    source = str(write_beir(tmp_path / "s"))
    target = collection(tmp_path / "t", ["wing"], ["what", "when"], "dev")
    with caplog.at_level("INFO"):
        [record] = shift([target], source=source).targets
    assert (record.split, record.queries) == (None, 2)
    assert "no split test: all its 2 queries" in caplog.text
    assert shift([target], source=source, split="dev").targets[0].split == "dev"
    with pytest.raises(InputError, match="split 'tset'"):
        shift([target], source=source, split="tset")
    with pytest.raises(InputError, match="split 'dev'"):
        shift([target], source=source, source_split="dev")
    with pytest.raises(InputError, match=r"split of .* has no name"):
        shift([target], source=source, split="")
    with pytest.raises(InputError, match=r"split of .* has no name"):
        shift([target], source=source, source_split="")


def test_documents_without_words_have_no_similarity(tmp_path, caplog):
    source = str(write_beir(tmp_path / "s"))
    assert shift(collection(tmp_path / "t", ["...", "?!"]), source=source).document_jaccard is None
    assert "no words" in caplog.text


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A source, four targets, and BM25 with and without stemming judged on the targets."""
    root = tmp_path_factory.mktemp("judged")
    source = str(write_beir(root / "s"))
    targets, files = [], []
    for i in range(4):
        targets.append(str(write_beir(root / f"t{i}", seed=i + 1)))
        evaluate(
            {"words": "bm25"},
            targets[-1],
            output=root / f"r{i}",
            options=EvaluateOptions(queries=4 * i + 4),
        )
        file = root / f"r{i}" / "results.json"
        report = json.loads(file.read_text())
        record = report["models"]["words"]
        report["models"]["dense"] = record | {
            "model": "m",
            "measures": {"nDCG@10": 0.2 * i, "R@100": 0.5},
        }
        file.write_text(json.dumps(report))
        files.append(file)
    return source, targets, files


def test_scores_are_correlated_with_similarity(judged, tmp_path):
    source, targets, files = judged
    result = shift(targets, source=source, results=files)
    result.write(tmp_path / "shift.json")
    assert Shift.read(tmp_path / "shift.json") == result
    assert set(result.scores) == {"words", "dense"}
    assert [result.scores["dense"][target] for target in targets] == pytest.approx(
        [0, 0.2, 0.4, 0.6]
    )
    row = result.correlations["dense"][0]
    x = [result.document_jaccard[target] for target in targets]
    reference = stats.pearsonr(x, [0, 0.2, 0.4, 0.6])
    assert (row.similarity, row.targets) == ("document_jaccard", 4)
    assert (row.pearson, row.pearson_p) == pytest.approx((reference.statistic, reference.pvalue))


def test_scores_are_differences_to_a_baseline_by_label_or_model(judged):
    source, targets, files = judged
    plain = shift(targets, source=source, results=files).scores
    for baseline in ("words", "bm25"):
        result = shift(targets, source=source, results=files, baseline=baseline).scores
        assert list(result) == ["dense"]
        for target in targets:
            expected = plain["dense"][target] - plain["words"][target]
            assert result["dense"][target] == pytest.approx(expected)


def test_a_picture_is_drawn_if_there_are_results(judged, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    source, targets, files = judged
    several = [
        "--source",
        source,
        *(part for target in targets for part in ("--target", target)),
        "--json",
    ]
    results = [part for file in files[:3] for part in ("--results", str(file))]
    status, out, _ = run(capsys, *several, *results, "--output", str(tmp_path / "a"))
    assert (status, json.loads(out)["picture"]) == (0, "shift.png")
    assert (tmp_path / "a" / "shift.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "run.json",
        "shift.json",
        "shift.png",
    ]
    status, out, _ = run(capsys, *several, "--output", str(tmp_path / "b"))
    assert (status, json.loads(out)["picture"]) == (0, None)
    assert not (tmp_path / "b" / "shift.png").exists()
    status, _, err = run(capsys, *several, "--output", str(tmp_path / "c"), "--picture")
    assert status == 2
    assert "give --results" in err
    assert not list(tmp_path.glob("c/*"))


def test_a_folder_may_be_named_in_another_way(judged, tmp_path):
    _, targets, files = judged
    result = read_scores(files[:1], [f"{targets[0]}/../{Path(targets[0]).name}"], "nDCG@10")
    assert len(result.scores["dense"]) == 1


def test_bad_input_is_refused_by_name(judged, tmp_path):
    source, targets, files = judged

    def refused(match: str, datasets=targets, **options):
        with pytest.raises(InputError, match=match) as error:
            shift(datasets, source=source, **options)
        assert "\n" not in str(error.value)

    refused("the target is an empty list", [])
    refused("twice", [targets[0], targets[0]])
    refused("nowhere", ["nowhere/at/all"])
    refused("not one of", targets[:1], results=files)
    refused("no measure AP .*'words'", results=files, measure="AP")
    refused("earlier file", results=[files[0], files[0]])
    refused("'x'.*words, dense", results=files, baseline="x")
    refused("cannot be read", results=[tmp_path / "absent.json"])
    (tmp_path / "no.json").write_text("[1]")
    refused("results.json", results=[tmp_path / "no.json"])
    (tmp_path / "no.json").write_text("{")
    refused("cannot be read", results=[tmp_path / "no.json"])
    other = json.loads(files[0].read_text())
    del other["models"]["words"]
    (tmp_path / "no.json").write_text(json.dumps(other))
    refused("baseline", results=[tmp_path / "no.json", *files[1:]], baseline="words")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["shift", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_stdout_is_one_json_object_with_the_plain_keys(capsys, judged):
    source, targets, _ = judged
    status, out, _ = run(capsys, "--source", source, "--target", targets[0], "--json")
    result = json.loads(out)
    assert status == 0
    assert {type(result[key]) for key in ("document_jaccard", "query_type_jaccard")} == {float}
    several = [part for target in targets for part in ("--target", target)]
    status, out, _ = run(capsys, "--source", source, *several, "--json")
    assert list(json.loads(out)["document_jaccard"]) == targets


def test_the_table_has_all_rows_and_notes(capsys, judged, tmp_path):
    source, targets, files = judged
    bare = collection(tmp_path / "bare", ["wing flow"])
    results = [part for file in files for part in ("--results", str(file))]
    several = [part for target in [*targets, bare] for part in ("--target", target)]
    status, out, _ = run(capsys, "--source", source, *several, *results, "--baseline", "bm25")
    assert status == 0
    told = " ".join(out.split())
    assert "has no queries, so its query types cannot be compared" in told
    assert "scores are differences from bm25" in told
    for name in ("declarative", "yes/no", "Pearson r", "Kendall"):
        assert name in told


def test_bad_input_on_the_command_line_is_status_2_and_one_line(capsys, judged, tmp_path):
    source, targets, _ = judged
    broken = tmp_path / "broken"
    shutil.copytree(targets[0], broken)
    (broken / "corpus.jsonl").write_text('{"_id": "1", "text": "a"}\n{"_id": "2", \n')
    for arguments, match in (
        (["--target", "nowhere/at/all"], "nowhere/at/all"),
        (["--target", str(broken)], "corpus.jsonl:2"),
        (["--target", targets[0], "--split", "x"], "no split 'x'"),
        ([], "--target"),
    ):
        status, out, err = run(capsys, "--source", source, *arguments)
        assert (status, out) == (2, "")
        assert err.splitlines()[-1].startswith("error: ")
        assert match in err.splitlines()[-1]


def peak_memory(folders: list[str]) -> list[int]:
    """Return the peak bytes of counting the words of each corpus and of those before it, in another
    process.
    """
    for folder in folders:
        load_collection(folder, labels="none")  # converts the corpus, which is not measured
    program = """
import sys, pyarrow
from beir_cocodr.data.collection import load_collection
from beir_cocodr.analysis import shift
shift._WAITING_ROWS = 1000  # as small for this corpus as the real one is for a real corpus
for folder in sys.argv[1:]:
    shift.Unigrams.of(load_collection(folder, labels="none").documents, chunk_rows=100)
    print(pyarrow.default_memory_pool().max_memory())
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *folders], capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


def test_memory_does_not_grow_with_documents_and_torch_is_not_imported(tmp_path):
    words = np.array([f"word{i}" for i in range(300)])
    drawn = words[np.random.default_rng(0).integers(300, size=(8000, 20))]
    texts = [" ".join(row) for row in drawn]
    folders = [collection(tmp_path / str(n), texts[:n]) for n in (1000, 8000)]
    small, large = peak_memory(folders)
    assert 0 < large < 1.5 * small
    assert large < (Path(folders[1]) / "corpus.jsonl").stat().st_size / 2
