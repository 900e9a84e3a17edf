"""Records are written as JSON and read back as they were, or refused by name of file and field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.records import Record


@dataclass(frozen=True)
class Part:
    name: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Whole(Record):
    SCHEMA = 2
    parts: list[Part]
    size: int
    note: str | None = None
    interval: tuple[float, float] = (0.0, 1.0)
    more: dict[str, object] = field(default_factory=dict)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
PARTS = st.builds(Part, st.text(), st.dictionaries(st.text(), FINITE))


@settings(deadline=None)
@given(
    st.builds(
        Whole, st.lists(PARTS), st.integers(), st.none() | st.text(), st.tuples(FINITE, FINITE)
    )
)
def test_what_is_written_is_read_back(record):
    assert Whole.from_json(json.loads(json.dumps(record.to_json())), "file") == record


def test_files_go_there_and_back(tmp_path):
    record = Whole([Part("a", {"x": 0.5})], 3, more={"k": [1, {"l": None}]})
    record.write(tmp_path / "r.json")
    assert Whole.read(tmp_path / "r.json") == record
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 1}, "schema 1"),
        ({"size": "many"}, "size"),
        ({"size": True}, "size"),
        ({"size": "3"}, "size"),
        ({"interval": [0.5, True]}, r"interval\.1"),
        ({"parts": [{"name": "a"}]}, r"parts.0.scores"),
    ],
)
def test_what_is_not_such_a_record_is_refused_by_file_and_field(change, words):
    content = Whole([], 3).to_json() | change
    with pytest.raises(InputError, match=rf"results\.json.*{words}"):
        Whole.from_json(content, "results.json")


def test_a_missing_and_a_broken_file_are_refused(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"deep\.json.*nested too deeply"):
        Whole.read(tmp_path / "deep.json")
    (tmp_path / "broken.json").write_text('{"schema": 2,')
    (tmp_path / "nan.json").write_text(
        '{"schema": 2, "parts": [], "size": 1, "interval": [0, NaN]}'
    )
    for name in ("missing.json", "broken.json", "nan.json"):
        with pytest.raises(InputError, match=name):
            Whole.read(tmp_path / name)
    with pytest.raises(InputError, match="object"):
        Whole.from_json([], "list.json")
