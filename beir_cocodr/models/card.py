"""The card of a model that was trained here: README.md beside it.

It is made from training.json and from what was measured, and not from the base's own card, whose
title, data sets and figures are not true of the model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from beir_cocodr.io import write_text
from beir_cocodr.models.cocodr import CARD_FILE, PLACEHOLDER
from beir_cocodr.models.papers import bibtex
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import CollectionProvenance

_HUB_NAMES = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "beir-cocodr")

# The paper of the library that loads the model.
_LIBRARY_PAPER = "reimers2019sbert"

# Options that a reader of the card looks for first.
_MAIN_OPTIONS = (
    "objective",
    "weighting",
    "loss",
    "student",
    "negatives",
    "episodes",
    "stages",
    "clusters",
    "max_steps",
    "epochs",
    "batch_size",
    "learning_rate",
    "warmup",
    "lexical",
    "bm25_weight",
    "seed",
    "weight_reason",
)


def write_card(
    folder: Path, record: TrainingRecord, figures: Mapping[str, Any] | None = None
) -> None:
    """Write the card of a model.

    Args:
        folder: the folder of the model.
        record: the record of its training, with those of its ancestors.
        figures: what an adaptation measured, see
            :func:`~beir_cocodr.training.adapt.figures_of`.
    """
    lineage = record.lineage()
    root = _HUB_NAMES.get(str(lineage[0].base), str(lineage[0].base))
    is_hub_name = "/" in root and _without_folders(root) == root
    data = ModelCardData(
        base_model=root if is_hub_name else None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*_TAGS, *dict.fromkeys(training.stage for training in lineage)],
    )
    settings = _read(folder / "config_sentence_transformers.json", {})
    modules = _read(folder / "modules.json", [])
    stock = all(module["type"].startswith("sentence_transformers.") for module in modules)
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.md")),
        root=_without_folders(root),
        lineage=lineage,
        options=[_main_options(training) for training in lineage],
        version=record.versions.get("beir-cocodr", ""),
        stock=stock,
        kind=settings.get("model_type", "SentenceTransformer") if stock else "load_encoder",
        placeholder=PLACEHOLDER,
        similarity=settings.get("similarity_fn_name") or "cosine",
        separator=_read(folder / "text_format.json", {}).get("title_separator"),
        seen=list(_seen(lineage)),
        papers=papers(lineage),
        shown=_without_folders,
        **(figures or {}),
    )
    write_text(folder / CARD_FILE, f"{card}\n")


def papers(lineage: Sequence[TrainingRecord]) -> list[str]:
    """Return the BibTeX entries of the methods, and of the library that loads the model."""
    citations = [_LIBRARY_PAPER]
    for training in lineage:
        citations += training.citations
    return [_entry(citation) for citation in dict.fromkeys(citations)]


def _entry(citation: str) -> str:
    """Return the BibTeX entry of a key, or an entry as it is."""
    citation = citation.strip()
    if citation.startswith("@"):
        return citation
    return bibtex(citation)


def _main_options(training: TrainingRecord) -> dict[str, object]:
    """Return the options of a training that a reader looks for first, in their order."""
    known = dict(_flat(training.options))
    steps = known.get("max_steps")
    by_steps = isinstance(steps, int) and steps > 0
    left_out = "epochs" if by_steps else "max_steps"
    main_options: dict[str, object] = {}
    for name in _MAIN_OPTIONS:
        value = known.get(name)
        if value is not None and name != left_out:
            main_options[name] = value
    return main_options


def _flat(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the options, with those of nested options."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _seen(
    lineage: Sequence[TrainingRecord],
) -> Iterator[tuple[CollectionProvenance, list[str]]]:
    """Yield every collection that training was given, with the stages that were given it."""
    parts = {part.hashes: part for training in lineage for part in training.seen}
    for part in parts.values():
        yield part, [training.stage for training in lineage if part in training.seen]


def _without_folders(name: str) -> str:
    """Return a name without the folders of the machine that trained."""
    path = Path(name)
    if path.is_absolute() or path.exists():
        return path.name
    return name


def _read(file: Path, default: object) -> Any:
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return default
