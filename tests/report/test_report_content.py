"""The page says the same as the files."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from page_reader import Page

from beir_cocodr.cli.__main__ import app
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import ranked_run
from beir_cocodr.report.html.page import write_report


def page(folder: Path, tmp_path: Path, **options) -> Page:
    return Page(Path(write_report(folder, tmp_path / "report.html", **options).path))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[Path], Page]:
    """The page about an output folder with all defaults, made once."""
    return cache(lambda folder: page(folder, tmp_path_factory.mktemp("page")))


def well_formed(found: Page) -> None:
    assert found.faults == []
    assert len(found.ids) == len(set(found.ids))
    assert found.text.startswith("<!DOCTYPE html>")
    assert found.find("title")
    assert len(found.find("h1")) == 1


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def test_two_models(two_models, nasty_folder, made):
    found = made(two_models)
    well_formed(found)
    results = json.loads((two_models / "results.json").read_text())
    [test] = [test for test in results["comparisons"] if test["measure"] == "nDCG@10"]
    assert found.find("h2", id="verdict-word") == [test["verdict"].capitalize()]
    [sentence] = found.find("p", class_="sentence")
    assert signed(test["difference"]) in sentence
    assert all(signed(end) in sentence for end in test["interval"])
    assert f"on {nasty_folder.name}: " in sentence
    assert "after Holm" in sentence
    models = found.section("models")
    for record in results["models"].values():
        assert all(f"{value:.3f}" in models for value in record["measures"].values())
    assert f"{test['wins']} / {test['ties']} / {test['losses']}" in models
    facts = found.section("facts")
    assert results["corpus_sha256"] in facts
    assert "20" in facts
    assert "torch" in facts
    assert found.section("published") is None
    assert "so what it has seen is unknown" in found.section("seen")


def commands(found: Page, section: str) -> list[list[str]]:
    """The words of the commands of a section, each of which the command line can parse."""
    import typer

    part = found.text.split(f'<section id="{section}"')[1].split("</section>")[0]
    shown = [
        html.unescape(code)
        for code in re.findall(r"<pre[^>]*><code>(beir-cocodr .*?)</code>", part)
    ]
    for words in (split := [shlex.split(line) for line in shown]):
        command = typer.main.get_command(app).commands[words[1]]
        command.make_context(words[1], words[2:])
    return split


def test_what_to_use_now_stands_first_with_command_and_code(two_models, nasty_folder, made):
    found = made(two_models)
    results = json.loads((two_models / "results.json").read_text())
    [test] = [test for test in results["comparisons"] if test["measure"] == "nDCG@10"]
    best = test["b"] if test["verdict"] == "better" else test["a"]
    verb = "Use" if test["verdict"] == "better" else "Keep"
    assert [id for id in found.ids if id in ("use", "verdict", "models")] == [
        "use",
        "verdict",
        "models",
    ]
    assert found.find("h2", id="use-what") == [f"{verb} {Path(best).name}"]
    [words] = commands(found, "use")
    assert words[1:6] == ["search", "--dataset", str(nasty_folder), "--model", best]
    part = found.text.split('<section id="use"')[1].split("</section>")[0]
    [code] = [
        html.unescape(code)
        for code in re.findall(r"<code>(from .*?)</code>", part, flags=re.DOTALL)
    ]
    called = [
        ast.literal_eval(n.args[i])
        for n in ast.walk(ast.parse(code))
        for i in (0, 1)
        if is_searcher(n)
    ]
    assert called == [str(nasty_folder), best]


def is_searcher(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Searcher"
    )


@pytest.mark.parametrize("name", ["adapted", "adapted_without_labels", "without_labels"])
def test_what_was_recommended_is_what_to_use(name, request, made):
    folder = request.getfixturevalue(name)
    found = made(folder)
    if name == "without_labels":
        wanted = json.loads((folder / "comparison.json").read_text())["best"]["model"]
    else:
        told = json.loads((folder / "adapt.json").read_text())
        wanted = told["path"]
        recommended = told["recommendation"]
        title = "Use" if recommended["decided"] else "Best bet:"
        assert found.find("h2", id="use-what") == [f"{title} {recommended['model']}"]
        assert any(
            " ".join(reason.split()) in found.section("use")
            for reason in told["recommendation"]["reasons"]
        )
    [words] = commands(found, "use")
    assert words[words.index("--model") + 1] == wanted


@pytest.mark.parametrize("name", ["two_models", "without_labels"])
def test_where_it_cannot_be_told_the_page_shows_how_to_label(name, request, made):
    folder = request.getfixturevalue(name)
    found = made(folder)
    verdicts = commands(found, "verdict")
    if found.find("h2", id="verdict-word") != ["Cannot tell"]:
        assert verdicts == []
        return
    assert verdicts[0][1] == "serve"
    assert verdicts[0].count("--model") == 2
    assert all(words[1] == "compare" for words in verdicts[1:])
    assert "--judgements" in verdicts[-1]
    assert "judgement" in found.section("verdict")
    if name == "without_labels":
        assert verdicts[-1][verdicts[-1].index("--judgements") + 1] == str(
            folder / "labels_wanted.tsv"
        )


def test_all_queries_stand_in_a_table_and_words_that_match_in_the_texts(
    two_models, nasty_folder, tmp_path
):
    found = page(two_models, tmp_path, queries=4)
    results = json.loads((two_models / "results.json").read_text())
    assert f"All queries, nDCG@10 ({results['queries']})" in found.section("queries")
    for record in results["models"].values():
        for line in (two_models / record["per_query"]).read_text().splitlines()[1:]:
            assert f"{float(line.split()[1]):.3f}" in found.section("queries")
    analyzer, marked = Analyzer("english"), 0
    for query in found.data["queries"]:
        terms = set(analyzer(query["text"]))
        for number, (shown, some), all_of_it in zip(
            query["documents"], query["snippets"], query["matches"], strict=True
        ):
            text = found.data["documents"][number][2]
            assert shown.strip("… ") in text
            for ends, within in ((some, shown), (all_of_it, text)):
                words = [within[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True)]
                assert all(set(analyzer(word)) <= terms for word in words)
                marked += len(words)
    assert marked > 20
    collection = load_collection(str(nasty_folder), "test")
    for id, _, text in found.data["documents"]:
        assert text == " ".join(collection.documents[id]["text"].split())


def test_terms_are_explained_and_reached_by_the_keyboard(nine_models, without_labels, made):
    for folder, terms in (
        (nine_models, ("nDCG@10", "R@100", "p after Holm")),
        (without_labels, ("Chance to be better",)),
    ):
        found = made(folder)
        explained = {
            "".join(within): given for tag, given, within in found.elements if tag == "abbr"
        }
        assert set(terms) <= set(explained)
        assert all(given["title"] and given["tabindex"] == "0" for given in explained.values())
        heads = [given.get("title") for tag, given, _ in found.elements if tag == "button"]
        assert sum(map(bool, heads)) > 3
        columns = found.find("th", scope="col")
        assert "Compared with" in columns
        assert not {"a", "b", "P", "W / T / L", "against a"} & set(columns)


def test_losses_are_drawn_as_they_were_logged(adapted, tmp_path, made):
    found = made(adapted)
    assert "losses-0-figure_1" in found.ids
    assert "Training loss: source" in found.section("training")
    assert "episode 1" in found.section("training")
    folder = Path(shutil.copytree(adapted / "models" / "source", tmp_path / "m"))
    record = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps(record | {"episodes": [{"logged_loss": [1]}]}))
    with pytest.raises(InputError, match=r"training.json.*logged_loss"):
        page(folder, tmp_path)


def test_queries_rankings_texts_and_judgements(two_models, nasty_folder, made):
    found = made(two_models)
    data = found.data
    collection = load_collection(str(nasty_folder), "test")
    assert [query["id"] for query in data["queries"]] == list(collection.qrels)
    results = json.loads((two_models / "results.json").read_text())
    for model, record in enumerate(results["models"].values()):
        run = ranked_run(two_models / record["run"])
        scores = dict(
            line.split("\t")[:2]
            for line in (two_models / record["per_query"]).read_text().splitlines()[1:]
        )
        for query in data["queries"]:
            ranks = dict(zip(query["documents"], query["ranks"][model], strict=True))
            top = sorted(
                (rank, data["documents"][i][0]) for i, rank in ranks.items() if 0 < rank <= 10
            )
            assert [document for _, document in top] == [d for d, _ in run[query["id"]][:10]]
            places = {
                document: rank for rank, (document, _) in enumerate(run[query["id"]][:100], 1)
            }
            assert all(rank == places.get(data["documents"][i][0], 0) for i, rank in ranks.items())
            assert query["scores"][model][0] == pytest.approx(float(scores[query["id"]]), abs=1e-4)
    for query in data["queries"]:
        grades = collection.qrels[query["id"]]
        shown = [data["documents"][i][0] for i in query["documents"]]
        assert query["grades"] == [grades.get(document) for document in shown]
        assert query["relevant"] == sum(grade > 0 for grade in grades.values())
    for id, title, text in data["documents"]:
        document = collection.documents[id]
        assert title == " ".join(document["title"].split())
        assert " ".join(document["text"].split()).startswith(text.removesuffix("…").rstrip())


def test_markup_in_the_data_stays_text(two_models, made):
    found = made(two_models)
    assert found.text.count("<script") == 2
    assert found.text.count("</script") == 2
    assert "<img" not in found.text
    assert "\x00" not in found.text
    assert any("<script>window.broken" in title for _, title, _ in found.data["documents"])
    assert any("</script><script>" in query["text"] for query in found.data["queries"])
    assert "no<b>sy" in " ".join(found.find("h1"))


@pytest.mark.parametrize("name", ["two_models", "nine_models", "adapted"])
def test_the_page_needs_nothing_else(name, request, made):
    found = made(request.getfixturevalue(name))
    well_formed(found)
    for tag, attributes, _ in found.elements:
        for key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert (attributes.get(key) or "#").startswith(("#", "data:")), (tag, attributes[key])
    style = "".join("".join(within) for tag, _, within in found.elements if tag == "style")
    assert "@import" not in style
    assert "url(" not in style
    for target in re.findall(r"url\(#([^)]+)\)", found.text):
        assert target in found.ids
    for tag, attributes, _ in found.elements:
        if tag == "use":
            assert attributes["xlink:href"].removeprefix("#") in found.ids


def test_nine_models_and_all_their_tests(nine_models, made):
    found = made(nine_models)
    comparison = json.loads((nine_models / "comparison.json").read_text())
    best = comparison["ranking"][0]
    reference = comparison["models"][0]
    other = best if best != reference else comparison["ranking"][1]
    [pair] = [
        pair
        for pair in comparison["pairs"]
        if pair["measure"] == "nDCG@10" and {pair["a"], pair["b"]} == {reference, other}
    ]
    assert pair["a"] == reference
    assert found.find("h2", id="verdict-word") == [pair["verdict"].capitalize()]
    assert signed(pair["difference"]) in found.find("p", class_="sentence")[0]
    assert "All paired tests (72)" in found.section("more")  # 9 · 8 / 2 pairs in two measures
    assert len(found.data["models"]) == 9
    assert "intervals-figure_1" in found.ids
    assert "queries-figure_1" in found.ids
    assert (
        found.section("seen").count("has seen is unknown") == 2
    )  # four uses of an encoder have one history


def test_without_labels(without_labels, made):
    found = made(without_labels)
    well_formed(found)
    comparison = json.loads((without_labels / "comparison.json").read_text())
    other = next(model for model in comparison["ranking"] if model != "bm25")
    [pair] = [pair for pair in comparison["pairs"] if {pair["a"], pair["b"]} == {"bm25", other}]
    turned = {"better": "worse", "worse": "better"}.get(pair["verdict"], pair["verdict"])
    expected = pair["verdict"] if pair["a"] == "bm25" else turned
    assert found.find("h2", id="verdict-word") == [expected.capitalize()]
    sentence = found.find("p", class_="sentence")[0]
    if expected in ("better", "worse"):
        assert (
            f" is {expected} than bm25 on " in sentence or f"bm25 is {expected} than " in sentence
        )
        assert f"{abs(pair['estimate']):.3f} nDCG@10 is expected" in sentence
    else:
        answer = " ".join(pair["answer"].split()).split(" is ", 1)[1]  # after a model's name
        assert answer in sentence
    trust = " ".join(pair["trust"].split())
    assert trust in found.section("verdict")
    assert trust in found.section("models")
    assert signed(pair["estimate"]) in found.section("models")
    assert "compared with those of the calibration" in found.section("models")
    for estimate in pair["estimates"]:
        assert estimate["estimator"].casefold() in found.section("models").casefold()
        assert signed(estimate["difference"]) in found.section("models")
    assert found.data["measures"] == []
    assert all(scores is None for query in found.data["queries"] for scores in query["scores"])


def test_an_adaptation_without_labels(adapted_without_labels, made):
    found = made(adapted_without_labels)
    well_formed(found)
    told = json.loads((adapted_without_labels / "adapt.json").read_text())
    candidates, comparison = told["candidates"], told["comparison"]
    [pair] = [
        pair
        for pair in comparison["pairs"]
        if (pair["a"], pair["b"]) == (candidates["base"], candidates["base + source"])
    ]
    assert told["recommendation"]["verdicts"] == {"base + source": pair["verdict"]}
    assert found.find("h2", id="verdict-word") == [pair["verdict"].capitalize()]
    assert "base + source " in found.find("p", class_="sentence")[0]
    verdict = found.section("verdict")
    assert " ".join(pair["trust"].split()) in verdict
    assert all(" ".join(reason.split()) in verdict for reason in told["recommendation"]["reasons"])
    models = found.section("models")
    assert "base + source, fused base, fused" in models  # b against a, in the same use
    assert "base + source, fused base + source" not in models
    assert "All pairs of models (36)" in found.section("more")
    assert found.data["models"] == list(candidates)


def test_an_adaptation(adapted, made):
    found = made(adapted)
    told = json.loads((adapted / "adapt.json").read_text())
    assert found.find("h2", id="verdict-word") == [told["recommendation"]["verdict"].capitalize()]
    for reason in told["recommendation"]["reasons"]:
        assert reason in found.section("verdict")
    training = found.section("training")
    assert "8,841,823 documents" in training
    assert "episode 1" in training
    assert "13" in found.section("facts")  # the seed
    assert {"clusters-0-lines-figure_1", "clusters-1-map-figure_1", "curves-0-figure_1"} <= set(
        found.ids
    )


def test_a_training_alone_is_not_judged(adapted, tmp_path):
    found = page(adapted / "models" / "source", tmp_path)
    well_formed(found)
    assert found.find("h2", id="verdict-word") == ["Not judged"]
    assert "irds:msmarco" in found.section("seen")
    assert "learning_rate" in found.section("training")
    assert "0.340" in found.section("training")  # the last round
    assert found.section("models") is None


def test_queries_are_bounded_and_counted(two_models, tmp_path):
    found = page(two_models, tmp_path, queries=6)
    assert len(found.data["queries"]) == 6
    assert "6 of 20 queries are shown" in found.section("queries")
    whole = page(two_models, tmp_path).data["queries"]

    def change(query):
        return abs(query["scores"][0][0] - query["scores"][1][0])

    largest = sorted(map(change, whole))[-3:]
    assert sorted(map(change, found.data["queries"]))[-3:] == pytest.approx(largest)
    assert page(two_models, tmp_path, queries=0).data is None


def test_without_the_collection_only_ids_are_shown(two_models, nasty_folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(two_models, moved)
    results = json.loads((moved / "results.json").read_text()) | {"dataset": "scifact"}
    (moved / "results.json").write_text(json.dumps(results))
    found = page(moved, tmp_path)
    assert "name the collection with --dataset scifact" in found.section("queries")
    assert all(title == text == "" for _, title, text in found.data["documents"])
    named = page(moved, tmp_path, dataset=str(nasty_folder))
    assert any(text for _, _, text in named.data["documents"])


@pytest.mark.parametrize(
    "content", ["[1]", '{"table1": 3}', '{"table5": {"metric": "ndcg@10"}}', "[" * 100_000]
)
def test_published_figures_of_another_form_are_named(two_models, tmp_path, content):
    (tmp_path / "figures.json").write_text(content)
    with pytest.raises(InputError, match=r"figures\.json"):
        page(two_models, tmp_path, published=[tmp_path / "figures.json"])


def test_published_figures_stand_beside_ours(two_models, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(two_models, copied)
    results = json.loads((copied / "results.json").read_text())
    (copied / "results.json").write_text(
        json.dumps(results | {"dataset": "irds:beir/scifact/test"})
    )
    section = page(copied, tmp_path).section("published")
    published = Path(__file__).parents[2] / "benchmarks" / "published"
    cells = json.loads((published / "cocodr.json").read_text())["table1"]["scores"]["scifact"]
    assert all(
        f"{method} Yu et al." in section for method, value in cells.items() if value is not None
    )
    assert f"{cells['coco-dr-base']:.3f}" in section
    rows = json.loads((published / "mrl.json").read_text())["table5"]["rows"]
    assert f"mrl Zamani and Bendersky {rows['mrl']['scifact']:.3f}" in section
    assert "60 documents and 20 queries here" in section
    one = page(copied, tmp_path, published=[published / "mrl.json"]).section("published")
    assert "Yu et al." not in one
    for name in ("cqadupstack/android", "apidocs/numpy", "msmarco-like"):
        (copied / "results.json").write_text(json.dumps(results | {"dataset": name}))
        assert page(copied, tmp_path).section("published") is None
