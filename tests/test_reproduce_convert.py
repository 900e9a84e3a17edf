"""Corpora that only their owners give out become BEIR folders, from tiny files in their formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reproduce.convert import main
from reproduce.shared import BY_HAND

from beir_cocodr.data.collection import load_collection


def written(folder: Path, **files: str) -> dict[str, str]:
    """Write files, and return their paths by name."""
    paths = {}
    for name, content in files.items():
        path = folder / name
        path.write_text(content, encoding="utf-8")
        paths[name] = str(path)
    return paths


ARTICLES = """{"articles":[
{"abstractText":"Aspirin  lowers fever.","meshMajor":["A"],"pmid":"11","title":"Aspirin."},
{"abstractText":"Dogs bark.","meshMajor":["B"],"pmid":"12","title":"Dogs.","year":"1991"}
]}
"""
GOLDEN = {
    "questions": [
        {
            "id": "5e",
            "type": "factoid",
            "body": "What lowers\n fever?",
            "documents": [
                "http://www.ncbi.nlm.nih.gov/pubmed/11",
                "http://www.ncbi.nlm.nih.gov/pubmed/99",
            ],
        }
    ]
}


@pytest.mark.parametrize("on_one_line", [False, True])
def test_bioasq_has_questions_and_the_articles_of_pubmed(tmp_path, capsys, on_one_line):
    articles = ARTICLES
    if on_one_line:  # the last article closes the list
        articles = articles.replace("[\n", "[", 1).replace("\n]}", "]}")
    files = written(tmp_path, articles=articles, golden=json.dumps(GOLDEN))
    arguments = ["--articles", files["articles"], "--questions", files["golden"]]
    main(["bioasq", *arguments, "--output", str(tmp_path / "out")])
    collection = load_collection(str(tmp_path / "out"))
    assert collection.queries == {"5e": "What lowers fever?"}
    assert collection.qrels == {"5e": {"11": 1}}
    assert dict(collection.documents)["11"] == {
        "title": "Aspirin.",
        "text": "Aspirin lowers fever.",
    }
    assert "2 documents, 1 queries, 1 judgements; 1 judgements" in capsys.readouterr().err


def test_signal_has_titles_and_tweets_without_links_and_emojis(tmp_path):
    tweets = [
        {"id_str": "7", "full_text": "Floods in Leeds &amp; York \U0001f30a https://t.co/x"},
        {"id_str": "8", "full_text": "https://t.co/y"},
        {"id_str": "9", "text": "Sun in Rome"},
    ]
    articles = [{"id": "a-1", "title": "Rivers  rise", "content": "...", "media-type": "News"}]
    files = written(
        tmp_path,
        tweets="\n".join(map(json.dumps, tweets)),
        topics="\n".join(map(json.dumps, articles)),
        qrels="a-1 0 7 2\na-1 0 9 0\n",
    )
    arguments = ["--tweets", files["tweets"], "--articles", files["topics"]]
    main(["signal1m", *arguments, "--qrels", files["qrels"], "--output", str(tmp_path / "out")])
    collection = load_collection(str(tmp_path / "out"))
    assert collection.queries == {"a-1": "Rivers rise"}
    assert collection.qrels == {"a-1": {"7": 2, "9": 0}}
    texts = {name: text["text"] for name, text in collection.documents.items()}
    assert texts == {"7": "Floods in Leeds & York", "9": "Sun in Rome"}


def test_trec_news_links_the_titles_of_articles_to_articles(tmp_path):
    def article(name: str, title: str | None, *paragraphs: str) -> str:
        contents = [{"type": "kicker", "content": "Local"}, None]
        for text in paragraphs:
            contents.append({"type": "sanitized_html", "subtype": "paragraph", "content": text})
        return json.dumps({"id": name, "title": title, "contents": contents})

    files = written(
        tmp_path,
        articles="\n".join(
            [
                article("x1", "Mayor resigns", "<p>The mayor &amp; his <b>aide</b> left.</p>"),
                article("x2", None, "Votes", "were counted."),
            ]
        ),
        topics="<top>\n<num> Number: 826 </num>\n<docid>x1</docid>\n<url>u</url>\n</top>\n",
        qrels="826 0 x2 16\n",
    )
    arguments = ["--articles", files["articles"], "--topics", files["topics"]]
    main(["trec-news", *arguments, "--qrels", files["qrels"], "--output", str(tmp_path / "out")])
    collection = load_collection(str(tmp_path / "out"))
    assert collection.queries == {"826": "Mayor resigns"}
    assert collection.qrels == {"826": {"x2": 16}}
    assert dict(collection.documents) == {
        "x1": {"title": "Mayor resigns", "text": "The mayor & his aide left."},
        "x2": {"title": "", "text": "Votes were counted."},
    }


TOPIC = """<top>

<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate in
international criminal activity.

<narr> Narrative:
A relevant document must name them.
</top>
"""
FT = """<DOC>
<DOCNO>FT911-3</DOCNO>
<HEADLINE>
FT  14 MAY 91 / Gangs
</HEADLINE>
<TEXT>
Gangs &amp; <!-- note --> smugglers.
</TEXT>
</DOC>
<DOC>
<DOCNO>FT911-4</DOCNO>
<TEXT>Tea prices.</TEXT>
</DOC>
"""


def test_robust04_has_descriptions_and_no_congressional_record(tmp_path):
    disk = tmp_path / "disk4"
    for folder in ("FT", "CR_103RD"):
        (disk / folder).mkdir(parents=True)
    (disk / "FT" / "FT911_1").write_text(FT)
    (disk / "CR_103RD" / "CR93E1").write_text(FT.replace("FT911", "CR93E"))
    files = written(tmp_path, topics=TOPIC, qrels="301 0 FT911-3 1\n301 0 CR93E-3 1\n")
    arguments = ["--documents", str(disk), "--topics", files["topics"]]
    main(["robust04", *arguments, "--qrels", files["qrels"], "--output", str(tmp_path / "out")])
    collection = load_collection(str(tmp_path / "out"))
    description = "Identify organizations that participate in international criminal activity."
    assert collection.queries == {"301": description}
    assert collection.qrels == {"301": {"FT911-3": 1}}
    assert dict(collection.documents) == {
        "FT911-3": {"title": "FT 14 MAY 91 / Gangs", "text": "Gangs & smugglers."},
        "FT911-4": {"title": "", "text": "Tea prices."},
    }


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"qrels": "301 0 FT911-3\n"}, r"qrels:1: a judgement has"),
        ({"qrels": "301 0 LA1 1\n"}, "no judged document is among the 2 documents"),
        ({"topics": "<top><num> 301</top>"}, "a topic has no <desc>"),
        ({"topics": ""}, "has no topics"),
    ],
)
def test_damaged_files_are_named(tmp_path, capsys, changed, problem):
    (tmp_path / "documents").write_text(FT)
    files = written(tmp_path, **{"topics": TOPIC, "qrels": "301 0 FT911-3 1\n"} | changed)
    arguments = ["--documents", str(tmp_path / "documents"), "--topics", files["topics"]]
    with pytest.raises(SystemExit) as status:
        main(["robust04", *arguments, "--qrels", files["qrels"], "--output", str(tmp_path / "o")])
    assert status.value.code == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_lines_that_are_no_json_are_named(tmp_path, capsys):
    files = written(tmp_path, articles='{"articles":[\n{"pmid":\n', golden=json.dumps(GOLDEN))
    arguments = ["--articles", files["articles"], "--questions", files["golden"]]
    with pytest.raises(SystemExit):
        main(["bioasq", *arguments, "--output", str(tmp_path / "out")])
    assert "articles:2: this is no JSON" in capsys.readouterr().err


def test_the_corpora_by_hand_name_the_converter():
    for name in ("bioasq", "signal1m", "trec-news", "robust04"):
        assert f"convert.py {name}" in BY_HAND[name]
