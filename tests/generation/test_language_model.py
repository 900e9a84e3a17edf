"""Language models as generators: real ones, tiny, with their ``generate`` watched."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from beir_cocodr.data.passages import Passage
from beir_cocodr.errors import InputError
from beir_cocodr.generation.language_model import ModelGenerator, load_generator
from beir_cocodr.generation.settings import GenerationOptions

TEXTS = [
    "wing flow shock layer.",
    "library index catalogue journal reader archive.",
    "treaty minister. strike border army premier coalition speech.",
    "voltage.",
    "filter noise valve antenna signal in the circuit with a diode.",
]
PASSAGES = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(TEXTS)]


class Watched:
    """Calls the model's own ``generate`` and keeps what went in and came out."""

    def __init__(self, generator: ModelGenerator, change=lambda output, inputs: output) -> None:
        self.real, self.calls = generator.model.generate, []
        self.change = change
        generator.model.generate = self

    def __call__(self, **inputs):
        output = self.change(self.real(**inputs), inputs)
        self.calls.append((inputs, output))
        return output


def test_the_sampling_settings_reach_the_model(tiny_t5):
    generator = load_generator(str(tiny_t5), GenerationOptions(), "cpu")
    watched = Watched(generator)
    generator.generate(PASSAGES, 0)
    [(inputs, output)] = watched.calls
    settings = inputs["generation_config"]
    assert (settings.do_sample, settings.top_p, settings.top_k) == (True, 0.95, 25)
    assert (settings.num_beams, settings.temperature) == (1, 1.0)
    assert (settings.num_return_sequences, settings.max_new_tokens) == (5, 64)
    assert len(output) == 5 * len(TEXTS)
    assert output.shape[1] <= 65


def test_the_models_own_settings_do_not_survive(tiny_t5):
    """With one token to choose from nothing is random, whatever top k the folder asks for."""
    generator = load_generator(str(tiny_t5), GenerationOptions(top_k=1, max_length=12), "cpu")
    queries = generator.generate(PASSAGES, 0).queries
    assert all(len({query.text for query in found}) == 1 for found in queries)
    inputs = generator.tokenizer(TEXTS[0], return_tensors="pt")
    greedy = generator.model.generate(
        input_ids=inputs["input_ids"],
        num_beams=1,
        do_sample=False,
        max_new_tokens=12,
        max_length=None,
    )
    assert queries[0][0].text == generator.tokenizer.decode(greedy[0, 1:], skip_special_tokens=True)


def test_top_k_bounds_what_is_sampled(tiny_t5):
    """The first tokens of many samples are all among the k most likely ones."""
    generator = load_generator(
        str(tiny_t5), GenerationOptions(top_k=3, top_p=1.0, per_passage=60, max_length=1), "cpu"
    )
    watched = Watched(generator)
    generator.generate(PASSAGES[:1], 0)
    inputs = generator.tokenizer(TEXTS[0], return_tensors="pt")
    start = torch.tensor([[generator.model.config.decoder_start_token_id]])
    with torch.no_grad():
        logits = generator.model(input_ids=inputs["input_ids"], decoder_input_ids=start).logits[
            0, -1
        ]
    likely = set(logits.topk(3).indices.tolist())
    assert set(watched.calls[0][1][:, 1].tolist()) == likely


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_every_query_belongs_to_its_passage(tiny_t5, batch_size):
    options = GenerationOptions(
        per_passage=3, max_length=8, batch_size=batch_size, prefix="the wing: "
    )
    generator = load_generator(str(tiny_t5), options, "cpu")
    watched = Watched(generator)
    made = generator.generate(PASSAGES, 0).queries
    expected, lengths = {}, []
    for inputs, output in watched.calls:
        lengths += inputs["attention_mask"].sum(1).tolist()
        prompts = generator.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
        written = generator.tokenizer.batch_decode(output[:, 1:], skip_special_tokens=True)
        for i, prompt in enumerate(prompts):
            expected[prompt] = written[3 * i : 3 * i + 3]
    assert lengths == sorted(lengths, reverse=True)
    for text, queries in zip(TEXTS, made, strict=True):
        prompt = generator.tokenizer.decode(
            generator.tokenizer("the wing: " + text)["input_ids"], skip_special_tokens=True
        )
        assert [query.text for query in queries] == expected[prompt]


def test_a_shard_is_the_same_whatever_came_before_and_no_other_shard_is(tiny_t5):
    generator = load_generator(str(tiny_t5), GenerationOptions(batch_size=2, max_length=10), "cpu")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = generator.generate(PASSAGES, 3)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's randomness is not touched
    torch.manual_seed(2)
    generator.generate(PASSAGES, 4)
    assert generator.generate(PASSAGES, 3) == first
    assert generator.generate(PASSAGES, 4) != first
    other = GenerationOptions(batch_size=2, max_length=10, seed=7)
    assert load_generator(str(tiny_t5), other, "cpu").generate(PASSAGES, 3) != first


@pytest.mark.parametrize(
    ("written", "query"),
    [("<think>A user?</think> heat of pumps", " heat of pumps"), ("<think>A user", "")],
)
def test_thoughts_are_no_part_of_a_query(tiny_gpt2, written, query):
    """The output of the model is replaced; its tokens are bytes."""
    options = GenerationOptions(per_passage=1, max_length=40)
    generator = load_generator(str(tiny_gpt2), options, "cpu")
    tokens = generator.tokenizer(written + "\n", return_tensors="pt")["input_ids"]
    Watched(generator, lambda _, inputs: torch.cat([inputs["input_ids"], tokens], dim=1))
    [[found]] = generator.generate(PASSAGES[:1], 0).queries
    assert found == (query, False)


@pytest.mark.parametrize("kinds", [None, "titles,claims"])
def test_a_query_does_not_depend_on_the_passages_beside_its_own(kinds, tiny_gpt2, monkeypatch):
    """Three queries of two kinds ask for one of them twice, in different words."""
    monkeypatch.setattr(
        "beir_cocodr.generation.language_model.few_shot_prompt",
        lambda kind=None: f"{kind}: {{passage}}",
    )
    options = GenerationOptions(query_kinds=kinds, per_passage=3, max_length=10, batch_size=4)
    generator = load_generator(str(tiny_gpt2), options, "cpu")
    together = generator.generate(PASSAGES, 0).queries
    alone = [generator.generate([passage], 0).queries[0] for passage in PASSAGES]
    assert alone == together
    # Equal passages get other queries, in the order in which they come.
    twice = generator.generate([*PASSAGES, *PASSAGES], 0).queries
    assert twice[: len(PASSAGES)] == together
    distinct = {query.text for of_passage in twice for query in of_passage}
    assert len(distinct) > 5 * len(PASSAGES)  # of 6 each; the model writes nothing now and then


def test_of_a_causal_model_only_the_first_line_behind_the_prompt_is_kept(tiny_gpt2):
    generator = load_generator(
        str(tiny_gpt2), GenerationOptions(per_passage=2, max_length=30), "cpu"
    )
    assert generator.kind == "causal"
    newline = generator.tokenizer("\n")["input_ids"]
    end = generator.tokenizer.eos_token_id
    assert set(generator.sampling.eos_token_id) == {*newline, end}
    planted = "a query\nand more"

    def plant(output, inputs):
        prompt = inputs["input_ids"].repeat_interleave(2, 0)
        ids = torch.tensor(generator.tokenizer(planted)["input_ids"] + [end]).expand(
            len(prompt), -1
        )
        return torch.cat([prompt, ids], 1)

    watched = Watched(generator)
    plain = generator.generate(PASSAGES, 0)
    [(inputs, output)] = watched.calls
    prompts = [generator.template.replace("{passage}", text) for text in TEXTS]
    read = generator.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert sorted(read) == sorted(
        prompts
    )  # padded on the left, so that each ends in its last token
    assert (inputs["attention_mask"][:, -1] == 1).all()
    for text, queries in zip(TEXTS, plain.queries, strict=True):
        row = read.index(generator.template.replace("{passage}", text))
        width = inputs["input_ids"].shape[1]
        for j, query in enumerate(queries):
            written = generator.tokenizer.decode(
                output[2 * row + j, width:], skip_special_tokens=True
            )
            assert query.text == written.split("\n")[0]
    Watched(generator, plant)
    assert {query.text for found in generator.generate(PASSAGES, 0).queries for query in found} == {
        "a query"
    }


def test_what_did_not_end_by_itself_is_cut(tiny_gpt2):
    generator = load_generator(
        str(tiny_gpt2), GenerationOptions(per_passage=40, max_length=12), "cpu"
    )
    watched = Watched(generator)
    [queries] = generator.generate(PASSAGES[:1], 0).queries
    [(inputs, output)] = watched.calls
    ends = set(generator.sampling.eos_token_id)
    whole = [not ends & set(row) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]
    assert [query.cut for query in queries] == whole
    assert any(whole)


def test_a_passage_that_does_not_fit_is_cut_and_counted_and_the_prompt_is_not(tiny_gpt2):
    long = "wing " * 200
    passages = [*PASSAGES, Passage(9, 0, 0, len(long), long, "")]
    generator = load_generator(
        str(tiny_gpt2), GenerationOptions(per_passage=1, max_length=20), "cpu"
    )
    watched = Watched(generator)
    assert generator.generate(passages, 0).counts == {"passages_cut": 1}
    read = generator.tokenizer.batch_decode(
        watched.calls[0][0]["input_ids"], skip_special_tokens=True
    )
    [cut] = [prompt for prompt in read if prompt.count("wing") > 1]
    assert cut.startswith("Passage: wing ")
    assert cut.endswith("wing\nSearch query:")
    assert 480 < len(cut) <= 512 - 20
    with pytest.raises(InputError, match=r"512 tokens.*few"):
        load_generator(str(tiny_gpt2), GenerationOptions(max_length=500), "cpu")


def test_a_passage_of_megabytes_is_cut_before_it_is_tokenised_and_counted(tiny_gpt2):
    generator = load_generator(
        str(tiny_gpt2), GenerationOptions(per_passage=1, max_length=20), "cpu"
    )
    count, read = generator.counter.count, []
    generator.counter = SimpleNamespace(
        count=lambda texts: read.extend(map(len, texts)) or count(texts)
    )
    texts = ["wing " * 1_000_000, " " * 1_000_000 + "wing"]
    passages = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(texts)]
    assert generator.generate(passages, 0).counts == {"passages_cut": 2}
    assert max(read) < 64 * 512 + 100


def test_prefix_and_prompt(tiny_t5, tiny_gpt2, tmp_path):
    named = tmp_path / "all-with_prefix-t5"
    shutil.copytree(tiny_t5, named)
    assert (
        load_generator(str(named), GenerationOptions(), "cpu").template == "text2query: {passage}"
    )
    assert load_generator(str(named), GenerationOptions(prefix=""), "cpu").template == "{passage}"
    options = GenerationOptions(prefix="x ", prompt="About {passage}, one asks")
    assert load_generator(str(tiny_gpt2), options, "cpu").template == "x About {passage}, one asks"
    with pytest.raises(InputError, match=r"\{passage\} once"):
        GenerationOptions(prompt="no place")


def encoder_of(tiny_t5, folder):
    from transformers import T5ForConditionalGeneration

    encoder = T5ForConditionalGeneration.from_pretrained(tiny_t5).get_encoder()
    shutil.copytree(tiny_t5, folder)
    weights = {f"encoder.{name}": weight for name, weight in encoder.state_dict().items()}
    from safetensors.torch import save_file

    save_file({k: v.clone() for k, v in weights.items()}, folder / "model.safetensors")
    return folder


def test_models_that_cannot_write_are_refused(tiny_bert, tiny_mlm, tiny_t5, tiny_gpt2, tmp_path):
    for encoder in (tiny_bert, tiny_mlm):
        with pytest.raises(InputError, match=r"bert .*decoder"):
            load_generator(str(encoder), GenerationOptions(), "cpu")
    with pytest.raises(InputError, match=r"weights .*decoder"):
        load_generator(str(encoder_of(tiny_t5, tmp_path / "half")), GenerationOptions(), "cpu")
    with pytest.raises(InputError, match=r"cannot be loaded.*'lexical'"):
        load_generator(str(tmp_path / "nothing"), GenerationOptions(), "cpu")
    dumb = tmp_path / "dumb"
    shutil.copytree(tiny_gpt2, dumb)
    for path in dumb.glob("token*"):
        path.unlink()
    with pytest.raises(InputError, match="vocabulary"):
        load_generator(str(dumb), GenerationOptions(), "cpu")
    (dumb / "model.safetensors").write_bytes(b"torn" * 100)
    shutil.copy(tiny_gpt2 / "tokenizer.json", dumb)
    with pytest.raises(InputError, match=r"cannot be loaded.*'lexical'"):
        load_generator(str(dumb), GenerationOptions(), "cpu")
    with pytest.raises(InputError, match="cannot"):
        load_generator(str(tiny_t5), GenerationOptions(), "cuda:93")


def test_a_model_whose_probabilities_are_no_numbers_is_named(tiny_t5):
    generator = load_generator(str(tiny_t5), GenerationOptions(max_length=4), "cpu")
    torch.nn.init.constant_(generator.model.lm_head.weight, float("nan"))
    with pytest.raises(InputError, match="computes probabilities that are no numbers"):
        generator.generate(PASSAGES, 0)


def test_the_description_tells_models_apart(tiny_t5, tiny_gpt2, tmp_path):
    first, again, other = (
        load_generator(str(folder), GenerationOptions(), "cpu").describe()
        for folder in (tiny_t5, tiny_t5, tiny_gpt2)
    )
    assert first == again
    assert first["sha256"] != other["sha256"]
    assert first["dtype"] == "float32"
    assert json.loads(json.dumps(first)) == first
    assert first["sampling"]["top_k"] == 25


def test_bfloat16_on_a_cpu_only_if_it_is_asked_for(tiny_gpt2):
    exact, rounded = (
        load_generator(str(tiny_gpt2), GenerationOptions(max_length=10, bf16=bf16), "cpu")
        for bf16 in (False, True)
    )
    assert (exact.model.dtype, rounded.model.dtype) == (torch.float32, torch.bfloat16)
    assert exact.describe() != rounded.describe()
    assert "bf16" not in exact.options.generation()
    assert rounded.options.generation()["bf16"] is True
    first = rounded.generate(PASSAGES, 0)
    assert first == rounded.generate(PASSAGES, 0)
    assert np.shape(first.queries)[:2] == (5, 5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bfloat16_on_a_gpu(tiny_t5):
    generator = load_generator(str(tiny_t5), GenerationOptions(max_length=10))
    assert generator.model.dtype == torch.bfloat16
    assert generator.model.device.type == "cuda"
    first = generator.generate(PASSAGES, 0)
    assert first == generator.generate(PASSAGES, 0)
    assert np.shape(first.queries)[:2] == (5, 5)


def test_a_model_that_is_not_whole_or_whose_settings_are_not_its_own(tiny_gpt2, tmp_path):
    lost = shutil.copytree(tiny_gpt2, tmp_path / "lost")
    weights = load_file(lost / "model.safetensors")
    name = next(name for name in weights if "h.1.mlp" in name)
    del weights[name]
    save_file(weights, lost / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"missing: .*{name}"):
        load_generator(str(lost), GenerationOptions(), "cpu")
    for number, (file, changes) in enumerate(
        [
            ("generation_config.json", {"pad_token_id": "none"}),
            ("config.json", {"n_layer": 3}),
            ("config.json", {"vocab_size": 12}),
            ("tokenizer.json", {"model": None}),
        ]
    ):
        folder = shutil.copytree(tiny_gpt2, tmp_path / str(number))
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        with pytest.raises(InputError, match=str(folder)) as caught:
            load_generator(str(folder), GenerationOptions(), "cpu")
        assert "\n" not in str(caught.value)


def test_settings_that_fit_a_single_text_are_refused(tiny_t5, tmp_path):
    folder = shutil.copytree(tiny_t5, tmp_path / "t5")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder_start_token_id": [7]}))
    with pytest.raises(InputError, match=f"{folder}.*decoder_start_token_id"):
        load_generator(str(folder), GenerationOptions(), "cpu")


@pytest.mark.parametrize("prompt", [None, "<|endoftext|>Passage: {passage}\nQuery:"])
def test_special_tokens_of_a_passage_are_text_and_those_of_the_prompt_are_meant(prompt, tiny_gpt2):
    generator = load_generator(
        str(tiny_gpt2), GenerationOptions(prompt=prompt, max_length=4), "cpu"
    )
    watched = Watched(generator)
    text = "wing<|endoftext|>flow"
    generator.generate([Passage(0, 0, 0, len(text), text, "")], 0)
    [(inputs, _)] = watched.calls
    ids = inputs["input_ids"][0].tolist()
    assert ids.count(generator.tokenizer.eos_token_id) == (0 if prompt is None else 1)
    assert "endoftext" in generator.tokenizer.decode(ids, skip_special_tokens=True)
