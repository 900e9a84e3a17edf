"""Random weights, made in place: BERT, from which Table 9 of the extrapolation paper starts, and
tiny encoders with a vocabulary of their own, by which a table is run to see its path.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

KINDS = ("random-bert", "tiny", "tiny-cross")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--base", default="bert-base-uncased", help="whose shape and tokenizer random-bert takes"
    )
    given = parser.parse_args(arguments)
    if given.kind == "random-bert":
        random_bert(given.output, given.base, given.seed)
    else:
        tiny(given.output, ["the of a in is and for"], given.seed, given.kind == "tiny-cross")


def random_bert(output: Path, base: str, seed: int) -> None:
    """The shape and tokenizer of a published model with weights that are drawn."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(seed)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(base)).save_pretrained(output)
    AutoTokenizer.from_pretrained(base).save_pretrained(output)


def shaped(output: Path, layers: int, width: int, seed: int = 42) -> None:
    """A random BERT of a shape, with its head and a tokenizer of words w0, w1, ...: nothing is
    downloaded.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{number}" for number in range(30_517)),
    ]
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 or 1,
        intermediate_size=4 * width,
    )
    torch.manual_seed(seed)
    BertForMaskedLM(config).save_pretrained(output)
    BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(output)


def tiny(
    output: Path,
    texts: Iterable[str],
    seed: int,
    cross: bool = False,
    words: int = 2_000,
    width: int = 32,
) -> None:
    """A BERT of two layers and ``width`` numbers over the commonest words of texts; with ``cross``
    it scores pairs.

    Its weights are larger than usual, so that texts differ without training.
    """
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        BertTokenizer,
    )

    counts = Counter(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,?!():_-'\"=", *letters]
    vocabulary += [
        *("##" + letter for letter in letters),
        *(word for word, _ in counts.most_common(words)),
    ]
    tokens = {token: i for i, token in enumerate(dict.fromkeys(vocabulary))}
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=320,
        initializer_range=0.3,
        num_labels=1,
    )
    torch.manual_seed(seed)
    (BertForSequenceClassification if cross else BertForMaskedLM)(config).save_pretrained(output)
    BertTokenizer(vocab=tokens).save_pretrained(output)


def tiny_colbert(output: Path, texts: Iterable[str], seed: int) -> None:
    """The encoder of :func:`tiny`, of whose tokens each is a vector."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize, Transformer

    bare = output.with_name(output.name + ".bare")
    tiny(bare, texts, seed)
    modules = [
        Transformer(str(bare)),
        MultiVectorMask(),
        Normalize(module_input_name="token_embeddings"),
    ]
    MultiVectorEncoder(modules=modules, similarity_fn_name="maxsim").save_pretrained(str(output))
    shutil.rmtree(bare)


if __name__ == "__main__":
    main()
