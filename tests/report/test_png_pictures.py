from __future__ import annotations

import itertools
import math

import pytest

from beir_cocodr.report.png_pictures import ScatterPanel, write_labelled_scatter

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw panels; gives the figure as it was saved."""
    from matplotlib.figure import Figure

    figures = []
    original = Figure.savefig

    def keep(self, *arguments, **options):
        figures.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)

    def draw(*panels: ScatterPanel):
        write_labelled_scatter(tmp_path / "p.png", panels, "a $title")
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert [file.name for file in tmp_path.iterdir()] == ["p.png"]
        return figures.pop()

    return draw


def test_points_without_a_finite_place_are_not_drawn(drawn):
    panel = ScatterPanel(
        {"a": 1, "b": 2, "c": None, "d": math.nan, "e": 5},
        {"a": 3, "c": 1, "d": 2, "e": None},
        "x",
        "y",
    )
    assert panel.points() == {"a": (1, 3)}
    [axis] = drawn(panel).axes
    assert [text.get_text() for text in axis.texts] == ["a"]
    assert len(drawn(ScatterPanel({}, {}, "x", "y")).axes[0].texts) == 0


def test_names_of_near_points_neither_cover_each_other_nor_leave_the_panel(drawn):
    names = {f"p{i}": f"set {i}" for i in range(4)}
    x = {name: 1 + 1e-3 * i for i, name in enumerate(names)} | {"left": 0}
    y = dict.fromkeys(names, 1.0) | {"left": 0.5}
    [axis] = drawn(ScatterPanel(x, y, "x", "y", names=names)).axes
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 5
    assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))
    assert all(axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1 for box in boxes)


def test_groups_have_colours_and_a_legend(drawn):
    panel = ScatterPanel(
        {"a": 1, "b": 2, "c": 3},
        {"a": 1, "b": 2, "c": 3},
        "x",
        "y",
        groups={"a": "g", "b": "h", "c": "g"},
    )
    [axis] = drawn(panel).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["g", "h"]
    assert [len(dots.get_offsets()) for dots in axis.collections] == [2, 1]


def test_panels_stand_in_rows(drawn):
    panel = ScatterPanel({"a": 1}, {"a": 1}, "x $", "y")
    figure = drawn(panel, panel, panel)
    assert [axis.get_visible() for axis in figure.axes] == [True, True, True, False]


def test_a_very_long_name_squeezes_nothing(drawn):
    [axis] = drawn(ScatterPanel({"n" * 300: 1}, {"n" * 300: 1}, "x", "y")).axes
    assert axis.bbox.width > 200
