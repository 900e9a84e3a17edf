"""Encodings are guessed from bytes that the test wrote, and short texts by their neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.files.encodings import EncodingVotes, as_utf8, is_utf8, likely_encodings

TEXTS = {
    "gb18030": "飞机的机翼在气流中产生升力，发动机产生推力。边界层很薄。\n",
    "cp932": "飛行機の翼は空気の流れの中で揚力を生み出します。エンジンは推力を生みます。\n",
    "cp949": "비행기의 날개는 공기의 흐름 속에서 양력을 만들고 엔진은 추력을 만든다.\n",
    "cp1252": "Der Flügel erzeugt Auftrieb in der Strömung, größer als für möglich gehalten.\n",
    "cp1251": "Крыло самолёта создаёт подъёмную силу, а двигатель тягу.\n",
    "koi8_r": "Крыло самолёта создаёт подъёмную силу, а двигатель тягу.\n",
    "cp1250": "Skrzydło samolotu wytwarza siłę nośną w przepływie powietrza, a silnik ciąg.\n",
    "big5": "飛機的機翼在氣流中產生升力，發動機產生推力。\n",
    "utf_16_le": "The wing of an aircraft makes lift.\n",
    "utf_16_be": "The wing of an aircraft makes lift.\n",
    "utf_32_le": "The wing of an aircraft makes lift.\n",
    "utf_32_be": "飞机的机翼在气流中产生升力。\n",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_a_text_of_some_length_shows_its_encoding(encoding):
    text = TEXTS[encoding] * 6
    [guess] = likely_encodings(text.encode(encoding))
    assert as_utf8(text.encode(encoding), guess).decode() == text


@pytest.mark.parametrize(
    "word", ["合同", "合同编号", "价格", "公司", "检测报告", "今天", "飞机机翼"]
)
def test_a_short_text_is_read_as_most_files_of_the_folder(word):
    data = f"{word}\n".encode("gb18030")
    likely = likely_encodings(data)
    assert "gb18030" in likely
    votes = EncodingVotes()
    for encoding in ("cp949", "gb18030", "gb18030"):
        votes.add(encoding)
    assert votes.choose(likely) == "gb18030"
    assert data.decode(votes.choose(likely)) == f"{word}\n"


def test_a_short_text_in_korean_stays_korean_where_others_are():
    data = "계약 번호\n".encode("cp949")
    votes = EncodingVotes()
    votes.add("cp949")
    assert votes.choose(likely_encodings(data)) == "cp949"


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0",
        bytes(range(256)),
        b"\xff\xd8\xff\xe0\0\x10JFIF\0\1",
        b"\x7fELF\x02\x01\x01" + bytes(40),
    ],
)
def test_what_is_no_text_has_no_encoding(data):
    assert not is_utf8(data)
    assert likely_encodings(data) == ()


@given(st.binary(max_size=600))
def test_any_bytes_are_read_or_refused(data):
    for encoding in likely_encodings(data):
        try:
            assert isinstance(as_utf8(data, encoding), bytes)
        except ValueError:
            continue
