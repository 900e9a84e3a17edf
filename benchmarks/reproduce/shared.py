"""What several papers' tables share: collections, published weights, and how a model is judged on a
collection.
"""

from __future__ import annotations

from reproduce.specification import Cell, Step, mean, published

COCODR = published("cocodr")
TASKS: list[str] = COCODR["table1"]["avg_datasets"]
LENGTHS: dict[str, dict[str, int]] = COCODR["max_lengths"]
FORUMS = "android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress".split()

TRAIN, DEV, DL19, DL20 = "msmarco-train", "msmarco-dev", "trec-dl-2019", "trec-dl-2020"

#: Collections whose ids in ir_datasets are not beir/NAME; the paper's sizes of Touché are those of
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

#: Collections that their owners alone give away: a folder in BEIR's form is made by hand.
BY_HAND = {
    "bioasq": "BEIR's wiki, from the BioASQ challenge (training set v.2020, task 8)",
    "signal1m": "BEIR's wiki, from Signal Media",
    "trec-news": "BEIR's wiki, from NIST (TREC Washington Post Corpus)",
    "robust04": "BEIR's wiki, from NIST (TREC disks 4 and 5)",
    "trec-covid-v2": "GPL's repository (Wang et al., 2022): CORD-19 without documents that lack an abstract",
}

#: Weights by the names that steps have for them.
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

CLOSED = "quoted: its weights were never given away"
OTHERS = "quoted: a rival by others, which nothing here builds"


def parts_of(data: str) -> list[str]:
    """CQADupStack's forums, else the collection itself."""
    return [f"{data}/{forum}" for forum in FORUMS] if data == "cqadupstack" else [data]


def lengths(data: str) -> tuple[int, int]:
    """Tokens that queries and documents are cut to, as COCO-DR cuts them."""
    name = data.split("/")[0].removesuffix("-v2")
    found = LENGTHS.get(name, LENGTHS["msmarco"])
    return found["query_max_len"], found["doc_max_len"]


class Judgements:
    """Steps that judge models on collections, made as cells ask for them, and shared by all tables
    of a paper; ``precision`` of the stores: an MRL's variances are lost in fp16.
    """

    def __init__(self, measures: str = "nDCG@10", precision: str = "fp16") -> None:
        self.measures, self.precision = measures, precision
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
    ) -> Cell:
        """One model on one collection: encoded to a store, which goes once it is judged, or BM25
        and what rests on it as they are.

        Args:
            label: of the model, in names of folders.
            model: as ``--model`` takes it, with placeholders.
        """
        if data == "cqadupstack":
            parts = (
                self.cell(label, model, f"{data}/{forum}", measure, "", factor, tokens)
                for forum in FORUMS
            )
            return mean(parts, published)
        name = f"judged/{label}/{data}"
        query, document = tokens or lengths(data)
        cut = f"--query-length {query} --document-length {document}"
        judge = f"evaluate --dataset {{data:{data}}} --model {model} --output {{out}}/judged --overwrite {cut}"
        judge += f' --measures "{self.measures}"'
        store = f"--precision {self.precision} --backend bf16 --processes {{gpus}}"
        encode = (
            f"encode --dataset {{data:{data}}} --model {model} --output {{out}}/store {store} {cut}"
        )
        if is_encoder(model):
            self.steps[name] = Step((encode, f"{judge} --store {{out}}/store"), discard=("store",))
        else:
            self.steps[name] = Step((judge,))
        return Cell(name, f"judged/results.json:models|*|measures|{measure}", published, factor)


def is_encoder(model: str) -> bool:
    """Whether a model name is that of an encoder alone, which a store can hold."""
    head = model.partition("{")[0]
    return not (model.endswith("bm25") or ":" in head)
