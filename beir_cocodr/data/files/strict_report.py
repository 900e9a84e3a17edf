"""How loading takes defects: it refuses errors and counts the rest."""

from __future__ import annotations

from collections import Counter

from beir_cocodr.data.files.defects import Defect, Severity
from beir_cocodr.errors import InputError


class StrictReport:
    """A `Report` that raises `InputError` at the first error and counts warnings by kind in ``counts``.

    Args:
        dataset: the collection as the user gave it, for the way to a full list.
    """

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.counts: Counter[str] = Counter()

    def __call__(
        self,
        severity: Severity,
        kind: str,
        file: str,
        line: int | None,
        id: str | None,
        message: str,
        times: int = 1,
    ) -> None:
        if severity == "error":
            defect = Defect(severity, kind, file, line, id, message, times)
            raise InputError(f"{defect} (all defects: beir-cocodr validate --dataset {self.dataset})")
        self.counts[kind] += times
