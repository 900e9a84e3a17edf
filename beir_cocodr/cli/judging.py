"""The commands that say which model is better: evaluate, compare and report."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from beir_cocodr.cli import parameters
from beir_cocodr.cli.carried import refuse_unused
from beir_cocodr.cli.flags import SEARCHING, plain, takes
from beir_cocodr.cli.model_names import names_models
from beir_cocodr.cli.reading import CorpusLanguage
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS
from beir_cocodr.generation.generators import LEXICAL_GENERATOR
from beir_cocodr.models.spec import ALIASES, BM25, SearchOptions, model_forms
from beir_cocodr.report.terminal import print_json, print_record

if TYPE_CHECKING:
    from beir_cocodr.evaluation.compare import CompareOptions
    from beir_cocodr.evaluation.passage_sizes import PassageOptions

_MODELS = ", ".join([*ALIASES, BM25, f"lucene-{BM25}", *model_forms()])


@names_models
@takes("search", *SEARCHING, "stores", "verify")
def evaluate(
    dataset: parameters.Dataset,
    model: Annotated[
        list[str],
        Option(help=f"Evaluate {_MODELS}, a folder or a hub name; repeat for several."),
    ],
    output: parameters.Output,
    measures: parameters.Measures = "nDCG@10 R@100",
    split: parameters.Split = "test",
    top_k: Annotated[
        int | None,
        Option(
            help="Keep this many documents for each query in the run. Default: as many as the "
            "measures need."
        ),
    ] = None,
    identical_ids: parameters.Policy = "auto",
    judgements: parameters.Judgements = None,
    *,
    search: SearchOptions,
    overwrite: parameters.Overwrite = False,
    as_json: parameters.Json = False,
) -> None:
    """Measure models on a labelled collection."""
    from beir_cocodr.evaluation.evaluate import EvaluateOptions
    from beir_cocodr.evaluation.evaluate import evaluate as run
    from beir_cocodr.report.evaluation_tables import evaluation_tables

    options = EvaluateOptions(
        identical_ids=identical_ids, top_k=top_k, judgements=judgements, overwrite=overwrite
    )
    record = run(
        model,
        dataset,
        measures=measures,
        split=split,
        output=output,
        options=options,
        search=search,
    )
    print_record(record, as_json, evaluation_tables)


_ComparedModels = Annotated[
    list[str] | None,
    plain(
        "Compare this model, named as for evaluate; repeat for several. With --judgements, "
        "one encoder is enough: the command then compares all ways to use it."
    ),
]

_Parity = Annotated[
    Path | None,
    Option(
        metavar="RUN",
        help="Score this TREC run with BEIR, ir-measures and pytrec_eval instead of comparing "
        "models.",
    ),
]

_Passages = Annotated[
    str | None,
    Option(
        metavar="WORDS,WORDS",
        help="Compare these sizes of passages, in words, for one or more models, instead of "
        "comparing models.",
    ),
]

_Measures = Annotated[
    str | None,
    Option(
        help="Compute these measures, named as in ir-measures and separated by spaces. "
        "Default: nDCG@10 R@100, or with --parity nDCG@10 AP@100 R@100 R_cap@100 RR@10."
    ),
]

_Labels = Annotated[
    bool | None,
    Option(
        "--labels/--no-labels",
        help="Judge models with the labels of the split, or without labels. Default: with "
        "labels if the split has any. The evidence without labels is: "
        f"{', '.join(ESTIMATORS)}.",
    ),
]

_Samples = Annotated[
    int,
    Option(help="Without labels, judge with at most this many queries of each kind."),
]

_Wanted = Annotated[int, Option(help="Propose this many query-document pairs for labelling.")]

_Generator = Annotated[
    str,
    Option(
        metavar="MODEL",
        help="Without labels, also judge with questions that this language model writes: "
        "hf:MODEL (a hub name, a folder or a GGUF file), or URL#MODEL of a server with "
        "OpenAI's protocol. A causal hf:MODEL also scores the documents that models rank "
        "first for real queries. Both are shown; they count with a --calibration that was fitted "
        "with them. Default: no language model.",
    ),
]

_Questions = Annotated[
    int,
    Option(help="With --generator, let it write at most this many questions; 0 leaves them out."),
]

_Asked = Annotated[
    Path | None,
    Option(
        metavar="FOLDER",
        help="Without labels, use the queries that were asked in this session of serve or try, if "
        "they were kept, as queries of the collection.",
    ),
]

_Calibration = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Without labels, judge with this calibration, fitted by "
        "benchmarks/label_free_fitting.py. Default: the package's own.",
    ),
]

_Judge = Annotated[
    str | None,
    Option(
        metavar="URL#MODEL|hf:MODEL",
        help="Let this language model grade the documents that the models rank best: one "
        "behind an endpoint with OpenAI's protocol, or one of transformers that runs here. "
        "Labels correct its grades; without labels its figures are an opinion and decide "
        "nothing. A key is read from the environment variable BEIR_COCODR_API_KEY.",
    ),
]

_JudgeQueries = Annotated[
    int,
    Option(
        help="Let the judge grade documents for at most this many queries, labelled ones first."
    ),
]


@names_models
@takes("search", *SEARCHING)
def compare(
    context: Context,
    dataset: parameters.Dataset,
    model: _ComparedModels = None,
    parity: _Parity = None,
    passages: _Passages = None,
    output: Annotated[Path | None, Option(help="Write the results to this folder.")] = None,
    measures: _Measures = None,
    split: parameters.Split = "test",
    labels: _Labels = None,
    identical_ids: parameters.Policy = "auto",
    samples: _Samples = 300,
    seed: Annotated[int, Option(help="Seed the samples with this number.")] = 42,
    wanted: _Wanted = 100,
    generator: _Generator = LEXICAL_GENERATOR,
    questions: _Questions = 100,
    asked: _Asked = None,
    judgements: parameters.Judgements = None,
    calibration: _Calibration = None,
    judge: _Judge = None,
    judge_queries: _JudgeQueries = 300,
    overwrite: parameters.Overwrite = False,
    *,
    search: SearchOptions,
    language: CorpusLanguage = None,
    as_json: parameters.Json = False,
) -> None:
    """Decide which model is better, with labels or without.

    With --parity, the command instead shows how three evaluation tools score one run.
    """
    if (parity is not None) == bool(model):
        raise InputError("name models to compare, or a run with --parity, but not both")
    if parity is not None:
        refuse_unused(context, (*_OF_MODELS, *SEARCHING, "passages", "samples", "seed"), "--parity")
        folder = parameters.results(context, output, overwrite)
        _parity(parity, dataset, folder, split, measures, as_json)
        return
    if passages is not None:
        refuse_unused(context, (*_OF_MODELS, "measures"), "--passages")
        from beir_cocodr.evaluation.passage_sizes import PassageOptions

        of_passages = PassageOptions(samples, seed, split, language, overwrite)
        _passages(passages, model or [], dataset, output, of_passages, search, as_json)
        return
    from beir_cocodr.evaluation.compare import CompareOptions

    options = CompareOptions(
        labels=labels,
        identical_ids=identical_ids,
        samples=samples,
        seed=seed,
        wanted=wanted,
        generator=generator,
        questions=questions,
        asked=asked,
        judgements=judgements,
        calibration=calibration,
        overwrite=overwrite,
        judge=judge,
        judge_queries=judge_queries,
    )
    task = _ComparedCollection(dataset, split, measures, output)
    _compare_models(model or [], task, options, search, as_json)


# Parameters that neither --parity nor --passages uses.
_OF_MODELS = (
    "labels",
    "identical_ids",
    "wanted",
    "generator",
    "questions",
    "asked",
    "judgements",
    "calibration",
    "judge",
    "judge_queries",
)


@dataclass(frozen=True)
class _ComparedCollection:
    """The collection of a comparison.

    Attributes:
        dataset: its name.
        split: the split of its labels.
        measures: names of measures; None takes the default ones.
        output: the folder for the results.
    """

    dataset: str
    split: str
    measures: str | None
    output: Path | None


def _compare_models(
    models: Sequence[str],
    task: _ComparedCollection,
    options: "CompareOptions",
    search: SearchOptions,
    as_json: bool,
) -> None:
    """Compare models on a collection, and print the record."""
    from beir_cocodr.evaluation.compare import compare as run
    from beir_cocodr.evaluation.measures import DEFAULT_MEASURES
    from beir_cocodr.report.evaluation_tables import verdict_tables

    record = run(
        models,
        task.dataset,
        measures=DEFAULT_MEASURES if task.measures is None else task.measures,
        split=task.split,
        output=task.output,
        options=options,
        search=search,
    )
    print_record(record, as_json, verdict_tables)


def _parity(
    run: Path,
    dataset: str,
    results: AbstractContextManager[Path | None],
    split: str,
    measures: str | None,
    as_json: bool,
) -> None:
    """Score a run by three tools, and write the record to the folder of results, if any."""
    from beir_cocodr.evaluation.parity import PARITY_MEASURES, parity
    from beir_cocodr.report.evaluation_tables import parity_tables

    with results as folder:
        record = parity(run, dataset, split, PARITY_MEASURES if measures is None else measures)
        if folder is not None:
            record.write(folder / "parity.json")
    print_record(record, as_json, parity_tables)


def _passages(
    sizes: str,
    models: list[str],
    dataset: str,
    output: Path | None,
    options: "PassageOptions",
    search: SearchOptions,
    as_json: bool,
) -> None:
    from beir_cocodr.evaluation.passage_sizes import compare_passages
    from beir_cocodr.report.evaluation_tables import passage_tables

    numbers = []
    for text in sizes.split(","):
        if not text.strip().isdecimal():
            raise InputError(f"--passages {sizes}: {text!r} is not a number of words; give 90,180")
        numbers.append(int(text))
    record = compare_passages(
        models, dataset, numbers, output=output, options=options, search=search
    )
    print_record(record, as_json, passage_tables)


def report(
    context: Context,
    folders: Annotated[
        list[Path],
        Argument(
            metavar="FOLDER...",
            help="Read this output folder of evaluate, compare, gate, adapt, quickstart or a "
            "training command; give several for one page about all of them.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, plain("Write the page to this file. Default: report.html in the only folder.")
    ] = None,
    dataset: Annotated[
        str | None,
        plain("Take titles and texts from this collection if the recorded one is not available."),
    ] = None,
    split: Annotated[
        str | None,
        Option(help="Use this split of the collection's qrels. Default: the recorded one."),
    ] = None,
    queries: Annotated[int, Option(help="Show at most this many single queries.", min=0)] = 50,
    published: Annotated[
        list[Path] | None,
        Option(
            help="Compare with this file of published figures instead of the packaged ones; "
            "repeat for several."
        ),
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the page of another run.")
    ] = False,
    as_json: parameters.Json = False,
) -> None:
    """Write one HTML page about a run, or about several.

    The page shows the verdict, tables, single queries and pictures, and needs no network. A page
    about several runs shows their verdicts, and all figures in a table with filters.
    """
    from beir_cocodr.report.html.page import write_report
    from beir_cocodr.report.html.several import write_joint_report

    if len(folders) == 1:
        [folder] = folders
        page = write_report(folder, output, dataset, split, queries, published or (), overwrite)
    else:
        if output is None:
            raise InputError("a page about several runs is in none of their folders; add --output")
        if dataset is not None or split is not None or published:
            raise InputError(
                "--dataset, --split and --published are for a page about one run; leave them out, "
                "or name one folder"
            )
        page = write_joint_report(folders, output, overwrite)
    context.params["output"] = page.path
    if as_json:
        print_json(asdict(page))
    else:
        print(page.sentence)
        print(page.path)
