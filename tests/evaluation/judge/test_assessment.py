"""compare with a judge: what it says with labels and without, and what it never decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from http_servers import serving

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions, compare
from beir_cocodr.evaluation.judge.assessment import quadratic_kappa
from beir_cocodr.evaluation.judge.prediction_powered import PoweredMean
from beir_cocodr.evaluation.judge.settlement import settle
from beir_cocodr.evaluation.results import ComparisonRecord
from beir_cocodr.report.evaluation_tables import verdict_tables
from beir_cocodr.report.html.page import write_report
from beir_cocodr.report.terminal import print_tables

QUERIES = 40


def relevant(query: int) -> str:
    return f"d{query}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of forty queries with one relevant document each, a third of them labelled."""
    folder = tmp_path_factory.mktemp("judged") / "corpus"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "", "text": f"about topic {i} alone"} for i in range(60)]
    queries = [{"_id": f"q{i}", "text": f"topic {i}"} for i in range(QUERIES)]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    qrels = [f"q{i}\t{relevant(i)}\t1\n" for i in range(0, QUERIES, 3)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(qrels))
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """A run that has the relevant document first or third, and one that has it second or fifth."""
    rng = np.random.default_rng(1)
    made = {}
    for name, ranks in (("good", (1, 3)), ("bad", (2, 5))):
        run = {}
        for i in range(QUERIES):
            documents = [f"d{(i + 1 + k) % 60}" for k in range(9)]
            documents.insert(int(rng.choice(ranks)) - 1, relevant(i))
            run[f"q{i}"] = {document: float(-rank) for rank, document in enumerate(documents)}
        made[name] = run
    return made


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A judge that knows what is relevant, and is wrong for one query in ten."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))

    def answer(asked):
        prompt = asked.content["messages"][0]["content"]
        query = prompt.partition("<query>\n")[2].partition("\n")[0].split()[-1]
        document = prompt.partition("<document>\n")[2].partition("\n")[0].split()[2]
        is_right = query == document and int(query) % 10
        return {"choices": [{"message": {"content": f"Grade: {3 if is_right else 0}"}}]}

    with serving(answer) as server:
        yield server


def test_without_labels_a_judge_has_an_opinion_and_changes_no_verdict(
    folder, runs, server, tmp_path, capsys
):
    judge = f"{server.url}#tiny"
    unlabelled = CompareOptions(labels=False, samples=20)
    before = compare(runs, folder, options=unlabelled)
    record = compare(
        runs, folder, output=tmp_path / "out", options=replace(unlabelled, judge=judge)
    )
    assert record.pairs == before.pairs
    assert (record.ranking, record.best) == (before.ranking, before.best)
    findings = record.judge
    assert findings.labelled == 0
    assert findings.agreement is None
    [difference] = findings.differences
    assert difference.opinion < 0  # the second run is the worse one
    assert difference.joined is None
    assert ComparisonRecord.read(tmp_path / "out" / "comparison.json") == record
    print_tables(*verdict_tables(record))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"opinion of {server.url}/v1#tiny, not counted" in printed
    assert "never decides alone" in printed
    page = Path(write_report(tmp_path / "out").path).read_text()
    assert f"Opinion of {server.url}/v1#tiny, not counted" in page


def test_the_labels_of_a_split_correct_the_judge_over_all_queries(
    folder, runs, server, tmp_path, capsys
):
    options = CompareOptions(judge=f"{server.url}#tiny")
    record = compare(runs, folder, measures="nDCG@10", output=tmp_path / "out", options=options)
    findings = record.judge
    labelled = len(range(0, QUERIES, 3))
    assert (findings.queries, findings.labelled) == (QUERIES, labelled)
    [difference] = findings.differences
    joined = difference.joined
    # The paired test of the same labels has the same mean.
    assert joined.labels_alone == pytest.approx(record.pairs[0].difference, abs=1e-6)
    assert joined.correlation > 0.5
    assert joined.worth > labelled
    assert joined.interval[1] - joined.interval[0] < (
        joined.alone_interval[1] - joined.alone_interval[0]
    )
    # Labels name relevant documents alone, so that all others count as not relevant.
    agreement = findings.agreement
    assert agreement.counts_unjudged
    assert agreement.pairs == 10 * labelled
    assert 0.8 < agreement.kappa < 1
    assert agreement.kappa == pytest.approx(agreement.kappa_quadratic)
    print_tables(*verdict_tables(record))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"kappa {agreement.kappa:.2f} (relevant or not)" in printed
    page = Path(write_report(tmp_path / "out").path).read_text()
    assert "Labels and the judge" in page
    assert f"kappa {agreement.kappa:.2f} (relevant or not)" in page


def test_judgements_of_a_file_are_joined_with_the_judge(folder, runs, server, tmp_path):
    file = tmp_path / "judged.tsv"
    lines = [f"q{i}\td{(i + k) % 60}\t{int(k == 0)}\n" for i in range(12) for k in range(3)]
    file.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    unlabelled = tmp_path / "corpus"
    unlabelled.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (unlabelled / name).write_text((folder / name).read_text())
    options = CompareOptions(
        judgements=file, judge=f"{server.url}#tiny", judge_queries=30, samples=20
    )
    findings = compare(runs, unlabelled, options=options).judge
    assert (findings.queries, findings.labelled) == (30, 12)
    assert not findings.agreement.counts_unjudged  # the file says what is not relevant
    assert findings.agreement.pairs == 36


def powered(low, high):
    return PoweredMean((low + high) / 2, 0.02, (low, high), (low, high), 1, 1, 0, None, 40)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.02, 0.2), "better"),
        ((-0.2, -0.02), "worse"),
        ((-0.002, 0.002), "no difference"),
        ((-0.1, 0.1), "cannot tell"),
    ],
)
def test_labels_and_judge_settle_what_is_open_and_nothing_else(
    folder, runs, server, interval, verdict
):
    options = CompareOptions(labels=False, samples=20, judge=f"{server.url}#tiny")
    record = compare(runs, folder, options=options)
    [pair] = record.pairs
    assert pair.verdict == "cannot tell"
    [difference] = record.judge.differences
    joined = replace(difference, joined=powered(*interval))
    judge = replace(record.judge, labelled=20, differences=[joined])
    [settled] = settle(record, judge).pairs
    assert settled.verdict == verdict
    if verdict != "cannot tell":
        assert (settled.rule, settled.interval) == ("judged", interval)
        assert "20 labelled queries" in settled.reason
    decided = replace(record, pairs=[replace(pair, verdict="worse")])
    assert settle(decided, judge) == decided
    # Without labels a judge decides nothing, however sure it is.
    opinion = replace(difference, opinion=1.0, opinion_interval=(0.9, 1.0))
    assert settle(record, replace(record.judge, differences=[opinion])) == record


def test_the_best_of_settled_pairs_is_not_one_that_lost(folder, runs, server):
    """The lead of B over C is the largest, and A is better than B all the same."""
    options = CompareOptions(labels=False, samples=20, judge=f"{server.url}#tiny")
    record = compare(runs, folder, options=options)
    [pair] = record.pairs
    [difference] = record.judge.differences

    def of(a, b, estimate):
        return replace(pair, a=a, b=b, estimate=estimate, probability=0.1)

    open_pairs = [of("A", "B", 0.01), of("B", "C", -0.3), of("A", "C", -0.05)]
    a_and_b = replace(difference, a="A", b="B", joined=powered(-0.04, -0.02))
    judge = replace(record.judge, labelled=20, differences=[a_and_b])
    findings = replace(record, pairs=open_pairs, ranking=["B", "A", "C"])
    settled = settle(findings, judge)
    assert settled.pairs[0].verdict == "worse"
    assert settled.ranking == ["A", "B", "C"]
    assert settled.best.model == "A"


def test_a_corpus_without_queries_gives_a_judge_nothing_to_grade(folder, tmp_path):
    (tmp_path / "corpus.jsonl").write_text((folder / "corpus.jsonl").read_text())
    with pytest.raises(InputError, match="has no queries, and a judge"):
        compare(
            ["bm25", "lucene-bm25"],
            tmp_path,
            options=CompareOptions(judge="http://localhost:1#tiny"),
        )


def test_the_command_refuses_what_is_no_judge(folder, capsys):
    arguments = ["compare", "--dataset", str(folder), "bm25", "minilm", "--judge", "gpt"]
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert status.value.code == 2
    assert "unknown judge 'gpt'" in capsys.readouterr().err


def test_kappa_is_that_of_other_implementations():
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(2)
    first = rng.integers(0, 4, 200)
    second = np.where(rng.random(200) < 0.6, first, rng.integers(0, 4, 200))
    expected = cohen_kappa_score(first, second, weights="quadratic")
    assert quadratic_kappa(first, second) == pytest.approx(expected)
    binary = cohen_kappa_score(first > 1, second > 1)
    assert quadratic_kappa(first > 1, second > 1) == pytest.approx(binary)
    assert quadratic_kappa(np.ones(5), np.ones(5)) is None
