"""Dense retrieval adapted to a corpus without labels, inside the tools you already use.

Public names are loaded on first use, so that ``import beir_cocodr`` costs milliseconds.
"""

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beir_cocodr.data.collection import load_collection as load_collection
    from beir_cocodr.evaluation.compare import CompareOptions as CompareOptions
    from beir_cocodr.evaluation.compare import compare as compare
    from beir_cocodr.evaluation.evaluate import EvaluateOptions as EvaluateOptions
    from beir_cocodr.evaluation.evaluate import evaluate as evaluate
    from beir_cocodr.evaluation.gate import GateOptions as GateOptions
    from beir_cocodr.evaluation.gate import gate as gate
    from beir_cocodr.models.checkpoints.loading import load_encoder as load_encoder
    from beir_cocodr.models.cocodr import COCODR as COCODR
    from beir_cocodr.models.hybrid_encoder import HybridEncoder as HybridEncoder
    from beir_cocodr.models.mrl import MRL as MRL
    from beir_cocodr.models.spec import EncoderOptions as EncoderOptions
    from beir_cocodr.models.spec import FuseOptions as FuseOptions
    from beir_cocodr.models.spec import ModelSpec as ModelSpec
    from beir_cocodr.models.spec import SearchOptions as SearchOptions
    from beir_cocodr.retrieval.exact import ExactSearch as ExactSearch
    from beir_cocodr.retrieval.hybrid.fuse import fuse as fuse
    from beir_cocodr.retrieval.resolve import Retriever as Retriever
    from beir_cocodr.retrieval.searcher import Searcher as Searcher
    from beir_cocodr.training.adapt import AdaptOptions as AdaptOptions
    from beir_cocodr.training.adapt import adapt as adapt
    from beir_cocodr.training.distillation.distill import distill as distill
    from beir_cocodr.training.finetuning.finetune import finetune as finetune
    from beir_cocodr.training.options import DistillOptions as DistillOptions
    from beir_cocodr.training.options import FinetuneOptions as FinetuneOptions
    from beir_cocodr.training.options import PretrainOptions as PretrainOptions
    from beir_cocodr.training.pretraining.pretrain import pretrain as pretrain

#: The one place of the version; pyproject.toml and the tests read it here.
__version__ = "0.1.0"

# Where each public name is defined, as ``module:object``; the imports above are for type checkers.
_HOMES = {
    "AdaptOptions": "beir_cocodr.training.adapt:AdaptOptions",
    "COCODR": "beir_cocodr.models.cocodr:COCODR",
    "MRL": "beir_cocodr.models.mrl:MRL",
    "CompareOptions": "beir_cocodr.evaluation.compare:CompareOptions",
    "DistillOptions": "beir_cocodr.training.options:DistillOptions",
    "EncoderOptions": "beir_cocodr.models.spec:EncoderOptions",
    "EvaluateOptions": "beir_cocodr.evaluation.evaluate:EvaluateOptions",
    "ExactSearch": "beir_cocodr.retrieval.exact:ExactSearch",
    "FinetuneOptions": "beir_cocodr.training.options:FinetuneOptions",
    "FuseOptions": "beir_cocodr.models.spec:FuseOptions",
    "GateOptions": "beir_cocodr.evaluation.gate:GateOptions",
    "HybridEncoder": "beir_cocodr.models.hybrid_encoder:HybridEncoder",
    "ModelSpec": "beir_cocodr.models.spec:ModelSpec",
    "PretrainOptions": "beir_cocodr.training.options:PretrainOptions",
    "Retriever": "beir_cocodr.retrieval.resolve:Retriever",
    "SearchOptions": "beir_cocodr.models.spec:SearchOptions",
    "Searcher": "beir_cocodr.retrieval.searcher:Searcher",
    "adapt": "beir_cocodr.training.adapt:adapt",
    "compare": "beir_cocodr.evaluation.compare:compare",
    "distill": "beir_cocodr.training.distillation.distill:distill",
    "evaluate": "beir_cocodr.evaluation.evaluate:evaluate",
    "finetune": "beir_cocodr.training.finetuning.finetune:finetune",
    "fuse": "beir_cocodr.retrieval.hybrid.fuse:fuse",
    "gate": "beir_cocodr.evaluation.gate:gate",
    "load_collection": "beir_cocodr.data.collection:load_collection",
    "load_encoder": "beir_cocodr.models.checkpoints.loading:load_encoder",
    "pretrain": "beir_cocodr.training.pretraining.pretrain:pretrain",
}

__all__ = ["__version__", *_HOMES.keys()]

#: What this package itself uses of its plugins, by name; they stand outside this folder in the
#: source tree.
PLUGINS = {
    "irds": "beir_cocodr.plugins.irds:register",
    "irds commands": "beir_cocodr.plugins.irds:run",
    "lucene": "beir_cocodr.plugins.lucene:LuceneBM25",
    "mteb model": "beir_cocodr.plugins.mteb:from_mteb",
    "pyserini commands": "beir_cocodr.plugins.pyserini:run",
    "ray cluster": "beir_cocodr.plugins.ray:Cluster",
    "ray encode": "beir_cocodr.plugins.ray:encode",
    "ray search": "beir_cocodr.plugins.ray:search",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used first."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_object(_HOMES[name])


def __dir__() -> list[str]:
    """Return the public names along with those that are imported."""
    return sorted({*globals(), *__all__})


def load_plugin(name: str) -> Any:
    """Import an object of a plugin.

    Args:
        name: a name of :data:`PLUGINS`.

    Raises:
        ImportError: If the host of the plugin is not installed.
    """
    return load_object(PLUGINS[name])


def load_object(path: str) -> Any:
    """Import the object that ``module:object`` names, as the rows of tables do."""
    module, _, attribute = path.partition(":")
    return attrgetter(attribute)(import_module(module))
