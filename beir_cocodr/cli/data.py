"""The commands that make data.

The command that looks at the surroundings.
"""

from __future__ import annotations

from typing import Annotated

import typer

from beir_cocodr.cli import options
from beir_cocodr.errors import InputError
from beir_cocodr.report.terminal import print_json, print_tables


def generate_queries(
    dataset: options.Dataset,
    output: options.Output,
    generator: Annotated[
        str,
        typer.Option(
            help="lexical (no model, any language), or a language model: a hub name or a folder.",
        ),
    ] = "lexical",
    per_passage: Annotated[int, typer.Option(help="Queries of a passage.")] = 5,
    passage_tokens: Annotated[
        int, typer.Option(help="The most tokens of a passage, special ones too.")
    ] = 144,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="What counts them: a model that will read the passages, or words; "
            "default: the generator's own, and words for lexical."
        ),
    ] = None,
    language: Annotated[
        str, typer.Option(help="ISO 639 code, for abbreviations that do not end a sentence.")
    ] = "en",
    prefix: Annotated[
        str | None,
        typer.Option(help='Before every passage; default: none, or "text2query: " for a with_prefix model.'),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="What the model reads, with {passage} in it; default: by its kind.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="The most tokens of a query.")] = 64,
    top_p: Annotated[float, typer.Option(help="Probability mass that is sampled from.")] = 0.95,
    top_k: Annotated[int, typer.Option(help="Tokens that are sampled from.")] = 25,
    batch_size: Annotated[int, typer.Option(help="Passages read at a time.")] = 32,
    max_passages: Annotated[
        int | None, typer.Option(help="Passages, drawn at random from all; default: all.")
    ] = None,
    shard_documents: Annotated[
        int, typer.Option(help="Documents of a shard; a killed run goes on behind its last one.")
    ] = 500,
    shard: Annotated[
        str, typer.Option(help="i/n: this process does every n-th shard, from the i-th on, i from 1.")
    ] = "1/1",
    dedupe: Annotated[
        bool, typer.Option("--dedupe/--no-dedupe", help="Keep a text once in the whole output.")
    ] = False,
    filter_retriever: Annotated[
        str | None,
        typer.Option(help="Keep a query only if this model finds its document; named as for evaluate."),
    ] = None,
    filter_top: Annotated[int, typer.Option(help="... among so many first documents.")] = 1,
    bm25_analyzer: options.Analyzer = "english",
    title_separator: Annotated[str, typer.Option(help="Between title and text of a document.")] = " ",
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 42,
    device: options.Device = None,
) -> None:
    """Generate queries for the passages of a corpus: a BEIR folder to train on. Run again, it goes on."""
    from beir_cocodr.generation.generate import generate_queries as run
    from beir_cocodr.generation.options import GenerationOptions

    settings = GenerationOptions(
        per_passage=per_passage,
        passage_tokens=passage_tokens,
        tokenizer=tokenizer,
        language=language,
        prefix=prefix,
        prompt=prompt,
        max_length=max_length,
        top_p=top_p,
        top_k=top_k,
        batch_size=batch_size,
        max_passages=max_passages,
        shard_documents=shard_documents,
        seed=seed,
        title_separator=title_separator,
        dedupe=dedupe,
        filter_retriever=filter_retriever,
        filter_top=filter_top,
        analyzer=bm25_analyzer,
    )
    record = run(dataset, generator, output, settings, _part(shard), device, progress=True)
    print_json(record.to_json())


def _part(shard: str) -> tuple[int, int]:
    number, slash, parts = shard.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard {shard}: say i/n, such as 1/4")
    return int(number), int(parts)


def doctor(
    hub_timeout: Annotated[float, typer.Option(help="Seconds to wait for the hub.", min=0.1)] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Say what is installed and within reach, what each part enables, and how to get it."""
    from beir_cocodr.doctor import doctor as run
    from beir_cocodr.report.terminal import doctor_table

    report = run(hub_timeout)
    if as_json:
        print_json(report)
    else:
        print_tables(doctor_table(report))
