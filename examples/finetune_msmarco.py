"""Fine-tune an encoder on MS MARCO, or on any other labelled collection.

    python examples/finetune_msmarco.py --model OpenMatch/cocodr-base --weighting idro --output
    runs/cocodr

Under torchrun each batch is split over the processes:

    torchrun --nproc-per-node 2 examples/finetune_msmarco.py --dataset scifact --model minilm
    --output runs/two
"""

from __future__ import annotations

import argparse
from pathlib import Path

from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.report.terminal import print_training
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.presets import stage_options


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        default="msmarco",
        help="A labelled collection with a split train.",
    )
    parser.add_argument(
        "--model",
        default="OpenMatch/cocodr-base",
        help="The encoder to start from.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
    )
    parser.add_argument(
        "--weighting",
        choices=["erm", "idro", "groupdro", "cvar"],
        default="erm",
    )
    parser.add_argument(
        "--clusters",
        type=int,
        help="Clusters of queries, for weightings other than erm.",
    )
    parser.add_argument(
        "--preset",
        choices=["base", "large", "cpu"],
        help="Use the paper's settings, or small ones.",
    )
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Continue after an interruption.",
    )
    parser.add_argument("--device")
    return parser.parse_args()


def main() -> None:
    arguments = parse_options()
    settings = (
        "weighting",
        "clusters",
        "batch_size",
        "max_steps",
        "epochs",
        "learning_rate",
        "seed",
    )
    options = stage_options(
        FinetuneOptions,
        "finetune",
        arguments.preset,
        **{name: getattr(arguments, name) for name in settings},
    )
    record = finetune(
        arguments.model,
        arguments.dataset,
        output=arguments.output,
        options=options.with_overrides(encoder=EncoderOptions(device=arguments.device)),
        resume=arguments.resume,
    )
    print_training(record)


if __name__ == "__main__":
    main()
