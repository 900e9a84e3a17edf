"""Reading one source file: what Python itself says about the same file is the oracle."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.apidocs.docstrings import (
    Docstring,
    ModuleSource,
    NotLiteral,
    evaluate,
    read_docstrings,
)


def _read(folder: Path, source: str | bytes, module: str = "pkg.mod") -> ModuleSource | None:
    path = folder / f"{module.rpartition('.')[2]}.py"
    path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
    return read_docstrings(path, module)


def _texts(source: ModuleSource | None) -> dict[str, str | None]:
    assert source is not None
    return {docstring.name: docstring.text for docstring in source.docstrings}


@pytest.mark.parametrize(
    "module", ["argparse", "json.decoder", "textwrap", "statistics", "fractions"]
)
def test_texts_equal_those_of_the_imported_module(module: str) -> None:
    imported = importlib.import_module(module)
    path = Path(inspect.getsourcefile(imported) or "")
    owners = [vars(imported)] + [
        vars(value) for value in vars(imported).values() if inspect.isclass(value)
    ]
    functions = [value for owner in owners for value in owner.values() if inspect.isfunction(value)]
    expected = {
        function.__code__.co_qualname: function.__doc__
        for function in functions
        # Generated methods (of named tuples, of operators) come from elsewhere or from inside a
        # function.
        if Path(function.__code__.co_filename) == path
        and "<locals>" not in function.__code__.co_qualname
    }
    texts = _texts(read_docstrings(path, module))
    assert any(expected.values())
    # From Python 3.13 on, the compiler takes the indentation off.
    assert {name: _bare(texts.get(name)) for name in expected} == {
        name: _bare(text) for name, text in expected.items()
    }


def _bare(text: str | None) -> str | None:
    return text if text is None or sys.version_info < (3, 13) else inspect.cleandoc(text)


def test_nested_branched_and_decorated_definitions(tmp_path: Path) -> None:
    source = _read(
        tmp_path,
        '''
        import sys
        if sys.platform == "win32":
            def branch():
                """In a branch."""
        try:
            import missing
        except ImportError:
            async def fallback():
                """In a handler."""
        class Outer:
            """Outer text."""
            class Inner:
                """Inner text."""
                @property
                def value(self):
                    """Property text."""
        @deprecated("use Outer")
        def old():
            """Old text."""
        def factory():
            def local():
                """Nobody can call this by name."""
        ''',
    )
    assert _texts(source) == {
        "branch": "In a branch.",
        "fallback": "In a handler.",
        "Outer": "Outer text.",
        "Outer.Inner": "Inner text.",
        "Outer.Inner.value": "Property text.",
        "old": "Old text.",
    }
    assert source is not None
    assert [docstring.name for docstring in source.docstrings if docstring.deprecated] == ["old"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    source = _read(
        tmp_path, f'open({str(witness)!r}, "w")\nraise SystemExit\ndef f():\n    """Text."""\n'
    )
    assert _texts(source) == {"f": "Text."}
    assert not witness.exists()


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\ndef f():\n    '''Café.'''\n".encode("latin-1"),
        b"\xef\xbb\xbf" + "def f():\n    '''Café.'''\n".encode(),
        "def f():\r\n    '''Café.'''\r\n".encode(),
    ],
    ids=["declared latin-1", "byte order mark", "CRLF"],
)
def test_encodings(tmp_path: Path, source: bytes) -> None:
    assert _texts(_read(tmp_path, source)) == {"f": "Café."}


@pytest.mark.parametrize(
    "source",
    [b"def f(:\n", b"print 'Python 2'\n", b"x = 1\0\n", b"'''\xe9'''\n", b"# coding: nonsense\n"],
    ids=["syntax error", "Python 2", "null byte", "not UTF-8", "unknown encoding"],
)
def test_files_that_python_cannot_parse(tmp_path: Path, source: bytes) -> None:
    assert _read(tmp_path, source) is None


def test_texts_of_objects_written_in_c(tmp_path: Path) -> None:
    source = _read(
        tmp_path,
        '''
        NOTE = "\\n\\nA shared note."
        add_newdoc("np.core", "arange", "Evenly spaced." + NOTE)
        add_newdoc("np.core", "ndarray", ("shape", "Tuple of dimensions."))
        add_newdoc("jv", r"""Bessel \\function.""")
        add_docstr(
            pkg.special.abs, "Absolute {word}.{{}} {unknown}".format(word="value", **imported)
        )
        conv = _add_docstr(pkg.conv, f"Convolves{dots}.")
        add_newdoc("np.core", name, "A text for a computed name.")
        add_newdoc("np.core", "computed", make_text())
        ''',
    )
    assert source is not None
    assert source.docstrings == [
        Docstring("np.core", "arange", "Evenly spaced.\n\nA shared note.", placed=True),
        Docstring("np.core", "ndarray.shape", "Tuple of dimensions.", placed=True),
        Docstring("pkg.mod", "jv", "Bessel \\function.", placed=True),
        Docstring("pkg", "special.abs", "Absolute value.{} ", placed=True),
        Docstring("pkg.mod", "conv", "Convolves.", placed=True),
        Docstring("pkg.mod", "?", None, placed=True),
        Docstring("np.core", "computed", None, placed=True),
    ]


def test_texts_hung_on_tensor_methods_by_a_helper(tmp_path: Path) -> None:
    source = _read(tmp_path, 'add_docstr_all("abs_", "In place.")\n', "torch._tensor_docs")
    assert source is not None
    assert source.docstrings == [
        Docstring("torch._tensor_docs", "Tensor.abs_", "In place.", placed=True)
    ]


def test_assigned_documentation(tmp_path: Path) -> None:
    source = _read(
        tmp_path,
        """
        class Conv:
            __doc__ = "Convolution." + " Twice."
            copied = 1
            copied.__doc__ = other.__doc__
        def f(): ...
        f.__doc__ = "Effs."
        f.__doc__ += " More."
        g.__doc__ = other.__doc__ + "More."
        table[0].__doc__ = "No name leads here."
        """,
    )
    assert _texts(source) == {"Conv": "Convolution. Twice.", "f": "Effs.", "g": None, "?": None}


def test_imports_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "__init__.py"
    path.write_text(
        "from ._a import x, y as z\nfrom .sub import *\nfrom .. import up\nfrom other.place import"
        " q\n__all__ = ['x']\n__all__ += ['z']\nnorm = norm_gen(name='norm')\n"
    )
    source = read_docstrings(path, "top.pkg")
    assert source is not None
    assert source.imports == {
        "x": ("top.pkg._a", "x"),
        "z": ("top.pkg._a", "y"),
        "up": ("top", "up"),
        "q": ("other.place", "q"),
    }
    assert source.stars == ["top.pkg.sub"]
    assert source.exports == ["x", "z"]
    assert source.calls == {"norm": "norm_gen"}


def test_an_extended_export_list_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    source = _read(tmp_path, "__all__ = ['x']\n__all__ += other.__all__\n")
    assert source is not None
    assert source.exports is None


_WORDS = st.text(alphabet="ab {}%é\n", max_size=6)


@st.composite
def _expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """Source of an expression over strings, of the kinds that documentation is written in."""
    if depth == 0:
        return draw(st.one_of(_WORDS.map(repr), st.sampled_from(["NAME", "OTHER"])))
    inner = _expressions(depth=depth - 1)
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return f"({draw(inner)} + {draw(inner)})"
    if kind == 1:
        method = draw(st.sampled_from(["strip()", "upper()", "replace(NAME, OTHER)"]))
        return f"({draw(inner)}).{method}"
    if kind == 2:
        return f"('a %s b %s' % ({draw(inner)}, {draw(inner)}))"
    if kind == 3:
        return f"'{{}} and {{key}} {{{{}}}}'.format({draw(inner)}, **{{'key': {draw(inner)}}})"
    if kind == 4:
        return "f'<{NAME}> and {OTHER} {{}}'"
    if kind == 5:
        return f"dedent({draw(inner)})"
    return f"('%(k)s' % {{'k': {draw(inner)}}})"


@given(_expressions(), _WORDS, _WORDS)
def test_literals_have_the_value_that_python_gives_them(source: str, name: str, other: str) -> None:
    names = {"NAME": name, "OTHER": other}
    expected = eval(source, {**names, "dedent": textwrap.dedent})
    assert evaluate(ast.parse(source, mode="eval").body, names) == expected


@pytest.mark.parametrize(
    "source",
    [
        "unknown",
        "f()",
        "'a' + unknown",
        "'%s' % unknown",
        "'%d' % 'x'",
        "[1]",
        "'{'.format()",
        "1 + 1",
    ],
)
def test_what_the_source_does_not_give_is_not_guessed(source: str) -> None:
    with pytest.raises(NotLiteral):
        evaluate(ast.parse(source, mode="eval").body, {})
