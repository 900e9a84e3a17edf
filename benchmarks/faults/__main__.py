"""Run the fault campaign: ``python benchmarks/faults [--sample]``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from faults.campaign import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
