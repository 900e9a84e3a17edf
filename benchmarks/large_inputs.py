"""Claim: many files, an endless line and a gzip bomb are read, or left out, in bounded memory.

Each case is a folder, and each start of a command is a process of its own: the first has an empty
cache, the second the cache that the first filled. ``search`` by BM25 and the page of ``try`` are
timed on many small files. Then one file among a hundred ordinary ones has a line of 300 MB, or
uncompresses to 2 GB; the search must answer from the others, and name a file that it leaves out.
Memory is the peak of the command's process, as the kernel reports it.

The script prints every figure, and writes ``benchmarks/results/large_inputs.json``:

    python benchmarks/large_inputs.py [--files 100000] [--line-mb 300] [--bomb-mb 2000]
"""

from __future__ import annotations

import argparse
import gzip
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from harness.measure import say
from harness.script import option_parser, origin, write_results

from beir_cocodr.data.collection import load_collection

#: The collection whose documents become files.
SOURCE = "apidocs/numpy"
QUERY = "return a sorted copy of an array"
MODEL = "bm25"

#: Characters of a small file, and files of a folder.
FILE_CHARACTERS = 400
FOLDER_FILES = 1_000

#: Ordinary files beside the large one.
ORDINARY = 100

#: The most seconds of a command.
LONGEST = 3_000

#: The largest sizes that may be asked for.
MOST_FILES = 1_000_000
MOST_MEGABYTES = 4_000

_COMMAND = [sys.executable, "-m", "beir_cocodr.cli"]
_CHUNK = b"the wing of an aircraft makes lift in the flow " * 20_000


def write_files(folder: Path, count: int) -> None:
    """Write small files into subfolders; their texts repeat, and each has a number of its own."""
    documents = list(load_collection(SOURCE, labels="none").documents.values())
    for number, document in enumerate(islice(cycle(documents), count)):
        inner = folder / f"{number // FOLDER_FILES:04d}"
        if number % FOLDER_FILES == 0:
            inner.mkdir(parents=True)
        text = f"{document['title']} {number}\n\n{document['text'][:FILE_CHARACTERS]}\n"
        (inner / f"{number}.txt").write_text(text)


def write_line(path: Path, megabytes: int, begin: bytes = b"", end: bytes = b"") -> None:
    """Write one line of so many megabytes."""
    with path.open("wb") as file:
        file.write(begin)
        for _ in range(megabytes * 10**6 // len(_CHUNK)):
            file.write(_CHUNK)
        file.write(end + b"\n")


def write_bomb(path: Path, megabytes: int, begin: bytes = b"", end: bytes = b"") -> None:
    """Write a small file that uncompresses to so many megabytes of one line."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(begin)
        for _ in range(megabytes * 10**6 // len(_CHUNK)):
            file.write(_CHUNK)
        file.write(end + b"\n")


def start(arguments: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a command whose cache lies in the folder."""
    environment = os.environ | {"BEIR_COCODR_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [*_COMMAND, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
        )


def finish(process: subprocess.Popen[bytes], began: float) -> dict[str, Any]:
    """Wait for the end of a process, and return its time and its peak of memory."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "status": process.returncode,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def measure_search(dataset: str, folder: Path) -> dict[str, Any]:
    """Search once, and return the figures along with the lines that name what was left out."""
    log = folder / "search.log"
    began = time.perf_counter()
    process = start(["search", QUERY, "--dataset", dataset, "--model", MODEL], folder, log)
    figures = finish(process, began)
    lines = log.read_text(errors="replace").splitlines()
    said = [line[:300] for line in lines if "large." in line or "left out" in line]
    return figures | {"answers": sum("array" in line for line in lines), "said": said[:5]}


def measure_page(dataset: str, folder: Path) -> dict[str, Any]:
    """Start the page of ``try``, and return the figures up to the first answer of BM25."""
    log = folder / "try.log"
    began = time.perf_counter()
    # The page has BM25 alone: the encoders of ``try`` would take hours for so many files.
    arguments = ["serve", "--dataset", dataset, "--model", MODEL, "--no-browser"]
    process = start([*arguments, "--output", "judged"], folder, log)
    link = _link(log, process)
    address, _, secret = link.partition("#")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    body = f'{{"secret": "{secret}"}}'.encode()
    login = urllib.request.Request(
        f"{address}api/login", body, {"content-type": "application/json"}
    )
    opener.open(login).read()
    query = QUERY.replace(" ", "%20")
    answer = opener.open(f"{address}api/search?model={MODEL}&query={query}").read()
    first_answer = time.perf_counter() - began
    process.send_signal(signal.SIGINT)
    figures = finish(process, began)
    return figures | {"first_answer": round(first_answer, 1), "answers": answer.count(b'"rank"')}


def _link(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.perf_counter() + LONGEST
    while time.perf_counter() < end and process.poll() is None:
        words = log.read_text(errors="replace").split()
        if "ends" in words:
            return next(word for word in words if word.startswith("http"))
        time.sleep(0.1)
    raise SystemExit(f"the page does not start:\n{log.read_text(errors='replace')[-1000:]}")


#: Writes a large file among ordinary ones.
Write = Callable[[Path], None]


def measure_large(name: str, write: Write, folder: Path) -> dict[str, Any]:
    """Search ordinary files with a large one among them."""
    folder.mkdir()
    write_files(folder / "files", ORDINARY)
    write(folder / "files" / name)
    figures = measure_search("files", folder)
    return {"bytes": (folder / "files" / name).stat().st_size} | figures


def large_files(options: argparse.Namespace) -> dict[str, Write]:
    """Return the names of the large files, and what writes them."""
    line = options.line_mb
    bomb = options.bomb_mb
    record = {"begin": b'{"id": "a", "text": "', "end": b'"}'}
    return {
        "large.txt": lambda path: write_line(path, line),
        "large.jsonl": lambda path: write_line(path, line, **record),
        "large.csv": lambda path: write_line(path, line, b"id,text\na,"),
        "large.html": lambda path: write_line(path, line, b"<p>"),
        "large.txt.gz": lambda path: write_bomb(path, bomb),
        "large.jsonl.gz": lambda path: write_bomb(path, bomb, **record),
        "large.csv.gz": lambda path: write_bomb(path, bomb, b"id,text\na,"),
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "large_inputs")
    parser.add_argument("--files", type=int, default=100_000, help="Small files of the folder.")
    parser.add_argument("--line-mb", type=int, default=300, help="Megabytes of the line.")
    parser.add_argument("--bomb-mb", type=int, default=2_000, help="Megabytes of the gzip bomb.")
    options = parser.parse_args()
    for name, most in (
        ("files", MOST_FILES),
        ("line_mb", MOST_MEGABYTES),
        ("bomb_mb", MOST_MEGABYTES),
    ):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name.replace('_', '-')} is from 1 to {most}")
    return options


def main() -> None:
    options = parse_options()
    figures: dict[str, Any] = {"large_files": {}}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for file, write in large_files(options).items():
            case = measure_large(file, write, work / file)
            figures["large_files"][file] = case
            say({"case": file} | case)
        folder = work / "many"
        write_files(folder / "files", options.files)
        cases = {"search": measure_search, "search_again": measure_search, "page": measure_page}
        for case_name, measure in cases.items():
            figures[case_name] = measure("files", folder)
            say({"case": case_name} | figures[case_name])
    settings = {name: getattr(options, name) for name in ("files", "line_mb", "bomb_mb")}
    settings["load_of_machine"] = round(os.getloadavg()[0], 1)
    write_results(options.results, origin() | {"settings": settings} | figures)


if __name__ == "__main__":
    main()
