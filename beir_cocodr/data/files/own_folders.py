"""The files in a folder of documents, and the outputs of this package among them.

An output may lie inside a folder of documents, as in ``--dataset . --output runs/x``. It is known
by the record in it, and is never read as documents. An output that would mix with what a command
reads is refused.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from beir_cocodr.errors import InputError, first_line
from beir_cocodr.io import parse_json

# Records, and some keys of their JSON. Users have files of these names too, with other content.
_RECORDS: dict[str, tuple[str, ...]] = {
    "run.json": ("run", "files"),
    "adapt.json": ("models", "recommendation"),
    "export.json": ("schema", "form"),
    "generation.json": ("dataset", "generator"),
    "manifest.json": ("method", "base", "encoder"),
    "plan.json": ("schema",),
    "regimes.json": ("method", "recipe"),
    "session.json": ("schema", "dataset"),
    "store.json": ("identity", "documents"),
    "training.json": ("stage", "seen"),
}

# Those beside which documents of a user's do not lie.
_RESULTS = ("adapt.json", "regimes.json", "run.json", "store.json", "training.json")

_MODULES = "modules.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_HOSTS = ("sentence_transformers.", "beir_cocodr.", "pylate.")


def is_output(folder: Path, names: Collection[str]) -> bool:
    """Return whether a record in a folder shows that a command of this package wrote it.

    Models of sentence-transformers count as outputs.

    Args:
        folder: the folder.
        names: the names in it.
    """
    for name in (*_RECORDS, _MODULES):
        if name not in names:
            continue
        with suppress(OSError, ValueError):
            content = parse_json((folder / name).read_text(encoding="utf-8"))
            is_known = _is_model(content) if name == _MODULES else _has_keys(content, name)
            if is_known:
                return True
    return False


def is_model(folder: Path) -> bool:
    """Return whether a folder is a model of sentence-transformers or transformers."""
    with suppress(OSError, ValueError):
        return _is_model(parse_json((folder / _MODULES).read_text(encoding="utf-8")))
    with suppress(OSError, ValueError):
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        has_weights = any((folder / name).is_file() for name in _WEIGHTS)
        return has_weights and isinstance(config, dict) and "model_type" in config
    return False


def is_result(folder: Path) -> bool:
    """Return whether a folder holds what a command made, and no documents of a user's."""
    return is_output(folder, [name for name in _RESULTS if (folder / name).is_file()])


def _has_keys(content: object, name: str) -> bool:
    return isinstance(content, dict) and all(key in content for key in _RECORDS[name])


def _is_model(content: object) -> bool:
    """Return whether the content of ``modules.json`` lists modules of sentence-transformers."""
    if not isinstance(content, list) or not content:
        return False
    for module in content:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not kind.startswith(_HOSTS):
            return False
    return True


def check_output(output: Path, inputs: Sequence[str | Path]) -> None:
    """Check that an output is none of the folders and files that a command reads.

    Args:
        output: the output.
        inputs: names of datasets and models; those that are no paths are left out.

    Raises:
        InputError: it is one of them, also under another name or by a link.
    """
    for path in inputs:
        if _is_same(output, Path(path)):
            raise InputError(
                f"--output {output} is what this command reads ({path}); choose another --output"
            )


def _is_same(output: Path, path: Path) -> bool:
    try:
        return path.exists() and output.resolve() == path.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself, or a name that is no path
        return False


def is_within_output(folder: Path, root: Path) -> bool:
    """Return whether a folder below ``root``, or one between the two, is an output."""
    for around in (folder, *folder.parents):
        if around == root:
            return False
        names = {path.name for path in around.iterdir()} if around.is_dir() else ()
        if is_output(around, names):
            return True
    return False


@dataclass
class NotRead:
    """The folders and links in a folder of documents that are not read.

    Attributes:
        outputs: folders that commands of this package wrote.
        links: links to files outside the folder.
        closed: folders that cannot be listed.
        special: pipes, sockets and devices.
    """

    outputs: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    closed: list[Path] = field(default_factory=list)
    special: list[Path] = field(default_factory=list)


def visible_files(root: Path, not_read: NotRead | None = None) -> Iterator[Path]:
    """Stream the files below a folder, except hidden ones and those of outputs.

    Links to folders, and to files outside the folder, are not followed.

    Args:
        root: the folder.
        not_read: takes the folders and links that are left out.
    """
    not_read = not_read or NotRead()
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
            if folder != root and is_output(folder, {path.name for path in paths}):
                not_read.outputs.append(folder)
                continue
            kinds = [(path, _kind(path, root)) for path in paths]
        except OSError as cause:
            if folder == root:
                raise InputError(
                    f"{folder} cannot be read ({first_line(cause)}); make it readable"
                ) from None
            not_read.closed.append(folder)
            continue
        for path, kind in kinds:
            if kind == "link":
                not_read.links.append(path)
            elif kind == "folder":
                folders.append(path)
            elif kind == "file":
                yield path
            elif kind == "special":
                not_read.special.append(path)


def _kind(path: Path, root: Path) -> str:
    """Return what a path is: a link out of the folder, a folder, a file, special, or nothing.

    Raises:
        OSError: there is no permission to see it.
    """
    if path.is_symlink() and not _leads_inside(path, root):
        return "link"
    if path.is_dir():
        return "nothing" if path.is_symlink() else "folder"
    if path.is_file():
        return "file"
    return "special" if path.exists() else "nothing"


def _leads_inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False
