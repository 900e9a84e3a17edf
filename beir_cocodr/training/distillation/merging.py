"""Merging of a distilled encoder with the one that it started from, on another kind of queries.

Averaged weights keep what was general in the base. How much of each is taken is chosen on
queries of a kind that was not trained on, and confirmed on others of the kind: if one half does
not gain, the base is kept unchanged. The kind is one of those that were generated; if there is only
one, it is crops, which are cut out of documents as in the verdict.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beir_cocodr.arrays import Doubles
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents, write_arrow
from beir_cocodr.data.text import TextFormat, query_key
from beir_cocodr.distributed import do_each, rank, world_size
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.judged_vectors import CONFIDENCE, gain_confidence
from beir_cocodr.evaluation.label_free.held_out_queries import HeldOutQueries
from beir_cocodr.generation.generation_record import GENERATION_FILE, read_generation
from beir_cocodr.io import parse_json
from beir_cocodr.provenance import SPANS
from beir_cocodr.records import Json
from beir_cocodr.training.hard_negatives.bm25_negatives import relevant_rows
from beir_cocodr.training.held_out import MEASURE, CheckpointSelection
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.trainer import Stage

log = logging.getLogger(__name__)

#: Shares of the distilled weights that are tried, against the rest of 1 of the base.
SHARES = (0.25, 0.5, 0.75, 1.0)

#: The kind of generated queries that is held out where there are several: of those that are made
#: without a model, titles judge with the least bias.
_PREFERRED = "titles"

#: A kind that is never held out: its queries are words of their documents, which favours a student
#: of a teacher that counts words. They confirmed models that lost on people's queries.
_EXACT_WORDS = "keywords"

#: What is held out if all generated queries are of one kind: runs of words, cut out of documents.
CROPS = "crops"

# Kinds that are spans of their documents if no model writes them.
_OF_SPANS = ("claims", "titles")

# Queries that choose the share and confirm it, at least in all.
_FEWEST = 8

_LATIN = "[a-zA-Z0-9]"

Weights = dict[str, torch.Tensor]


def generated_kinds(folder: Path) -> dict[str, str]:
    """Return query id to kind of a folder of ``generate-queries``, empty without kinds.

    Raises:
        InputError: A line of queries.jsonl is damaged.
    """
    kinds: dict[str, str] = {}
    file = folder / "queries.jsonl"
    if not (folder / GENERATION_FILE).is_file():
        return kinds
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            problem = f"{file}:{number} is not a query"
            with explained(problem, "generate them again", ValueError, KeyError, TypeError):
                query = parse_json(line)
                kind = query["metadata"].get("kind")
                if kind is not None:
                    kinds[query["_id"]] = kind
    return kinds


def kind_to_hold_out(kinds: Mapping[str, str]) -> str:
    """Return the kind that merging is chosen on: crops if there are not two kinds of queries.

    A kind of fewer than 8 queries is trained on, but cannot choose.
    """
    counts = Counter(kinds.values())
    names = [name for name, count in counts.items() if count >= _FEWEST]
    if len(names) < 2:
        return CROPS
    if _PREFERRED in names:
        return _PREFERRED
    return [name for name in names if name != _EXACT_WORDS][-1]


def practised_spans(collection: Collection) -> tuple[str, ...]:
    """Return what training on a collection's queries practises beside generated queries."""
    return (SPANS,) if has_spans(Path(collection.name)) else ()


def has_spans(folder: Path) -> bool:
    """Return true for a folder of generated queries of which some are spans of their documents.

    Claims and titles are if no model wrote them, and so are queries that are of no named kind.
    """
    if not (folder / GENERATION_FILE).is_file():
        return False
    if read_generation(folder).generator.get("kind") != "lexical":
        return False
    counts = Counter(generated_kinds(folder).values())
    return not counts or any(counts[kind] >= _FEWEST for kind in _OF_SPANS)


def check_merging(folder: Path, merge_on: str | None) -> None:
    """Check, before anything is trained, that crops may choose how weights are merged.

    Raises:
        InputError: The queries are spans of documents themselves.
    """
    if merge_on is None:
        merge_on = kind_to_hold_out(generated_kinds(folder))
    if merge_on == CROPS and has_spans(folder):
        raise InputError(
            f"{folder}: queries that are spans of documents are trained on, so crops cannot show "
            "whether training gains; generate several kinds with --query-kinds"
        )


def split_for_merging(
    collection: Collection, merge_on: str | None
) -> tuple[Collection, Collection | None]:
    """Split a collection of generated queries into those that are trained on and the held-out kind.

    Returns:
        All queries and None where no generated queries are held out: without merging, and where it
        is chosen on crops.

    Raises:
        InputError: There are too few queries of the kind, or no others; or crops are asked for, but
            the queries are spans of documents themselves.
    """
    if merge_on is None:
        return collection, None
    if merge_on != CROPS:
        return without_kind(collection, merge_on)
    check_merging(Path(collection.name), merge_on)
    return collection, None


def without_kind(collection: Collection, kind: str) -> tuple[Collection, Collection]:
    """Split a collection of generated queries into the others and those of a kind.

    A query of the kind is left out if a text or a document repeats, and a query of another kind if
    its text is held out.

    Raises:
        InputError: There are too few queries of the kind, or no others.
    """
    kinds = generated_kinds(Path(collection.name))
    relevant = relevant_rows(collection)
    of_kind = [query for query in collection.queries if kinds.get(query) == kind]
    held = _distinct(collection, [query for query in of_kind if query in relevant])
    held_texts = {query_key(collection.queries[query]) for query in held}
    others = [
        query
        for query, text in collection.queries.items()
        if kinds.get(query) != kind and query_key(text) not in held_texts
    ]
    if len(held) < _FEWEST or not others:
        raise InputError(
            f"{collection.name}: merge_on {kind} needs {_FEWEST} different generated queries of "
            f"this kind and some of others; there are {len(held)} and {len(others)}; name another "
            "kind, or generate more"
        )
    return _only(collection, others), _only(collection, held)


def _distinct(collection: Collection, names: Sequence[str]) -> list[str]:
    """Return queries of which no two share a text or a document.

    Those that confirm a share are then independent of those that chose it. A text that asks for
    several documents, such as a title that they share, is no query for one of them.
    """
    relevant = relevant_rows(collection)
    of_text: dict[str, list[str]] = {}
    for name in names:
        of_text.setdefault(query_key(collection.queries[name]), []).append(name)
    kept = []
    asked: set[int] = set()
    for same in of_text.values():
        rows = {row for name in same for row in relevant[name].tolist()}
        if len(rows) == 1 and asked.isdisjoint(rows):
            kept.append(same[0])
            asked |= rows
    return kept


def _only(collection: Collection, names: Sequence[str]) -> Collection:
    queries = {name: collection.queries[name] for name in names}
    qrels = {name: collection.qrels[name] for name in names if name in collection.qrels}
    return replace(collection, queries=queries, qrels=qrels)


def drawn(collection: Collection, count: int, seed: int) -> Collection:
    """Return a collection with at most so many of its queries, drawn at random."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(sorted(collection.queries)).tolist()
    return _only(collection, names[:count])


def write_without_texts(collection: Collection, file: Path) -> None:
    """Write a corpus in which the texts of queries are cut out of the documents they ask for.

    A query that was copied from its document would lead to it whatever the weights are.

    Args:
        collection: Held-out queries.
        file: Where the changed corpus is written.
    """
    of_row: dict[int, list[str]] = {}
    for query, rows in relevant_rows(collection).items():
        text = collection.queries[query]
        for row in rows.tolist():
            of_row.setdefault(row, []).append(text)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_arrow(file, _cut_documents(collection.documents, of_row))


def cut_crops(
    collection: Collection, count: int, seed: int, folder: Path
) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Cut runs of words out of random documents; each becomes a query that asks for its document.

    Args:
        collection: The corpus, and the queries that are trained on, which are not cut again.
        count: The most crops.
        seed: Seed of the drawing.
        folder: Where the corpus without the crops is written, as
            :data:`~beir_cocodr.evaluation.label_free.held_out_queries.CORPUS_FILE`.

    Returns:
        Queries and judgements, as a collection has them.

    Raises:
        InputError: Fewer than 8 documents are long enough.
    """
    trained_on = set(collection.queries.values())
    drawing = HeldOutQueries(collection.documents, count, seed, trained_on.__contains__)
    drawing.draw_matched_crops(CROPS)
    crops = drawing.queries()[CROPS]
    if len(crops.texts) < _FEWEST:
        raise InputError(
            f"{collection.name}: merging needs {_FEWEST} crops, and its documents gave "
            f"{len(crops.texts)}; generate several kinds with --query-kinds, or leave distill out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    drawing.write_corpus(folder)
    names = collection.documents.ids(crops.rows)
    qrels = {query: {name: 1} for query, name in zip(crops.queries, names, strict=True)}
    return crops.queries, qrels


def _cut_documents(
    documents: Documents, of_row: Mapping[int, Sequence[str]]
) -> Iterator[tuple[int, str, str, str]]:
    for row, (name, document) in enumerate(documents.items()):
        title = document["title"]
        text = document["text"]
        for query in of_row.get(row, ()):
            pattern = _pattern_of(query)
            title = pattern.sub(" ", title)
            text = pattern.sub(" ", text)
        # A document of nothing but its queries stays as it is.
        if not (title + text).strip():
            title = document["title"]
            text = document["text"]
        yield row, name, title, text


def _pattern_of(query: str) -> re.Pattern[str]:
    """Return a pattern of a query as whole words, on one line or on several."""
    words = [re.escape(word) for word in query.split()]
    pattern = r"\s+".join(words)
    # Only Latin words are sure to have no letter beside them.
    if re.match(_LATIN, query):
        pattern = f"(?<!{_LATIN}){pattern}"
    if re.match(_LATIN, query[-1:]):
        pattern = f"{pattern}(?!{_LATIN})"
    return re.compile(pattern)


@dataclass
class Merging:
    """The end of a distillation: the share of the distilled weights is chosen and confirmed.

    All processes of a run share the queries.

    Attributes:
        selection: Measures the held-out queries of another kind.
        model: The encoder that is trained.
        base: Its weights before.
        kind: The kind of the held-out queries.
        record: What chose the share, once it is chosen.
    """

    selection: CheckpointSelection
    model: Any
    base: Weights
    kind: str
    record: Json = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        held: Collection,
        model: Any,
        text_format: TextFormat,
        options: DistillOptions,
        output: Path,
    ) -> Merging:
        """Keep the weights of the encoder as it is, and search for the candidates."""
        selection = CheckpointSelection(
            held=held,
            model=model,
            text_format=text_format,
            options=options,
            output=output,
            examples=1,
        )
        return cls(
            selection=selection,
            model=model,
            base=copy_of(model.state_dict()),
            kind=str(options.merge_on),
        )

    def added_to(self, stage: Stage) -> Stage:
        """Return the stage with merging after its own end."""

        def finish(folder: Path) -> Json:
            return stage.finish(folder) | {"merging": self.record}

        return replace(stage, concluding=[*stage.concluding, self.merge], finish=finish)

    def merge(self) -> None:
        """Put merged weights into the model after training, on every process."""
        tuned = copy_of(self.model.state_dict())
        names = list(self.selection.candidates)
        half = len(names) // 2
        values: dict[float, Doubles] = {}
        means: dict[float, float] = {}
        for share in (0.0, *SHARES):
            values[share] = self._measure(tuned, share, names)
            means[share] = float(values[share][:half].mean())
        chosen = max(SHARES, key=lambda share: (round(means[share], 9), -share))
        # The half that did not choose the share.
        base_values = values[0.0][half:]
        chosen_values = values[chosen][half:]
        differences = chosen_values - base_values
        confidence = gain_confidence(differences)
        # A share that loses on the half that chose it is only the least bad one.
        has_gained = round(means[chosen] - means[0.0], 9) > 0
        is_kept = has_gained and confidence >= CONFIDENCE
        share = chosen if is_kept else 0.0
        self.model.load_state_dict(merged(self.base, tuned, share))
        by_share = {
            str(one): round(gain_confidence(values[one] - values[0.0]), 4) for one in SHARES
        }
        if rank() == 0:
            log.info(
                "merging on %d %s: share %g of the distilled weights, %s %.4f to %.4f on the half "
                "that chose it, and %.4f to %.4f on the other one, a gain with %.0f%% confidence: "
                "%s",
                len(names),
                self.kind,
                chosen,
                MEASURE,
                means[0.0],
                means[chosen],
                float(base_values.mean()),
                float(chosen_values.mean()),
                100 * confidence,
                "merged" if is_kept else "the base is kept unchanged",
            )
        self.record = {
            "kind": self.kind,
            "measure": MEASURE,
            "queries": len(names),
            "means": {str(one): round(mean, 6) for one, mean in means.items()},
            "chosen": chosen,
            "gain": round(float(differences.mean()), 6),
            "confidence": round(confidence, 4),
            "confidence_on_all": by_share,
            "share": share,
        }

    def _measure(self, tuned: Weights, share: float, names: Sequence[str]) -> Doubles:
        """Return the (Q,) reciprocal ranks of queries with merged weights."""
        self.model.load_state_dict(merged(self.base, tuned, share))
        self.model.eval()
        processes = world_size()
        values = np.zeros(len(names))
        of_process = names[rank() :: processes]
        parts = do_each(lambda: self.selection.reciprocal_ranks(of_process))
        for first, part in enumerate(parts):
            values[first::processes] = part
        return values


def merged(base: Weights, tuned: Weights, share: float) -> Weights:
    """Return the weighted mean of two sets of weights; what is no float is taken from ``tuned``.

    Args:
        base: Name to weights.
        tuned: The same names.
        share: Weight of ``tuned``, from 0 to 1.

    References:
        Wortsman et al., Robust fine-tuning of zero-shot models, 2022 (WiSE-FT).
    """
    weights: Weights = {}
    for name, value in tuned.items():
        if not value.is_floating_point() or share == 1:
            weights[name] = value
        elif share == 0:
            weights[name] = base[name]
        else:
            weights[name] = torch.lerp(base[name], value, share)
    return weights


def copy_of(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Return a copy of weights, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in weights.items()}
