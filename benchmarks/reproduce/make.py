"""Encoders with random weights, made on the spot, and the disk that vectors of tokens take.

Table 9 of the extrapolation paper starts from a BERT with random weights. Tiny encoders with a
vocabulary of their own show that a table's path runs:

    python benchmarks/reproduce/make.py random-bert FOLDER

COCO-DR's tables have TSDAE on DistilBERT, which has no decoder under its own name:

    python benchmarks/reproduce/make.py bert-from-distilbert FOLDER --base distilbert-base-uncased

Table 3 of the MRL paper compares what indexes take of a disk. The vectors of all tokens and their
index are written, measured in ``storage.json``, and can then be deleted:

    python benchmarks/reproduce/make.py token-storage FOLDER --model MODEL --dataset CORPUS
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

KINDS = ("random-bert", "tiny", "tiny-cross", "bert-from-distilbert", "token-storage")
#: The file in which token-storage writes what it measured.
STORAGE_FILE = "storage.json"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SIGNS = ".,?!():_-'\"="
#: Words in the vocabulary of a tiny encoder.
_WORDS = 2_000


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--seed",
        type=int,
        default=42,
    )
    parser.add_argument(
        "--base",
        default="bert-base-uncased",
        help="Take shape and tokenizer of random-bert, or all of bert-from-distilbert, from this "
        "model. Default: bert-base-uncased.",
    )
    parser.add_argument("--model", help="Measure the vectors of this ColBERT (token-storage).")
    parser.add_argument("--dataset", help="Measure them over this corpus (token-storage).")
    options = parser.parse_args(arguments)
    if options.kind == "token-storage":
        token_storage(options.output, options.model, options.dataset)
    elif options.kind == "random-bert":
        random_bert(options.output, options.base, options.seed)
    elif options.kind == "bert-from-distilbert":
        from reproduce.distilbert import bert_from_distilbert

        bert_from_distilbert(options.output, options.base)
    else:
        is_cross = options.kind == "tiny-cross"
        tiny(
            options.output,
            ["the of a in is and for"],
            options.seed,
            cross=is_cross,
        )


def token_storage(output: Path, model: str, dataset: str) -> None:
    """Write the vectors of all tokens of a corpus with their index, and record the bytes of both.

    Args:
        output: The folder; vectors and index go to its subfolder ``tokens``.
        model: A multi-vector encoder.
        dataset: The corpus.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.io import write_text
    from beir_cocodr.models.spec import SearchOptions
    from beir_cocodr.retrieval.late_interaction import TokenSearch

    folder = output / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    documents = load_collection(dataset, labels="none").documents
    options = SearchOptions(bf16=True, progress=True)
    indexed = TokenSearch(model, documents, options, folder=folder)
    indexed.prepare()
    sizes = {
        "model": model,
        "dataset": dataset,
        "documents": len(documents),
        "tokens": len(indexed.tokens.vectors),
        "vectors_bytes": indexed.tokens.vectors.nbytes,
    }
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sizes["bytes"] = written
    write_text(output / STORAGE_FILE, json.dumps(sizes, indent=2) + "\n")


def random_bert(
    output: Path,
    base: str,
    seed: int,
) -> None:
    """Save the shape and tokenizer of a published model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(base)
    AutoModelForMaskedLM.from_config(config).save_pretrained(output)
    AutoTokenizer.from_pretrained(base).save_pretrained(output)


def shaped(
    output: Path,
    layers: int,
    width: int,
    seed: int = 42,
) -> None:
    """Save a BERT of a shape with random weights, its head, and a tokenizer of words w0, w1, ..."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tokens = [*_SPECIAL, *(f"w{number}" for number in range(30_517))]
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 or 1,
        intermediate_size=4 * width,
    )
    torch.manual_seed(seed)
    BertForMaskedLM(config).save_pretrained(output)
    _save_tokenizer(output, tokens)


def _save_tokenizer(output: Path, tokens: Iterable[str]) -> int:
    """Save a tokenizer, and return the size of its vocabulary."""
    from transformers import BertTokenizer

    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    BertTokenizer(vocab=vocabulary).save_pretrained(output)
    return len(vocabulary)


def tiny(
    output: Path,
    texts: Iterable[str],
    seed: int,
    *,
    cross: bool = False,
    width: int = 32,
) -> None:
    """Save a BERT of two layers over the most frequent words of texts.

    It finds texts that share rare words without training, see :func:`_weigh_words`.

    Args:
        output: The folder.
        texts: The texts that give the words.
        seed: The seed of the weights.
        cross: Save a cross-encoder, which scores pairs.
        width: The dimensions.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(r"[a-z]+", text.lower()))
    tokens = [*_SPECIAL, *_SIGNS, *_CHARACTERS]
    tokens += [f"##{character}" for character in _CHARACTERS]
    no_words = len(tokens)
    tokens += [word for word, _ in counts.most_common(_WORDS)]
    config = BertConfig(
        vocab_size=_save_tokenizer(output, tokens),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=320,
        initializer_range=0.3,
        num_labels=1,
    )
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config) if cross else BertForMaskedLM(config)
    _weigh_words(model.bert, no_words)
    model.save_pretrained(output)


#: The random part of weights that :func:`_weigh_words` gives values.
_RANDOM = 0.1
#: The first number of the rarest word's embedding, three times as large as usual, and the attention
#: to it.
_RAREST = 0.9
_ATTENTION = 3.0


def _weigh_words(bert: Any, no_words: int) -> None:
    """Let the vector of a text be about the mean of its words, of which rare ones count more.

    Each token attends to all by the first number of their embeddings, which grows with the rarity
    of a word. Values pass through attention nearly unchanged.

    Args:
        bert: The encoder, with random weights.
        no_words: Tokens at the beginning of the vocabulary that are no words; words follow, the
            most frequent first.
    """
    import torch

    embeddings = bert.embeddings
    words = embeddings.word_embeddings.weight.data
    ranks = (torch.arange(len(words)) - no_words).clamp(min=0)
    words[:, 0] = _RAREST * (2 * torch.log1p(ranks) / math.log(len(words)) - 1)
    embeddings.position_embeddings.weight.data *= _RANDOM
    embeddings.token_type_embeddings.weight.data *= _RANDOM
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        size = attention.attention_head_size
        for linear in (attention.query, attention.key, layer.output.dense):
            linear.weight.data *= _RANDOM
        attention.query.bias.data[::size] = _ATTENTION
        attention.key.weight.data[::size, 0] += 1
        for linear in (attention.value, layer.attention.output.dense):
            linear.weight.data *= _RANDOM
            linear.weight.data += torch.eye(len(linear.weight))


def tiny_distilbert(
    output: Path,
    texts: Iterable[str],
    seed: int,
) -> None:
    """Save the encoder of :func:`tiny` as a DistilBERT."""
    from reproduce.distilbert import distilbert_from_bert

    bert = output.with_name(output.name + ".bert")
    tiny(bert, texts, seed)
    distilbert_from_bert(output, str(bert))
    shutil.rmtree(bert)


def tiny_colbert(
    output: Path,
    texts: Iterable[str],
    seed: int,
) -> None:
    """Save the encoder of :func:`tiny` with a vector for each token."""
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
    encoder = MultiVectorEncoder(
        modules=modules,
        similarity_fn_name="maxsim",
    )
    encoder.save_pretrained(str(output))
    shutil.rmtree(bare)


if __name__ == "__main__":
    main()
