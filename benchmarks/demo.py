"""Runs a demo as a user would and records its numbers: python benchmarks/demo.py [digits | faces] [RESULT.json]"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe_machine


def main() -> None:
    """Run the demo in a process of its own, and print or write its numbers with the machine's description."""
    words = sys.argv[1:]
    subject = next((word for word in words if not word.endswith(".json")), "digits")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from frugan.cli.main import run; run()", "demo", subject, "--json", "--out"]
        printed = subprocess.run([*command, f"{folder}/run"], check=True, stdout=subprocess.PIPE, text=True).stdout
    result = {
        "command": f"frugan demo {subject} --json",
        "numbers": json.loads(printed),
        "process_seconds": round(time.perf_counter() - began, 1),
        "machine": describe_machine(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    for target in (word for word in words if word.endswith(".json")):
        Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
