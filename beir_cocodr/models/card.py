"""The card of a model that was trained here: README.md beside it, made of training.json and of what
was measured, and not of the base's own card, whose title, data sets and figures are not true of it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from beir_cocodr.io import write_text
from beir_cocodr.models.cocodr import CARD_FILE, PLACEHOLDER
from beir_cocodr.models.papers import PAPERS
from beir_cocodr.provenance import TrainingRecord

_HUB_NAMES = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "beir-cocodr")

# Options that a reader of the card looks for first, of those that a stage has.
_MAIN = (
    "objective weighting loss student negatives episodes stages clusters max_steps epochs batch_size learning_rate "
    "warmup lexical bm25_weight seed"
).split()

# A stage, or a word of its options, to the paper that it comes from.
_CITED = {
    **{
        "coco": "yu2022cocodr",
        "idro": "yu2022cocodr",
        "episodes": "xiong2021ance",
        "groupdro": "sagawa2020groupdro",
    },
    **{"qc": "wu2023qc", "cotmae": "wu2023cotmae", "stages": "wu2023qc", "mrl": "zamani2023mrl"},
    **{
        "condenser": "gao2021condenser",
        "cocondenser": "gao2022cocondenser",
        "simcse": "gao2021simcse",
    },
    **{
        "ict": "lee2019ict",
        "tsdae": "wang2021tsdae",
        "generated": "ma2021qgen",
        "margin_mse": "wang2022gpl",
    },
    **{
        "lambdarank": "zamani2023mrl",
        "fuse": "robertson2009bm25",
        "mlm": "devlin2019bert",
        "cvar": "oren2019cvar",
    },
}


def write_card(
    folder: Path, record: TrainingRecord, figures: Mapping[str, Any] | None = None
) -> None:
    """Write the card of the model in ``folder`` by the record of its training, with those of its
    ancestors, and the figures that :func:`~beir_cocodr.training.output_folder.figures_of` gives.
    """
    lineage = record.lineage()
    root = _HUB_NAMES.get(str(lineage[0].base), str(lineage[0].base))
    data = ModelCardData(
        base_model=root if "/" in root and _shown(root) == root else None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*_TAGS, *dict.fromkeys(found.stage for found in lineage)],
    )
    settings = _read(folder / "config_sentence_transformers.json", {})
    modules = _read(folder / "modules.json", [])
    stock = all(module["type"].startswith("sentence_transformers.") for module in modules)
    parts = {part.hashes: part for found in lineage for part in found.seen}
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md")),
        root=_shown(root),
        lineage=lineage,
        version=record.versions.get("beir-cocodr", ""),
        stock=stock,
        kind=settings.get("model_type", "SentenceTransformer") if stock else "load_encoder",
        placeholder=PLACEHOLDER,
        similarity=settings.get("similarity_fn_name") or "cosine",
        separator=_read(folder / "text_format.json", {}).get("title_separator"),
        seen=[
            (part, [found.stage for found in lineage if part in found.seen])
            for part in parts.values()
        ],
        **(figures or {}),
        papers=[PAPERS[key] for key in papers(lineage)],
        main=_MAIN,
        shown=_shown,
    )
    write_text(folder / CARD_FILE, f"{card}\n")


def papers(lineage: Sequence[TrainingRecord]) -> list[str]:
    """Keys of :data:`PAPERS` that the stages use, and that of the library which loads the model."""
    found = ["reimers2019sbert"]
    for record in lineage:
        options = record.options
        words = [
            record.stage,
            *(str(options.get(name)) for name in ("weighting", "student", "loss")),
        ]
        words += [
            name
            for name, least in (("episodes", 1), ("stages", 2))
            if _number(options.get(name)) >= least
        ]
        words += ["generated"] * any(part.generation for part in record.seen)
        if "margin_mse" in words and "generated" not in words:
            words.remove("margin_mse")
        found += [_CITED[word] for word in words if word in _CITED]
    return list(dict.fromkeys(found))


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _shown(name: str) -> str:
    """A name without the folders of the machine that trained."""
    return Path(name).name if Path(name).is_absolute() or Path(name).exists() else name


def _read(file: Path, default: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else default
