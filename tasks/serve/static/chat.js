// Talk to the models of this server: one conversation for each, streamed. A model's text is put into the page as text.
"use strict";

const element = (id) => document.getElementById(id);
const PREFIXES = ["", "beside/"];  // of the first model's paths and of the second one's, as tasks/serve/proxy.py has them
const RETRY_MS = 3000;
let sides = [], running = null, answering = false;

const show = (text) => { element("notice").textContent = text; element("notice").hidden = !text; };

function ask(path, body) {
  const key = element("key").value;
  return fetch(path, {
    method: body ? "POST" : "GET",
    headers: { ...(key && { authorization: `Bearer ${key}` }), ...(body && { "content-type": "application/json" }) },
    body: body && JSON.stringify(body),
    signal: body && running.signal,
  });
}

async function failure(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || `The server answers ${answer.status}`;
  }
}

// A model has two names, its digest and its own; asked for by the latter, a new champion can take over.
async function open() {
  const found = [];
  for (const prefix of PREFIXES) {
    const answer = await ask(`${prefix}v1/models`);
    if (answer.status === 404 && prefix) continue;
    element("access").hidden = answer.status !== 401;
    if (answer.status === 401) {
      if (element("key").value) show(await failure(answer));
      element("key").focus();
      return;
    }
    if (answer.status === 503) {
      show("The model is still starting.");
      setTimeout(start, RETRY_MS);
      return;
    }
    if (!answer.ok) throw new Error(await failure(answer));
    const names = (await answer.json()).data.map((each) => each.id);
    const digest = names.find((name) => /^[0-9a-f]{64}$/.test(name)) ?? "";
    found.push(new Side(prefix, names.find((name) => name !== digest) ?? digest, digest));
  }
  show("");
  sides = found;
  element("models").replaceChildren(...sides.map((side) => side.section));
  element("message").focus();
}

class Side {
  constructor(prefix, name, digest) {
    Object.assign(this, { prefix, name, messages: [] });
    this.section = element("model").content.firstElementChild.cloneNode(true);
    this.turns = this.section.querySelector(".turns");
    this.section.querySelector("h2").textContent = name;
    this.turns.setAttribute("aria-label", `Conversation with ${name}`);
    this.identify(digest);
  }

  identify(digest) {
    this.section.querySelector(".digest").textContent = digest && `model ${digest}`;
  }

  add(kind, text) {
    const turn = document.createElement(kind === "note" ? "p" : "div");
    turn.className = kind === "note" ? "note" : `turn ${kind}`;
    turn.dir = "auto";
    turn.textContent = text;
    this.append(this.turns, turn);
    return turn;
  }

  // Append, and stay at the end if the reader is there.
  append(to, part) {
    const atEnd = this.turns.scrollHeight - this.turns.scrollTop - this.turns.clientHeight < 40;
    to.append(part);
    if (atEnd) this.turns.scrollTop = this.turns.scrollHeight;
  }

  reset() {
    this.messages = [];
    this.turns.replaceChildren();
  }

  // Ask for an answer to `text`. What has arrived of a stopped answer stays in the conversation.
  async answer(text, settings) {
    const { completion, system, ...sampling } = settings;
    this.add("user", text);
    const asked = completion ? { prompt: text, max_tokens: null } : {  // without this, the API's default is 16
      messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages, { role: "user", content: text }],
    };
    const turn = this.add("assistant", ""), began = performance.now();
    let said = "", model = "", reason = "", stopped = false;
    this.turns.setAttribute("aria-busy", "true");
    try {
      const path = `${this.prefix}v1/${completion ? "" : "chat/"}completions`;
      const answer = await ask(path, { model: this.name, ...asked, ...sampling, stream: true });
      if (!answer.ok) throw new Error(await failure(answer));
      for await (const part of events(answer.body)) {
        if (part.error) throw new Error(part.error.message);
        model = part.model ?? model;
        const choice = part.choices?.[0];
        if (!choice) continue;
        reason = choice.finish_reason ?? reason;
        const piece = (completion ? choice.text : choice.delta?.content) ?? "";
        said += piece;
        this.append(turn, piece);
      }
    } catch (error) {
      stopped = error.name === "AbortError";
      if (!stopped) this.add("error", error.message);
    } finally {
      turn.normalize();
      this.turns.setAttribute("aria-busy", "false");
    }
    if (/^[0-9a-f]{64}$/.test(model)) this.identify(model);
    const facts = [model && `model ${model.slice(0, 12)}`, `${((performance.now() - began) / 1000).toFixed(1)} s`];
    if (reason === "length") facts.push("cut off at the maximum of tokens");
    if (stopped) facts.push("stopped");
    if (said || !this.turns.lastElementChild.matches(".error")) this.add("note", facts.filter(Boolean).join(" · "));
    if (said && !completion) this.messages.push({ role: "user", content: text }, { role: "assistant", content: said });
  }
}

// The JSON of each event of a stream.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer was cut off: the server closed the connection");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function settings() {
  const chosen = { completion: element("completion").checked, system: element("system").value };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (element(name).value !== "") chosen[name] = Number(element(name).value);
  }
  return chosen;
}

function answers(busy) {
  answering = busy;
  element("send").disabled = element("reset").disabled = busy;
  element("stop").disabled = !busy;
}

const start = () => open().catch((error) => show(error.message));

element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
element("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = element("message").value;
  if (answering || !text.trim() || !sides.length) return;
  element("message").value = "";
  running = new AbortController();
  answers(true);
  await Promise.all(sides.map((side) => side.answer(text, settings())));
  answers(false);
  element("message").focus();
});
element("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && answering) running.abort(); });
element("stop").addEventListener("click", () => running.abort());
element("reset").addEventListener("click", () => {
  sides.forEach((side) => side.reset());
  element("message").focus();
});
start();
