// SPDX-License-Identifier: Apache-2.0
// Scenarios with the official OpenAI client for Node: a line "BASE-URL SCENARIO MODEL" in, a line of JSON out.
// The client is found through KVROUTE_NODE_MODULES, the folder above node_modules.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.KVROUTE_NODE_MODULES + "/");
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));

let client, model;
const talk = [
  { role: "system", content: "You are terse. Réponds « vite » 🎈." },
  { role: "user", content: "Say something." },
];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } }];

const scenarios = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: talk, max_tokens: 8 });
    return { text: answer.choices[0].message.content, prompt_tokens: answer.usage.prompt_tokens };
  },
  async stream() {
    let text = "", usage = null, chunks = 0;
    const answer = await client.chat.completions.create(
      { model, messages: talk, max_tokens: 8, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of answer) {
      chunks++;
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return { text, chunks, prompt_tokens: usage && usage.prompt_tokens };
  },
  async tools() {
    const call = { id: "call_1", type: "function", function: { name: "weather", arguments: "{}" } };
    const messages = [...talk, { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "Rain." }];
    const answer = await client.chat.completions.create({ model, messages, tools, max_tokens: 8 });
    return { text: answer.choices[0].message.content ?? "" };
  },
  async models() {
    const found = [];
    for await (const entry of client.models.list()) found.push(entry.id);
    return { models: found.sort() };
  },
  async error() {
    try {
      await client.chat.completions.create({ model, messages: talk });
    } catch (error) {
      return { error: error.constructor.name, status: error.status, code: error.code };
    }
    return { error: null };
  },
  async abort() {
    const stop = new AbortController();
    const answer = await client.chat.completions.create({ model, messages: talk, max_tokens: 100000, stream: true },
      { signal: stop.signal });
    for await (const chunk of answer) {
      stop.abort();
      return { first: chunk.choices.length > 0 };
    }
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [base, scenario, name] = line.split(" ");
  client = new OpenAI({ baseURL: base + "/v1", apiKey: "sk-test", maxRetries: 0, timeout: 30000 });
  model = name;
  try {
    console.log(JSON.stringify({ result: await scenarios[scenario]() }));
  } catch (error) {
    console.log(JSON.stringify({ exception: error.stack }));
  }
}
