"""Dense retrieval adapted to a corpus without labels, inside the tools you already use.

Public names are loaded on first use, so that ``import beir_cocodr`` costs milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.models.cocodr import COCODR
    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.models.mrl import MRL
    from beir_cocodr.retrieval.exact import ExactSearch

__version__ = "0.1.0"

_HOMES = {
    "COCODR": "beir_cocodr.models.cocodr",
    "MRL": "beir_cocodr.models.mrl",
    "ExactSearch": "beir_cocodr.retrieval.exact",
    "load_collection": "beir_cocodr.data.collection",
    "load_encoder": "beir_cocodr.models.loading",
}

#: What this package itself uses of its plugins, by name; they stand outside this folder in the source tree.
PLUGINS = {
    "irds": "beir_cocodr.plugins.irds:register",
    "lucene": "beir_cocodr.plugins.lucene:LuceneBM25",
    "ray encode": "beir_cocodr.plugins.ray:encode",
    "ray search": "beir_cocodr.plugins.ray:search",
}

__all__ = ["COCODR", "MRL", "ExactSearch", "__version__", "load_collection", "load_encoder"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_plugin(name: str) -> Any:
    """An object of a plugin, by its name in :data:`PLUGINS`; the plugin is imported now.

    Raises:
        KeyError: no such name.
        ImportError: the plugin's host is not installed.
    """
    module, _, attribute = PLUGINS[name].partition(":")
    return getattr(import_module(module), attribute)
