"""Collections of this package as datasets of ir_datasets: BEIR folders, and resampled ones, added
to its registry, again and again without harm. Reading ids of ir_datasets is
:mod:`beir_cocodr.data.irds_source`.

Ids that are kept stand in a file in ir_datasets' home. ir_datasets looks for no plugins when it is
imported, so that :func:`register` reads them: a script calls it first, and ``beir-cocodr irds``
runs ir_datasets' commands after it.
"""

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_datasets
from ir_datasets.datasets.base import FilteredQueries
from ir_datasets.datasets.beir import BeirTitleDoc
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel
from ir_datasets.indices import DEFAULT_DOCSTORE_OPTIONS, Docstore
from ir_datasets.util import Lazy, MetadataComponent, MetadataProvider, apply_sub_slice, slice_idx

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.irds_source import is_registered, suggestion
from beir_cocodr.data.readers import read_judgements, read_queries
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import locked
from beir_cocodr.records import Json, Record
from beir_cocodr.resampling import ID, ID_PARTS
from beir_cocodr.resampling import manifest as manifests

#: Id to the place that it was registered from.
_PLACES: dict[str, str] = {}


@dataclass(frozen=True)
class Entry:
    """A dataset that is going to be registered.

    Attributes:
        handlers: of documents, queries and judgements; never a whole dataset, whose id would come
            along.
        documentation: pretty_name, desc, bibtex_ids, bibtex.
        counts: "docs", "queries" or "qrels" to how many there are, where the handlers do not count.
    """

    handlers: Sequence[Any]
    documentation: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)


def register_entries(entries: Mapping[str, Entry], place: str) -> list[str]:
    """Register every id that is not registered from the same place already; gives all ids, new or
    not. An InputError for an id that cannot be one, or that is taken, as by another place; then
    none is registered.
    """
    for identifier in entries:
        if not ID.fullmatch(identifier):
            raise InputError(f"{identifier!r} cannot be an id in ir_datasets: {ID_PARTS}")
        if _PLACES.get(identifier, place) != place:
            raise InputError(
                f"the id {identifier!r} is registered already, from {_PLACES[identifier]}; take another"
            )
        if identifier not in _PLACES and is_registered(identifier):
            raise InputError(f"ir_datasets has the id {identifier!r} already; take another")
    for identifier, entry in entries.items():
        if identifier not in _PLACES:
            ir_datasets.registry.register(identifier, _dataset(identifier, entry))
            _PLACES[identifier] = place
    return list(entries)


def _dataset(identifier: str, entry: Entry) -> Any:
    # Counts that are known beforehand, ahead of handlers that would have to read everything.
    counts = SimpleNamespace(
        **{f"{part}_count": partial(int, count) for part, count in entry.counts.items()}
    )
    documentation = SimpleNamespace(documentation=partial(dict, entry.documentation))
    dataset = ir_datasets.Dataset(counts, *entry.handlers, documentation)
    # Without one of our own the registry would look our ids up in the host's table, to the same
    # effect but for queries and judgements, which we can count.
    provider = MetadataProvider(lambda: {identifier: _metadata(dataset)})
    return ir_datasets.Dataset(MetadataComponent(identifier, dataset, provider), dataset)


def _metadata(dataset: Any) -> Json:
    """Counts as the host keeps them; none of documents, with which others would take them for
    checked by the host.
    """
    found: Json = {}
    if dataset.has_queries():
        found["queries"] = {"count": dataset.queries_count()}
    if dataset.has_qrels():
        calculated = dataset.qrels_calc_metadata(verbose=False)
        grades = calculated["fields"]["relevance"]["counts_by_value"]
        calculated["fields"]["relevance"]["counts_by_value"] = {
            str(k): v for k, v in sorted(grades.items())
        }
        found["qrels"] = calculated
    return found


@dataclass(frozen=True)
class KeptIds(Record):
    """The ids that :func:`register` makes loadable in every process: id to BEIR folder, and folder
    of an output of ``resample`` to the id of its documents, None for the manifest's.
    """

    folders: dict[str, str] = field(default_factory=dict)
    resampled: dict[str, str | None] = field(default_factory=dict)


def kept_file() -> Path:
    """Where :class:`KeptIds` stand, in the home of ir_datasets."""
    return Path(ir_datasets.util.home_path()) / "beir_cocodr.json"


def _kept() -> KeptIds:
    return KeptIds.read(kept_file()) if kept_file().exists() else KeptIds()


@contextmanager
def _changing_kept() -> Iterator[KeptIds]:
    """The kept ids, to be changed and written again while no other process does."""
    with locked(kept_file().parent):
        kept = _kept()
        yield kept
        kept.write(kept_file())


def forget(name: str) -> None:
    """Keep an id, or the folder of a resampled output, no longer; ``InputError`` where it is not
    kept.
    """
    with _changing_kept() as kept:
        folder = str(Path(name).resolve())
        if name not in kept.folders and folder not in kept.resampled:
            raise InputError(
                f"{name!r} is not kept; there are {', '.join([*kept.folders, *kept.resampled]) or 'none'}"
            )
        kept.folders.pop(name, None)
        kept.resampled.pop(folder, None)


def register_folder(path: str | Path, identifier: str, keep: bool = False) -> list[str]:
    """Make a BEIR folder loadable as ``ir_datasets.load(identifier)``, and its splits below that;
    again does no harm.

    The id itself has the documents, and all queries if there are any; ``IDENTIFIER/SPLIT`` has the
    judgements of a split and the queries that it judges. Nothing is read before it is used. The
    folder holds ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``, each plain or ``.gz``;
    an InputError where a part is missing, or the id taken or none. With ``keep``, :func:`register`
    makes it loadable in every process, until :func:`forget`.
    """
    folder = Path(path).resolve()
    source = FileSource.of_folder(str(path), folder, "test")
    if not source.corpus.is_file():
        raise InputError(
            f"{source.corpus}: no such file; a BEIR folder holds corpus.jsonl or corpus.jsonl.gz"
        )
    queries, splits = source.queries_file, source.splits()
    if any(replace(source, wanted_split=split).queries_file is None for split in splits):
        raise InputError(
            f"{folder / 'queries.jsonl'}: no such file, but there are judgements; put it there"
        )
    docs = _FolderDocs(folder)
    documentation = {"pretty_name": identifier, "desc": f"<p>The BEIR folder {folder.name}.</p>"}
    all_queries = [_FolderQueries(Path(queries))] if queries else []
    entries = {identifier: Entry([docs, *all_queries], documentation)}
    for split in splits:
        part = replace(source, wanted_split=split)
        qrels = _FolderQrels(Path(str(part.judgements_file)))
        judged = _FolderQueries(Path(str(part.queries_file)), qrels.judged)
        entries[f"{identifier}/{split}"] = Entry([docs, judged, qrels], documentation)
    identifiers = register_entries(entries, str(folder))
    if keep:
        with _changing_kept() as kept:
            kept.folders[identifier] = str(folder)
    return identifiers


log = logging.getLogger(__name__)
_BOTH = "interpolation and extrapolation"
_NAMES = {"restrain": "ReSTrain", "resttest": "ReSTTest"}

_CITATION = {
    "bibtex_ids": ["Zhan2022Interpolation"],
    "bibtex": """@inproceedings{Zhan2022Interpolation,
  author = {Jingtao Zhan and Xiaohui Xie and Jiaxin Mao and Yiqun Liu and Jiafeng Guo and Min Zhang and
    Shaoping Ma},
  title = {Evaluating Interpolation and Extrapolation Performance of Neural Retrieval Models},
  booktitle = {CIKM},
  year = {2022},
  url = {https://arxiv.org/abs/2204.11447}
}
""",
}


def register_resampled(
    output: str | Path, base_id: str | None = None, keep: bool = False
) -> list[str]:
    """Make an output of ``resample`` loadable as datasets of ir_datasets. An InputError: no
    manifest, an unknown base id or one with other documents, or ids that are taken.

    Ids are ``cocodr/restrain/BASE/size-45k/REGIME`` (or ``k-10``) and
    ``cocodr/resttest/BASE/bucket-1-of-5/REGIME``, REGIME being interpolation or extrapolation. Each
    has the test queries and their judgements; ``/test`` below it is the same, ``/train`` the
    training queries chosen and theirs. Documents are those of BASE, in its own class and store,
    where it is an id of ir_datasets, and so are queries; else both are read from the folders. Again
    is no harm.

    Args:
        output: the folder with the ``manifest.json``.
        base_id: an id of ir_datasets with the documents of the training set, which then is BASE; by
            default BASE is that of the manifest.
    """
    output = Path(output).resolve()
    manifest = manifests.read_manifest(output)
    base_id = base_id or None
    base, method = base_id or manifest.base, manifest.method
    first = manifest.sets[0]
    train_docs = _docs(output, manifest.train, first.train, base_id)
    test_docs = (
        train_docs if manifest.same_corpus else _docs(output, manifest.test, first.test, None)
    )
    entries: dict[str, Entry] = {}
    for found in manifest.sets:
        identifier = manifests.set_id(method, base, found.label, found.regime)
        sides = {
            side: Entry(
                [docs, *_labels(output, source, part)],
                _documentation(manifest, base, found, found.regime),
                {"docs": source.documents, "queries": part.queries},
            )
            for side, docs, source, part in (
                ("train", train_docs, manifest.train, found.train),
                ("test", test_docs, manifest.test, found.test),
            )
        }
        entries |= {
            identifier: sides["test"],
            **{f"{identifier}/{side}": sides[side] for side in sides},
        }
        if method == "resttest":
            # Both regimes of a bucket train on the same queries.
            both = replace(
                sides["train"], documentation=_documentation(manifest, base, found, _BOTH)
            )
            entries[f"{identifier.rpartition('/')[0]}/train"] = both
    identifiers = register_entries(entries, str(output))
    if keep:
        with _changing_kept() as kept:
            kept.resampled[str(output)] = base_id
    return identifiers


def register() -> list[str]:
    """Make what is kept, and the collections that were resampled on this machine, loadable where
    they are still there; of equal ids what is kept, then the newest. Calling it again does no harm,
    and adds what has come since.
    """
    kept, identifiers = _kept(), []
    for name, folder in kept.folders.items():
        try:
            identifiers += register_folder(folder, name)
        except InputError as error:
            log.warning(
                "the kept id %s is not registered (%s); beir-cocodr irds forget %s",
                name,
                error,
                name,
            )
    for output in [*kept.resampled, *map(str, manifests.remembered_outputs())]:
        try:
            identifiers += register_resampled(output, kept.resampled.get(output))
        except InputError as error:
            log.info("%s is not registered: %s", output, error)
    return list(dict.fromkeys(identifiers))


def run(arguments: Sequence[str]) -> None:
    """A command of ir_datasets with the ids of this machine, such as ``["export", ID, "docs"]``; or
    one of ours: ``register FOLDER ID``, ``register OUTPUT [ID]`` of an output of ``resample``,
    which are kept, and ``forget ID``.
    """
    name, *rest = arguments or [""]
    is_resampled = bool(rest) and (Path(rest[0]) / manifests.MANIFEST_FILE).is_file()
    if name == "register" and len(rest) in ((1, 2) if is_resampled else (2,)):
        folder, identifier = rest[0], rest[1] if len(rest) > 1 else ""
        keep = register_resampled if is_resampled else register_folder
        print(*keep(folder, identifier, keep=True), sep="\n")
    elif name == "forget" and len(rest) == 1:
        forget(rest[0])
    elif name in ir_datasets.commands.COMMANDS:
        register()
        # These name a dataset first, and the host ends in a KeyError where it does not know it.
        if (
            name in ("export", "lookup")
            and rest
            and not rest[0].startswith("-")
            and not is_registered(rest[0])
        ):
            raise InputError(f"ir_datasets does not know the id {rest[0]!r}{suggestion(rest[0])}")
        ir_datasets.main([name, *rest])
    else:
        known = ", ".join(ir_datasets.commands.COMMANDS)
        raise InputError(
            f"irds takes register FOLDER ID, register OUTPUT [ID], forget ID, and ir_datasets' {known}"
        )


def _docs(
    output: Path, source: manifests.SourceRecord, part: manifests.SplitRecord, base_id: str | None
) -> Any:
    """Documents of one side; every set links to the same corpus, so any part of that side will
    do.
    """
    identifier = base_id or source.ir_datasets_id
    if identifier is None:
        return _FolderDocs(output / part.folder, source.corpus_sha256)
    base = _load_base(identifier)
    if not base.has_docs():
        raise InputError(f"the base id {identifier!r} has no documents; give one that has")
    count = base.docs_count()
    if count not in (None, source.documents):
        raise InputError(
            f"the base id {identifier!r} has {count} documents, and {output} was made from "
            f"{source.documents}: give the id that it was made from"
        )
    return base.docs_handler()


def _labels(output: Path, source: manifests.SourceRecord, part: manifests.SplitRecord) -> list[Any]:
    """Queries and judgements of one side of a set."""
    folder, identifier = output / part.folder, source.ir_datasets_id
    file = folder / "qrels" / f"{part.split}.tsv"
    if identifier is None:
        qrels = _FolderQrels(file)
        return [_FolderQueries(folder / "queries.jsonl", qrels.judged), qrels]
    base = _load_base(identifier)
    qrels = _FolderQrels(file, base.qrels_defs())
    return [FilteredQueries(base.queries_handler(), qrels.judged), qrels]


def _load_base(identifier: str) -> Any:
    if not is_registered(identifier):
        raise InputError(
            f"ir_datasets does not know the base id {identifier!r}{suggestion(identifier)}"
        )
    return ir_datasets.load(identifier)


def _documentation(
    manifest: manifests.Manifest, base: str, found: manifests.SetRecord, regime: str
) -> Json:
    name, parameters = _NAMES[manifest.method], manifest.parameters
    if isinstance(parameters, manifests.RestrainParameters):
        near = f"among the {found.k} nearest of a test query"
        far = f"outside the {parameters.exclude_top} nearest of every test query"
        how = f"Its training queries are {near if regime == 'interpolation' else far}."
    else:
        tests = {
            "interpolation": ", its test queries too",
            "extrapolation": ", its test queries those in it",
        }
        bucket = f"bucket {found.bucket} of {parameters.buckets}"
        how = f"Its training queries are those outside {bucket}{tests.get(regime, '')}."
    own_id = manifest.train.ir_datasets_id
    base_documentation: Any = (
        dict if own_id is None else getattr(_load_base(own_id), "documentation", dict)
    )
    return {
        "pretty_name": f"{base} ({name}, {found.label}, {regime})",
        "desc": (
            f"<p>{base}, resampled for {regime} by {name}. {how} Queries are compared by the cosine "
            f"of their embeddings by {manifest.encoder.name}.</p>"
        ),
        **_CITATION,
        "bibtex_ids": [*base_documentation().get("bibtex_ids", []), *_CITATION["bibtex_ids"]],
    }


# Documents that an iterator reads at a time.
_READ = 1_000


class _FolderDocs(BaseDocs):
    """The documents of a BEIR folder, memory-mapped; any number of threads may read them.

    Where ``content_hash`` is given, documents with another, as `Documents` has it, are an
    ``InputError``.
    """

    def __init__(self, folder: Path, content_hash: str | None = None) -> None:
        self._folder, self._content_hash = folder, content_hash
        self._documents: Callable[[], Documents] = Lazy(self._load)

    def docs_path(self, force: bool = True) -> Path:
        return FileSource.of_folder(str(self._folder), self._folder, "test").corpus

    def docs_iter(self) -> Iterator[Any]:
        return iter(self.docs_store())

    def docs_cls(self) -> type:
        return BeirTitleDoc  # type: ignore[no-any-return]

    def docs_count(self) -> int:
        return len(self._documents())

    def docs_store(
        self, field: str = "doc_id", options: Any = DEFAULT_DOCSTORE_OPTIONS
    ) -> Docstore:
        return _FolderDocstore(self._documents(), field, options)

    def _load(self) -> Documents:
        documents = load_collection(self._folder, labels="none").documents
        if self._content_hash not in (None, documents.content_hash):
            raise InputError(
                f"{self.docs_path()} holds other documents than when the collection was resampled; "
                "put them back, or resample again"
            )
        return documents


class _FolderQueries(BaseQueries):
    """The queries of a ``queries.jsonl``, plain or ``.gz``, or those of them whose ids ``wanted``
    gives when asked.
    """

    def __init__(self, path: Path, wanted: Callable[[], Container[str]] | None = None) -> None:
        self._path, self._wanted = path, wanted
        self.queries_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.queries_iter()))

    def queries_path(self) -> Path:
        return self._path

    def queries_iter(self) -> Iterator[Any]:
        wanted = None if self._wanted is None else self._wanted()
        for _, id, text in read_queries(self._path, StrictReport(str(self._path.parent))):
            if wanted is None or id in wanted:
                yield GenericQuery(id, text)


class _FolderQrels(BaseQrels):
    """The judgements of a ``qrels/SPLIT.tsv``, plain or ``.gz``; ``definitions`` are the meanings
    of the grades.
    """

    def __init__(self, path: Path, definitions: dict[int, str] | None = None) -> None:
        self._path, self._definitions = path, definitions or {}
        self.qrels_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.qrels_iter()))
        #: The ids of judged queries.
        self.judged: Callable[[], set[str]] = Lazy(
            lambda: {qrel.query_id for qrel in self.qrels_iter()}
        )

    def qrels_path(self) -> Path:
        return self._path

    def qrels_iter(self) -> Iterator[Any]:
        for _, query, document, grade in read_judgements(
            self._path, StrictReport(str(self._path.parents[1]))
        ):
            yield TrecQrel(query, document, grade, "0")

    def qrels_cls(self) -> type:
        return TrecQrel  # type: ignore[no-any-return]

    def qrels_defs(self) -> dict[int, str]:
        return self._definitions


class _FolderDocstore(Docstore):
    """Lookups by id, without a copy of the documents."""

    def __init__(self, documents: Documents, field: str, options: Any) -> None:
        if field != "doc_id":
            raise ValueError(f"documents of a folder are looked up by doc_id, not by {field}")
        super().__init__(BeirTitleDoc, field, options)
        self._documents = documents

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[Any]:
        rows = self._documents.rows(doc_ids)
        return map(_doc, self._documents.take(rows[rows >= 0]))

    def build(self) -> None:
        """Nothing to do: the documents are mapped."""

    def built(self) -> bool:
        return True

    def count(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Any]:
        return _DocsIter(self._documents, slice(0, len(self._documents), 1))


class _DocsIter:
    """An iterator over documents that can be indexed and sliced, as ir_datasets has them."""

    def __init__(self, documents: Documents, rows: slice) -> None:
        self._documents, self._rows = documents, rows
        self._read: deque[Any] = deque()

    def __iter__(self) -> "_DocsIter":
        return self

    def __next__(self) -> Any:
        start, stop, step = self._rows.start, self._rows.stop, self._rows.step or 1
        if not self._read:
            rows = range(start, stop, step)[:_READ]
            if not rows:
                raise StopIteration
            self._read.extend(map(_doc, self._documents.take(rows)))
        self._rows = slice(start + step, stop, step)
        return self._read.popleft()

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return _DocsIter(self._documents, apply_sub_slice(self._rows, key))
        if not isinstance(key, int):
            raise TypeError("key must be int or slice")
        try:
            return next(_DocsIter(self._documents, slice_idx(self._rows, key)))
        except StopIteration as error:
            raise IndexError(key) from error


def _doc(document: dict[str, str]) -> Any:
    return BeirTitleDoc(document["_id"], document["text"], document["title"])
