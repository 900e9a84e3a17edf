"""Sizes of passages, compared by the same questions of files and of labelled collections."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
from conftest import TOPICS, sentences, write_beir

from beir_cocodr import CompareOptions, compare
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.passage_sizes import (
    GENERATED,
    LABELLED,
    SPANS,
    PassageOptions,
    Passages,
    PassagesRecord,
    Questions,
    SizePair,
    better_bet,
    compare_passages,
    load_whole,
    score_files,
    score_spans,
)
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.resources import Resources

FILES = 24

#: Texts of four sentences, each of a file of its own.
GERMAN = (
    "Die Brücke überspannt den Fluss seit über hundert Jahren. Ihre Pfeiler stehen auf festem "
    "Fels. Im Frühjahr steigen die Fluten oft bis an die Bögen. Züge fahren heute nur noch "
    "langsam über das alte Bauwerk.",
    "Bienen sammeln den Nektar vieler Blüten. In den Waben reift er zu Honig heran. Eine Königin "
    "legt im Sommer täglich bis zu zweitausend Eier. Imker öffnen ihre Stöcke nur bei warmem "
    "Wetter.",
    "Der Gletscher verlor in zehn Jahren ein Drittel seiner Masse. Forscher bohren tiefe Löcher "
    "in das Eis. Alte Luftblasen verraten ihnen das frühere Klima. Unterhalb der Zunge bilden "
    "sich immer größere Seen.",
    "Ein guter Brotteig braucht viel Zeit und wenig Hefe. Die Bäcker kneten ihn am Vorabend. "
    "Über Nacht gehen die Laibe in kühlen Kellern auf. Am Morgen duftet die ganze Straße nach "
    "frischem Brot.",
    "Die Werkstatt repariert Uhren aus drei Jahrhunderten. Winzige Zahnräder liegen geordnet in "
    "flachen Schalen. Manche Federn fertigt der Meister noch selbst an. Kunden warten auf ihre "
    "Stücke mehrere Monate.",
    "Im Hafen löschen Kräne Tag und Nacht die Ladung der Schiffe. Container stapeln sich bis zum "
    "Horizont. Lotsen führen große Frachter durch die enge Einfahrt. Bei Nebel ruht der Verkehr "
    "für einige Stunden.",
)
CHINESE = (
    "这座桥横跨河流已有一百多年。桥墩建在坚固的岩石上。春天河水常常涨到桥拱的高度。如今火车只能缓慢通过。",
    "蜜蜂采集许多花朵的花蜜。花蜜在蜂巢里慢慢变成蜂蜜。蜂王在夏天每天产卵两千枚。养蜂人只在温暖的日子打开蜂箱。",
    "这条冰川十年间失去了三分之一的体积。研究人员在冰里钻出很深的洞。古老的气泡记录了从前的气候。冰舌下方形成了越来越大的湖泊。",
    "好的面团需要很长时间和很少的酵母。面包师前一天晚上揉面。面团在凉爽的地窖里发酵一夜。早晨整条街都飘着新鲜面包的香味。",
    "这家作坊修理三个世纪以来的钟表。细小的齿轮整齐地放在浅盘里。有些发条由师傅亲手制作。顾客往往要等待好几个月。",
    "港口的起重机日夜卸下轮船的货物。集装箱一直堆到地平线。引水员带领巨大的货轮通过狭窄的入口。起雾时交通会停止几个小时。",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of long files, each with two sections."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for number in range(FILES):
        topic = number % len(TOPICS)
        parts = [f"# Part {part}\n\n{sentences(rng, topic, 25)}\n" for part in "ab"]
        (folder / f"file{number}.md").write_text("\n".join(parts))
    return folder


def test_passages_cover_the_documents_and_keep_to_their_size(files, tmp_path):
    collection = load_whole(str(files), "test")
    assert len(collection.documents) == 2 * FILES
    assert collection.name == str(files)
    for words in (40, 100):
        passages = Passages.cut(collection.documents, words, "en", tmp_path / f"{words}.arrow")
        assert passages.lengths.max() <= words
        texts = [document["text"] for document in collection.documents.values()]
        for row, text in enumerate(texts):
            parts = passages.documents.take(np.flatnonzero(passages.rows == row))
            assert " ".join(" ".join(part["text"] for part in parts).split()) == " ".join(
                text.split()
            )


def test_questions_are_of_the_file_and_the_place_where_their_span_was(files, tmp_path):
    collection = load_whole(str(files), "test")
    questions = Questions.draw(collection, tmp_path, PassageOptions(samples=20))
    assert len(set(questions.files.tolist())) == FILES
    before = [document["text"] for document in collection.documents.values()]
    for number in questions.of_kind(SPANS).tolist():
        row, character = questions.places[number]
        text = list(questions.texts.values())[number]
        assert questions.grades[number] == {int(questions.files[row]): 1}
        # The span begins where the place is, up to letters that it shares with what follows it.
        assert abs(before[row].find(text) - character) <= len(text)


def test_scores_are_those_of_hand_made_rankings():
    grades = [{0: 1}, {1: 2, 2: 1}]
    questions = Questions(
        None, np.array([0, 1, 2]), {"a": "", "b": ""}, [SPANS, LABELLED], grades, [(0, 50), None]
    )
    passages = Passages(
        None,
        np.array([0, 0, 1, 2]),
        np.array([0, 40, 0, 0]),
        np.array([39, 90, 80, 80]),
        np.array([180, 180, 360, 90]),
    )
    ranked = np.array([[2, 0, 1, -1], [3, 2, 0, -1]])
    discount = 1 / math.log2(3)
    # Files of the second question: 2 (grade 1), 1 (grade 2), 0.
    expected = [discount, (1 + 2 * discount) / (2 + discount)]
    assert score_files(ranked, passages, questions) == pytest.approx(expected)
    # 360 and 180 words are read before the passage with character 50 of document 0.
    assert score_spans(ranked, passages, questions) == pytest.approx([1 / math.log2(2 + 3)])


def test_small_passages_are_the_better_bet_for_a_model_that_reads_few_tokens(files, tiny_bert):
    """The encoder reads 12 tokens: what passages of 400 words say later is lost to it."""
    from beir_cocodr import load_encoder
    from beir_cocodr.models.spec import EncoderOptions

    model = load_encoder(str(tiny_bert), EncoderOptions(document_length=16, query_length=16))
    options = PassageOptions(samples=100)
    record = compare_passages({"short": model}, str(files), [15, 400], options=options)
    assert record.best == {"short": 15}
    [pair] = record.pairs
    assert (pair.a, pair.b) == (15, 400)
    assert pair.probability < 0.5
    assert pair.interval[0] < pair.difference < pair.interval[1]
    assert set(record.questions) == {SPANS, GENERATED}


@pytest.mark.parametrize(
    ("texts", "language", "analyzer"), [(GERMAN, "de", "german"), (CHINESE, "zh", "words")]
)
def test_bm25_reads_passages_in_the_language_of_the_folder(
    texts, language, analyzer, tiny_cosine, tmp_path
):
    pytest.importorskip("py3langid")
    folder = tmp_path / language
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    models = ["bm25", str(tiny_cosine)]
    compared = compare(models, str(folder), options=CompareOptions(samples=10))
    assert compared.retrieval["bm25"]["analyzer"] == analyzer

    work = tmp_path / "work"
    work.mkdir()
    collection = load_whole(str(folder), "test")
    questions = Questions.draw(collection, work, PassageOptions(samples=10))
    # Crops of a comparison are searched in a copy of the corpus, which is read in the same way.
    for documents in (
        questions.corpus,
        Passages.cut(questions.corpus, 20, language, work / "passages.arrow").documents,
    ):
        with Resources.temporary(documents, SearchOptions(), work) as resources:
            assert resources.ranker("bm25").describe()["analyzer"] == analyzer

    options = PassageOptions(samples=10)
    detected = compare_passages("bm25", str(folder), [20, 60], options=options)
    search = SearchOptions(analyzer=analyzer)
    named = compare_passages("bm25", str(folder), [20, 60], options=options, search=search)
    assert detected.figures == named.figures
    # Each text is about something else, and terms of any language find what they were made of.
    assert min(figures.by_file[GENERATED] for figures in detected.figures) > 0.9


def test_the_language_that_is_named_splits_the_sentences_of_a_collection(tmp_path, capsys):
    """In German, neither "bzw." nor the dot of an ordinal number ends a sentence."""
    folder = tmp_path / "beir"
    folder.mkdir()
    sentence = "Die Brücke Nummer {} kostet zehn Euro bzw. Zwölf Mark und bleibt am 3. Oktober zu."
    documents = [
        {"_id": str(number), "text": " ".join([sentence.format(number)] * 6)}
        for number in range(12)
    ]
    lines = [json.dumps(document) for document in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    words = ["compare", "bm25", "--dataset", str(folder), "--passages", "8,30", "--samples", "10"]
    passages = {}
    for language in ("en", "de"):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--language", language, "--json"])
        assert not ended.value.code
        record = json.loads(capsys.readouterr().out)
        passages[language] = [figures["passages"] for figures in record["figures"]]
        options = PassageOptions(samples=10, language=language)
        analyzer = {"en": "english", "de": "german"}[language]
        search = SearchOptions(analyzer=analyzer)
        again = compare_passages("bm25", str(folder), [8, 30], options=options, search=search)
        assert [figures.passages for figures in again.figures] == passages[language]
    assert passages["de"] != passages["en"]


def test_neither_size_of_a_single_file_is_the_better_bet(tmp_path):
    """Whatever the size is, a single file is the first."""
    file = tmp_path / "only.md"
    rng = np.random.default_rng(1)
    parts = [f"# Part {part}\n\n{sentences(rng, part % len(TOPICS), 25)}\n" for part in range(4)]
    file.write_text("\n".join(parts))
    options = PassageOptions(samples=10)
    for sizes in ([30, 60], [60, 30]):
        record = compare_passages("bm25", str(file), sizes, options=options)
        assert all(set(figures.by_file.values()) == {1.0} for figures in record.figures)
        assert record.best == {"bm25": None}
        assert record.sentence("bm25") == (
            "bm25: passages of neither 30 nor 60 words are the better bet (30 words: 50% against "
            "60)."
        )
        again = PassagesRecord.from_json(json.loads(json.dumps(record.to_json())), "passages.json")
        assert again.best == {"bm25": None}


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ({(30, 60): 0.7, (30, 90): 0.8, (60, 90): 0.6}, 90),
        ({(30, 60): 0.3, (30, 90): 0.2, (60, 90): 0.4}, 30),
        ({(30, 60): 0.7, (30, 90): 0.4, (60, 90): 0.2}, 60),
        # The rule of compare: a chance of less than 55% prefers neither.
        ({(30, 60): 0.7, (30, 90): 0.8, (60, 90): 0.54}, None),
        ({(30, 60): 0.5, (30, 90): 0.5, (60, 90): 0.5}, None),
    ],
)
def test_a_bet_by_the_chances_whatever_the_order(chances, expected):
    pairs = [
        SizePair("bm25", a, b, 0.0, (-0.1, 0.1), probability)
        for (a, b), probability in chances.items()
    ]
    assert better_bet(pairs) == better_bet(pairs[::-1]) == expected
    record = PassagesRecord("files", 12, {SPANS: 40}, [], pairs, {"bm25": expected})
    sentence = record.sentence("bm25")
    if expected is not None:
        assert f"passages of {expected} words are the better bet (" in sentence
    elif chances[60, 90] == 0.54:
        assert sentence == (
            "bm25: passages of neither 60 nor 90 words are the better bet (90 words: 80% against "
            "30, 54% against 60)."
        )
    else:
        assert "passages of neither 30 nor 60 nor 90 words are the better bet" in sentence


def test_a_record_without_sizes_of_a_model_is_refused():
    content = PassagesRecord("files", 12, {SPANS: 40}, [], [], {}).to_json()
    with pytest.raises(InputError, match="no sizes of bm25 are compared"):
        PassagesRecord.from_json(content | {"best": {"bm25": None}}, "passages.json")


def test_command_line(files, tmp_path, capsys):
    words = ["compare", "bm25", "--dataset", str(files), "--passages", "40,90,200"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--samples", "20", "--output", str(tmp_path / "o")])
    assert not ended.value.code
    assert "better bet" in " ".join(capsys.readouterr().out.split())
    record = PassagesRecord.read(tmp_path / "o" / "passages.json")
    assert record.dataset == str(files)
    assert [figures.words for figures in record.figures] == [40, 90, 200]
    assert len(record.pairs) == 3
    with pytest.raises(SystemExit):
        main([*words, "--samples", "20", "--json"])
    assert json.loads(capsys.readouterr().out)["best"] == record.best


def test_messages_call_the_dataset_by_the_name_that_the_user_gave(files, caplog):
    named = f"{files}?language=en&words=50"
    with caplog.at_level(logging.INFO):
        collection = load_whole(named, "test")
    assert collection.name == named
    assert len(collection.documents) == 2 * FILES
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith(f"{named}: ") for message in messages)
    assert not any("1000000000" in message for message in messages)


def test_the_title_is_the_folder_that_the_user_named(files, capsys):
    words = ["compare", "bm25", "--dataset", str(files), "--passages", "40,90", "--language", "de"]
    with pytest.raises(SystemExit):
        main([*words, "--samples", "10"])
    printed = capsys.readouterr().out
    assert f"{files}: passages of several sizes" in " ".join(printed.split())
    assert "?language" not in printed


@pytest.mark.parametrize("sizes", ["90", "90,90", "90,x", "0,90", ""])
def test_wrong_sizes_are_refused(files, sizes, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "bm25", "--dataset", str(files), f"--passages={sizes}"])
    assert ended.value.code == 2
    assert "90" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "model", ["run:results.run", "http:http://127.0.0.1:9/search?q={query}#hits.id"]
)
def test_a_system_with_an_index_of_its_own_is_refused(files, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.run").write_text("q Q0 d 1 1.0 name\n")
    with pytest.raises(InputError, match="cannot search passages of other sizes"):
        compare_passages(model, str(files), [20, 60])


def test_results_are_not_written_among_the_documents(files):
    before = sorted(files.iterdir())
    with pytest.raises(InputError, match="output"):
        compare_passages("bm25", str(files), [20, 60], output=files)
    assert sorted(files.iterdir()) == before


def test_labels_of_a_collection_count_by_document(tmp_path):
    folder = write_beir(tmp_path / "labelled", 60, 16)
    record = compare_passages("bm25", str(folder), [20, 60], options=PassageOptions(samples=20))
    assert record.questions[LABELLED] == 16
    assert all(0 < figures.by_file[LABELLED] <= 1 for figures in record.figures)
