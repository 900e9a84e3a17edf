"""The commands of the campaign: those that make its world, and those that it breaks.

A command line names parts of the world as ``in/NAME``. A new command, or a new kind of file, is a
row of :data:`SCENARIOS`; a command that works for a while also is one of :data:`LONG`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRAIN = "--batch-size 4 --seed 1 --set save_steps=1"
_ADAPT = "adapt --corpus in/beir --source in/source --base in/model --stages finetune"
_GENERATE = "generate-queries --dataset in/beir --per-passage 1 --shard-documents 8 --output"
_OVERLAP = "study overlap --train in/source --test in/beir --no-picture --output out"
_REGIMES = "study resample evaluate --folder in/sets --architecture bm25 --no-picture --output"
_SHORT = f"--max-steps 1 {TRAIN} --output out"
_STEPS = f"--max-steps 6 {TRAIN} --output out"
_DISTILL = "--set m_bm25=2 --set m_hard=2 --set refresh_steps=2"

#: Commands that make a part each, which they name at their end, in this order.
SETUP = [
    "encode --dataset in/beir --model in/model --shard-size 8 --output in/store",
    "encode --dataset in/beir --model in/model --output in/indexed",
    "search --store in/indexed --dataset in/beir --index flat --output in/flat.run",
    "search --store in/indexed --dataset in/beir --index hnsw --output in/hnsw.run",
    "search --store in/indexed --dataset in/beir --index sq8 --output in/sq8.run",
    f"{_GENERATE} in/generated",
    "evaluate --dataset in/beir --model bm25 --model in/model --output in/evaluated",
    "compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output in/compared",
    f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN} --output in/finetuned",
    "distill --dataset in/beir --model in/bert --teacher bm25 --student mrl --max-steps 1 "
    f"{TRAIN} --set m_bm25=2 --set m_hard=2 --set held_out=0 --output in/mrl",
    f"{_ADAPT} --max-steps 1 --batch-size 4 --seed 1 --output in/adapted",
    "study resample restrain --train in/source --test in/beir --encoder in/model --size 4 "
    "--output in/sets",
    f"{_REGIMES} in/regimes",
    # Generated for another corpus file, for adapt without labels.
    "generate-queries --dataset in/flat/corpus.tsv --per-passage 1 --shard-documents 8 "
    "--output in/fresh",
]

#: A command that is killed as soon as a file is there.
INTERRUPTED = (
    f"finetune --dataset in/beir --model in/model --max-steps 30 {TRAIN} --output in/interrupted",
    "in/interrupted/checkpoints/checkpoint-2/complete.json",
)

#: Commands that have commands of their own.
GROUPS = {"study", "resample"}
#: Commands that answer a page until they are interrupted; tests/serve breaks and kills them.
PAGES = {"try", "serve"}
#: Commands that run a host's own, which refuse in the host's words.
HOSTS = {"irds", "pyserini"}


def _command_of(line: str) -> str:
    """Return the command of a line, with the groups that it belongs to."""
    words = line.split()
    count = 1
    while words[count - 1] in GROUPS:
        count += 1
    return " ".join(words[:count])


@dataclass(frozen=True)
class Scenario:
    """A command line whose input is broken.

    Attributes:
        line: The command line.
        weight: How often it is drawn, relative to the others.
        light: Whether it is light enough to start the installed command.
        options: Break only its options, not its parts; it never runs to its end.
        is_checked: Whether the unharmed command is run first, as one that takes minutes is not.
        unused: Options that it records for later runs, and does not use yet.
    """

    line: str
    weight: int = 4
    light: bool = False
    options: bool = False
    is_checked: bool = True
    unused: frozenset[str] = frozenset()

    @property
    def command(self) -> str:
        """Return the command, with the groups that it belongs to."""
        return _command_of(self.line)

    @property
    def parts(self) -> list[str]:
        """Return the parts that it names."""
        return sorted(set(re.findall(r"\bin/([\w-]+)", self.line)))

    @property
    def outputs(self) -> list[str]:
        """Return the folders to which it writes."""
        return sorted({"out", *re.findall(r"--output (in/[\w-]+)", self.line)})


@dataclass(frozen=True)
class LongCommand:
    """A command that works for a while into ``out``.

    Attributes:
        line: The command line.
        again: What the second run is given in addition.
        killed_only: Whether it is a script, whose steps alone withstand full disks and races.
    """

    line: str
    again: str = ""
    killed_only: bool = False

    @property
    def command(self) -> str:
        """Return the command, with the groups that it belongs to."""
        return _command_of(self.line)


SCENARIOS = {
    "validate": Scenario(
        "validate --dataset in/beir",
        weight=8,
        light=True,
    ),
    "validate-file": Scenario(
        "validate --dataset in/flat/corpus.tsv",
        weight=3,
        light=True,
    ),
    "evaluate-bm25": Scenario(
        "evaluate --dataset in/beir --model bm25 --output out",
        weight=8,
        light=True,
    ),
    "evaluate-dense": Scenario(
        "evaluate --dataset in/beir --model in/model --output out",
        weight=10,
    ),
    "evaluate-hybrid": Scenario(
        "evaluate --dataset in/beir --model hybrid:in/bert --output out",
        weight=6,
    ),
    "evaluate-mrl": Scenario(
        "evaluate --dataset in/beir --model in/mrl --output out",
        weight=6,
    ),
    "evaluate-store": Scenario(
        "evaluate --dataset in/beir --model in/model --store in/store --output out",
        weight=6,
    ),
    "encode": Scenario(
        "encode --dataset in/beir --model in/model --shard-size 8 --output out",
        weight=6,
    ),
    "encode-again": Scenario(
        "encode --dataset in/beir --model in/model --shard-size 8 --output in/store",
        weight=8,
    ),
    "search": Scenario(
        "search --store in/store --dataset in/beir --output out/x.run",
        weight=8,
    ),
    "search-flat": Scenario(
        "search --store in/indexed --dataset in/beir --index flat --output out/x.run",
        weight=5,
    ),
    "search-hnsw": Scenario(
        "search --store in/indexed --dataset in/beir --index hnsw --output out/x.run",
        weight=5,
    ),
    "search-sq8": Scenario(
        "search --store in/indexed --dataset in/beir --index sq8 --output out/x.run",
        weight=5,
    ),
    "generate": Scenario(
        f"{_GENERATE} out",
        weight=6,
        light=True,
    ),
    "generate-again": Scenario(
        f"{_GENERATE} in/generated",
        weight=4,
        light=True,
    ),
    "generate-t5": Scenario(
        f"{_GENERATE} out --generator in/t5 --max-length 6",
        weight=4,
    ),
    "pretrain": Scenario(
        f"pretrain --dataset in/beir --model in/bert --span-tokens 12 --max-length 48 {_SHORT}",
        weight=4,
    ),
    "pretrain-qc": Scenario(
        "pretrain --objective qc --queries in/generated --dataset in/beir --model in/bert "
        f"--max-length 48 {_SHORT}",
        weight=3,
    ),
    "finetune": Scenario(
        f"finetune --dataset in/beir --model in/model --clusters 3 {_SHORT}",
        weight=4,
    ),
    "finetune-resume": Scenario(
        f"finetune --dataset in/beir --model in/model --max-steps 30 {TRAIN} --output "
        "in/interrupted --resume",
        weight=4,
    ),
    "finetune-kept": Scenario(
        f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN} --output "
        "in/finetuned --resume",
        weight=3,
    ),
    "distill": Scenario(
        "distill --dataset in/beir --model in/model --teacher in/scores/scores.tsv --set "
        f"m_bm25=2 --set m_hard=2 --set held_out=0.2 {_SHORT}",
        weight=3,
    ),
    "fuse": Scenario(
        "fuse --dataset in/beir --model in/model --output out",
        weight=3,
    ),
    "distill-cross": Scenario(
        "distill --dataset in/beir --model in/model --teacher in/cross --set m_bm25=2 "
        f"--set m_hard=2 {_SHORT}",
        weight=3,
    ),
    "adapt": Scenario(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune "
        "--max-steps 1 --batch-size 4 --seed 1 --output out",
        weight=2,
    ),
    "adapt-queries": Scenario(
        "adapt --corpus in/flat/corpus.tsv --base in/model --stages qgen --queries "
        "in/fresh --samples 6 --max-steps 1 --batch-size 4 --seed 1 --output out",
        weight=1,
    ),
    "adapt-resume": Scenario(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune "
        "--max-steps 1 --batch-size 4 --seed 1 --output in/adapted --resume",
        weight=2,
    ),
    "restrain": Scenario(
        "study resample restrain --train in/source --test in/beir --encoder in/model --size 4 "
        "--output out/new",
        weight=4,
    ),
    "resttest": Scenario(
        "study resample resttest --train in/source --test in/beir --encoder in/model --buckets "
        "2 --output out/new",
        weight=4,
    ),
    "regimes": Scenario(
        f"{_REGIMES} out",
        weight=5,
        unused=frozenset({"start", "teacher"}),  # of architectures that may be added
    ),
    "regimes-again": Scenario(
        f"{_REGIMES} in/regimes",
        weight=3,
    ),
    "export": Scenario(
        "export --dataset in/beir --split test --negatives 3 --output out",
        weight=3,
        light=True,
    ),
    "overlap": Scenario(
        _OVERLAP,
        weight=5,
        light=True,
    ),
    "overlap-encoder": Scenario(
        f"{_OVERLAP} --encoder in/model",
        weight=3,
    ),
    "shift": Scenario(
        "study shift --source in/source --target in/beir --results in/evaluated/results.json "
        "--no-picture --output out",
        weight=6,
        light=True,
    ),
    "representation": Scenario(
        "study representation --dataset in/beir --model in/model --no-picture --output out",
        weight=3,
    ),
    "source-clusters": Scenario(
        "study source-clusters --source in/source --target in/beir --before in/model --after "
        "in/finetuned --clusters 3 --no-picture --output out",
        weight=3,
    ),
    "qpp": Scenario(
        "study qpp --dataset in/beir --model in/model --no-picture --output out",
        weight=3,
    ),
    "qpp-file": Scenario(
        "study qpp --dataset in/beir --model bm25 --per-query in/evaluated/bm25.per_query.tsv "
        "--no-picture --output out",
        weight=4,
        light=True,
    ),
    "parity": Scenario(
        "compare --parity in/evaluated/bm25.run --dataset in/beir --output out",
        weight=5,
        light=True,
    ),
    "compare": Scenario(
        "compare bm25 in/model --dataset in/beir --output out",
        weight=4,
    ),
    "compare-unlabelled": Scenario(
        "compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output out",
        weight=3,
    ),
    "gate": Scenario(
        "gate bm25 bm25 --dataset in/beir --no-labels --samples 10 --output out",
        weight=3,
    ),
    "compare-judged": Scenario(
        "compare bm25 in/model --dataset in/beir --judgements in/beir/qrels/test.tsv "
        "--samples 8 --output out",
        weight=3,
    ),
    "report-evaluated": Scenario(
        "report in/evaluated --output out/page.html",
        weight=6,
        light=True,
    ),
    "report-published": Scenario(
        "report in/evaluated --published in/figures/cocodr.json --output out/page.html",
        weight=4,
        light=True,
    ),
    "report-compared": Scenario(
        "report in/compared --output out/page.html",
        weight=4,
        light=True,
    ),
    "report-adapted": Scenario(
        "report in/adapted --output out/page.html",
        weight=4,
        light=True,
    ),
    "report-finetuned": Scenario(
        "report in/finetuned --output out/page.html",
        weight=4,
        light=True,
    ),
    "hand-over": Scenario(
        "hand-over in/model --dataset in/beir --to opensearch --output out",
        weight=4,
    ),
    "cache": Scenario(
        "cache --json",
        weight=2,
        light=True,
        options=True,
    ),
    "learn": Scenario(
        "learn in/model --dataset in/beir --judgements in/judged/judged.tsv --output out",
        weight=3,
    ),
    "doctor": Scenario(
        "doctor --hub-timeout 0.1",
        weight=2,
        light=True,
        options=True,
    ),
    "quickstart": Scenario(
        "quickstart --fast --output out",
        weight=2,
        light=True,
        options=True,
        is_checked=False,
    ),
}

LONG = {
    "encode": LongCommand(
        "encode --dataset in/beir --model in/model --shard-size 2 --output out",
    ),
    "index": LongCommand(
        "search --store in/store --dataset in/beir --index hnsw --output out/x.run",
    ),
    "generate": LongCommand(
        "generate-queries --dataset in/beir --shard-documents 2 --output out",
    ),
    "generate-t5": LongCommand(
        "generate-queries --dataset in/beir --generator in/t5 --per-passage 1 "
        "--max-length 6 --shard-documents 4 --output out",
    ),
    "pretrain": LongCommand(
        f"pretrain --dataset in/beir --model in/bert --span-tokens 12 --max-length 48 {_STEPS}",
        again="--resume",
    ),
    "pretrain-qc": LongCommand(
        "pretrain --objective qc --queries in/generated --dataset in/beir --model in/bert "
        f"--max-length 48 {_STEPS}",
        again="--resume",
    ),
    "finetune": LongCommand(
        f"finetune --dataset in/beir --model in/model {_STEPS}",
        again="--resume",
    ),
    "finetune-idro": LongCommand(
        f"finetune --dataset in/beir --model in/model --weighting idro --clusters 3 {_STEPS}",
        again="--resume",
    ),
    "finetune-episodes": LongCommand(
        f"finetune --dataset in/beir --model in/model --episodes 1 --target in/beir {_STEPS}",
        again="--resume",
    ),
    "finetune-stages": LongCommand(
        f"finetune --dataset in/beir --model in/model --stages 2 {_STEPS}",
        again="--resume",
    ),
    "distill": LongCommand(
        "distill --dataset in/beir --model in/model --teacher bm25 --set held_out=0.3 "
        f"{_DISTILL} {_STEPS}",
        again="--resume",
    ),
    "distill-mrl": LongCommand(
        "distill --dataset in/beir --model in/bert --teacher bm25 --student mrl --set "
        f"held_out=0 {_DISTILL} {_STEPS}",
        again="--resume",
    ),
    "adapt": LongCommand(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune "
        "--max-steps 2 --batch-size 4 --seed 1 --output out",
        again="--resume",
    ),
    "adapt-unlabelled": LongCommand(
        "adapt --corpus in/flat/corpus.tsv --base in/model --stages qgen --samples 6 "
        "--max-steps 2 --batch-size 4 --seed 1 --output out",
        again="--resume",
    ),
    "restrain": LongCommand(
        "study resample restrain --train in/source --test in/beir --encoder in/model --size 4 "
        "--output out/new",
    ),
    "resttest": LongCommand(
        "study resample resttest --train in/source --test in/beir --encoder in/model --buckets 2 "
        "--output out/new",
    ),
    "fuse": LongCommand(
        "fuse --dataset in/beir --model in/model --output out",
        again="--resume",
    ),
    "gate": LongCommand(
        "gate bm25 bm25 --dataset in/beir --no-labels --samples 10 --output out",
    ),
    "regimes": LongCommand(
        "study resample evaluate --folder in/sets --architecture bm25,dense --start in/bert "
        "--max-steps 2 --batch-size 4 --no-picture --output out",
    ),
    "evaluate": LongCommand(
        "evaluate --dataset in/beir --model bm25 --model in/model --model hybrid:in/bert "
        "--output out",
    ),
    "compare": LongCommand(
        "compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output out",
    ),
    "qpp": LongCommand(
        "study qpp --dataset in/beir --model in/model --no-picture --output out",
    ),
    "reproduce": LongCommand(
        "reproduce extrapolation-table3 --scale here --output out",
        killed_only=True,
    ),
    "report": LongCommand(
        "report in/evaluated --output out/page.html",
    ),
    "report-adapted": LongCommand(
        "report in/adapted --output out/page.html",
    ),
    "hand-over": LongCommand(
        "hand-over in/model --dataset in/beir --to opensearch --output out",
    ),
}
