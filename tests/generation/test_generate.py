"""The folder that ``generate-queries`` makes: whole, shared, killed, selected, and read by the
hosts.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from beir.datasets.data_loader import GenericDataLoader
from conftest import completed, exit_code, process, write_beir
from torchrun_commands import launch, printed

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.passages import Passage
from beir_cocodr.data.text import WORDS, TextFormat, words
from beir_cocodr.data.validation import validate
from beir_cocodr.errors import InputError
from beir_cocodr.generation import generate as query_generation
from beir_cocodr.generation import query_selection
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.generation_record import GenerationRecord
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.shards import QueryShards, ShardHead

SMALL = GenerationOptions(passage_tokens=30, shard_documents=5)
SAMPLED = GenerationOptions(
    passage_tokens=30, per_passage=2, max_length=12, batch_size=8, shard_documents=2
)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("queries.jsonl", "qrels/train.tsv")}


def settled(record: GenerationRecord) -> GenerationRecord:
    """A record without what differs from run to run."""
    return replace(record, seconds={})


@pytest.fixture(scope="module")
def whole(beir_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("generated") / "whole"
    return output, generate_queries(beir_folder, "lexical", output, SMALL)


def test_every_query_belongs_to_its_passage(whole, beir_folder):
    output, record = whole
    documents = load_collection(beir_folder, labels="none").documents
    judged = [line.split("\t") for line in (output / "qrels/train.tsv").read_text().splitlines()]
    assert judged[0] == ["query-id", "corpus-id", "score"]
    queries = lines(output)
    assert [row[:1] + row[2:] for row in judged[1:]] == [[query["_id"], "1"] for query in queries]
    per_passage = Counter()
    for query, (_, document, _) in zip(queries, judged[1:], strict=True):
        place = query["metadata"]
        assert place["document"] == document
        text = TextFormat().document(documents[document])
        passage = text[place["start"] : place["end"]]
        assert passage == passage.strip()
        assert len(words(passage)) <= 30
        assert set(words(query["text"])) <= set(words(passage)) | set(
            words(documents[document]["title"])
        )
        per_passage[document, place["number"]] += 1
    assert max(per_passage.values()) == 5
    counts = record.counts
    assert counts["queries"] == len(queries) == counts["generated"]
    assert counts["passages"] == len(per_passage) + counts["passages_without_query"]
    assert counts["documents"] == len(documents)
    assert counts["passages"] > 2 * len(documents)


def test_beir_and_gpl_and_we_read_the_folder(whole, beir_folder):
    output, record = whole
    plain = GenericDataLoader(str(output)).load(split="train")
    assert plain == GenericDataLoader(str(output), prefix="qgen").load(split="train")
    corpus, queries, qrels = plain
    assert corpus == GenericDataLoader(str(beir_folder)).load_corpus()
    ours = load_collection(output, "train")
    assert (dict(ours.documents), ours.queries, ours.qrels) == (corpus, queries, qrels)
    assert ours.counts == {}
    assert ours.documents.content_hash == record.dataset.corpus_sha256
    assert [defect for defect in validate(output, "train") if defect.severity == "error"] == []
    assert (output / "corpus.jsonl").resolve() == (beir_folder / "corpus.jsonl").resolve()
    assert json.loads((output / "generation.json").read_text()) == record.to_json()
    names = {
        "corpus.jsonl",
        "queries.jsonl",
        "qrels",
        "qgen-queries.jsonl",
        "qgen-qrels",
        "generation.json",
    }
    assert {path.name for path in output.iterdir()} == names


@pytest.mark.parametrize("parts", [2, 3])
def test_shared_among_processes_it_is_the_same(whole, beir_folder, tmp_path, parts):
    output, record = whole
    for number in range(parts, 1, -1):
        left = generate_queries(beir_folder, "lexical", tmp_path, SMALL, part=(number, parts))
        assert left.shards == 10
        assert 0 < left.missing < 10
        assert not (tmp_path / "generation.json").exists()
    last = generate_queries(beir_folder, "lexical", tmp_path, SMALL, part=(1, parts))
    assert settled(last) == settled(record)
    assert content(tmp_path) == content(output)


def test_the_size_of_shards_changes_no_lexical_query(whole, beir_folder, tmp_path):
    generate_queries(beir_folder, "lexical", tmp_path, GenerationOptions(passage_tokens=30))
    assert content(tmp_path) == content(whole[0])


def test_a_finished_folder_is_kept_and_another_plan_refused(whole, beir_folder, tiny_t5, tmp_path):
    output, record = whole
    stamp = (output / "queries.jsonl").stat().st_mtime_ns
    assert generate_queries(beir_folder, "lexical", output, SMALL) == record
    assert (output / "queries.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=r"other settings .*settings: seed\b"):
        generate_queries(
            beir_folder,
            "lexical",
            output,
            GenerationOptions(passage_tokens=30, shard_documents=5, seed=1),
        )
    with pytest.raises(InputError, match=r"other settings .*selection: dedupe\b"):
        generate_queries(
            beir_folder,
            "lexical",
            output,
            GenerationOptions(passage_tokens=30, shard_documents=5, dedupe=True),
        )
    with pytest.raises(InputError, match=r"other settings .*generator: kind"):
        generate_queries(beir_folder, str(tiny_t5), output, SMALL, device="cpu")
    moved = tmp_path / "moved"
    shutil.copytree(beir_folder, moved)
    assert generate_queries(moved, "lexical", output, SMALL) == record  # content decides, not paths
    with (moved / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "title": "", "text": "one more"}\n')
    with pytest.raises(InputError, match=r"other settings .*dataset: corpus_sha256"):
        generate_queries(moved, "lexical", output, SMALL)


def test_a_begun_folder_refuses_another_plan_too(beir_folder, tmp_path):
    generate_queries(beir_folder, "lexical", tmp_path, SMALL, part=(1, 2))
    with pytest.raises(InputError, match=r"other settings .*settings: per_passage"):
        generate_queries(
            beir_folder,
            "lexical",
            tmp_path,
            GenerationOptions(passage_tokens=30, shard_documents=5, per_passage=2),
        )
    # What only selects may change while nothing was selected.
    selecting = GenerationOptions(passage_tokens=30, shard_documents=5, dedupe=True)
    assert generate_queries(beir_folder, "lexical", tmp_path, selecting).selection["dedupe"]


def test_an_output_may_be_named_by_text_and_is_refused_otherwise(whole, beir_folder, tmp_path):
    generate_queries(str(beir_folder), "lexical", str(tmp_path / "named"), SMALL)
    assert content(tmp_path / "named") == content(whole[0])
    for wrong, message in ((3, "give the path of a folder"), (" ", "output has no name")):
        with pytest.raises(InputError, match=message):
            generate_queries(str(beir_folder), "lexical", wrong)


def test_a_folder_of_somebody_else_is_left_alone(beir_folder, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "thesis.tex").write_text("do not lose")
    with pytest.raises(InputError, match="not empty"):
        generate_queries(beir_folder, "lexical", tmp_path, SMALL)
    assert [path.name for path in tmp_path.rglob("*")] == ["shards", "thesis.tex"]


def _generate(folder: Path, model: Path, output: Path) -> None:
    generate_queries(str(folder), str(model), output, SAMPLED, device="cpu")


def test_killed_and_resumed_it_is_the_same_as_uninterrupted(tiny_t5, tmp_path, monkeypatch):
    data = write_beir(tmp_path / "data", documents=24, queries=4)
    killed, uninterrupted = tmp_path / "killed", tmp_path / "whole"
    generating = process(_generate, data, tiny_t5, killed)
    try:
        while len(list(killed.glob("shards/0*.jsonl"))) < 2:
            assert generating.is_alive(), "it ended before it could be killed"
            time.sleep(0.005)
    finally:
        generating.kill()
        generating.join()
    done = {path: path.stat().st_mtime_ns for path in killed.glob("shards/0*.jsonl")}
    assert 2 <= len(done) < 12
    assert not (killed / "generation.json").exists()
    (killed / "shards" / ".000011.jsonl.torn").write_text(
        '{"half'
    )  # what a killed writer leaves behind
    untouched = []
    real = query_generation._finish

    def look(*arguments):
        untouched.extend(path.stat().st_mtime_ns == stamp for path, stamp in done.items())
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(query_generation, "_finish", look)
        resumed = generate_queries(data, str(tiny_t5), killed, SAMPLED, device="cpu")
    assert untouched == [True] * len(done)
    record = generate_queries(data, str(tiny_t5), uninterrupted, SAMPLED, device="cpu")
    assert content(killed) == content(uninterrupted)
    assert settled(resumed) == settled(record)
    assert record.counts["generated"] == 2 * record.counts["passages"]
    assert len({query["text"] for query in lines(killed)}) > record.counts["passages"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],
        lambda content: content[:60] + b"\xff" + content[60:],
        lambda content: b"\n".join(content.split(b"\n")[:-2]) + b"\n",
        lambda content: b"[]\n" + content,
    ],
)
def test_a_damaged_shard_is_made_again(damage, whole, beir_folder, tmp_path, caplog):
    generate_queries(beir_folder, "lexical", tmp_path, SMALL, (1, 2))
    shard = tmp_path / "shards" / "000000.jsonl"
    shard.write_bytes(damage(shard.read_bytes()))
    generate_queries(beir_folder, "lexical", tmp_path, SMALL)
    assert content(tmp_path) == content(whole[0])
    assert f"{shard} was changed" in caplog.text


def test_a_shard_that_two_processes_write_at_once_is_sound_at_every_moment(tmp_path, caplog):
    """Their files differ, in the seconds that they took."""
    passages = [Passage(row=0, number=0, start=0, end=4, text="text", title="")]
    ended = threading.Event()

    def write(first):
        for seconds in range(first, first + 100):
            QueryShards(tmp_path, 1, 1).write(
                0, passages, [["query"]], [[]], ShardHead({"generated": 1}, seconds)
            )

    def read():
        seen = 0
        while not ended.is_set():
            seen += QueryShards(tmp_path, 1, 1).is_finished(0)
        return seen

    write(0)
    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(write, 100), pool.submit(write, 1000)]
        wait(writers)
        ended.set()
        assert reader.result() > 0
    assert [writer.result() for writer in writers] == [None, None]
    assert caplog.text == ""
    assert QueryShards(tmp_path, 1, 1).missing() == []


def test_what_a_killed_run_left_half_written_is_removed(beir_folder, tmp_path):
    generate_queries(beir_folder, "lexical", tmp_path, SMALL)
    left = [folder / ".unfinished-0" for folder in (tmp_path, tmp_path / "qrels")]
    for folder in left:
        folder.mkdir()
    (tmp_path / ".lock").touch()
    generate_queries(beir_folder, "lexical", tmp_path, SMALL)
    assert not any(path.exists() for path in (*left, tmp_path / ".lock"))


def test_a_sample_of_passages_is_the_same_for_all_processes(whole, beir_folder, tmp_path):
    options = GenerationOptions(passage_tokens=30, shard_documents=5, max_passages=20)
    record = generate_queries(beir_folder, "lexical", tmp_path / "one", options)
    assert record.counts["passages"] == 20
    assert record.counts["passages_left_out"] == whole[1].counts["passages"] - 20
    for part in ((1, 2), (2, 2)):
        generate_queries(beir_folder, "lexical", tmp_path / "two", options, part=part)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    every = {query["_id"]: query for query in lines(whole[0])}
    chosen = lines(tmp_path / "one")
    assert all(every[query["_id"]] == query for query in chosen)
    assert len({query["metadata"]["document"] for query in chosen}) > 5


def test_a_corpus_that_beir_cannot_read_is_written_out(beir_folder, tmp_path):
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    with gzip.open(zipped / "corpus.jsonl.gz", "wb") as file:
        file.write((beir_folder / "corpus.jsonl").read_bytes())
    untitled = tmp_path / "untitled.jsonl"
    untitled.write_text('{"id": 7, "contents": "a wing in a supersonic flow. And more."}\n')
    for name, dataset in (("a", zipped), ("b", untitled)):
        record = generate_queries(dataset, "lexical", tmp_path / name, SMALL)
        written = tmp_path / name / "corpus.jsonl"
        assert written.is_file()
        assert not written.is_symlink()
        corpus, queries, _ = GenericDataLoader(str(tmp_path / name)).load(split="train")
        assert all(isinstance(document["title"], str) for document in corpus.values())
        assert queries
        loaded = load_collection(tmp_path / name, "train")
        assert loaded.documents.content_hash == record.dataset.corpus_sha256


def test_a_corpus_in_our_cache_is_not_linked_by_name(beir_folder, cache_root, tmp_path):
    cached = cache_root / "a-collection"
    shutil.copytree(beir_folder, cached)
    generate_queries(cached, "lexical", tmp_path / "o", SMALL)
    shutil.rmtree(cached)  # a cache may be deleted at any time
    assert len(load_collection(tmp_path / "o", "train").documents) == 48


@pytest.mark.parametrize(("language", "is_cut"), [(None, False), ("en", True)])
def test_sentences_end_as_in_the_language_of_the_folder(language, is_cut, tmp_path):
    """In German, the point after a number makes it an ordinal."""
    pytest.importorskip("py3langid")
    folder = tmp_path / "de"
    folder.mkdir()
    for number, town in enumerate(["Aachen", "Bremen", "Celle", "Dessau", "Erfurt", "Fulda"]):
        text = f"Die Kündigung des Mieters aus {town} wird am 3. Mai wirksam. Das Haus ist rot."
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    options = GenerationOptions(per_passage=3, query_kinds="claims", language=language)
    record = generate_queries(folder, "lexical", tmp_path / "queries", options)
    assert record.settings["language"] == (language or "de")
    assert generate_queries(folder, "lexical", tmp_path / "queries", options) == record
    texts = [query["text"] for query in lines(tmp_path / "queries")]
    assert any(text.endswith("am 3.") for text in texts) == is_cut
    assert any(text.endswith("wirksam.") for text in texts)


def test_the_command_reads_a_folder_in_its_language_unless_it_is_named(tmp_path, capsys):
    pytest.importorskip("py3langid")
    folder = tmp_path / "de"
    folder.mkdir()
    for number in range(6):
        text = f"Die Kündigung aus Haus {number} wird am 3. Mai wirksam. Das Haus ist rot."
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    corpus = load_collection(folder, labels="none")
    for number, options in enumerate(([], ["--language", "German"], ["--language", "en"])):
        output = str(tmp_path / f"queries-{number}")
        command = ["generate-queries", "--dataset", str(folder), "--output", output, *options]
        with pytest.raises(SystemExit, match=r"^0$"):
            main(command)
        record = json.loads(capsys.readouterr().out)
        assert record["settings"]["language"] == ("en" if "en" in options else "de")
        if not options:
            assert record["dataset"]["name"] == corpus.name


def test_a_tokenizer_bounds_the_passages(beir_folder, tiny_bert, wordpiece, tmp_path):
    options = GenerationOptions(passage_tokens=24, tokenizer=str(tiny_bert))
    record = generate_queries(beir_folder, "lexical", tmp_path, options)
    documents = load_collection(beir_folder, labels="none").documents
    lengths = []
    for query in lines(tmp_path):
        place = query["metadata"]
        text = TextFormat().document(documents[place["document"]])[place["start"] : place["end"]]
        lengths.append(len(wordpiece(text)["input_ids"]))
    assert 16 < max(lengths) <= 24
    assert record.tokenizer_sha256 != WORDS


def test_processes_at_the_same_time(whole, beir_folder, tmp_path):
    """Two that share the work, and one that does what another does."""
    data = ["--dataset", str(beir_folder), "--output", str(tmp_path / "o")]
    options = ["--passage-tokens", "30", "--shard-documents", "5"]
    command = ["generate-queries", *data, *options, "--shard"]
    processes = [process(main, [*command, part]) for part in ("1/2", "2/2", "2/2")]
    for started in processes:
        started.join(120)
    assert [started.exitcode for started in processes] == [0, 0, 0]
    assert content(tmp_path / "o") == content(whole[0])
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        path.name for path in whole[0].iterdir()
    }


def test_one_that_begins_while_another_looks_at_the_output(
    whole, beir_folder, tmp_path, monkeypatch
):
    """A start that was refused would leave the other processes of torchrun waiting for ever."""
    output = tmp_path / "o"
    look = query_generation._check_unused
    with ThreadPoolExecutor(1) as pool:
        others = []

        def begin_meanwhile(folder):
            if not others:
                others.append(
                    pool.submit(generate_queries, beir_folder, "lexical", output, SMALL, (2, 2))
                )
                wait(others, timeout=3)
            look(folder)

        monkeypatch.setattr(query_generation, "_check_unused", begin_meanwhile)
        generate_queries(beir_folder, "lexical", output, SMALL, (1, 2))
        others[0].result()
    assert content(output) == content(whole[0])


def test_the_processes_of_torchrun_share_the_shards(beir_folder, tiny_t5, tmp_path):
    """The filter is of BM25, whose index all processes of a run would build together."""
    data = ["--dataset", str(beir_folder), "--generator", str(tiny_t5)]
    options = ["--passage-tokens", "30", "--shard-documents", "4", "--per-passage", "2"]
    options += ["--max-length", "12", "--batch-size", "8", "--device", "cpu"]
    options += ["--filter-retriever", "bm25", "--filter-top", "10"]
    command = ["generate-queries", *data, *options, "--output"]
    cache = str(tmp_path / "cache")  # without an index of BM25
    environment = os.environ | {"BEIR_COCODR_CACHE": cache, "OMP_NUM_THREADS": "1"}
    two = [*command, str(tmp_path / "two")]
    together = completed(launch, [two], tmp_path / "logs", environment=environment)
    assert together.returncode == 0, together.stderr[-2000:]
    out, _ = printed(tmp_path / "logs")
    assert json.loads(out)["counts"]["inconsistent"]  # printed once
    assert exit_code(main, [*command, str(tmp_path / "one")]) == 0
    assert content(tmp_path / "two") == content(tmp_path / "one")


def launch_counting_searches(commands: list, logs: Path) -> None:
    """Run commands in two processes, and write how many queries each searches for to a file."""
    search = query_selection.ConsistencyFilter._find_own

    def counted(self, ranker, queries):
        with (logs / f"searched-{os.environ['RANK']}").open("a") as file:
            file.write(f"{len(queries)}\n")
        return search(self, ranker, queries)

    query_selection.ConsistencyFilter._find_own = counted
    logs.mkdir()
    launch(commands, logs)


def test_the_processes_of_torchrun_share_the_filter(beir_folder, tiny_cosine, tmp_path):
    """Each encodes and searches for its part, and the rest of the selection is as in one."""
    command = ["generate-queries", "--dataset", str(beir_folder), "--generator", "lexical"]
    command += ["--passage-tokens", "30", "--shard-documents", "4", "--device", "cpu"]
    command += ["--filter-retriever", f"hybrid:{tiny_cosine}", "--filter-top", "5"]
    command += ["--near-duplicates", "0.8", "--dedupe", "--output"]
    small = {"beir_cocodr.generation.query_selection._SMALLEST_BLOCK": 8}
    for name in ("_READ", "_BLOCK", "_PAIRS"):
        small[f"beir_cocodr.generation.near_duplicates.{name}"] = 8
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    logs = tmp_path / "logs"
    two = [small, [*command, str(tmp_path / "two")]]
    together = completed(launch_counting_searches, two, logs, environment=environment)
    assert together.returncode == 0, together.stderr[-2000:]
    out, err = printed(logs)
    assert out, err[-2000:]
    counts = json.loads(out)["counts"]
    blocks = [
        [int(line) for line in (logs / f"searched-{number}").read_text().splitlines()]
        for number in range(2)
    ]
    assert sum(map(sum, blocks)) == counts["generated"] - counts["empty"] - counts["duplicates"]
    assert min(map(len, blocks)) >= max(map(len, blocks)) - 1 > 0
    assert exit_code(main, [*command, str(tmp_path / "one")]) == 0
    assert content(tmp_path / "two") == content(tmp_path / "one")
    one = json.loads((tmp_path / "one" / "generation.json").read_text())
    assert one["counts"] == counts
    assert counts["inconsistent"]
    assert counts["near_duplicates"]
    assert counts["queries"]
    assert not (tmp_path / "two" / "shards").exists()


def test_a_part_is_refused_under_torchrun(beir_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(query_generation, "world_size", lambda: 2)
    with pytest.raises(InputError, match=r"torchrun.*--shard"):
        generate_queries(beir_folder, "lexical", tmp_path, SMALL, (1, 2))
