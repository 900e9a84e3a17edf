"""Former names go on working with a warning; a former order is refused with the new call."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from beir_cocodr.deprecation import former_signature


@dataclass(frozen=True)
class TrainOptions:
    epochs: int = 1
    seed: int = 42


def looks_swapped(first: object, second: object) -> bool:
    return first == "scifact"


@former_signature(
    order=("dataset", "model", "output", "options.epochs"),
    swapped=looks_swapped,
    base="model",
    corpus="dataset",
    seed="options.seed",
)
def train(
    model: object,
    dataset: object,
    *,
    output: object = None,
    options: TrainOptions = TrainOptions(),
) -> tuple[object, object, object, TrainOptions]:
    """Return the arguments."""
    return model, dataset, output, options


def test_the_present_call_passes_without_a_warning(recwarn):
    options = TrainOptions(epochs=3)
    assert train("minilm", "scifact", output="folder", options=options) == (
        "minilm",
        "scifact",
        "folder",
        options,
    )
    assert train(dataset="scifact", model="minilm") == ("minilm", "scifact", None, TrainOptions())
    assert not recwarn


def test_former_keyword_names_reach_the_present_ones_with_a_warning():
    with pytest.warns(DeprecationWarning, match="base is now model") as caught:
        result = train(base="minilm", dataset="scifact")
    assert result == ("minilm", "scifact", None, TrainOptions())
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


def test_former_keywords_reach_the_options_object_that_holds_them_now():
    with pytest.warns(DeprecationWarning, match=r"epochs is now options\.epochs"):
        assert train("minilm", "scifact", epochs=2, seed=7)[-1] == TrainOptions(2, 7)


def test_a_former_keyword_joins_the_options_that_are_given():
    with pytest.warns(DeprecationWarning, match=r"epochs is now options\.epochs"):
        result = train("minilm", "scifact", epochs=2, options=TrainOptions(seed=7))
    assert result[-1] == TrainOptions(2, 7)


def test_a_former_and_a_present_name_together_are_refused():
    with pytest.raises(TypeError, match="both base and model; give only model"):
        train(dataset="scifact", model="minilm", base="minilm")


@pytest.mark.parametrize(
    ("args", "keywords", "call"),
    [
        (("a", "b", Path("c")), {}, f"train('b', 'a', output={Path('c')!r})"),
        (("a", "b", "c", 3), {"seed": 7},
         "train('b', 'a', output='c', options=TrainOptions(epochs=3, seed=7))"),
        (("a",), {"base": "b", "output": "c"}, "train('b', 'a', output='c')"),
        (("a",), {"model": "b"}, "train('b', 'a')"),
        (("scifact", "minilm"), {"output": "c"}, "train('minilm', 'scifact', output='c')"),
        (("a", list(range(99)), "c"), {}, "train(..., 'a', output='c')"),
    ],
)  # fmt: skip
def test_the_former_order_is_refused_with_the_new_call_printed(args, keywords, call):
    with pytest.raises(TypeError) as caught:
        train(*args, **keywords)
    assert str(caught.value) == f"train() takes only model, dataset by position; write {call}"


def test_a_call_that_is_wrong_in_any_order_is_refused_as_python_does():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        train("minilm", "scifact", colour="red")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dataset'"):
        train("minilm")


def test_the_function_keeps_its_name_signature_and_docstring():
    assert train.__name__ == "train"
    assert train.__doc__ == "Return the arguments."
    assert "base" not in train.__wrapped__.__code__.co_varnames
