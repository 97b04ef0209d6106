"""The page at `/`, used in a browser as a person would: every panel, in both languages, light and dark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import etymon
from etymon.families.loading import load
from etymon.families.saving import save
from etymon.server.guard import GuardSettings
from tests import tiny
from tests.server.conftest import Running, hold_until_cancelled, running, wait_until

CHROMIUM = Path("/usr/bin/chromium")
TEXT = "The cat sat on the mat."
MOST_BYTES = 300_000
# A panel, a model that has it, what is typed, and what is seen when it has run.
PANELS = [
    ("write", "gpt2", {"prompt": TEXT, "max_tokens": 6}, ".piece"),
    ("fill", "bert", {"text": "The [MASK] sat on the ___."}, ".bars meter"),
    ("replaced", "discriminator", {"text": TEXT}, ".heat td"),
    ("predict", "classifier", {"text": TEXT}, ".bars meter"),
    ("predict", "pairs", {"question": "Who sat?", "passage": TEXT}, ".bars meter"),
    ("predict", "reader", {"question": "Who sat?", "context": TEXT}, ".written"),
    ("predict", "tagger", {"words": "The cat sat in Paris ."}, ".heat td"),
    ("predict", "finder", {"sentence": "The cat sat in 北京 with 𝒳 soup."}, ".written"),
    ("predict", "rater", {"text": TEXT}, ".written"),
    ("predict", "chooser", {"premise": TEXT, "ends": "It slept.\nIt flew.\nIt sat."}, ".bars meter"),
    ("translate", "t5", {"text": TEXT, "max_new_tokens": 6}, ".written"),
    ("summarize", "t5", {"text": TEXT, "max_new_tokens": 6}, ".written"),
    ("embed", "bert", {"texts": f"{TEXT}\nA dog"}, ".heat td"),
    ("attention", "gpt2", {"text": TEXT}, ".heads button"),
    ("lens", "gpt2", {"text": TEXT}, ".heat td"),
    ("lens", "bert", {"text": TEXT}, ".heat td"),
    ("score", "gpt2", {"text": TEXT}, ".word"),
    ("explain", "bert", {"texts": TEXT}, ".token"),
]
TASKS: dict[str, tuple[str, tuple[str, ...], str, dict[str, Any]]] = {
    "reader": ("span", (), "answer", {}),
    "pairs": ("classification", ("no", "yes"), "classify", {"text": "question", "second": "passage"}),
    "tagger": ("tagging", ("NOUN", "VERB"), "tag", {"tokens": "words", "tags": "tags"}),
    "finder": ("tagging", ("O", "B-PLACE", "I-PLACE"), "tag", {"text": "sentence", "entities": "places"}),
    "rater": ("classification", ("value",), "regress", {"text": "text"}),
    "chooser": ("choice", (), "choose", {"text": "premise", "choices": ["ends"]}),
}
LANGUAGES = [("en", "light"), ("zh", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed: make chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("tasks")
    for name, (head, labels, task, options) in TASKS.items():
        model = tiny.model("bert", frozenset({head}), **({"labels": labels} if labels else {}))
        model.history = [{"task": {"name": task, "options": options, "limits": {}, "labels": list(labels)}}]
        save(model, place / name)
    with running({**folders, **{name: place / name for name in TASKS}}) as started:
        yield started


@pytest.fixture
def open_page(browser: Any, site: Running) -> Iterator[Callable[..., Any]]:
    """Opens the page at a state; at the end, nothing may have gone wrong in it."""
    contexts, complaints, foreign = [], [], []

    def visit(
        state: dict[str, Any], scheme: str = "light", width: int = 1200, address: str | None = None
    ) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda sent: foreign.append(sent.url) if not sent.url.startswith(site.url) else None,
        )
        page.goto(address or f"{site.url}/#{urlencode(state)}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert foreign == []


def link(panel: str, model: str, fields: dict[str, Any], language: str = "en", **more: Any) -> dict[str, Any]:
    typed = {f"f.{name}": value for name, value in fields.items()}
    return {"lang": language, "panel": panel, "model": model, **typed, **more}


def finished(page: Any) -> None:
    """Waits until the answers of all models are there."""
    page.wait_for_selector("#status:text-matches('Done|完成')")


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in Axe().run(page).response["violations"]]


@pytest.mark.parametrize(("language", "scheme"), LANGUAGES)
@pytest.mark.parametrize(("panel", "model", "fields", "seen"), PANELS)
def test_every_panel_answers_and_is_accessible(
    open_page: Callable[..., Any],
    panel: str,
    model: str,
    fields: dict[str, Any],
    seen: str,
    language: str,
    scheme: str,
) -> None:
    page = open_page({"lang": language, "model": model}, scheme)
    page.click(f"#to-{panel}")
    for name, value in fields.items():
        page.fill(f"#field-{name}", str(value))
    page.click("#run")
    finished(page)
    assert page.locator(f"#results {seen}").count() > 0
    assert page.locator(".error").count() == 0
    assert violations(page) == []


@pytest.mark.parametrize(
    ("panel", "model", "fields", "seen"),
    [each for each in PANELS if each[:2] in (("write", "gpt2"), ("predict", "reader"), ("explain", "bert"))],
)
def test_a_link_shows_the_same_again(
    open_page: Callable[..., Any], panel: str, model: str, fields: dict[str, Any], seen: str
) -> None:
    page = open_page(link(panel, model, fields))
    page.click("#run")
    finished(page)
    shown, address = page.inner_text("#results"), page.url
    again = open_page({}, address=address)
    finished(again)
    assert again.inner_text("#results") == shown


def test_texts_are_those_of_the_command_line(open_page: Callable[..., Any], folders: dict[str, Path]) -> None:
    page = open_page(link("write", "gpt2", {"prompt": TEXT, "max_tokens": 8, "search": "true", "seed": 3}))
    page.click("#run")
    finished(page)
    model = load(folders["gpt2"])
    expected = [
        etymon.generate(model, TEXT, max_new_tokens=8),
        etymon.generate(model, TEXT, max_new_tokens=8, sample=True, temperature=0.8, seed=3),
        etymon.generate(model, TEXT, max_new_tokens=8, beams=4),
    ]
    written = page.locator(".written").evaluate_all("all => all.map(each => each.textContent)")
    assert written == [answer[0].text for answer in expected]
    # What else was likely, at a token that is reached with the keyboard, and at the cursor.
    page.locator(".piece").first.focus()
    assert page.locator("#results .bars tr").count() == 10
    page.click("#at-cursor summary")
    page.wait_for_selector("#next .bars tr")
    before = page.inner_text("#next")
    page.locator("#field-prompt").evaluate("field => field.setSelectionRange(3, 3)")
    page.locator("#field-prompt").press("ArrowRight")
    page.wait_for_function("before => document.getElementById('next').innerText !== before", arg=before)


def test_two_models_answer_side_by_side(open_page: Callable[..., Any]) -> None:
    page = open_page(link("score", "gpt2", {"text": TEXT}))
    page.wait_for_selector("#beside option[value=bert]", state="attached")
    offered = page.locator("#beside option").evaluate_all("all => all.map(each => each.value)")
    assert "bert" in offered and "discriminator" not in offered
    page.select_option("#beside", "bert")
    page.click("#run")
    finished(page)
    assert page.locator("#results > section").count() == 2
    assert page.locator("#results .words").count() == 2
    assert "beside=bert" in page.url and violations(page) == []


def test_panels_are_those_of_the_model(open_page: Callable[..., Any], site: Running) -> None:
    page = open_page({"lang": "en"})
    for model, there, absent in (
        ("gpt2", "write", "fill"),
        ("bert", "fill", "write"),
        ("rnn", "translate", "lens"),
    ):
        page.select_option("#model", model)
        page.wait_for_selector(f"#to-{there}")
        assert page.locator(f"#to-{absent}").count() == 0
    page.click("#language")
    assert page.inner_text("#run") == "运行" and page.get_attribute("html", "lang") == "zh-Hans"


def test_heads_are_chosen_and_kept_in_the_link(open_page: Callable[..., Any]) -> None:
    page = open_page(link("attention", "gpt2", {"text": TEXT}, run=1))
    finished(page)
    mean = page.inner_text(".heat")
    page.locator(".heads button").nth(3).press("Enter")
    assert page.inner_text(".heat") != mean
    assert page.locator(".heads button").nth(3).get_attribute("aria-pressed") == "true"
    assert "c.layer=1" in page.url


def test_copied_requests_are_what_the_page_asked(open_page: Callable[..., Any], site: Running) -> None:
    page = open_page(link("fill", "bert", {"text": 'It\'s the ___ "cat"', "top": 3}))
    copied = {}
    for name in ("command", "Python", "curl"):
        page.get_by_role("button", name=f"Copy as {name}").click()
        copied[name] = page.inner_text("#copied pre")
        page.wait_for_function(
            "async text => await navigator.clipboard.readText() === text", arg=copied[name]
        )
    words = shlex.split(copied["command"])
    assert words == ["etymon", "fill", "bert", 'It\'s the ___ "cat"', "--top-k", "3"]
    compile(copied["Python"], "copied", "exec")
    assert 'etymon.fill(model, ["It\'s the ___ \\"cat\\""], top_k=3)' in copied["Python"]
    body = json.loads(shlex.split(copied["curl"])[-1])
    assert site.post("/fill", **body).status_code == 200 and body["model"] == "bert"


def test_mistakes_are_told_and_a_stream_can_be_stopped(
    open_page: Callable[..., Any], site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(link("fill", "bert", {"text": ""}))
    page.click("#run")
    page.wait_for_selector("#status:text('Write something first.')")
    decoder = site.state.store.get("gpt2", "vocabulary").build_decoder()
    hold_until_cancelled(monkeypatch, decoder, 3)
    page = open_page(link("write", "gpt2", {"prompt": TEXT, "max_tokens": 200, "sampled": "false"}))
    page.click("#run")
    page.wait_for_selector(".piece")
    page.click("#stop")
    page.wait_for_selector("#status:text('Stopped.')")
    wait_until(lambda: site.state.scheduler.rows == 0)


def test_a_server_with_a_key_asks_for_it(browser: Any, folders: dict[str, Path]) -> None:
    with running({"bert": folders["bert"]}, guard=GuardSettings(key="open sesame")) as started:
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(started.url)
        page.wait_for_selector(".error")
        page.fill("#key", "open sesame")
        page.press("#key", "Tab")
        page.wait_for_selector("#run")
        assert "sesame" not in page.url
        page.close()


def test_the_page_is_small_and_allows_nothing_foreign(open_page: Callable[..., Any], site: Running) -> None:
    page = open_page({"lang": "en"}, width=380)
    page.wait_for_selector("#run")
    sizes = page.evaluate("performance.getEntriesByType('resource').map(each => each.decodedBodySize)")
    assert 0 < sum(sizes) < MOST_BYTES
    # Nothing is wider than a telephone.
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    policy = page.request.get(site.url).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


@pytest.mark.parametrize(("language", "scheme"), LANGUAGES)
def test_pages_of_explain_and_attention_work_by_themselves(
    browser: Any,
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    language: str,
    scheme: str,
) -> None:
    """From a file, without a server: steps, heads, and nothing asked of anybody."""
    monkeypatch.setenv("ETYMON_LANGUAGE", language)
    etymon.explain("xlnet", TEXT, out=tmp_path / "explain.html")
    etymon.attention(str(folders["bert"]), "The cat sat in 北京.", out=tmp_path / "attention.html")
    context = browser.new_context(color_scheme=scheme)
    page, complaints, asked = context.new_page(), [], []
    page.set_default_timeout(60_000)
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: asked.append(sent.url))
    page.goto((tmp_path / "explain.html").as_uri())
    steps = page.locator(".controls button")
    page.locator(".controls input").fill("0")
    assert page.locator(".token.now").count() == 1
    first = page.locator(".detail").first.inner_text()
    steps.nth(2).click()
    assert page.locator(".detail").first.inner_text() != first
    page.locator(".controls input").fill("99")
    assert violations(page) == []
    # What a token does not see is dimmed.
    page.locator(".token").first.focus()
    assert page.locator(".token.unseen").count() > 0
    page.goto((tmp_path / "attention.html").as_uri())
    page.locator("#grid button").nth(4).press("Enter")
    assert page.locator("#layer").input_value() == "1" and page.locator("#head").input_value() == "1"
    assert page.locator("#grid button").nth(4).get_attribute("aria-pressed") == "true"
    assert violations(page) == []
    context.close()
    assert complaints == [] and all(url.startswith("file:") for url in asked)
