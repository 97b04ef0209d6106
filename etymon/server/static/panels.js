// What can be done with a model: the fields of each panel, what it asks the server, and how an answer is shown.
// A panel appears for models that have its ability.
import {explanationView} from "/static/explain.js";
import {EXPLAIN_WORDS} from "/static/strings.js";
import {attentionView, bars, colouredWords, element, heatTable, percent, predictionView, spelled, wordsView} from "/static/views.js";

const text = (name, value, rows = 3) => ({name, type: "text", value, rows});
const number = (name, value, min, max, step = 1) => ({name, type: "number", value, min, max, step});
const lines = given => given.split("\n").map(line => line.trim()).filter(Boolean);
const heading = (title, ...rest) => [element("h3", {textContent: title}), ...rest];
const SENTENCE = {en: "The cat sat on the mat.", zh: "猫坐在垫子上。"};

function rewriting(verb) {
  return {
    id: verb, ability: verb,
    fields: () => [text("text", SENTENCE, 4), {name: "prefix", type: "line", value: ""}, number("beams", 4, 1, 64), number("max_new_tokens", 40, 1, 4096)],
    requests: values => [{path: `/${verb}`, body: {texts: [values.text], beams: values.beams, max_new_tokens: values.max_new_tokens, ...(values.prefix ? {prefix: values.prefix} : {})}}],
    call: values => ({verb, texts: [values.text], options: {beams: values.beams, max_new_tokens: values.max_new_tokens, ...(values.prefix ? {prefix: values.prefix} : {})}}),
    async view([answer], {say, values, post, chosen, keep, abilities}) {
      const [rewritten] = answer.texts;
      const view = element("div", {}, ...heading(say("translation"), element("p", {className: "written", dir: "auto", textContent: rewritten.text})));
      for (const note of answer.notes) view.append(element("p", {className: "status", textContent: note}));
      // The picture of a translation: what was read, and where each written token looked.
      if (verb === "translate" && abilities.includes("attention") && rewritten.text.trim() && rewritten.parts === 1) {
        const {maps} = await post("/attention", {text: (values.prefix || "") + values.text, target: rewritten.text, kind: "cross"});
        view.append(...heading(say("alignment"), attentionView(maps, say, chosen, keep)));
      }
      return view;
    },
  };
}

export const PANELS = [
  {
    id: "write", ability: "completions", streams: true,
    fields: () => [
      text("prompt", {en: "Once upon a time", zh: "从前有一个"}, 4), number("max_tokens", 40, 1, 4096), number("temperature", 0.8, 0, 10, 0.05),
      number("top_p", 1, 0, 1, 0.05), number("top_k", 0, 0, 1000000), number("repetition_penalty", 1, 0.1, 10, 0.05), number("seed", 0, 0, 2 ** 31 - 1),
      number("beams", 4, 2, 64), {name: "greedy", type: "check", value: true}, {name: "sampled", type: "check", value: true}, {name: "search", type: "check", value: false},
    ],
    requests(values) {
      const shared = {prompt: values.prompt, max_tokens: values.max_tokens, repetition_penalty: values.repetition_penalty};
      const streamed = {stream: true, logprobs: 10};
      const drawn = {temperature: values.temperature, top_p: values.top_p, top_k: values.top_k, seed: values.seed};
      const ways = [["greedy", {temperature: 0, ...streamed}], ["sampled", {...drawn, ...streamed}], ["search", {beams: values.beams}]];
      return ways.filter(([way]) => values[way]).map(([way, body]) => ({path: "/v1/completions", label: way, body: {...shared, ...body}}));
    },
    call(values) {
      const shared = {max_new_tokens: values.max_tokens, repetition_penalty: values.repetition_penalty};
      // Of several ways, the one that has something to set.
      if (values.sampled) return {verb: "generate", texts: [values.prompt], options: {...shared, sample: true, temperature: values.temperature, top_p: values.top_p, top_k: values.top_k, seed: values.seed}};
      return {verb: "generate", texts: [values.prompt], options: values.search && !values.greedy ? {...shared, beams: values.beams} : shared};
    },
  },
  {
    id: "fill", ability: "fill",
    fields: () => [text("text", {en: "The cat ___ on the mat.", zh: "猫___在垫子上。"}), number("top", 5, 1, 100)],
    requests: values => [{path: "/fill", body: {texts: [values.text], top_k: values.top}}],
    call: values => ({verb: "fill", texts: [values.text], options: {top_k: values.top}}),
    view([answer], {say}) {
      const [filled] = answer.texts;
      return element("div", {}, ...heading(say("filled"), element("p", {className: "written", dir: "auto", textContent: filled.filled})),
        ...filled.blanks.flatMap((candidates, place) => heading(`${say("blank")} ${place + 1}`, bars(candidates.map(each => [each.text, each.probability]), say("probability")))));
    },
  },
  {
    id: "replaced", ability: "replaced",
    fields: () => [text("text", {en: "The cat sat on the capital.", zh: "猫坐在首都上。"})],
    requests: values => [{path: "/replaced", body: {texts: [values.text]}}],
    call: values => ({verb: "replaced", texts: [values.text], options: {}}),
    view([answer], {say}) {
      const tokens = answer.texts[0].tokens.map(each => ({...each, name: spelled(each.token)}));
      const shown = tokens.map(each => ({word: each.name, share: each.probability, title: percent(each.probability)}));
      return element("div", {}, colouredWords(shown), heatTable(say("token"), [say("probability")], tokens.map(each => ({
        name: each.name, cells: [{text: percent(each.probability), share: each.probability}]})), say("replaced")));
    },
  },
  {
    id: "predict", ability: "predict",
    // What a row has to have depends on the task that the model was fine-tuned for.
    async fields(post) {
      const {task, columns, lists} = await post("/task", {});
      this.task = {task, columns, lists};
      return columns.map((name, place) => {
        if (lists.includes(name)) return text(name, task === "tag" ? {en: "The cat sat in Paris .", zh: "猫 坐 在 巴黎 。"} : {en: "It slept.\nIt flew.", zh: "它睡着了。\n它飞走了。"});
        if (name === "question") return text(name, {en: "Who sat on the mat?", zh: "谁坐在垫子上？"});
        return text(name, place ? {en: "A cat is sitting on a mat.", zh: "垫子上坐着一只猫。"} : SENTENCE);
      });
    },
    // Words stand side by side, choices below each other.
    row(values) {
      const {task, lists} = this.task;
      return Object.fromEntries(Object.entries(values).map(([name, value]) =>
        [name, !lists.includes(name) ? value : task === "tag" ? value.split(/\s+/).filter(Boolean) : lines(value)]));
    },
    requests(values) { return [{path: "/predict", body: {rows: [this.row(values)]}}]; },
    call(values) { return {verb: "predict", texts: [], options: {}, data: [this.row(values)]}; },
    view([answer], {say, values}) {
      const view = predictionView(answer.predictions[0], this.row(values), this.task, say);
      view.prepend(...heading(`${say("answer")} (${say(answer.task)})`));
      for (const note of answer.notes) view.append(element("p", {className: "status", textContent: note}));
      return view;
    },
  },
  rewriting("translate"),
  rewriting("summarize"),
  {
    id: "embed", ability: "embeddings",
    fields: () => [text("texts", {en: "The cat sat on the mat.\nA dog lay on the rug.\nParis is the capital of France.", zh: "猫坐在垫子上。\n狗躺在地毯上。\n巴黎是法国的首都。"}, 5)],
    requests: values => [{path: "/v1/embeddings", body: {input: lines(values.texts), normalise: true}}],
    call: values => ({verb: "embed", texts: lines(values.texts), options: {normalise: true}}),
    view([answer], {say, values}) {
      const vectors = answer.data.map(each => each.embedding), names = lines(values.texts);
      const cosine = (one, other) => one.reduce((sum, value, place) => sum + value * other[place], 0);
      return element("div", {}, ...heading(say("cosines"), heatTable("", names.map((_, place) => String(place + 1)), vectors.map((vector, place) => ({
        name: `${place + 1}. ${names[place]}`, cells: vectors.map(other => ({text: cosine(vector, other).toFixed(2), share: cosine(vector, other)}))})), say("cosines"))));
    },
  },
  {
    id: "attention", ability: "attention",
    fields: () => [text("text", SENTENCE), {name: "target", type: "line", value: ""}],
    requests: values => [{path: "/attention", body: {text: values.text, ...(values.target ? {target: values.target} : {})}}],
    call: values => ({verb: "attention", texts: values.target ? [values.text, values.target] : [values.text], options: {}}),
    view: ([answer], {say, chosen, keep}) => attentionView(answer.maps, say, chosen, keep),
  },
  {
    id: "lens", ability: "lens",
    fields: () => [text("text", SENTENCE)],
    requests: values => [{path: "/lens", body: {text: values.text, top_k: 5}}],
    python: (values, model) => `import etymon\nfrom etymon.lab.logit_lens import logit_lens\n\nprint(logit_lens(etymon.load(${JSON.stringify(model)}), ${JSON.stringify(values.text)}))`,
    view([answer], {say}) {
      // The last layer on top: what the model says, and below it how that came about.
      const rows = answer.layers.map((places, layer) => ({name: layer ? `${say("layer")} ${layer}` : say("the input"), cells: places.map(guesses => ({
        text: spelled(guesses[0].token.trim() || guesses[0].token), share: guesses[0].probability, title: guesses.map(guess => `${spelled(guess.token)} ${percent(guess.probability)}`).join("\n")}))})).reverse();
      return element("div", {}, element("p", {textContent: say(answer.predicts_next ? "next token" : "this token")}), heatTable("", answer.tokens.map(spelled), rows, say("lens")));
    },
  },
  {
    id: "score", ability: "score",
    fields: () => [text("text", SENTENCE, 4)],
    requests: values => [{path: "/score", body: {texts: [values.text], words: "tokens"}}],
    call: values => ({verb: "score", texts: [values.text], options: {words: "tokens"}}),
    view([answer], {say}) {
      const [scored] = answer.texts, figure = value => value === null ? "–" : value.toFixed(3);
      const table = heatTable(say("word"), [`${say("surprisal")} (${say("bits")})`], scored.words.map(each => ({name: each.word, cells: [{text: each.surprisal.toFixed(2), share: each.surprisal / 20}]})), say("surprisal"));
      return element("div", {}, wordsView(scored.words, say), element("dl", {className: "figures"},
        ...[[scored.kind, scored.log_likelihood], ["perplexity", scored.perplexity], ["bits per byte", scored.bits_per_byte]].map(([name, value]) =>
          element("div", {}, element("dt", {textContent: say(name)}), element("dd", {textContent: figure(value)})))),
        element("details", {}, element("summary", {textContent: say("where table")}), table));
    },
  },
  {
    id: "explain", ability: "explain",
    fields: () => [text("texts", {en: "The cat sat on the mat. It was tired.", zh: "猫坐在垫子上。它累了。"}), {name: "objective", type: "choice", value: "", options: [""]}, number("seed", 0, 0, 2 ** 31 - 1)],
    requests: (values, language) => [{path: "/explain", body: {texts: lines(values.texts), seed: values.seed, language, ...(values.objective ? {objective: values.objective} : {})}}],
    call: values => ({verb: "explain", texts: lines(values.texts), options: {seed: values.seed, ...(values.objective ? {objective: values.objective} : {})}}),
    view([answer], {language, offer}) {
      offer("objective", answer.objectives);
      const {family, objective, about} = answer.explanation;
      return element("div", {}, ...heading(`${family}: ${objective}`, element("p", {textContent: about}), explanationView(answer.explanation, EXPLAIN_WORDS[language], true)));
    },
  },
];
