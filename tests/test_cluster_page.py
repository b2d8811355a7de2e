"""What docs/cluster.md tells people to run: parsed by the tools that would run it, where they are at hand."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.recipes import built_in

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")


def _block(kind: str) -> str:
    (block,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(block)


def _check(words: list[str]) -> None:
    """Torchrun's own parser takes its options, and frugan has the recipe and the options that follow."""
    given = get_args_parser().parse_args(words)
    assert (given.module, given.training_script) == (True, "frugan")
    command, recipe, *options = given.training_script_args
    assert command == "train"
    assert recipe in built_in()
    shown = CliRunner().invoke(application(), ["train", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for option in options:
        if option.startswith("--"):
            assert option.partition("=")[0] in shown


def test_the_first_command() -> None:
    first = re.findall(r"```\n(torchrun .*?)```", PAGE, re.DOTALL)[0]
    _check(shlex.split(first)[1:])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_slurm_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(_block("bash"), "utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    started = script.read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"srun \S+ torchrun (.*) &", started)
    _check(shlex.split(re.sub(r"\$\{?\w+(:-\d)?\}?", "2", line)))


def test_the_slurm_script_waits_until_all_is_saved(tmp_path: Path) -> None:
    """With stand-ins: the signal asks for a stop, the script waits for the end of it, and queues itself again."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    run, tools = tmp_path / "runs" / "biggan-128" / "requests", tmp_path / "tools"
    run.mkdir(parents=True)
    tools.mkdir()
    stand_ins = {
        "srun": f'kill -USR1 $PPID; while [ ! -e "{run}/stop" ]; do sleep 0.05; done; sleep 0.3; echo saved',
        "scontrol": 'echo "scontrol $*"',
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
        (tools / name).chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(_block("bash"), "utf-8")
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "SCRATCH": str(tmp_path),
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "17",
    }
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines() == ["saved", "scontrol requeue 17"]


def test_the_kubernetes_job() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all(_block("yaml"))
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]]
    assert container["command"] == ["torchrun"]
    _check(words)
    assert f"--nnodes={job['spec']['completions']}" in words
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in words


def test_the_containerfile_copies_and_installs_what_there_is() -> None:
    """No tool that builds images is at hand; its parts can be looked up."""
    text = (ROOT / "Containerfile").read_text("utf-8")
    copied = [word for line in re.findall(r"^COPY (.+) \./.*$", text, re.MULTILINE) for word in line.split()]
    assert "src" in copied
    assert [word for word in copied if not (ROOT / word).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"'\.\[(.+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {project["readme"], *project["license-files"]} <= set(copied)  # the build reads them
    version = re.search(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE)
    assert version is not None
    assert project["requires-python"] == ">=3.11"
    assert float(version[1].split(".")[1]) >= 11
