"""Structured output and tool calls as applications ask for them, against the real node. The model is small: what is tried is that it cannot
but follow, not that it is clever."""
import json
import re

import openai
import pydantic
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The present time"}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(client, node, **options):
    return client.chat.completions.create(model=node.model, messages=options.pop("messages", ASK), temperature=0, max_tokens=options.pop("max_tokens", 200), **options)


def schema_format(schema, **rest):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **rest}}


def check_weather(call):
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert list(arguments) == ["city", "unit"]
    assert isinstance(arguments["city"], str) and arguments["unit"] in ("celsius", "fahrenheit")


def test_json_object(client, node):
    answer = ask(client, node, response_format={"type": "json_object"}, max_tokens=300)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


def test_json_schema_in_the_order_of_its_properties(client, node):
    properties = {"zone": {"enum": ["north", "south"]}, "apples": {"type": "integer", "minimum": 0, "maximum": 9}, "brief": {"type": "string", "maxLength": 12}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    answer = ask(client, node, response_format=schema_format(schema, strict=True))
    assert answer.choices[0].finish_reason == "stop"
    value = json.loads(answer.choices[0].message.content)
    assert list(value) == list(properties)
    assert value["zone"] in ("north", "south") and 0 <= value["apples"] <= 9 and len(value["brief"]) <= 12


class Step(pydantic.BaseModel):
    kind: str = pydantic.Field(max_length=10)
    done: bool


class Plan(pydantic.BaseModel):
    title: str = pydantic.Field(max_length=20)
    steps: list[Step] = pydantic.Field(min_length=1, max_length=2)


def test_parse_gives_a_pydantic_object(client, node):
    answer = client.beta.chat.completions.parse(model=node.model, messages=ASK, response_format=Plan, temperature=0, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Plan)
    assert 1 <= len(answer.choices[0].message.parsed.steps) <= 2


def test_the_stream_helper_parses_too(client, node):
    with client.beta.chat.completions.stream(model=node.model, messages=ASK, response_format=Plan, temperature=0, max_tokens=300) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Plan)


def test_guided_extensions(client, node):
    assert re.fullmatch(r"\d{3}-[a-c]{2}", ask(client, node, extra_body={"guided_regex": r"\d{3}-[a-c]{2}"}).choices[0].message.content)
    assert ask(client, node, extra_body={"guided_choice": ["yes", "no"]}).choices[0].message.content in ("yes", "no")
    assert ask(client, node, extra_body={"guided_grammar": 'start: "a" ("b" | "c")~3'}).choices[0].message.content[0] == "a"
    value = json.loads(ask(client, node, extra_body={"guided_json": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}}).choices[0].message.content)
    assert len(value) == 2 and all(isinstance(v, bool) for v in value)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call(client, node, choice):
    answer = ask(client, node, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    (call,) = answer.choices[0].message.tool_calls
    assert call.id.startswith("call_") and call.type == "function"
    check_weather(call)


def test_a_forced_call_streamed(client, node):
    whole = ask(client, node, tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "get_weather"}}, parallel_tool_calls=False)
    calls, finish, usage, text = {}, None, None, ""
    for chunk in ask(client, node, tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "get_weather"}}, parallel_tool_calls=False,
                     stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            text += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                if delta.index not in calls:
                    assert delta.id and delta.function.name
                    calls[delta.index] = [delta.function.name, ""]
                else:
                    assert not delta.id and not delta.function.name
                calls[delta.index][1] += delta.function.arguments or ""
    assert finish == "tool_calls" and usage.completion_tokens > 0 and text == ""
    expected = whole.choices[0].message.tool_calls[0].function
    assert calls == {0: [expected.name, expected.arguments]}


def test_several_calls_are_numbered(client, node):
    answer = ask(client, node, tools=[CLOCK], tool_choice="required", max_tokens=120)
    names = [call.function.name for call in answer.choices[0].message.tool_calls]
    assert names and set(names) == {"now"}
    assert len({call.id for call in answer.choices[0].message.tool_calls}) == len(names)


def test_auto_gives_words_or_sound_calls(client, node):
    message = ask(client, node, tools=[WEATHER], max_tokens=120).choices[0].message
    for call in message.tool_calls or []:
        assert call.function.name == "get_weather"
    assert message.content or message.tool_calls
    assert ask(client, node, tools=[WEATHER], tool_choice="none", max_tokens=20).choices[0].message.tool_calls is None


def test_a_limit_inside_the_arguments_ends_with_length(client, node):
    answer = ask(client, node, tools=[WEATHER], tool_choice="required", max_tokens=22)
    assert answer.choices[0].finish_reason == "length"


def test_a_result_goes_back(client, node):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\", \"unit\": \"celsius\"}"}}
    messages = ASK + [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees, <tool_call>"}]
    assert ask(client, node, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=20).choices[0].message.content


def test_what_cannot_be_enforced_is_refused_by_name(client, node):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, node, response_format=schema_format({"type": "object", "unevaluatedProperties": False}))
    assert refused.value.param == "response_format" and "unevaluatedProperties" in str(refused.value)
    broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, node, tools=[WEATHER, broken])
    assert refused.value.param == "tools[1].function.parameters" and "not" in str(refused.value)
    for name, value in {"guided_regex": "((", "guided_grammar": "start: missing"}.items():
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, node, extra_body={name: value})
        assert refused.value.param == name
