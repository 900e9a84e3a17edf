"""The command that generates queries, and the one that looks at the surroundings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from beir_cocodr.cli import options
from beir_cocodr.errors import InputError
from beir_cocodr.generation.options import GenerationOptions
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.report.terminal import print_json, print_tables


@options.takes("encoder", "device")
@options.takes(
    "settings",
    *("per_passage", "passage_tokens", "tokenizer", "language", "prefix", "prompt", "max_length", "top_p"),
    *("top_k", "batch_size", "max_passages", "shard_documents", "dedupe", "filter_retriever", "filter_top"),
    *("analyzer", "bm25_weight", "title_separator", "seed"),
)
def generate_queries(
    dataset: options.Dataset,
    output: options.Output,
    generator: Annotated[
        str, Option(help="lexical (no model, any language), or a language model: a hub name or a folder.")
    ] = "lexical",
    *,
    settings: GenerationOptions,
    shard: Annotated[str, Option(help="i/n: this process does every n-th shard, from the i-th on, i from 1.")] = "1/1",
    encoder: EncoderOptions,
) -> None:
    """Generate queries for the passages of a corpus: a BEIR folder to train on. Run again, it goes on."""
    from beir_cocodr.generation.generate import generate_queries as run

    record = run(dataset, generator, output, settings, _part(shard), encoder.device, progress=True)
    print_json(record.to_json())


def _part(shard: str) -> tuple[int, int]:
    number, slash, parts = shard.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard {shard}: give i/n, such as 1/4")
    return int(number), int(parts)


_DAY = 86_400


def doctor(
    hub_timeout: Annotated[float, Option(help="Seconds to wait for the hub.", min=0.1)] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Say what is installed and within reach, what each part enables, and how to get it."""
    from beir_cocodr.doctor import doctor as run
    from beir_cocodr.report.terminal import doctor_table

    if not hub_timeout < _DAY:
        raise InputError(f"--hub-timeout has to be below {_DAY} seconds, not {hub_timeout}")
    found = run(hub_timeout)
    if as_json:
        print_json(asdict(found))
    else:
        print_tables(doctor_table(found))
