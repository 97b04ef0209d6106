// The page: which model, which panel, its fields, running it, and all of that in the address.
import {asCommand, asCurl, asPython} from "/static/copying.js";
import {PANELS} from "/static/panels.js";
import {STRINGS} from "/static/strings.js";
import {bars, element, percent, spelled} from "/static/views.js";

const main = document.getElementById("main");
// Behind the # nothing is sent to the server, so that no log has it.
const link = new URLSearchParams(location.hash.slice(1));
let language = link.get("lang") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
if (!(language in STRINGS)) language = "en";
let models = [], key = sessionStorage.getItem("key") ?? "";
let panel = null, model = null, beside = null, values = {}, fields = [], abort = null;
let chosen = {};

const say = name => STRINGS[language][name] ?? name;

class Refusal extends Error {}

async function request(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET", signal, body: body && JSON.stringify(body),
      headers: {...(body ? {"Content-Type": "application/json"} : {}), ...(key ? {Authorization: `Bearer ${key}`} : {})},
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(say("unreachable"));
  }
  if (response.ok) return response;
  if (response.status === 401) throw new Refusal(say("wrong key"));
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(answer.error?.message ?? `${response.status}`);
}

const poster = (name, signal) => async (path, body) => (await request(path, {model: name, ...body}, signal)).json();

// Server-sent events of a completion, as they come.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.message);
      yield event;
    }
  }
}

// --- the address

function keepLink(hasRun) {
  const state = new URLSearchParams({lang: language, panel: panel?.id ?? "", model: model?.id ?? ""});
  if (beside) state.set("beside", beside.id);
  for (const [name, value] of Object.entries(values)) state.set(`f.${name}`, value);
  for (const [name, value] of Object.entries(chosen)) if (value !== "mean" && value !== 0) state.set(`c.${name}`, value);
  if (hasRun) state.set("run", "1");
  history.replaceState(null, "", `#${state}`);
}

function readChosen() {
  chosen = {kind: Number(link.get("c.kind") ?? 0), layer: link.get("c.layer") ?? "mean", head: link.get("c.head") ?? "mean"};
}

// --- models, language, panels

function drawChoice() {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  const select = (name, options, current, onchange) => {
    const made = element("select", {id: name}, ...options.map(([value, text]) => new Option(text, value, false, value === current)));
    made.onchange = () => onchange(made.value);
    return element("div", {}, element("label", {for: name, textContent: say(name)}), made);
  };
  const cards = models.map(each => [each.id, `${each.id} (${each.family})`]);
  const able = cards.filter(([id]) => id !== model?.id && models.find(each => each.id === id).abilities.includes(panel?.ability));
  const keyField = element("input", {id: "key", type: "password", value: key, autocomplete: "off"});
  keyField.onchange = () => { key = keyField.value; sessionStorage.setItem("key", key); start(); };
  const children = [];
  if (models.length) children.push(select("model", cards, model.id, id => choose({model: id})), select("beside", [["", say("none")], ...able], beside?.id ?? "", id => choose({beside: id})));
  if (key || !models.length) children.push(element("div", {}, element("label", {for: "key", textContent: say("key")}), keyField));
  const other = language === "zh" ? ["en", "English"] : ["zh", "中文"];
  const languages = element("button", {type: "button", id: "language", lang: other[0], textContent: other[1]});
  languages.onclick = () => { language = other[0]; choose({}); document.getElementById("language").focus(); };
  children.push(element("div", {className: "end"}, element("a", {href: "/docs", textContent: say("reference")}), languages));
  document.getElementById("choice").replaceChildren(...children);
}

function drawPanels() {
  const nav = document.getElementById("panels");
  nav.setAttribute("aria-label", say("panels"));
  const list = PANELS.filter(each => model?.abilities.includes(each.ability)).map(each => {
    const button = element("button", {type: "button", id: `to-${each.id}`, textContent: say(each.id), onclick: () => { choose({panel: each.id}); document.getElementById(`to-${each.id}`).focus(); }});
    if (each === panel) button.setAttribute("aria-current", "page");
    return element("li", {}, button);
  });
  nav.replaceChildren(element("ul", {}, ...list));
}

// Another model, panel or language. What was typed stays where the new panel has the same field.
async function choose(change, isLink = false) {
  abort?.abort();
  model = models.find(each => each.id === (change.model ?? model?.id)) ?? models[0];
  const able = PANELS.filter(each => model.abilities.includes(each.ability));
  panel = able.find(each => each.id === (change.panel ?? panel?.id)) ?? able[0];
  const other = models.find(each => each.id === (change.beside ?? beside?.id));
  beside = other && other !== model && other.abilities.includes(panel.ability) ? other : null;
  if (!isLink) chosen = {kind: 0, layer: "mean", head: "mean"};
  drawChoice();
  drawPanels();
  await drawFields(isLink);
  if (isLink && link.get("run")) await run();
}

// --- the fields of a panel

const typed = {};

async function drawFields(isLink) {
  const now = panel, whose = model;
  main.replaceChildren(element("p", {className: "status", textContent: say("running")}));
  try {
    fields = await panel.fields(poster(model.id));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    main.replaceChildren(element("h2", {textContent: say(panel.id)}), element("p", {className: "error", role: "alert", textContent: error.message}));
    return;
  }
  // Another model or panel may have been chosen meanwhile.
  if (now !== panel || whose !== model) return;
  values = {};
  const controls = fields.map(field => {
    const standard = typeof field.value === "object" ? field.value[language] : field.value;
    const given = (isLink ? link.get(`f.${field.name}`) : null) ?? typed[field.name];
    const value = given ?? standard;
    values[field.name] = field.type === "number" ? Number(value) : field.type === "check" ? String(value) === "true" : value;
    return control(field);
  });
  const start = element("button", {type: "submit", id: "run", className: "main", textContent: say("run")});
  const stop = element("button", {type: "button", id: "stop", textContent: say("stop"), disabled: true, onclick: () => abort?.abort()});
  const copies = [["as command", asCommand], ["as python", asPython], ["as curl", asCurl], ["as link", () => location.href]]
    .filter(([, make]) => make(panel, values, model.id, language) !== null)
    .map(([name, make]) => element("button", {type: "button", textContent: say(name), onclick: () => copy(make, name)}));
  const form = element("form", {}, element("div", {className: "fields"}, ...controls), element("div", {className: "actions"}, start, stop, ...copies),
    element("div", {id: "copied"}), element("p", {id: "status", className: "status", role: "status"}));
  form.onsubmit = event => { event.preventDefault(); run(); };
  // Control and Enter run it from inside a text.
  form.onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } };
  const section = element("section", {}, element("h2", {textContent: say(panel.id)}), element("p", {textContent: say(`about ${panel.id}`)}), form);
  if (panel.id === "write") section.append(cursorView(form));
  main.replaceChildren(section, element("div", {id: "results"}));
  keepLink(isLink && Boolean(link.get("run")));
}

function control(field) {
  const id = `field-${field.name}`, value = values[field.name];
  const keep = given => { values[field.name] = typed[field.name] = given; keepLink(false); };
  if (field.type === "check") {
    const box = element("input", {type: "checkbox", id, checked: value});
    box.onchange = () => keep(box.checked);
    return element("label", {className: "check", for: id}, box, say(field.name));
  }
  let made;
  if (field.type === "text") made = element("textarea", {id, rows: field.rows, value, dir: "auto", spellcheck: false});
  else if (field.type === "choice") made = element("select", {id}, ...choices(field, value));
  else made = element("input", {id, type: field.type === "line" ? "text" : "number", value, ...(field.type === "number" ? {min: field.min, max: field.max, step: field.step} : {dir: "auto"})});
  made.oninput = () => keep(field.type === "number" ? Number(made.value) : made.value);
  return element("div", {className: field.type === "text" ? "wide-field" : ""}, element("label", {for: id, textContent: say(field.name)}), made);
}

const choices = (field, value) => [...new Set([...field.options, value])].map(each => new Option(each || say("own"), each, false, each === value));

// An answer may say what else could be chosen.
function offer(name, options) {
  const field = fields.find(each => each.name === name), made = document.getElementById(`field-${name}`);
  field.options = ["", ...options];
  made.replaceChildren(...choices(field, values[name]));
}

async function copy(make, name) {
  const text = make(panel, values, model.id, language, Boolean(key));
  const note = name === "as command" || name === "as python" ? [element("p", {className: "status", textContent: say("folder note")})] : [];
  document.getElementById("copied").replaceChildren(element("p", {className: "label", role: "status", textContent: say("copied")}), element("pre", {className: "code", tabIndex: 0, textContent: text}), ...note);
  // A browser may refuse, and there is no clipboard but on a local address or over https: then it is read from here.
  await navigator.clipboard?.writeText(text).catch(() => {});
}

// --- running

async function run() {
  abort?.abort();
  const mine = abort = new AbortController();
  const status = document.getElementById("status"), results = document.getElementById("results");
  const asked = panel.requests(values, language);
  const words = fields.filter(field => field.type === "text").map(field => values[field.name]);
  if (words.some(word => !word.trim()) || !asked.length) {
    status.textContent = say("empty");
    return;
  }
  keepLink(true);
  document.getElementById("stop").disabled = false;
  status.textContent = say("running");
  results.replaceChildren();
  await Promise.all([model, beside].filter(Boolean).map(async each => {
    const section = element("section", {}, element("h2", {textContent: `${each.id} (${each.family})`}));
    results.append(section);
    try {
      section.append(await (panel.streams ? writeView : answerView)(each, asked, mine.signal, section));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Refusal)) throw error;
      section.append(element("p", {className: "error", role: "alert", textContent: error.message}));
    }
  }));
  if (mine !== abort) return;
  document.getElementById("stop").disabled = true;
  status.textContent = say(mine.signal.aborted ? "stopped" : "done");
}

async function answerView(card, asked, signal) {
  const post = poster(card.id, signal);
  const answers = await Promise.all(asked.map(({path, body}) => post(path, body)));
  // Side by side, each has a head of its own; the link keeps the first model's.
  const mine = card === model ? chosen : {...chosen};
  return panel.view(answers, {say, language, values, post, offer, chosen: mine, keep: () => keepLink(true), abilities: card.abilities});
}

async function writeView(card, asked, signal, section) {
  const detail = element("div", {role: "status"}, element("p", {className: "status", textContent: say("point")}));
  const ways = asked.map(({label}) => ({written: element("p", {className: "written", dir: "auto"}), end: element("p", {className: "status"}), label}));
  section.append(element("div", {className: "ways"}, ...ways.map(({label, written, end}) => element("div", {}, element("h3", {textContent: say(label)}), written, end))), detail);
  await Promise.all(asked.map(async ({path, body}, number) => {
    const {written, end} = ways[number];
    if (!body.stream) {
      const answer = await poster(card.id, signal)(path, body);
      written.textContent = answer.choices[0].text;
      return;
    }
    for await (const event of events(await request(path, {model: card.id, ...body}, signal))) {
      const [choice] = event.choices;
      if (choice?.text) written.append(piece(choice, detail));
      if (choice?.finish_reason) end.textContent = say(choice.finish_reason === "stop" ? "ended" : "cut off");
    }
    // Read out once it is whole: token by token it would be stammering.
    written.setAttribute("aria-live", "polite");
  }));
  return "";
}

// A token that shows, when it is pointed at, what else was likely there.
function piece(choice, detail) {
  const tops = choice.logprobs?.top_logprobs?.[0], share = choice.logprobs?.token_logprobs?.[0];
  const button = element("button", {type: "button", className: "piece", textContent: choice.text});
  // Space alone is no name.
  if (!choice.text.trim()) button.setAttribute("aria-label", spelled(choice.text));
  const show = () => {
    const rows = Object.entries(tops ?? {}).map(([token, value]) => [token, Math.exp(value)]).sort((one, other) => other[1] - one[1]);
    detail.replaceChildren(element("h3", {textContent: `${say("alternatives")}: ${spelled(choice.text)}${share == null ? "" : ` ${percent(Math.exp(share))}`}`}), bars(rows, say("alternatives")));
  };
  button.onmouseenter = button.onfocus = show;
  return button;
}

// What may come at the cursor of the text, asked for while this is open.
function cursorView(form) {
  const shown = element("div", {id: "next", role: "status"}, element("p", {className: "status", textContent: say("cursor help")}));
  const details = element("details", {id: "at-cursor"}, element("summary", {textContent: say("at cursor")}), shown);
  const field = form.querySelector("#field-prompt");
  let timer = null, last = null, waiting = null;
  async function ask() {
    const prompt = field.value.slice(0, field.selectionEnd);
    if (!details.open || !field.isConnected || prompt === last) return;
    last = prompt;
    waiting?.abort();
    waiting = new AbortController();
    try {
      const answer = await poster(model.id, waiting.signal)("/v1/completions", {prompt, max_tokens: 1, temperature: 0, logprobs: 10});
      const rows = Object.entries(answer.choices[0].logprobs.top_logprobs[0]).map(([token, value]) => [token, Math.exp(value)]);
      shown.replaceChildren(bars(rows.sort((one, other) => other[1] - one[1]), say("at cursor")));
    } catch (error) {
      if (error instanceof Refusal) shown.replaceChildren(element("p", {className: "error", textContent: error.message}));
      else if (error.name !== "AbortError") throw error;
    }
  }
  // Not at every key: a moment after the last one.
  const soon = () => { clearTimeout(timer); timer = setTimeout(ask, 300); };
  for (const name of ["keyup", "click", "input", "select"]) field.addEventListener(name, soon);
  details.ontoggle = ask;
  return details;
}

async function start() {
  try {
    models = (await (await request("/v1/models")).json()).data.filter(each => PANELS.some(one => each.abilities.includes(one.ability)));
    if (!models.length) throw new Refusal(say("no models"));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    models = [];
    drawChoice();
    main.replaceChildren(element("p", {className: "error", role: "alert", textContent: error.message}));
    return;
  }
  readChosen();
  await choose({model: link.get("model") ?? undefined, panel: link.get("panel") ?? undefined, beside: link.get("beside") ?? undefined}, true);
}

start();
