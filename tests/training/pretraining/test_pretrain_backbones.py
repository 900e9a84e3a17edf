"""Pre-training takes the encoders that people have: BERT, RoBERTa, DistilBERT and MPNet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TOPICS
from test_objectives import settings

from beir_cocodr import COCODR
from beir_cocodr.errors import InputError
from beir_cocodr.training.pretraining.objectives import OBJECTIVES
from beir_cocodr.training.pretraining.pretrain import pretrain


@pytest.fixture(scope="module")
def backbones(tmp_path_factory, wordpiece) -> dict[str, Path]:
    """A tiny masked language model of each architecture, with a tokenizer of its own kind."""
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("backbones")
    words = [word for topic in TOPICS for word in topic]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        words * 3, 400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    bpe.save_model(str(folder))
    pieces = [token for token, _ in sorted(wordpiece.get_vocab().items(), key=lambda item: item[1])]
    renamed = dict(
        zip(("[PAD]", "[CLS]", "[SEP]", "[MASK]"), ("<pad>", "<s>", "</s>", "<mask>"), strict=True)
    )
    vocabulary = {renamed.get(token, token): i for i, token in enumerate(pieces)}
    tokenizers = {
        "Bert": wordpiece,
        "DistilBert": wordpiece,
        "Roberta": transformers.RobertaTokenizer(
            vocab=json.loads((folder / "vocab.json").read_text()),
            merges=[
                tuple(line.split()) for line in (folder / "merges.txt").read_text().splitlines()[1:]
            ],
        ),
        "MPNet": transformers.MPNetTokenizer(vocab=vocabulary),
    }
    made = {}
    for architecture, tokenizer in tokenizers.items():
        names = (
            {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
            if architecture == "DistilBert"
            else {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 64,
            }
        )
        config = getattr(transformers, f"{architecture}Config")(
            vocab_size=len(tokenizer),
            max_position_embeddings=100,
            pad_token_id=tokenizer.pad_token_id,
            **names,
        )
        torch.manual_seed(0)
        made[architecture] = folder / architecture
        getattr(transformers, f"{architecture}ForMaskedLM")(config).save_pretrained(
            made[architecture]
        )
        tokenizer.save_pretrained(made[architecture])
    return made


@pytest.fixture(scope="module")
def untrained(backbones) -> dict[str, np.ndarray]:
    """Return the vector of one text by each architecture."""
    return {
        architecture: COCODR(str(folder)).encode_document(["wing flow"])
        for architecture, folder in backbones.items()
    }


@pytest.mark.parametrize("objective", ["coco", "mlm", "tsdae"])
@pytest.mark.parametrize("architecture", ["Bert", "Roberta", "DistilBert", "MPNet"])
def test_every_backbone_trains(
    architecture, objective, backbones, untrained, beir_folder, tmp_path
):
    model, output = backbones[architecture], tmp_path / "o"
    options = settings(objective, max_steps=2)
    if objective == "tsdae" and architecture in ("DistilBert", "MPNet"):
        with pytest.raises(InputError, match=rf"decoder.* {architecture.lower()}"):
            pretrain(str(model), [str(beir_folder)], output=output, options=options)
        return
    record = pretrain(str(model), [str(beir_folder)], output=output, options=options)
    assert record.steps == 2
    assert record.training_loss < 50
    if OBJECTIVES[objective].masked:
        assert record.details["language_model_head"] == "the checkpoint's language-model layers"
    after = COCODR(str(output)).encode_document(["wing flow"])
    assert np.isfinite(after).all()
    assert np.abs(after - untrained[architecture]).max() > 1e-4
