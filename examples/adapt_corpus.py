"""Adapt an encoder to a corpus without labels, and learn whether it got better.

python examples/adapt_corpus.py --corpus my-corpus/ --source scifact --base minilm --output
runs/mine

If the corpus has labels in its split test, they judge base and adapted models; no training sees
them. If not, estimates do, and how often such estimates were right is said.
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
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="what to adapt to")
    parser.add_argument("--source", help="labelled collection, for the stage finetune")
    parser.add_argument("--base", default="minilm", help="encoder to start from")
    parser.add_argument("--stages", nargs="+", default=["coco", "finetune"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--preset", choices=["base", "large", "cpu"], help="the paper's settings, or small ones"
    )
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.add_argument("--device")
    given = parser.parse_args()

    shared = {name: getattr(given, name) for name in ("batch_size", "max_steps", "seed")}
    stages = chosen_stages(given.stages)
    report = adapt(
        given.base,
        given.corpus,
        source=given.source,
        output=given.output,
        resume=given.resume,
        options=AdaptOptions(
            stages=stages,
            search=SearchOptions(EncoderOptions(device=given.device), progress=True),
            stage_options={stage: adapt_options(stage, given.preset, **shared) for stage in stages},
        ),
    )
    print_adaptation(report, as_json=False)


if __name__ == "__main__":
    main()
