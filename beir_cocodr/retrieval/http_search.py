"""A search engine that is asked over HTTP, as a ranker of the documents that the corpus has."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.endpoints import fetch_json, in_parallel
from beir_cocodr.http_requests import HttpRequest, ServerError
from beir_cocodr.io import cache_folder, filling_cache, json_sha256, write_text
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json
from beir_cocodr.retrieval.http_settings import (
    HttpSettings,
    failure_in,
    has_lists,
    results_at,
    steps_of,
)
from beir_cocodr.retrieval.ranking import Ranking

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

# The folder of kept answers in the cache.
_ANSWERS = "answers"

# Characters of an answer that a message quotes.
_QUOTED = 80

# Answers of one length show a limit of the engine only if there are as many as this.
_FEWEST_ANSWERS = 10


@dataclass(frozen=True)
class Answer:
    """The documents that an engine returned for a query.

    Attributes:
        ids: Their ids, best first, each once.
        scores: Their scores; ranks count where the engine has none.
        repeated: Results with the id of an earlier one, such as further passages of a document.
        is_readable: False if the answer lacks the list that the path of the ids names.
        without_id: Results that lack the id itself, or have null there.
    """

    ids: list[str]
    scores: list[float]
    repeated: int = 0
    is_readable: bool = True
    without_id: int = 0

    @property
    def has_form(self) -> bool:
        """Return whether it has what the path of the ids names, or could have it for no query."""
        return self.is_readable and (bool(self.ids) or not self.without_id)


class HttpSearch:
    """A search engine over HTTP.

    Documents that the corpus lacks are left out and counted. Answers are kept for some time, so
    that a comparison that was interrupted does not ask again.

    Args:
        name: The name of the engine, see
            :meth:`~beir_cocodr.retrieval.http_settings.HttpSettings.load`.
        documents: The corpus; the engine has an index of its own.
        options: How an encoder of ``{vector}`` is loaded.

    Raises:
        InputError: A setting is wrong.
    """

    def __init__(
        self,
        name: str,
        documents: Documents,
        options: SearchOptions = SearchOptions(),
    ) -> None:
        """Read the settings; nothing is asked."""
        self.name = name
        self.settings = HttpSettings.load(name)
        self.documents = documents
        self.options = options
        self._encoder: COCODR | None = None
        self._missed: Json = {}

    def prepare(self) -> None:
        """Load the encoder of queries, if there is one."""
        if self.settings.encoder and self._encoder is None:
            from beir_cocodr.models.checkpoints.loading import load_encoder

            self._encoder = load_encoder(self.settings.encoder, self.options.encoder)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for query id to text.

        Raises:
            ServerError: The engine does not answer, or not in the form that the settings say.
        """
        answers = self._answers(list(queries.values()), top_k)
        candidates = []
        unknown: dict[str, None] = {}
        for answer in answers:
            rows, scores = self._known(answer, unknown)
            candidates.append((rows, scores))
        self._report(answers, unknown)
        self._warn_of_pages(answers, top_k)
        return Ranking.of_best(queries, candidates, self.documents.tie_ranks(), top_k)

    def answers(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        """Return {document id: score} for query id to text, unknown documents included.

        Raises:
            ServerError: The engine does not answer, or not in the form that the settings say.
        """
        answers = self._answers(list(queries.values()), top_k)
        self._repeated(answers)
        self._without_id(answers)
        self._warn_of_pages(answers, top_k - 1)  # the last one takes the place of a dropped one
        return {
            query: dict(zip(answer.ids, answer.scores, strict=True))
            for query, answer in zip(queries, answers, strict=True)
        }

    def _answers(self, texts: list[str], top_k: int) -> list[Answer]:
        """Return the answers to queries, and ask only for those that the cache lacks.

        Raises:
            ServerError: No answer has what the path of the ids names.
        """
        requests = self._requests(texts, top_k)
        kept = [self._kept(request) for request in requests]
        new = [request for request, answer in zip(requests, kept, strict=True) if answer is None]
        if len(new) < len(requests):
            log.info(
                "%s: %d of %d answers are at most %g minutes old and come from the cache "
                "(keep_minutes 0 queries the engine every time)",
                self.name,
                len(requests) - len(new),
                len(requests),
                self.settings.keep_minutes,
            )
        asked = iter(in_parallel(self._ask, new, self.settings.options.concurrency))
        answers = [next(asked) if answer is None else answer for answer in kept]
        self._check_form(answers)
        return answers

    def _requests(self, texts: list[str], top_k: int) -> list[HttpRequest]:
        self.prepare()
        if self._encoder is None or not texts:
            return [self.settings.request(text, top_k) for text in texts]
        vectors = self._encoder.query_vectors(texts, self.options.batch_size).tolist()
        pairs = zip(texts, vectors, strict=True)
        return [self.settings.request(text, top_k, vector) for text, vector in pairs]

    def _ask(self, request: HttpRequest) -> Answer:
        options = self.settings.options
        content = fetch_json(request, options)
        for attempt in range(1, options.retries + 1):
            if failure_in(content, self.settings.failures) is None:
                break
            # An engine that was busy may answer in full a moment later.
            time.sleep(options.seconds_before(attempt))
            content = fetch_json(request, options)
        self._check_complete(content, request)
        answer = self._read(content, request)
        # An answer of another form may be refused, and is asked for again.
        if self.settings.keep_minutes and answer.has_form:
            path = self._path(request)
            with filling_cache(path.parent):
                write_text(path, json.dumps(vars(answer)))
        return answer

    def _check_complete(self, content: object, request: HttpRequest) -> None:
        """Check that the engine did not fail, and searched all of its index.

        Raises:
            ServerError: The answer says otherwise at one of the paths of ``failures``.
        """
        failure = failure_in(content, self.settings.failures)
        if failure is None:
            return
        path, value = failure
        value_text = request.hide(json.dumps(value, ensure_ascii=False))
        raise ServerError(
            f"{self.name}: an answer has {path} {value_text}, so results are missing; see the log "
            f'of the server, or set "failures" without {path} to count such answers as they are'
        )

    def _path(self, request: HttpRequest) -> Path:
        """Return the file in which the answer to a request is kept."""
        settings = self.settings
        key = json_sha256(
            [
                request.method,
                request.url,
                request.body,
                dict(settings.headers),
                settings.ids,
                settings.scores,
            ]
        )
        return cache_folder(_ANSWERS) / f"{key[:40]}.json"

    def _kept(self, request: HttpRequest) -> Answer | None:
        """Return the answer in the cache, if there is one that is new enough."""
        if not self.settings.keep_minutes:
            return None
        path = self._path(request)
        try:
            age = time.time() - path.stat().st_mtime
            content = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        if age > 60 * self.settings.keep_minutes:
            return None
        return Answer(**json.loads(content))

    def _read(self, content: object, request: HttpRequest) -> Answer:
        """Return the documents in the JSON of an answer; results without an id are left out."""
        steps = steps_of(self.settings.ids)
        results = results_at(content, steps)
        ids = [id for id in results if id is not None]
        for id in ids:
            if not isinstance(id, str | int):
                raise ServerError(
                    f"{self.name}: {self.settings.ids} contains {request.hide(repr(id))}, which is "
                    "not an id; correct the path of the ids"
                )
        scores: list[float] = [-float(rank) for rank in range(len(ids))]
        if self.settings.scores:
            scores = self._scores(content, results, request)
        best: dict[str, float] = {}
        for id, score in zip(ids, scores, strict=True):
            best[str(id)] = max(score, best.get(str(id), -math.inf))
        return Answer(
            ids=list(best),
            scores=list(best.values()),
            repeated=len(ids) - len(best),
            without_id=len(results) - len(ids),
            is_readable=has_lists(content, steps),
        )

    def _scores(
        self,
        content: object,
        results: Sequence[object],
        request: HttpRequest,
    ) -> list[float]:
        """Return the scores in the JSON of an answer, one for each result that has an id.

        Args:
            content: The JSON.
            results: The id of each result, None where it lacks one.
            request: The request, whose secrets no message may show.
        """
        way_out = "correct the path, or leave scores out to keep the order of the answer"
        values: Sequence[object] = results_at(content, steps_of(self.settings.scores))
        ids = results
        if len(values) == len(results):
            pairs = zip(results, values, strict=True)
            values = [value for id, value in pairs if id is not None and value is not None]
            ids = [id for id in results if id is not None]
        if len(values) != len(ids):
            raise ServerError(
                f"{self.name}: {len(ids)} ids and {len(values)} scores at "
                f"{self.settings.scores}; {way_out}"
            )
        scores = []
        for value in values:
            score = _number(value)
            if not math.isfinite(score):
                raise ServerError(
                    f"{self.name}: {self.settings.scores} contains {request.hide(repr(value))}, "
                    f"which is not a finite number; {way_out}"
                )
            scores.append(score)
        return scores

    def _check_form(self, answers: Sequence[Answer]) -> None:
        """Check that at least one answer has what the path of the ids names.

        Raises:
            ServerError: None has.
        """
        way_out = "correct the path of the ids"
        if answers and not any(answer.is_readable for answer in answers):
            raise ServerError(
                f"{self.name}: no answer to {len(answers)} queries has {self.settings.ids}; "
                f"{way_out}"
            )
        without_id = sum(answer.without_id for answer in answers)
        if without_id and not any(answer.ids for answer in answers):
            raise ServerError(
                f"{self.name}: none of {without_id} results for {len(answers)} queries has "
                f"{self.settings.ids}; {way_out}"
            )

    def _known(self, answer: Answer, unknown: dict[str, None]) -> tuple[Ints, Floats]:
        """Return (n,) rows and float32 scores of an answer; other ids join ``unknown``."""
        rows = self.documents.rows(answer.ids)
        scores = np.array(answer.scores, np.float32)
        for id, row in zip(answer.ids, rows.tolist(), strict=True):
            if row < 0:
                unknown[id] = None
        return rows[rows >= 0], scores[rows >= 0]

    def _report(self, answers: Sequence[Answer], unknown: Iterable[str]) -> None:
        """Count and say what the answers lacked.

        Raises:
            ServerError: The corpus has none of the documents.
        """
        strangers = list(unknown)
        returned = {id for answer in answers for id in answer.ids}
        if strangers:
            problem = (
                f"{self.name}: {len(strangers)} of the {len(returned)} documents that it returned "
                f"are not in the corpus, such as {strangers[0][:_QUOTED]!r}"
            )
            if len(strangers) == len(returned):
                raise ServerError(f"{problem}; correct the path of the ids, or name its corpus")
            log.warning("%s; they are left out", problem)
        self._missed = {
            "queries_without_results": sum(not answer.ids for answer in answers),
            "documents_not_in_the_corpus": len(strangers),
            "repeated_documents": self._repeated(answers),
            "results_without_id": self._without_id(answers),
        }

    def _warn_of_pages(self, answers: Sequence[Answer], top_k: int) -> None:
        """Say if all answers have the same length, and fewer results than were asked for."""
        lengths = [len(answer.ids) + answer.repeated + answer.without_id for answer in answers]
        different = {length for length in lengths if length}
        if len(answers) < _FEWEST_ANSWERS or len(different) != 1:
            return
        [length] = different
        if length < min(top_k, len(self.documents)):
            log.warning(
                "%s returned exactly %d results for every query that has any, although %d were "
                "asked for; if its pages are that long, let it return longer ones, because what "
                "it leaves out counts as not found",
                self.name,
                length,
                top_k,
            )

    def _repeated(self, answers: Sequence[Answer]) -> int:
        """Return how often one answer had a document again, and say so."""
        repeated = sum(answer.repeated for answer in answers)
        if repeated:
            log.warning(
                "%s returned documents several times in one answer (%d times in all); each counts "
                "once, with its best score",
                self.name,
                repeated,
            )
        return repeated

    def _without_id(self, answers: Sequence[Answer]) -> int:
        """Return how many results of all answers had no id, and say so."""
        without_id = sum(answer.without_id for answer in answers)
        if without_id:
            log.warning(
                "%s returned %d results without %s; they are left out",
                self.name,
                without_id,
                self.settings.ids,
            )
        return without_id

    def describe(self) -> Json:
        """Return the settings, and what the last answers lacked."""
        return {"model": "http", **self.settings.describe(), **self._missed}


def _number(value: object) -> float:
    """Return a number, also one that is written as text; NaN for anything else."""
    if not isinstance(value, str | int | float):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
