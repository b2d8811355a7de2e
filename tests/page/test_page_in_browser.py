"""The page in a real browser (skipped where there is no Chromium): it shows runs, obeys clicks, and stays quiet."""

import html
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.processes import CPU
from faults.small_runs import OUTSIDE, minigan_and_pictures
from frugan.page import server
from frugan.page.latents import Latents
from frugan.page.queue import Queue
from frugan.page.server import served
from frugan.reporting.grids import write_grid
from frugan.training.training import train
from page.test_explore import STYLED, add_checkpoint
from reporting.test_report import made_run
from reporting.test_report_in_browser import CHROMIUM, QUIET
from sampling.generators import MODELS, write

LISTEN = """
window.heard = [];
window.addEventListener("error", (event) => heard.push(event.message || String(event.target.src)), true);
window.addEventListener("unhandledrejection", (event) => heard.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => heard.push(`${event.violatedDirective} broken`));
"""
PLAY = """
const put = (name, value) => document.body.setAttribute(`data-${name}`, String(value));
const until = (what) => new Promise((go) => {
  const look = () => { const found = what(); if (found) go(found); else setTimeout(look, 30); };
  look();
});
const all = (words) => [...document.querySelectorAll(words)];
const one = (words) => document.querySelector(words);
const named = (words, name) => all(words).find((each) => each.textContent === name);
const painted = (canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
const end = () => put("elsewhere", performance.getEntriesByType("resource")
  .filter((entry) => !entry.name.startsWith(location.origin)).map((entry) => entry.name).join());
(async () => {
  try { await (async () => { SCRIPT })(); } catch (error) { heard.push(String(error)); }
  end();
  put("heard", heard.join("; "));
})();
"""

PAGE_MILLISECONDS = 200_000
FALLING = "optimizers.G.final_learning_rate=0.0001"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
Play = Callable[[str, str], dict[str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made_run(tmp_path / "runs" / "one")
    made_run(tmp_path / "runs" / "two", steps=20, grids=2)
    faces = made_run(tmp_path / "runs" / "faces", steps=3, grids=0)
    grid = torch.rand(2, 3, 3, 32, 32) * 2 - 1
    for step in (1, 2):
        write_grid(grid, faces / "samples" / f"step-{step:09d}-preview.png", titles=("S", "D", "SD"))
        write_grid(grid, faces / "samples" / f"step-{step:09d}-preview-masked.png", titles=("S", "D", "SD"))
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    (faces / "owner.json").write_text(json.dumps(about))
    return tmp_path / "runs"


@pytest.fixture
def play(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Opens a part of the page, runs a script in it, and returns what that put down."""
    monkeypatch.setattr(Queue, "ensure_runner", lambda queue: None)
    own_file = server._own_file
    script = [""]

    def with_script(name: str) -> str:
        text = own_file(name)
        return LISTEN + text + PLAY.replace("SCRIPT", script[0]) if name == "page.js" else text

    monkeypatch.setattr(server, "_own_file", with_script)

    def opened(fragment: str) -> dict[str, str]:
        with served(runs, 0) as (address, _):
            # the page waits between two looks, and on a busy machine the server is slower than the page's own clock
            long = f"--virtual-time-budget={PAGE_MILLISECONDS}"
            words = [str(CHROMIUM), *QUIET, long, f"--user-data-dir={tmp_path / 'profile'}", f"{address}#{fragment}"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        (body,) = re.findall(r"<body([^>]*)>", done.stdout)
        return {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', body)}

    def run(fragment: str, acts: str) -> dict[str, str]:
        script[0] = acts
        told = opened(fragment)
        assert told.pop("heard") == "", told
        assert told.pop("elsewhere") == ""
        return told

    return run


def test_the_list_and_two_runs_side_by_side(play: Play) -> None:
    told = play(
        "",
        """
        await until(() => all(".card img").filter((image) => image.naturalWidth > 0).length === 3);
        put("names", all(".card b").map((each) => each.textContent).sort());
        put("states", all(".card .state").map((each) => each.textContent).sort());
        put("address", location.search);
        const compared = all(".card").filter((each) => each.textContent.match(/one|two/));
        for (const card of compared) card.querySelector("input").click();
        one("#compare button").click();
        await until(() => all("#run .sheet img").length === 2 && all("#run figure").length > 3);
        await until(() => all("#run .sheet img").every((image) => image.naturalWidth > 0));
        put("heads", all("#run h1").map((each) => each.textContent).sort());
        put("painted", all("#run .charts canvas").every(painted));
        const table = document.createElement("div"), range = document.createRange();
        table.style.width = "180px";
        table.innerHTML = `<div class="scroll"><table><tr>${"<td>averaged 13,000</td>".repeat(4)}`;
        document.body.append(table);
        range.selectNodeContents(table.querySelector("td"));
        put("lines", range.getClientRects().length); // of two words, neither of which is broken
        const asks = window.fetch;
        window.fetch = () => Promise.reject(new TypeError("no such server"));
        await until(() => !one("#told").hidden);
        put("gone", one("#told").textContent.split(" Trainings")[0]);
        window.fetch = asks;
        await until(() => one("#told").hidden);
        """,
    )
    assert told == {
        "names": "faces,one,two",
        "states": "ended by itself,ended by itself,running",
        "address": "",
        "heads": "one,two",
        "painted": "true",
        "lines": "2",
        "gone": "The page's server does not answer.",
    }


def test_a_run_through_time_and_its_switches(play: Play, runs: Path) -> None:
    told = play(
        "run/faces",
        """
        await until(() => all("#run .sheet img").some((image) => image.naturalWidth > 0));
        const slider = one("#run input[type=range]"), before = one("#run .sheet img").src;
        slider.value = 0;
        slider.dispatchEvent(new Event("input"));
        put("moved", one("#run .sheet img").src !== before && one("#run output").textContent);
        named("#run .bar button", "S").click();
        await until(() => !one("#run .sheet canvas").hidden && one("#run .sheet img").complete);
        put("cut", one("#run .sheet canvas").width / one("#run .sheet img").naturalWidth < 0.7);
        put("seen", painted(one("#run .sheet canvas")) && one("#run .sheet img").hidden);
        named("#run .bar button", "preview-masked").click();
        await until(() => one("#run .sheet img").src.includes("preview-masked"));
        put("warned", one("#run .warning").textContent);
        named("#run .head button", "stop").click();
        await until(() => named("#run .head button", "stop …"));
        put("asked", named("#run .head button", "stop …").disabled);
        named("#run summary", "Change and go on").click();
        await until(() => one("#run details").textContent.includes("missing"));
        """,
    )
    assert told == {
        "moved": "step 1",
        "cut": "true",
        "seen": "true",
        "warned": "step 3: D tells all pictures apart",
        "asked": "true",
    }
    assert [path.name for path in (runs / "faces" / "requests").iterdir()] == ["stop"]


def test_a_run_goes_on_by_the_length_that_counts(
    play: Play, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OUTSIDE))
    recipe, pictures = minigan_and_pictures(tmp_path)
    train(recipe, pictures, runs / "timed", for_time="3s", overrides=(FALLING,), options=CPU)
    told = play(
        "run/timed",
        """
        await until(() => named("#run .head button", "train longer"));
        named("#run .head button", "train longer").click();
        await until(() => one("#run .fields input"));
        put("first", one("#run .fields").textContent.split("Of all")[0]);
        put("rates", one("#run .rates").textContent);
        const length = one("[name='training.duration']"), time = one("[name='training.time']");
        put("folded", one("#run details details").contains(length) && !one("#run details details").contains(time));
        const fill = (input, value) => { input.value = value; input.dispatchEvent(new Event("input")); };
        fill(time, "fifteen");
        one("#run .go button").click();
        await until(() => one("#run .fault"));
        put("fault", time.nextElementSibling.textContent);
        put("told", one("#told").textContent);
        fill(time, "3s");
        fill(length, "nine");
        one("#run .go button").click();
        await until(() => length.nextElementSibling.className === "fault");
        put("opened", one("#run details details").open && all("#run .fault").length);
        fill(length, "900k steps");
        one("#run .go button").click();
        await until(() => !one("#told").hidden);
        put("answer", one("#told").textContent);
        """,
    )
    assert told == {
        "first": "Time in all",
        "rates": "Learning rates have come to their last value, the lowest, and stay there.",
        "folded": "true",
        "fault": "Expected a time such as 15min or 2h.",
        "told": "",
        "opened": "1",
        "answer": "timed no longer keeps its time of 3s: it trains 900k steps, however long that takes.",
    }
    (entry,) = Queue(runs).entries()
    assert entry.words[1] == "training.duration=900k steps"


def test_rows_of_large_pictures_have_the_names_of_their_classes(play: Play, runs: Path) -> None:
    run = made_run(runs / "classes", steps=2, grids=0)
    names = ("bowls", "tea pots", "a very very very long name of vases")
    write_grid(torch.zeros(3, 20, 3, 32, 32), run / "samples" / "step-000000002-samples.png", labels=names)
    told = play(
        "run/classes",
        """
        const rows = () => all("#run .rows li");
        await until(() => one("#run .named img") && one("#run .named img").naturalWidth > 0 && rows().length);
        put("rows", rows().map((each) => each.textContent).join("; "));
        const middle = (each) => { const { top, bottom } = each.getBoundingClientRect(); return (top + bottom) / 2; };
        const { top, height } = one("#run .named img").getBoundingClientRect();
        put("beside", rows().every((each, at) => Math.abs(middle(each) - top - (at + 0.5) * height / 3) < 4));
        document.body.style.width = "390px";
        await until(() => one("#run .named").offsetWidth < 390);
        put("inside", one("#run .named").scrollWidth <= one("#run .named").clientWidth);
        named("#run .bar button", "whole sheet").click();
        await until(() => one("#run .rows").hidden);
        """,
    )
    assert told == {"rows": "; ".join(names), "beside": "true", "inside": "true"}


def test_a_new_run_by_its_form(play: Play, runs: Path, tmp_path: Path) -> None:
    told = play(
        "new",
        f"""
        await until(() => one("#recipes option"));
        const form = one("#new form"), fill = (values) => {{
          for (const [name, value] of Object.entries(values)) {{
            form.elements[name].value = value;
            form.elements[name].dispatchEvent(new Event("input"));
          }}
        }};
        fill({{ name: "mine", data: "/none/such", recipe: "biggan-digits-32" }});
        put("about", one("#recipe-told").textContent.includes("32 pixels"));
        one("#new button").click();
        await until(() => one("#new .fault"));
        put("refused", one("#new .fault").textContent);
        put("beside", one("#new .fault").previousElementSibling.name);
        fill({{ data: {json.dumps(str(tmp_path))}, for: "fifteen" }});
        one("#new button").click();
        await until(() => one("#new .fault") && form.elements.for.ariaInvalid === "true");
        put("time", all("#new .fault").map((each) => each.textContent));
        put("told", one("#told").textContent);
        fill({{ for: "" }});
        for (let i = 0; i < 50; i++) one("#new button").click();
        await until(() => location.hash === "" && one("#queue li"));
        put("queue", one("#queue li").textContent);
        """,
    )
    assert told["about"] == "true"
    assert told["refused"].startswith("/none/such: there is nothing")
    assert (told["beside"], told["time"], told["told"]) == ("data", "Expected a time such as 15min or 2h.", "")
    assert told["queue"] == "waitingminenexttake out"
    assert [entry.run for entry in Queue(runs).entries()] == ["mine"]


def test_a_generator_is_explored(play: Play, runs: Path) -> None:
    write(MODELS["stylegan2"], runs / "style.safetensors")
    told = play(
        "explore/style.safetensors",
        """
        const shown = () => one("#explore .sheet img"), command = () => one("#explore pre").textContent;
        await until(() => one("#explore .sheet") && shown().naturalWidth === 32 && command());
        if (!one("#folder").textContent) throw new Error("the page does not say whose runs it shows");
        put("first", command());
        const next = one("#explore button[aria-label='next seed']");
        for (let i = 0; i < 50; i++) next.click();
        await until(() => command().includes("--seeds 51"));
        named("#explore button", "Find among samples").click();
        await until(() => all(".direction .pick img").length === 56);
        const name = one(".direction input");
        name.value = "slant";
        name.dispatchEvent(new Event("change"));
        await until(() => one(".direction input[type=range]").getAttribute("aria-label") === "slant"
          || one(".direction input[type=range]").ariaLabel === "slant");
        const before = shown().src;
        all(".direction .pick")[6].click();
        await until(() => command().includes("--move slant=3"));
        await until(() => shown().src !== before && shown().complete);
        put("moved", command());
        one(".direction input").value = "slant ";
        one(".direction input").dispatchEvent(new Event("change"));
        await until(() => one(".direction input").value === "slant");
        put("kept", one(".direction input[type=range]").value);
        named("#explore button", "Walk there").click();
        await until(() => command().includes("--interpolate latent") && named("#explore button", "Pause"));
        named("#explore button", "Pause").click();
        const into = all("#explore section[aria-label='Walk to another picture'] label select").at(-1);
        into.value = "7";
        into.dispatchEvent(new Event("change"));
        named("#explore button", "Walk there").click();
        await until(() => command().includes("--interpolate both") && named("#explore button", "Pause"));
        put("walked", command());
        named("#explore button", "Pause").click();
        const canvas = Object.assign(document.createElement("canvas"), { width: 48, height: 32 });
        canvas.getContext("2d").fillRect(10, 0, 8, 32);
        const file = new File([await new Promise((go) => canvas.toBlob(go))], "mine.png", { type: "image/png" });
        const carrier = new DataTransfer();
        carrier.items.add(file);
        one("#explore input[type=file]").files = carrier.files;
        const steps = all("#explore section[aria-label='Your own picture'] input[type=number]")[0];
        steps.value = 5;
        named("#explore button", "Find it in the generator").click();
        await until(() => one("section[aria-label=Found]") && command().includes("--project"));
        put("found", all("section[aria-label=Found] img").length);
        const films = one("#explore section[aria-label='Walk to another picture']").textContent;
        put("played", !named("#explore button", "MP4") || films.includes("most browsers do not play it"));
        one("#explore").style.width = "340px";
        one("#explore .head select").append(new Option("a run with a long name ".repeat(9)));
        const right = (name) => one(name).getBoundingClientRect().right;
        put("inside", right("#explore .head select") <= right("#explore"));
        put("begins", one("#explore section[aria-label=Picture] select").value);
        put("told", one("#told").textContent);
        """,
    )
    assert told.pop("first").endswith("style.safetensors --out samples --classes 0 --seeds 1  # step 1,234")
    kept = runs / "style-explore"
    assert f"--seeds 51 --directions {kept / 'directions.json'} --move slant=3" in told.pop("moved")
    assert "--classes 0,7 --columns 24 --interpolate both --seeds 51-52 " in told.pop("walked")
    assert told.pop("kept") == "3"  # a direction that is given the name that it has keeps how far it is gone
    assert told == {"found": "3", "played": "true", "inside": "true", "begins": "mine", "told": ""}
    assert sorted(path.name for path in kept.iterdir()) == ["directions.json", "mine.safetensors"]


def test_newer_weights_are_taken_when_somebody_wants_them(
    play: Play, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(MODELS["stylegan2"], runs / STYLED)
    add_checkpoint(runs, 3)
    draw = Latents.draw

    def drawing(latents: Latents, source: str, values: Mapping[str, Any]) -> dict[str, Any]:
        told = draw(latents, source, values)
        if "method" in values:
            add_checkpoint(runs, 5)  # between finding and showing
        return told

    monkeypatch.setattr(Latents, "draw", drawing)
    told = play(
        "explore/training",
        """
        const caption = () => one("#explore .head small").textContent, command = () => one("#explore pre").textContent;
        const newer = () => all("#explore .head button")[0];
        await until(() => one("#explore .sheet") && command().endsWith("# step 3"));
        put("none", newer().hidden);
        named("#explore button", "Find among samples").click();
        await until(() => all(".direction .pick img").length === 56 && !newer().hidden);
        put("found", caption());
        put("wrong", one("#told").textContent);
        put("newer", newer().textContent);
        newer().click();
        await until(() => command().endsWith("# step 5"));
        put("taken", caption());
        put("over", newer().hidden && !all(".direction").length);
        """,
    )
    assert told == {
        "none": "true",
        "found": "StyleGAN2, 32 pixels, step 3",
        "wrong": "",
        "newer": "Take the newest weights, of step 5",
        "taken": "StyleGAN2, 32 pixels, step 5"
        ", in place of step 3: directions and pictures found there do not hold here",
        "over": "true",
    }
