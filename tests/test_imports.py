"""Modules that must not be imported: the whole stack costs six seconds."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "sentence_transformers", "faiss", "beir", "datasets")


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
    assert last.startswith("LOADED"), done.stderr
    return set(last.split()[1:])


def command(*arguments: str) -> str:
    return (
        "from beir_cocodr.cli.__main__ import main\n"
        f"try:\n    main({list(arguments)!r})\n"
        "except SystemExit as status:\n    assert status.code == 0, status.code"
    )


def test_import_and_help_load_nothing_heavy():
    imports = "import beir_cocodr, beir_cocodr.losses"
    helps = [command("--help"), command("evaluate", "--help")]
    assert loaded_after("\n".join([imports, *helps])) == set()


def test_validate_and_bm25_never_import_torch(beir_folder, tmp_path):
    folder = str(beir_folder)
    validate = command("validate", "--dataset", folder)
    bm25 = command("evaluate", "--dataset", folder, "--model", "bm25", "--output", str(tmp_path))
    search = command("search", "--dataset", folder, "--model", "bm25", "wing")
    assert "torch" not in loaded_after("\n".join([validate, bm25, search]))
    assert (tmp_path / "bm25.run").is_file()


def test_a_search_of_embeddings_that_are_there_needs_no_encoder_library():
    """Nor do the processes and actors that search a store."""
    modules = ("exact", "faiss.index", "store.store_search")
    assert loaded_after("; ".join(f"import beir_cocodr.retrieval.{name}" for name in modules)) == {
        "torch"
    }


def test_this_check_can_fail():
    assert loaded_after("import faiss") == {"faiss"}  # loads in a tenth of torch's time


#: What `from beir_cocodr import ...` and `from beir_cocodr.losses import ...` promise.
PUBLIC = {
    "beir_cocodr": [
        *("COCODR", "MRL", "ExactSearch", "load_encoder", "load_collection"),
        *("adapt", "evaluate", "compare", "gate", "pretrain", "finetune", "distill"),
        *("fuse", "HybridEncoder", "FuseOptions", "Searcher"),
        *(
            "EncoderOptions",
            "SearchOptions",
            "PretrainOptions",
            "FinetuneOptions",
            "DistillOptions",
            "AdaptOptions",
            "EvaluateOptions",
            "CompareOptions",
            "GateOptions",
        ),
        *("ModelSpec", "Retriever"),
    ],
    "beir_cocodr.losses": [
        *(
            "COCOLoss",
            "IDROLoss",
            "GroupDROLoss",
            "CVaRLoss",
            "ClusterLoss",
            "TSDAELoss",
            "CoTMAELoss",
            "ListDistillationLoss",
        ),
        *("LambdaRankDistillationLoss", "infonce", "coco_contrastive_loss", "triplet_losses"),
        *("in_batch_losses", "idro_weights", "idro_weights_in_closed_form", "group_dro_weights"),
        *("cvar_weights", "lambda_rank_distillation_loss", "list_distillation_loss"),
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package):
    """They are listed, and each is what type checkers take it for."""
    module = import_module(package)
    assert set(PUBLIC[package]) == set(module.__all__) - {"__version__"} <= set(dir(module))
    [block] = [
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    homes = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in PUBLIC[package]:
        found = getattr(module, name)
        assert callable(found)
        assert (found.__module__, found.__name__) == homes[name]
    with pytest.raises(AttributeError, match="NoSuchThing"):
        module.NoSuchThing  # noqa: B018


def test_plugins_are_installed_below_the_package_and_nowhere_else():
    import importlib.util

    import beir_cocodr.plugins.irds

    assert beir_cocodr.plugins.irds.__name__ == "beir_cocodr.plugins.irds"
    code = "import importlib.util; assert importlib.util.find_spec('plugins') is None"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert importlib.util.find_spec("beir_cocodr.plugins") is not None


def test_a_wheel_has_every_folder_of_the_package():
    """An editable install sees them all; a wheel has those that pyproject.toml names."""
    root = Path(__file__).parents[1]
    setuptools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    elsewhere = {name for name, folder in setuptools["package-dir"].items() if folder != name}
    code = (root / "beir_cocodr").rglob("*.py")
    there = {".".join(path.parent.relative_to(root).parts) for path in code}
    assert set(setuptools["packages"]) == there | elsewhere
