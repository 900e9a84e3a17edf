"""Predictors of query performance before retrieval, from the corpus alone.

A predictor takes the statistics of a corpus and the (m,) columns of a query's known terms, as often
as the query has them. It returns one number, NaN where it is not defined. Only SCS depends on how
often a term is repeated.

Source: MRL, Table 6; Hauff, Predicting the Effectiveness of Queries and Retrieval Systems, 2010,
chapter 2.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import rel_entr
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.mixture import GaussianMixture

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.temporary import TemporaryFolder

_NEEDS_WORD_VECTORS = "needs word vectors: --word-vectors trains them"

#: Predictors of Table 6 that take long, and how to compute them.
LEFT_OUT = {"MaxDC": _NEEDS_WORD_VECTORS, "P_clarity": _NEEDS_WORD_VECTORS}

#: Documents that are analysed, and terms whose clusters are predicted, at a time.
_CHUNK = 10_000


class TermStatistics:
    """Document and collection frequencies and postings of a corpus, with the analysis of BM25.

    The postings are in memory: 8 bytes each, and 20 while they are put together.

    Args:
        documents: the corpus, which is streamed.
        text_format: joins titles and texts; prompts and lengths have no effect.
        analyzer: see :class:`~beir_cocodr.data.analyzers.Analyzer`.

    Attributes:
        documents: N, the number of documents, empty ones included.
        postings: (N, V) int32 sparse term frequencies tf, column by column.
        df: (V,) the number of documents that have a term.
        cf: (V,) how often a term occurs in the collection.
        length: the number of terms of the collection, Σ cf.

    Raises:
        InputError: The analyzer is unknown.
    """

    def __init__(
        self,
        documents: Documents,
        text_format: TextFormat | None = None,
        analyzer: str = "english",
    ) -> None:
        """Count the terms of the corpus."""
        self._analyze = Analyzer(analyzer)
        texts = _texts(documents, text_format or TextFormat())
        counter: Any = CountVectorizer(analyzer=self._analyze, dtype=np.int32)
        counts = sparse.csr_array((len(documents), 0), dtype=np.int32)
        self._columns: dict[str, int] = {}
        try:
            counts = counter.fit_transform(texts)
            self._columns = counter.vocabulary_
        except ValueError as error:
            # The host refuses a corpus without terms.
            if "empty vocabulary" not in str(error):
                raise
        self.postings = sparse.csc_array(counts)
        self.documents = len(documents)
        self.df: Ints = np.diff(self.postings.indptr).astype(np.int64)
        self.cf: Ints = np.asarray(self.postings.sum(axis=0, dtype=np.int64)).ravel()
        self.length = int(self.cf.sum())

    def terms(self, query: str) -> tuple[Ints, int]:
        """Analyse a query as the corpus was analysed.

        Returns:
            The (m,) columns of the terms that the corpus has, in the order of the query and as
            often as it has them; and the number of terms that the corpus does not have.
        """
        terms = self._analyze(query)
        known = [self._columns[term] for term in terms if term in self._columns]
        return np.array(known, np.int64), len(terms) - len(known)

    def frequencies(self, column: int) -> npt.NDArray[np.int32]:
        """Return the (df,) term frequencies of one term over its postings."""
        start, end = self.postings.indptr[column : column + 2]
        return self.postings.data[start:end]  # type: ignore[no-any-return]

    def weights(self, terms: Ints) -> Doubles:
        """Return ln(1 + N / df) of (m,) terms."""
        return np.log(1 + self.documents / self.df[terms])


def _texts(documents: Documents, text_format: TextFormat) -> Iterator[str]:
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            yield text_format.document(document)


def avg_idf(statistics: TermStatistics, terms: Ints) -> float:
    """Compute AvgIDF, the mean of ln(N / df) over the query's distinct terms.

    Source: Cronen-Townsend et al., 2002; Hauff, 2010.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    idf = np.log(statistics.documents / statistics.df[terms])
    return float(idf.mean())


def max_scq(statistics: TermStatistics, terms: Ints) -> float:
    """Compute MaxSCQ, the largest (1 + ln cf) · ln(1 + N / df) of the query's terms.

    It says how similar the collection is to the query.

    Source: Zhao, Scholer and Tsegay, Effective Pre-retrieval Query Performance Prediction Using
    Similarity and Variability Evidence, 2008, section 3.1.
    """
    if not len(terms):
        return np.nan
    occurrences = 1 + np.log(statistics.cf[terms])
    return float((occurrences * statistics.weights(terms)).max())


def max_var(statistics: TermStatistics, terms: Ints) -> float:
    """Compute MaxVAR, the largest deviation over postings of w = (1 + ln tf) · ln(1 + N / df).

    It is the population's standard deviation (a division by df), 0 for a term of one document.

    Source: Zhao, Scholer and Tsegay, 2008, section 3.2.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    deviations = np.array([np.log(statistics.frequencies(term)).std() for term in terms])
    return float((deviations * statistics.weights(terms)).max())


def scs(statistics: TermStatistics, terms: Ints) -> float:
    """Compute SCS, the simplified clarity score Σ p_q log2(p_q / p_C) of query against collection.

    p_q is a term's share of the query's known terms, p_C = cf / Σ cf its share of the collection.

    Source: He and Ounis, Inferring Query Performance Using Pre-retrieval Predictors, 2004, section
    2.4.
    """
    if not len(terms):
        return np.nan
    distinct, counts = np.unique(terms, return_counts=True)
    share = counts / len(terms)
    ratio = share * statistics.length / statistics.cf[distinct]
    return float((share * np.log2(ratio)).sum())


def max_pmi(statistics: TermStatistics, terms: Ints) -> float:
    """Compute MaxPMI, the largest log2(p(a, b) / (p(a) p(b))) over pairs of different terms.

    p is a share of documents. It is not defined if no document has two of the query's terms.

    Source: Hauff, 2010; PMI of Church and Hanks, Word Association Norms, Mutual Information, and
    Lexicography, 1990.
    """
    terms = np.unique(terms)
    if len(terms) < 2:
        return np.nan
    has_term = (statistics.postings[:, terms] > 0).astype(np.int64)  # (N, m)
    common = (has_term.T @ has_term).toarray()  # (m, m)
    first, second = np.triu_indices(len(terms), k=1)
    together = common[first, second]
    occurs = together > 0
    if not occurs.any():
        return np.nan
    df = statistics.df[terms]
    expected = df[first[occurs]] * df[second[occurs]]
    lift = statistics.documents * together[occurs] / expected
    return float(np.log2(lift).max())


@dataclass(frozen=True)
class Predictor:
    """A predictor of query performance with its facts: a row of :data:`PREDICTORS`.

    Args:
        compute: Returns the value of a query from the statistics of the corpus and the (m,) columns
            of the query's known terms, NaN where it is not defined.
        help: What it measures, in a few words for the documentation.
        citation: A BibTeX key of ``models/papers.bib``, a BibTeX entry, or "" for none.
    """

    compute: Callable[[TermStatistics, Ints], float]
    help: str
    citation: str = ""


#: The predictors by name. Add a row of your own from a script.
PREDICTORS: dict[str, Predictor] = {
    "AvgIDF": Predictor(
        avg_idf,
        help="the mean rarity of the query's terms",
        citation="cronentownsend2002clarity",
    ),
    "MaxSCQ": Predictor(
        max_scq,
        help="the largest similarity of a term to the collection",
        citation="zhao2008qpp",
    ),
    "MaxVAR": Predictor(
        max_var,
        help="the largest deviation of a term's weight over its documents",
        citation="zhao2008qpp",
    ),
    "SCS": Predictor(
        scs,
        help="the divergence of the query's terms from the collection",
        citation="he2004predictors",
    ),
    "MaxPMI": Predictor(
        max_pmi,
        help="the largest mutual information of two terms of the query",
        citation="hauff2010predicting",
    ),
}


@dataclass(frozen=True)
class WordVectors:
    """Vectors of the terms of a corpus, trained on it by gensim's word2vec.

    They have 100 dimensions, from 5 epochs of CBOW with windows of 5 terms and negative sampling.
    Terms need 5 occurrences. Training uses one thread, so that a seed gives one result.

    Attributes:
        rows: term to its row; the most frequent come first.
        vectors: (V, 100) float32 of length 1.
        shares: (V,) of the occurrences of all these terms.
    """

    rows: dict[str, int]
    vectors: Floats
    shares: Doubles

    @classmethod
    def train(
        cls,
        documents: Documents,
        text_format: TextFormat,
        analyzer: str = "english",
        seed: int = 42,
    ) -> Self:
        """Train word vectors on terms read as by :class:`TermStatistics`.

        The terms are read once and wait on the disk.

        Raises:
            InputError: gensim is not installed, or no term occurs often enough.
        """
        with explained(
            "word vectors need gensim", "pip install 'beir-cocodr[word-vectors]'", ImportError
        ):
            from gensim.models import Word2Vec
        analyze = Analyzer(analyzer)
        model = Word2Vec(workers=1, seed=seed)
        with TemporaryFolder() as folder:
            path = folder / "terms.txt"
            with path.open("w", encoding="utf-8") as file:
                for text in _texts(documents, text_format):
                    file.write(" ".join(analyze(text)) + "\n")
            model.build_vocab(corpus_file=str(path))
            if not len(model.wv):
                raise InputError(
                    "no term occurs 5 times in the corpus, so none has a word vector; leave out "
                    "--word-vectors"
                )
            model.train(
                corpus_file=str(path),
                total_examples=model.corpus_count,
                total_words=model.corpus_total_words,
                epochs=model.epochs,
            )
        counts = [model.wv.get_vecattr(term, "count") for term in model.wv.index_to_key]
        occurrences = np.array(counts, np.float64)
        vectors = model.wv.get_normed_vectors()
        return cls(
            dict(model.wv.key_to_index),
            vectors,
            occurrences / occurrences.sum(),
        )

    def of(self, terms: Iterable[str]) -> Ints:
        """Return the (m,) rows of the different terms that have a vector."""
        rows = {self.rows[term] for term in terms if term in self.rows}
        return np.array(sorted(rows), np.int64)

    def max_dc(self, terms: Ints, alpha: float = 0.7) -> float:
        """Compute MaxDC, the largest degree of the ego networks of (m,) terms.

        A term's ego is linked to all terms whose cosine is at least ``alpha`` times that of its
        nearest. The value of ``alpha`` is our choice.

        Source: Arabzadeh et al., Neural Embedding-Based Metrics for Pre-retrieval Query Performance
        Prediction, 2020, as MRL describes it in section 6.
        """
        if not len(terms) or len(self.vectors) < 2:
            return np.nan
        cosines = self.vectors[terms] @ self.vectors.T
        cosines[np.arange(len(terms)), terms] = -np.inf  # of a term with itself
        nearest = cosines.max(axis=1, keepdims=True)
        degrees = (cosines >= alpha * nearest).sum(axis=1)
        return float(degrees.max())

    def mixture(
        self,
        clusters: int = 100,
        most: int = 50_000,
        seed: int = 42,
    ) -> GaussianMixture:
        """Fit soft clusters of the ``most`` frequent terms.

        They are Gaussians of diagonal covariance, at most one for ten terms.
        """
        frequent = self.vectors[:most].astype(np.float64)
        count = max(1, min(clusters, len(frequent) // 10))
        mixture = GaussianMixture(count, covariance_type="diag", random_state=seed)
        return mixture.fit(frequent)

    def p_clarity(
        self,
        terms: Ints,
        mixture: GaussianMixture,
        collection: Doubles,
    ) -> float:
        """Compute P_clarity, Σ_k P(k|q) log2(P(k|q) / P(k|C)) over the clusters of a mixture.

        P(k|q) is the mean over the query's terms of the probability that a cluster generated it.

        Args:
            terms: (m,) rows of the query's terms.
            mixture: of :meth:`mixture`.
            collection: (K,) P(k|C), of :meth:`generated`.

        Source: the clarity of Cronen-Townsend et al., 2002, by clusters in place of terms: our
        reading of what MRL says in section 6 of Roy et al., Estimating Gaussian Mixture Models in
        the Local Neighbourhood of Embedded Word Vectors for Query Performance Prediction, 2019.
        """
        if not len(terms):
            return np.nan
        probabilities = mixture.predict_proba(self.vectors[terms].astype(np.float64))
        query = probabilities.mean(axis=0)
        return float(rel_entr(query, collection).sum() / np.log(2))

    def generated(self, mixture: GaussianMixture) -> Doubles:
        """Return (K,) P(k|C), the share of the collection's terms that each cluster generated."""
        shares = np.zeros(mixture.n_components)
        for first in range(0, len(self.vectors), _CHUNK):
            part = slice(first, first + _CHUNK)
            probabilities = mixture.predict_proba(self.vectors[part].astype(np.float64))
            shares += self.shares[part] @ probabilities
        return shares


def word_vector_predictors(
    dataset: Dataset,
    split: str = "test",
    text_format: TextFormat | None = None,
    analyzer: str = "english",
    seed: int = 42,
) -> dict[str, dict[str, float]]:
    """Compute MaxDC and P_clarity by query id, with :class:`WordVectors` of the corpus.

    They are NaN for queries without a term that has a vector.

    Args:
        dataset: the collection, as for :func:`~beir_cocodr.data.collection.load_collection`.
        split: of the queries.
        text_format: as for :class:`TermStatistics`.
        analyzer: as for :class:`TermStatistics`.
        seed: of word vectors and clusters.

    Raises:
        InputError: The collection cannot be loaded; and as for :meth:`WordVectors.train`.
    """
    collection = load_collection(dataset, split, labels="optional")
    words = WordVectors.train(collection.documents, text_format or TextFormat(), analyzer, seed)
    analyze = Analyzer(analyzer)
    mixture = words.mixture(seed=seed)
    shares = words.generated(mixture)
    max_dc = {}
    p_clarity = {}
    for query, text in collection.queries.items():
        terms = words.of(analyze(text))
        max_dc[query] = words.max_dc(terms)
        p_clarity[query] = words.p_clarity(terms, mixture, shares)
    return {"MaxDC": max_dc, "P_clarity": p_clarity}


def variance_predictors(
    model: Model,
    dataset: Dataset,
    split: str = "test",
    encoder: EncoderOptions = EncoderOptions(),
) -> dict[str, dict[str, float]]:
    """Compute ‖σ_q²‖₂ and Σ log σ_q² by query id, with the variances of an MRL.

    Args:
        model: the folder of an MRL, or a loaded one; other models have no such predictors.
        dataset: the collection, as for :func:`~beir_cocodr.data.collection.load_collection`.
        split: of the queries.
        encoder: how the model is loaded.

    Returns:
        Predictor to query id to value; nothing for other models.

    Source: MRL, section 4.4 and Table 6.
    """
    if isinstance(model, str | Path) and not Path(model).is_dir():
        return {}
    # Imported here because BM25's queries must not wait six seconds for torch.
    from beir_cocodr.models.checkpoints.loading import load_encoder
    from beir_cocodr.models.mrl import MRL

    mrl = load_encoder(resolve_model(model, argument="model"), encoder)
    if not isinstance(mrl, MRL):
        return {}
    queries = load_collection(dataset, split).queries
    _, variance = mrl.encode_distribution(list(queries.values()), "query")
    variances = variance.double().cpu()  # (Q, d)
    lengths = variances.norm(dim=1).tolist()
    log_sums = variances.log().sum(dim=1).tolist()
    return {
        "‖σ²‖": dict(zip(queries, lengths, strict=True)),
        "Σ log σ²": dict(zip(queries, log_sums, strict=True)),
    }
