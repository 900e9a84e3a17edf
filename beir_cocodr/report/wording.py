"""Words and figures as reports show them: names of models and collections, signed numbers,
intervals.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from beir_cocodr.evaluation.results import TRAINED_ON, Likeness, PseudoQueryFigures
from beir_cocodr.models.spec import ModelSpec

# What neither HTML nor XML may hold, even as a reference.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def allowed_text(text: str) -> str:
    """The text with U+FFFD for every character that is not allowed, so that it is seen; keeps its
    type.
    """
    return type(text)(_FORBIDDEN.sub("\ufffd", text)) if _FORBIDDEN.search(text) else text


def collection_name(dataset: str) -> str:
    """The last part of a path; the name of a collection that has one (``irds:ID``,
    ``apidocs/DOMAIN``).
    """
    if dataset.startswith(("irds:", "apidocs/")):
        return dataset
    path = Path(dataset)
    is_path = path.is_absolute() or dataset.startswith((".", "~")) or len(path.parts) > 2
    return path.name or dataset if is_path else dataset


#: The rule of verdicts on collections that are unlike those of the calibration: their estimates are
#: not counted.
UNLIKE = "unlike"

#: What terms of the page mean, by a pattern.
_TERMS = {
    r"nDCG(@(\d+))?": "how near the top of the first {} the relevant documents stand; 1 is best",
    r"(?:R|Recall|R_cap)(@(\d+))?": "share of the relevant documents that are among the first {}; 1 is best",
    r"(?:AP|MAP)(@(\d+))?": "precision at the rank of each relevant document among the first {}, on average; 1 is best",
    r"RR(@(\d+))?": "one over the rank of the first relevant document among the first {}; 1 is best",
    r"P(@(\d+))?": "share of the first {} that are relevant; 1 is best",
    r"95% interval": "where the true difference lies, with 95% confidence: a bootstrap over queries",
    r"p after Holm": "chance of such a difference between equal models, by a two-tailed paired t-test, after Holm's "
    "correction for the number of tests",
    r"Won / tied / lost": "queries on which the model is better, equal and worse",
    r"Chance to be better": "estimated from the collections of the calibration, without labels",
    r"Estimated nDCG@10": "the expected difference, without labels, and where it lies with 90% confidence",
    r"Held-out crops": "a part of a document that was taken out has to find the rest of it",
    r"Generated queries": "queries made of a document's words have to find it",
    r"(?i:agreement.*)": "how far the lists of the models agree",
}


def meaning(term: str) -> str:
    """What a measure or another term means, for who does not know it; "" where nothing is known."""
    for pattern, text in _TERMS.items():
        if found := re.fullmatch(pattern, term):
            depth = found[2] if found.re.groups else ""
            return text.format(f"{depth} documents" if depth else "documents found")
    return ""


def signed(value: float, digits: int = 3, sign: str = "+") -> str:
    """With its sign, and a true minus."""
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def span(
    interval: Sequence[float] | None, digits: int = 3, sign: str = "+", none: str = "–"
) -> str:
    """An interval, by default of a difference; ``none`` where there is none."""
    return none if interval is None else " to ".join(signed(end, digits, sign) for end in interval)


def p_value(p: float | None, digits: int = 3, name: bool = False) -> str:
    """A p value; with ``name``, as in a sentence."""
    if p is None:
        return "one query, no test" if name else "–"
    least = 10**-digits
    text = f"< {least:.{digits}f}" if p < least else f"{p:.{digits}f}"
    return text if not name else f"p {text}" if p < least else f"p = {text}"


def format_number(value: float | None, form: str = ".2f") -> str:
    """A number in Python's format language; a dash where there is none."""
    return "–" if value is None else format(value, form)


def format_numbers(form: str, *values: float | None) -> list[str]:
    """Numbers of one format, see `format_number`."""
    return [format_number(value, form) for value in values]


def capitalized(text: str) -> str:
    """With a capital letter in front, and the others as they are."""
    return text[:1].upper() + text[1:]


def describe_pseudo_queries(pseudo_queries: Mapping[str, PseudoQueryFigures]) -> Iterator[str]:
    """How easy pseudo-queries are, and which of them were left out."""
    for name, made in pseudo_queries.items():
        if made.verbatim is not None:
            yield (
                f"{name}: {made.queries:,}; {made.verbatim:.0%} of their words stand in the document that "
                f"they have to find, and BM25 alone has nDCG@10 {format_number(made.bm25_ndcg, '.3f')}"
            )
        if known := made.counts.get(TRAINED_ON):
            yield f"{name}: {known:,} left out, as a model was trained on them"


def describe_likeness(likeness: Likeness | None) -> Iterator[str]:
    """How far a collection is like those of the calibration."""
    if likeness is not None:
        figures = ", ".join(f"{name} {value:,.3g}" for name, value in likeness.figures.items())
        unlike = "; ".join(likeness.remarks)
        end = (
            f"unlike them ({unlike}), so nothing is decided"
            if unlike
            else "like them in all of these"
        )
        yield f"Against the collections of the calibration: {figures}; {end}."


_MOST = 40


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """Label to a short name: of a path its last part, with ``hybrid:`` and the like before it.

    Names that would be equal stay as long as they are.
    """
    labels = list(labels)
    names = {label: _short(label) for label in labels}
    times = Counter(names.values())
    return {label: name if times[name] == 1 else label for label, name in names.items()}


def _short(label: str) -> str:
    spec = ModelSpec.parse(label)
    prefix, rest = spec.prefix, spec.encoder
    if "/" in rest and " " not in rest:
        rest = rest.rstrip("/").rsplit("/", 1)[-1] or rest
    name = prefix + rest
    return name if len(name) <= _MOST else f"{name[: _MOST // 2]}…{name[-_MOST // 2 + 1 :]}"
