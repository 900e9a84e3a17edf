"""One self-contained page about the output of a command.

The page itself, from its parts.

Where the page goes.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.io import output_folder, write_text
from beir_cocodr.report.html.outputs import (
    Found,
    Judgement,
    Scores,
    Texts,
    collection_texts,
    find_files,
    judgement,
    per_query_scores,
)
from beir_cocodr.report.html.sections import (
    DrillDown,
    comparison_parts,
    contamination_section,
    drill_down,
    facts,
    training_parts,
)
from beir_cocodr.report.html.text import allowed_text, collection_name, short_names
from beir_cocodr.report.html.verdict import (
    Headline,
    label_free_headline,
    labelled_headline,
    unjudged_headline,
)

_FOLDER = "beir_cocodr.report.html"

#: Marks a page as ours.
GENERATOR = "beir-cocodr report"


def page(parts: dict[str, Any]) -> str:
    """Fill the template; everything from data is escaped, pictures come as markup of their own.

    Args:
        parts: what the template names.
    """
    import jinja2
    from markupsafe import Markup

    def read(name: str) -> str:
        return resources.files(_FOLDER).joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_allowed,
    )
    # The order of keys has a meaning, and is not the alphabet's.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style, script = Markup(read("style.css")), Markup(read("script.js"))
    return environment.get_template("page.html").render(
        generator=GENERATOR, style=style, script=script, markup=Markup, **parts
    )


def _allowed(value: Any) -> Any:
    return allowed_text(value) if isinstance(value, str) else value


_HEAD = 2_000


def output_file(path: Path) -> Path:
    """Check that the page may be written there: nothing stands there yet, or a report of ours.

    Raises:
        InputError: something else stands there, or the folder cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with --output")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
        if f'<meta name="generator" content="{GENERATOR}">' not in head:
            raise InputError(f"{path} is no report of ours and is left as it is; choose another --output")
    output_folder(path.parent)
    return path


#: Queries that are shown one by one.
QUERIES = 50


def write_report(
    folder: Path,
    output: Path | None = None,
    dataset: str | None = None,
    split: str | None = None,
    queries: int = QUERIES,
    published: Sequence[Path] = (),
) -> dict[str, Any]:
    """Write a page about what ``evaluate``, ``compare``, ``adapt``, ``quickstart`` or a training has left.

    The page needs nothing but itself: no network, no other file. It has the verdict, what it rests on, every
    model and test, single queries with their rankings, what training has seen, pictures, and published
    figures where a paper reports the collection.

    Args:
        folder: the output of a command.
        output: the page; ``folder/report.html`` by default. An older report is written over, nothing else.
        dataset, split: the collection, where the one on record is not at hand; the hash of its documents has
            to be that on record.
        queries: the most that are shown one by one: half those of the largest difference, half evenly spaced.
        published: files like benchmarks/published/cocodr.json, instead of the packaged ones.

    Returns:
        ``path``, ``verdict``, ``sentence``, ``queries_shown``, ``queries``.

    Raises:
        InputError: nothing of ours in the folder, a file that cannot be read, scores of different queries,
            another collection than was judged, or something else where the page shall go.
    """
    if queries < 0:
        raise InputError(f"queries is {queries}: show none or more")
    found = find_files(folder)
    path = output_file(folder / "report.html" if output is None else output)
    judged = judgement(found)
    labels = _labels(found, judged)
    names = _names(found, judged, labels)
    headline = _headline(found, judged, names)
    texts = _texts(found, judged, dataset, split)
    scores = _scores(judged, folder, texts)
    shown = _drill_down(found, judged, scores, headline, names, texts, queries)
    parts = {
        "title": _title(found, judged),
        "headline": headline,
        "facts": facts(found, judged),
        "texts_remark": texts.remark,
        "drill_down": shown,
        "seen": contamination_section(
            found, labels, texts.collection, judged.results["queries"] if judged is not None else None
        ),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **comparison_parts(found, judged, scores, headline, names, published),
        **training_parts(found),
    }
    write_text(path, page(parts))
    return {
        "path": str(path),
        "verdict": headline.verdict,
        "sentence": headline.sentence,
        "queries_shown": shown.shown if shown else 0,
        "queries": shown.queries if shown else 0,
    }


def _labels(found: Found, judged: Judgement | None) -> dict[str, str]:
    """Label to model name, of everything that was compared."""
    if judged is not None:
        return {label: record["model"] for label, record in judged.models.items()}
    return {model: model for model in (found.comparison or {}).get("models", [])}


def _headline(found: Found, judged: Judgement | None, names: Mapping[str, str]) -> Headline:
    if judged is not None:
        return labelled_headline(judged, names, (found.adaptation or {}).get("recommendation"))
    if found.comparison is not None:
        return label_free_headline(found.comparison, names, _own_adaptation(found))
    return unjudged_headline(found)


def _own_adaptation(found: Found) -> dict[str, Any] | None:
    """The adaptation that the comparison stands in, if it does."""
    return found.adaptation if (found.adaptation or {}).get("comparison") else None


def _names(found: Found, judged: Judgement | None, labels: Mapping[str, str]) -> dict[str, str]:
    """What is shown of each label; an adaptation without labels has labels of its own for model names."""
    adaptation = _own_adaptation(found)
    if judged is None and adaptation is not None:
        return {name: label for label, name in adaptation["candidates"].items()}
    return short_names(labels)


def _title(found: Found, judged: Judgement | None) -> str:
    told = judged.dataset if judged is not None else None
    told = told or (found.comparison or {}).get("dataset") or (found.adaptation or {}).get("corpus")
    return collection_name(str(told)) if told else found.folder.resolve().name


def _texts(found: Found, judged: Judgement | None, dataset: str | None, split: str | None) -> Texts:
    told: dict[str, Any] = dict(found.comparison or {}) or dict(judged.results if judged else {})
    name = told.get("dataset") or (found.adaptation or {}).get("corpus")
    if name is None:
        return Texts(None, "")
    return collection_texts(name, told.get("split"), told.get("corpus_sha256"), dataset, split)


def _scores(judged: Judgement | None, folder: Path, texts: Texts) -> Scores:
    if judged is None:
        return {}
    qrels = texts.collection.qrels if texts.collection is not None else None
    return per_query_scores(judged, folder, list(qrels) if qrels else None)


def _drill_down(
    found: Found,
    judged: Judgement | None,
    scores: Scores,
    headline: Headline,
    names: Mapping[str, str],
    texts: Texts,
    most: int,
) -> DrillDown | None:
    if headline.pair is None or not most:
        return None
    measures = judged.measures if judged is not None else []
    return drill_down(_runs(found, judged), scores, measures, headline.pair, names, texts.collection, most)


def _runs(found: Found, judged: Judgement | None) -> dict[str, Path]:
    """Label to its run file, of those that are there."""
    if judged is not None:
        named = {label: record.get("run") for label, record in judged.models.items()}
    else:
        from beir_cocodr.evaluation.runs import file_names

        labels = (found.comparison or {}).get("models", [])
        named = {label: f"{name}.run" for label, name in file_names(labels).items()}
    places = {
        label: next((path for path in (found.folder / run, Path(run)) if path.is_file()), None)
        for label, run in named.items()
        if run
    }
    return {label: path for label, path in places.items() if path is not None}
