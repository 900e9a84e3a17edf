"""The weights of BM25, in the variant of Lucene.

A term t of a document d weighs idf(t) * tf / (tf + norm(d)), where tf counts t in d.

References:
    Robertson et al., 1994; Kamphuis et al., 2020 (the variants of BM25).
"""

import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from beir_cocodr.arrays import Array, Doubles

#: Parameters of Anserini's BEIR baselines.
K1 = 0.9
B = 0.4

if TYPE_CHECKING:
    from torch import Tensor

Lengths = TypeVar("Lengths", float, Doubles, Array, "Tensor")


def inverse_document_frequencies(frequencies: Array, documents: int) -> Doubles:
    """Return the (T,) inverse document frequencies of terms.

    Args:
        frequencies: (T,) numbers of documents with each term.
        documents: The number of all documents.
    """
    odds = (documents - frequencies + 0.5) / (frequencies + 0.5)
    # math.log, as bm25s takes it: numpy's differs in the last bit.
    return np.array([math.log(1 + odd) for odd in odds.tolist()])


def length_norms(
    lengths: Lengths,
    mean_length: float,
    k1: float,
    b: float,
) -> Lengths:
    """Return what is added to a term's count for documents of these lengths.

    Args:
        lengths: Terms of a document, or of several.
        mean_length: Terms of a document, on average.
        k1: How fast the weight of a term saturates with its count.
        b: How much the length counts, from 0 to 1.
    """
    return k1 * ((1 - b) + b * lengths / mean_length)
