"""Families of retrieval models, trained and evaluated in interpolation and extrapolation.

Here is their recipe.
"""

from dataclasses import asdict, dataclass

from beir_cocodr.models.spec import EncoderOptions, check_device_name, option
from beir_cocodr.records import Json
from beir_cocodr.training.options import HeldOut
from beir_cocodr.training.shared_options import Budget

#: Fields that change where and how fast a score is computed, not the score.
_NOT_RECORDED = ("device", "encode_batch_size")


@dataclass(frozen=True)
class Recipe(HeldOut, Budget):
    """One start, one number of steps and one batch size for every architecture.

    The batch size is in training queries a step.

    Held-out queries choose the checkpoint of every architecture in the same way; the paper
    evaluates every second epoch on its development set, which resampled sets do not have.

    Args:
        start: minilm, a folder or a hub name.
        negatives: BM25 negatives of a query, for dense-hard and the cross-encoder. All others learn
            only from the other documents of the batch, as in the paper's base setting.
        negative_depth: the BM25 results that negatives are drawn from, without known positives.
        hard_negatives: "bm25", or "mined" by a first retriever that is trained on BM25's (twice the
            budget).
        teacher: of dense-distilled; "hybrid" is BM25 and the start.
        list_size: documents of a query in distillation, one of them relevant, the others BM25's.
        mlm_steps: steps of masked language modelling on the corpus, before SPLADE, if the start has
            no head.
        mlm_learning_rate: of these steps.
        document_flops, query_flops: weights of SPLADE's two regularizers (sentence-transformers'
            defaults).
        rerank: documents of the first stage that the cross-encoder reranks (paper: 1,000).
        first_stage: "bm25", or an encoder.
        candidates: for late interaction, "all" documents, or those that an index of all "tokens"
            finds (FAISS).

    Raises:
        InputError: A value is out of range.

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2.
    """

    start: str = option("minilm", "Start all architectures from this encoder. Default: minilm.")
    batch_size: int = option(32, min=2)  # a document needs others to be contrasted with
    negatives: int = option(4, min=1)
    negative_depth: int = option(30, min=1)
    hard_negatives: str = option("bm25", choices=("bm25", "mined"))
    teacher: str = option(
        "hybrid",
        "Use this teacher for dense-distilled: hybrid, cross-encoder (trained on the same set), "
        "or any other that distill takes.",
    )
    list_size: int = option(8, min=2)
    query_length: int | None = option(
        None, "Cut queries to this many tokens. Default: the length of the start encoder.", min=3
    )
    document_length: int | None = option(
        None, "Cut documents to this many tokens. Default: the length of the start encoder.", min=3
    )
    mlm_steps: int = option(200, min=0)
    mlm_learning_rate: float = option(5e-4, above=0)
    document_flops: float = option(3e-5, min=0)
    query_flops: float = option(5e-5, min=0)
    rerank: int = option(100, min=1)
    first_stage: str = option("bm25")
    candidates: str = option("all", choices=("all", "tokens"))
    encode_batch_size: int = option(64, "Encode this many texts at a time.", min=1)
    device: str | None = option(None, "Run all models on this device, such as cpu or cuda:0.")

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_device_name(self.device)

    def describe(self) -> Json:
        """Return all that a score depends on."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_RECORDED}

    @property
    def encoder(self) -> EncoderOptions:
        """Return how every encoder is loaded."""
        return EncoderOptions(self.query_length, self.document_length, device=self.device)
