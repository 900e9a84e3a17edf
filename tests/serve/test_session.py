"""A session on a page: what models find side by side, pairs to judge, and the verdict, which is
that of ``compare``.
"""

import json
import threading
import time

import pytest

from beir_cocodr import Searcher
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.asked_queries import AskedQueries, load_asked
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.annotation import PER_QUERY
from beir_cocodr.evaluation.compare import CompareOptions, compare
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.serve.session import Session

pytestmark = pytest.mark.usefixtures("few_resamples")

QUERY = "supersonic wing in a turbulent flow"
TEXTS = {
    "wing.md": (
        "# Wings\n\nA wing in supersonic flow has a shock layer.\n\n## Drag\n\nDrag of a plate is"
        " turbulent."
    ),
    "library.txt": "The library has an index of journals, and a catalogue for readers.",
    "notes.csv": (
        "title,text\nNozzle,It heats the layer\nMarkup,<script>alert(1)</script> in a wing"
    ),
}


def wait(
    session, done=lambda state: state["verdict"] is not None and not state["working"], seconds=120
):
    end = time.monotonic() + seconds
    while not done(state := session.state()):
        assert time.monotonic() < end, state
        time.sleep(0.02)
    return state


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my-files")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def session(beir_folder, tiny_cosine, tmp_path):
    made = Session(str(beir_folder), ["bm25", str(tiny_cosine)], tmp_path / "out", samples=12)
    made.start()
    yield made
    assert made.stop()


def test_bm25_answers_at_once_what_a_searcher_finds(files, tmp_path):
    session = Session(str(files), ["bm25"], tmp_path)
    assert session.search("bm25", QUERY)["hits"] is None
    session.start()
    found, hits = session.search("bm25", QUERY)["hits"], Searcher(files).search(QUERY)
    assert [
        (hit["id"], hit["rank"], hit["score"], hit["lexical"], hit["dense"]) for hit in found
    ] == [(hit.id, hit.rank, hit.score, hit.score, None) for hit in hits]
    assert {hit["place"] for hit in found} == {"wing.md", "notes.csv"}
    for shown, hit in zip(found, hits, strict=True):
        assert "".join(text for text, _ in shown["snippet"]) == hit.snippet
        assert {text.lower() for text, matched in shown["snippet"] if matched} <= set(hit.words)
    [section] = [hit for hit in found if hit["section"] == "Drag"]
    document = session.document(section["id"], "drag")
    assert (document["title"], document["section"], document["place"]) == (
        "Wings",
        "Drag",
        "wing.md",
    )
    assert (
        "".join(text for text, _ in document["before"]).strip()
        == "A wing in supersonic flow has a shock layer."
    )
    assert [text for text, matched in document["text"] if matched] == ["Drag"]
    assert session.state()["verdict"] is None
    assert session.stop()


def test_the_verdict_is_that_of_compare_on_the_same_log(session, beir_folder, tiny_cosine, capsys):
    first = wait(session)["verdict"]
    assert (first["queries"], len(first["pairs"])) == (0, 1)
    for query in ("wing flow shock", "library index", "turbulent plate"):
        for model in session.columns:
            for hit in session.search(model, query)["hits"][:3]:
                session.judge(hit["id"], int(model != "bm25"), query)
    version = session.judged.version
    verdict = wait(
        session, lambda state: not state["working"] and state["verdict"]["version"] == version
    )["verdict"]
    models = ["bm25", str(tiny_cosine)]
    record = compare(
        models, str(beir_folder), options=CompareOptions(samples=12, judgements=session.judged.file)
    )
    assert verdict["queries"] == record.few_labels.queries == 3
    assert verdict["headline"] == record.best.reason
    [shown], [pair] = verdict["pairs"], record.estimated
    assert (shown["a"], shown["b"], shown["verdict"]) == (pair.a, pair.b, pair.verdict)
    assert shown["estimate"] == pytest.approx(pair.estimate, abs=1e-6)
    assert shown["interval"] == pytest.approx(pair.interval, abs=1e-6)
    # A pair that is decided needs no more, whatever the judged queries alone would need.
    more = record.few_labels.pairs["bm25"][models[1]].more
    assert verdict["more"] == (more if pair.verdict == "cannot tell" else 0)
    session.report()
    session.undo(session.judged.version)
    session.report()  # the table of before holds a pair that was taken back since
    assert f"{beir_folder.name}" in session.report_file.read_text()
    assert "judgements of 3 queries" in session.describe()
    words = [
        "compare",
        "--dataset",
        str(beir_folder),
        *session.compared(),
        "--samples",
        "12",
        "--json",
    ]
    capsys.readouterr()
    with pytest.raises(SystemExit) as status:
        main(words)
    assert not status.value.code
    assert json.loads(capsys.readouterr().out)["few_labels"]["queries"] == 3


def test_pairs_worth_judging_are_those_on_which_typed_lists_differ(session):
    wait(session, lambda state: all(model["state"] == "ready" for model in state["models"]))
    found = {
        model: [hit["id"] for hit in session.search(model, QUERY)["hits"]]
        for model in session.columns
    }
    first, second = found.values()
    [best, *_] = session.wanted(QUERY)
    id = best["document"]["id"]
    ranks = [ids.index(id) if id in ids else None for ids in (first, second)]
    assert None in ranks
    assert 0 in ranks
    assert (best["query"], best["query_id"]) == (QUERY, None)
    session.judge(id, 1, QUERY)
    assert id not in {
        pair["document"]["id"] for pair in session.wanted(QUERY) if pair["query"] == QUERY
    }
    assert session.state(QUERY)["grades"] == {id: 1}


def test_pairs_of_the_collections_queries_are_drawn_and_count_when_a_query_is_judged_whole(session):
    wait(session)
    [first, *_] = wanted = session.wanted()
    assert first["query_id"] is not None
    mine = [pair for pair in wanted if pair["query_id"] == first["query_id"]]
    assert len(mine) == PER_QUERY
    for pair in mine[:-1]:
        session.judge(pair["document"]["id"], 1, "", pair["query_id"])
    [judged] = load_judgements(session.judged.file).queries.values()
    assert (judged.blank, len(judged.grades)) == (1, PER_QUERY - 1)
    assert 0 < judged.probability <= 1
    assert all(0 < share <= 1 for share in judged.probabilities.values())
    state = wait(session, lambda state: state["remark"] and not state["working"])
    assert "left blank" in state["remark"]
    session.judge(mine[-1]["document"]["id"], 0, "", first["query_id"])
    # A verdict that was begun before the last judgement may read it, and has the version before.
    state = wait(session, lambda state: state["verdict"]["version"] == PER_QUERY)
    assert state["verdict"]["queries"] == 1


def test_a_second_session_goes_on_and_encodes_nothing(
    beir_folder, tiny_cosine, tmp_path, monkeypatch
):
    first = Session(str(beir_folder), [str(tiny_cosine), "bm25"], tmp_path / "first", samples=4)
    first._load(first.columns[str(tiny_cosine)])
    encoded = []
    monkeypatch.setattr(CorpusEncoder, "_forward", lambda self, rows: encoded.append(rows))
    for number in range(2):
        session = Session(str(beir_folder), [str(tiny_cosine), "bm25"], tmp_path / "out", samples=4)
        session._load(session.columns[str(tiny_cosine)])
        assert session.columns[str(tiny_cosine)].state == "ready"
        assert session.columns[str(tiny_cosine)].done == 0
        session.judge("d1", 1, f"query {number}")
    assert session.state()["judged"] == {"queries": 2, "documents": 2}
    assert not encoded


def test_what_a_verdict_needs_is_removed_when_the_page_ends_before_it(
    beir_folder, tmp_path, monkeypatch
):
    """As a page that is closed does not wait for a library, and Python's own end is left out
    then.
    """
    began, goes_on = threading.Event(), threading.Event()

    def prepare(models, place):
        (place / "embeddings").write_bytes(b"large")
        began.set()
        goes_on.wait(60)

    session = Session(str(beir_folder), ["bm25"], tmp_path / "out")
    monkeypatch.setattr(session.comparison, "prepare", prepare)
    session.start()
    assert began.wait(60)
    assert session.comparison._temporary.path.is_dir()
    assert not session.stop(0.01)
    assert not session.comparison._temporary.path.exists()
    goes_on.set()
    assert session.stop()


def test_what_cannot_be_is_named(beir_folder, files, tmp_path):
    session = Session(str(beir_folder), ["bm25", "no/such-model"], tmp_path / "out", samples=4)
    with pytest.raises(InputError, match=r"dataset .*tiny.* there.* --output"):
        Session(str(files), ["bm25"], tmp_path / "out")
    with pytest.raises(InputError, match=r"inside.* lies in .* --output"):
        Session(str(files), ["bm25"], files / "runs" / "inside")
    with pytest.raises(InputError, match=r"lies in .* --output"):
        Session(str(files), ["bm25"], files)
    assert sorted(path.name for path in files.iterdir()) == sorted(TEXTS)
    with pytest.raises(InputError, match="named twice"):
        Session(str(files), ["bm25", "bm25"], tmp_path / "other")
    with pytest.raises(InputError, match=r"hybrid:bm25.* needs a dense"):
        Session(str(files), ["hybrid:bm25"], tmp_path / "other")
    for document, grade, query, id, words in (
        ("../../etc/passwd", 1, "q", None, r"no document '\.\./"),
        ("d1", 7, "q", None, "grade 7"),
        ("d1", 1, " ", None, "empty"),
        ("d1", 1, "q" * 2001, None, "2001 characters"),
        ("d1", 1, "", "q1", "were not drawn"),
    ):
        with pytest.raises(InputError, match=words):
            session.judge(document, grade, query, id)
    with pytest.raises(InputError, match="no document"):
        session.document("../wing.md")
    with pytest.raises(InputError, match="not one of the models"):
        session.search("minilm", "q")
    assert "Nothing was judged" in session.describe()
    session.start()
    state = wait(session, lambda state: state["remark"] and not state["working"])
    assert "no/such-model" in state["models"][1]["remark"]
    assert "two models" in state["remark"]
    assert session.stop()


def test_the_end_stops_what_is_encoded(beir_folder, deep_bert, tmp_path):
    session = Session(str(beir_folder), [str(deep_bert)], tmp_path)
    session._stopping.set()
    session.start()
    session._thread.join(60)
    assert session.columns[str(deep_bert)].searcher is None
    assert session.columns[str(deep_bert)].state == "loading"


def test_a_corpus_without_queries_proposes_some_to_ask_and_pairs_to_judge(
    beir_folder, tiny_cosine, tmp_path
):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((beir_folder / "corpus.jsonl").read_text())
    session = Session(str(corpus), ["bm25", str(tiny_cosine)], tmp_path / "out", samples=12)
    assert session.state()["proposed"] == []
    session.start()
    state = wait(session)
    assert 1 <= len(state["proposed"]) <= 5
    assert session.search("bm25", state["proposed"][0])["hits"]
    wanted = session.wanted()
    assert wanted[0]["query"] in state["proposed"]
    # Judging a proposed query whole counts as a judged query.
    first = wanted[0]["query_id"]
    pairs = [pair for pair in wanted if pair["query_id"] == first]
    while pairs:
        for pair in pairs:
            session.judge(pair["document"]["id"], 1, pair["query"], first)
        pairs = [pair for pair in session.wanted() if pair["query_id"] == first]
    state = wait(session, lambda state: (state["verdict"] or {"queries": 0})["queries"] == 1)
    assert wanted[0]["query"] not in state["proposed"]
    assert state["proposed"]
    assert session.stop()


def test_asked_queries_are_kept_only_where_that_was_agreed(files, tmp_path):
    quiet = Session(str(files), ["bm25"], tmp_path / "quiet")
    quiet.start()
    quiet.search("bm25", QUERY)
    assert quiet.state()["kept"] is None
    assert quiet.stop()
    assert not (tmp_path / "quiet" / "asked.jsonl").exists()
    keeping = Session(str(files), ["bm25"], tmp_path / "keeping", keep_queries=True)
    keeping.start()
    for text in (QUERY, f"  {QUERY} ", "wing"):
        keeping.search("bm25", text)
    assert keeping.stop()
    file = tmp_path / "keeping" / "asked.jsonl"
    assert keeping.state()["kept"] == str(file)
    assert [json.loads(line)["query"] for line in file.read_text().splitlines()] == [QUERY, "wing"]
    # A second session goes on with the same file.
    again = Session(str(files), ["bm25"], tmp_path / "keeping", keep_queries=True)
    again.start()
    again.search("bm25", "wing")
    again.search("bm25", "library")
    assert again.stop()
    assert list(load_asked(tmp_path / "keeping").values()) == [QUERY, "wing", "library"]


def test_queries_that_were_asked_of_another_corpus_are_warned_of(
    files, beir_folder, tiny_cosine, tmp_path, caplog
):
    session = Session(str(files), ["bm25"], tmp_path / "session", keep_queries=True)
    session.start()
    session.search("bm25", "wing")
    assert session.stop()
    options = CompareOptions(samples=12, asked=tmp_path / "session", labels=False)
    compare(["bm25", str(tiny_cosine)], str(beir_folder), options=options)
    assert f"the queries were asked of {files}, and count as queries of" in caplog.text
    caplog.clear()
    compare(["bm25", str(tiny_cosine)], str(files), options=options)
    assert "were asked of" not in caplog.text


def test_asked_queries_are_real_queries_for_compare(beir_folder, tiny_cosine, tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((beir_folder / "corpus.jsonl").read_text())
    asked = AskedQueries(tmp_path / "session")
    for number in range(9):
        asked.add(f"wing of kind {number}")
    models = ["bm25", str(tiny_cosine)]
    options = CompareOptions(samples=12, asked=tmp_path / "session")
    record = compare(models, str(corpus), options=options)
    assert record.queries == 0
    assert record.pseudo_queries["agreement"].of_the_collection is False
    asked.add("the tenth query")
    record = compare(models, str(corpus), output=tmp_path / "out", options=options)
    assert record.queries == 10
    assert record.pseudo_queries["agreement"].of_the_collection is True
    assert record.pseudo_queries["agreement"].queries == 10
    assert {pair.query for pair in record.labels_wanted.pairs} <= set(asked.queries.values())
    with pytest.raises(InputError, match="queries that were asked are for verdicts without labels"):
        compare(models, str(beir_folder), options=options)
    assert len(list((tmp_path / "out").glob("*.run"))) == 2
    (tmp_path / "session" / "asked.jsonl").write_text('{"query": "x"}\n{"text": "y"}\n')
    command = ["compare", *models, "--dataset", str(corpus), "--asked", str(tmp_path / "session")]
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert "asked.jsonl:2" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*command[:-1], str(tmp_path / "nothing")])
    assert "--keep-queries" in capsys.readouterr().err


def test_the_tenth_query_that_is_asked_renews_the_verdict_without_a_judgement(
    beir_folder, tiny_cosine, tmp_path
):
    """The verdict becomes that of compare on the same queries; not each query compares anew."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((beir_folder / "corpus.jsonl").read_text())
    models = ["bm25", str(tiny_cosine)]
    folder = tmp_path / "kept"
    session = Session(str(corpus), models, folder, samples=12, keep_queries=True)
    session.start()
    first = wait(session)["verdict"]
    update = session.comparison.update
    comparisons = []

    def counted(ready):
        comparisons.append(len(session.asked.queries))
        return update(ready)

    session.comparison.update = counted

    def ask(numbers, expected):
        for number in numbers:
            session.search("bm25", f"wing flow drag of plate {number}")
        wait(session, lambda state: comparisons == expected and not state["working"])
        time.sleep(0.2)
        assert comparisons == expected

    ask(range(9), [])
    ask(range(9, 10), [10])
    verdict = session.state()["verdict"]
    options = CompareOptions(samples=12, asked=folder, labels=False)
    record = compare(models, str(corpus), options=options)
    [shown], [pair] = verdict["pairs"], record.estimated
    assert shown["interval"] == pytest.approx(pair.interval, abs=1e-6)
    assert shown["interval"] != first["pairs"][0]["interval"]
    assert verdict["headline"] == record.best.reason
    ask(range(19), [10])
    ask(range(19, 20), [10, 20])
    assert session.stop()


def test_the_report_is_that_of_compare_with_the_queries_that_were_asked(
    beir_folder, tiny_cosine, tmp_path
):
    """Crops are drawn again, as long as the queries that people asked meanwhile."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((beir_folder / "corpus.jsonl").read_text())
    models = ["bm25", str(tiny_cosine)]
    folder = tmp_path / "judged"
    session = Session(str(corpus), models, folder, samples=12, keep_queries=True)
    session.start()
    wait(session)
    lengths = []
    for words in range(1, 13):
        session.search(
            "bm25",
            " ".join(["wing", "flow", "drag", "plate"][number % 4] for number in range(words))
            + f" {words}",
        )
        lengths.append(words + 1)
    session.report()
    record = json.loads((folder / "verdict" / "comparison.json").read_text())
    assert record["pseudo_queries"]["agreement"]["queries"] == len(lengths)
    options = CompareOptions(samples=12, asked=folder, labels=False)
    same = compare(models, str(corpus), options=options)
    [ours], [theirs] = record["pairs"], same.estimated
    assert ours["estimate"] == pytest.approx(theirs.estimate, abs=1e-6)
    matched = record["pseudo_queries"]["matched crops"]["words"]
    assert matched == same.pseudo_queries["matched crops"].words
    assert session.stop()
