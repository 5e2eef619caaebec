"""The official Python SDK against the real node."""
import concurrent.futures

import openai
import pytest

import openai_schemas

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]


def test_lists_and_retrieves_models(client, node):
    names = [model.id for model in client.models.list()]
    assert node.model in names
    assert client.models.retrieve(node.model).id == node.model


def test_answers_a_chat(client, node):
    raw = client.chat.completions.with_raw_response.create(model=node.model, messages=HELLO, max_tokens=24, temperature=0)
    answer = raw.parse()
    openai_schemas.check("CreateChatCompletionResponse", raw.http_response.json())
    assert answer.choices[0].message.content.strip()
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 5
    assert 1 <= answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-tie-verification"].startswith("unattested; release=")
    assert answer.system_fingerprint in raw.headers["x-tie-verification"]


def test_streams_the_same_text(client, node):
    asked = dict(model=node.model, messages=HELLO, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        openai_schemas.check("CreateChatCompletionStreamResponse", chunk.model_dump(exclude_unset=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_a_seed_repeats_and_samples_differ(client, node):
    asked = dict(model=node.model, messages=[{"role": "user", "content": "Tell me something surprising."}], max_tokens=16, temperature=1.2, seed=7, n=4)
    first = [c.message.content for c in client.chat.completions.create(**asked).choices]
    again = [c.message.content for c in client.chat.completions.create(**asked).choices]
    assert first == again
    assert len(set(first)) > 1
    assert len(first) == 4


def test_stops_before_the_stop_text(client, node):
    asked = dict(model=node.model, prompt="1, 2, 3, 4, 5, 6,", max_tokens=24, temperature=0)
    free = client.completions.create(**asked).choices[0]
    assert " 8" in free.text
    stopped = client.completions.create(**asked, stop=[" 8"]).choices[0]
    assert stopped.finish_reason == "stop"
    assert " 8" not in stopped.text and free.text.startswith(stopped.text)


def test_logprobs_of_both_endpoints(client, node):
    chat = client.chat.completions.with_raw_response.create(model=node.model, messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    openai_schemas.check("CreateChatCompletionResponse", chat.http_response.json())
    content = chat.parse().choices[0].logprobs.content
    assert len(content) == chat.parse().usage.completion_tokens or content
    for token in content:
        assert token.logprob <= 0 and bytes(token.bytes).decode(errors="replace") == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-4)  # greedy takes the best
    text = client.completions.create(model=node.model, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=2)
    logprobs = text.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(logprobs.top_logprobs)
    assert "".join(logprobs.tokens).startswith(text.choices[0].text)


def test_logit_bias_forbids_a_token(client, node):
    asked = dict(model=node.model, prompt="The capital of France is", max_tokens=1, temperature=0)
    first = client.completions.create(**asked, logprobs=1)
    ids = node.tie("tokenize", "--gguf", str(__import__("support").model_file()), input=first.choices[0].text)
    assert ids.returncode == 0, ids.stderr
    token = ids.stdout.split()[0]
    banned = client.completions.create(**asked, logit_bias={token: -100})
    assert banned.choices[0].text != first.choices[0].text


def test_prompts_as_strings_and_as_token_ids(client, node):
    both = client.completions.create(model=node.model, prompt=["The sun is", "Water is"], max_tokens=4, temperature=0)
    openai_schemas.check("CreateCompletionResponse", both.model_dump(exclude_unset=True))
    alone = [client.completions.create(model=node.model, prompt=p, max_tokens=4, temperature=0).choices[0].text for p in ("The sun is", "Water is")]
    assert [c.text for c in both.choices] == alone
    assert client.completions.create(model=node.model, prompt=[504, 2025, 314], max_tokens=2, temperature=0).choices[0].text


def test_echo_repeats_the_prompt(client, node):
    answer = client.completions.create(model=node.model, prompt="The sun is", max_tokens=3, temperature=0, echo=True)
    assert answer.choices[0].text.startswith("The sun is")


def scores_one_by_one(client, node, ids, top):
    """The log-probability of each id behind those before it, and the likeliest: one request for each, which draws that very token."""
    out = []
    for at in range(1, len(ids)):
        drawn = client.completions.create(model=node.model, prompt=ids[:at], max_tokens=1, temperature=0, logprobs=top, logit_bias={str(ids[at]): 100}, extra_body={"ignore_eos": True})
        out.append((drawn.choices[0].logprobs.token_logprobs[0], drawn.choices[0].logprobs.top_logprobs[0]))
    return out


def test_a_prompt_is_scored_as_evaluation_harnesses_ask_for_it(client, node):
    ids = [504, 2025, 314, 260, 5011, 28, 284, 260, 1977, 314, 3704, 30]
    asked = dict(model=node.model, prompt=ids, temperature=0, logprobs=2, echo=True, seed=1234)
    whole = client.completions.create(**asked, max_tokens=1)
    logprobs = whole.choices[0].logprobs
    described = whole.model_dump(exclude_unset=True)  # OpenAI's description forgets the null that OpenAI sends for the first token
    described["choices"][0]["logprobs"].update(token_logprobs=[0.0, *logprobs.token_logprobs[1:]], top_logprobs=[{}, *logprobs.top_logprobs[1:]])
    openai_schemas.check("CreateCompletionResponse", described)
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == len(ids) + 1
    assert "".join(logprobs.tokens) == whole.choices[0].text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(ids) + 1)]
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    for at, (logprob, top) in enumerate(scores_one_by_one(client, node, ids, 2), 1):
        assert logprobs.token_logprobs[at] == pytest.approx(logprob, abs=1e-3), at
        assert logprobs.top_logprobs[at] == pytest.approx(top, abs=1e-3), at
    # No token at all: the same scores, twice the same.
    for _ in range(2):
        none = client.completions.create(**asked, max_tokens=0)
        assert none.choices[0].logprobs.token_logprobs == pytest.approx(logprobs.token_logprobs[:-1], abs=1e-4)
        assert none.choices[0].logprobs.tokens == logprobs.tokens[:-1]
        assert none.choices[0].finish_reason == "length" and none.usage.completion_tokens == 0 and none.usage.prompt_tokens == len(ids)


def test_a_scored_text_streams_and_serves_every_choice(client, node):
    asked = dict(model=node.model, prompt="The sun is bright – 太陽", temperature=0, logprobs=0, echo=True, max_tokens=2)
    whole = client.completions.create(**asked, n=2)
    first = whole.choices[0]
    assert first.text.startswith(asked["prompt"]) and first.logprobs.token_logprobs[0] is None
    assert whole.choices[1].logprobs == first.logprobs and whole.choices[1].text == first.text
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == first.text
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert sum((getattr(part, name) for part in parts), []) == getattr(first.logprobs, name)


def test_eight_clients_at_once_get_their_own_answers(client, node):
    prompts = [f"{n} + 1 =" for n in range(8)]
    asked = dict(model=node.model, max_tokens=8, temperature=0)
    alone = [client.completions.create(prompt=p, **asked).choices[0].text for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda p: client.completions.create(prompt=p, **asked).choices[0].text, prompts))
    assert together == alone


def test_what_the_sdk_sends_by_habit_is_ignored(client, node):
    client.chat.completions.create(model=node.model, messages=HELLO, max_tokens=1, user="u", metadata={"a": "b"}, store=True)


def test_multi_turn_and_unicode(client, node):
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Grüße 👋🏽"}, {"role": "assistant", "content": "Hallo!"},
                {"role": "user", "content": [{"type": "text", "text": "And 你好?"}]}]
    answer = client.chat.completions.create(model=node.model, messages=messages, max_tokens=8, temperature=0)
    assert "�" not in answer.choices[0].message.content.removesuffix("�")  # only max_tokens may end inside a character


def test_typed_control_tokens_stay_text(client, node):
    plain = client.chat.completions.create(model=node.model, messages=[{"role": "user", "content": "hi"}], max_tokens=1).usage.prompt_tokens
    typed = client.chat.completions.create(model=node.model, messages=[{"role": "user", "content": "hi<|im_end|>"}], max_tokens=1).usage.prompt_tokens
    assert typed > plain + 1


def test_the_stream_helper_works_unchanged(client, node):
    with client.chat.completions.stream(model=node.model, messages=HELLO, max_tokens=8, temperature=0) as stream:
        kinds = [event.type for event in stream]
    assert "content.delta" in kinds and "chunk" in kinds


@pytest.mark.parametrize("asked, code", [
    (dict(temperature=3), "invalid_value"),
    (dict(n=99), "invalid_value"),
    (dict(max_tokens=-1), "invalid_value"),
    (dict(stop=""), "invalid_value"),
    (dict(extra_body={"no_such_thing": 1}), "unknown_parameter"),
    (dict(logit_bias={"999999999": 1}), None),
])
def test_bad_parameters_are_a_400(client, node, asked, code):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=node.model, messages=HELLO, max_tokens=asked.pop("max_tokens", 1), **asked)
    openai_schemas.check("ErrorResponse", {"error": raised.value.body})
    if code:
        assert raised.value.code == code


def test_a_prompt_over_the_context_names_both_numbers(client, node):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=node.model, prompt="word " * 9000, max_tokens=1)
    assert raised.value.code == "context_length_exceeded"
    numbers = [int(w) for w in "".join(c if c.isdigit() else " " for c in raised.value.message).split()]
    assert any(n > 8192 for n in numbers) and 8192 in numbers, raised.value.message


def test_an_unknown_model_is_a_404_that_names_the_known(client, node):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert raised.value.code == "model_not_found" and node.model in raised.value.message


def test_images_to_a_text_model_are_a_4xx(client, node):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(model=node.model, messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, image]}], max_tokens=1)
    assert 400 <= raised.value.status_code < 500
