"""What the docs as a site have of their own, in a real browser (skipped where there is no Chromium)."""

import subprocess
from pathlib import Path

import pytest

from reporting.test_report_in_browser import CHROMIUM, QUIET

SHIM = Path(__file__).parents[1] / "tools" / "site_theme" / "assets" / "javascripts" / "iframe-worker.js"
WORKER = """
const answer = { found: 1 };
self.addEventListener("message", ({ data }) => { data.input = null; postMessage(answer); answer.found = 2; });
"""
PAGE = """<!doctype html><body><script src="shim.js"></script><script>
const worker = new Worker("worker.js"), asked = { input: "recall" };
worker.onmessage = ({ data }) => setTimeout(() => {
  document.body.setAttribute("data-told", `${data.found} ${asked.input}`);
});
worker.postMessage(asked);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_search_from_a_file_hands_copies_over_as_a_worker_does(tmp_path: Path) -> None:
    """The search keeps what was typed in the message that it sends, and its worker changes that."""
    (tmp_path / "shim.js").write_text(SHIM.read_text("utf-8"), "utf-8")
    (tmp_path / "worker.js").write_text(WORKER, "utf-8")
    page = tmp_path / "page.html"
    page.write_text(PAGE, "utf-8")
    told = subprocess.run(
        [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'browser'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert 'data-told="1 recall"' in told
