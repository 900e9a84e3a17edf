"""Questions that a generator wrote, kept by the content of their passages."""

from beir_cocodr.io import cache_folder, filling_cache, json_sha256, text_sha256, write_text
from beir_cocodr.records import Json


class QuestionCache:
    """The questions of one generator with one set of options, in a file for each passage.

    A question is on the disk before the next ones are written, so a run that is killed goes on
    where it stopped.
    """

    def __init__(self, identity: Json) -> None:
        """Open the cache.

        Args:
            identity: What questions depend on beside their passages.
        """
        self.folder = cache_folder("questions") / json_sha256(identity)[:24]

    def get(self, passage: str) -> str | None:
        """Return the question about a passage, None if there is none yet."""
        file = self.folder / self._name(passage)
        if file.is_file():
            return file.read_text(encoding="utf-8")
        return None

    def put(self, passage: str, question: str) -> None:
        """Keep the question about a passage.

        Raises:
            DiskFull: The disk is full.
            InputError: The cache cannot be written.
        """
        with filling_cache(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / self._name(passage), question)

    def _name(self, passage: str) -> str:
        return f"{text_sha256(passage)[:32]}.txt"
