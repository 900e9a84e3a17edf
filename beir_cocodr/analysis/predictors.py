"""Pre-retrieval query performance predictors: how well a query will do, from the corpus alone.

A predictor takes the statistics of a corpus and the (m,) columns of a query's known terms, as often as they
stand in the query, and gives one number, NaN where it is not defined; terms that the corpus does not have
are left out. Repetition of a term counts in SCS only.

Left out are MaxDC (Arabzadeh et al., 2020) and P_clarity (Roy et al., 2019): they need word embeddings.

Source: MRL, Table 6; Hauff, Predicting the Effectiveness of Queries and Retrieval Systems, 2010, chapter 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from beir_cocodr.analysis.term_statistics import TermStatistics

Columns = npt.NDArray[np.int64]

#: Predictors of Table 6 that are not here, and why.
LEFT_OUT = {"MaxDC": "needs word embeddings", "P_clarity": "needs word embeddings"}


def avg_idf(statistics: TermStatistics, terms: Columns) -> float:
    """AvgIDF: mean of ln(N / df) over the query's different terms.

    Source: Cronen-Townsend et al., Predicting Query Performance, 2002; Hauff, 2010.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    return float(np.log(statistics.documents / statistics.df[terms]).mean())


def max_scq(statistics: TermStatistics, terms: Columns) -> float:
    """MaxSCQ: the largest (1 + ln cf) · ln(1 + N / df), how much of the collection is like the query.

    Source: Zhao, Scholer and Tsegay, Effective Pre-retrieval Query Performance Prediction Using Similarity
    and Variability Evidence, 2008, section 3.1.
    """
    if not len(terms):
        return np.nan
    return float(((1 + np.log(statistics.cf[terms])) * _weight(statistics, terms)).max())


def max_var(statistics: TermStatistics, terms: Columns) -> float:
    """MaxVAR: the largest standard deviation over postings of w = (1 + ln tf) · ln(1 + N / df).

    The deviation is the population's (a division by df), 0 for a term of one document. Where the paper's
    brackets end in w makes no difference to it.

    Source: Zhao, Scholer and Tsegay, 2008, section 3.2.
    """
    terms = np.unique(terms)
    if not len(terms):
        return np.nan
    deviations = np.array([np.log(statistics.frequencies(term)).std() for term in terms])
    return float((deviations * _weight(statistics, terms)).max())


def scs(statistics: TermStatistics, terms: Columns) -> float:
    """SCS, the simplified clarity score: Σ p_q log2(p_q / p_C), the query against the collection.

    p_q is a term's share of the query's known terms, p_C = cf / Σ cf its share of the collection.

    Source: He and Ounis, Inferring Query Performance Using Pre-retrieval Predictors, 2004, section 2.4.
    """
    if not len(terms):
        return np.nan
    different, counts = np.unique(terms, return_counts=True)
    share = counts / len(terms)
    return float((share * np.log2(share * statistics.length / statistics.cf[different])).sum())


def max_pmi(statistics: TermStatistics, terms: Columns) -> float:
    """MaxPMI: the largest log2(p(a, b) / (p(a) p(b))) over pairs of different terms, p over documents.

    A pair that no document holds has a PMI of −∞ and never is the largest; where no document holds two of
    the query's terms, and for a query of one term, MaxPMI is not defined.

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


PREDICTORS: Mapping[str, Callable[[TermStatistics, Columns], float]] = {
    "AvgIDF": avg_idf,
    "MaxSCQ": max_scq,
    "MaxVAR": max_var,
    "SCS": scs,
    "MaxPMI": max_pmi,
}


def _weight(statistics: TermStatistics, terms: Columns) -> npt.NDArray[np.float64]:
    weight: npt.NDArray[np.float64] = np.log(1 + statistics.documents / statistics.df[terms])
    return weight
