"""The folder that holds the results of one run, and of no other.

Beside the results lies ``run.json``, with the settings of their run and the files that it wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from beir_cocodr.errors import InputError, listed
from beir_cocodr.io import (
    HELD,
    is_incidental,
    output_folder,
    parse_json,
    sole_writer,
    unfinished,
    write_text,
)
from beir_cocodr.same_run import as_read, check_same_run

#: Beside results: which run they are of, and which files are its own.
RUN_FILE = "run.json"

# Names of all files that commands write as results of a run. Nothing else is ever replaced or
# removed, whatever a folder's record says.
_RESULTS = (
    "*.run",
    "*.per_query.tsv",
    "results.json",
    "comparison.json",
    "labels_wanted.tsv",
    "report.html",
    "parity.json",
    "gate.json",
    "learned.json",
    "learned.safetensors",
    "passages.json",
    "overlap.json",
    "nearest.tsv",
    "similarity.png",
    "predictors.tsv",
    "qpp.json",
    "qpp.png",
    "shift.json",
    "shift.png",
    "representation.json",
    "representation.png",
    "source_clusters.json",
    "source_clusters.png",
    RUN_FILE,
)

# Records of folders of another kind, which never become a folder of results.
_OTHER_RECORDS = {
    "training.json",
    "adapt.json",
    "plan.json",
    "generation.json",
    "store.json",
    "manifest.json",
    "regimes.json",
    "modules.json",
}


@contextmanager
def results_folder(
    output: Path,
    run: Mapping[str, object],
    overwrite: bool = False,
) -> Iterator[Path]:
    """Yield a draft for the results of one run, which go to ``output`` together at the end.

    The same run again replaces its results, which stay until then. Files that are no results stay
    as they are. Two processes do not write to one folder. Inside, parts of the run may write their
    results to the draft, or to a folder that the thread holds as
    :func:`~beir_cocodr.io.sole_writer`, in the same way.

    Args:
        output: the folder, made where it does not exist.
        run: what makes two runs the same: the command and its settings, as JSON or ``str`` can
            express them.
        overwrite: replace the results of another run; the folder must hold nothing else.

    Raises:
        InputError: the folder holds the results of another run and ``overwrite`` is off, or
            holds something that is not written over; or another process writes to it.
    """
    settings = as_read(run)
    is_part_of_a_run = HELD.holds(output_folder(output))
    with sole_writer(output):
        if not is_part_of_a_run:
            _check_run(output, settings, overwrite)
        with unfinished(output) as draft:
            with HELD.holding(draft):
                yield draft
            _deliver(draft, output, settings)


def _read_run(folder: Path) -> tuple[object, set[str]]:
    """Return the settings of a folder's run and the names of its files.

    Where no run is on record, the settings are None, and the files are those that look like
    results.

    Raises:
        InputError: the record names a file that is no result of a run in this folder.
    """
    record = folder / RUN_FILE
    try:
        content = parse_json(record.read_text(encoding="utf-8"))
        run = content["run"]
        files = list(content["files"])
    except (OSError, ValueError, KeyError, TypeError):
        names = [path.name for path in folder.iterdir()]
        return None, {name for name in names if _is_result(folder, name)}
    for name in files:
        if not _is_result(folder, name):
            raise InputError(
                f"{record} names {name!r:.200}, which is not a result in this folder; nothing was "
                f"removed; choose another --output, or remove {RUN_FILE}"
            )
    return run, {RUN_FILE, *files}


def _is_result(folder: Path, name: object) -> bool:
    """Return whether a name is that of a result that is neither a link nor a folder."""
    if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
        return False
    path = folder / name
    is_ordinary = path.is_file() or not path.exists()
    is_known = any(fnmatchcase(name, pattern) for pattern in _RESULTS)
    return is_ordinary and not path.is_symlink() and is_known


def _check_run(
    output: Path,
    run: Mapping[str, object],
    overwrite: bool,
) -> None:
    """Check that an output holds nothing, results of the same run, or results to be replaced."""
    before, files = _read_run(output)
    others = _names_in(output) - files
    other_records = others & _OTHER_RECORDS
    if before == run or not (files or other_records):
        return
    if other_records or (overwrite and others):
        first = min(other_records or others)
        raise InputError(
            f"{output} contains {first}, which is not a result of this command and is not "
            "overwritten; choose another --output"
        )
    if overwrite:
        return
    way_out = "choose another --output, or replace the results with --overwrite"
    if not isinstance(before, dict):
        raise InputError(
            f"{output} contains results ({listed(sorted(files), 1)}), and {RUN_FILE} does not say "
            f"which run made them; {way_out}"
        )
    check_same_run(output, before, run, way_out)


def _deliver(
    draft: Path,
    output: Path,
    run: Mapping[str, object],
) -> None:
    """Move results to their folder, records last, in place of those that are there."""
    new = _names_in(draft) - {RUN_FILE}
    for name in new:
        assert _is_result(draft, name), f"{name} is not among the names of results in {__name__}"
    _, old = _read_run(output)
    # Until all are there both count as the run's, so that the same run again replaces what a kill
    # leaves.
    _write_run(output, run, old | new)
    for name in old - {RUN_FILE}:
        if _is_record(name) or name not in new:
            (output / name).unlink(missing_ok=True)
    for name in sorted(new, key=lambda name: (_is_record(name), name)):
        (draft / name).replace(output / name)
    _write_run(output, run, new)


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not is_incidental(path)}


def _is_record(name: str) -> bool:
    return name.endswith(".json")


def _write_run(
    folder: Path,
    run: object,
    files: set[str],
) -> None:
    content = {"run": run, "files": sorted(files)}
    text = json.dumps(content, indent=2)
    write_text(folder / RUN_FILE, f"{text}\n")


def add_result(path: Path) -> None:
    """Add a file that was made from the results of a run to the files of the run."""
    run, files = _read_run(path.parent)
    if run is not None:
        _write_run(
            path.parent,
            run,
            files - {RUN_FILE} | {path.name},
        )
