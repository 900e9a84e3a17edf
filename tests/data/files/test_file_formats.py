"""Each format says what its file says: titles, sections, records; a broken file is one error that
names it.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.files.file_formats import (
    PACKAGES,
    Content,
    Section,
    Unreadable,
    read_content,
    read_document,
)
from beir_cocodr.data.files.file_tables import Columns, read_table
from beir_cocodr.errors import InputError

MARKDOWN = """---
title: The guide
---

Welcome to *all* of it, with a [link](https://example.org/hidden) and `code`.

# Install

## From source

1. Clone.
2. Build.

```
make all
```

| a | b |
| - | - |
| one | two |

<div>Block <b>of</b> markup</div>

# Use

Search.
"""

RST = """
The guide
=========

Welcome to :func:`search` and ``code``.

Install
-------

.. note:: Take care.

.. versionadded:: 1.2
   Only Sphinx knows it.

.. include:: /etc/hostname

From source
~~~~~~~~~~~

* Clone.
"""

HTML = """<html><head><title>The guide &amp; more</title><style>p {}</style></head>
<body><nav>Menu</nav>
<main>
<h1>Install</h1><p>Welcome to
<b>all</b> of it.<br>Second line</p><script>alert(1)</script><!-- hidden -->
<h2>From source</h2><ul><li>Clone.</li><li>Build.</li></ul><pre>make  all
</pre><table><tr><td>one</td><td>two</td></tr></table></main><footer>Foot</footer></body></html>"""


def read(path: Path) -> Content:
    return read_content(path, read_document(path))


def test_markdown(tmp_path):
    (tmp_path / "a.md").write_text(MARKDOWN)
    title, [welcome, source, use] = read(tmp_path / "a.md")
    assert (title, welcome.headings, use) == ("The guide", (), Section(("Use",), "Search."))
    assert welcome.text == "Welcome to all of it, with a link and code."
    assert source.headings == ("Install", "From source")
    assert source.text.split() == "Clone. Build. make all a b one two Block of markup".split()


def test_restructured_text_runs_and_includes_nothing(tmp_path):
    (tmp_path / "a.rst").write_text(RST)
    title, [welcome, install, source] = read(tmp_path / "a.rst")
    assert (title, welcome.headings, install.headings) == ("The guide", (), ("Install",))
    assert welcome.text == "Welcome to :func:`search` and code."
    for words in ("Take care.", "Only Sphinx knows it.", ".. include:: /etc/hostname"):
        assert words in install.text
    assert Path("/etc/hostname").read_text().strip() not in install.text
    assert source == Section(("Install", "From source"), "Clone.")


def test_html(tmp_path):
    (tmp_path / "a.html").write_text(HTML)
    title, [install, source] = read(tmp_path / "a.html")
    assert (title, install.headings) == ("The guide & more", ("Install",))
    assert install.text == "Welcome to all of it.\nSecond line"
    assert source.headings == ("Install", "From source")
    assert source.text.split("\n\n") == ["Clone.", "Build.", "make  all", "one two"]
    (tmp_path / "b.htm").write_bytes("<meta charset=latin-1><p>größe".encode("latin-1"))
    assert read(tmp_path / "b.htm").sections == [Section((), "größe")]


def test_text_in_other_encodings(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "a.txt").write_bytes("größe\n".encode(encoding))
        assert read(tmp_path / "a.txt") == Content("", [Section((), "größe")])
    (tmp_path / "a.txt").write_bytes("größe".encode("latin-1"))
    with pytest.raises(Unreadable, match=r"not UTF-8 at byte 3"):
        read(tmp_path / "a.txt")
    data = (tmp_path / "a.txt").read_bytes()
    assert read_content(tmp_path / "a.txt", data, "latin-1").sections == [Section((), "größe")]


def write_pdf(path: Path, *pages: str) -> None:
    """A PDF of lines of text, as its standard has them."""
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(len(pages)))
    font = "/Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
    ]
    for i, page in enumerate(pages):
        lines = " T* ".join(f"({line}) Tj" for line in page.split("\n"))
        drawn = f"BT /F1 12 Tf 14 TL 72 700 Td {lines} ET"
        place = f"/Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * i} 0 R"
        parts.append(f"<< /Type /Page {place} /Resources << {font} >> >>")
        parts.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    body, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(parts) + 1}"
        " /Root 1 0 R >>\n"
    )
    path.write_text(f"{body}{end}startxref\n{len(body)}\n%%EOF\n")


def test_pdf_is_read_by_pages(tmp_path):
    pytest.importorskip("pypdf")
    write_pdf(tmp_path / "a.pdf", "A supersonic wing in tur-\nbulent flow.", "The second page.")
    assert read(tmp_path / "a.pdf").sections == [
        Section(("page 1",), "A supersonic wing in turbulent flow."),
        Section(("page 2",), "The second page."),
    ]


def test_word_is_read_by_headings(tmp_path):
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_paragraph("The guide", style="Title")
    document.add_paragraph("Welcome.")
    document.add_heading("Install", level=1)
    document.add_paragraph("Clone.")
    document.add_table(1, 2).rows[0].cells[1].text = "cell"
    document.save(str(tmp_path / "a.docx"))
    assert read(tmp_path / "a.docx") == Content(
        "The guide", [Section((), "Welcome."), Section(("Install",), "Clone.\n\n cell")]
    )


@pytest.mark.parametrize("suffix", PACKAGES)
def test_a_broken_file_is_one_error(tmp_path, suffix):
    pytest.importorskip(PACKAGES[suffix])
    (tmp_path / f"a{suffix}").write_bytes(b"no such thing")
    with pytest.raises(Unreadable, match=r"cannot be read.*repair it"):
        read(tmp_path / f"a{suffix}")


RECORDS = [
    {"Id": "1", "Title": "one", "Body": 'a "b",\nc'},
    {"Id": "2", "Title": "two", "Body": "ä"},
]
CSV = 'Id,Title,Body\n1,one,"a ""b"",\nc"\n2,two,ä\n'


def write_tables(folder: Path) -> list[Path]:
    (folder / "a.csv").write_text(CSV)
    (folder / "b.csv").write_text(CSV.replace(",", ";").replace('"";\nc', '"",\nc'))
    (folder / "c.tsv").write_text(CSV.replace(",", "\t").replace('""\t\nc', '"",\nc'))
    (folder / "d.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "e.parquet")
    pa_lines = (
        '{"Id": "1", "Title": "one", "Body": "a \\"b\\",\\nc"}\n',
        '{"Id": "2", "Title": "two", "Body": "ä"}\n',
    )
    (folder / "f.jsonl").write_text("".join(pa_lines))
    return sorted(folder.iterdir())


def test_tables_of_every_kind_have_the_same_records(tmp_path):
    for path in write_tables(tmp_path):
        rows = [row[1:] for row in read_table(path, Columns(), raise_errors)]
        assert rows == [("1", "one", 'a "b",\nc'), ("2", "two", "ä")], path
        named = [
            row[1:] for row in read_table(path, Columns(("Title", "Body"), "", "Id"), raise_errors)
        ]
        assert named == [("1", "", 'one\na "b",\nc'), ("2", "", "two\nä")]


def test_a_compressed_table_that_is_damaged_is_named(tmp_path):
    rows = "".join(f"{n},text {n * 7919}\n" for n in range(20_000))
    whole = gzip.compress(f"id,text\n{rows}".encode())
    for place in range(
        20, len(whole), len(whole) // 20
    ):  # zlib's own error, a wrong checksum, or broken lines
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        (tmp_path / "a.csv.gz").write_bytes(broken)
        with pytest.raises(InputError, match=r"a\.csv\.gz.*cannot be read to its end"):
            list(read_table(tmp_path / "a.csv.gz", Columns(), raise_errors))


@pytest.mark.parametrize(
    ("name", "content", "columns", "words"),
    [
        ("a.csv", "x,y\n1,2\n", Columns(), "--text-column.*'x', 'y'"),
        ("a.csv", "x,y\n1,2\n", Columns(("z",)), "no column 'z'.*'x', 'y'"),
        ("a.csv", "id,text\n1,2,3\n", Columns(), "line 2 has 3 cells for 2 columns"),
        ("a.csv", 'id,text\n1,"2\n', Columns(), "cannot be read to its end"),
        ("a.jsonl", '{"x": 1, "y": 2}\n', Columns(), "--text-column"),
        ("a.parquet", "no parquet", Columns(), "cannot be read to its end"),
    ],
)
def test_a_bad_table_names_the_file_and_the_way_out(tmp_path, name, content, columns, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=f"(?s)a\\.{name[2:]}.*{words}"):
        list(read_table(tmp_path / name, columns, raise_errors))


def test_the_only_column_is_the_text(tmp_path):
    (tmp_path / "a.csv").write_text("review\ngood\n")
    named = Columns(("review",))
    assert [row.text for row in read_table(tmp_path / "a.csv", named, raise_errors)] == ["good"]
