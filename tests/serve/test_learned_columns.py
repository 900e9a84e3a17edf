"""Learning from judgements on the page, by a real server, and forgetting it again."""

import itertools
import time

import pytest

pytest.importorskip(
    "starlette", reason="starlette is not installed: pip install 'beir-cocodr[serve]'"
)
from starlette.testclient import TestClient
from test_session import wait

from beir_cocodr import FuseOptions, Searcher, fuse
from beir_cocodr.data.judgement_log import log_judgement
from beir_cocodr.evaluation.judged_vectors import LearnedVectors
from beir_cocodr.serve import app, corpus_watch
from beir_cocodr.serve.learned_columns import LEARNED_FOLDER, LearnedColumns
from beir_cocodr.serve.session import Session

pytestmark = pytest.mark.usefixtures("few_resamples")

SECRET = "a token that nobody knows"
WORDS = ["wing", "flow", "shock", "layer", "drag", "plate", "nozzle", "jet", "heat", "speed"]
QUERIES = [f"supersonic {first} {second}" for first, second in itertools.pairwise(WORDS)]
QUERIES += [f"supersonic {word} of a wing" for word in WORDS]


def ready(state):
    return all(model["state"] == "ready" for model in state["models"])


@pytest.fixture
def started(beir_folder, tiny_cosine, tmp_path):
    """Return a function that starts a session in one folder."""
    sessions = []

    def start():
        models = ["bm25", str(tiny_cosine), f"hybrid:{tiny_cosine}"]
        session = Session(str(beir_folder), models, tmp_path / "out", samples=12)
        session.start()
        sessions.append(session)
        wait(session, ready)
        page = TestClient(
            app.guarded(session, "127.0.0.1", 8000, SECRET), base_url="http://127.0.0.1:8000"
        )
        assert page.post("/api/login", json={"secret": SECRET}).status_code == 200
        return page

    yield start
    for session in sessions:
        assert session.stop()


def judge(page, queries, document):
    for query in queries:
        judgement = {"document": document, "grade": 2, "query": query}
        assert page.post("/api/judge", json=judgement).status_code == 200


def test_thumbs_move_the_search_and_one_click_undoes_it(started, tiny_cosine, tmp_path):
    page = started()
    model = str(tiny_cosine)

    def best(query):
        hits = page.get("/api/search", params={"model": model, "query": query}).json()["hits"]
        return [hit["id"] for hit in hits]

    refused = page.post("/api/learn", json={})
    assert refused.status_code == 400
    assert "nothing is judged yet" in refused.json()["error"]
    queries = QUERIES
    before = best(queries[0])
    wanted = next(f"d{number}" for number in range(1, 48) if f"d{number}" not in before)
    judge(page, queries[:9], wanted)
    assert "judge 1 more" in page.post("/api/learn", json={}).json()["error"]
    judge(page, queries[9:], wanted)
    state = page.post("/api/learn", json={}).json()
    # Both columns of the encoder share its vectors, which learn once.
    [learned] = state["learned"]
    assert learned["kept"]
    assert learned["model"] == model
    assert "90% interval" in learned["text"]
    assert best(queries[0])[0] == wanted
    # With too few judgements left, nothing is learned and nothing is lost.
    for query in queries[9:]:
        page.post("/api/judge", json={"document": wanted, "grade": 0, "query": query})
    assert "judge 1 more" in page.post("/api/learn", json={}).json()["error"]
    assert page.get("/api/state").json()["learned"] == [learned]
    assert best(queries[0])[0] == wanted
    # Another session of the same folder searches by what was learned.
    page = started()
    assert page.get("/api/state").json()["learned"] == [learned]
    assert best(queries[0])[0] == wanted
    assert page.post("/api/forget", json={}).json()["learned"] == []
    assert best(queries[0]) == before
    assert not (tmp_path / "out" / "learned").exists()


def rankings(searcher):
    hits = searcher.search_all(dict(zip(QUERIES, QUERIES, strict=True)))
    return {query: [(hit.id, round(hit.score, 5)) for hit in best] for query, best in hits.items()}


def test_all_models_of_an_encoder_search_by_what_it_learned(beir_folder, tiny_cosine, tmp_path):
    """On the page a model has searched before it learns, and ``search --learned`` begins anew."""
    fused = tmp_path / "fused"
    fuse(str(tiny_cosine), str(beir_folder), output=fused, options=FuseOptions(probes=8))
    kinds = ["", "hybrid:", "rrf:", "rm3:", "feedback:", "vector:", "hybrid@estimate:"]
    models = [f"{kind}{tiny_cosine}" for kind in kinds]
    models += [str(fused), f"feedback:{fused}"]
    page = Searcher(str(beir_folder))
    searchers = [page.beside(model) for model in models]
    before = {searcher.model: rankings(searcher) for searcher in searchers}
    for query in QUERIES:
        log_judgement(tmp_path / "judgements.jsonl", "d3", 2, query)
    columns = LearnedColumns(tmp_path)
    columns.learn(searchers, tmp_path / "judgements.jsonl", {})
    assert [learned["kept"] for learned in columns.describe()] == [True, True]
    after = {searcher.model: rankings(searcher) for searcher in searchers}
    folders = {}
    for folder in (tmp_path / LEARNED_FOLDER).iterdir():
        folders[LearnedVectors.load(folder).vectors.shape[1]] = folder
    for model in models:
        fresh = Searcher(str(beir_folder), model)
        width = fresh.dense.embeddings.dimensions
        LearnedVectors.load(folders[width]).apply(fresh.dense)
        assert after[model] == rankings(fresh) != before[model], model
    columns.forget(searchers)
    assert {searcher.model: rankings(searcher) for searcher in searchers} == before


def test_a_failure_leaves_what_all_encoders_learned_before(
    beir_folder, tiny_cosine, two_layer_cosine, tmp_path, monkeypatch
):
    page = Searcher(str(beir_folder))
    searchers = [page.beside(str(model)) for model in (tiny_cosine, two_layer_cosine)]
    log = tmp_path / "judgements.jsonl"
    for query in QUERIES:
        log_judgement(log, "d3", 2, query)
    columns = LearnedColumns(tmp_path)
    columns.learn(searchers, log, {})

    def contents():
        files = (tmp_path / LEARNED_FOLDER).rglob("*")
        return {file: file.read_bytes() for file in files if file.is_file()}

    before = contents()
    after = [rankings(searcher) for searcher in searchers]
    assert len(before) == 4
    for query in QUERIES:
        log_judgement(log, "d5", 2, query)
    save = LearnedVectors.save

    def failing(learned, folder):
        if learned.record.model == str(two_layer_cosine):
            raise OSError("the disk is full")
        save(learned, folder)

    monkeypatch.setattr(LearnedVectors, "save", failing)
    with pytest.raises(OSError, match="the disk is full"):
        columns.learn(searchers, log, {})
    assert contents() == before
    assert [rankings(searcher) for searcher in searchers] == after
    # An encoder that is not on the page keeps what it learned.
    columns.learn(searchers[:1], log, {})
    assert len(contents()) == 4
    assert sum(before[file] == content for file, content in contents().items()) == 2
    assert not list(tmp_path.glob(".*"))


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (first, second) in enumerate(itertools.permutations(WORDS[:6], 2)):
        (folder / f"{number}.txt").write_text(f"A {first} and a {second}, number {number}.")
    return folder


def test_the_page_says_that_what_was_learned_belongs_to_another_corpus(
    files, tiny_cosine, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(corpus_watch, "INTERVAL", 0.05)
    model = str(tiny_cosine)

    def start():
        session = Session(str(files), [model, f"hybrid:{model}"], tmp_path / "out", samples=4)
        session.comparison.update = lambda models: ""
        session.start()
        wait(session, ready)
        return session

    session = start()
    last = session.search(model, QUERIES[0])["hits"][-1]["id"]
    for query in QUERIES:
        session.judge(last, 2, query)
    session.learn()
    [learned] = session.state()["learned"]
    assert (learned["kept"], learned["used"]) == (True, True)
    (files / "3.txt").write_text("A library of journals.")
    reason = "belongs to the corpus as it was before a change and is not in use; learn again"
    state = wait(session, lambda state: any(reason in one["text"] for one in state["learned"]))
    assert [(one["kept"], one["used"]) for one in state["learned"]] == [(False, False)]
    wait(session, ready)
    assert session.stop()
    assert caplog.text.count(reason) == 1
    session = start()
    [outdated] = session.state()["learned"]
    assert reason in outdated["text"]
    session.learn()
    [learned] = session.state()["learned"]
    assert learned["used"]
    assert session.stop()
    [vectors] = (tmp_path / "out").glob("learned/*/learned.safetensors")
    vectors.write_bytes(b"no vectors")
    session = start()
    [damaged] = session.state()["learned"]
    assert not damaged["used"]
    assert f"{vectors} is damaged" in damaged["text"]
    assert f"{vectors} is damaged" in caplog.text
    session.forget()
    assert session.state()["learned"] == []
    assert session.stop()


def test_the_verdict_does_not_know_what_was_learned(started, tmp_path):
    """What is fitted on judgements is not judged by them."""
    page = started()
    session_verdict = wait_for_verdict(page)
    queries = [f"supersonic wing {number} of a plate in a flow" for number in range(12)]
    judge(page, queries, "d3")
    before = wait_for_verdict(page, judged=12)
    page.post("/api/learn", json={})
    judge(page, ["another query"], "d3")
    page.post("/api/undo", json={"version": page.get("/api/state").json()["version"]})
    after = wait_for_verdict(page, judged=12)
    assert session_verdict["queries"] == 0
    assert [pair["estimate"] for pair in after["pairs"]] == [
        pair["estimate"] for pair in before["pairs"]
    ]


def wait_for_verdict(page, judged=0):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        state = page.get("/api/state").json()
        verdict = state["verdict"]
        if (
            verdict is not None
            and not state["working"]
            and verdict["queries"] == judged
            and verdict["version"] == state["version"]
        ):
            return verdict
        time.sleep(0.05)
    raise AssertionError(state)
