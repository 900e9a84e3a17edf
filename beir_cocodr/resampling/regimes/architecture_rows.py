"""The table of retrieval architectures that are trained and evaluated in both regimes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ArchitectureRow:
    """An architecture with its facts: a row of :data:`ARCHITECTURES`.

    Args:
        build: The ``module:object`` of a class or function that takes the name and returns an
            :class:`~beir_cocodr.resampling.regimes.architectures.Architecture`.
        help: What it is, in a few words for ``--help`` and the documentation.
        citation: A BibTeX key of ``models/papers.bib``, a BibTeX entry, or "" for none.
    """

    build: str
    help: str
    citation: str = ""


_DENSE = "beir_cocodr.resampling.regimes.architectures:DenseArchitecture"
_HOSTS = "beir_cocodr.resampling.regimes.host_architectures"

#: The architectures by name. Add a row of your own from a script.
ARCHITECTURES: dict[str, ArchitectureRow] = {
    "bm25": ArchitectureRow(
        build="beir_cocodr.resampling.regimes.tuned_bm25:TunedBM25",
        help="BM25 with k1 and b chosen on the training queries",
        citation="robertson2009bm25",
    ),
    "dense": ArchitectureRow(
        build=_DENSE,
        help="an encoder with the other documents of the batch as negatives",
        citation="reimers2019sbert",
    ),
    "dense-hard": ArchitectureRow(
        build=_DENSE,
        help="an encoder with hard negatives too",
        citation="xiong2021ance",
    ),
    "dense-distilled": ArchitectureRow(
        build=_DENSE,
        help="an encoder distilled from a teacher's lists by LambdaRank",
        citation="zamani2023mrl",
    ),
    "splade": ArchitectureRow(
        build=f"{_HOSTS}:Splade",
        help="sparse vectors of a masked language model",
        citation="formal2021splade",
    ),
    "late-interaction": ArchitectureRow(
        build=f"{_HOSTS}:LateInteractionArchitecture",
        help="a vector for each token, as in ColBERT",
        citation="khattab2020colbert",
    ),
    "cross-encoder": ArchitectureRow(
        build=f"{_HOSTS}:CrossEncoderReranker",
        help="a reranker of the first stage's best documents",
        citation="nogueira2019passage",
    ),
}


def architecture_forms() -> str:
    """Return a help text of all architectures, name and help."""
    return "; ".join(f"{name}, {row.help}" for name, row in ARCHITECTURES.items())
