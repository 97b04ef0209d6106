// A module: the page of `etymon explain` has it inside, and the server's page imports it.
let words = {};
const say = name => words[name] ?? name;
// A text from right to left must not turn what stands around it.
const apart = text => `\u2068${text}\u2069`;
const plain = token => token.trim() || token;
// Names of pictures are put together: the stream or side, then the layers.
const layerName = name => name.replace(/query stream|content stream|decoder sees encoder|all layers|layers/g, say);
const keyName = name => name.replace(/^memory (?=-)/, `${say("memory")} `);
const percent = share => `${Math.round(100 * share)}%`;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// The order in which a reader's questions are answered: by the order that was drawn, else by their places.
function steps(reader) {
  const order = question => reader.tokens[question.place].order ?? question.place;
  return [...reader.questions].sort((one, other) => order(one) - order(other));
}

// Whether later tokens are unknown while one is predicted: then the page can be stepped through.
function isStepwise(reader) {
  if (reader.questions.length < 2) return false;
  return reader.tokens.some(token => token.order) || reader.questions.length > reader.tokens.length / 2;
}

function tokenButton(reader, token, place, question) {
  const top = element("small", {className: token.original !== null ? "was" : "", textContent: token.original ?? ""});
  const below = [];
  if (question) {
    // The arrow points at what it asks for, from right to left too.
    below.push(element("small", {className: "asked", dir: "ltr"}, "→ ", element("bdi", {textContent: plain(question.target)})));
    const [guess] = question.guesses;
    if (guess) below.push(element("small", {className: question.rank === 1 ? "right" : "", textContent: `${plain(guess.token)} ${percent(guess.probability)}`}));
  } else if (token.replaced !== null) {
    const isRight = (token.replaced > .5) === (token.original !== null);
    below.push(element("small", {className: isRight ? "right" : "", textContent: percent(token.replaced)}));
  }
  const kind = token.kind + (question ? " asked-here" : "");
  return element("button", {type: "button", className: "token " + kind, dir: "auto"}, top, plain(token.text), ...below);
}

function details(reader, place, question) {
  const token = reader.tokens[place], parts = [`${say("position")} ${token.position}`];
  if (token.kind !== "text") parts.push(say(token.kind));
  if (token.original !== null) parts.push(`${say("was")} ${apart(token.original)}`);
  if (token.segment !== null) parts.push(`${say("segment")} ${token.segment}`);
  if (token.order && question) parts.push(`${say("order")} ${steps(reader).indexOf(question) + 1}`);
  if (token.replaced !== null) parts.push(`${say("replaced?")} ${percent(token.replaced)}`);
  if (question) {
    parts.push(`${say("predicts")} ${apart(question.target)}`);
    if (question.drawn !== null) parts.push(`${say("draws")} ${apart(question.drawn)}`);
    if (question.guesses.length)
      parts.push(`${say("guesses")} ${question.guesses.map(guess => `${apart(guess.token.trim())} ${percent(guess.probability)}`).join(", ")}`);
    if (question.loss !== null) parts.push(`${say("loss")} ${question.loss.toFixed(2)}, ${say("rank")} ${question.rank}`);
  }
  return parts.join(" · ");
}

function picture(map, marked) {
  const canvas = element("canvas"), context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  const font = "13px system-ui, sans-serif";
  context.font = font;
  map = {...map, keys: map.keys.map(keyName)};
  const width = names => Math.min(140, Math.max(...names.map(name => context.measureText(name).width))) + 8;
  const left = width(map.queries), top = width(map.keys), cell = 18;
  const [wide, high] = [left + map.keys.length * cell + 2, top + map.queries.length * cell + 2];
  Object.assign(canvas, {width: wide * ratio, height: high * ratio});
  Object.assign(canvas.style, {width: wide + "px", height: high + "px"});
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${say("who sees whom")}: ${layerName(map.layers)}; ${say("rows see columns")}`);
  context.scale(ratio, ratio);
  context.font = font;
  context.textBaseline = "middle";
  map.queries.forEach((name, q) => {
    const seen = new Set(map.allowed[q]);
    for (let k = 0; k < map.keys.length; k++) {
      context.fillStyle = style(seen.has(k) ? (q === marked ? "--series-2" : "--series-1") : "--grid");
      context.globalAlpha = seen.has(k) ? 1 : .5;
      context.fillRect(left + k * cell, top + q * cell, cell - 1.5, cell - 1.5);
    }
    context.globalAlpha = 1;
    context.fillStyle = style(q === marked ? "--series-2" : "--ink");
    context.textAlign = "right";
    context.fillText(name, left - 5, top + (q + .5) * cell, 140);
  });
  map.keys.forEach((name, k) => {
    context.save();
    context.translate(left + (k + .5) * cell, top - 5);
    const upright = [...name].length === 1;  // a Chinese character
    if (upright) context.translate(0, -8);
    else context.rotate(-Math.PI / 2);
    context.fillStyle = style("--ink");
    context.textAlign = upright ? "center" : "left";
    context.fillText(name, 0, 0, 140);
    context.restore();
  });
  return element("figure", {}, canvas, element("figcaption", {textContent: `${layerName(map.layers)}: ${say("rows see columns")}`}));
}

function readerView(reader, level) {
  const questions = new Map(reader.questions.map(question => [question.place, question]));
  const buttons = reader.tokens.map((token, place) => tokenButton(reader, token, place, questions.get(place)));
  const list = element("ul", {className: "tokens"}, ...buttons.map(button => element("li", {}, button)));
  const detail = element("p", {className: "detail", textContent: say("point at a token")});
  detail.setAttribute("aria-live", "polite");
  const maps = element("div", {className: "maps"});
  const own = reader.sees.find(map => map.queries.length === reader.tokens.length && map.keys.length >= map.queries.length);
  let marked = null;
  // A picture in which all see all says no more than these words.
  const seesAll = map => map.allowed.every(row => row.length === map.keys.length);
  const drawMaps = () => maps.replaceChildren(...reader.sees.map(map => seesAll(map)
    ? element("p", {textContent: `${layerName(map.layers)}: ${say("all see all")}`})
    : picture(map, map.queries.length === reader.tokens.length ? marked : null)));
  buttons.forEach((button, place) => {
    const show = () => {
      marked = place;
      detail.textContent = details(reader, place, questions.get(place));
      // Keys before the row's own are what is remembered.
      const first = own ? own.keys.length - own.queries.length : 0;
      const seen = own && new Set(own.allowed[place].map(key => key - first));
      buttons.forEach((other, number) => other.classList.toggle("unseen", Boolean(seen) && !seen.has(number)));
      drawMaps();
    };
    const leave = () => {
      marked = null;
      buttons.forEach(other => other.classList.remove("unseen"));
      drawMaps();
    };
    button.onmouseenter = button.onfocus = show;
    button.onmouseleave = button.onblur = leave;
  });
  const view = element("div", {}, element(level, {textContent: `${say(reader.name)} — ${say("reads")}`}));
  if (isStepwise(reader)) view.append(stepper(reader, buttons, detail, questions));
  view.append(list, detail);
  if (reader.sees.length) view.append(element(level, {textContent: say("who sees whom")}), maps);
  drawMaps();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMaps);
  return view;
}

function stepper(reader, buttons, detail, questions) {
  const all = steps(reader), ordered = reader.tokens.some(token => token.order);
  const range = element("input", {type: "range", min: 0, max: all.length, value: all.length});
  range.setAttribute("aria-label", say("step"));
  const count = element("output"), play = element("button", {type: "button", textContent: say("play")});
  let timer = null;
  const update = () => {
    const now = Number(range.value), done = new Set(all.slice(0, now).map(question => question.place));
    count.textContent = `${say("step")} ${now} ${say("of")} ${all.length}`;
    const current = now < all.length ? all[now].place : -1;
    buttons.forEach((button, place) => {
      // In an order of their own, targets that are still to come are hidden; otherwise all that comes later is.
      const waits = ordered ? questions.has(place) && !done.has(place) : now < all.length && place > current;
      button.classList.toggle("later", waits && place !== current);
      button.classList.toggle("now", place === current);
    });
    if (current >= 0) detail.textContent = details(reader, current, questions.get(current));
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = say("play"); };
  const move = by => { stop(); range.value = Number(range.value) + by; update(); };
  play.onclick = () => {
    if (timer !== null) return stop();
    if (Number(range.value) >= all.length) range.value = 0;
    update();
    play.textContent = say("pause");
    timer = setInterval(() => {
      range.value = Number(range.value) + 1;
      update();
      if (Number(range.value) >= all.length) stop();
    }, 900);
  };
  range.oninput = () => { stop(); update(); };
  const back = element("button", {type: "button", textContent: say("back"), onclick: () => move(-1)});
  const next = element("button", {type: "button", textContent: say("next"), onclick: () => move(1)});
  update();
  return element("div", {className: "controls"}, play, back, next, range, count);
}

// All samples of an explanation, as `etymon explain --json` prints it, with the words of a language.
// Inside a page that has a heading above it, those of readers stand below that.
export function explanationView(explanation, translations, isInside = false) {
  words = translations;
  const level = explanation.total > 1 || isInside ? "h3" : "h2";
  const view = document.createElement("div");
  for (const sample of explanation.samples) {
    const section = element("section");
    if (explanation.total > 1)
      section.append(element("h2", {textContent: `${say("sample")} ${sample.number} ${say("of")} ${explanation.total}`}));
    for (const reader of sample.readers) section.append(readerView(reader, level));
    for (const question of sample.about_text) {
      const sure = question.probabilities.length ? ` (${percent(question.probabilities[question.answer])} ${say("sure")})` : "";
      section.append(element("p", {textContent: `${say(question.name.replaceAll("_", " "))}: ${say(question.answer ? "no" : "yes")}${sure}`}));
    }
    const losses = Object.entries(sample.losses).map(([name, value]) => `${name.replaceAll("_", " ")} ${value.toFixed(3)}`);
    if (losses.length) section.append(element("p", {textContent: `${say("loss")}: ${losses.join(" · ")}`}));
    view.append(section);
  }
  return view;
}
