"""How a search over HTTP is asked and how its answers are read: templates, paths, and presets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

from beir_cocodr.errors import InputError, explained, kind_of, listed
from beir_cocodr.http_requests import HttpOptions, HttpRequest, check_url, secret
from beir_cocodr.io import parse_json
from beir_cocodr.models.spec import Options, check_options, option
from beir_cocodr.records import Json

#: Placeholders of templates.
QUERY = "{query}"
QUERY_IN_JSON = "{query_json}"
TOP_K = "{top_k}"
VECTOR = "{vector}"

# Placeholders of presets, which the URL fills: all before its last part, and the last part.
_ROOT = "{root}"
_COLLECTION = "{collection}"

# A variable of the environment in a header.
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# What to do where an engine asks for a key.
_KEY_ADVICE = (
    'give the key that the server asks for under "headers" in a file of settings, as in '
    '{"Authorization": "Bearer ${MY_KEY}"} with the key in the environment variable MY_KEY'
)

# A step of a path: each element of a list.
_EACH = "[]"

# The end of a key that an answer may lack, because nothing was found.
_MAY_LACK = "?"


@dataclass(frozen=True)
class HttpSettings(Options):
    """How a search over HTTP is asked and how its answers are read.

    In the URL and the body, ``{query}`` and ``{top_k}`` are replaced by the query and the number of
    documents, ``{query_json}`` by the query as it is written inside of a JSON string, and the value
    ``"{vector}"`` by the vector of the query, which within a longer text is written as JSON.

    Attributes:
        url: The URL.
        ids: The path to the ids of documents in the answer, such as ``hits.hits[]._id``: names of
            keys, and ``[]`` for each element of a list. A list whose name ends with ``?`` may be
            missing, which means no results.
        failures: Paths to what an answer has where the engine failed, or searched only a part of
            its index. Anything there but null, false, 0 or nothing ends the search.
        scores: The path to their scores; by default documents are ranked as they come.
        method: GET or POST. By default POST if there is a body, and GET otherwise.
        headers: Headers, in which ``${NAME}`` is the environment variable NAME.
        body: The template of the content, which is sent as JSON.
        encoder: The encoder of ``{vector}``, named as for ``--model``.
        sharpened: The folder of generated queries by which the engine's vectors were sharpened, as
            ``hand-over`` writes it; "" for none.
        timeout: Seconds to wait for an answer.
        retries: Further attempts after the server was busy, failed, or could not be reached.
        concurrency: Requests at a time.
        keep_minutes: How long an answer is kept in the cache; 0 asks every time.
    """

    url: str = option("")
    ids: str = option("[].id")
    scores: str = option("")
    failures: tuple[str, ...] = ()
    method: str = option("", choices=("", "GET", "POST"))
    headers: dict[str, str] = field(default_factory=dict)
    body: object = None
    encoder: str = option("")
    sharpened: str = option("")
    timeout: float = option(30.0, above=0)
    retries: int = option(3, min=0)
    concurrency: int = option(4, min=1)
    keep_minutes: float = option(60.0, min=0)

    def __post_init__(self) -> None:
        """Check all settings, and that the query is asked for."""
        check_options(self)
        check_url(self.url)
        if not self.ids:
            raise InputError("ids is empty; give the path to the ids, such as [].id")
        is_text = isinstance(self.headers, dict) and all(
            isinstance(text, str) for text in self.headers.values()
        )
        if not is_text:
            raise InputError("headers is not an object of texts; give names and values")
        is_list = isinstance(self.failures, list | tuple)
        if not (is_list and all(isinstance(path, str) and path for path in self.failures)):
            raise InputError('failures is not a list of paths; give some, as in ["timed_out"]')
        template = self.url + json.dumps(self.body, ensure_ascii=False)
        placeholders = (QUERY, QUERY_IN_JSON, VECTOR)
        if not any(placeholder in template for placeholder in placeholders):
            raise InputError(f"neither url nor body has {QUERY}; write it where it belongs")
        if VECTOR in template and not self.encoder:
            raise InputError(f'{VECTOR} needs an encoder; name it, as in "encoder": "minilm"')

    @classmethod
    def load(cls, name: str) -> Self:
        """Return the settings of a name: ``http:FILE.json``, or a URL with or without ``#PRESET``.

        Raises:
            InputError: There is no such file or preset, or a setting is wrong.
        """
        rest = name.removeprefix("http:")
        if name.startswith("https:") or rest.startswith("//"):
            return cls._of_url(name)
        if rest.startswith(("http://", "https://")):
            return cls._of_url(rest)
        path = Path(rest)
        way_out = "give a URL, or a file of settings as docs/engines.md describes them"
        with explained(f"{name!r}: {path} cannot be read", way_out, OSError, ValueError):
            content = parse_json(path.read_text(encoding="utf-8"))
        return cls._of_json(content, str(path))

    @classmethod
    def _of_url(cls, name: str) -> Self:
        url, _, preset = name.partition("#")
        if preset:
            return cls._of_json({"preset": preset, "url": url}, name)
        if QUERY not in url:
            raise InputError(
                f"{name!r} has no {QUERY}; write it into the URL, as in "
                f"http://localhost:8000/search?q={QUERY}&k={TOP_K}, or end the URL with one of "
                f"#{', #'.join(PRESETS)}"
            )
        return cls._of_json({"url": url}, name)

    @classmethod
    def _of_json(cls, content: object, where: str) -> Self:
        """Return the settings that JSON holds, over those of a preset if it names one."""
        if not isinstance(content, dict):
            raise InputError(f"{where} contains {kind_of(content)}; give a JSON object of settings")
        chosen = dict(content)
        preset = chosen.pop("preset", None)
        if preset is not None:
            chosen = _preset(preset, chosen, where)
        known = {one.name: one for one in fields(cls)}
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise InputError(
                f"{where}: unknown setting {listed(unknown)}; choose among {', '.join(known)} and "
                "preset"
            )
        try:
            return cls(**chosen)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    @property
    def options(self) -> HttpOptions:
        """Return how long to wait, and how often to try again."""
        return HttpOptions(
            timeout=self.timeout, retries=self.retries, concurrency=int(self.concurrency)
        )

    def request(
        self,
        query: str,
        top_k: int,
        vector: list[float] | None = None,
    ) -> HttpRequest:
        """Return the request for a query.

        Raises:
            InputError: An environment variable of a header is not set.
        """
        texts = {QUERY: query, QUERY_IN_JSON: json.dumps(query)[1:-1], TOP_K: str(top_k)}
        if vector is not None:
            texts[VECTOR] = json.dumps(vector)
        values = {QUERY: query, TOP_K: top_k, VECTOR: vector}
        quoted = {placeholder: quote(text, safe="") for placeholder, text in texts.items()}
        secrets: list[str] = []
        headers = {}
        for name, template in self.headers.items():
            headers[name] = _with_variables(template, secrets)
        return HttpRequest(
            method=self.method or ("GET" if self.body is None else "POST"),
            url=_filled(self.url, quoted),
            headers=headers,
            body=None if self.body is None else _filled_json(self.body, texts, values),
            secrets=tuple(secrets),
            key_advice=_KEY_ADVICE,
        )

    def describe(self) -> Json:
        """Return the settings that answers depend on; of headers only the names."""
        described: Json = {"url": self.url, "ids": self.ids, "scores": self.scores}
        if self.body is not None:
            described["body"] = self.body
        if self.encoder:
            described["encoder"] = self.encoder
        if self.headers:
            described["headers"] = list(self.headers)
        return described


def _with_variables(template: str, secrets: list[str]) -> str:
    """Return a header with the variables of the environment, whose values join the secrets."""

    def value_of(match: re.Match[str]) -> str:
        value = secret(match[1])
        secrets.append(value)
        return value

    return _VARIABLE.sub(value_of, template)


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced; those in a replacement stay as they are."""
    pattern = "|".join(map(re.escape, texts))
    return re.sub(pattern, lambda match: texts[match[0]], template)


def _filled_json(
    template: object,
    texts: Mapping[str, str],
    values: Mapping[str, object],
) -> object:
    """Return JSON with the placeholders in its texts replaced; one alone becomes a value."""
    if isinstance(template, dict):
        return {name: _filled_json(part, texts, values) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled_json(part, texts, values) for part in template]
    if not isinstance(template, str):
        return template
    if template in values:
        return values[template]
    return _filled(template, texts)


def steps_of(path: str) -> list[str]:
    """Return the steps of a path, such as ``hits``, ``[]`` and ``_id`` of ``hits[]._id``."""
    plain = path.removeprefix("$").replace("[*]", _EACH)
    parts = plain.replace(_EACH, f".{_EACH}.").split(".")
    return [part for part in parts if part]


def values_at(
    answer: object,
    steps: list[str],
    *,
    gaps: bool = False,
) -> Iterator[object]:
    """Yield what an answer holds at a path.

    Args:
        answer: The JSON.
        steps: The steps of the path.
        gaps: Yield None where a key or a list is lacking; by default nothing is yielded there.
    """
    if not steps:
        yield answer
        return
    first, *others = steps
    first = first.removesuffix(_MAY_LACK)
    parts: list[object] = []
    if first == _EACH and isinstance(answer, list):
        parts = answer
    elif isinstance(answer, dict) and first in answer:
        parts = [answer[first]]
    elif isinstance(answer, list) and first.isdecimal() and int(first) < len(answer):
        parts = [answer[int(first)]]
    elif gaps:
        yield None
    for part in parts:
        yield from values_at(part, others, gaps=gaps)


def failure_in(answer: object, paths: Iterable[str]) -> tuple[str, object] | None:
    """Return the first path at which an answer says that the engine failed, and what it says."""
    for path in paths:
        for value in values_at(answer, steps_of(path)):
            if value:
                return path, value
    return None


def results_at(answer: object, steps: list[str]) -> list[object]:
    """Return what the results of an answer hold at a path, None where they lack it.

    The results are the elements of the path's first list. Two paths that differ only within the
    results return equally many values, in the same order.
    """
    start = len(steps)
    if _EACH in steps:
        start = steps.index(_EACH) + 1
    values: list[object] = []
    for result in values_at(answer, steps[:start]):
        values += values_at(result, steps[start:], gaps=True)
    return values


def has_lists(answer: object, steps: list[str]) -> bool:
    """Return true if an answer has the first list of a path, be it empty.

    A list whose name ends with ``?`` need not be there, if what should hold it is.
    """
    before = steps[: steps.index(_EACH)] if _EACH in steps else steps
    if before and before[-1].endswith(_MAY_LACK):
        name = before[-1].removesuffix(_MAY_LACK)
        holders = values_at(answer, before[:-1])
        if any(isinstance(holder, dict) and name not in holder for holder in holders):
            return True
    return any(isinstance(value, list) or before == steps for value in values_at(answer, before))


@dataclass(frozen=True)
class HttpPreset:
    """The settings for a kind of search engine: a row of :data:`PRESETS`.

    Args:
        url: The URL, in which ``{root}`` is all of the given one before its last part and
            ``{collection}`` its last part.
        body: See :class:`HttpSettings`; ``{collection}`` is replaced.
        ids: See :class:`HttpSettings`.
        scores: See :class:`HttpSettings`.
        help: What is searched, one sentence for the documentation.
        failures: See :class:`HttpSettings`.
    """

    url: str
    body: object
    ids: str
    scores: str
    help: str
    failures: tuple[str, ...] = ()


_LUCENE_ENGINE = HttpPreset(
    url="{root}/{collection}/_search",
    body={
        "size": TOP_K,
        "query": {"multi_match": {"query": QUERY, "fields": ["title", "text"]}},
        "_source": False,
    },
    ids="hits.hits[]._id",
    scores="hits.hits[]._score",
    help="The fields title and text of an index, by BM25.",
    failures=("timed_out", "_shards.failed"),
)

#: Settings for search engines, by name. Add a row of your own from a script.
PRESETS: dict[str, HttpPreset] = {
    "opensearch": _LUCENE_ENGINE,
    "elasticsearch": replace(_LUCENE_ENGINE),
    "qdrant": HttpPreset(
        url="{root}/collections/{collection}/points/query",
        body={"query": VECTOR, "limit": TOP_K, "with_payload": ["id"]},
        ids="result.points[].payload.id",
        scores="result.points[].score",
        help="The vectors of a collection; the payload of a point contains the document's id.",
    ),
    "vespa": HttpPreset(
        url="{root}/search/",
        body={
            "yql": "select id from {collection} where userQuery()",
            "query": QUERY,
            "hits": TOP_K,
        },
        ids="root.children?[].fields.id",
        scores="root.children?[].relevance",
        help="The documents of a schema, by its default rank profile; they have a field id.",
        failures=("root.errors", "root.coverage.degraded.timeout"),
    ),
    "weaviate": HttpPreset(
        url="{root}/v1/graphql",
        body={
            "query": '{ Get { {collection}(bm25: {query: "{query_json}"}, limit: {top_k}) '
            "{ doc_id _additional { score } } } }"
        },
        ids="data.Get.{collection}[].doc_id",
        scores="data.Get.{collection}[]._additional.score",
        help="The objects of a class, by BM25; a property doc_id contains the document's id.",
        failures=("errors",),
    ),
}


def _preset(
    name: object,
    chosen: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    """Return the settings of a preset, with those that were chosen over them."""
    if name not in PRESETS:
        raise InputError(
            f"{where}: unknown preset {name!r}; choose one of {', '.join(PRESETS)}, or describe "
            "the search in a file of settings"
        )
    preset = PRESETS[str(name)]
    url = chosen.get("url")
    if not isinstance(url, str):
        raise InputError(f"{where} has no url; give the URL of the server with its collection")
    root, _, collection = url.rstrip("/").rpartition("/")
    if not collection or not urlsplit(root).netloc:
        raise InputError(
            f"{where}: {url!r} names no collection; give one, as in http://localhost:9200/docs"
        )
    names = {_ROOT: root, _COLLECTION: collection}
    settings: dict[str, Any] = {
        "url": _filled(preset.url, names),
        "body": _filled_json(preset.body, names, {}),
        "ids": _filled(preset.ids, names),
        "scores": _filled(preset.scores, names),
        "failures": preset.failures,
    }
    return {**settings, **{name: value for name, value in chosen.items() if name != "url"}}
