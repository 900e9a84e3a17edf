"""The command that looks at the surroundings."""

from __future__ import annotations

from typing import Annotated

import typer

from beir_cocodr import cli_options as options
from beir_cocodr.report.terminal import print_json, print_tables


def doctor(
    hub_timeout: Annotated[float, typer.Option(help="Seconds to wait for the hub.", min=0.1)] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Say what is installed and within reach, what each part enables, and how to get it."""
    from beir_cocodr.doctor import doctor as run
    from beir_cocodr.report.doctor_table import doctor_table

    report = run(hub_timeout)
    if as_json:
        print_json(report)
    else:
        print_tables(doctor_table(report))
