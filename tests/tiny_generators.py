"""Things that write queries: tiny language models with random weights, and one that is told what to
say.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory, wordpiece) -> Path:
    """Return the folder of a T5 whose own settings are beams, another top k and temperature."""
    import torch
    from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("tiny-t5")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(wordpiece),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=wordpiece.pad_token_id,
        pad_token_id=wordpiece.pad_token_id,
        eos_token_id=wordpiece.sep_token_id,
    )
    model = T5ForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        num_beams=2,
        top_k=50,
        do_sample=True,
        temperature=0.1,
        max_length=20,
        decoder_start_token_id=wordpiece.pad_token_id,
        pad_token_id=wordpiece.pad_token_id,
        eos_token_id=wordpiece.sep_token_id,
    )
    model.save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a GPT-2 that reads at most 512 tokens, which are bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-gpt2")
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    torch.manual_seed(0)
    end = vocabulary["<|endoftext|>"]
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=512,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=end,
        eos_token_id=end,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


class Fixed:
    """A generator of queries that a test fixes, as a user's own kind of generator."""

    #: From a passage to its queries.
    texts = None

    def __init__(self, name, documents, options, device):
        from beir_cocodr.data.text import word_counter

        self.counter = word_counter()

    def describe(self):
        return {"name": "fixed", "kind": "fixed"}

    def prepare(self, folder):
        pass

    def generate(self, passages, shard):
        from beir_cocodr.generation.generators import Generated, Query

        texts = type(self).texts
        return Generated([[Query(text) for text in texts(passage)] for passage in passages], {})


@pytest.fixture
def fixed(monkeypatch):
    """Call it with a function from a passage to its queries, and the generator "fixed" returns
    them. It is a row that is added to the table from outside of the package.
    """
    from beir_cocodr.generation.generators import GENERATORS, GeneratorKind

    def arrange(texts):
        monkeypatch.setattr(Fixed, "texts", texts)
        row = GeneratorKind(build=f"{Fixed.__module__}:Fixed", help="Fixed.", citations=("me2026",))
        monkeypatch.setitem(GENERATORS, "fixed", row)

    return arrange
