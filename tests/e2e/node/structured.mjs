// Structured output and tool calls as applications of the Node SDK write them: zod schemas, parse, the stream helper, runTools.
// Prints one JSON object; tests/e2e/test_node_sdk.py judges it.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 100_000 });
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const common = { model, messages, temperature: 0, max_tokens: 200 };

const Answer = z.object({
  kind: z.enum(["sun", "rain"]),
  days: z.array(z.object({ name: z.string().max(8), degrees: z.number().int().min(-9).max(40) })).min(1).max(2),
});
const GetWeather = z.object({ city: z.string().max(20), unit: z.enum(["celsius", "fahrenheit"]) });

const heard = {};

const parsed = await client.chat.completions.parse({ ...common, response_format: zodResponseFormat(Answer, "answer") });
heard.parsed = Answer.parse(parsed.choices[0].message.parsed);
heard.parsed_text = parsed.choices[0].message.content;

const stream = client.chat.completions.stream({ ...common, response_format: zodResponseFormat(Answer, "answer") });
heard.streamed = Answer.parse((await stream.finalChatCompletion()).choices[0].message.parsed);

const weather = (seen) => zodFunction({
  name: "get_weather",
  description: "The weather of a city",
  parameters: GetWeather,
  function: (args) => {
    seen.push(GetWeather.parse(args));
    return "18 degrees and sun";
  },
});
const named = { type: "function", function: { name: "get_weather" } };

heard.called = [];
const runner = client.chat.completions.runTools({ ...common, tools: [weather(heard.called)], tool_choice: named, parallel_tool_calls: false });
await runner.done();
heard.roles = runner.messages.map((message) => message.role);

heard.called_streaming = [];
const pieces = [];
const streamed = client.chat.completions.runTools({
  ...common, tools: [weather(heard.called_streaming)], tool_choice: named, parallel_tool_calls: false, stream: true,
});
streamed.on("tool_calls.function.arguments.delta", (event) => pieces.push(event.arguments_delta));
await streamed.done();
heard.argument_pieces = pieces.length;
heard.streamed_roles = streamed.messages.map((message) => message.role);

// The tool's answer goes back and the model goes on in words.
const goes_on = await client.chat.completions.create({
  ...common, max_tokens: 20, messages: runner.messages, tools: [weather([])], tool_choice: "none",
});
heard.goes_on = goes_on.choices[0].message.content;

try {
  await client.chat.completions.create({
    ...common,
    response_format: { type: "json_schema", json_schema: { name: "x", schema: { type: "object", unevaluatedProperties: false } } },
  });
} catch (error) {
  heard.refused = [error.constructor.name, error.status, error.message.includes("unevaluatedProperties")];
}

console.log(JSON.stringify(heard));
