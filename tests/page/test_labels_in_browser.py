"""Drawing polygons in a real browser (skipped where there is no Chromium): what is clicked is what faces keep."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from frugan.faces.data.faceset import open_faceset
from frugan.faces.masks.drawing import Drawing
from frugan.page import server
from frugan.page.labels import served_labels
from page.test_page_in_browser import LISTEN, PLAY
from parity.xseg.golden import FOLDER
from reporting.test_report_in_browser import CHROMIUM, QUIET

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
ACTS = """
let begun = false;
labels.begun.then(() => { begun = true; });
await until(() => begun);  // a page that waits without a timer has its clock run out at once
const canvas = one("canvas"), box = canvas.getBoundingClientRect();
const point = (x, y, pointerType = "mouse") => {
  const about = { clientX: box.left + x * box.width, clientY: box.top + y * box.height, pointerType, isPrimary: true };
  for (const type of ["pointerdown", "pointerup"]) canvas.dispatchEvent(new PointerEvent(type, about));
};
const key = (name) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const told = () => one("#told").textContent, name = () => one("#name").textContent;
put("first", name());
point(.1, .1); point(.5, .1); key("ArrowRight");
await new Promise((go) => setTimeout(go));
put("refused", told()); put("stays", name());
point(.9, .5, "touch"); point(.5, .9, "touch"); key("Backspace"); point(.25, .75); point(.1, .1);
one("#exclude").click(); point(.3, .3); point(.4, .3); point(.4, .4); key("Enter"); key("e");
one("#next").click();
await until(() => name() !== "00005_0.jpg");
put("second", name()); put("painted", painted(canvas)); put("where", one("#where").textContent);
key("Delete"); put("deleted", !one("#save").disabled); key("Backspace"); put("undone", one("#save").disabled);
key("ArrowLeft");
await until(() => name() === "00005_0.jpg");
put("wrong", one("#told").hidden);
"""


def test_points_become_the_polygons_of_a_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_file = server._own_file

    def with_script(name: str) -> str:
        text = own_file(name)
        return LISTEN + text + PLAY.replace("SCRIPT", ACTS) if name == "labels.js" else text

    monkeypatch.setattr(server, "_own_file", with_script)
    faces = Path(shutil.copytree(FOLDER / "faceset", tmp_path / "faces"))
    with served_labels(Drawing(open_faceset(faces)), 0) as (address, _):
        long = "--virtual-time-budget=2000000"  # the page's own clock is faster than a server on a busy machine
        words = [str(CHROMIUM), *QUIET, long, f"--user-data-dir={tmp_path / 'profile'}", address]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    (body,) = re.findall(r"<body([^>]*)>", done.stdout)
    told = {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', body)}
    assert told == {
        "first": "00005_0.jpg",
        "refused": "This polygon has 2 points; it takes three or more to go round something. Add points, or undo.",
        "stays": "00005_0.jpg",
        "second": "00000_0.jpg",
        "painted": "true",
        "where": "2 of 9 · 9 labelled",
        "deleted": "true",
        "undone": "true",
        "wrong": "true",
        "heard": "",
        "elsewhere": "",
    }
    face = next(face for face in open_faceset(faces).faces if face.name == "00005_0.jpg")
    assert [polygon.include for polygon in face.polygons] == [True, False]
    expected = [[[0.1, 0.1], [0.5, 0.1], [0.9, 0.5], [0.25, 0.75]], [[0.3, 0.3], [0.4, 0.3], [0.4, 0.4]]]
    for polygon, points in zip(face.polygons, expected, strict=True):
        np.testing.assert_allclose(polygon.points / face.width, points, rtol=0, atol=0.01)
