"""Published checkpoints that do not say how their authors encode with them.

A transformer without ``modules.json`` does not say how its tokens become a vector. This table says
it for checkpoints that are known; for any other, the [CLS] vector is taken, and a warning names the
choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from beir_cocodr.io import parse_json

#: Tokens of a query and of a document where nothing says otherwise (COCO-DR, section 5).
QUERY_LENGTH = 64
DOCUMENT_LENGTH = 128

#: Ways to pool tokens that a user may choose.
POOLINGS = ("cls", "mean")


@dataclass(frozen=True)
class KnownCheckpoint:
    """The way in which the authors of a checkpoint encode texts with it; scores are dot products.

    Attributes:
        source: The paper.
        pooling: "cls" for the vector of [CLS], "mean" for the mean over the tokens.
        query_length: Tokens that queries are cut to.
        document_length: Tokens that documents are cut to.
        query_prompt: Text before every query, which is not pooled.
        document_prompt: Text before every document, which is not pooled.
        fills_queries: True if every query is filled to ``query_length`` with [MASK], which is
            attended to and pooled, and no text ends with [SEP].
    """

    source: str
    pooling: str = "cls"
    query_length: int = QUERY_LENGTH
    document_length: int = DOCUMENT_LENGTH
    query_prompt: str = ""
    document_prompt: str = ""
    fills_queries: bool = False


_COCODR = KnownCheckpoint("COCO-DR (Yu et al., 2022), section 5")
_CONDENSER = KnownCheckpoint("Condenser and coCondenser (Gao and Callan, 2021 and 2022)")
_CONTRIEVER = KnownCheckpoint(
    "Contriever (Izacard et al., 2022), section 3",
    pooling="mean",
    query_length=512,
    document_length=512,
)
# The four tokens "[CLS] [ Q ]" are left out of the mean.
_TCT_COLBERT = KnownCheckpoint(
    "TCT-ColBERT (Lin et al., 2021), as encoded in Pyserini",
    pooling="mean",
    query_length=36,
    document_length=512,
    query_prompt="[Q] ",
    document_prompt="[D] ",
    fills_queries=True,
)

#: Hub name to the way to encode with it.
KNOWN_CHECKPOINTS: Mapping[str, KnownCheckpoint] = {
    "OpenMatch/cocodr-base": _COCODR,
    "OpenMatch/cocodr-base-msmarco": _COCODR,
    "OpenMatch/cocodr-base-msmarco-idro-only": _COCODR,
    "OpenMatch/cocodr-base-msmarco-warmup": _COCODR,
    "OpenMatch/cocodr-large": _COCODR,
    "OpenMatch/cocodr-large-msmarco": _COCODR,
    "OpenMatch/cocodr-large-msmarco-idro-only": _COCODR,
    "OpenMatch/cocodr-large-msmarco-warmup": _COCODR,
    "OpenMatch/condenser-large": _CONDENSER,
    "OpenMatch/co-condenser-large": _CONDENSER,
    "Luyu/condenser": _CONDENSER,
    "Luyu/co-condenser-marco": _CONDENSER,
    "Luyu/co-condenser-wiki": _CONDENSER,
    "Luyu/co-condenser-marco-retriever": _CONDENSER,
    "facebook/contriever": _CONTRIEVER,
    "facebook/contriever-msmarco": _CONTRIEVER,
    "facebook/mcontriever": _CONTRIEVER,
    "facebook/mcontriever-msmarco": _CONTRIEVER,
    "castorini/tct_colbert-msmarco": _TCT_COLBERT,
    "castorini/tct_colbert-v2-msmarco": _TCT_COLBERT,
    "castorini/tct_colbert-v2-hn-msmarco": _TCT_COLBERT,
    "castorini/tct_colbert-v2-hnp-msmarco": _TCT_COLBERT,
}


def known_checkpoint(name: str) -> KnownCheckpoint | None:
    """Return how to encode with a checkpoint, or None if it is not in the table.

    Args:
        name: A hub name, or a folder that ends with the second part of one.
    """
    if name in KNOWN_CHECKPOINTS:
        return KNOWN_CHECKPOINTS[name]
    folder = PurePath(name).name
    for hub_name, checkpoint in KNOWN_CHECKPOINTS.items():
        if hub_name.partition("/")[2] == folder:
            return checkpoint
    return None


@dataclass(frozen=True)
class ReleasedForm:
    """The form in which the code of a paper saves an encoder: a classifier with layers beside it.

    Attributes:
        projects: True if scores use the layers ``embeddingHead`` and ``norm`` after [CLS]. If they
            do not, these layers were never trained, and are left out.
    """

    projects: bool


#: The class that a checkpoint's config.json names to its form.
RELEASED_FORMS: Mapping[str, ReleasedForm] = {
    # COCO-DR's code scores with [CLS] itself.
    "BertDot_NLL_LN": ReleasedForm(projects=False),
    # ANCE (Xiong et al., 2021).
    "RobertaDot_NLL_LN": ReleasedForm(projects=True),
    "RobertaDot_CLF_ANN_NLL_MultiChunk": ReleasedForm(projects=True),
}


def released_form(config: str | None) -> ReleasedForm | None:
    """Return the form of a checkpoint, or None if it has that of its host.

    Args:
        config: The path of its config.json, whose faults are reported where it is loaded.
    """
    if config is None:
        return None
    try:
        architectures = parse_json(Path(config).read_text(encoding="utf-8"))["architectures"]
        return RELEASED_FORMS.get(architectures[0])
    except (OSError, ValueError, LookupError, TypeError):
        return None
