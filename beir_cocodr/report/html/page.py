"""One self-contained page about the output of a command: where it goes, its parts, and the page
from them.
"""

import datetime
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import atomic_output, output_folder, text_sha256, write_text
from beir_cocodr.report.html.headline import headline_of, recommended_use, way_to_labels
from beir_cocodr.report.html.results_folder import (
    ResultsFolder,
    collection_texts,
    find_files,
    per_query_scores,
)
from beir_cocodr.report.html.sections import (
    comparison_parts,
    contamination_section,
    drill_down,
    facts,
    training_parts,
)
from beir_cocodr.report.html.tables import query_table
from beir_cocodr.report.wording import allowed_text, collection_name, meaning, short_names
from beir_cocodr.run_folder import add_result

_FOLDER = "beir_cocodr.report.html"

log = logging.getLogger(__name__)

#: Marks a page as ours.
GENERATOR = "beir-cocodr report"


def page(parts: Mapping[str, object]) -> str:
    """Fill the template; everything from data is escaped, pictures come as markup of their own."""
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
        finalize=lambda value: allowed_text(value) if isinstance(value, str) else value,
    )
    # The order of keys has a meaning, and is not the alphabet's.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style, script = Markup(read("style.css")), Markup(read("script.js"))
    return environment.get_template("page.html").render(
        generator=GENERATOR, style=style, script=script, markup=Markup, meaning=meaning, **parts
    )


_HEAD = 2_000


def output_file(path: Path, source: str = "", overwrite: bool = True) -> Path:
    """Check that the page may be written there: nothing stands there yet, or a report of ours, of
    ``source`` unless that of another run may be replaced. An InputError: something else does, or
    the folder cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with --output")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
        if f'<meta name="generator" content="{GENERATOR}">' not in head:
            raise InputError(
                f"{path} is no report of ours and is left as it is; choose another --output"
            )
        if not overwrite and f'<meta name="source" content="{source}">' not in head:
            raise InputError(
                f"{path} is the report of another run; choose another --output, or replace it with --overwrite"
            )
    output_folder(path.parent)
    return path


#: Queries that are shown one by one.
QUERIES = 50


@dataclass(frozen=True)
class WrittenPage:
    """Where the page is, what it says, and how many of how many queries it shows one by one."""

    path: str
    verdict: str
    sentence: str
    queries_shown: int
    queries: int


def write_report(
    folder: Path,
    output: Path | None = None,
    dataset: str | None = None,
    split: str | None = None,
    queries: int = QUERIES,
    published: Sequence[Path] = (),
    overwrite: bool = False,
) -> WrittenPage:
    """Write a page about what ``evaluate``, ``compare``, ``adapt``, ``quickstart`` or a training
    has left. An InputError: nothing of ours in the folder, a file that cannot be read, scores of
    different queries, another collection than was judged, or something else where the page shall
    go.

    The page needs nothing but itself: no network, no other file. It has the verdict, what it rests
    on, every model and test, single queries with their rankings, what training has seen, pictures,
    and published figures where a paper reports the collection.

    Args:
        folder: the output of a command.
        output: the page; ``folder/report.html`` by default. An older report on the folder is
            written over, nothing else.
        dataset, split: the collection, where the one on record is not at hand; the hash of its
            documents has to be that on record.
        queries: the most that are shown one by one: half those of the largest difference, half
            evenly spaced.
        published: files like benchmarks/published/cocodr.json, instead of the packaged ones.
        overwrite: write over the report of another run, too.
    """
    if queries < 0:
        raise InputError(f"queries is {queries}: show none or more")
    found = find_files(folder)
    source = text_sha256(str(folder.resolve()))
    path = output_file(
        folder / "report.html" if output is None else output, source, overwrite or output is None
    )
    models = _models(found)
    labels = {name: label for label, name in found.candidates.items()}
    names = labels if labels and found.evaluation is None else short_names(models)
    headline = headline_of(found, names)
    collection, remark = collection_texts(found, dataset, split)
    scores = per_query_scores(
        found, list(collection.qrels) if collection is not None and collection.qrels else None
    )
    shown = every = None
    if headline.pair is not None and queries:
        measures = found.evaluation.results.measures if found.evaluation is not None else []
        asked = collection.queries if collection is not None else {}
        every = query_table(scores, headline.pair, names, measures[0], asked) if measures else None
        shown = drill_down(
            _runs(found, models), scores, measures, headline.pair, names, collection, queries
        )
    parts = {
        "source": source,
        "title": collection_name(found.judged.dataset) if found.judged else folder.resolve().name,
        "headline": headline,
        "use": recommended_use(found, names),
        "labelling": way_to_labels(found, headline),
        "all_queries": every,
        "facts": list(facts(found)),
        "texts_remark": remark,
        "drill_down": shown,
        "seen": contamination_section(found, models, collection),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **comparison_parts(found, scores, headline, names, published),
        **training_parts(found),
    }
    with atomic_output(path) as temporary:
        write_text(temporary, page(parts))
    if output is None:
        add_result(path)
    counts = (shown.shown, shown.queries) if shown else (0, 0)
    return WrittenPage(str(path), headline.verdict, headline.sentence, *counts)


def _models(found: ResultsFolder) -> dict[str, str]:
    """Label to model name, of everything that was compared."""
    if found.evaluation is not None:
        return {label: result.model for label, result in found.evaluation.results.models.items()}
    return {model: model for model in found.comparison.models} if found.comparison else {}


def _runs(found: ResultsFolder, models: Mapping[str, str]) -> dict[str, Path]:
    """Label to its run file, of those that are there."""
    if found.evaluation is not None:
        named = {label: result.run for label, result in found.evaluation.results.models.items()}
    else:
        named = {label: f"{name}.run" for label, name in file_names(models).items()}
    there = {
        label: next(filter(Path.is_file, (found.folder / run, Path(run))), None)
        for label, run in named.items()
    }
    if gone := sorted(
        named[label] for label, path in there.items() if path is None or not path.stat().st_size
    ):
        log.warning(
            "%s: %s is not there, or empty; the page has no rankings of it",
            found.folder,
            ", ".join(gone),
        )
    return {label: path for label, path in there.items() if path is not None}
