"""Whether a picture is going to be drawn."""

from __future__ import annotations

import logging

from beir_cocodr.errors import InputError
from beir_cocodr.report.scatter import has_matplotlib, require_matplotlib

log = logging.getLogger(__name__)


def will_draw(picture: bool | None, possible: bool, needs: str) -> bool:
    """Decide before the work starts.

    Args:
        picture: whether one is asked for; None draws where there is something to draw and matplotlib.
        possible: whether there is something to draw, and a folder for it.
        needs: what is lacking where it is not possible, as the way out.

    Raises:
        InputError: a picture is asked for and cannot be drawn.
    """
    if picture:
        require_matplotlib()
        if not possible:
            raise InputError(f"there is nothing to draw; {needs}")
    elif picture is None and possible and not has_matplotlib():
        log.info("no picture: matplotlib is not there; pip install 'beir-cocodr[report]'")
        return False
    return possible and picture is not False
