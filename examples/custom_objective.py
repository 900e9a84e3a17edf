"""An objective of your own in pre-training: the beginning of a window finds the rest of it.

The script is the command line with one more objective:

python examples/custom_objective.py pretrain --dataset apidocs/numpy --model minilm \
    --objective beginnings --set share=0.3 --max-steps 20 --batch-size 16 --output runs/beginnings

The row says that training practises finding documents by their spans. When models are judged
without labels, held-out crops of the same corpus then do not count as evidence for this model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from beir_cocodr.data.spans import SpannedText, window
from beir_cocodr.models.spec import option
from beir_cocodr.provenance import SPANS
from beir_cocodr.training.finetuning.loss_rows import ScaleOptions
from beir_cocodr.training.pretraining.objectives import OBJECTIVES, Objective, View


def beginning_and_rest(
    document: SpannedText, rng: np.random.Generator, share: float
) -> tuple[str, str]:
    """Draw a window of a document, and divide its words."""
    [text] = window(document, rng)
    words = text.split()
    end = max(1, round(share * len(words)))
    return " ".join(words[:end]), " ".join(words[end:]) or text


@dataclass(frozen=True)
class BeginningOptions(ScaleOptions):
    """Options of the objective, beside the scale of its scores.

    Args:
        share: the share of a window's words that is its beginning.
    """

    share: float = option(0.5, above=0, below=1)


OBJECTIVES["beginnings"] = Objective(
    build="beir_cocodr.training.finetuning.loss_builders:contrastive",
    help="the beginning of a window finds the rest of it",
    options=BeginningOptions,
    columns={"beginning": "query", "rest": "document"},
    rehearses=(SPANS,),
    citations=("@misc{beginnings, title = {Beginnings Find Their Ends}, year = {2026}}",),
    view=View(beginning_and_rest, options=("share",)),
    contrastive=True,
)


if __name__ == "__main__":
    from beir_cocodr.cli.__main__ import main

    main()
