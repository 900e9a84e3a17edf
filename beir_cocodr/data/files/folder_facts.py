"""What reading a folder of files says about it: files left out, encodings guessed, languages."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beir_cocodr.data.files.encodings import display_name
from beir_cocodr.data.languages import SEVERAL, describe_shares, language_name

# Files that a message lists; the others are counted.
_LISTED = 5


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read.

    Attributes:
        file: its path in the folder.
        reason: why, and what to do about it.
    """

    file: str
    reason: str


@dataclass(frozen=True)
class FolderFacts:
    """Facts about the files that a corpus was read from.

    Attributes:
        files: number of files that were read.
        left_out: the files that were not read, in order.
        encodings: encoding to the number of files that it was guessed for.
        languages: language, an ISO 639 code, to its share of the text, largest first; none where
            the language was named.
        language: the language by which the corpus is read; None for a collection of another kind.
    """

    files: int = 0
    left_out: tuple[LeftOut, ...] = ()
    encodings: dict[str, int] = field(default_factory=dict)
    languages: dict[str, float] = field(default_factory=dict)
    language: str | None = None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "FolderFacts":
        """Return the facts that :meth:`to_json` wrote."""
        left_out = tuple(LeftOut(**entry) for entry in content.get("left_out", ()))
        return cls(**{**content, "left_out": left_out})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return asdict(self)

    def describe_left_out(self, name: str) -> Iterator[str]:
        """Describe the files that were left out, in a line of their number and one for each.

        At most five are listed.

        Args:
            name: the name of the dataset.
        """
        if not self.left_out:
            return
        count = len(self.left_out)
        were = "was" if count == 1 else "were"
        yield f"{name}: {count} of {self.files + count} files {were} left out (--strict refuses):"
        for entry in self.left_out[:_LISTED]:
            yield f"  {entry.file}: {entry.reason}"
        if count > _LISTED:
            yield f"  and {count - _LISTED} more: beir-cocodr validate --dataset {name} lists all"

    def describe_encodings(self) -> str:
        """Describe the guesses of encodings in one line, "" without any."""
        if not self.encodings:
            return ""
        counts = sorted(self.encodings.items(), key=lambda item: (-item[1], item[0]))
        names = ", ".join(f"{display_name(encoding)} ({count})" for encoding, count in counts)
        total = sum(self.encodings.values())
        files = (
            "file is not UTF-8 and names no encoding; guessed"
            if total == 1
            else ("files are not UTF-8 and name no encoding; guessed")
        )
        return f"{total} {files}: {names}; ?encoding= after the folder's name sets another"

    def describe_language(self) -> str:
        """Describe the language that was detected in one line, "" where nobody has to know."""
        if not self.languages or self.language is None:
            return ""
        read_as = language_name(self.language)
        shares = describe_shares(self.languages)
        if self.language == SEVERAL:
            return f"{shares}: read as {read_as}, words not stemmed; --language names one"
        return f"{shares}: read as {read_as}; --language names another"
