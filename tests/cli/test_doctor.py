"""`frugan doctor` by exit code and output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from frugan.cli.application import application

pytestmark = pytest.mark.usefixtures("no_driver")


def test_training_is_possible_here(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["doctor", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Training is possible here" in result.stdout
    assert "card" in result.stdout


def test_findings_as_json_and_the_code_of_a_machine_that_cannot_train(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["doctor", "--json", "--device", "cuda:9", "--out", str(tmp_path)])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert printed["training_is_possible"] is False
    states = {each["name"]: each["state"] for each in printed["findings"]}
    assert states["device"] == "impossible"
    assert {"versions", "card", "run folder", "ranks", "extra face"} <= states.keys()


def test_a_torch_that_cannot_be_loaded_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn.so.9: cannot open shared object file')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['frugan', 'doctor']; "
    program += "from frugan.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "libcudnn.so.9" in done.stdout
    assert "Traceback" not in done.stderr
