"""The one answer to "is this the same run?"."""

from pathlib import Path

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.same_run import check_same_run, differences

SETTINGS = {"models": ["a", "b"], "options": {"finetune": {"epochs": 1}}, "seed": 0}


def test_settings_are_compared_as_they_look_in_json():
    asked = {**SETTINGS, "models": ("a", "b"), "folder": Path("x")}
    check_same_run("o", {**SETTINGS, "folder": "x"}, asked)
    check_same_run("o", {**SETTINGS, "unset": None, "folder": "x"}, asked)
    assert differences(SETTINGS, {**SETTINGS, "options": {"finetune": {"epochs": 2}}}) == [
        "options: finetune: epochs"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed 0 there, 1 now"),
        ({"seed": None}, "seed 0 there, null now"),
        ({"new": "x"}, 'new null there, "x" now'),
        ({"models": ["b", "a"]}, r'models \["a", "b"\] there, \["b", "a"\] now'),
        ({"options": {"finetune": {}}}, "options: finetune: epochs 1 there, null now"),
        ({"seed": "0123456789abcdef" * 4}, "seed 0 there, 0123456789abcdef now"),
        ({"seed": "x" * 500}, 'seed 0 there, "x{40,80}[.]{3} now'),
    ],
)
def test_what_differs_is_named_with_both_values(change, words):
    with pytest.raises(InputError, match=words) as caught:
        check_same_run("o", SETTINGS, {**SETTINGS, **change}, "leave it")
    assert str(caught.value).startswith("o was begun with other settings (")
    assert str(caught.value).endswith("; use the same ones, or leave it")
