"""Several commands one after another in the processes of one torchrun, which import everything once.

python -m torch.distributed.run ... tests/torchrun_commands.py commands.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from beir_cocodr.cli.__main__ import main

if __name__ == "__main__":
    for command in json.loads(Path(sys.argv[1]).read_text()):
        try:
            main(command)
        except SystemExit as end:
            if end.code:
                print(f"exit status {end.code}", file=sys.stderr)
