"""Make tables of the papers: ``python benchmarks/reproduce TABLE ...``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from reproduce.runner import main  # noqa: E402

if __name__ == "__main__":
    main()
