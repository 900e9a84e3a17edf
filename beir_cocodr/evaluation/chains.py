"""The models of an adaptation as data: the stages that trained one, and how it searches."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The first word of every label: the encoder that an adaptation starts from.
BASE = "base"

#: Titles of the stages that a question is asked about by name.
COCO = "COCO"
FUSE = "fuse"

#: How an encoder searches: by its vectors alone, with feedback, fused with BM25, or with RM3.
ALONE = "alone"
FEEDBACK = "feedback"
FUSED = "fused"
RM3 = "RM3"
MODES = (ALONE, FEEDBACK, FUSED, RM3)


@dataclass(frozen=True)
class Chain:
    """The base trained by some stages, one after the other, and used in one way.

    Attributes:
        stages: titles of the stages in their order, such as ``("COCO", "source")``; none for the
            base itself.
        mode: one of :data:`MODES`, or another way of searching.

    Example:
        >>> from beir_cocodr.evaluation.chains import FUSED, Chain
        >>> Chain(("COCO", "source"), FUSED).label
        'base + COCO + source, fused'
    """

    stages: tuple[str, ...] = ()
    mode: str = ALONE

    @property
    def label(self) -> str:
        """Return the name in tables, such as "base + COCO, fused"."""
        trained = " + ".join((BASE, *self.stages))
        if self.mode == ALONE:
            return trained
        return f"{trained}, {self.mode}"

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the ways to use the encoder: one that ``fuse`` made is not fused again."""
        fused_already = self.stages[-1:] == (FUSE,)
        return (ALONE, FEEDBACK) if fused_already else MODES

    @property
    def encoder(self) -> Chain:
        """Return the same encoder, used alone."""
        return self.used(ALONE)

    @property
    def without_last(self) -> Chain:
        """Return the chain before its last stage, used in the same way."""
        return replace(self, stages=self.stages[:-1])

    def used(self, mode: str) -> Chain:
        """Return the same encoder, used in another way."""
        return replace(self, mode=mode)

    def without(self, title: str) -> Chain:
        """Return the chain without a stage, used in the same way."""
        others = [stage for stage in self.stages if stage != title]
        return replace(self, stages=tuple(others))
