"""From a folder of 300 files to the first answer, and a second start: seconds of every step.

The files are documentation of installed packages in eight formats. Each start is a process of its
own with an empty cache or the one that the start before has filled. `imports` says whose modules
the time of importing goes to, from `python -X importtime`: a module counts without what it imports.
Writes benchmarks/results/first_answer.json.

python benchmarks/first_answer.py
"""

from __future__ import annotations

import argparse
import csv
import datetime
import html
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from machine import machine

from beir_cocodr.data.collection import load_collection
from beir_cocodr.io import write_text
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "first_answer.json"
SOURCE, QUERY = "apidocs/numpy+pandas", "return a sorted copy of an array"
FORMATS = ("txt", "md", "rst", "html", "csv", "tsv", "jsonl", "md")
HOSTS = (
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


def write_files(folder: Path, count: int) -> None:
    """Files of two documents each, one format after the other."""
    documents = list(load_collection(SOURCE, labels="none").documents.values())
    size = len(documents) // count
    for number in range(count):
        part, kind = (
            documents[number * size : (number + 1) * size][:2],
            FORMATS[number % len(FORMATS)],
        )
        path = folder / f"{number % 10}" / f"page-{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "jsonl":
            text = "".join(
                json.dumps({"title": one["title"], "text": one["text"]}) + "\n" for one in part
            )
        elif kind in ("csv", "tsv"):
            with path.open("w", newline="") as file:
                rows = csv.writer(file, delimiter="," if kind == "csv" else "\t")
                rows.writerows([["title", "text"], *([one["title"], one["text"]] for one in part)])
            continue
        elif kind == "html":
            text = "".join(
                f"<h2>{html.escape(one['title'])}</h2><p>{html.escape(one['text'])}</p>"
                for one in part
            )
        else:
            under = {
                "md": "## {}\n\n{}\n\n",
                "rst": "{}\n" + "=" * 80 + "\n\n{}\n\n",
                "txt": "{}\n\n{}\n\n",
            }[kind]
            text = "".join(under.format(one["title"], one["text"]) for one in part)
        path.write_text(text)


def start(folder: str, model: str) -> dict[str, Any]:
    """One start in this process: seconds of its steps, on the clock and of the processor."""
    laps: dict[str, list[float]] = {}
    before = [time.perf_counter(), time.process_time()]

    def lap(step: str) -> None:
        now = [time.perf_counter(), time.process_time()]
        laps[step] = [round(b - a, 3) for a, b in zip(before, now, strict=True)]
        before[:] = now

    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.models.spec import EncoderOptions
    from beir_cocodr.retrieval.searcher import Searcher

    lap("imports")
    load_collection(folder, labels="none")
    lap("read the files")
    load_encoder("minilm", EncoderOptions())
    lap("load the model")
    searcher = Searcher(folder, model)
    searcher.prepare()
    lap("index and encode")
    found = searcher.search(QUERY)
    lap("search")
    return {"steps": laps, "passages": len(searcher.documents), "first": found[0].place}


def command(cache: Path, *arguments: str) -> tuple[float, str]:
    """Wall seconds of a process of its own, and what it printed."""
    began = time.perf_counter()
    surroundings = os.environ | {"BEIR_COCODR_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env=surroundings
    )
    return round(time.perf_counter() - began, 2), done.stdout + done.stderr * (
        "importtime" in arguments
    )


def page(cache: Path, folder: Path, output: Path) -> dict[str, float]:
    """Column of the page of `try` to wall seconds from the start of its process to the column's
    answer.
    """
    began, answered = time.perf_counter(), dict[str, float]()
    surroundings = os.environ | {"BEIR_COCODR_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    typed = [
        sys.executable,
        "-m",
        "beir_cocodr.cli",
        "try",
        str(folder),
        "--no-browser",
        "--output",
        str(output),
    ]
    with subprocess.Popen(
        typed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=surroundings
    ) as run:
        assert run.stdout is not None
        link = next(word for line in run.stdout for word in line.split() if word.startswith("http"))
        url, secret = link.split("#")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        sent = {"content-type": "application/json"}
        login = urllib.request.Request(
            url + "api/login", json.dumps({"secret": secret}).encode(), sent
        )
        browser.open(login).close()
        with browser.open(url + "api/state") as answer:
            waiting = [model["name"] for model in json.load(answer)["models"]]
        while waiting:
            asked = urllib.parse.urlencode({"model": waiting[0], "query": QUERY})
            with browser.open(f"{url}api/search?{asked}") as answer:
                found = json.load(answer)
            if found["model"]["state"] == "failed":
                raise RuntimeError(found["model"]["remark"])
            if found["hits"]:
                answered[waiting.pop(0)] = round(time.perf_counter() - began, 2)
            else:
                time.sleep(0.05)
        run.terminate()
    return answered


def whose_imports(cache: Path) -> dict[str, float]:
    """Package to seconds of importing its own modules."""
    _, text = command(
        cache,
        "-X",
        "importtime",
        "-c",
        "import beir_cocodr.models.loading, beir_cocodr.retrieval.searcher",
    )
    spent: Counter[str] = Counter()
    for line in (line for line in text.splitlines() if line.count("|") == 2):
        own, _, name = (part.strip() for part in line.removeprefix("import time:").split("|"))
        top = name.partition(".")[0]
        if own.isdecimal():
            spent["beir_cocodr" if top == "beir_cocodr" else top if top in HOSTS else "others"] += (
                int(own)
            )
    return {name: round(microseconds / 1e6, 2) for name, microseconds in spent.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--model", default="hybrid:minilm")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(start(arguments.start, arguments.model)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "files"
        write_files(folder, arguments.files)
        own = [__file__, "--model", arguments.model, "--start", str(folder)]
        typed = [
            "-m",
            "beir_cocodr.cli",
            "search",
            "--dataset",
            str(folder),
            "--model",
            arguments.model,
            QUERY,
        ]
        starts: dict[str, list[Any]] = {"first": [], "second": []}
        commands: dict[str, list[float]] = {"first": [], "second": []}
        pages: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
        for number in range(arguments.repeats):
            for name in starts:  # the second finds what the first has left in the cache
                _, text = command(Path(place) / f"steps-{number}", *own)
                starts[name].append(json.loads(text.splitlines()[-1]))
                commands[name].append(command(Path(place) / f"typed-{number}", *typed)[0])
                pages[name].append(
                    page(Path(place) / f"page-{number}", folder, Path(place) / f"judged-{number}")
                )
        found = {
            "date": datetime.date.today().isoformat(),
            "machine": machine() | {"load_average": os.getloadavg()},
            "versions": versions(),
            "files": arguments.files,
            "model": arguments.model,
            "starts": starts,
            "search_command_seconds": commands,
            "page_seconds": pages,
            "imports": whose_imports(Path(place) / "imports"),
        }
    write_text(RESULTS, json.dumps(found, indent=2) + "\n")
    for name, runs in starts.items():
        print(
            name,
            {step: [run["steps"][step] for run in runs] for step in runs[0]["steps"]},
            commands[name],
            pages[name],
        )
    print(found["imports"])


if __name__ == "__main__":
    main()
