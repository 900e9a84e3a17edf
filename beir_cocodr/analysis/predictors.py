"""Pre-retrieval query performance predictors: how well a query will do, from the corpus alone.

A predictor takes the statistics of a corpus and the (m,) columns of a query's known terms, as often
as they stand in the query, and gives one number, NaN where it is not defined. Repetition of a term
counts in SCS only.

Source: MRL, Table 6; Hauff, Predicting the Effectiveness of Queries and Retrieval Systems, 2010,
chapter 2.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import rel_entr
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.mixture import GaussianMixture

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.spec import EncoderOptions

#: Predictors of Table 6 that take long, and how to have them.
LEFT_OUT = dict.fromkeys(("MaxDC", "P_clarity"), "needs word vectors: --word-vectors trains them")


class TermStatistics:
    """Document and collection frequencies and postings of a corpus, by the analysis of our BM25.

    The postings are held in memory, 8 bytes each, 20 while they are put together.

    Args:
        documents: the corpus; it is streamed.
        text_format: joins titles and texts; prompts and lengths play no part.
        analyzer: see :class:`~beir_cocodr.data.analyzers.Analyzer`; an InputError where it is
            unknown.

    Attributes:
        documents: N, how many documents there are, empty ones included.
        postings: (N, V) int32 sparse term frequencies tf, column by column.
        df, cf: (V,) int64, in how many documents a term stands, and how often in the collection.
        length: terms of the collection, Σ cf.
    """

    def __init__(
        self, documents: Documents, text_format: TextFormat | None = None, analyzer: str = "english"
    ) -> None:
        self._read, text = Analyzer(analyzer), (text_format or TextFormat()).document
        counter: Any = CountVectorizer(analyzer=self._read, dtype=np.int32)
        counts, self._columns = (
            sparse.csr_array((len(documents), 0), dtype=np.int32),
            dict[str, int](),
        )
        try:
            counts = counter.fit_transform(
                text(document) for chunk in documents.chunks(10_000) for document in chunk
            )
            self._columns = counter.vocabulary_
        except ValueError as error:
            if "empty vocabulary" not in str(error):  # a corpus without terms is none to the host
                raise
        self.postings = sparse.csc_array(counts)
        self.documents = len(documents)
        self.df: Ints = np.diff(self.postings.indptr).astype(np.int64)
        self.cf: Ints = np.asarray(self.postings.sum(axis=0, dtype=np.int64)).ravel()
        self.length = int(self.cf.sum())

    def terms(self, query: str) -> tuple[Ints, int]:
        """Of a query, stop words gone, stemmed as the corpus is: (m,) columns of the terms that the
        corpus has, in order, as often as they stand there, and how many words it does not have.
        """
        terms = self._read(query)
        known = [self._columns[term] for term in terms if term in self._columns]
        return np.array(known, np.int64), len(terms) - len(known)

    def frequencies(self, column: int) -> npt.NDArray[np.int32]:
        """(df,) term frequencies of one term over its postings."""
        start, end = self.postings.indptr[column : column + 2]
        return self.postings.data[start:end]  # type: ignore[no-any-return]


def avg_idf(statistics: TermStatistics, terms: Ints) -> float:
    """AvgIDF: mean of ln(N / df) over the query's distinct terms. Source: Cronen-Townsend et al.,
    2002; Hauff, 2010.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    return float(np.log(statistics.documents / statistics.df[terms]).mean())


def max_scq(statistics: TermStatistics, terms: Ints) -> float:
    """MaxSCQ: the largest (1 + ln cf) · ln(1 + N / df), how much of the collection is like the
    query.

    Source: Zhao, Scholer and Tsegay, Effective Pre-retrieval Query Performance Prediction Using
    Similarity and Variability Evidence, 2008, section 3.1.
    """
    if not len(terms):
        return np.nan
    return float(((1 + np.log(statistics.cf[terms])) * _weight(statistics, terms)).max())


def max_var(statistics: TermStatistics, terms: Ints) -> float:
    """MaxVAR: the largest standard deviation over postings of w = (1 + ln tf) · ln(1 + N / df); the
    population's (a division by df), 0 for a term of one document. Source: Zhao, Scholer and Tsegay,
    2008, section 3.2.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    deviations = np.array([np.log(statistics.frequencies(term)).std() for term in terms])
    return float((deviations * _weight(statistics, terms)).max())


def scs(statistics: TermStatistics, terms: Ints) -> float:
    """SCS, the simplified clarity score: Σ p_q log2(p_q / p_C), the query against the collection;
    p_q is a term's share of the query's known terms, p_C = cf / Σ cf its share of the collection.

    Source: He and Ounis, Inferring Query Performance Using Pre-retrieval Predictors, 2004, section
    2.4.
    """
    if not len(terms):
        return np.nan
    different, counts = np.unique(terms, return_counts=True)
    share = counts / len(terms)
    return float((share * np.log2(share * statistics.length / statistics.cf[different])).sum())


def max_pmi(statistics: TermStatistics, terms: Ints) -> float:
    """MaxPMI: the largest log2(p(a, b) / (p(a) p(b))) over pairs of different terms, p over
    documents; not defined where no document holds two of the query's terms.

    Source: Hauff, 2010; PMI of Church and Hanks, Word Association Norms, Mutual Information, and
    Lexicography, 1990.
    """
    terms = np.unique(terms)
    if len(terms) < 2:
        return np.nan
    holds = (statistics.postings[:, terms] > 0).astype(np.int64)  # (N, m)
    together = (holds.T @ holds).toarray()  # (m, m)
    first, second = np.triu_indices(len(terms), k=1)
    first, second = (side[together[first, second] > 0] for side in (first, second))
    if not len(first):
        return np.nan
    df = statistics.df[terms]
    lift = statistics.documents * together[first, second] / (df[first] * df[second])
    return float(np.log2(lift).max())


PREDICTORS: Mapping[str, Callable[[TermStatistics, Ints], float]] = {
    "AvgIDF": avg_idf,
    "MaxSCQ": max_scq,
    "MaxVAR": max_var,
    "SCS": scs,
    "MaxPMI": max_pmi,
}


@dataclass(frozen=True)
class WordVectors:
    """Vectors of a corpus's terms, trained on it by gensim's word2vec: 100 dimensions, windows of 5
    terms, 5 epochs of CBOW with negative sampling, terms that stand there 5 times or more. One
    thread, so that a seed gives one result.

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
        """Terms are read as by :class:`TermStatistics`, once, and wait on the disk; an InputError
        where gensim is not installed, or no term stands there often enough.
        """
        with explained(
            "word vectors need gensim", "pip install 'beir-cocodr[word-vectors]'", ImportError
        ):
            from gensim.models import Word2Vec
        read, model = Analyzer(analyzer), Word2Vec(workers=1, seed=seed)
        with TemporaryDirectory() as folder:
            terms = Path(folder) / "terms.txt"
            with terms.open("w", encoding="utf-8") as file:
                for chunk in documents.chunks(10_000):
                    file.writelines(
                        " ".join(read(text_format.document(one))) + "\n" for one in chunk
                    )
            model.build_vocab(corpus_file=str(terms))
            if not len(model.wv):
                raise InputError("no term stands in the corpus 5 times, so none has a word vector")
            model.train(
                corpus_file=str(terms), total_examples=model.corpus_count, total_words=model.corpus_total_words,
                epochs=model.epochs,
            )  # fmt: skip
        counts = np.array(
            [model.wv.get_vecattr(term, "count") for term in model.wv.index_to_key], np.float64
        )
        vectors = model.wv.get_normed_vectors()
        return cls(dict(model.wv.key_to_index), vectors, counts / counts.sum())

    def of(self, terms: Iterable[str]) -> Ints:
        """(m,) rows of the different terms that have a vector."""
        return np.array(sorted({self.rows[term] for term in terms if term in self.rows}), np.int64)

    def max_dc(self, terms: Ints, alpha: float = 0.7) -> float:
        """MaxDC: the largest degree of the ego networks of (m,) terms. A term's ego is linked to
        all terms whose cosine is at least ``alpha`` times that of its nearest; ``alpha`` is our
        choice.

        Source: Arabzadeh et al., Neural Embedding-Based Metrics for Pre-retrieval Query Performance
        Prediction, 2020, as MRL describes it in section 6.
        """
        if not len(terms) or len(self.vectors) < 2:
            return np.nan
        cosines = self.vectors[terms] @ self.vectors.T
        cosines[np.arange(len(terms)), terms] = -np.inf  # of itself
        return float((cosines >= alpha * cosines.max(axis=1, keepdims=True)).sum(axis=1).max())

    def mixture(self, clusters: int = 100, most: int = 50_000, seed: int = 42) -> GaussianMixture:
        """Soft clusters of the ``most`` frequent terms: Gaussians of diagonal covariance, at most
        one for ten terms.
        """
        known = self.vectors[:most].astype(np.float64)
        count = max(1, min(clusters, len(known) // 10))
        return GaussianMixture(count, covariance_type="diag", random_state=seed).fit(known)

    def p_clarity(self, terms: Ints, mixture: GaussianMixture, collection: Doubles) -> float:
        """P_clarity: Σ_k P(k|q) log2(P(k|q) / P(k|C)) over the clusters of a :meth:`mixture`;
        P(k|q) is the mean over the query's terms of the probability that a cluster generated it,
        P(k|C) (K,) ``collection``, see :meth:`generated`.

        Source: the clarity of Cronen-Townsend et al., 2002, by clusters in place of terms: our
        reading of what MRL says in section 6 of Roy et al., Estimating Gaussian Mixture Models in
        the Local Neighbourhood of Embedded Word Vectors for Query Performance Prediction, 2019.
        """
        if not len(terms):
            return np.nan
        query = mixture.predict_proba(self.vectors[terms].astype(np.float64)).mean(axis=0)
        return float(rel_entr(query, collection).sum() / np.log(2))

    def generated(self, mixture: GaussianMixture) -> Doubles:
        """(K,) P(k|C), the share of the collection's occurrences of terms that each cluster
        generated.
        """
        found = np.zeros(mixture.n_components)
        for first in range(0, len(self.vectors), 10_000):
            part = slice(first, first + 10_000)
            found += self.shares[part] @ mixture.predict_proba(
                self.vectors[part].astype(np.float64)
            )
        return found


def word_vector_predictors(
    dataset: str,
    split: str = "test",
    text_format: TextFormat | None = None,
    analyzer: str = "english",
    seed: int = 42,
) -> dict[str, dict[str, float]]:
    """MaxDC and P_clarity by query id, by :class:`WordVectors` of the corpus; NaN for queries
    without such terms.
    """
    collection = load_collection(dataset, split, labels="optional")
    words = WordVectors.train(collection.documents, text_format or TextFormat(), analyzer, seed)
    read, mixture = Analyzer(analyzer), words.mixture(seed=seed)
    shares = words.generated(mixture)
    terms = {query: words.of(read(text)) for query, text in collection.queries.items()}
    return {
        "MaxDC": {query: words.max_dc(found) for query, found in terms.items()},
        "P_clarity": {
            query: words.p_clarity(found, mixture, shares) for query, found in terms.items()
        },
    }


def _weight(statistics: TermStatistics, terms: Ints) -> Doubles:
    """ln(1 + N / df)."""
    return np.log(1 + statistics.documents / statistics.df[terms])


def variance_predictors(
    model: str, dataset: str, split: str = "test", encoder: EncoderOptions = EncoderOptions()
) -> dict[str, dict[str, float]]:
    """‖σ_q²‖₂ and Σ log σ_q² by query id, for the folder of an MRL; nothing for other models.

    Source: MRL, section 4.4 and Table 6.
    """
    if not Path(model).is_dir():
        return {}
    # Imported here because BM25's queries must not wait six seconds for torch.
    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.models.mrl import MRL

    encoder_model = load_encoder(model, encoder)
    if not isinstance(encoder_model, MRL):
        return {}
    queries = load_collection(dataset, split).queries
    _, variance = encoder_model.encode_distribution(list(queries.values()), "query")
    wide = variance.double().cpu()
    return {
        "‖σ²‖": dict(zip(queries, wide.norm(dim=1).tolist(), strict=True)),
        "Σ log σ²": dict(zip(queries, wide.log().sum(dim=1).tolist(), strict=True)),
    }
