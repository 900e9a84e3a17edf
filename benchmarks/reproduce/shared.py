"""The parts that tables of several papers share: collections, published weights, judgements.

A judgement is a step that evaluates a model on a collection.
"""

from __future__ import annotations

import re

from reproduce.lineage import Making
from reproduce.specification import Cell, Step, mean, names_in, published, task_of

COCODR = published("cocodr")
TASKS: list[str] = COCODR["table1"]["avg_datasets"]
LENGTHS: dict[str, dict[str, int]] = COCODR["max_lengths"]
FORUMS = [
    "android",
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
]

TRAIN = "msmarco-train"
#: Its labelled queries.
TRAIN_QUERIES = 502_939
DEV = "msmarco-dev"
DL19 = "trec-dl-2019"
DL20 = "trec-dl-2020"

#: Collections whose ids in ir_datasets are not beir/NAME. The paper's sizes of Touché are those of
#: its second version.
IRDS = {
    TRAIN: "msmarco-passage/train/judged",
    DEV: "msmarco-passage/dev/small",
    "msmarco": "msmarco-passage/dev/small",
    DL19: "msmarco-passage/trec-dl-2019/judged",
    DL20: "msmarco-passage/trec-dl-2020/judged",
    "msmarco-documents": "msmarco-document",
    "webis-touche2020": "beir/webis-touche2020/v2",
}

#: Collections that only their owners distribute, so that a BEIR folder is made by hand.
BY_HAND = {
    "bioasq": (
        "the BioASQ challenge's training set v.2020 and golden files of task 8b, by "
        "benchmarks/reproduce/convert.py bioasq"
    ),
    "signal1m": (
        "Signal Media's articles and judgements and the tweets, by "
        "benchmarks/reproduce/convert.py signal1m"
    ),
    "trec-news": (
        "NIST's Washington Post Corpus v2 and topics of 2019, by "
        "benchmarks/reproduce/convert.py trec-news"
    ),
    "robust04": (
        "NIST's disks 4 and 5 and topics of 2004, by benchmarks/reproduce/convert.py robust04"
    ),
    "trec-covid-v2": (
        "GPL's repository (Wang et al., 2022): CORD-19 without documents that lack an abstract"
    ),
}

#: Published weights by the names that steps use for them.
MODELS = {
    "bert-base": "bert-base-uncased",
    "roberta-base": "roberta-base",
    "ernie-base": "nghuyong/ernie-2.0-base-en",
    "distilbert": "distilbert-base-uncased",
    "condenser-base": "Luyu/condenser",
    "condenser-large": "OpenMatch/condenser-large",
    "cocondenser-base": "Luyu/co-condenser-marco",
    "cocondenser-wiki": "Luyu/co-condenser-wiki",
    "cocondenser-large": "OpenMatch/co-condenser-large",
    "ance": "sentence-transformers/msmarco-roberta-base-ance-firstp",
    "contriever": "facebook/contriever-msmarco",
    "gtr-xl": "sentence-transformers/gtr-t5-xl",
    "gtr-xxl": "sentence-transformers/gtr-t5-xxl",
    "tas-b": "sentence-transformers/msmarco-distilbert-base-tas-b",
    "tct-colbert": "castorini/tct_colbert-msmarco",
    "margin-mse": "sebastian-hofstaetter/distilbert-dot-margin_mse-T2-msmarco",
    "colbertv2": "colbert-ir/colbertv2.0",
    "gpl-start": "GPL/msmarco-distilbert-margin-mse",
    "reranker": "cross-encoder/ms-marco-MiniLM-L-6-v2",
    "teacher": "cross-encoder/ms-marco-electra-base",
    "beir-generator": "BeIR/query-gen-msmarco-t5-base-v1",
    "doc2query": "doc2query/all-with_prefix-t5-base-v1",
}

CLOSED = "quoted: its weights were never published"
OTHERS = "quoted: a rival by others, which nothing here builds"


def parts_of(data: str) -> list[str]:
    """Return the forums of CQADupStack, otherwise the collection itself."""
    return [f"{data}/{forum}" for forum in FORUMS] if data == "cqadupstack" else [data]


def lengths(data: str) -> tuple[int, int]:
    """Return the most tokens of queries and documents, as COCO-DR cuts them."""
    name = task_of(data).removesuffix("-v2")
    longest = LENGTHS.get(name, LENGTHS["msmarco"])
    return longest["query_max_len"], longest["doc_max_len"]


class Judgements:
    """Steps that judge models on collections, which all tables of a paper share.

    A step is made when a cell asks for it.

    Args:
        measures: The measures of every step.
        precision: The precision of stores; fp16 loses the variances of an MRL.
    """

    def __init__(self, measures: str = "nDCG@10", precision: str = "fp16") -> None:
        self.measures = measures
        self.precision = precision
        self.steps: dict[str, Step] = {}

    def cell(
        self,
        label: str,
        model: str,
        data: str,
        measure: str = "nDCG@10",
        published: str = "",
        factor: float = 1.0,
        tokens: tuple[int, int] | None = None,
        making: Making | None = None,
    ) -> Cell:
        """Make the cell of one model on one collection.

        An encoder is encoded to a store, which is removed once it is judged.

        Args:
            label: The model's name in names of folders.
            model: The model as ``--model`` takes it, with placeholders.
            data: The collection.
            measure: The measure.
            published: The path of the paper's figure.
            factor: A factor of the figure.
            tokens: The most tokens of queries and documents. Default: :func:`lengths`.
            making: What the model must be made of, if a step trains it.
        """
        if data == "cqadupstack":
            forums = []
            for part in parts_of(data):
                forums.append(
                    self.cell(
                        label,
                        model,
                        part,
                        measure,
                        "",
                        factor,
                        tokens,
                        making,
                    )
                )
            return mean(forums, published)
        name = f"judged/{label}/{data}"
        query, document = tokens or lengths(data)
        self.steps[name] = self._step(
            model, data, f"--query-length {query} --document-length {document}"
        )
        expects = [("judged/results.json:dataset", f"{{data:{data}}}")]
        if names_in(model, "step") + names_in(model, "model"):
            expects.append(("judged/results.json:models|?", model))
        return Cell(
            name,
            f"judged/results.json:models|*|measures|{measure}",
            published,
            factor,
            model=trained_folder(model),
            making=making,
            expects=tuple(expects),
        )

    def _step(
        self,
        model: str,
        data: str,
        cut: str,
    ) -> Step:
        evaluate = f"evaluate --dataset {{data:{data}}} --model {model} --output {{out}}/judged"
        evaluate += f' --overwrite {cut} --measures "{self.measures}"'
        if not is_encoder(model):
            return Step((evaluate,))
        encode = f"encode --dataset {{data:{data}}} --model {model} --output {{out}}/store"
        encode += f" --precision {self.precision} --backend bf16 --processes {{gpus}} {cut}"
        return Step((encode, f"{evaluate} --store {{out}}/store"), discard=("store",))


_TRAINED_FOLDER = re.compile(r"\{step:[^{}]+\}[^@]*")


def trained_folder(model: str) -> str:
    """Return the folder of the trained model in a model's name; "" if it is published."""
    match = _TRAINED_FOLDER.search(model)
    return "" if match is None else match[0]


def is_encoder(model: str) -> bool:
    """Say whether a model name means an encoder alone, which a store can hold."""
    head = model.partition("{")[0]
    return not (model.endswith("bm25") or ":" in head)
