"""compare with a real language model as its judge, behind a real server of this machine.

The server is a small one over transformers. Its model is a tiny one that is taught here to grade,
or SmolLM2 where it is installed. What the same model says as ``hf:MODEL`` is the measure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from chat_server import MODEL, ChatCompletions, ChatModel, smollm2_file
from conftest import TOPICS, sentences, write_beir
from http_servers import serving

from beir_cocodr import CompareOptions, compare
from beir_cocodr.cli.__main__ import main
from beir_cocodr.endpoints import KEY_VARIABLE
from beir_cocodr.evaluation.judge.grade_cache import GradeCache
from beir_cocodr.evaluation.judge.prompt import grading_prompt, parse_grade
from beir_cocodr.evaluation.results import ComparisonRecord

#: Special tokens of the tiny models: the first ends what someone says.
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]

CONVERSATION = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

#: The answers that state a grade. SmolLM2 gives one only if its server allows no other, as servers
#: with grammars can.
ANSWERS = tuple(f"Grade: {grade}" for grade in range(4))


@dataclass(frozen=True)
class Lesson:
    """A prompt, and the answer that a tiny model is taught."""

    prompt: str
    answer: str


def draw_lessons(count: int) -> list[Lesson]:
    """Draw prompts about documents of the four topics, whose numbers are the grades."""
    rng = np.random.default_rng(0)
    lessons = []
    for _ in range(count):
        topic = int(rng.integers(len(TOPICS)))
        asked = TOPICS[int(rng.integers(len(TOPICS)))]
        query = " ".join(rng.choice(asked, 4))
        document = sentences(rng, topic, int(rng.integers(2, 7)))
        lessons.append(Lesson(grading_prompt(query, document), f"Grade: {topic}<|end|>"))
    return lessons


def train_tokenizer(texts: list[str]):
    """Return a tokenizer of 700 pieces of some texts, with each digit on its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL,
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[1:],
    )
    fast.chat_template = CONVERSATION
    return fast


def make_model(tokenizer):
    """Return a Llama of one layer with random weights, which reads at most 640 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=640,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def teach(model, tokenizer, lessons: list[Lesson]) -> None:
    """Train a model on the answers alone, eight lessons at a time, until it has learnt them."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for start in range(0, len(lessons), 8):
        rows = []
        targets = []
        for lesson in lessons[start : start + 8]:
            said = [{"role": "user", "content": lesson.prompt}]
            begun = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            prompt, answer = tokenizer([begun, lesson.answer], add_special_tokens=False)[
                "input_ids"
            ]
            rows.append(torch.tensor(prompt + answer))
            targets.append(torch.tensor([-100] * len(prompt) + answer))
        inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
        # Position i predicts token i + 1, and only the answers are learnt.
        is_answer = labels[:, 1:] != -100
        hidden = model.model(input_ids=inputs).last_hidden_state[:, :-1][is_answer]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[:, 1:][is_answer])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 0.05:
            break


def save_chat_model(folder: Path, model, tokenizer) -> ChatModel:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ChatModel.load(folder)


@pytest.fixture(scope="module")
def lessons():
    return draw_lessons(1_200)


@pytest.fixture(scope="module")
def tokenizer(lessons):
    return train_tokenizer([lesson.prompt for lesson in lessons[:200]])


@pytest.fixture(scope="module")
def taught(tmp_path_factory, lessons, tokenizer):
    """A tiny model that grades a document by its topic."""
    model = make_model(tokenizer)
    teach(model, tokenizer, lessons)
    return save_chat_model(tmp_path_factory.mktemp("taught"), model, tokenizer)


@pytest.fixture(scope="module")
def untaught(tmp_path_factory, tokenizer):
    """A tiny model with random weights, which writes no grades."""
    folder = tmp_path_factory.mktemp("untaught")
    return save_chat_model(folder, make_model(tokenizer), tokenizer)


@pytest.fixture(scope="module")
def smollm2():
    return ChatModel.load(smollm2_file())


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def grades_kept(file: Path) -> dict[str, int | None]:
    """Return the grade of each pair in a file of the cache."""
    lines = file.read_text().splitlines()
    return {line["pair"]: line["grade"] for line in map(json.loads, lines)}


def grades_written(completions: ChatCompletions) -> dict[str, int | None]:
    """Return the grade of each pair that the model behind a server wrote."""
    grades = {}
    for prompt, answer in completions.written:
        parts = re.findall(r"<(?:query|document)>\n(.*?)\n</", prompt, re.DOTALL)
        grades[GradeCache.key(*parts)] = parse_grade(answer)
    return grades


def decisions(record: ComparisonRecord) -> tuple[object, ...]:
    """Return all that a comparison decides."""
    return record.pairs, record.ranking, record.best


@dataclass(frozen=True)
class Case:
    """A model behind the server, and what it judges.

    Attributes:
        model: The fixture of the model.
        answers: The only answers that the server allows; none: it allows any.
        labelled: The queries with labels. As many have none, and there are two documents for each.
        judged: The queries that are judged, of both kinds.
    """

    model: str
    answers: tuple[str, ...]
    labelled: int
    judged: int


@pytest.fixture(
    params=[
        Case("taught", answers=(), labelled=10, judged=13),
        Case("smollm2", answers=ANSWERS, labelled=2, judged=3),
    ],
    ids=lambda case: case.model,
)
def case(request):
    return request.param


@pytest.fixture
def completions(case, request):
    return ChatCompletions(request.getfixturevalue(case.model), case.answers)


@pytest.fixture
def folder(case, tmp_path):
    return str(write_beir(tmp_path / "corpus", documents=2 * case.labelled, queries=case.labelled))


@pytest.fixture
def models(tiny_cosine):
    return ["bm25", str(tiny_cosine)]


@pytest.mark.timeout(1800)
def test_a_served_model_judges_as_the_same_model_loaded_here(
    case, completions, folder, models, tmp_path
):
    with serving(completions) as server:
        options = CompareOptions(judge=f"{server.url}#{MODEL}", judge_queries=case.judged)
        record = compare(models, folder, output=tmp_path / "out", options=options)
        asked = len(server.asked)
        again = compare(models, folder, options=options).judge
        assert len(server.asked) == asked
    assert ComparisonRecord.read(tmp_path / "out" / "comparison.json") == record
    findings = record.judge
    assert findings.judge == f"{server.url}/v1#{MODEL}"
    assert (findings.queries, findings.labelled) == (case.judged, case.labelled)
    # Every pair was sent once, and the model gave each a grade.
    assert findings.pairs == asked == len(completions.written)
    assert (findings.kept, findings.refused, findings.unreadable) == (0, 0, 0)
    assert findings.tokens == completions.tokens
    file = GradeCache(findings.judge).file
    grades = grades_kept(file)
    assert len(grades) == findings.pairs
    assert grades == grades_written(completions)
    if case.model == "taught":
        assert set(grades.values()) == {0, 1, 2, 3}

    # The paired test of the labels decides, as it does without a judge.
    assert decisions(record) == decisions(compare(models, folder))

    # The second run had all of it from the cache.
    assert again == replace(findings, kept=findings.pairs, tokens=0, seconds=0.0)

    local = f"hf:{completions.chat.source}"
    here = compare(models, folder, options=replace(options, judge=local)).judge
    [other] = set(file.parent.glob("*.jsonl")) - {file}
    assert grades_kept(other) == grades
    costs = {"tokens": findings.tokens, "seconds": findings.seconds}
    assert replace(here, judge=findings.judge, **costs) == findings


@pytest.mark.timeout(1800)
def test_a_served_model_decides_nothing_without_labels(case, completions, folder, models):
    options = CompareOptions(labels=False, samples=20)
    before = compare(models, folder, options=options)
    with serving(completions) as server:
        judge = f"{server.url}#{MODEL}"
        judged = replace(options, judge=judge, judge_queries=case.judged)
        record = compare(models, folder, options=judged)
    assert record.judge.pairs == len(completions.written) > 0
    assert record.judge.agreement is None
    assert record.judge.differences[0].joined is None
    assert decisions(record) == decisions(before)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["untaught", "smollm2"])
def test_a_served_model_that_writes_no_grade_is_refused_until_its_answers_are_forgotten(
    model, beir_folder, tmp_path, capsys, request
):
    """Its user sees the first answer; the same command asks nothing until the cache is cleared.

    SmolLM2, which may write anything here, repeats a sentence of the prompt.
    """
    completions = ChatCompletions(request.getfixturevalue(model), most_tokens=16)
    command = ["compare", "bm25", "lucene-bm25", "--dataset", str(beir_folder)]
    with serving(completions) as server:
        judge = f"{server.url}/v1#{MODEL}"
        command += ["--judge", judge, "--judge-queries", "1", "--output", str(tmp_path / "out")]
        for _ in range(2):
            with pytest.raises(SystemExit) as status:
                main(command)
            assert status.value.code == 2
            printed = capsys.readouterr().err
            asked = len(completions.written)
            assert f"judge {judge} gave no grade in {asked} answers; the first is" in printed
            assert any(repr(answer) in printed for _, answer in completions.written)
            assert "name a model that follows instructions" in printed
            assert "forget these answers with cache --clear judge" in printed
        assert len(server.asked) == asked == len(dict(completions.written))
        for words in (["cache", "--clear", "judge"], command):
            with pytest.raises(SystemExit):
                main(words)
    assert len(server.asked) == 2 * asked
    assert not (tmp_path / "out" / "comparison.json").exists()
