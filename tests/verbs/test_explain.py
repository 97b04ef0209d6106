from __future__ import annotations

import json
import logging
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.explaining.descriptions import OTHER_TEXTS, other_texts
from etymon.explaining.explain import explain_text, plan_text, unit_for
from etymon.explaining.explanation import as_record
from etymon.families import REGISTRY as FAMILIES
from etymon.families import get_family
from etymon.objectives import REGISTRY as OBJECTIVES
from etymon.objectives import get_objective, objective_class
from etymon.objectives.history import last_pretraining
from etymon.objectives.objective import check_fit
from etymon.report.fonts import _search, families_for
from etymon.sampling.plans import key
from etymon.text.readable import readable_tokens
from etymon.text.tokenizer_training import train_tokenizer
from etymon.verbs.explain import present, token_lines
from tests import tiny
from tests.test_readme import block, commands, run
from tests.text.test_large_alphabets import SPECIALS, texts_of
from tests.verbs.small_runs import pretrain, with_test_sizes

TEXT = "The river crossed the village. The captain opened the window. The winter followed the letter."


def fits(family: str, objective: str) -> bool:
    if (family, objective) == ("transformer-xl", "distilled-causal"):
        return False  # its softmax has no distributions that could be compared
    try:
        check_fit(objective_class(objective), get_family(family))
        get_objective(objective, tiny.tokenizer(family), 48)  # its tokenizer may have no sentinels
    except EtymonError:
        return False
    return True


PAIRS = [(family, objective) for family in FAMILIES for objective in OBJECTIVES if fits(family, objective)]


def explained(family, name, trained=True, seed=0, length=48, texts=(TEXT,), **options):
    tokenizer = tiny.tokenizer(family)
    objective = get_objective(name, tokenizer, length, **options)
    model = tiny.model(family, objective)
    teacher = tiny.model(family, frozenset({"vocabulary"}), seed=1) if objective.needs_teacher else None
    unit = unit_for(model, objective, teacher, None)
    return objective, tokenizer, explain_text(unit, tokenizer, texts, seed=seed, trained=trained)


@pytest.mark.parametrize("family, name", PAIRS)
def test_questions_are_those_that_training_asks(family, name):
    objective, tokenizer, explanation = explained(family, name)
    split, plan = plan_text(objective, tokenizer, (TEXT,), 0)
    sample = explanation.samples[0]
    micro = objective.collate([objective.prepare(split, plan[0], key(0, "sample", 0, 0))])
    asked = [question.target for reader in sample.readers for question in reader.questions]
    targets = [
        part
        for part in (getattr(micro, "targets", None), getattr(micro, "back_targets", None))
        if part is not None
    ]
    ids = torch.cat(targets)
    if family == "elmo":  # words beyond those that the softmax has are unknown as targets
        ids = ids.masked_fill(ids >= tiny.SHAPES["elmo"]["targets"], tokenizer.id("unknown"))
    expected = readable_tokens(tokenizer, ids.tolist())
    assert asked == expected and asked


@pytest.mark.parametrize("family, name", PAIRS)
def test_losses_of_the_questions_add_up_to_the_loss_of_training(family, name):
    _, _, explanation = explained(family, name)
    for sample in explanation.samples:
        first = next(iter(sample.losses))
        readers = [reader for reader in sample.readers if reader.questions]
        mean = np.mean([np.mean([question.loss for question in reader.questions]) for reader in readers])
        assert mean == pytest.approx(sample.losses[first], rel=1e-4)


def seen(explanation, reader=0, sample=0, picture=0):
    return explanation.samples[sample].readers[reader].sees[picture]


def test_a_decoder_sees_what_came_before_and_an_encoder_everything():
    causal = seen(explained("gpt2", "causal")[2]).allowed
    assert np.array_equal(causal, np.tril(np.ones_like(causal)))
    assert seen(explained("bert", "masked")[2]).allowed.all()


def test_a_prefix_is_seen_whole():
    allowed = seen(explained("gpt2", "prefix")[2]).allowed
    prefix = int(allowed[0].sum())
    assert prefix > 1 and allowed[:prefix, :prefix].all() and not allowed[prefix - 1, prefix:].any()


def test_layers_that_see_alike_share_a_picture_and_others_do_not():
    pictures = explained("gpt3", "causal")[2].samples[0].readers[0].sees
    assert [picture.layers for picture in pictures] == ["layers 1", "layers 2"]
    dense, band = sorted((picture.allowed for picture in pictures), key=np.sum, reverse=True)
    assert np.array_equal(dense, np.tril(np.ones_like(dense))) and band.sum(1).max() == 8


def test_a_query_of_xlnet_sees_what_comes_earlier_in_its_order_and_never_itself():
    reader = explained("xlnet", "permutation", length=48)[2].samples[0].readers[0]
    query = next(picture for picture in reader.sees if picture.layers.startswith("query"))
    order = [token.order for token in reader.tokens]
    places = [question.place for question in reader.questions]
    first = query.allowed.shape[1] - len(order)
    for row, place in zip(query.allowed[:, first:], places, strict=True):
        assert not row[place]
        assert row.tolist() == [number < order[place] for number in order]


def test_a_second_segment_remembers_the_first():
    explanation = explained("transformer-xl", "recurrent", length=12)[2]
    first, second = (seen(explanation, sample=number) for number in (0, 1))
    assert first.allowed.shape[1] == first.allowed.shape[0]
    assert second.keys[:12] == [f"memory {place}" for place in range(-12, 0)]
    assert second.allowed[0, :12].all()


def test_a_decoder_sees_the_encoder():
    encoder, decoder = explained("t5", "span-corruption")[2].samples[0].readers
    assert (encoder.name, decoder.name) == ("encoder", "decoder") and not encoder.questions
    cross = next(picture for picture in decoder.sees if picture.layers.startswith("decoder sees encoder"))
    assert cross.keys == [token.text for token in encoder.tokens] and cross.allowed.all()


def test_hidden_tokens_say_what_they_were():
    reader = explained("bert", "masked", density=0.5)[2].samples[0].readers[0]
    hidden = [token for token in reader.tokens if token.kind == "mask"]
    assert hidden and all(token.original for token in hidden)
    tokenizer = tiny.tokenizer("bert")
    framed = tokenizer.framing.frame(np.append(tokenizer.encode(TEXT), tokenizer.id("separator")))
    whole = [token.original or token.text for token in reader.tokens]
    assert whole == readable_tokens(tokenizer, framed.ids.tolist())


def test_electra_shows_generator_and_discriminator():
    generator, discriminator = explained("electra", "replaced", density=0.4)[2].samples[0].readers
    assert (generator.name, discriminator.name) == ("generator", "discriminator")
    drawn = {question.place: question.drawn for question in generator.questions}
    assert {place: discriminator.tokens[place].text for place in drawn} == drawn
    assert all(0 <= token.replaced <= 1 for token in discriminator.tokens)


def test_elmo_reads_both_ways():
    ahead, back = explained("elmo", "bidirectional", length=40)[2].samples[0].readers
    assert (ahead.name, back.name) == ("ahead", "back")
    # Ahead the next word is asked for, back the one before.
    assert ahead.questions[1].target == ahead.tokens[2].text
    assert back.questions[2].target == back.tokens[1].text


def test_next_sentences_need_no_second_document():
    sample = explained("bert", "masked-next-sentence")[2].samples[0]
    (question,) = sample.about_text
    assert question.name == "next_sentence" and sum(question.probabilities) == pytest.approx(1)
    assert {token.segment for token in sample.readers[0].tokens} == {0, 1}


@pytest.mark.parametrize("script", ["Arabic", "Devanagari", "Thai", "Ethiopic"])
def test_a_second_document_is_one_that_the_tokenizer_knows(script):
    tokenizer = train_tokenizer("wordpiece", texts_of(script), 420, specials=SPECIALS)
    text = texts_of(script)[0]
    for other in other_texts(text, tokenizer):
        assert other != text and tokenizer.id("unknown") not in tokenizer.encode(other)
        assert sorted("".join(other.split())) == sorted("".join(text.split()))
    both = train_tokenizer("wordpiece", [*texts_of(script), *OTHER_TEXTS["en"] * 5], 900, specials=SPECIALS)
    assert other_texts(text, both) == OTHER_TEXTS["en"]


def test_an_objective_that_asks_in_parts_has_one_reader_and_says_what_was_hidden():
    (reader,) = explained("bert", "hybrid", density=0.5)[2].samples[0].readers
    assert reader.name == "model" and reader.questions
    # A token is predicted from the place before it.
    for question in reader.questions:
        token = reader.tokens[question.place + 1]
        assert question.target == (token.original or token.text)
    assert any(token.kind == "mask" and token.original for token in reader.tokens)


def test_a_student_is_called_so():
    names = [reader.name for reader in explained("bert", "distilled-masked")[2].samples[0].readers]
    assert names == ["student", "teacher"]


@pytest.mark.parametrize("family", ["bart", "transformer", "rnn"])
def test_spans_are_explained_for_families_without_sentinels(family):
    encoder, decoder = etymon.explain(family, TEXT, objective="span-corruption").samples[0].readers
    assert any(token.kind == "sentinel" for token in encoder.tokens) and decoder.questions


def test_a_terminal_says_which_columns_are_remembered_and_the_turns_of_targets(capsys):
    from etymon.verbs.explain import explain

    for family in ("transformer-xl", "xlnet"):
        options = explain.read({"model": family, "texts": [TEXT]})
        present(explain.run(options), options)
    shown = capsys.readouterr().out
    assert "are remembered" in shown and " │ " in shown
    orders = [line.split()[1:] for line in shown.splitlines() if line.startswith("  order ")]
    numbers = [int(number) for line in orders for number in line]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_explained_by_its_name(family, capsys):
    options = {"objective": "masked"} if family == "distilbert" else {}
    result = etymon.explain(family, "The cat sat on the mat. It slept there all day long.", **options)
    assert not result.trained and result.samples[0].readers
    assert all(not question.guesses for reader in result.samples[0].readers for question in reader.questions)


def test_another_seed_hides_other_words():
    first, same, other = (as_record(etymon.explain("bert", TEXT, seed=seed)) for seed in (0, 0, 1))
    assert json.dumps(first) == json.dumps(same) and first != other


def test_a_page_holds_all_of_it(tmp_path):
    out = tmp_path / "page.html"
    etymon.explain("xlnet", "小河穿过村庄。<script>船长打开了窗户。", out=out)
    page = out.read_text(encoding="utf-8")
    data = page.split('id="data">')[1].split("</script>")[0]
    assert "</script" not in data.lower()
    assert json.loads(data)["explanation"]["objective"] == "permutation"
    etymon.explain("bert", TEXT, out=tmp_path / "data.json")
    assert json.loads((tmp_path / "data.json").read_text())["family"] == "BERT"


def test_a_terminal_shows_chinese_in_its_columns(capsys):
    from etymon.display import display_width

    result = etymon.explain("bert", "小河穿过村庄。船长打开了窗户。")
    lines = token_lines(result.samples[0].readers[0], 60)
    assert all(display_width(line.plain.rstrip()) <= 60 for line in lines)
    read = next(line.plain for line in lines if "reads" in line.plain)
    place = next(line.plain for line in lines if "position" in line.plain)
    assert display_width(read) == display_width(place)


def test_trained_models_show_their_guesses(folder, capsys):
    from etymon.verbs.explain import explain

    options = explain.read({"model": str(folder("bert")), "texts": [TEXT], "objective": "masked"})
    result = explain.run(options)
    present(result, options)
    shown = capsys.readouterr().out
    assert result.trained and "guesses" in shown and "who sees whom" in shown


@pytest.fixture(scope="module")
def learnt_from_words(tmp_path_factory) -> Path:
    """A run with whole words of jieba, most of them hidden, whose options `explain` is to find by itself."""
    place = tmp_path_factory.mktemp("words")
    (place / "text.txt").write_text(
        "\n".join(["研究生命的起源是一个困难的问题。酒店的服务员态度非常好。"] * 40), encoding="utf-8"
    )
    etymon.pretrain(
        "bert", data=place / "text.txt", documents="line", out=place / "run", vocabulary=200, length=48,
        budget="1step", words="jieba", progress="silent",
        set=["options.masking=whole-words", "options.density=0.4", "shape.dim=32", "shape.heads=2", "shape.layers=1"],
    )  # fmt: skip
    return place / "run"


def hidden_pieces(reader) -> set[str]:
    """What was asked for, tokens side by side put together."""
    asked = {question.place: question.target.removeprefix("##") for question in reader.questions}
    pieces, last = [], None
    for place in sorted(asked):
        pieces = [*pieces[:-1], pieces[-1] + asked[place]] if last == place - 1 else [*pieces, asked[place]]
        last = place
    return set(pieces)


def test_a_model_is_explained_with_the_options_and_words_that_it_was_trained_with(learnt_from_words):
    text = "研究生命的起源是一个困难的问题。"
    words = ["研究", "生命", "的", "起源", "是", "一个", "困难", "的", "问题", "。"]
    bounds = [sum(map(len, words[:number])) for number in range(len(words) + 1)]
    runs = {text[first:last] for first in bounds for last in bounds if first < last}
    seeds = range(12)

    def reader_of(seed, **options):
        return etymon.explain(learnt_from_words, text, seed=seed, **options).samples[0].readers[0]

    readers = [reader_of(seed) for seed in seeds]
    assert np.mean([len(reader.questions) for reader in readers]) > 0.3 * len(text), "the run's density"
    pieces = set().union(*map(hidden_pieces, readers))
    assert pieces and pieces <= runs
    # What is said now goes before what was said then.
    few = [reader_of(seed, set=["density=0.1"]) for seed in seeds]
    assert np.mean([len(reader.questions) for reader in few]) < 0.2 * len(text)
    alone = set().union(*(hidden_pieces(reader_of(seed, words="tokens")) for seed in seeds))
    assert not alone <= runs, "characters by themselves, where every token is a word"


def test_a_tokenizer_may_be_that_of_a_run_or_of_its_model(learnt_from_words):
    text = "研究生命的起源。"
    readers = [
        etymon.explain("bert", text, objective="masked", tokenizer=place).samples[0].readers[0]
        for place in (learnt_from_words, learnt_from_words / "model", learnt_from_words / "tokenizer")
    ]
    assert readers[0].tokens == readers[1].tokens == readers[2].tokens


@pytest.mark.parametrize(
    "words, way",
    [
        ({}, None),
        ({"words": {"way": "jieba", "version": "1"}}, "jieba"),
        ({"words": {"zh": {"way": "jieba", "version": "1"}}}, "jieba"),
        ({"words": {"zh": {"way": "jieba", "version": "1"}, "th": {"way": "a:b", "version": "1"}}}, None),
    ],
)
def test_what_a_history_says_of_the_last_pretraining(words, way):
    history = [
        {"objective": "causal"},
        {"objective": "masked, then masked-next-sentence", "options": {"masking": "ngram"}, **words},
        {"objective": "classify", "task": {"name": "classify"}},
    ]
    last = last_pretraining(history)
    assert last.objective == "masked-next-sentence" and last.words == last.word_way((), None) == way
    assert last.options == {"masked-next-sentence": {"masking": "ngram"}}
    mixed = last_pretraining(
        [{"objective": "masked=0.7,causal=0.3", "options": {"masked": {"density": 0.2}}}]
    )
    assert mixed.objective is None and mixed.options == {"masked": {"density": 0.2}, "causal": {}}
    assert last_pretraining([]).objective is None


def test_an_objective_that_came_back_in_the_last_phase_is_the_one_that_is_explained(tmp_path):
    phases = [
        "{share: 0.3, objective: causal}",
        "{share: 0.3, objective: prefix}",
        "{share: 0.4, objective: causal, options: {isolated: true}}",
    ]
    with with_test_sizes():
        done = pretrain("gpt2", tmp_path / "run", steps=4, set=[f"phases=[{', '.join(phases)}]"])
    assert done.model.history[-1]["objective"] == "causal, then prefix, then causal"
    explanation = etymon.explain(done.folder, TEXT)
    assert explanation.objective == "causal"


def test_beside_chinese_no_piece_of_an_english_word_is_drawn():
    tokens = {
        token.text
        for seed in range(8)
        for reader in etymon.explain("electra", "小河穿过村庄。船长打开了窗户。", seed=seed)
        .samples[0]
        .readers
        for token in reader.tokens
        if token.kind != "special"
    }
    assert len(tokens) > 10 and not [token for token in tokens if re.search("[a-z]", token)]


def test_a_picture_in_chinese_says_memory_and_keeps_characters_upright(tmp_path, monkeypatch):
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    out = tmp_path / "page.svg"
    etymon.explain("transformer-xl", "小河穿过村庄。船长打开了窗户。", out=out)
    picture = out.read_text(encoding="utf-8")
    assert "记忆 -8" in picture and "memory" not in picture
    columns = re.findall(r"rotate\(-90[^>]*>([^<]+)</text>", picture)
    assert columns and all(len(name) > 1 for name in columns)


def test_options_may_be_written_as_pretrain_has_them():
    first, second = (
        as_record(etymon.explain("bert", TEXT, set=[given]))
        for given in ("density=0.5", "options.density=0.5")
    )
    assert first == second


def test_whole_words_that_nothing_shows_are_not_pretended(capsys):
    with pytest.raises(EtymonError, match="--words jieba"):
        etymon.explain("bert", "小河穿过村庄。", set=["masking=whole-words"])
    etymon.explain("albert", "小河穿过村庄。船长打开了窗户。")
    assert "each is hidden by itself" in capsys.readouterr().err
    etymon.explain("albert", "小河穿过村庄。船长打开了窗户。", words="jieba")
    etymon.explain("bert", TEXT, set=["masking=whole-words"])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("bert", "  "), {}, "blank"),
        (("bert", TEXT), {"objective": "causal"}, "causal"),
        (("bert", TEXT), {"objective": "maskd"}, "did you mean"),
        (("brt", TEXT), {}, "brt"),
        (("bert", TEXT), {"objective": "masked=0.5,causal=0.5"}, "one by one"),
        (("bert", TEXT), {"set": ["densty=1"]}, "densty"),
        (("bert", TEXT), {"out": "page.pdf"}, ".html"),
        (("t5", "a"), {}, "longer one"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, options, message):
    with pytest.raises(EtymonError, match=message) as caught:
        etymon.explain(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_the_page_of_the_documents_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "explaining.md").read_text(encoding="utf-8")
    shown = [run(words, capsys) for words in commands(block("explain", "sh", page))]
    assert len(shown) == 3 and (tmp_path / "xlnet.html").is_file()
    # What the page says it prints, wherever a terminal breaks its lines.
    for label in ("was", "predicts"):
        told, printed = (
            [
                word
                for line in text.splitlines()
                if line.startswith(f"  {label} ")
                for word in line.split()[1:]
            ]
            for text in (page, shown[0])
        )
        assert told == printed == ["slept", "day"]


def test_a_picture_in_chinese_of_an_english_text_has_letters_and_no_boxes(tmp_path, monkeypatch, caplog):
    """Its headings need a font, too, and nobody is told that a font for Chinese is not bold."""
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager

    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    if "Noto Sans CJK SC" not in families_for("谁看得见"):
        pytest.skip("no font for Chinese here")
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        etymon.explain("gpt2", "The cat sat on the mat.", out=tmp_path / "picture.svg")
        etymon.explain("gpt2", "小河穿过村庄。", out=tmp_path / "picture.png")
    assert not caplog.records
    assert "谁看得见谁 (所有层)" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
    # Where no system font is found, the headings alone are asked for and told of.
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    _search.cache_clear()
    etymon.explain("gpt2", "The cat sat on the mat.", out=tmp_path / "bare.png")
    _search.cache_clear()
    (record,) = caplog.records
    assert "fonts-noto-cjk" in record.getMessage() and "bare.png" in record.getMessage()


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_has_the_tokens(ending, tmp_path):
    out = tmp_path / f"picture.{ending}"
    etymon.explain("transformer-xl", "The cat cost $5. It slept all day.", out=out)
    assert out.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    if ending == "svg":  # the second sample, which remembers the first; a dollar sign begins no formula
        shown = out.read_text(encoding="utf-8")
        assert "memory -1" in shown and "slept" in shown


def test_a_long_token_is_written_smaller_and_touches_no_other(tmp_path):
    etymon.explain("gpt2", "The cat sat.", out=tmp_path / "picture.svg")
    shown = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    sizes = {
        text.strip(): float(size)
        for size, text in re.findall(r'<text style="[^"]*?size: ([\d.]+)px[^>]*>([^<]+)</text>', shown)[:4]
    }
    assert sizes["&lt;|endoftext|&gt;"] < 0.6 * sizes["The"]
