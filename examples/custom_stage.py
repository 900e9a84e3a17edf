"""A stage of your own in an adaptation: the titles of the corpus are queries for their texts.

The script is the command line with one more stage:

python examples/custom_stage.py adapt --dataset my-corpus/ --model minilm --stages titles \
    --max-steps 20 --output runs/titles

The row says that training practises finding documents by their spans. When models are judged
without labels, held-out crops of the same corpus then do not count as evidence for this model.
"""

from __future__ import annotations

from dataclasses import replace

from beir_cocodr import FinetuneOptions, finetune
from beir_cocodr.errors import InputError
from beir_cocodr.provenance import SPANS, TrainingRecord
from beir_cocodr.training.presets import ADAPT_STAGES, AdaptStage
from beir_cocodr.training.stages import StageRun


def titles_stage(run: StageRun) -> TrainingRecord:
    """Fine-tune on the titles of the target."""
    target = run.data.target
    documents = target.documents.items()
    titles = {id: document["title"] for id, document in documents if document["title"]}
    if not titles:
        raise InputError(f"no document of {target.name} has a title; leave the stage out")
    judgements = {id: {id: 1} for id in titles}
    labelled = replace(target, queries=titles, qrels=judgements, split="train")
    return finetune(run.start, labelled, output=run.output, options=run.options, resume=run.resume)


ADAPT_STAGES["titles"] = AdaptStage(
    build=f"{__name__}:titles_stage",
    help="titles find their texts",
    folder="titles",
    title="titles",
    options=FinetuneOptions,
    settings={"loss": "infonce", "negatives": 0},
    rehearses=(SPANS,),
    citations=("@misc{titles, title = {Titles Find Their Texts}, year = {2026}}",),
)


if __name__ == "__main__":
    from beir_cocodr.cli.__main__ import main

    main()
