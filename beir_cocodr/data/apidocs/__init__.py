"""The embedded collection: documentation of installed packages as queries and passages."""

import hashlib
import json
import logging
import platform
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from beir_cocodr.checksums import add_checksums, is_sound
from beir_cocodr.data.apidocs.docstrings import Docstring
from beir_cocodr.data.apidocs.packages import package_docstrings
from beir_cocodr.data.apidocs.summaries import fold, split_docstring
from beir_cocodr.errors import InputError
from beir_cocodr.io import (
    cache_root,
    draft_folder,
    filling_cache,
    json_sha256,
    write_jsonl,
    write_qrels,
    write_text,
)
from beir_cocodr.records import Json, installed_version

# Domain to the distribution whose version identifies its sources ("" for the running Python).
DOMAINS = {
    "stdlib": "",
    "numpy": "numpy",
    "pandas": "pandas",
    "torch": "torch",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}
_CHOICES = f"choose from {', '.join(DOMAINS)}, or several joined by '+'"

FORMAT_VERSION = 1  # raise it with every change of what is extracted from the same sources
SPLIT_SEED = 0
TEST_SHARE = 0.3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pair:
    """A query and its relevant passage."""

    id: str
    query: str
    passage: str

    @property
    def split(self) -> str:
        digest = hashlib.sha256(f"{SPLIT_SEED}:{self.id}".encode()).digest()
        draw = int.from_bytes(digest[:8], "big")
        if draw < TEST_SHARE * 2**64:
            return "test"
        return "train"


@dataclass
class _Extraction:
    """The pairs of one domain by id, and counts of texts that were left out."""

    modules: Counter[str]
    docstrings: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def apidocs_folder(domain: str, cache_dir: Path | None = None) -> Path:
    """Make a BEIR folder of the documentation of installed packages, read with ``ast``.

    A query is the summary line of a public function or class (methods are functions), and its one
    relevant passage is the rest of that text. Titles are empty: the name of the object often
    repeats the summary (``solve_banded``: "Solve the equation ... banded matrix") and would turn
    the task into matching names. Texts that exist only in compiled code (numpy's ufuncs) are not
    read; what is read and left out is counted by reason. The corpus holds every passage. Queries
    are split 70 to 30 into train and test by a seeded hash of the document id, so that a pair is in
    the same split in every union.

    Args:
        domain: ``stdlib``, ``numpy``, ``pandas``, ``torch``, ``scipy``, ``sklearn``, or several
            joined by ``+`` in any order. In a union, pairs repeated across domains are kept once,
            in the domain that comes first by name.
        cache_dir: root of the cache. Default: :func:`~beir_cocodr.io.cache_root`.

    Returns:
        The folder, below ``apidocs/`` in the cache, with ``corpus.jsonl``, ``queries.jsonl``,
        ``qrels/train.tsv``, ``qrels/test.tsv`` and ``statistics.json`` (key and counts per domain).
        It is made once per Python version, package versions and format version, in some seconds;
        the same key gives the same bytes.

    Raises:
        InputError: a domain is unknown, a package is not installed or has no sources, or the cache
            cannot be written to.
    """
    domains = sorted(set(domain.split("+")))
    for name in domains:
        if name not in DOMAINS:
            raise InputError(f"apidocs/{domain}: unknown domain {name!r}; {_CHOICES}")
    key = _key(domains)
    root = cache_root() if cache_dir is None else cache_dir.expanduser()
    name = "+".join(domains)
    folder = root / "apidocs" / f"{name}-{json_sha256(key)[:12]}"
    if not _is_kept(folder):
        with filling_cache(folder.parent):  # fails before anything is read
            folder.parent.mkdir(parents=True, exist_ok=True)
        extractions = {name: _extract(name) for name in domains}
        _drop_repeated(extractions)
        with filling_cache(folder.parent):
            _write(folder, extractions, key)
        for name, extraction in extractions.items():
            log.info(
                "%s: %d of %d texts of %s kept; statistics.json there has versions and all counts",
                folder,
                len(extraction.pairs),
                extraction.docstrings,
                name,
            )
    return folder


def _key(domains: list[str]) -> Json:
    return {
        "domains": domains,
        "format": FORMAT_VERSION,
        "packages": {DOMAINS[name]: _version(name) for name in domains if DOMAINS[name]},
        "python": platform.python_version(),
        "split_seed": SPLIT_SEED,
        "test_share": TEST_SHARE,
    }


def _version(domain: str) -> str:
    package = DOMAINS[domain]
    version = installed_version(package)
    if version is None:
        raise InputError(
            f"apidocs: package {package!r} is not installed; install it, or {_CHOICES}"
        )
    return version


def _source_root(domain: str) -> Path:
    if not DOMAINS[domain]:
        return Path(sysconfig.get_path("stdlib"))
    spec = find_spec(domain)  # a top-level name is not imported
    if spec is None or spec.origin is None:
        raise InputError(f"apidocs: package {domain!r} is not installed; install it, or {_CHOICES}")
    return Path(spec.origin).parent


def _extract(domain: str) -> _Extraction:
    root = _source_root(domain)
    docstrings, modules = package_docstrings(
        root,
        domain if DOMAINS[domain] else "",
    )
    extraction = _Extraction(modules, len(docstrings))
    pairs: dict[str, _Pair] = {}
    for name, docstring in docstrings:
        id = f"{domain}:{name}"
        outcome = _pair_or_reason(name, docstring)
        if isinstance(outcome, str):
            extraction.left_out[outcome] += 1
        elif id in pairs:
            extraction.left_out["same name"] += 1
        else:
            query, passage = outcome
            pairs[id] = _Pair(id, query, passage)
    if not pairs:
        raise InputError(
            f"apidocs: the sources under {root} have no documentation to read; {_CHOICES}"
        )
    extraction.pairs = [pairs[id] for id in sorted(pairs)]
    return extraction


def _pair_or_reason(
    name: str | None,
    docstring: Docstring,
) -> tuple[str, str] | str:
    """Return query and passage of a docstring, or the reason to leave it out."""
    if docstring.text is None:
        return "computed text"
    if name is None:
        return "private name"
    if docstring.deprecated:
        return "deprecated"
    return split_docstring(docstring.text)


def _drop_repeated(extractions: dict[str, _Extraction]) -> None:
    """Keep the first pair, by id, of those with equal queries or equal passages."""
    queries: set[str] = set()
    passages: set[str] = set()
    for extraction in extractions.values():
        kept = []
        for pair in extraction.pairs:
            query = fold(pair.query)
            passage = fold(pair.passage)
            if query in queries:
                extraction.left_out["same query"] += 1
            elif passage in passages:
                extraction.left_out["same passage"] += 1
            else:
                queries.add(query)
                passages.add(passage)
                kept.append(pair)
        extraction.pairs = kept


_FILES = ("corpus.jsonl", "queries.jsonl", "statistics.json")
_QRELS = ("train.tsv", "test.tsv")


def _is_kept(folder: Path) -> bool:
    """Return whether a folder of the cache is as it was written; a damaged one is removed."""
    if not folder.is_dir():
        return False
    if is_sound(*map(folder.joinpath, _FILES), *map((folder / "qrels").joinpath, _QRELS)):
        return True
    rmtree(folder, ignore_errors=True)
    return False


def _write(
    folder: Path,
    extractions: dict[str, _Extraction],
    key: Json,
) -> None:
    """Write the folder in one step; of two processes the first one does."""
    pairs = [pair for extraction in extractions.values() for pair in extraction.pairs]
    domains = {name: _statistics(extraction) for name, extraction in extractions.items()}
    statistics = {"key": key, "domains": domains}
    try:
        with draft_folder(folder) as draft:
            (draft / "qrels").mkdir()
            corpus = ({"_id": pair.id, "title": "", "text": pair.passage} for pair in pairs)
            write_jsonl(draft / "corpus.jsonl", corpus)
            queries = ({"_id": f"query:{pair.id}", "text": pair.query} for pair in pairs)
            write_jsonl(draft / "queries.jsonl", queries)
            for split in ("train", "test"):
                ids = [pair.id for pair in pairs if pair.split == split]
                rows = ((f"query:{id}", id, 1) for id in ids)
                write_qrels(draft / "qrels" / f"{split}.tsv", rows)
            write_text(
                draft / "statistics.json",
                json.dumps(statistics, indent=2) + "\n",
            )
            add_checksums(draft, _FILES)
            add_checksums(draft / "qrels", _QRELS)
    except InputError:
        # A folder that is there already was written by another process from the same key.
        if not (folder / "statistics.json").is_file():
            raise


def _statistics(extraction: _Extraction) -> Json:
    pairs = extraction.pairs
    splits = Counter(pair.split for pair in pairs)
    count = max(len(pairs), 1)
    query_words = sum(len(pair.query.split()) for pair in pairs)
    passage_words = sum(len(pair.passage.split()) for pair in pairs)
    return {
        "modules": dict(sorted(extraction.modules.items())),
        "docstrings": extraction.docstrings,
        "kept": len(pairs),
        "left_out": dict(sorted(extraction.left_out.items())),
        "train_queries": splits["train"],
        "test_queries": splits["test"],
        "query_words": round(query_words / count, 2),
        "passage_words": round(passage_words / count, 2),
    }
