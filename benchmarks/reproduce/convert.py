"""BEIR folders from the files that the owners of four corpora give out.

BioASQ, Signal-1M, TREC-NEWS and Robust04 have licences, so that BEIR does not distribute them. The
files come from their owners, unpacked; each command reads them in the owner's format and writes a
folder for ``--data``:

    python benchmarks/reproduce/convert.py bioasq --articles allMeSH_2020.json \\
        --questions 8B1_golden.json 8B2_golden.json ... --output DATA/bioasq
    python benchmarks/reproduce/convert.py signal1m --tweets tweets.jsonl --articles topics \\
        --qrels signal1m_tweets_qrels --output DATA/signal1m
    python benchmarks/reproduce/convert.py trec-news \\
        --articles TREC_Washington_Post_collection.v2.jl \\
        --topics newsir19-background-linking-topics.xml --qrels newsir19-qrels-background.txt \\
        --output DATA/trec-news
    python benchmarks/reproduce/convert.py robust04 --documents DISK4 DISK5 \\
        --topics 04.testset --qrels qrels.robust2004.txt --output DATA/robust04

As in BEIR, queries are BioASQ's questions, the titles of Signal's and TREC-NEWS' articles, and the
descriptions of Robust04's topics.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from beir_cocodr.errors import InputError
from beir_cocodr.io import draft_folder, write_jsonl, write_qrels

#: A document or query in BEIR's format.
Entry = dict[str, str]
Judgement = tuple[str, str, int]

_TAG = re.compile(r"<[^>]+>")
_EMOJI = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f\u200d]")
_LINK = re.compile(r"https?://\S+")


def open_text(path: Path, encoding: str = "utf-8") -> IO[str]:
    """Open a text file, which may be compressed by gzip."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, errors="replace")
    return path.open(encoding=encoding, errors="replace")


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line of JSON."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _parsed(path, number, line)


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(
            f"{path}:{number}: this is no JSON ({error}); unpack the file anew"
        ) from None


def _field(path: Path, number: int, record: Any, *names: str) -> str:
    """Return the first of some fields that a record has, as text.

    Raises:
        InputError: It has none of them.
    """
    for name in names:
        if isinstance(record, dict) and record.get(name) is not None:
            return str(record[name])
    raise InputError(f"{path}:{number}: there is no field {' or '.join(names)}")


def squeezed(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def trec_qrels(path: Path) -> list[Judgement]:
    """Read judgements: topic, an unused field, document and grade on each line."""
    judgements = []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) != 4 or not fields[3].lstrip("-").isdigit():
                raise InputError(
                    f"{path}:{number}: a judgement has a topic, an unused field, a document and a "
                    f"whole grade, not {line.strip()!r}"
                )
            judgements.append((fields[0], fields[2], int(fields[3])))
    return judgements


def bioasq_articles(path: Path) -> Iterator[Entry]:
    """Yield the articles of ``allMeSH_YEAR.json``, which has one a line in a long list."""
    with open_text(path, "utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.strip().rstrip(",")
            text = text.removeprefix('{"articles":[').removeprefix('{"articles": [')
            if not text.strip("]}["):
                continue
            if text.endswith("]}") and text.count("{") < text.count("}"):
                text = text[:-2]
            article = _parsed(path, number, text)
            yield {
                "_id": _field(path, number, article, "pmid"),
                "title": squeezed(_field(path, number, article, "title")),
                "text": squeezed(_field(path, number, article, "abstractText")),
            }


def bioasq_questions(paths: Iterable[Path]) -> tuple[list[Entry], list[Judgement]]:
    """Read the golden files of task B: questions, and the articles that answer them."""
    queries: list[Entry] = []
    judgements: list[Judgement] = []
    for path in paths:
        content = _parsed(path, 1, open_text(path).read())
        for number, question in enumerate(content.get("questions", []), 1):
            name = _field(path, number, question, "id")
            queries.append({"_id": name, "text": squeezed(_field(path, number, question, "body"))})
            for link in dict.fromkeys(question.get("documents", [])):
                judgements.append((name, str(link).rstrip("/").rpartition("/")[2], 1))
    return queries, judgements


def tweets(path: Path) -> Iterator[Entry]:
    """Yield tweets of Twitter's API, without links and emojis; empty ones are left out."""
    for number, tweet in json_lines(path):
        text = html.unescape(_field(path, number, tweet, "full_text", "text"))
        text = squeezed(_EMOJI.sub("", _LINK.sub("", text)))
        if text:
            yield {"_id": _field(path, number, tweet, "id_str", "id"), "title": "", "text": text}


def article_titles(path: Path) -> Iterator[Entry]:
    """Yield the titles of Signal Media's articles as queries."""
    for number, article in json_lines(path):
        title = squeezed(_field(path, number, article, "title"))
        yield {"_id": _field(path, number, article, "id"), "text": title}


def washington_post(path: Path) -> Iterator[Entry]:
    """Yield the articles of the Washington Post Corpus: title and paragraphs without marks."""
    for number, article in json_lines(path):
        paragraphs = []
        for part in article.get("contents") or []:
            if part and part.get("type") == "sanitized_html":
                paragraphs.append(html.unescape(_TAG.sub(" ", part.get("content") or "")))
        yield {
            "_id": _field(path, number, article, "id"),
            "title": squeezed(article.get("title") or ""),
            "text": squeezed(" ".join(paragraphs)),
        }


_TOP = re.compile(r"<top>(.*?)</top>", re.DOTALL)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)")
_DOCUMENT_ID = re.compile(r"<docid>\s*([^\s<]+)")
_DESCRIPTION = re.compile(r"<desc>\s*(?:Description:)?(.*?)(?=<narr>|</desc>|\Z)", re.DOTALL)


def _topics(path: Path, field: re.Pattern[str], name: str) -> dict[str, str]:
    """Return number to a field of each topic of a TREC file."""
    topics = {}
    with open_text(path) as file:
        text = file.read()
    for topic in _TOP.findall(text):
        number = _NUMBER.search(topic)
        value = field.search(topic)
        if number is None or value is None:
            raise InputError(f"{path}: a topic has no {name}: {squeezed(topic)[:80]!r}")
        topics[number[1]] = squeezed(value[1])
    if not topics:
        raise InputError(f"{path} has no topics (<top>...</top>)")
    return topics


_DOC = re.compile(r"<DOC>(.*?)</DOC>", re.DOTALL)
_DOCNO = re.compile(r"<DOCNO>\s*(\S+)\s*</DOCNO>")
_TITLES = re.compile(r"<(HEADLINE|TTL|TI|DOCTITLE)>(.*?)</\1>", re.DOTALL)
_TEXTS = re.compile(r"<TEXT>(.*?)</TEXT>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def trec_disks(paths: Iterable[Path]) -> Iterator[Entry]:
    """Yield the documents of TREC's disks, from unpacked files in folders, in order of their names.

    The Congressional Record (folders CR*), which Robust04 leaves out, and lists are skipped.
    """
    for root in paths:
        files = (
            [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        )
        for path in files:
            if any(part.upper().startswith("CR") for part in path.relative_to(root).parts[:-1]):
                continue
            with open_text(path, "latin-1") as file:
                text = file.read()
            for document in _DOC.findall(text):
                yield _disk_document(path, document)


def _disk_document(path: Path, document: str) -> Entry:
    name = _DOCNO.search(document)
    if name is None:
        raise InputError(f"{path}: a document has no <DOCNO>; unpack the file anew")
    document = _COMMENT.sub(" ", document)
    title = _TITLES.search(document)
    return {
        "_id": name[1],
        "title": "" if title is None else _plain(title[2]),
        "text": _plain(" ".join(_TEXTS.findall(document))),
    }


def _plain(text: str) -> str:
    return squeezed(html.unescape(_TAG.sub(" ", text)))


def write_beir(
    output: Path, corpus: Iterable[Entry], queries: list[Entry], judgements: list[Judgement]
) -> None:
    """Write a BEIR folder, whose queries are those with judgements of a document that it has.

    Raises:
        InputError: No judged document is in the corpus.
    """
    with draft_folder(output) as draft:
        names: set[str] = set()

        def noted() -> Iterator[Entry]:
            for entry in corpus:
                if entry["_id"] not in names:
                    names.add(entry["_id"])
                    yield entry

        write_jsonl(draft / "corpus.jsonl", noted())
        kept = [judgement for judgement in judgements if judgement[1] in names]
        if not kept:
            raise InputError(
                f"no judged document is among the {len(names)} documents; check that corpus and "
                "judgements are of the same version"
            )
        judged = {query for query, _, _ in kept}
        used = [query for query in queries if query["_id"] in judged]
        write_jsonl(draft / "queries.jsonl", used)
        (draft / "qrels").mkdir()
        write_qrels(draft / "qrels" / "test.tsv", kept)
    left_out = len(judgements) - len(kept)
    print(
        f"{output}: {len(names):,} documents, {len(used)} queries, {len(kept):,} judgements; "
        f"{left_out} judgements of documents that are not in the corpus are left out",
        file=sys.stderr,
    )


def convert_bioasq(options: argparse.Namespace) -> None:
    queries, judgements = bioasq_questions(options.questions)
    write_beir(options.output, bioasq_articles(options.articles), queries, judgements)


def convert_signal1m(options: argparse.Namespace) -> None:
    queries = list(article_titles(options.articles))
    write_beir(options.output, tweets(options.tweets), queries, trec_qrels(options.qrels))


def convert_trec_news(options: argparse.Namespace) -> None:
    topic_of = {}
    for number, article in _topics(options.topics, _DOCUMENT_ID, "<docid>").items():
        topic_of[article] = number
    queries = []
    for article in washington_post(options.articles):
        if article["_id"] in topic_of:
            queries.append({"_id": topic_of[article["_id"]], "text": article["title"]})
    corpus = washington_post(options.articles)
    write_beir(options.output, corpus, queries, trec_qrels(options.qrels))


def convert_robust04(options: argparse.Namespace) -> None:
    topics = _topics(options.topics, _DESCRIPTION, "<desc>")
    queries = [{"_id": number, "text": text} for number, text in topics.items()]
    write_beir(options.output, trec_disks(options.documents), queries, trec_qrels(options.qrels))


#: Corpus to the function that converts it, and its options that name one file or several.
CORPORA: dict[
    str, tuple[Callable[[argparse.Namespace], None], tuple[str, ...], tuple[str, ...]]
] = {
    "bioasq": (convert_bioasq, ("articles",), ("questions",)),
    "signal1m": (convert_signal1m, ("tweets", "articles", "qrels"), ()),
    "trec-news": (convert_trec_news, ("articles", "topics", "qrels"), ()),
    "robust04": (convert_robust04, ("topics", "qrels"), ("documents",)),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="corpus", required=True)
    for name, (_, single, several) in CORPORA.items():
        command = commands.add_parser(name)
        for option in single:
            command.add_argument(f"--{option}", type=Path, required=True)
        for option in several:
            command.add_argument(f"--{option}", type=Path, nargs="+", required=True)
        command.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    convert, single, several = CORPORA[options.corpus]
    paths = [getattr(options, name) for name in single]
    for name in several:
        paths += getattr(options, name)
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        parser.error(f"there is no {', '.join(missing)}")
    if options.output.exists():
        parser.error(f"{options.output} is there already; remove it, or choose another --output")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        convert(options)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
