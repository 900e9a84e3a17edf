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

from beir_cocodr.data.apidocs.packages import fold, package_docstrings, split_docstring
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

# Domain -> the distribution whose version stands for its sources ("" for the running Python).
DOMAINS = {
    "stdlib": "",
    **{name: name for name in ("numpy", "pandas", "torch", "scipy")},
    "sklearn": "scikit-learn",
}
_CHOICES = f"choose from {', '.join(DOMAINS)}, or several joined by '+'"
FORMAT_VERSION = 1  # raise it with every change of what is extracted from the same sources
SPLIT_SEED, TEST_SHARE = 0, 0.3
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pair:
    id: str
    query: str
    passage: str

    @property
    def split(self) -> str:
        digest = hashlib.sha256(f"{SPLIT_SEED}:{self.id}".encode()).digest()
        return "test" if int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64 else "train"


@dataclass
class _Extraction:
    """Pairs of one domain by id, and what was left out."""

    modules: Counter[str]
    seen: int = 0
    pairs: list[_Pair] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def apidocs_folder(domain: str, cache_dir: Path | None = None) -> Path:
    """A BEIR folder made of the documentation of installed packages, read with ``ast``. An
    InputError: an unknown domain, a package that is not installed or has no sources, or a cache
    that cannot be written.

    A query is the summary line of a public function or class (methods are functions), its one
    relevant passage is the rest of that text. Titles are empty: the name of the object often
    repeats the summary (``solve_banded``: "Solve the equation ... banded matrix") and would turn
    the task into matching names. Texts that exist only in compiled code (numpy's ufuncs) are not
    found; what is found but left out is counted by reason. The corpus holds every passage; queries
    are split 70 to 30 into train and test by a seeded hash of the document id, so that a pair is in
    the same split in every union.

    Args:
        domain: ``stdlib``, ``numpy``, ``pandas``, ``torch``, ``scipy``, ``sklearn``, or several
            joined by ``+`` in any order. In a union, pairs repeated across domains are kept once,
            in the domain that comes first by name.
        cache_dir: root of the cache, by default :func:`~beir_cocodr.io.cache_root`; the folder lies
            under ``apidocs/``, with ``corpus.jsonl``, ``queries.jsonl``, ``qrels/train.tsv``,
            ``qrels/test.tsv`` and ``statistics.json`` (key and counts per domain). It is made once
            per Python version, package versions and format version, in some seconds; the same key
            gives the same bytes.
    """
    domains = sorted(set(domain.split("+")))
    for name in domains:
        if name not in DOMAINS:
            raise InputError(f"apidocs/{domain}: unknown domain {name!r}; {_CHOICES}")
    key = _key(domains)
    root = cache_root() if cache_dir is None else cache_dir.expanduser()
    folder = root / "apidocs" / f"{'+'.join(domains)}-{json_sha256(key)[:12]}"
    if not (folder / "statistics.json").is_file():
        extractions = {name: _extract(name) for name in domains}
        _drop_repeated(extractions)
        with filling_cache(folder.parent):
            _write(folder, extractions, key)
        for name, found in extractions.items():
            message = (
                "%s: %d of %d texts of %s kept; statistics.json there has versions and all counts"
            )
            log.info(message, folder, len(found.pairs), found.seen, name)
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
    if (found := installed_version(DOMAINS[domain])) is None:
        raise InputError(
            f"apidocs: package {DOMAINS[domain]!r} is not installed; install it, or {_CHOICES}"
        )
    return found


def _source_root(domain: str) -> Path:
    if not DOMAINS[domain]:
        return Path(sysconfig.get_path("stdlib"))
    spec = find_spec(domain)  # of a top-level name: finds, does not import
    if spec is None or spec.origin is None:
        raise InputError(f"apidocs: package {domain!r} is not installed; install it, or {_CHOICES}")
    return Path(spec.origin).parent


def _extract(domain: str) -> _Extraction:
    root = _source_root(domain)
    docstrings, modules = package_docstrings(root, domain if DOMAINS[domain] else "")
    extraction = _Extraction(modules, len(docstrings))
    pairs: dict[str, _Pair] = {}
    for name, docstring in docstrings:
        if docstring.text is None:
            outcome: tuple[str, str] | str = "computed text"
        elif name is None:
            outcome = "private name"
        elif docstring.deprecated:
            outcome = "deprecated"
        else:
            outcome = split_docstring(docstring.text)
        if isinstance(outcome, str):
            extraction.left_out[outcome] += 1
        elif f"{domain}:{name}" in pairs:
            extraction.left_out["same name"] += 1
        else:
            pairs[f"{domain}:{name}"] = _Pair(f"{domain}:{name}", *outcome)
    if not pairs:
        raise InputError(f"apidocs: no documentation found in the sources under {root}; {_CHOICES}")
    extraction.pairs = [pairs[id_] for id_ in sorted(pairs)]
    return extraction


def _drop_repeated(extractions: dict[str, _Extraction]) -> None:
    """Keep the first pair, by id, of those with equal queries or equal passages."""
    queries, passages = set[str](), set[str]()
    for extraction in extractions.values():
        kept = []
        for pair in extraction.pairs:
            query, passage = fold(pair.query), fold(pair.passage)
            if query in queries or passage in passages:
                extraction.left_out["same query" if query in queries else "same passage"] += 1
                continue
            queries.add(query)
            passages.add(passage)
            kept.append(pair)
        extraction.pairs = kept


def _write(folder: Path, extractions: dict[str, _Extraction], key: Json) -> None:
    """Write the folder in one step, which of two processes one does first."""
    pairs = [pair for extraction in extractions.values() for pair in extraction.pairs]
    statistics = {
        "key": key,
        "domains": {name: _statistics(found) for name, found in extractions.items()},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft_folder(folder) as draft:
            (draft / "qrels").mkdir()
            write_jsonl(
                draft / "corpus.jsonl",
                ({"_id": p.id, "title": "", "text": p.passage} for p in pairs),
            )
            write_jsonl(
                draft / "queries.jsonl", ({"_id": f"query:{p.id}", "text": p.query} for p in pairs)
            )
            for split in ("train", "test"):
                rows = ((f"query:{pair.id}", pair.id, 1) for pair in pairs if pair.split == split)
                write_qrels(draft / "qrels" / f"{split}.tsv", rows)
            write_text(draft / "statistics.json", json.dumps(statistics, indent=2) + "\n")
    except InputError:
        # A folder that is there already was written by another process from the same key.
        if not (folder / "statistics.json").is_file():
            raise


def _statistics(extraction: _Extraction) -> Json:
    pairs = extraction.pairs
    splits = Counter(pair.split for pair in pairs)
    query_words, passage_words = (
        [len(getattr(p, part).split()) for p in pairs] for part in ("query", "passage")
    )
    return {
        "modules": dict(sorted(extraction.modules.items())),
        "docstrings": extraction.seen,
        "kept": len(pairs),
        "left_out": dict(sorted(extraction.left_out.items())),
        "train_queries": splits["train"],
        "test_queries": splits["test"],
        "query_words": round(sum(query_words) / max(len(pairs), 1), 2),
        "passage_words": round(sum(passage_words) / max(len(pairs), 1), 2),
    }
