"""One self-contained HTML page about the output folder of a command."""

import datetime
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import atomic_output, output_folder, real_path, text_sha256, write_text
from beir_cocodr.report.html.headline import (
    headline_of,
    recommended_use,
    way_to_labels,
)
from beir_cocodr.report.html.headline_record import Headline
from beir_cocodr.report.html.queries import DrillDown, QueryRankings, drill_down
from beir_cocodr.report.html.results_folder import (
    ResultsFolder,
    collection_texts,
    per_query_scores,
    read_folder,
)
from beir_cocodr.report.html.sections import (
    comparison_parts,
    contamination_section,
    facts,
    other_tables,
    training_parts,
)
from beir_cocodr.report.html.tables import query_table
from beir_cocodr.report.wording import allowed_text, collection_name, meaning, short_names
from beir_cocodr.run_folder import add_result

_FOLDER = "beir_cocodr.report.html"

log = logging.getLogger(__name__)

#: Value of a meta element by which a page is recognised as ours.
GENERATOR = "beir-cocodr report"

#: Single queries that are shown by default.
QUERIES = 50

#: Bytes of a page in which its meta elements are.
_HEAD = 2_000


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written.

    Attributes:
        path: its file.
        verdict: its verdict in a word.
        sentence: its verdict in a sentence.
        queries_shown: single queries that it shows.
        queries: all queries.
    """

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
    """Write a page about the output of one command, such as ``evaluate``, ``compare`` or ``gate``.

    The page needs no network and no other file. It shows the verdict with its evidence, every model
    and test, single queries with their rankings, the collections that training has seen, pictures,
    and published figures where a paper reports the collection.

    Args:
        folder: the output of a command.
        output: the page. Default: ``report.html`` in the folder, which replaces an older report.
        dataset: the collection, if the recorded one is not at hand. Its documents must have the
            recorded hash.
        split: the split of that collection.
        queries: the most single queries to show: half those with the largest difference, half
            evenly spaced.
        published: files like benchmarks/published/cocodr.json, instead of the packaged ones.
        overwrite: replace the report of another run, too.

    Returns:
        The page's file and verdict.

    Raises:
        InputError: the folder has no file of ours or a damaged one, models have scores of different
            queries, the collection is not the judged one, or ``output`` is not a report of ours.
    """
    if queries < 0:
        raise InputError(f"queries is {queries}; show 0 or more")
    results = read_folder(folder)
    source = text_sha256(str(real_path(folder)))
    path = folder / "report.html"
    if output is not None:
        path = output
    check_output_file(path, source, overwrite or output is None)
    models = models_of(results)
    names = model_names(results, models)
    headline = headline_of(results, names)
    collection, remark = collection_texts(results, dataset, split)
    judged = None
    if collection is not None and collection.qrels:
        judged = list(collection.qrels)
    scores = per_query_scores(results, judged)
    measures: list[str] = []
    if results.evaluation is not None:
        measures = results.evaluation.results.measures
    rankings = QueryRankings(_runs(results, models), scores, measures, names, collection)
    shown_queries = None
    if headline.pair is not None and queries:
        shown_queries = drill_down(rankings, headline.pair, queries)
    parts = {
        "source": source,
        "title": title_of(results),
        "headline": headline,
        "use": recommended_use(results, names),
        "labelling": way_to_labels(results, headline),
        "all_queries": _all_queries(rankings, headline) if queries else None,
        "figures": other_tables(results),
        "facts": list(facts(results)),
        "texts_remark": remark,
        "drill_down": shown_queries,
        "seen": contamination_section(results, models, collection),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **comparison_parts(results, scores, headline, names, published),
        **training_parts(results),
    }
    with atomic_output(path) as temporary:
        write_text(temporary, page(parts))
    if output is None:
        add_result(path)
    return _written(path, headline, shown_queries)


def _written(path: Path, headline: Headline, queries: DrillDown | None) -> WrittenPage:
    queries_shown = 0
    query_count = 0
    if queries is not None:
        queries_shown = queries.included
        query_count = queries.queries
    return WrittenPage(
        str(path),
        headline.verdict,
        headline.sentence,
        queries_shown,
        query_count,
    )


def page(parts: Mapping[str, object], template: str = "page.html") -> str:
    """Return the filled template. All data are escaped; pictures are markup of their own."""
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
    # Keys keep their order, which has a meaning.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(template).render(
        generator=GENERATOR,
        style=Markup(read("style.css")),
        script=Markup(read("script.js")),
        markup=Markup,
        meaning=meaning,
        **parts,
    )


def check_output_file(path: Path, source: str, overwrite: bool) -> None:
    """Check that a page may be written to a file, and make its folder.

    Args:
        path: the file.
        source: hash of the reported folder.
        overwrite: allow to replace the report of another folder.

    Raises:
        InputError: the file is something else than a report, the report of another folder, or its
            folder cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file with --output")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
        if f'<meta name="generator" content="{GENERATOR}">' not in head:
            raise InputError(
                f"{path} was not written by this command and is left unchanged; choose another "
                "--output"
            )
        if not overwrite and f'<meta name="source" content="{source}">' not in head:
            raise InputError(
                f"{path} is the report of another run; choose another --output, or replace it with "
                "--overwrite"
            )
    output_folder(path.parent)


def title_of(results: ResultsFolder) -> str:
    """Return the name of the collection, or of the folder of a training."""
    if results.dataset is not None:
        return collection_name(results.dataset)
    return real_path(results.folder).name


def models_of(results: ResultsFolder) -> dict[str, str]:
    """Return label to model name, of everything that was compared."""
    if results.evaluation is not None:
        models = results.evaluation.results.models
        return {label: result.model for label, result in models.items()}
    if results.comparison is not None:
        return {model: model for model in results.comparison.models}
    return {}


def model_names(results: ResultsFolder, models: Mapping[str, str]) -> dict[str, str]:
    """Return label to the name that the page shows."""
    if results.candidates and results.evaluation is None:
        return {model: label for label, model in results.candidates.items()}
    return short_names(models)


def _runs(results: ResultsFolder, models: Mapping[str, str]) -> dict[str, Path]:
    """Return label to its run file, of those that exist."""
    if results.evaluation is not None:
        files = {label: result.run for label, result in results.evaluation.results.models.items()}
    elif results.comparison is None or results.comparison.queries or results.comparison.few_labels:
        files = {label: f"{name}.run" for label, name in file_names(models).items()}
    else:
        return {}  # no query was searched for, and no run was written
    runs = {}
    missing = []
    for label, file in files.items():
        for path in (results.folder / file, Path(file)):
            if path.is_file():
                runs[label] = path
                break
        if label not in runs or not runs[label].stat().st_size:
            missing.append(file)
    if missing:
        log.warning(
            "%s: %s is missing or empty, so the page does not show its rankings",
            results.folder,
            ", ".join(sorted(missing)),
        )
    return runs


def _all_queries(rankings: QueryRankings, headline: Headline) -> object:
    """Return the table of all judged queries, None without scores of both models."""
    if headline.pair is None or not rankings.measures:
        return None
    texts: dict[str, str] = {}
    if rankings.collection is not None:
        texts = rankings.collection.queries
    measure = rankings.measures[0]
    return query_table(rankings.scores, headline.pair, rankings.names, measure, texts)
