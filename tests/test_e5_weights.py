"""The weights of multilingual-e5-small, read from a file that is written here by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from collecting import e5_weights
from collecting.e5_weights import E5File, dequantized, write_folder
from transformers import BertConfig, BertModel

from beir_cocodr.models.checkpoints.loading import load_encoder

HIDDEN = 32
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0), ("▁a", -1.0)]
PIECES += [("▁query:", -1.0), ("▁passage:", -1.0), ("▁sort", -1.0), ("ed", -1.5), ("ü", -3.0)]


def quantize(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return the blocks of a matrix in four bits, and the numbers that they stand for."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1) / 7).astype(np.float16)
    numbers = np.rint(blocks / scales.astype(np.float32)[:, None]).astype(np.int64) + 8
    packed = b""
    for scale, row in zip(scales, numbers, strict=True):
        packed += scale.tobytes()
        packed += bytes(int(row[i] + 16 * row[i + 16]) for i in range(16))
    stored = (numbers - 8) * scales.astype(np.float32)[:, None]
    return packed, stored.reshape(values.shape).astype(np.float32)


@pytest.fixture
def model():
    """Return a small BERT, whose matrices are those that four bits can hold."""
    torch.manual_seed(3)
    config = BertConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=len(PIECES),
        max_position_embeddings=16,
        type_vocab_size=2,
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, value in bert.named_parameters():
            value.copy_(torch.randn_like(value) * 0.3 + (1 if "LayerNorm.weight" in name else 0))
            is_matrix = "layer" in name and value.ndim == 2
            if is_matrix or "word_embeddings" in name:
                value.copy_(torch.from_numpy(quantize(value.numpy())[1]))
    return bert


@pytest.fixture
def file(model, tmp_path):
    """Write the file of the model, as its format is described."""
    names = {f"{theirs}.": f"{ours}." for theirs, ours in e5_weights._OF_LAYER.items()}
    tensors: dict[str, bytes] = {}
    counts = {}
    for name, value in model.state_dict().items():
        numbers = value.numpy()
        short = name
        for theirs, ours in names.items():
            if theirs in name:
                layer = name.split(".")[2]
                short = f"l{layer}.{ours}{'w' if name.endswith('weight') else 'b'}"
                break
        short = {
            "embeddings.word_embeddings.weight": "emb.word",
            "embeddings.position_embeddings.weight": "emb.pos",
            "embeddings.token_type_embeddings.weight": "emb.type",
            "embeddings.LayerNorm.weight": "emb.ln.w",
            "embeddings.LayerNorm.bias": "emb.ln.b",
        }.get(short, short)
        is_matrix = (short.endswith(".w") and numbers.ndim == 2) or short == "emb.word"
        tensors[short] = quantize(numbers)[0] if is_matrix else numbers.tobytes()
        counts[short] = numbers.size
    config = model.config
    head = b"E5S1" + struct.pack("<I", 1)
    head += struct.pack("<7i", HIDDEN, 2, 4, 64, len(PIECES), 16, 2)
    head += struct.pack("<fi", config.layer_norm_eps, 32)
    texts = [piece.encode() for piece, _ in PIECES]
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, texts)))
    offsets = np.cumsum([0, *map(len, texts)]).astype("<u4")
    head += offsets.tobytes() + np.array([score for _, score in PIECES], "<f4").tobytes()
    head += b"".join(texts) + struct.pack("<iI", 1, 9) + struct.pack("<IBI", 9, 1, 32)
    head += struct.pack("<i", len(tensors))
    size = len(head) + sum(len(name) + 2 + 1 + 4 + 8 + 8 for name in tensors)
    body = b""
    for name, content in tensors.items():
        entry = struct.pack("<H", len(name)) + name.encode()
        entry += struct.pack("<BIQQ", 0, counts[name], size + len(body), len(content))
        head += entry
        body += content
    path = tmp_path / "weights.bin"
    path.write_bytes(head + body)
    return path


def test_a_block_is_a_scale_and_halves_of_bytes():
    blocks = np.zeros(1, e5_weights._QUANTIZED)
    blocks["scale"] = 0.5
    blocks["numbers"][0, 0] = 0x9F  # 15 and 9
    values = dequantized(blocks)
    assert values[0] == 0.5 * (15 - 8)
    assert values[16] == 0.5 * (9 - 8)
    assert values[1] == 0.5 * (0 - 8)


def test_the_folder_encodes_as_the_model_does(file, model, tmp_path):
    folder = tmp_path / "encoder"
    write_folder(file, folder)
    encoder = load_encoder(str(folder))
    assert encoder.text_format.query_prompt == "query: "
    assert encoder.text_format.document_prompt == "passage: "
    assert encoder.max_seq_length == 16
    # <s> ▁passage: ▁a ▁sort ed </s>
    ids = torch.tensor([[0, 7, 5, 8, 9, 2]])
    with torch.inference_mode():
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    expected = torch.nn.functional.normalize(states.mean(1), dim=1).numpy()
    np.testing.assert_allclose(encoder.encode_document(["a sorted"]), expected, atol=1e-5)


def test_texts_are_in_composed_form_and_spaces_are_one(file):
    fast = e5_weights.tokenizer(E5File.read(file))
    assert fast.convert_ids_to_tokens(fast("u\u0308")["input_ids"]) == ["<s>", "▁", "ü", "</s>"]
    expected = fast("a sorted")["input_ids"]
    assert expected == [0, 5, 8, 9, 2]
    for text in ("a \n\t sorted", "a\u200b sorted", "a\u00a0sor\u0007ted", " a sorted"):
        assert fast(text)["input_ids"] == expected


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="no weights of multilingual-e5-small"):
        E5File.read(path)
