"""Evaluate models on the 18 tasks of COCO-DR's Table 1, beside every figure that the table prints.

Queries and documents are cut task by task as the paper cuts them:

    python examples/evaluate_all_tasks.py --model OpenMatch/cocodr-base-msmarco --model bm25 --data
    datasets/

The script is a part of benchmarks/reproduce and has its options: single tasks (--rows), a folder of
BEIR folders (--data), and downloads (--download). If it is interrupted, run it again to continue.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from reproduce.runner import main

if __name__ == "__main__":
    main(["coco-dr-table1", *sys.argv[1:]])
