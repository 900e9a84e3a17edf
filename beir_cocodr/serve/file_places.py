"""The kinds and folders of a corpus's files, by which the page narrows a search."""

from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath

from beir_cocodr.records import Json
from beir_cocodr.retrieval.searcher import Searcher

#: Folders that the page offers; the largest ones if there are more.
_MOST_FOLDERS = 200


class FilePlaces:
    """The files of a corpus by their suffix and by their folder.

    Attributes:
        kinds: suffix, such as ".md", to the number of its files.
        folders: path of a folder to the number of files below it.
    """

    def __init__(self, searcher: Searcher) -> None:
        """Count nothing yet, because a large corpus takes a while."""
        self._searcher = searcher
        self.kinds: Counter[str] = Counter()
        self.folders: Counter[str] = Counter()

    def count(self) -> None:
        """Count the files of all documents."""
        files = {self._searcher.file_of(id) for id in self._searcher.documents.ids()}
        kinds = Counter[str]()
        folders = Counter[str]()
        for file in files - {None}:
            path = PurePosixPath(str(file))
            kinds[_kind(path)] += 1
            folders.update(str(parent) for parent in path.parents if parent.name)
        self.kinds = kinds
        self.folders = folders

    def describe(self) -> Json:
        """Return the kinds and folders that the page offers, with their numbers of files."""
        folders = self.folders.most_common(_MOST_FOLDERS)
        return {"kinds": self.kinds.most_common(), "folders": sorted(folders)}

    def within(self, kind: str, folder: str) -> Callable[[str], bool]:
        """Return whether a document's file is of a kind and below a folder, by the document's id.

        Args:
            kind: a suffix, or "" for all.
            folder: a path, or "" for all.
        """

        def keeps(id: str) -> bool:
            file = self._searcher.file_of(id)
            if file is None:
                return False
            path = PurePosixPath(file)
            is_kind = not kind or _kind(path) == kind
            return is_kind and (not folder or path.is_relative_to(folder))

        return keeps


def _kind(path: PurePosixPath) -> str:
    return path.suffix.lower() or "no suffix"
