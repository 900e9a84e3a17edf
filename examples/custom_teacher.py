"""A teacher of one's own in distillation: another encoder, such as a larger one.

python examples/custom_teacher.py --dataset apidocs/numpy --model minilm --teacher minilm --output
runs/taught
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from beir_cocodr import DistillOptions, EncoderOptions, distill, load_encoder
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.training.objectives import TEACHERS, TeacherKind
from beir_cocodr.training.teachers import TeacherSetting


class EncoderTeacher:
    """The scores of a dense encoder, which encodes the corpus once."""

    def __init__(self, setting: TeacherSetting) -> None:
        model = load_encoder(setting.name.removeprefix("encoder:"), setting.encoder)
        self.dense = Dense(model, setting.documents, setting.folder / "teacher-corpus")

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        """(m,) rows of the corpus to (m,) scores; only the order within one query is learned."""
        vector = self.dense.encode_queries([query])[0]
        scores: np.ndarray = (self.dense.embeddings.rows(rows) @ vector).numpy()
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="labelled collection, split train"
    )
    parser.add_argument("--model", default="minilm", help="encoder to start from")
    parser.add_argument("--teacher", default="minilm", help="encoder whose order is learned")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--device")
    given = parser.parse_args()

    # The row says which names of teachers it is for, and what is called with all that a teacher may
    # need.
    TEACHERS["encoder"] = TeacherKind(
        "encoder:M", f"{__name__}:EncoderTeacher", lambda name: name.startswith("encoder:")
    )
    options = DistillOptions(batch_size=given.batch_size, max_steps=given.max_steps)
    encoder = EncoderOptions(device=given.device)
    distill(
        given.model,
        given.dataset,
        teacher=f"encoder:{given.teacher}",
        output=given.output,
        options=options.with_overrides(encoder=encoder),
    )
    print((given.output / "training.json").read_text())


if __name__ == "__main__":
    main()
