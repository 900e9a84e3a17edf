"""Adapt an encoder to a corpus without labels, and learn whether it got better.

    python examples/adapt_corpus.py --dataset my-corpus/ --source scifact --model minilm --output
    runs/mine

If the corpus has labels in its split test, they judge the base and the adapted models, and no
training sees them. If it has none, the models are judged by estimates, and the script says how
often such estimates were right.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.report.evaluation_tables import print_adaptation
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.presets import adapt_options, chosen_stages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        required=True,
        help="The corpus to adapt to.",
    )
    parser.add_argument("--source", help="A labelled collection for the stage finetune.")
    parser.add_argument(
        "--model",
        default="minilm",
        help="The encoder to start from.",
    )
    parser.add_argument(
        "--stages",
        nargs="+",
        default=["coco", "finetune"],
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
    )
    parser.add_argument(
        "--preset",
        choices=["base", "large", "cpu"],
        help="Use the paper's settings, or small ones.",
    )
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Continue after an interruption.",
    )
    parser.add_argument("--device")
    arguments = parser.parse_args()

    shared = {name: getattr(arguments, name) for name in ("batch_size", "max_steps", "seed")}
    stages = chosen_stages(arguments.stages)
    report = adapt(
        arguments.model,
        arguments.dataset,
        source=arguments.source,
        output=arguments.output,
        resume=arguments.resume,
        options=AdaptOptions(
            stages=stages,
            search=SearchOptions(EncoderOptions(device=arguments.device), progress=True),
            stage_options={
                stage: adapt_options(stage, arguments.preset, **shared) for stage in stages
            },
        ),
    )
    print_adaptation(report, as_json=False)


if __name__ == "__main__":
    main()
