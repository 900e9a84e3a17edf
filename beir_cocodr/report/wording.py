"""Words and numbers as reports print them: names, signed numbers, intervals, meanings of terms."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from beir_cocodr.evaluation.label_free.estimators import PARTS, SPECIFICITY
from beir_cocodr.evaluation.results import (
    TRAINED_ON,
    Estimate,
    Likeness,
    PairedTest,
    PairVerdict,
    PseudoQueryFigures,
)
from beir_cocodr.models.spec import ModelSpec

# Characters that neither HTML nor XML may hold, even as references.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

#: Why an estimate counts as something else than its mean difference.
COUNTED = "at the margins of real queries, and relative to the level of both models"

# The least difference between an estimate and what it counts as that is shown.
_DIFFERING = 0.0005


def describe_specificity(pairs: Iterable[PairVerdict]) -> list[str]:
    """Return what specificity is, if an estimate rests on it."""
    if SPECIFICITY not in estimators_of(pairs):
        return []
    return [
        f"{SPECIFICITY}: how probable it is that the two best documents of a query are not among "
        "the ten best of any of nine other queries"
    ]


def counted(pair: PairVerdict, estimate: Estimate) -> float | None:
    """Return what an estimate of a pair counts as, where that differs from its mean difference.

    A lead on crops and titles counts at the margins that real queries have. What counts of other
    estimates has the size of their mean difference, or another unit.
    """
    if estimate.estimator not in PARTS:
        return None
    value = pair.features.get(estimate.estimator)
    if value is None or estimate.difference is None or not estimate.applies:
        return None
    return value if abs(value - estimate.difference) >= _DIFFERING else None


def allowed_text(text: str) -> str:
    """Return the text with U+FFFD for each forbidden character; a subclass of str is kept."""
    if not _FORBIDDEN.search(text):
        return text
    return type(text)(_FORBIDDEN.sub("\ufffd", text))


def estimators_of(pairs: Iterable[PairVerdict]) -> list[str]:
    """Return the estimators that say something about at least one pair, in their order."""
    names: dict[str, None] = {}
    for pair in pairs:
        for estimate in pair.estimates:
            if estimate.difference is not None:
                names[estimate.estimator] = None
    return list(names)


def without_settings(dataset: str) -> str:
    """Return the name of a dataset without the settings of reading after its question mark."""
    return dataset.partition("?")[0]


def collection_name(dataset: str) -> str:
    """Return the last part of a path, or the whole name of a collection that is not a path."""
    dataset = without_settings(dataset)
    if dataset.startswith(("irds:", "apidocs/")):
        return dataset
    path = Path(dataset)
    is_path = path.is_absolute() or dataset.startswith((".", "~")) or len(path.parts) > 2
    if not is_path:
        return dataset
    return path.name or dataset


#: Meanings of the terms on the page, by a pattern. Braces are replaced by the measure's depth.
_TERMS = {
    r"nDCG(@(\d+))?": "how close relevant documents are to the top of the first {}; 1 is best",
    r"(?:R|Recall|R_cap)(@(\d+))?": "share of the relevant documents among the first {}; 1 is best",
    r"(?:AP|MAP)(@(\d+))?": "mean precision at the rank of each relevant document among the first "
    "{}; 1 is best",
    r"RR(@(\d+))?": "one divided by the rank of the first relevant document among the first {}; 1 "
    "is best",
    r"P(@(\d+))?": "share of relevant documents among the first {}; 1 is best",
    r"95% interval": "range of the true difference with 95% confidence, by a bootstrap over "
    "queries",
    r"p after Holm": "probability of a difference at least as large between equal models, by a "
    "two-tailed paired t-test with Holm's correction for the number of tests",
    r"Won / tied / lost": "queries on which the model is better, equal and worse",
    r"Chance to be better": "probability that the model is better, estimated without labels by the "
    "calibration",
    r"Estimated nDCG@10": "expected difference, estimated without labels, with its 90% interval",
    r"Share of the prior": "share of the estimate that rests on what usually wins on labelled "
    "collections, and not on evidence from this corpus",
    r"Held-out crops": "a passage is cut out of a document and must retrieve the rest of it",
    r"Generated queries": "queries generated from a document must retrieve it",
    r"(?i:agreement.*)": "how far the rankings of the two models agree",
}


def meaning(term: str) -> str:
    """Return the meaning of a measure or another term for a newcomer, "" for an unknown one."""
    for pattern, text in _TERMS.items():
        match = re.fullmatch(pattern, term)
        if match is None:
            continue
        depth = match[2] if match.re.groups else ""
        return text.format(f"{depth} documents" if depth else "retrieved documents")
    return ""


def signed(value: float, digits: int = 3, sign: str = "+") -> str:
    """Return a number with its sign, and a true minus."""
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def span(
    interval: Sequence[float] | None,
    digits: int = 3,
    sign: str = "+",
    none: str = "–",
) -> str:
    """Return an interval, by default of a difference.

    Args:
        interval: its two ends, or None.
        digits: digits after the point.
        sign: "+" to write positive signs, "" to leave them out.
        none: text for None.
    """
    if interval is None:
        return none
    return " to ".join(signed(end, digits, sign) for end in interval)


def p_value(p: float | None, digits: int = 3, name: bool = False) -> str:
    """Return a p value, or words if there was no test.

    Args:
        p: the value, None where a single query allows no test.
        digits: digits after the point.
        name: write "p = 0.012", as in a sentence, instead of the number alone.
    """
    if p is None:
        return "1 query, no test" if name else "–"
    if p == 1:
        return "p = 1" if name else "1"
    least = 10**-digits
    if p < least:
        text = f"< {least:.{digits}f}"
        return f"p {text}" if name else text
    if name:
        return f"p = {p:.{digits}f}"
    return f"{p:.{digits}f}"


def says_something(test: PairedTest) -> bool:
    """Return whether the interval of a test says what the test says.

    The interval is of the test alone, and p is corrected for all tests: beside a p that shows no
    difference, an interval on one side of 0 would look as if it showed one.
    """
    if test.interval is None:
        return False
    low, high = test.interval
    return test.verdict != "cannot tell" or low < 0 < high


def interval_or_words(test: PairedTest) -> str:
    """Return the interval of a difference, or words where it says nothing."""
    if says_something(test):
        return span(test.interval)
    if not test.wins and not test.losses:
        return "all tied"
    return "" if test.interval is None else "not significant"


def format_number(value: float | None, form: str = ".2f") -> str:
    """Return a number in Python's format language, a dash for None."""
    if value is None:
        return "–"
    return format(value, form)


def format_numbers(form: str, *values: float | None) -> list[str]:
    """Return numbers of one format, see :func:`format_number`."""
    return [format_number(value, form) for value in values]


def capitalized(text: str) -> str:
    """Return the text with a capital first letter, and all others as they are."""
    return text[:1].upper() + text[1:]


def describe_pseudo_queries(pseudo_queries: Mapping[str, PseudoQueryFigures]) -> Iterator[str]:
    """Yield how easy pseudo-queries are, and how many were left out."""
    for name, figures in pseudo_queries.items():
        if figures.verbatim is not None:
            yield (
                f"{name}: {figures.queries:,} queries; {figures.verbatim:.0%} of their words occur "
                "in the document that they must retrieve, and BM25 alone reaches nDCG@10 "
                f"{format_number(figures.bm25_ndcg, '.3f')}"
            )
        if figures.held_words:
            shares = ", ".join(
                f"{model} {share:.0%}" for model, share in figures.held_words.items()
            )
            yield (
                f"{name}: share of a query's words in the three best documents, on average: "
                f"{shares}"
            )
        trained_on = figures.counts.get(TRAINED_ON)
        if trained_on:
            yield f"{name}: {trained_on:,} left out, because a model was trained on them"


def describe_likeness(likeness: Likeness | None) -> Iterator[str]:
    """Yield how far a collection is like those of the calibration."""
    if likeness is None:
        return
    figures = ", ".join(f"{name} {value:,.3g}" for name, value in likeness.figures.items())
    if likeness.remarks:
        unusual = "; ".join(likeness.remarks)
        end = f"it is unusual among them ({unusual}), so the intervals are wider"
    else:
        end = "it resembles them in all of these figures"
    yield f"This collection compared with those of the calibration: {figures}; {end}."
    if likeness.doubts:
        yield f"Crops and titles count for less here: {'; '.join(likeness.doubts)}."


#: The most characters of a short name.
_MOST = 40


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """Return label to a short name: the last part of a path, with a prefix such as ``hybrid:``.

    Labels whose short names would be equal are kept whole.
    """
    names = {label: _short(label) for label in labels}
    times = Counter(names.values())
    return {label: name if times[name] == 1 else label for label, name in names.items()}


def _short(label: str) -> str:
    spec = ModelSpec.parse(label)
    encoder = spec.encoder
    if "/" in encoder and " " not in encoder:
        encoder = encoder.rstrip("/").rsplit("/", 1)[-1] or encoder
    name = spec.prefix + encoder
    if len(name) <= _MOST:
        return name
    return f"{name[: _MOST // 2]}…{name[-_MOST // 2 + 1 :]}"
