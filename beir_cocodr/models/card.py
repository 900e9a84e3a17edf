"""The card of a model that was trained here: README.md beside it, made of training.json and of what was measured.

sentence-transformers reads it with the model and writes it again with ``save_pretrained`` and ``push_to_hub``. What the
base's own card states (title, data sets, figures) is not true of the model that is made of it, and stays behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from beir_cocodr.io import write_text
from beir_cocodr.models.cocodr import CARD_FILE, PLACEHOLDER
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import CollectionProvenance

_HUB_NAMES = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}

# Options that a reader of the card looks for first, of those that a stage has.
_MAIN = (
    "objective weighting loss student negatives episodes stages clusters max_steps epochs batch_size learning_rate "
    "warmup lexical bm25_weight seed"
).split()

#: Paper to authors, year, title, and where it appeared.
PAPERS = {
    "reimers2019sbert": "Reimers, Nils and Gurevych, Iryna|2019|Sentence-BERT: Sentence Embeddings using Siamese "
    "BERT-Networks|EMNLP-IJCNLP, https://arxiv.org/abs/1908.10084",
    "yu2022cocodr": "Yu, Yue and Xiong, Chenyan and Sun, Si and Zhang, Chao and Overwijk, Arnold|2022|COCO-DR: "
    "Combating the Distribution Shift in Zero-Shot Dense Retrieval with Contrastive and Distributionally Robust "
    "Learning|EMNLP, https://aclanthology.org/2022.emnlp-main.95",
    "wu2023qc": "Wu, Xing and Ma, Guangyuan and Qian, Wanhui and Lin, Zijia and Hu, Songlin|2023|Query-as-context "
    "Pre-training for Dense Passage Retrieval|EMNLP, https://aclanthology.org/2023.emnlp-main.118",
    "wu2023cotmae": "Wu, Xing and Ma, Guangyuan and Lin, Meng and Lin, Zijia and Wang, Zhongyuan and Hu, "
    "Songlin|2023|ConTextual Masked Auto-Encoder for Dense Passage Retrieval|AAAI, https://arxiv.org/abs/2208.07670",
    "zamani2023mrl": "Zamani, Hamed and Bendersky, Michael|2023|Multivariate Representation Learning for Information "
    "Retrieval|SIGIR, https://doi.org/10.1145/3539618.3591740",
    "gao2021condenser": "Gao, Luyu and Callan, Jamie|2021|Condenser: a Pre-training Architecture for Dense "
    "Retrieval|EMNLP, https://arxiv.org/abs/2104.08253",
    "gao2022cocondenser": "Gao, Luyu and Callan, Jamie|2022|Unsupervised Corpus Aware Language Model Pre-training for "
    "Dense Passage Retrieval|ACL, https://arxiv.org/abs/2108.05540",
    "gao2021simcse": "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi|2021|SimCSE: Simple Contrastive Learning of "
    "Sentence Embeddings|EMNLP, https://arxiv.org/abs/2104.08821",
    "lee2019ict": "Lee, Kenton and Chang, Ming-Wei and Toutanova, Kristina|2019|Latent Retrieval for Weakly "
    "Supervised Open Domain Question Answering|ACL, https://arxiv.org/abs/1906.00300",
    "wang2021tsdae": "Wang, Kexin and Reimers, Nils and Gurevych, Iryna|2021|TSDAE: Using Transformer-based "
    "Sequential Denoising Auto-Encoder for Unsupervised Sentence Embedding Learning|Findings of EMNLP, "
    "https://arxiv.org/abs/2104.06979",
    "xiong2021ance": "Xiong, Lee and Xiong, Chenyan and Li, Ye and Tang, Kwok-Fung and Liu, Jialin and Bennett, Paul "
    "and Ahmed, Junaid and Overwijk, Arnold|2021|Approximate Nearest Neighbor Negative Contrastive Learning for Dense "
    "Text Retrieval|ICLR, https://arxiv.org/abs/2007.00808",
    "sagawa2020groupdro": "Sagawa, Shiori and Koh, Pang Wei and Hashimoto, Tatsunori B. and Liang, "
    "Percy|2020|Distributionally Robust Neural Networks for Group Shifts|ICLR, https://arxiv.org/abs/1911.08731",
    "ma2021qgen": "Ma, Ji and Korotkov, Ivan and Yang, Yinfei and Hall, Keith and McDonald, Ryan|2021|Zero-shot "
    "Neural Passage Retrieval via Domain-targeted Synthetic Question Generation|EACL, https://arxiv.org/abs/2004.14503",
    "wang2022gpl": "Wang, Kexin and Thakur, Nandan and Reimers, Nils and Gurevych, Iryna|2022|GPL: Generative Pseudo "
    "Labeling for Unsupervised Domain Adaptation of Dense Retrieval|NAACL, https://arxiv.org/abs/2112.07577",
    "devlin2019bert": "Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina|2019|BERT: "
    "Pre-training of Deep Bidirectional Transformers for Language Understanding|NAACL, "
    "https://arxiv.org/abs/1810.04805",
    "oren2019cvar": "Oren, Yonatan and Sagawa, Shiori and Hashimoto, Tatsunori B. and Liang, "
    "Percy|2019|Distributionally Robust Language Modeling|EMNLP-IJCNLP, https://arxiv.org/abs/1909.02060",
    "robertson2009bm25": "Robertson, Stephen and Zaragoza, Hugo|2009|The Probabilistic Relevance Framework: BM25 and "
    "Beyond|Foundations and Trends in Information Retrieval 3(4)",
}

# A stage, or a word of its options, to the paper that it comes from.
_CITED = {
    **{"coco": "yu2022cocodr", "idro": "yu2022cocodr", "episodes": "xiong2021ance", "groupdro": "sagawa2020groupdro"},
    **{"qc": "wu2023qc", "cotmae": "wu2023cotmae", "stages": "wu2023qc", "mrl": "zamani2023mrl"},
    **{"condenser": "gao2021condenser", "cocondenser": "gao2022cocondenser", "simcse": "gao2021simcse"},
    **{"ict": "lee2019ict", "tsdae": "wang2021tsdae", "generated": "ma2021qgen", "margin_mse": "wang2022gpl"},
    **{"lambdarank": "zamani2023mrl", "fuse": "robertson2009bm25", "mlm": "devlin2019bert", "cvar": "oren2019cvar"},
}


def write_card(folder: Path, record: TrainingRecord, figures: Sequence[str] = ()) -> None:
    """Write the card of the model in ``folder``.

    Args:
        folder: of the saved model.
        record: of its training, with those of its ancestors.
        figures: lines about what was measured; without any the card states that nothing was.
    """
    lineage = record.lineage()
    root = _HUB_NAMES.get(str(lineage[0].base), str(lineage[0].base))
    tags = ["sentence-transformers", "feature-extraction", "sentence-similarity", "beir-cocodr"]
    hub = root if root in _HUB_NAMES.values() or (_shown(root) == root and root.count("/") == 1) else None
    data = ModelCardData(
        base_model=hub,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*tags, *dict.fromkeys(found.stage for found in lineage)],
    )
    lines = [
        f"---\n{data.to_yaml()}\n---",
        f"# {_shown(root).rsplit('/')[-1]}, trained on by {', '.join(found.stage for found in lineage)}",
        f"An encoder of queries and documents for retrieval, made of `{_shown(root)}` by beir-cocodr "
        f"{record.versions.get('beir-cocodr', '')}".rstrip()
        + ". This card is made of what training recorded in "
        "`training.json` and of what was measured; licence and languages are those that the card of the base states.",
        "## Use",
        *_usage(folder),
        "## Training",
        *(f"{number}. {_stage(found)}" for number, found in enumerate(lineage, 1)),
        "## What it has seen",
        *_seen(lineage),
        "## Figures",
        *(figures or ["Not measured. `beir-cocodr compare` and `beir-cocodr evaluate` measure it on your collection."]),
        "## Citation",
        "```bibtex\n" + "\n\n".join(map(_bibtex, papers(lineage))) + "\n```",
    ]
    write_text(folder / CARD_FILE, "\n\n".join(lines) + "\n")


def papers(lineage: Sequence[TrainingRecord]) -> list[str]:
    """Keys of :data:`PAPERS` that the stages use, and that of the library which loads the model."""
    found = ["reimers2019sbert"]
    for record in lineage:
        options = record.options
        words = [record.stage, *(str(options.get(name)) for name in ("weighting", "student", "loss"))]
        words += [name for name, least in (("episodes", 1), ("stages", 2)) if _number(options.get(name)) >= least]
        words += ["generated"] * any(part.generation for part in record.seen)
        if "margin_mse" in words and "generated" not in words:
            words.remove("margin_mse")
        found += [_CITED[word] for word in words if word in _CITED]
    return list(dict.fromkeys(found))


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _bibtex(key: str) -> str:
    author, year, title, venue = PAPERS[key].split("|")
    return (
        f"@misc{{{key},\n  author = {{{author}}},\n  title = {{{title}}},\n  year = {year},\n  note = {{{venue}}}\n}}"
    )


def _shown(name: str) -> str:
    """A name without the folders of the machine that trained."""
    return Path(name).name if Path(name).is_absolute() or Path(name).exists() else name


def _usage(folder: Path) -> Iterator[str]:
    """How the model is loaded: by sentence-transformers alone where all its modules are stock ones."""
    modules = _read(folder / "modules.json", [])
    settings = _read(folder / "config_sentence_transformers.json", {})
    stock = all(str(module.get("type")).startswith("sentence_transformers.") for module in modules)
    kind = settings.get("model_type", "SentenceTransformer") if stock else "load_encoder"
    package = "sentence_transformers" if stock else "beir_cocodr"
    if not stock:
        yield "It has a part that is no stock module: `pip install beir-cocodr`."
    lines = [f"from {package} import {kind}", "", f'model = {kind}("{PLACEHOLDER}")  # or a folder']
    if kind in ("SentenceTransformer", "load_encoder"):
        lines += [
            'queries = model.encode_query(["how do I sort an array?"])',
            'documents = model.encode_document(["Return a sorted copy of an array."])',
            "print(model.similarity(queries, documents))",
        ]
    yield "```python\n" + "\n".join(lines) + "\n```"
    separator = _read(folder / "text_format.json", {}).get("title_separator")
    if separator is not None:
        yield (
            f"Vectors are compared by {settings.get('similarity_fn_name') or 'cosine'}. A document with a title is the "
            f"title, `{json.dumps(separator)}` and the text."
        )


def _read(file: Path, default: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else default


def _stage(record: TrainingRecord) -> str:
    options = {name: record.options[name] for name in _MAIN if record.options.get(name) is not None}
    settings = ", ".join(f"{name} {value}" for name, value in options.items())
    start = f"`{_shown(str(record.base))}`" + (f" (weights `{record.base_sha256[:16]}`)" if record.base_sha256 else "")
    teacher = f", taught by `{_shown(record.teacher)}`" if record.teacher else ""
    made = [] if record.steps is None else [f"{record.steps:,} steps"]
    made += [] if record.training_loss is None else [f"mean training loss {record.training_loss:.4g}"]
    made += [] if record.seconds is None else [f"{record.seconds:,.0f} seconds"]
    made += [] if record.precision is None else [record.precision]
    return f"**{record.stage}** from {start}{teacher}: {settings}. {', '.join(made)}.".replace(". .", ".")


def _seen(lineage: Sequence[TrainingRecord]) -> Iterator[str]:
    given: Mapping[tuple[str | None, ...], CollectionProvenance] = {
        part.hashes: part for record in lineage for part in record.seen
    }
    for part in given.values():
        stages = ", ".join(dict.fromkeys(record.stage for record in lineage if part in record.seen))
        counts = [f"{part.documents:,} documents"] if part.documents is not None else []
        counts += [f"{part.queries:,} labelled queries ({part.split})"] if part.queries is not None else []
        counts += ["generated queries"] if part.generation else []
        hashes = [("corpus", part.corpus_sha256), ("queries", part.queries_sha256), ("labels", part.qrels_sha256)]
        sums = ", ".join(f"{what} sha256 `{value[:16]}`" for what, value in hashes if value)
        yield f"- `{_shown(part.dataset)}`, by {stages}: {', '.join([*counts, sums])}"
    root = _shown(str(lineage[0].base))
    yield f"What `{root}` had seen before is not on record here; its own card may state it."
