"""The page at /chat, and a second model below /beside; in real Chromium with `-m slow` (`make test-serve`)."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from baton.tasks.serve.chat_page import FILES
from baton.tasks.serve.proxy import MODEL_HEADER
from baton.tasks.serve.switch import Backend, Switch
from tests.serve.front import front_of
from tests.serve.small_server import app
from tests.serve.test_proxy import running
from tests.source import ROOT

KEY = "the key"
DIGEST, OTHER = "aa" * 32, "bb" * 32
SHOTS = ROOT / "test-output" / "ui"


@pytest.fixture(scope="module")
def backends() -> Iterator[list[str]]:
    with ExitStack() as stack:
        apps = [app(DIGEST, "coder"), app(OTHER, "writer"), app(DIGEST, "plain", "has no template")]
        yield [stack.enter_context(running(each)) for each in apps]


@pytest.fixture(scope="module")
def one(backends: list[str]) -> Iterator[str]:
    """A service of one model."""
    switch = Switch()
    switch.turn(Backend(backends[0], DIGEST))
    with front_of(switch) as url:
        yield url


@pytest.fixture(scope="module")
def two(backends: list[str]) -> Iterator[str]:
    """A service of two models."""
    switches = Switch(), Switch()
    for switch, backend, digest in zip(switches, backends, (DIGEST, OTHER), strict=False):
        switch.turn(Backend(backend, digest))
    with front_of(switches[0], beside=switches[1]) as url:
        yield url


@pytest.fixture
def locked(backends: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service with a key."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    switch = Switch()
    switch.turn(Backend(backends[0], DIGEST))
    with front_of(switch) as url:
        yield url


@pytest.mark.parametrize("path", FILES)
def test_its_files_need_no_key_and_allow_nothing_from_elsewhere(locked: str, path: str) -> None:
    answer = httpx.get(f"{locked}{path}")
    assert answer.is_success and answer.content
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert httpx.head(f"{locked}{path}").headers["content-length"] == str(len(answer.content))
    assert httpx.post(f"{locked}{path}").status_code == 404


@pytest.mark.parametrize("path", ["/chat/", "/chat/x", "/chat/chat.html", "/beside/v1/models"])
def test_nothing_else_is_beside_it(one: str, path: str) -> None:
    assert httpx.get(f"{one}{path}").status_code == 404


def test_the_second_model_s_api_is_below_beside(two: str) -> None:
    for prefix, digest, name in (("", DIGEST, "coder"), ("/beside", OTHER, "writer")):
        answer = httpx.post(f"{two}{prefix}/v1/completions", json={"model": name, "prompt": "", "max_tokens": 1})
        assert (answer.headers[MODEL_HEADER], answer.json()["model"]) == (digest, digest)
        assert httpx.get(f"{two}{prefix}/baton").json()["serving"]["model"] == digest
    wrong = httpx.post(f"{two}/beside/v1/completions", json={"model": "coder", "prompt": ""})
    assert wrong.status_code == 404 and "This server has" in wrong.text and "writer" in wrong.text
    for path in ("", "/", "/healthz", "/chat", "/beside/v1/models", "//v1/models", "v1/models"):
        assert httpx.get(f"{two}/beside{path}").status_code == 404


def test_it_serves_once_both_models_do(backends: list[str]) -> None:
    first, second = Switch(), Switch()
    with front_of(first, beside=second) as url:
        first.turn(Backend(backends[0], DIGEST))
        assert httpx.get(f"{url}/healthz").status_code == 503
        assert httpx.get(f"{url}/beside/v1/models").status_code == 503
        assert httpx.get(f"{url}/v1/models").is_success
        second.turn(Backend(backends[1], OTHER))
        assert httpx.get(f"{url}/healthz").is_success


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test on a script error, a dialog, or a request to another host."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    found, faults = context.new_page(), list[str]()
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("dialog", lambda dialog: faults.append(dialog.message))
    found.on("request", lambda call: None if call.url.startswith("http://127.0.0.1:") else faults.append(call.url))
    yield found
    context.close()
    assert faults == []


def keep(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"chat-{name}.png", full_page=True)


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


@pytest.mark.slow
def test_a_conversation_by_keyboard(page: Page, one: str) -> None:
    page.goto(f"{one}/chat")
    expect(page.get_by_text(f"model {DIGEST}")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    send(page, "first")
    expect(page.get_by_text("You said first", exact=True)).to_be_visible()
    page.get_by_text("System message and sampling").click()
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    send(page, "everything")
    expect(page.get_by_text('"temperature": 0.5')).to_contain_text('"seed": 7')
    for part in ("Be brief.", "You said first"):
        expect(page.get_by_text('"temperature": 0.5')).to_contain_text(part)
    send(page, "forever")
    expect(page.get_by_text("word9 ")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("· stopped")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_text("first")).to_have_count(0)


@pytest.mark.slow
def test_a_model_s_text_is_text(page: Page, one: str) -> None:
    page.goto(f"{one}/chat")
    send(page, "hostile")
    expect(page.get_by_text("<script>alert(2)</script>")).to_be_visible()
    assert page.locator(".turns img, .turns script").count() == 0
    keep(page, "hostile")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (360, "light")])
def test_two_models_answer_side_by_side(browser: Browser, two: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{two}/chat")
    expect(page.get_by_role("log")).to_have_count(2)
    send(page, "hi there, both of you")
    expect(page.get_by_text("You said hi there, both of you")).to_have_count(2)
    for digest in (DIGEST, OTHER):
        expect(page.get_by_text(f"model {digest}")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [violation["id"] for violation in Axe().run(page).response["violations"]] == []
    keep(page, f"two-{width}-{scheme}")
    context.close()


@pytest.mark.slow
def test_a_key_is_asked_for(page: Page, locked: str) -> None:
    page.goto(f"{locked}/chat")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the API key is missing or wrong")
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    send(page, "hi")
    expect(page.get_by_text("You said hi", exact=True)).to_be_visible()
    assert KEY not in page.content()


@pytest.mark.slow
def test_a_model_without_a_template_says_what_to_do_and_completes(page: Page, backends: list[str]) -> None:
    switch = Switch()
    with front_of(switch) as url:
        page.goto(f"{url}/chat")
        expect(page.get_by_role("alert")).to_contain_text("still starting")
        switch.turn(Backend(backends[2], DIGEST))
        expect(page.get_by_role("heading", name="plain")).to_be_visible()
        send(page, "def f(")
        expect(page.get_by_text("This model has no chat template")).to_be_visible()
        page.get_by_text("System message and sampling").click()
        page.get_by_label("Completion").check()
        page.get_by_label("Maximum tokens").fill("4")
        send(page, "def f(")
        expect(page.get_by_text("0123", exact=True)).to_be_visible()
