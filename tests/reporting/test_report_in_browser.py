"""The report in a real browser (skipped where there is no Chromium): no errors, and the slider moves."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from frugan.reporting.grids import write_grid
from frugan.reporting.report import page_of
from reporting.test_report import made_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=4000",
    "--window-size=800,1000",  # else it differs between versions, and with it how many pictures have room
    "--dump-dom",
)
LISTEN = """<script>
window.heard = [];
window.addEventListener("error", (event) => heard.push(event.message));
const told = console.error;
console.error = (...words) => { heard.push(words.join(" ")); told(...words); };
</script>"""
PLAY = """<script>
const put = (name, value) => document.body.setAttribute("data-" + name, value);
const slider = document.querySelector("input[type=range]"), image = document.querySelector(".sheet img");
const last = image.src, end = document.querySelector("output").textContent;
slider.value = 0;
slider.dispatchEvent(new Event("input"));
put("moved", String(image.src !== last));
put("steps", end + " to " + document.querySelector("output").textContent);
put("folded", String(document.querySelectorAll("details[open]").length === 0));
for (const part of document.querySelectorAll("details.drawn")) part.open = true;
window.dispatchEvent(new Event("resize")); // at once, where "toggle" comes later
for (const button of document.querySelectorAll("button.scale")) button.click();
const canvas = document.querySelector("canvas");
canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: 100, clientY: 10, bubbles: true }));
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
put("drawn", String(pixels.some((value) => value !== 0)));
const map = document.querySelector("#gradient-maps canvas"), kind = document.getElementById("gradient-kind");
const colours = () => {
  const pixels = map.getContext("2d").getImageData(map.width - 10, 0, 1, map.height - 30).data, found = new Set();
  for (let i = 0; i < pixels.length; i += 4) found.add(pixels.slice(i, i + 3).join());
  return found.size;
};
const norms = colours();
kind.value = "zeros";
kind.onchange();
put("map", `${norms > 2 && colours() > 1} ${document.querySelectorAll("#gradient-maps canvas").length}`);
const one = new charts.Chart({ title: "One", curves: [{ name: "a", run: 0, steps: [5], values: [2] }] }, ["run"]);
document.body.append(one.element);
one.draw();
const marked = (x) => {
  const pixels = one.canvas.getContext("2d").getImageData(x, 0, 1, one.canvas.height).data;
  return pixels.some((value, i) => i % 4 === 0 && pixels.slice(i, i + 3).join() === "47,111,237");
};
put("single", `${marked(52 + Math.round((one.canvas.width - 60) / 2))} ${marked(53)}`); // in the middle
const sheet = document.querySelector(".sheet");
const inView = () => sheet.querySelector(".rows").textContent.split(" columns")[0];
const atFirst = inView();
sheet.style.width = "280px";
window.setTimeout(() => put("narrow", `${atFirst}|${inView()}`), 500);
const table = document.createElement("div"), range = document.createRange();
table.style.width = "180px";
table.innerHTML = `<div class="wide"><table class="scores"><tr>${"<td>averaged 13,000</td>".repeat(4)}`;
document.body.append(table);
range.selectNodeContents(table.querySelector("td"));
put("whole", String(range.getClientRects().length)); // lines of two words
put("fetched", String(performance.getEntriesByType("resource").filter((e) => !e.name.startsWith("data:")).length));
put("heard", heard.join("; "));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("runs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_page_opens_and_answers(tmp_path: Path, runs: int) -> None:
    folders = [made_run(tmp_path / f"run{number}") for number in range(runs)]
    for folder in folders:
        write_grid(torch.zeros(2, 10, 3, 16, 16), folder / "samples" / "step-000000000-samples.png")
    page = page_of(folders)
    played = page.replace("<style>", f"{LISTEN}<style>", 1).replace("</body>", f"{PLAY}</body>", 1)
    file = tmp_path / "page.html"
    file.write_text(played, "utf-8")
    assert CHROMIUM is not None
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *QUIET, profile, "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (body,) = re.findall(r"<body([^>]*)>", done.stdout)
    answers = {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', body)}
    expected = {
        "moved": "true",
        "steps": "step 50 to step 0",
        "folded": "true",
        "drawn": "true",
        "map": f"true {runs}",
        "single": "true false",
        "whole": "2",
        "narrow": "7 of 10|2 of 10",
        "fetched": "0",
        "heard": "",
    }
    assert answers == expected
