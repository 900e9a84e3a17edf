"""What a language model said, kept by the content of the text that it was asked about."""

from beir_cocodr.io import cache_folder, filling_cache, json_sha256, text_sha256, write_text
from beir_cocodr.records import Json


class TextCache:
    """What one language model with one set of options said, in a file for each text.

    An entry is on the disk before the model goes on, so a run that is killed goes on where it
    stopped.
    """

    def __init__(self, kind: str, identity: Json) -> None:
        """Open the cache.

        Args:
            kind: The folder of the cache, a key of :data:`beir_cocodr.cache.KINDS`.
            identity: What entries depend on beside their texts.
        """
        self.folder = cache_folder(kind) / json_sha256(identity)[:24]

    def get(self, text: str) -> str | None:
        """Return what was said about a text, None if there is nothing yet."""
        file = self.folder / self._name(text)
        if file.is_file():
            return file.read_text(encoding="utf-8")
        return None

    def put(self, text: str, said: str) -> None:
        """Keep what was said about a text.

        Raises:
            DiskFull: The disk is full.
            InputError: The cache cannot be written.
        """
        with filling_cache(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / self._name(text), said)

    def _name(self, text: str) -> str:
        return f"{text_sha256(text)[:32]}.txt"
