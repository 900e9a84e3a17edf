"""The Python interface: wrong types for every public function and class, and copies of objects."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from faults.inputs import LIMIT, Campaign, Outcome, is_one_error, judge_end
from faults.runner import Ended
from faults.world import lay_out

#: Values; most of them fit no argument.
_VALUES: dict[str, Any] = {
    "None": None,
    "an int": 7,
    "zero": 0,
    "a negative int": -3,
    "a huge int": 10**30,
    "a float": 1.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "true": True,
    "bytes": b"in/beir",
    "a text": "nonsense",
    "an empty text": "",
    "an empty list": [],
    "an empty dict": {},
    "a list of int": [1, 2],
    "a list of None": [None],
    "a set": {1},
    "an object": object(),
    "a class": type,
    "a function": len,
    "a nested dict": {"a": {"b": {"c": 1}}},
    "a dict of None": {"a": None},
    "a surrogate": "\ud800",
    "a document with a surrogate": [{"title": "", "text": "a wing \ud800"}],
    "an id with a surrogate": {"d\ud800": {"title": "", "text": "the wing"}},
    "a query id with a surrogate": {"q\ud800": "the wing"},
    "a query with a surrogate": {"q1": "the wing \ud800"},
    "NUL": "a\0b",
    "a long name": "a" * 5000,
    "an error": ValueError("an error"),
}

#: Arguments whose texts and ids must be whole characters.
_TEXT_ARGUMENTS = {"corpus", "queries", "query"}

_TEXTS = {"d1": {"title": "", "text": "the wing"}, "d2": {"title": "heat", "text": "a hot plate"}}
_QUERIES = {"q1": "the wing", "q2": "a plate"}
_FROM = {"dataset": "in/beir", "output": "out/new"}

#: Functions and classes of the package, and arguments that they take.
CALLS: dict[str, dict[str, Any]] = {
    "load_collection": {"dataset": "in/beir", "split": "test", "labels": "required"},
    "load_encoder": {"model": "in/model", "options": None},
    "evaluate": _FROM | {"models": ["bm25"], "measures": "nDCG@10", "split": "test"},
    "compare": _FROM | {"models": ["bm25", "in/model"], "measures": "nDCG@10", "split": "test"},
    "gate": _FROM | {"old": "bm25", "new": "bm25"},
    "fuse": _FROM | {"model": "in/model", "stores": (), "resume": False},
    "adapt": _FROM | {"model": "in/model", "source": "in/source", "resume": False},
    "pretrain": _FROM | {"model": "in/bert", "queries": (), "resume": False},
    "finetune": _FROM | {"model": "in/model", "split": "train", "resume": False},
    "distill": _FROM | {"model": "in/model", "teacher": "bm25", "split": "train"},
    "Searcher": {"dataset": "in/beir", "model": "bm25", "snippet_length": 240},
    "ExactSearch": {"model": "in/model", "batch_size": 8, "corpus_chunk_size": 10, "store": None},
    "COCODR": {"model_name_or_path": "in/model", "query_length": 8, "pooling": None},
    "MRL": {"model_name_or_path": "in/mrl"},
    "HybridEncoder": {"model_name_or_path": "in/model", "head": None},
    "ModelSpec.parse": {"name": "hybrid:in/model"},
    "ModelSpec.of": {"kind": "hybrid", "encoder": "in/model", "label": "a"},
}

#: Classes of options: each of their fields is an argument.
OPTIONS = [
    "AdaptOptions",
    "CompareOptions",
    "DistillOptions",
    "EncoderOptions",
    "EvaluateOptions",
    "FinetuneOptions",
    "FuseOptions",
    "GateOptions",
    "PretrainOptions",
    "SearchOptions",
]

#: Methods of objects, and arguments that they take.
METHODS: dict[str, dict[str, Any]] = {
    "Searcher.search": {"query": "wing", "top_k": 3},
    "Searcher.search_all": {"queries": _QUERIES, "top_k": 3},
    "Searcher.search_within": {"query": "wing", "keeps": bool, "top_k": 3},
    "Searcher.beside": {"model": "in/model"},
    "Searcher.full_text": {"id": "d1"},
    "Searcher.path_of": {"id": "d1"},
    "ExactSearch.search": {
        "corpus": _TEXTS,
        "queries": _QUERIES,
        "top_k": 2,
        "score_function": "cos_sim",
    },
    "ExactSearch.search_arrays": {"corpus": _TEXTS, "queries": _QUERIES, "top_k": 2},
    "ExactSearch.encode": {
        "corpus": _TEXTS,
        "queries": _QUERIES,
        "encode_output_path": "out/embeddings",
        "overwrite": False,
    },
    "COCODR.encode_queries": {"queries": ["the wing"], "batch_size": 2},
    "COCODR.encode_corpus": {"corpus": [_TEXTS["d1"]], "batch_size": 2},
}


def _receiver(name: str) -> Any:
    """Return an object whose methods are called."""
    import beir_cocodr

    if name == "Searcher":
        return beir_cocodr.Searcher("in/beir", "bm25")
    if name == "ExactSearch":
        return beir_cocodr.ExactSearch("in/model", show_progress_bar=False)
    return beir_cocodr.load_encoder("in/model")


def _quick_options(function: str) -> dict[str, Any]:
    """Return options with which a function that trains or compares ends within a second."""
    import beir_cocodr

    short = {"max_steps": 1, "batch_size": 4}
    if function == "finetune":
        return {"options": beir_cocodr.FinetuneOptions(**short)}
    if function == "pretrain":
        return {"options": beir_cocodr.PretrainOptions(**short, span_tokens=12, max_length=48)}
    if function == "distill":
        return {"options": beir_cocodr.DistillOptions(**short, m_bm25=2, m_hard=2, held_out=0)}
    if function == "adapt":
        stage = beir_cocodr.FinetuneOptions(**short)
        stages = {"stages": ("finetune",), "stage_options": {"finetune": stage}}
        return {"options": beir_cocodr.AdaptOptions(**stages, samples=10)}
    if function == "gate":
        return {"options": beir_cocodr.GateOptions(samples=10)}
    return {}


@cache
def _option_fields() -> dict[str, list[str]]:
    import beir_cocodr

    fields = {}
    for name in OPTIONS:
        fields[name] = [field.name for field in dataclasses.fields(getattr(beir_cocodr, name))]
    return fields


def _draw_call(rng: random.Random) -> tuple[str, str]:
    """Return the name of a function, class or method, and one of its arguments."""
    table = rng.choice([CALLS, METHODS, _option_fields()])
    function = rng.choice(list(table))
    argument = rng.choice(list(table[function]))
    if function in ("adapt", "pretrain", "finetune", "distill", "gate") and rng.random() < 0.2:
        argument = "options"
    return function, argument


def _call(function: str, argument: str, value: object) -> None:
    import beir_cocodr

    if function in METHODS:
        owner, _, method = function.partition(".")
        getattr(_receiver(owner), method)(**METHODS[function] | {argument: value})
        return
    if function in OPTIONS:
        getattr(beir_cocodr, function)(**{argument: value})
        return
    arguments = _quick_options(function) | CALLS[function] | {argument: value}
    if function == "load_encoder" and argument != "options":
        del arguments["options"]
    target: Any = beir_cocodr
    for name in function.split("."):
        target = getattr(target, name)
    target(**arguments)


def _fork(campaign: Campaign, work: Callable[[], None]) -> Ended:
    """Run a function of Python in a fork; an ``InputError`` ends as a refusal of a command."""

    def call() -> None:
        from beir_cocodr.errors import InputError

        try:
            work()
        except InputError as error:
            os.write(2, f"error: {error}\n".encode("utf-8", "backslashreplace"))
            os._exit(2)

    lay_out(campaign.work, campaign.folder / "world", [])
    environment = {"BEIR_COCODR_CACHE": str(campaign.work.parent / "cache")}
    return campaign.warm.fork(call, campaign.work, environment).wait(LIMIT)


def run_api(case: str, campaign: Campaign) -> Outcome:
    """Call a public function with a value of a wrong type: it names the argument or the value."""
    rng = campaign.generator(case)
    function, argument = _draw_call(rng)
    kind = rng.choice(list(_VALUES))
    value = _VALUES[kind]
    ended = _fork(campaign, lambda: _call(function, argument, value))
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    failure = judge_end(ended, lines)
    if failure is not None:
        outcome, message = failure
    elif ended.status == 2:
        is_clear = is_one_error(lines) and _is_named(lines[-1], function, argument, value)
        outcome = "refused" if is_clear else "refused unclearly"
        message = lines[-1][-300:] if lines else ""
    else:
        is_unpaired = "surrogate" in kind and argument in _TEXT_ARGUMENTS
        outcome = "silent difference" if is_unpaired else "other content"
        message = "accepted"
    called = f"{function}({argument}=...)"
    return Outcome(case, function, called, argument, kind, outcome, message, ended.seconds, [])


def _is_named(line: str, function: str, argument: str, value: object) -> bool:
    """Say whether a line names the argument, its type or its value."""
    words = [argument, argument.rstrip("s"), argument.replace("_", " "), type(value).__name__]
    words += [argument.replace("ies", "y"), repr(value).strip("'")[:15]]
    words.append(function.rpartition(".")[2])
    if "\\ud800" in repr(value):
        words.append("surrogate")
    if argument == "model_name_or_path":
        words.append("model")
    if isinstance(value, (list, tuple, set, dict)):
        words += [repr(item)[:15] for item in value]
    return any(word.lower() in line.lower() for word in words)


def _search(searcher: Any) -> object:
    return [(hit.id, round(hit.score, 4)) for hit in searcher.search("wing flow", 5)]


def _search_exactly(search: Any) -> object:
    found = search.search(_TEXTS, _QUERIES, 2, "cos_sim")
    return {id: {hit: round(score, 2) for hit, score in hits.items()} for id, hits in found.items()}


def _encode(encoder: Any) -> object:
    vectors = encoder.encode_queries(["the wing", "a plate"], convert_to_tensor=True)
    return [[round(value, 1) for value in vector] for vector in vectors.float().tolist()]


def _make_fused() -> Any:
    import beir_cocodr

    beir_cocodr.fuse("in/model", "in/beir", output="out/fused")
    return beir_cocodr.load_encoder("out/fused")


def _objects() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return names of objects, what makes them, and what asks them."""
    import beir_cocodr

    return {
        "a searcher by BM25": (lambda: beir_cocodr.Searcher("in/beir", "bm25"), _search),
        "a searcher by an encoder": (lambda: beir_cocodr.Searcher("in/beir", "in/model"), _search),
        "a searcher by a fusion": (
            lambda: beir_cocodr.Searcher("in/beir", "hybrid:in/model"),
            _search,
        ),
        "an exact search": (
            lambda: beir_cocodr.ExactSearch("in/model", show_progress_bar=False),
            _search_exactly,
        ),
        "an encoder": (lambda: beir_cocodr.load_encoder("in/model"), _encode),
        "a fused encoder": (_make_fused, _encode),
        "a probabilistic encoder": (lambda: beir_cocodr.load_encoder("in/mrl"), _encode),
        "a collection": (
            lambda: beir_cocodr.load_collection("in/beir"),
            lambda collection: (dict(collection.queries), collection.documents["d1"]),
        ),
        "a spec": (lambda: beir_cocodr.ModelSpec.parse("hybrid:in/model"), repr),
        "options": (lambda: beir_cocodr.FinetuneOptions(max_steps=3), repr),
    }


_WAYS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda thing: pickle.loads(pickle.dumps(thing)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "in half precision": lambda thing: thing.half(),
}


def run_copy(case: str, campaign: Campaign) -> Outcome:
    """Copy an object, drop the original, and use the copy: it answers the same, or is refused."""
    rng = campaign.generator(case)
    objects = _objects()
    name = rng.choice(list(objects))
    ways = [way for way in _WAYS if way != "in half precision" or "encoder" in name[2:]]
    way = rng.choice(
        [way for way in ways if not name.startswith("a searcher") or "half" not in way]
    )
    is_used_before = rng.random() < 0.5
    make, ask = objects[name]

    def work() -> None:
        expected = ask(make())
        original = make()
        if is_used_before:
            ask(original)
        try:
            other = _WAYS[way](original)
        except TypeError as error:
            os.write(2, f"error: {error}\n".encode())
            os._exit(2)
        del original
        if ask(other) != expected:
            os._exit(3)

    ended = _fork(campaign, work)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    if ended.status == 3:
        outcome, message = "silent difference", "the copy answers differently"
    elif ended.status == 2:
        outcome = "refused" if is_one_error(lines) else "refused unclearly"
        message = lines[-1][-300:] if lines else ""
    else:
        outcome, message = judge_end(ended, lines) or ("harmless", "")
    what = f"{way}, {'used' if is_used_before else 'not used'} before"
    return Outcome(case, "copy", name, name, what, outcome, message, ended.seconds, [])
