"""The 18 tasks of COCO-DR's Table 1: queries and documents cut task by task as the paper cuts them,
and every number that the table prints beside ours.

    python examples/evaluate_all_tasks.py --model OpenMatch/cocodr-base-msmarco --model bm25 --data
    datasets/

The work is done by benchmarks/reproduce, whose options these are: single tasks (--rows), a folder
of BEIR folders, downloading what is missing. Run again, it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from reproduce.runner import main

if __name__ == "__main__":
    main(["coco-dr-table1", *sys.argv[1:]])
