"""Families of retrieval models trained and evaluated in interpolation and extrapolation; here, their recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from beir_cocodr.errors import check_at_least, check_choice, check_positive
from beir_cocodr.models.spec import EncoderOptions, option
from beir_cocodr.records import Json
from beir_cocodr.training.options import Budget

#: What changes where and how fast a number is computed, not the number.
_NOT_RECORDED = ("device", "encode_batch_size")


@dataclass(frozen=True)
class Recipe(Budget):
    """One start, one number of steps and one batch size (training queries a step) for every architecture.

    Args:
        start: minilm, a folder or a hub name.
        negatives: BM25 negatives a query, of hard negatives and of the cross-encoder; all others learn from the other
            documents of the batch alone, as the paper's base setting.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        hard_negatives: "bm25", or "mined" by a first retriever that is trained on BM25's (twice the budget).
        teacher: "hybrid" is BM25 and the start.
        list_size: documents a query in distillation, one of them relevant, the others BM25's.
        mlm_steps: of masked language modelling on the corpus, before SPLADE, where the start has no head.
        mlm_learning_rate: of these steps.
        document_flops, query_flops: weights of SPLADE's two regularizers (sentence-transformers' defaults).
        rerank: documents of the first stage that the cross-encoder reranks (paper: 1,000).
        first_stage: "bm25", or an encoder.

    Raises:
        InputError: a number that makes no training.

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2.
    """

    start: str = option("minilm", "Encoder that all architectures start from; default: minilm.")
    negatives: int = 4
    negative_depth: int = 30
    hard_negatives: str = "bm25"
    teacher: str = option("hybrid", "Of dense-distilled: hybrid, cross-encoder (of the same set), or as for distill.")
    list_size: int = 8
    query_length: int | None = option(None, "Tokens a query is cut to; default: the start's own.")
    document_length: int | None = option(None, "Tokens a document is cut to; default: the start's own.")
    mlm_steps: int = 200
    mlm_learning_rate: float = 5e-4
    document_flops: float = 3e-5
    query_flops: float = 5e-5
    rerank: int = 100
    first_stage: str = "bm25"
    encode_batch_size: int = option(64, "Texts encoded at a time.", min=1)
    device: str | None = option(None, "Device of all models, such as cpu or cuda:0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "mlm_learning_rate")
        check_at_least(self, 0, "mlm_steps", "document_flops", "query_flops")
        check_at_least(self, 1, "negatives", "negative_depth", "rerank", "encode_batch_size")
        check_at_least(self, 2, "batch_size", "list_size")  # a document is learned against others
        check_choice(self, hard_negatives=("bm25", "mined"))

    def describe(self) -> Json:
        """What a number depends on."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_RECORDED}

    @property
    def encoder(self) -> EncoderOptions:
        """How every encoder is loaded."""
        return EncoderOptions(self.query_length, self.document_length, device=self.device)
