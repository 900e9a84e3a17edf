"""compare, with labels and without, on tiny collections."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from graded import calibrated_by_crops, changed

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgement_log import log_judgement, typed_id
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.calibration import Spread
from beir_cocodr.evaluation.compare import CompareOptions, best_rival, compare
from beir_cocodr.evaluation.label_free import verdict as label_free
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.results import ComparisonRecord
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import ways_to_use
from beir_cocodr.report.evaluation_tables import verdict_tables
from beir_cocodr.report.html.headline import label_free_headline
from beir_cocodr.report.terminal import print_tables
from beir_cocodr.report.wording import counted
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.resolve import resolve_models
from beir_cocodr.retrieval.resources import Resources

OPPOSITE = {
    "better": "worse",
    "worse": "better",
    "cannot tell": "cannot tell",
    "no difference": "no difference",
}


@pytest.fixture(autouse=True, scope="module")
def calibrated():
    """Use a calibration that decides on tiny collections, which the packaged one would not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(label_free, "load_calibration", calibrated_by_crops)
        yield


@pytest.fixture(scope="module")
def copied(clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies") / "copy"
    shutil.copytree(clean, folder)
    return str(folder)


@pytest.fixture(scope="module")
def unlabelled(calibrated, distinct, clean, damaged, copied, tmp_path_factory):
    output = tmp_path_factory.mktemp("label-free")
    models = [clean, damaged, copied, "bm25"]
    return (
        compare(
            models, str(distinct), output=output, options=CompareOptions(labels=False, samples=40)
        ),
        output,
        models,
    )


def pair_of(report, a, b):
    [pair] = [pair for pair in report.pairs if (pair.a, pair.b) == (a, b)]
    return pair


def by_estimator(pair):
    return {found.estimator: found for found in pair.estimates}


def test_a_damaged_copy_is_worse_by_crops_and_by_generated_queries(unlabelled):
    report, _, (clean, damaged, *_) = unlabelled
    pair = pair_of(report, clean, damaged)
    for estimator in ("held-out crops", "generated queries"):
        found = by_estimator(pair)[estimator]
        assert found.interval[1] < 0
        assert found.losses > found.wins
        assert found.a > 0.7  # the clean one works
    assert pair.verdict == "worse"
    assert report.ranking.index(clean) < report.ranking.index(damaged)


def test_a_copy_cannot_be_told_from_its_original(unlabelled):
    report, _, (clean, _, copied, _) = unlabelled
    pair = pair_of(report, clean, copied)
    assert (pair.verdict, pair.estimate, pair.interval) == ("no difference", 0, (0, 0))
    assert all(found.difference == pytest.approx(0, abs=1e-9) for found in pair.estimates)


def test_the_report_says_what_it_rests_on_and_is_written(unlabelled, capsys):
    report, output, models = unlabelled
    assert json.loads((output / "comparison.json").read_text()) == json.loads(
        json.dumps(report.to_json())
    )
    assert ComparisonRecord.read(output / "comparison.json") == report
    assert not report.labels
    told = report.pseudo_queries
    assert told["generated queries"].verbatim == 1
    assert 0 < told["held-out crops"].verbatim < 1
    assert told["generated queries"].bm25_ndcg > 0.8
    assert (told["agreement"].queries, told["agreement"].of_the_collection) == (40, True)
    assert told["agreement"].held_words.keys() == {*models, "bm25"}
    assert list(report.seen) == models
    assert not list(output.glob(".unfinished-*"))
    lines = (output / "labels_wanted.tsv").read_text().splitlines()
    # Queries come whole, ten documents each.
    assert len(lines) == 1 + len(report.labels_wanted.pairs) == 101
    assert len(list(output.glob("*.run"))) == 4
    print_tables(*verdict_tables(report))
    printed = " ".join(capsys.readouterr().out.split())
    assert report.pairs[0].trust[:60] in printed
    assert "BM25 alone reaches nDCG@10" in printed


def test_exchanging_models_turns_the_verdict_round_end_to_end(unlabelled, distinct):
    report, _, (clean, damaged, *_) = unlabelled
    turned = compare(
        [damaged, clean], str(distinct), options=CompareOptions(labels=False, samples=40)
    )
    assert turned.pairs[0].verdict == OPPOSITE[pair_of(report, clean, damaged).verdict]
    before, after = by_estimator(pair_of(report, clean, damaged)), by_estimator(turned.pairs[0])
    for name, found in before.items():
        assert found.difference == pytest.approx(-after[name].difference, abs=1e-6)


def test_noise_on_the_weights_of_a_real_encoder_is_found_out(distinct, minilm, tmp_path):
    import torch

    generator = torch.Generator().manual_seed(0)

    def change(name, weight):
        if weight.ndim > 1:
            weight.add_(weight.std() * torch.randn(weight.shape, generator=generator))

    changed(minilm, tmp_path / "noised", change)
    corpus = tmp_path / "corpus.jsonl"
    few = (distinct / "corpus.jsonl").read_text().splitlines(keepends=True)[:16]
    corpus.write_text("".join(few))
    report = compare(
        [minilm, str(tmp_path / "noised")], str(corpus), options=CompareOptions(samples=16)
    )
    [pair] = report.pairs
    assert pair.verdict == "worse"
    for estimator in ("held-out crops", "generated queries"):
        assert by_estimator(pair)[estimator].interval[1] < 0


def test_a_corpus_alone_is_judged_on_generated_queries(distinct, clean, damaged, tmp_path):
    shutil.copy(distinct / "corpus.jsonl", tmp_path / "corpus.jsonl")
    report = compare(
        [clean, damaged], str(tmp_path / "corpus.jsonl"), options=CompareOptions(samples=40)
    )
    assert (report.labels, report.queries) == (False, 0)
    agreement = report.pseudo_queries["agreement"]
    assert (agreement.queries, agreement.of_the_collection) == (40, False)
    assert report.pairs[0].verdict == "worse"
    assert "generated queries" in report.labels_wanted.remark
    print_tables(*verdict_tables(report))


def test_pairs_to_label_are_drawn_where_nobody_asked_anything_and_can_be_judged(
    distinct, clean, damaged, tmp_path
):
    """The table of a corpus without queries is filled in and read again, until ten are judged."""
    corpus = tmp_path / "corpus.jsonl"
    shutil.copy(distinct / "corpus.jsonl", corpus)
    options = CompareOptions(samples=40, wanted=120)
    report = compare([clean, damaged], str(corpus), output=tmp_path / "out", options=options)
    table = tmp_path / "out" / "labels_wanted.tsv"
    header, *lines = table.read_text().splitlines()
    assert len(lines) == len(report.labels_wanted.pairs) >= 100
    columns = header.split("\t")
    grade = columns.index("judgement")
    queries = {line.split("\t")[columns.index("query")] for line in lines}
    assert 10 <= len(queries) <= 12
    filled = []
    for line in lines:
        cells = line.split("\t")
        # A person who knows which document each query was made from.
        shown = cells[columns.index("document")]
        cells[grade] = str(int(cells[columns.index("query")].split()[0] in shown))
        filled.append("\t".join(cells))
    judged = tmp_path / "judged.tsv"
    judged.write_text("\n".join([header, *filled]) + "\n")
    again = compare(
        [clean, damaged],
        str(corpus),
        output=tmp_path / "again",
        options=CompareOptions(samples=40, judgements=judged),
    )
    assert again.few_labels.queries == len(queries)
    [gain] = again.few_labels.pairs[clean].values()
    assert gain.interval is not None
    said = " ".join([again.pairs[0].reason, *again.few_labels.describe()])
    # How many more it takes is said where the verdict, which also rests on the corpus, is open.
    assert ("would settle it" in said) == (again.pairs[0].verdict == "cannot tell")
    # Nobody asked them, so the evidence is still that of the corpus alone.
    assert again.pairs[0].estimates == report.pairs[0].estimates
    # More queries can be judged: there are others than those ten.
    wanted = {pair.query for pair in again.labels_wanted.pairs}
    assert wanted
    assert not wanted & queries


@pytest.mark.parametrize(("asked", "counts"), [(1, False), (9, False), (10, True)])
def test_queries_of_people_are_evidence_from_ten_up(asked, counts, distinct, clean, tmp_path):
    """Fewer are judged all the same, but the rest of the evidence is that of the corpus alone."""
    corpus = tmp_path / "corpus.jsonl"
    shutil.copy(distinct / "corpus.jsonl", corpus)
    texts = list(load_collection(distinct).queries.values())[:asked]
    for text in texts:
        log_judgement(tmp_path / "judgements.jsonl", "d1", 1, text)
    models = ["bm25", clean]
    alone = compare(models, str(corpus), options=CompareOptions(samples=40))
    options = CompareOptions(samples=40, judgements=tmp_path / "judgements.jsonl")
    judged = compare(models, str(corpus), output=tmp_path / "out", options=options)
    [before], [after] = alone.pairs, judged.pairs
    assert (before.estimates == after.estimates) != counts
    assert (before.distance == after.distance) != counts
    assert judged.few_labels.queries == asked
    runs = {line.split()[0] for line in (tmp_path / "out" / "bm25.run").read_text().splitlines()}
    assert len(runs) == asked


def test_an_asked_query_that_the_collection_has_counts_once(distinct, clean, tmp_path, caplog):
    """Twelve of the collection's 40 queries are asked, some with other spaces, and two others."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        shutil.copy(distinct / name, corpus / name)
    queries = load_collection(corpus, labels="optional").queries
    own = [f"  {text.replace(' ', '  ')} " for text in list(queries.values())[:12]]
    asked = tmp_path / "asked.jsonl"
    others = ["nobody has asked this", "nor this"]
    asked.write_text("".join(json.dumps({"query": text}) + "\n" for text in own + others))
    options = CompareOptions(samples=20, wanted=600, asked=asked)
    with caplog.at_level("INFO"):
        record = compare(["bm25", clean], str(corpus), options=options)
    assert (len(queries), record.queries) == (40, 42)
    assert record.pseudo_queries["agreement"].queries == 42
    assert f"12 of the 14 queries that were asked there are queries of {corpus}" in caplog.text
    ids_of = {}
    for pair in record.labels_wanted.pairs:
        ids_of.setdefault(pair.query, set()).add(pair.query_id)
    assert len(ids_of) > 30
    assert all(len(ids) == 1 for ids in ids_of.values())


def test_proposed_queries_are_no_evidence_beside_those_of_people(distinct, clean, tmp_path):
    """Ten are asked, and ten more were proposed, by this gatherer or by an earlier comparison."""
    collection = load_collection(distinct)
    alone = replace(collection, queries={}, qrels={})
    texts = list(collection.queries.values())[:10]
    resources = Resources(collection.documents, tmp_path)
    resources.name_specs(resolve_models(["bm25", clean]))
    gatherer = Gatherer(resources, ["bm25", clean], samples=20)
    of_people = {typed_id(text): text for text in texts}
    before = gatherer.gather(of_people)
    clicked = dict(list(gatherer.propose().queries.items())[:5])
    drawn = {typed_id(f"wing {number}"): f"wing {number}" for number in range(5)}
    file = tmp_path / "judged.jsonl"
    for text in texts:
        log_judgement(file, "d1", 1, text)
    for id, text in drawn.items():
        log_judgement(
            file, "d1", 1, text, query_id=id, query_probability=0.1, document_probability=0.5
        )
    judged = load_judgements(file).of({}, collection.documents)
    proposed = label_free._proposed(alone, judged)
    assert proposed == drawn.keys()
    after = gatherer.gather(of_people | clicked | drawn, proposed=proposed)
    assert after.queries == before.queries == of_people
    for model in ("bm25", clean):
        np.testing.assert_array_equal(after.lists[model], before.lists[model])
        assert after.all_rankings[model].queries == [*of_people, *clicked, *drawn]
    assert not gatherer.gather(clicked | drawn, proposed=proposed).real


def test_a_run_of_few_queries_shows_nothing(distinct, clean, tmp_path):
    """It answers no query that counts, so it may differ as much as models do."""
    collection = load_collection(distinct)
    few = dict(list(collection.queries.items())[:3])
    ranking = BM25(collection.documents).search(few, 20).results(collection.documents)
    write_run(
        tmp_path / "few.run", {query: [id for id, _ in hits] for query, hits in ranking.items()}
    )
    corpus = {id: document["text"] for id, document in collection.documents.items()}
    record = compare(
        {"run": f"run:{tmp_path / 'few.run'}", "bm25": "bm25", "encoder": clean},
        (corpus, few, {query: {"d1": 1} for query in few}),
        output=tmp_path / "out",
        options=CompareOptions(labels=False, samples=20),
    )
    pairs = {(pair.a, pair.b): pair for pair in record.pairs}
    assert pairs["run", "bm25"].distance == 1
    assert pairs["run", "bm25"].verdict == "cannot tell"
    low, high = pairs["run", "bm25"].interval
    assert high - low > 0.2
    assert "run" not in record.pseudo_queries["agreement"].held_words
    assert len((tmp_path / "out" / "run.run").read_text().split("\n")) > 3


def test_too_little_to_see_is_cannot_tell(clean, damaged, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "1", "text": "wing"}\n{"_id": "2", "text": "heat flow"}\n'
    )
    report = compare([clean, damaged], str(tmp_path / "corpus.jsonl"))
    [pair] = report.pairs
    assert pair.verdict == "cannot tell"
    assert not any(found.applies for found in pair.estimates)
    print_tables(*verdict_tables(report))


def test_the_estimate_its_interval_and_the_record_of_the_calibration_are_told(
    distinct, clean, damaged, capsys
):
    report = compare(
        [clean, damaged], str(distinct), options=CompareOptions(labels=False, samples=40)
    )
    [pair] = report.pairs
    assert (pair.verdict, pair.rule) == ("worse", "calibrated")
    lead = by_estimator(pair)["held-out crops"].difference
    assert pair.estimate == pytest.approx(lead)
    half_width = 1.645 * 0.05 * (pair.distance + 1)
    assert pair.interval == pytest.approx((lead - half_width, lead + half_width))
    assert "right in 6 of 7 decided pairs" in pair.trust
    print_tables(*verdict_tables(report))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{lead:+.3f}" in printed
    assert "words a document" in printed


def test_far_from_the_calibration_intervals_are_wide(distinct, clean, damaged, monkeypatch, capsys):
    figures = {"documents": Spread(np.log(1e6), 0.1)}
    monkeypatch.setattr(
        label_free,
        "load_calibration",
        lambda: replace(calibrated_by_crops(), figures=figures),
    )
    report = compare(
        [clean, damaged], str(distinct), options=CompareOptions(labels=False, samples=40)
    )
    [pair] = report.pairs
    low, high = pair.interval
    assert pair.verdict == "cannot tell"
    assert low < -1 < 1 < high
    [remark] = report.likeness.remarks
    assert "documents" in remark
    print_tables(*verdict_tables(report))
    assert "intervals are wider" in " ".join(capsys.readouterr().out.split())


def test_why_crops_count_for_less_is_said(distinct, clean, tmp_path, monkeypatch, capsys):
    doubting = {"doubt": 300.0, "usual_loss": 0.5, "usual_nonletters": 0.1}
    models = {
        given: replace(model, **doubting) for given, model in calibrated_by_crops().models.items()
    }
    doubtful = replace(calibrated_by_crops(), models=models)
    monkeypatch.setattr(label_free, "load_calibration", lambda: doubtful)
    options = CompareOptions(labels=False, samples=40)
    alike = compare(["bm25", clean], str(distinct), options=options)
    assert alike.likeness.doubts == []

    folder = tmp_path / "code"
    shutil.copytree(distinct, folder)
    endings = {"corpus": " =" * 200, "queries": " please kindly tell me all about this"}
    for name, ending in endings.items():
        file = folder / f"{name}.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [json.dumps(record | {"text": record["text"] + ending}) for record in records]
        file.write_text("\n".join(lines) + "\n")
    unlike = compare(["bm25", clean], str(folder), options=options)
    lost, signs = unlike.likeness.doubts
    assert "fewer words of the queries than of crops (usually at most 39%)" in lost
    assert "digits and signs is larger in documents than in queries by 0.4" in signs
    print_tables(*verdict_tables(unlike))
    printed = " ".join(capsys.readouterr().out.split())
    assert "Crops and titles count for less here: BM25's best documents contain" in printed


def test_a_calibration_file_of_the_user_judges_in_place_of_the_packaged_one(
    distinct, clean, damaged, tmp_path
):
    figures = {"documents": Spread(float(np.log(1e6)), 0.1)}
    own = replace(calibrated_by_crops(), figures=figures)
    own.write(tmp_path / "own.json")
    options = CompareOptions(labels=False, samples=40, calibration=tmp_path / "own.json")
    report = compare([clean, damaged], str(distinct), options=options)
    assert report.calibration == own
    assert report.likeness.distance > 10
    with pytest.raises(InputError, match=r"own\.json: .*--no-labels"):
        compare([clean, damaged], str(distinct), options=replace(options, labels=True))
    with pytest.raises(InputError, match=r"missing\.json: cannot be read"):
        compare(
            [clean, damaged],
            str(distinct),
            options=replace(options, calibration=tmp_path / "missing.json"),
        )


def write_run(path, ranked):
    lines = [
        f"{query} Q0 {document} {rank} {-rank} tag"
        for query, documents in ranked.items()
        for rank, document in enumerate(documents, 1)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_wins_ties_and_losses_by_hand(distinct, tmp_path):
    a = {f"q{i}": [f"d{i}"] for i in range(40)}
    b = dict(a)
    b |= {f"q{i}": ["d39", f"d{i}"] for i in range(3)}  # 3 queries drop to rank 2
    a |= {"q10": ["d39"]}  # and one is won
    first, second = write_run(tmp_path / "a.run", a), write_run(tmp_path / "b.run", b)
    report = compare([first, second], str(distinct), output=tmp_path / "o", measures="nDCG@10 R@1")
    assert ComparisonRecord.read(tmp_path / "o" / "comparison.json") == report
    tests = {pair.measure: pair for pair in report.pairs}
    assert (tests["nDCG@10"].wins, tests["nDCG@10"].ties, tests["nDCG@10"].losses) == (1, 36, 3)
    assert tests["nDCG@10"].difference == pytest.approx((1 - 3 * (1 - 1 / np.log2(3))) / 40)
    assert (tests["R@1"].wins, tests["R@1"].losses) == (1, 3)
    assert report.labels
    assert report.seen == {}
    swapped = compare([second, first], str(distinct), measures="nDCG@10 R@1")
    assert swapped.pairs[0].wins == 3
    assert swapped.pairs[0].verdict == OPPOSITE[tests["nDCG@10"].verdict]
    print_tables(*verdict_tables(report))


def test_with_labels_the_damaged_copy_is_worse_and_holm_is_over_all_pairs(
    distinct, clean, damaged, copied, tmp_path
):
    models = [clean, damaged, copied]
    report = compare(models, str(distinct), output=tmp_path, measures="nDCG@10")
    assert pair_of(report, models[0], damaged).verdict == "worse"
    same = pair_of(report, models[0], copied)
    assert (same.verdict, same.ties, same.t_p_holm) == ("cannot tell", 40, 1.0)
    raw, holm = zip(*((pair.t_p, pair.t_p_holm) for pair in report.pairs), strict=True)
    assert min(holm) == pytest.approx(3 * min(raw))
    assert report.best.model == models[0]
    assert report.best.indistinguishable == [copied]
    assert (tmp_path / "results.json").is_file()
    judged = {(f"q{i}", f"d{i}") for i in range(40)}
    wanted = {(row.query_id, row.document_id) for row in report.labels_wanted.pairs}
    assert not wanted & judged


def test_one_query_and_all_ties(distinct, tmp_path):
    found = {f"q{i}": [f"d{i}"] for i in range(40)}
    first, second = write_run(tmp_path / "a.run", found), write_run(tmp_path / "b.run", found)
    [pair, _] = compare([first, second], str(distinct)).pairs
    assert (pair.verdict, pair.ties) == ("cannot tell", 40)
    one = tmp_path / "one"
    shutil.copytree(distinct, one)
    (one / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    third = write_run(tmp_path / "c.run", {"q1": ["d2"]})
    [pair, _] = compare([first, third], str(one)).pairs
    assert (pair.verdict, pair.t_p, pair.losses) == ("cannot tell", None, 1)


def _compare_with(models, dataset, output, options=None, **settings):
    compare(models, dataset, output=output, options=CompareOptions(**(options or {})), **settings)


def test_bad_input(distinct, tmp_path):
    found = {f"q{i}": [f"d{i}"] for i in range(40)}
    whole = write_run(tmp_path / "a.run", found)
    part = write_run(tmp_path / "b.run", {f"q{i}": [f"d{i}"] for i in range(3, 40)})
    other = write_run(tmp_path / "c.run", {"elsewhere": ["d1"]})
    dataset = str(distinct)
    cases = [
        (["bm25"], {}, "two models.* 1"),
        (["bm25", "bm25"], {}, "twice"),
        ([whole, part], {}, r"b.run .*a.run .*q0, q1, q2"),
        ([whole, other], {}, "none of the 40"),
        (["bm25", "no-such-model"], {"options": {"labels": False}}, "no-such-model"),
        (["bm25", "minilm"], {"options": {"labels": True}, "split": "dev"}, "split 'dev'"),
        (["bm25", "minilm"], {"measures": "nonsense"}, "nonsense"),
        (["bm25", "minilm"], {"options": {"labels": False, "samples": 0}}, "samples .*at least 1"),
        (["bm25", "minilm"], {"options": {"wanted": -1}}, "wanted .*at least 0"),
    ]
    for models, given, message in cases:
        call = partial(_compare_with, models, dataset, tmp_path / "o", **given)
        with pytest.raises(InputError, match=message):
            call()
    assert not (tmp_path / "o" / "comparison.json").exists()


def filled(table, qrels, target, most=None):
    """The table with its column filled from qrels, but for the last rows."""
    header, *rows = (line.split("\t") for line in table.read_text().splitlines())
    place = header.index("judgement")
    for number, row in enumerate(rows):
        done = row[place] or (most is not None and number >= most)
        row[place] = row[place] if done else str(qrels.get(row[0], {}).get(row[1], 0))
    target.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return target


def test_what_was_wanted_is_judged_and_read_back(
    unlabelled, distinct, clean, damaged, tmp_path, capsys
):
    """The pairs that a comparison asks for are judged, and the next one decides with them and asks
    for others.
    """
    _, output, _ = unlabelled
    qrels = load_collection(str(distinct)).qrels
    table = filled(output / "labels_wanted.tsv", qrels, tmp_path / "judged.tsv", most=45)
    arguments = [
        "compare",
        clean,
        damaged,
        "bm25",
        "--dataset",
        str(distinct),
        "--samples",
        "40",
        "--wanted",
        "25",
    ]
    with pytest.raises(SystemExit) as status:
        main(
            [*arguments, "--judgements", str(table), "--output", str(tmp_path / "again"), "--json"]
        )
    assert not status.value.code
    found = json.loads(capsys.readouterr().out)
    few = found["few_labels"]
    assert (few["queries"], few["documents"], few["drawn"]) == (4, 40, True)
    assert list(few["counts"].values()) == [1]  # a query has blank pairs
    assert few["reference"] == clean
    assert few["held_out"]["interval"] is None
    pair = next(pair for pair in found["pairs"] if (pair["a"], pair["b"]) == (clean, damaged))
    assert (pair["verdict"], pair["rule"]) == ("worse", "judged")
    assert "4 judged queries alone" in pair["reason"]
    judged = {(row["query_id"], row["document_id"]) for row in found["labels_wanted"]["pairs"]}
    lines = [
        line.split("\t")
        for line in (tmp_path / "again" / "labels_wanted.tsv").read_text().splitlines()[1:]
    ]
    assert sum(bool(line[2]) for line in lines) == 45  # nothing that was judged is lost
    assert [line[2] for line in lines[45:]] == [""] * 25
    assert {tuple(line[:2]) for line in lines[45:]} == judged
    assert not judged & {tuple(line[:2]) for line in lines[:45]}
    # The table is not written over without having been read.
    filled(
        tmp_path / "again" / "labels_wanted.tsv", qrels, tmp_path / "again" / "labels_wanted.tsv"
    )
    with pytest.raises(
        InputError, match=r"labels_wanted\.tsv contains judgements of .* --judgements"
    ):
        compare(
            [clean, damaged],
            str(distinct),
            output=tmp_path / "again",
            options=CompareOptions(labels=False, samples=40, overwrite=True),
        )
    record = ComparisonRecord.from_json(found, "stdout")
    headline = label_free_headline(record, {model: model for model in record.models})
    assert headline.sentence.startswith("According to 4 judged queries and estimates")
    assert any("40 documents are judged" in note for note in headline.notes)
    print_tables(*verdict_tables(record))
    assert "from 4 judged queries alone" in " ".join(capsys.readouterr().out.split())


def test_one_encoder_stands_for_all_its_uses(distinct, clean, tmp_path):
    qrels = load_collection(str(distinct)).qrels
    for query in list(qrels)[:12]:
        for document in [*qrels[query], "d0", "d1"]:
            log_judgement(
                tmp_path / "log", document, qrels[query].get(document, 0), "", query_id=query
            )
    log_judgement(tmp_path / "log", "no-such-document", 0, "", query_id=query)
    found = compare(
        [clean], str(distinct), options=CompareOptions(samples=20, judgements=tmp_path / "log")
    )
    assert set(found.models) == set(ways_to_use(clean))
    assert found.few_labels.reference == clean
    assert list(found.few_labels.counts.values()) == [1]  # a document that is not there
    assert found.few_labels.chosen == found.best.model == found.ranking[0]
    assert set(found.few_labels.unjudged) == set(found.models)
    assert found.few_labels.held_out.interval[0] < 0 < found.few_labels.held_out.interval[1]
    with pytest.raises(InputError, match=r"by the labels .* or by the judgements"):
        compare(
            [clean], str(distinct), options=CompareOptions(labels=True, judgements=tmp_path / "log")
        )
    with pytest.raises(InputError, match="bm25 is not an encoder"):
        compare(["bm25"], str(distinct), options=CompareOptions(judgements=tmp_path / "log"))


def test_an_encoder_that_cannot_be_fused_is_compared_in_its_other_uses(distinct, clean, tmp_path):
    mrl = str(tmp_path / "mrl")
    MRL(clean, seed=1).save_pretrained(mrl)
    uses = set(ways_to_use(mrl)) - {f"vector:{mrl}"}
    for query, relevant in list(load_collection(str(distinct)).qrels.items())[:3]:
        for document in relevant:
            log_judgement(tmp_path / "log", document, 1, "", query_id=query)
    options = CompareOptions(samples=20, judgements=tmp_path / "log")
    assert set(compare(mrl, str(distinct), options=options).models) == uses


def test_pairs_to_label_are_those_of_an_open_pair(unlabelled):
    report, _, (clean, damaged, copied, _) = unlabelled
    findings = replace(report, ranking=[clean, copied, damaged, "bm25"])
    verdicts = {clean: "", copied: "no difference", damaged: "worse", "bm25": "cannot tell"}

    def judged(found: dict[str, str]) -> ComparisonRecord:
        pairs = []
        for pair in report.pairs:
            other = pair.b if pair.a == clean else pair.a
            is_of_clean = clean in (pair.a, pair.b)
            pairs.append(replace(pair, verdict=found[other]) if is_of_clean else pair)
        return replace(findings, pairs=pairs)

    assert best_rival(clean, judged(verdicts)) == "bm25"
    assert best_rival(clean, judged(verdicts | {"bm25": "worse"})) == damaged
    assert best_rival(clean, judged(dict.fromkeys(verdicts, "no difference"))) == copied


def test_what_an_estimate_counts_as_is_shown(unlabelled):
    report, _, (clean, damaged, *_) = unlabelled
    pair = pair_of(report, clean, damaged)
    [made] = [found for found in pair.estimates if found.estimator == "crops and titles"]
    made = replace(made, applies=True, remark="")  # as the packaged calibration has it
    pair = replace(pair, estimates=[made])
    value = made.difference + 0.1
    other = replace(pair, features=pair.features | {"crops and titles": value})
    same = replace(pair, features=pair.features | {"crops and titles": made.difference})
    assert counted(other, made) == value
    assert counted(same, made) is None
    assert counted(other, replace(made, applies=False)) is None
    text = f"counts as {value:+.4f}".replace("-", "−")
    for shown, expected in ((other, True), (same, False)):
        record = replace(report, pairs=[shown])
        cells = [
            cell
            for table in verdict_tables(record)
            for column in table.columns
            for cell in column.cells
        ]
        assert any(text in str(cell) for cell in cells) is expected
