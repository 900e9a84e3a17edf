"""Grades that a judge gave, kept by content, so that no pair is graded twice."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from beir_cocodr.data.judgement_log import append_line, repair_log
from beir_cocodr.evaluation.judge.graders import Reply
from beir_cocodr.evaluation.judge.prompt import (
    GRADES,
    PROMPT_VERSION,
    is_refusal,
    parse_grade,
)
from beir_cocodr.io import cache_folder, filling_cache, locked, parse_json, text_sha256

# Characters of an answer that are kept, to see why it has no grade.
_KEPT = 200


@dataclass(frozen=True)
class KeptGrade:
    """The grade of one pair.

    Attributes:
        grade: 0 to 3; None if the answer states none.
        answer: The beginning of the answer.
        tokens: Tokens that the judge read and wrote.
        is_refused: True if the judge declined to answer.
    """

    grade: int | None
    answer: str = ""
    tokens: int = 0
    is_refused: bool = False

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the grade that a reply states."""
        has_ended = not (reply.is_refused or reply.is_cut_off)
        grade = parse_grade(reply.text) if has_ended else None
        is_refused = grade is None and (reply.is_refused or is_refusal(reply.text))
        return cls(grade, reply.text[:_KEPT], reply.tokens, is_refused)


class GradeCache:
    """The grades of one judge by one version of the prompt: a line of a file for each pair.

    A line is on the disk once its pair is graded, so that a run that is killed goes on where it
    stopped.

    Args:
        identity: What the judge's answers depend on.
    """

    def __init__(self, identity: str) -> None:
        """Read the grades; a line that a killed run left unfinished is set aside."""
        self.folder = cache_folder("judge")
        self.file = self.folder / f"{text_sha256(PROMPT_VERSION, identity)[:24]}.jsonl"
        self._grades: dict[str, KeptGrade] = {}
        repair_log(self.file)
        if self.file.is_file():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                self._read(parse_json(line))

    def _read(self, content: dict[str, object]) -> None:
        """Take a line of the file, unless its grade is none; the pair is then graded again."""
        grade = content.get("grade")
        tokens = content.get("tokens")
        if (grade is None or grade in GRADES) and isinstance(tokens, int):
            self._grades[str(content.get("pair"))] = KeptGrade(
                grade if isinstance(grade, int) else None,
                str(content.get("answer", "")),
                tokens,
                bool(content.get("is_refused")),
            )

    @staticmethod
    def key(query: str, document: str) -> str:
        """Return the key of a pair, which depends on both texts."""
        return text_sha256(query, document)

    def get(self, query: str, document: str) -> KeptGrade | None:
        """Return the grade of a pair, None if it was not graded."""
        return self._grades.get(self.key(query, document))

    def add(self, query: str, document: str, grade: KeptGrade) -> None:
        """Keep the grade of a pair; it is on the disk when this returns.

        Raises:
            DiskFull: There is no room.
        """
        key = self.key(query, document)
        line = json.dumps({"pair": key, **vars(grade)}, ensure_ascii=True) + "\n"
        with filling_cache(self.folder), locked(self.folder):
            append_line(self.file, line.encode())
        self._grades[key] = grade

    def missing(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the pairs of a query and a document that have no grade, each once."""
        return [pair for pair in dict.fromkeys(pairs) if self.get(*pair) is None]
