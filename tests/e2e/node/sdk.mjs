// Uses the official Node SDK as an application would and prints what it got as one JSON object. Arguments: base URL, model.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const asked = { model, messages: [{ role: "user", content: "Say hello in one short sentence." }], max_tokens: 16, temperature: 0 };

async function errorOf(promise) {
  try {
    await promise;
    return ["none"];
  } catch (error) {
    return [error.constructor.name, error.status, error.code];
  }
}

const out = {};
out.models = (await client.models.list()).data.map((m) => m.id);
const { data, response } = await client.chat.completions.create(asked).withResponse();
out.chat = data;
out.verification = response.headers.get("x-tie-verification");

out.streamed = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })) {
  out.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) out.usage = chunk.usage;
}

out.helper = await client.chat.completions.stream(asked).finalContent();
out.completion = (await client.completions.create({ model, prompt: "The sun is", max_tokens: 4, temperature: 0 })).choices[0].text;
out.errors = {
  model: await errorOf(client.chat.completions.create({ ...asked, model: "gpt-4" })),
  temperature: await errorOf(client.chat.completions.create({ ...asked, temperature: 9 })),
};

const controller = new AbortController();
const long = await client.chat.completions.create({ ...asked, max_tokens: 400, stream: true }, { signal: controller.signal });
let pieces = 0;
try {
  for await (const _ of long) {
    if (++pieces === 3) controller.abort();
  }
} catch (error) {
  if (error.name !== "AbortError" && !(error instanceof OpenAI.APIUserAbortError)) throw error;
}
out.aborted = controller.signal.aborted && pieces < 100;
out.after_abort = (await client.chat.completions.create({ ...asked, max_tokens: 2 })).choices[0].message.content;
console.log(JSON.stringify(out));
