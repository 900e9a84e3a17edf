"""Fitting a hybrid encoder to a corpus: BM25's weights, made dense by truncated SVD, by feature
hashing or by both. How well each stands in for the exact fusion, by the overlap of their best ten
documents, needs no labels.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from beir_cocodr.arrays import Doubles, Floats, Ints, singular_axes, spaced_rows
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import gather, join_processes, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.io import check_output_free, draft_folder, json_sha256
from beir_cocodr.models.card import write_card
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder, HybridHead, covariance_root, hash_terms
from beir_cocodr.models.loading import fingerprint, load_encoder, model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions, FuseOptions
from beir_cocodr.provenance import (
    TrainingPlan,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.dense import StoreChoice, shared_embeddings
from beir_cocodr.retrieval.fusion import z_normalize
from beir_cocodr.retrieval.ranking import overlap
from beir_cocodr.retrieval.store.encode import collection_queries
from beir_cocodr.retrieval.store.store import EmbeddingStore

#: Numbers of the lexical part where no budget is given.
LEXICAL_NUMBERS = 1_024

#: Of what the SVD loses, noisy by hashing; in most sizes of 5 collections 0.5 found more of the
#: best ten than 1 or 0.25
HASHED_WEIGHT = 0.5

#: Of BM25, as in :class:`~beir_cocodr.retrieval.bm25.BM25`.
K1, B = 0.9, 0.4

# Documents at a time; different terms that are counted, as a multiple of those that are kept.
_CHUNK, _COUNTED = 4_096, 16

# Words of a crop; documents of a list that are compared; agreement that a smaller vector may lack.
_CROP, _DEPTH, _AS_GOOD = (4, 16), 10, 0.01
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TermCounts:
    """What BM25 knows of a corpus.

    Attributes:
        frequencies: documents that a term stands in, of the most frequent terms, most frequent
            first.
        documents: N.
        mean_length: in terms.
        left_out: different terms beyond ``frequencies``.
        left_out_share: of all occurrences of terms.

    Under ``torchrun`` each process counts its share of the documents, and all know the sums.
    """

    frequencies: dict[str, int]
    documents: int
    mean_length: float
    left_out: int
    left_out_share: float

    @classmethod
    def of(cls, texts: Iterator[str], analyze: Analyzer, most: int) -> "TermCounts":
        """Count in one pass the texts of a corpus, or of this process's share; ``most`` terms are
        kept. Of a corpus of very many terms those seen once are forgotten now and then.
        """
        own = _Tally()
        for text in texts:
            own.add(analyze(text), _COUNTED * most)
        first, *others = gather(own)
        for other in others:
            first.merge(other)
        found = first.found
        kept = sorted(found, key=lambda term: (-found[term], term))[:most]
        if not kept:
            raise InputError(
                "no document has a term that BM25 could find; there is nothing to fuse"
            )
        known = sum(first.occurrences[term] for term in kept)
        left_out = len(found) - len(kept) + first.forgotten
        frequencies = {term: found[term] for term in kept}
        return cls(
            frequencies,
            first.documents,
            first.length / first.documents,
            left_out,
            1 - known / first.terms,
        )

    @property
    def idf(self) -> Doubles:
        """(T,) as Lucene has it."""
        frequencies = np.array(list(self.frequencies.values()), float)
        idf: Doubles = np.log1p((self.documents - frequencies + 0.5) / (frequencies + 0.5))
        return idf


@dataclass
class _Tally:
    """Of some documents: in how many each term stands, and how often; how many documents and terms
    there are.
    """

    found: Counter[str] = field(default_factory=Counter)
    occurrences: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    length: int = 0
    terms: int = 0
    forgotten: int = 0
    limit: int = 0

    def add(self, terms: list[str], most: int) -> None:
        self.documents, self.terms = self.documents + 1, self.terms + len(terms)
        self.length += max(1, len(terms))
        self.found.update(set(terms))
        self.occurrences.update(terms)
        if len(self.found) > max(most, self.limit):
            once = [term for term, number in self.found.items() if number == 1]
            self.forgotten += len(once)
            for term in once:
                del self.found[term], self.occurrences[term]
            self.limit = 2 * len(
                self.found
            )  # else all are looked at again for every document, where few stood once

    def merge(self, other: "_Tally") -> None:
        for name, number in vars(other).items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(number)
            else:
                setattr(self, name, mine + number)


@dataclass(frozen=True)
class DenseBM25:
    """A way to make BM25 dense, and its agreement: the mean share of the exact fusion's best ten
    that it finds.
    """

    components: int
    hashed: int
    hashed_weight: float = 1.0
    agreement: float = float("nan")

    @property
    def numbers(self) -> int:
        return self.components + self.hashed

    @property
    def kind(self) -> str:
        return "+".join(
            name for name, size in (("svd", self.components), ("hash", self.hashed)) if size
        )


def fuse(
    dataset: str,
    model: str,
    output: str | Path,
    options: FuseOptions = FuseOptions(),
    encoder: EncoderOptions = EncoderOptions(),
    stores: Sequence[str | Path] = (),
    resume: bool = False,
) -> TrainingRecord:
    """Make a hybrid encoder of a dense encoder and a corpus, and return the training.json that is
    saved with it. An InputError: the model is an MRL or a hybrid encoder, the budget leaves no room
    for BM25, or ``output`` is taken.

    Needs no labels and no GPU. The corpus is read once for BM25's counts, which the processes of
    ``torchrun`` share; documents of a sample are encoded, or read from a store of the dense
    encoder.

    Args:
        dataset: the corpus; its queries, if it has some, take part in the choice of the lexical
            part, its labels never.
        model: the dense encoder.
        output: folder of the hybrid encoder, to be made.
        options: see :class:`~beir_cocodr.models.spec.FuseOptions`.
        encoder: how the dense encoder is loaded.
        stores: folders that ``encode`` wrote with the dense encoder for this corpus.
        resume: keep a hybrid encoder that is there and was made in the same way.

    Example:
        >>> from tempfile import mkdtemp
        >>> from beir_cocodr import FuseOptions, HybridEncoder, fuse
        >>> folder = f"{mkdtemp()}/pandas"
        >>> record = fuse("apidocs/pandas", "minilm", folder, FuseOptions(sample=16, probes=4))
        >>> HybridEncoder(folder).encode_query(["sort an array"]).shape[1] == 384 + record.details["numbers"]
        True
    """
    join_processes(encoder.device)
    output, began = Path(output), time.perf_counter()
    before = read_record(output) if resume else None
    if before is None:
        check_output_free(output)
    collection, queries = load_collection(dataset, labels="none"), collection_queries(dataset)
    dense = load_encoder(model, encoder)
    if isinstance(dense, MRL | HybridEncoder):
        raise InputError(
            f"model {model!r} is a {type(dense).__name__}; fuse takes a plain dense encoder"
        )
    plan = _plan(model, dense, encoder, options, collection_provenance(collection, queries=False))
    if before is not None:
        if changed := plan.changes(before):
            raise InputError(
                f"{output} was fused with other {', '.join(changed)}; choose another --output"
            )
        return before
    width = int(dense.get_embedding_dimension() or 0)
    most = (
        LEXICAL_NUMBERS
        if options.bytes_per_document is None
        else options.bytes_per_document // 2 - width
    )
    if most < 1:
        raise InputError(
            f"bytes_per_document {options.bytes_per_document}: no room for BM25 beside {width} numbers"
        )
    stored(
        dense, collection.documents, stores
    )  # a wrong one is named before a large corpus is read
    counts = count_terms(collection.documents, dense.text_format, options)

    def made() -> TrainingRecord:
        fit = Fit(dense, collection.documents, counts, options, stores)
        found = fit.agreements(fit.candidates(most), queries)
        hybrid = HybridEncoder(
            model_source(model), head=fit.head(smallest_as_good(found)), **encoder.overrides()
        )
        return _save(hybrid, fit, found, plan, began, output)

    return on_main(made)


def _save(
    hybrid: HybridEncoder,
    fit: "Fit",
    found: Sequence[DenseBM25],
    plan: TrainingPlan,
    began: float,
    output: Path,
) -> TrainingRecord:
    head, chosen, width = hybrid.head, smallest_as_good(found), hybrid.head.dimension
    details: Json = {
        "kind": chosen.kind,
        "numbers": chosen.numbers,
        "agreement": chosen.agreement,
        "candidates": [{"kind": one.kind, **asdict(one)} for one in found],
        "terms": len(fit.counts.frequencies),
        "terms_left_out": fit.counts.left_out,
        "unknown_share": fit.counts.left_out_share,
        "fitted_on": len(fit.rows),
        "bytes_per_document": {
            name: size * (width + chosen.numbers) for name, size in _SIZES.items()
        },
        "projection_bytes": 4 * head.projection.numel(),
    }
    record = TrainingRecord(
        **vars(plan),
        processes=world_size() if world_size() > 1 else None,
        seconds=round(time.perf_counter() - began, 1),
        details=details,
        versions=versions(),
        parent=read_record(model_source(str(plan.base))),
    )
    with draft_folder(output) as draft:
        hybrid.save_pretrained(str(draft), create_model_card=False)
        write_card(draft, record)
        write_record(draft, record)
    return record


def smallest_as_good(found: Sequence[DenseBM25]) -> DenseBM25:
    """The fewest numbers that agree as well as any, or nearly so."""
    least = max(one.agreement for one in found) - _AS_GOOD
    return min(
        (one for one in found if one.agreement >= least),
        key=lambda one: (one.numbers, -one.agreement),
    )


_SIZES = {"fp32": 4, "fp16": 2, "int8": 1}


def _plan(
    model: str, dense: COCODR, encoder: EncoderOptions, options: FuseOptions, seen: object
) -> TrainingPlan:
    parts = fingerprint(dense)
    weights = parts.pop("weights")
    parts["text_format"] = json_sha256([dense.text_format.as_dict(), dense.similarity_fn_name])
    seen_by: tuple[object, ...] = (seen,)
    return TrainingPlan(
        "fuse", model, weights, encoder.describe(), asdict(options), seen_by, base_parts=parts
    )  # type: ignore[arg-type]


def count_terms(documents: Documents, form: TextFormat, options: FuseOptions) -> TermCounts:
    """BM25's counts over the whole corpus, as the encoder's format joins its texts."""
    share = -(-len(documents) // world_size())
    rows = range(rank() * share, min((rank() + 1) * share, len(documents)))
    parts = (np.arange(start, min(start + _CHUNK, rows.stop)) for start in rows[::_CHUNK])
    texts = (form.document(document) for part in parts for document in documents.take(part))
    return TermCounts.of(texts, Analyzer(options.analyzer), options.max_terms)


def stored(
    dense: COCODR, documents: Documents, stores: Sequence[str | Path]
) -> EmbeddingStore | None:
    """The store that an encoder wrote, or None without any; an InputError for one that is
    another's.
    """
    choice = StoreChoice(stores, documents)
    found = choice.of(dense) if stores else None
    choice.check_used()
    return found


class Fit:
    """What candidates share: the sample's weights and dense vectors, one SVD. ``counts`` are of the
    corpus, see :func:`count_terms`, and ``stores`` of the encoder.
    """

    def __init__(
        self,
        dense: COCODR,
        documents: Documents,
        counts: TermCounts,
        options: FuseOptions,
        stores: Sequence[str | Path] = (),
    ) -> None:
        self.dense, self.counts, self.options = dense, counts, options
        held = stored(dense, documents, stores) or shared_embeddings(dense, documents)
        self.rows = spaced_rows(len(documents), options.sample)
        self.texts = [
            dense.text_format.document(document) for document in documents.take(self.rows)
        ]
        self.plain = self._head(DenseBM25(0, 0))
        self.features = _features(self.plain, self.texts, "document")
        self.weights = term_matrix(self.plain, self.features, "document")  # (n, T)
        encoder = CorpusEncoder(dense, documents)
        self.vectors: Floats = (
            encoder.encode(self.rows) if held is None else held.rows(self.rows).numpy()
        )
        self._svd: Floats | None = None

    def svd(self, components: int) -> Floats:
        """(T, r) right singular vectors of the weights, largest first; made once, at least as wide
        as asked.
        """
        if self._svd is None or self._svd.shape[1] < components:
            self._svd = singular_axes(self.weights, components, self.options.seed)
        return self._svd[:, :components]

    def candidates(self, most: int) -> list[DenseBM25]:
        """What the options allow within ``most`` numbers."""
        rank = min(self.weights.shape)
        full, auto = min(most, rank), self.options.lexical == "auto"
        fewer = {max(1, full // 4), max(1, full // 2)} if auto else set()
        sizes = {
            "svd": [DenseBM25(size, 0) for size in sorted({*fewer, full})],
            "hash": [DenseBM25(0, most)],
            "svd+hash": [
                DenseBM25(size, most - size, HASHED_WEIGHT)
                for size in (most // 2, most * 3 // 4)
                if 1 < size < rank
            ],
        }
        wanted = ("svd", "hash", "svd+hash") if auto else (self.options.lexical,)
        found = [one for kind in wanted for one in sizes[kind]]
        if not found:  # svd+hash, and nothing that svd could lose
            log.warning(
                "truncated SVD holds all of BM25's %d dimensions: nothing is left to hash", rank
            )
            found = sizes["svd"]
        return found

    def agreements(self, found: Sequence[DenseBM25], queries: Sequence[str]) -> list[DenseBM25]:
        """Candidates, each with its agreement on crops and on some of the given queries."""
        if widest := max(one.components for one in found):
            self.svd(widest)
        probes = [
            *self.crops(),
            *(queries[row] for row in spaced_rows(len(queries), self.options.probes)),
        ]
        dense = z_normalize(self.dense.query_vectors(probes).numpy() @ self.vectors.T)
        asked = _features(self.plain, probes, "query")
        counts = term_matrix(self.plain, asked, "query")
        exact = self._best(dense, (counts @ self.weights.T).toarray())
        results = []
        for one in found:
            head = self._projected(one)
            lexical = _lexical(head, asked, "query") @ _lexical(head, self.features, "document").T
            shares = overlap(self._best(dense, lexical), exact, _DEPTH)
            results.append(replace(one, agreement=round(float(shares.mean()), 4)))
            sizes = f"{one.components}+{one.hashed}"
            log.info("%s, %s numbers: agreement %.3f", one.kind, sizes, results[-1].agreement)
        return results

    def crops(self) -> list[str]:
        """A few words in a row of documents here and there."""
        rng = np.random.default_rng(self.options.seed)
        found = []
        for row in spaced_rows(len(self.texts), self.options.probes):
            words = self.texts[row].split()
            length = int(rng.integers(*_CROP))
            start = int(rng.integers(0, max(1, len(words) - length + 1)))
            found.append(" ".join(words[start : start + length]))
        return [text for text in found if text] or ["a"]

    def head(self, chosen: DenseBM25) -> HybridHead:
        """The whole head: projection, means, covariances, and a scale that makes the parts' numbers
        alike.
        """
        head = self._projected(chosen)
        lexical = _lexical(head, self.features, "document")
        mean = lexical.mean(axis=0, dtype=np.float64)
        head.mean.copy_(torch.from_numpy(mean))
        deviation = float(np.sqrt(np.square(lexical - mean).mean(dtype=np.float64)))
        size = float(np.sqrt(np.square(self.vectors).mean(dtype=np.float64)))
        head.scale.fill_(size / deviation if deviation else 1.0)
        head.dense_spread.copy_(torch.from_numpy(spread(self.vectors)))
        head.lexical_spread.copy_(torch.from_numpy(spread(lexical)))
        return head

    def _best(self, dense: Doubles, lexical: Floats) -> Ints:
        """(Q, 10) rows of the fusion's best."""
        fused = dense + self.options.bm25_weight * z_normalize(lexical)
        depth = min(_DEPTH, fused.shape[1])
        best: Ints = np.argpartition(-fused, depth - 1, axis=1)[:, :depth]
        return best

    def _projected(self, one: DenseBM25) -> HybridHead:
        head = self._head(one)
        if one.components:
            head.projection.copy_(torch.from_numpy(self.svd(one.components).copy()))
        if one.components and one.hashed:
            buckets, signs = hash_terms(list(self.counts.frequencies), one.hashed)
            lost = torch.zeros(one.hashed, one.components)
            head.hashed_projection.copy_(
                lost.index_add_(0, buckets, head.projection * signs[:, None]).T
            )
        return head

    def _head(self, one: DenseBM25) -> HybridHead:
        options, terms = self.options, list(self.counts.frequencies)
        head = HybridHead(
            dimension=int(self.dense.get_embedding_dimension() or 0),
            terms=len(terms),
            components=one.components,
            hashed=one.hashed,
            hashed_weight=one.hashed_weight,
            normalize=self.dense.similarity_fn_name == "cosine",
            analyzer=options.analyzer,
            k1=K1,
            b=B,
            mean_length=self.counts.mean_length,
            bm25_weight=options.bm25_weight,
            weight_by_length=options.weight_by_length,
        )
        head.analysis = head.analysis_of(terms)
        head.set_vocabulary(terms)
        head.idf.copy_(torch.from_numpy(self.counts.idf))
        head.scale.fill_(1.0)
        return head


Features = list[dict[str, torch.Tensor]]


def _features(head: HybridHead, texts: Sequence[str], task: str) -> Features:
    """Of (n,) texts, some at a time; they are the same for every head of one vocabulary."""
    return [
        head.features(texts[start : start + _CHUNK], task) for start in range(0, len(texts), _CHUNK)
    ]


def term_matrix(head: HybridHead, features: Features, task: str) -> sp.csr_matrix:
    """(n, T) float32: BM25's weights of documents' terms, or how often terms stand in queries."""
    parts = []
    for found in features:
        numbers, weights = found["terms"].numpy(), found["term_weights"].numpy()
        if task == "document":
            weights = weights * head.idf.numpy()[numbers]
        starts = np.append(found["term_starts"].numpy(), len(numbers))
        parts.append(
            sp.csr_matrix(
                (weights, numbers, starts), shape=(len(starts) - 1, head.terms), dtype=np.float32
            )
        )
    return sp.vstack(parts, format="csr")


def _lexical(head: HybridHead, features: Features, task: str) -> Floats:
    """(n, r + hashed), see :meth:`HybridHead.lexical`."""
    return np.asarray(torch.cat([head.lexical(found, task) for found in features]))


def spread(vectors: Floats) -> Doubles:
    """(n, m) vectors to a symmetric (m, m) S with S S their covariance, over n and in float64."""
    covariance = np.cov(vectors, rowvar=False, bias=True, dtype=np.float64).reshape(
        vectors.shape[1], -1
    )
    return covariance_root(covariance)
