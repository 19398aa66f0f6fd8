"""The pages in real Chromium, with a real run: `make test-ui`.

BATON_DEMO names a Baton home in which `make demo` has run; without it, a tiny recipe is run first, with all real
engines. Screenshots are saved in test-output/ui.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.database import open_database
from baton.infra.lineage.graph import Graph
from baton.infra.tracking.execution import begin_execution, end_execution, flush
from baton.infra.tracking.record import tracked
from tests.lineage.recorded import record_hostile
from tests.source import ROOT
from tests.tracking.conftest import free_port
from tests.workflows.statements import DPO, GRPO, SFT
from tests.workflows.test_pretrain_to_rl import TINY, prepare, pyflyte

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SHOTS = ROOT / "test-output" / "ui"
SIZES = {"desk": (1440, 900), "phone": (390, 844)}
START_S = 90.0
# MLflow's page requests the current user; an MLflow server without accounts has no such route, and answers with 404
CURRENT_USER = "/ajax-api/2.0/mlflow/users/current"

# a model this small never writes a correct statement, and without a reward GRPO would not change the model
PAID = GRPO["grpo"] | {"rewards": [*GRPO["grpo"]["rewards"], {"similarity": {"unit": "characters"}}]}

Start = Callable[..., str]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Baton home with a run from text to a GRPO model, and a second run that reused most stages from the cache."""
    if given := os.environ.get("BATON_DEMO"):
        return Path(given)
    folder = tmp_path_factory.mktemp("demo")
    for steps in (3, 4):
        stages = [{"sft": SFT["sft"] | {"steps": steps}}, DPO, {"grpo": PAID}]
        recipe = prepare(folder / str(steps), TINY | {"post_training": stages})
        shutil.copytree(folder / "3" / "sources", folder / "sources", dirs_exist_ok=True)
        ended = pyflyte(folder, recipe)
        assert ended.returncode == 0, ended.stderr[-3000:]
    subprocess.run(
        [sys.executable, "-m", "baton", "tracking", "sync"],
        env=os.environ | {"BATON_HOME": str(folder / "baton")},
        cwd=ROOT,
        check=True,
    )
    return folder / "baton"


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """A function that starts `baton ui` on a home and returns its address."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(home: Path, *words: str) -> str:
        port = free_port()
        environment = os.environ | {"BATON_HOME": str(home)}
        command = [sys.executable, "-m", "baton", "ui", "--port", str(port), *words]
        started.append(subprocess.Popen(command, env=environment, cwd=ROOT))
        base, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{base}/lineage/executions", timeout=10):
                    return base
            except (urllib.error.URLError, OSError):
                assert started[-1].poll() is None and time.monotonic() < deadline, "the page did not start"
                time.sleep(0.2)

    yield begin
    for process in started:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def base(demo: Path, start: Start) -> str:
    return start(demo)


@pytest.fixture(scope="session")
def made(demo: Path) -> dict[str, Run]:
    """The stages of the demo's first execution, by title."""
    graph = Graph(open_database(f"sqlite:///{demo / 'mlflow.db'}")).refresh()
    first = min(graph.executions.values(), key=lambda each: each.started)
    return {run.title: run for run in graph.stages(first.id)}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


def is_fault(line: ConsoleMessage) -> bool:
    return line.type == "error" and not line.location["url"].endswith(CURRENT_USER)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test on a script error, a dialog, or a request to another host."""
    permissions = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(viewport={"width": 1440, "height": 900}, permissions=permissions)
    found, faults = context.new_page(), list[str]()
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("dialog", lambda dialog: faults.append(dialog.message))
    found.on("console", lambda line: faults.append(f"{line.text}: {line.location['url']}") if is_fault(line) else None)
    found.on("request", lambda call: None if call.url.startswith("http://127.0.0.1:") else faults.append(call.url))
    yield found
    context.close()
    assert faults == []


def keep(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def output(run: Run) -> str:
    assert run.output is not None
    return run.output


def test_from_the_list_to_a_model_its_lineage_and_a_comparison(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/")
    page.get_by_label("Search", exact=True).fill(made["grpo"].execution)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("row")).to_have_count(2)  # including the header
    page.get_by_role("row").nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    keep(page, "1-execution")

    page.locator(f'a[data-node="{output(made["grpo"])}"]').click()
    expect(page).to_have_url(re.compile(f"/lineage/artifacts/{output(made['grpo'])}$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("grpo")

    page.get_by_label("Show the path to").select_option(value=output(made["corpus"]))
    page.get_by_role("button", name="Show").click()
    on = page.locator(".artifact.on")
    chain = ("corpus", "tokenizer", "shards", "rows-statements", "pretrain", "convert", "sft", "dpo", "grpo")
    nodes = {node.get_attribute("data-node") for node in on.all()}
    assert nodes == {output(made[title]) for title in chain}
    expect(page.locator(f'a[data-node="{output(made["evaluate-grpo"])}"]')).to_have_class(re.compile("off"))
    keep(page, "2-path")

    page.get_by_role("link", name="Compare with…").click()
    page.get_by_label("Model B").select_option(value=output(made["sft"]))
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("grpo and sft")
    judged = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="all_checks"))
    expect(judged.locator(".verdict")).to_have_text(re.compile("▲ better|▼ worse|≈ within noise"))
    sample = page.locator(".sample-pair").first
    expect(sample.get_by_role("heading")).to_have_text([*names_of(page), "reference"][: sample.locator("h3").count()])
    keep(page, "3-compare")


def names_of(page: Page) -> list[str]:
    """Return the names of the two models of a comparison."""
    return page.locator("h1").inner_text().split(" and ")


def test_executions_are_sorted_by_a_click_and_filtered_by_recipe(page: Page, base: str) -> None:
    page.goto(f"{base}/lineage/executions")
    page.get_by_role("link", name="Duration").click()
    page.get_by_role("link", name="Duration").click()
    expect(page.get_by_role("columnheader", name="Duration")).to_have_attribute("aria-sort", "ascending")
    name = page.get_by_role("rowheader").first.get_by_role("link").inner_text()
    page.get_by_label("Recipe").select_option(name)
    page.get_by_label("From (UTC)").fill("2020-01-01")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader").get_by_role("link").first).to_have_text(name)
    page.get_by_label("To", exact=True).fill("2020-01-02")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".empty")).to_contain_text("Nothing matches")


def test_a_slash_focuses_the_search_and_a_button_copies_a_digest(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/artifacts/{output(made['grpo'])}")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.locator(".digest .copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == output(made["grpo"])


def test_the_report_is_one_click_away_and_files_are_downloaded(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/executions/{made['grpo'].execution}")
    page.get_by_role("link", name="Report", exact=True).click()
    expect(page).to_have_url(re.compile("report.html$"))
    expect(page.locator("h1")).to_be_visible()
    page.goto(f"{base}/lineage/artifacts/{output(made['grpo'])}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download config.json").click()
    assert "vocab_size" in Path(download.value.path()).read_text()


def test_a_log_is_searched_and_its_lines_wrap(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/runs/{made['grpo'].id}/log")
    line = page.locator(".line code").first
    expect(line).to_have_css("white-space", "pre-wrap")
    page.get_by_label("Wrap long lines").uncheck()
    expect(line).to_have_css("white-space", "pre")
    page.get_by_label("Search in the log").fill("loss")
    page.get_by_role("button", name="Find").click()
    assert all("loss" in found.lower() for found in page.locator(".line code").all_inner_texts())


def test_curves_show_values_under_the_pointer_and_change_axes(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/runs/{made['pretrain'].id}")
    chart = page.locator("svg.chart").first
    expect(chart.locator(".title")).to_have_text("loss")
    chart.hover()
    expect(chart.locator(".reading")).to_have_text([re.compile(r"^step \d+$"), re.compile(r"^[\d.]+$")])
    page.mouse.move(5, 5)
    expect(chart.locator(".reading")).to_have_count(0)
    page.get_by_role("link", name="time").click()
    page.get_by_role("link", name="log", exact=True).click()
    expect(page).to_have_url(re.compile("x=time"))
    expect(chart.locator(".tick").last).to_have_text(re.compile("seconds|minutes|hours"))


def test_the_recipe_is_shown_as_yaml(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/executions/{made['grpo'].execution}")
    expect(page.get_by_text(re.compile(r"^name: \w+\ncorpus:"))).to_be_visible()


def addresses(made: dict[str, Run]) -> dict[str, str]:
    grpo, sft, corpus = output(made["grpo"]), output(made["sft"]), output(made["corpus"])
    return {
        "executions": "/executions",
        "execution": f"/executions/{made['grpo'].execution}",
        "model": f"/artifacts/{grpo}?to={corpus}",
        "corpus": f"/artifacts/{corpus}",
        "evaluation": f"/artifacts/{output(made['evaluate-grpo'])}",
        "run": f"/runs/{made['pretrain'].id}",
        "compare": f"/compare?a={grpo}&b={sft}",
        "models": "/models",
        "metrics": "/metrics",
        "log": f"/runs/{made['grpo'].id}/log",
        "missing": "/executions/none",
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits(
    browser: Browser, base: str, made: dict[str, Run], size: str, scheme: Literal["light", "dark"]
) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page, axe, faults = context.new_page(), Axe(), list[str]()
    for name, address in addresses(made).items():
        page.goto(f"{base}/lineage{address}")
        keep(page, f"{name}-{size}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for violation in axe.run(page).response["violations"]:
            where = [node["target"] for node in violation["nodes"]][:3]
            faults.append(f"{name}: {violation['impact']} {violation['id']}: {violation['help']} {where}")
    context.close()
    assert faults == []


def test_everything_can_be_read_without_javascript(browser: Browser, base: str, made: dict[str, Run]) -> None:
    def words(javascript: bool) -> dict[str, str]:
        context = browser.new_context(java_script_enabled=javascript)
        page, found = context.new_page(), {}
        for name, address in addresses(made).items():
            page.goto(f"{base}/lineage{address}")
            found[name] = re.sub(r"\d+ (s|min) ago|[−+]|Fit", "", page.locator("main").inner_text()).split()
        context.close()
        return {name: " ".join(each) for name, each in found.items()}

    assert words(javascript=False) == words(javascript=True)


def test_the_graph_zooms_and_is_dragged(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/executions/{made['grpo'].execution}")
    canvas, width = page.locator(".canvas"), "document.querySelector('svg.graph').getBoundingClientRect().width"
    before = page.evaluate(width)
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    assert page.evaluate(width) > 1.8 * before
    canvas.evaluate("canvas => canvas.scrollTo(0, 0)")
    box = canvas.bounding_box()
    assert box is not None
    address = page.url
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 60, steps=5)
    page.mouse.up()
    assert canvas.evaluate("canvas => canvas.scrollLeft") > 150
    assert page.url == address  # a drag is not a click
    page.get_by_role("button", name="Fit").click()
    assert page.evaluate(width) < 1440


def test_the_keyboard_reaches_every_node(page: Page, base: str, made: dict[str, Run]) -> None:
    page.goto(f"{base}/lineage/executions/{made['grpo'].execution}")
    reached: set[str] = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        if node := page.evaluate("document.activeElement.dataset.node"):
            reached.add(node)
    assert {output(made["corpus"]), output(made["grpo"]), made["pretrain"].id} <= reached


def test_mlflow_is_on_the_same_port(page: Page, base: str) -> None:
    with page.expect_response(f"**{CURRENT_USER}"):  # the page's script has run
        page.goto(f"{base}/")
    expect(page).to_have_title(re.compile("MLflow"))
    expect(page.get_by_role("link", name="Experiments").first).to_be_visible()
    with urllib.request.urlopen(f"{base}/health") as answer:
        assert answer.read() == b"OK"


def test_progress_moves_without_a_reload(page: Page, home: Path, tmp_path: Path, start: Start) -> None:
    id = begin_execution("running", {}, plan=["pretrain", "convert"])
    job = tmp_path / "job"
    job.mkdir()

    def at(step: int) -> None:
        (job / "progress.json").write_text(
            f'{{"done": {step}, "total": 40, "unit": "steps", "shown": {{"loss": {9 / step}}}}}'
        )
        with (job / "metrics.jsonl").open("a") as curve:
            curve.write(json.dumps({"step": step, "time": time.time(), "loss": 9 / step}) + "\n")
        assert flush(60)

    with tracked("pretrain", job, spec={}, inputs={}):
        at(10)
        page.goto(f"{start(home, '--without-mlflow')}/lineage/executions/{id}")
        expect(page.locator(".progress")).to_contain_text("10 of 40 steps")
        page.evaluate("window.same = true")
        at(20)
        expect(page.locator(".progress")).to_contain_text("20 of 40 steps", timeout=15_000)
        expect(page.locator(".progress")).to_contain_text("left")
        expect(page.locator("figure .title")).to_have_text("pretrain loss")
        expect(page.locator(".to-come")).to_contain_text("convert")
        keep(page, "running")
    end_execution()
    flush(60)
    expect(page.locator("h1 + .state")).to_have_text("finished", timeout=15_000)
    assert page.evaluate("window.same")


def test_malicious_names_are_harmless(page: Page, home: Path, start: Start) -> None:
    id = record_hostile()
    base = start(home, "--without-mlflow")
    for address in ("/executions", f"/executions/{id}", f"/artifacts/{'e' * 64}", "/compare"):
        page.goto(f"{base}/lineage{address}")
        expect(page.locator("h1")).to_be_visible()
        assert page.locator("main script, main img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        keep(page, "hostile" + address.replace("/", "-")[:20])
