"""Claim: a mixed folder of 300 files is searched within seconds, bad files and all.

The folder holds documentation of installed packages in eight formats, texts in four languages and
five encodings, and 20 files that cannot be read. Each start is a process of its own: the first has
an empty cache, the second the cache that the first filled. Three ways are measured: the steps of a
search in Python, the command ``search``, and the page of ``try``. Seconds are those of the clock
and those of the processor, which vary less on a busy machine. The passages that are encoded are
counted. The script also measures when each command prints its first line, and says which packages
the time of importing goes to, by ``python -X importtime``; a module counts without the modules that
it imports.

The script prints the figures, and writes ``benchmarks/results/first_answer.json``:

    python benchmarks/first_answer.py [--files 300] [--model hybrid:minilm] [--repeats 3]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import html
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from harness.measure import processor_seconds, say
from harness.script import option_parser, origin, write_results

from beir_cocodr.data.collection import load_collection

SOURCE = "apidocs/numpy+pandas"
QUERY = "return a sorted copy of an array"
FORMATS = ("txt", "md", "rst", "html", "csv", "tsv", "jsonl", "md")
#: Forms of a document in formats of text: title and text.
TEXT_FORMS = {
    "md": "## {}\n\n{}\n\n",
    "rst": "{}\n" + "=" * 80 + "\n\n{}\n\n",
    "txt": "{}\n\n{}\n\n",
    "html": "<h2>{}</h2><p>{}</p>",
}
#: Share of the files that hold a text in an encoding.
FOREIGN_SHARE = 1 / 15
FOREIGN = (
    (
        "cp1252",
        "Bericht {}: Der Flügel erzeugt Auftrieb, weil die Luft über ihm schneller fließt. ",
    ),
    ("gb18030", "报告第{}号。飞机的机翼在气流中产生升力，边界层在前部是层流，在后部是湍流。"),
    ("cp932", "報告第{}号。飛行機の翼は空気の流れの中で揚力を生み出し、境界層はとても薄いです。"),
    ("utf-16", "Report {}: the wing makes lift, as the air above it flows faster than below it. "),
)
#: Share of the files that cannot be read.
BAD_SHARE = 1 / 15
BAD_SUFFIXES = ("pdf", "docx", "parquet", "png", "csv.gz", "csv", "jsonl", "bin")
#: Packages whose time of importing is reported.
PACKAGES = (
    "beir_cocodr",
    "torch",
    "transformers",
    "sentence_transformers",
    "sklearn",
    "scipy",
    "pandas",
    "numpy",
    "pyarrow",
    "sympy",
)
IMPORTS = "import beir_cocodr.models.checkpoints.loading, beir_cocodr.retrieval.searcher"


def write_files(folder: Path, count: int) -> None:
    """Write the mixed folder, a tenth of its files in each of ten folders."""
    bad = round(count * BAD_SHARE)
    foreign = round(count * FOREIGN_SHARE) * len(FOREIGN)
    readable = count - bad - foreign
    documents = list(load_collection(SOURCE, labels="none").documents.values())
    step = len(documents) // readable
    for number in range(readable):
        first = number * step
        kind = FORMATS[number % len(FORMATS)]
        write_file(place(folder, number, kind), documents[first : first + step][:2])
    for number in range(readable, readable + foreign):
        encoding, text = FOREIGN[number % len(FOREIGN)]
        content = "".join(text.format(10 * number + sentence) for sentence in range(10))
        place(folder, number, "txt").write_text(content, encoding=encoding)
    noise = random.Random(0)
    for number in range(readable + foreign, count):
        suffix = BAD_SUFFIXES[number % len(BAD_SUFFIXES)]
        content = bytes([0]) + noise.randbytes(2000)
        place(folder, number, suffix).write_bytes(
            gzip.compress(content) if suffix.endswith("gz") else content
        )


def place(folder: Path, number: int, suffix: str) -> Path:
    """Return the path of a file, in a folder that exists."""
    path = folder / str(number % 10) / f"page-{number}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_file(path: Path, documents: Sequence[Any]) -> None:
    """Write documents in the format of the file's ending."""
    kind = path.suffix.removeprefix(".")
    pairs = [(document["title"], document["text"]) for document in documents]
    with path.open("w", newline="") as file:
        if kind in ("csv", "tsv"):
            rows = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            rows.writerows([("title", "text"), *pairs])
        elif kind == "jsonl":
            for title, text in pairs:
                file.write(json.dumps({"title": title, "text": text}) + "\n")
        else:
            escape = html.escape if kind == "html" else str
            for title, text in pairs:
                file.write(TEXT_FORMS[kind].format(escape(title), escape(text)))


class Laps:
    """Seconds of steps that follow each other, by the clock and of the processor."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._last = self._now()

    def end(self, step: str) -> None:
        """Note the end of a step."""
        now = self._now()
        self.seconds[step] = [round(b - a, 3) for a, b in zip(self._last, now, strict=True)]
        self._last = now

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def start(folder: str, model: str) -> dict[str, Any]:
    """Start a search in this process; return the seconds of its steps and what it encodes."""
    laps = Laps()
    from beir_cocodr.models.checkpoints.loading import load_encoder
    from beir_cocodr.models.spec import EncoderOptions
    from beir_cocodr.retrieval.searcher import Searcher

    laps.end("imports")
    load_collection(folder, labels="none")
    laps.end("read the files")
    load_encoder("minilm", EncoderOptions())
    laps.end("load the model")
    encoded = count_encoded()
    searcher = Searcher(folder, model)
    searcher.prepare()
    laps.end("index and encode")
    hits = searcher.search(QUERY)
    laps.end("search")
    return {
        "steps": laps.seconds,
        "passages": len(searcher.documents),
        "encoded": sum(encoded),
        "first": hits[0].place,
    }


def count_encoded() -> list[int]:
    """Let every call that encodes documents note how many there are."""
    from sentence_transformers import SentenceTransformer

    encode = SentenceTransformer.encode
    counts: list[int] = []

    def counted(self: Any, inputs: Any, *rest: Any, **settings: Any) -> Any:
        if settings.get("task") == "document" and len(inputs) > 1:  # Loading tries a single text.
            counts.append(len(inputs))
        return encode(self, inputs, *rest, **settings)

    SentenceTransformer.encode = counted
    return counts


def environment_with(cache: Path) -> dict[str, str]:
    """Return this process's environment with another cache."""
    return os.environ | {
        "BEIR_COCODR_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
    }


def run_python(
    cache: Path, *arguments: str
) -> tuple[list[float], subprocess.CompletedProcess[str]]:
    """Run Python in a process of its own.

    Returns:
        Its seconds by the clock and of the processor, and what it printed.
    """
    started = time.perf_counter(), processor_seconds()
    completed = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment_with(cache),
    )
    wall = time.perf_counter() - started[0]
    return [round(wall, 2), round(processor_seconds() - started[1], 2)], completed


def time_first_line(cache: Path, *arguments: str) -> float:
    """Return the seconds until a command prints something, and stop it then."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "beir_cocodr.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment_with(cache),
    ) as command:
        assert command.stdout is not None
        command.stdout.read(1)
        seconds = round(time.perf_counter() - started, 2)
        command.kill()
    return seconds


def first_lines(work: Path, folder: Path) -> dict[str, float]:
    """Time the first line of each command that works on a folder, with an empty cache."""
    files = str(folder)
    commands = {
        "try": [files, "--no-browser", "--output", str(work / "first-judged")],
        "search": ["--dataset", files, "--model", "hybrid:minilm", QUERY],
        "compare": ["bm25", "minilm", "--dataset", files, "--output", str(work / "first-compared")],
        "fuse": ["--dataset", files, "--model", "minilm", "--output", str(work / "first-fused")],
        "adapt": ["--dataset", files, "--model", "minilm", "--output", str(work / "first-adapted")],
        "encode": ["--dataset", files, "--model", "minilm", "--output", str(work / "first-store")],
        "quickstart": ["--output", str(work / "first-quickstart")],
    }
    return {
        name: time_first_line(work / f"first-{name}", name, *arguments)
        for name, arguments in commands.items()
    }


def processor_seconds_of(process: psutil.Process) -> float:
    """Return the processor seconds of a running process and of its children."""
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        times = member.cpu_times()
        total += times.user + times.system
    return total


def time_page(
    cache: Path,
    folder: Path,
    output: Path,
) -> dict[str, list[float]]:
    """Start ``try``; return seconds, by clock and processor, until each column has an answer."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "beir_cocodr.cli", "try", str(folder), "--no-browser"]
    command += ["--output", str(output)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment_with(cache),
    ) as server:
        process = psutil.Process(server.pid)
        page = Page(read_link(server))
        answered: dict[str, list[float]] = {}
        waiting = page.model_names()
        while waiting:
            if page.has_answer(waiting[0]):
                wall = time.perf_counter() - started
                seconds = [round(wall, 2), round(processor_seconds_of(process), 2)]
                answered[waiting.pop(0)] = seconds
            else:
                time.sleep(0.05)
        server.terminate()
    return answered


def read_link(server: subprocess.Popen[str]) -> str:
    """Wait for the link that ``try`` prints."""
    assert server.stdout is not None
    for line in server.stdout:
        for word in line.split():
            if word.startswith("http"):
                return word
    raise SystemExit("try ended before it printed a link")


class Page:
    """The page of ``try``, as a browser sees it."""

    def __init__(self, link: str) -> None:
        self.url, secret = link.split("#")
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        body = json.dumps({"secret": secret}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + "api/login", body, headers)
        self._browser.open(request).close()

    def model_names(self) -> list[str]:
        """Return the models of the columns."""
        return [model["name"] for model in self._get("api/state")["models"]]

    def has_answer(self, model: str) -> bool:
        """Search, and say whether there are hits."""
        query = urllib.parse.urlencode(
            {
                "model": model,
                "query": QUERY,
            }
        )
        answer = self._get(f"api/search?{query}")
        if answer["model"]["state"] == "failed":
            raise RuntimeError(answer["model"]["remark"])
        return bool(answer["hits"])

    def _get(self, path: str) -> dict[str, Any]:
        with self._browser.open(self.url + path) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def time_imports(cache: Path) -> dict[str, float]:
    """Return the seconds that importing the modules of each package takes."""
    _, completed = run_python(
        cache,
        "-X",
        "importtime",
        "-c",
        IMPORTS,
    )
    microseconds: Counter[str] = Counter()
    for line in completed.stderr.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) != 3 or not fields[0].strip().isdecimal():
            continue
        package = fields[2].strip().partition(".")[0]
        name = package if package in PACKAGES else "others"
        microseconds[name] += int(fields[0])
    return {name: round(spent / 1e6, 2) for name, spent in microseconds.most_common()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all three ways, each with an empty cache and again."""
    starts: dict[str, list[Any]] = {
        "first": [],
        "second": [],
    }
    commands: dict[str, list[list[float]]] = {
        "first": [],
        "second": [],
    }
    pages: dict[str, list[dict[str, list[float]]]] = {
        "first": [],
        "second": [],
    }
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = work / "files"
        write_files(folder, options.files)
        steps = [__file__, f"--model={options.model}", f"--start={folder}"]
        search = ["-m", "beir_cocodr.cli", "search", f"--dataset={folder}"]
        search += [f"--model={options.model}", QUERY]
        for number in range(options.repeats):
            for turn in starts:  # The second finds what the first left in the cache.
                _, completed = run_python(work / f"steps-{number}", *steps)
                starts[turn].append(json.loads(completed.stdout.splitlines()[-1]))
                seconds, _ = run_python(work / f"search-{number}", *search)
                commands[turn].append(seconds)
                cache = work / f"page-{number}"
                pages[turn].append(time_page(cache, folder, work / f"judged-{number}"))
        imports = time_imports(work / "imports")
        lines = first_lines(work, folder)
    return {
        "starts": starts,
        "search_command_seconds": commands,
        "page_seconds": pages,
        "first_line_seconds": lines,
        "imports": imports,
    }


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for turn, runs in results["starts"].items():
        steps = {step: [run["steps"][step] for run in runs] for step in runs[0]["steps"]}
        lines.append(f"{turn} start, steps: {steps}")
        lines.append(f"{turn} start, search: {results['search_command_seconds'][turn]}")
        lines.append(f"{turn} start, try: {results['page_seconds'][turn]}")
        lines.append(f"{turn} start, passages encoded: {[run['encoded'] for run in runs]}")
    lines.append(f"first line: {results['first_line_seconds']}")
    lines.append(f"imports: {results['imports']}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "first_answer")
    parser.add_argument(
        "--files",
        type=int,
        default=300,
    )
    parser.add_argument("--model", default="hybrid:minilm")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
    )
    parser.add_argument("--start", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.start:
        say(start(options.start, options.model))
        return
    results = origin(load_average=os.getloadavg()) | {
        "files": options.files,
        "model": options.model,
        **measure(options),
    }
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
