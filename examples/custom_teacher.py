"""A teacher of your own in distillation: another encoder, such as a larger one.

The script is the command line with one more kind of teacher:

python examples/custom_teacher.py distill --dataset apidocs/numpy --model minilm \
    --teacher encoder:minilm --set temperature=0.5 --max-steps 20 --batch-size 8 \
    --output runs/taught
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from beir_cocodr import load_encoder
from beir_cocodr.arrays import Ints
from beir_cocodr.models.spec import Options, option
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.distillation.teacher_rows import TEACHERS, TeacherKind
from beir_cocodr.training.distillation.teachers import TeacherSetting

PREFIX = "encoder:"


@dataclass(frozen=True)
class EncoderTeacherOptions(Options):
    """Options of the teacher.

    Args:
        temperature: the divisor of the scores.
    """

    temperature: float = option(1.0, above=0)


class EncoderTeacher:
    """The scores of a dense encoder, which encodes the corpus once."""

    def __init__(self, setting: TeacherSetting) -> None:
        """Load the encoder that the value of --teacher names."""
        model = load_encoder(setting.name.removeprefix(PREFIX), setting.encoder)
        self.dense = Dense(model, setting.documents, setting.folder / "teacher-corpus")
        options = setting.options or EncoderTeacherOptions()
        assert isinstance(options, EncoderTeacherOptions)
        self.temperature = options.temperature

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) rows of the corpus; only their order is learned."""
        vector = self.dense.encode_queries([query])[0]
        scores: np.ndarray = (self.dense.embeddings.rows(rows) @ vector).numpy()
        return scores / self.temperature


TEACHERS["encoder"] = TeacherKind(
    build=f"{__name__}:EncoderTeacher",
    help="encoder:M",
    options=EncoderTeacherOptions,
    citations=("@misc{encoder, title = {An Encoder Teaches an Encoder}, year = {2026}}",),
    means=lambda name: name.startswith(PREFIX),
)


if __name__ == "__main__":
    from beir_cocodr.cli.__main__ import main

    main()
