"""Code that scripts/compare-fill and scripts/compare-pipelines share: the Python packages of the peers, the name of the processor,
statistics, and the file of the figures."""

import json
import os
import shutil
import statistics
import subprocess
import sys

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(BENCH))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
PACKAGES = ["openvino==2026.4.1", "opencv-python-headless==4.12.0.88", "numpy<2.3"]


class Missing(Exception):
    """A requirement is missing and cannot be installed. The message names it."""


def python_with_packages():
    """Returns the path of the Python interpreter in `target/bench/venv`, which has the packages. Installs the packages if necessary.

    Raises Missing if the packages cannot be installed.
    """
    venv = os.path.join(TARGET, "bench", "venv")
    python, done, wanted = os.path.join(venv, "bin", "python"), os.path.join(venv, "complete"), "\n".join(PACKAGES)
    if not os.path.exists(done) or open(done).read() != wanted:
        print(f"Installing {', '.join(PACKAGES)} into {venv} ...", file=sys.stderr, flush=True)
        shutil.rmtree(venv, ignore_errors=True)
        for command in ([sys.executable, "-m", "venv", venv], [python, "-m", "pip", "install", "--quiet", *PACKAGES]):
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1]
                raise Missing(f"the Python packages could not be installed: {said}")
        with open(done, "w") as file:
            file.write(wanted)
    return python


def processor():
    """Returns the name of the processor."""
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "a processor of unknown name")


def estimate(values):
    """Returns the median, and the bounds of an interval that contains the true median with 95 % confidence. The interval is between order
    statistics, as in tests/bench/harness.rs."""
    values, skipped = sorted(values), 0
    n, tail, probability = len(values), 0.0, 0.5 ** len(values)
    while True:
        tail += probability
        if 2 * tail > 0.05 or 2 * (skipped + 1) > n:
            break
        skipped += 1
        probability *= (n + 1 - skipped) / skipped
    skipped = max(0, skipped - 1)
    return statistics.median(values), values[skipped], values[n - 1 - skipped]


def add_to_summary(folder, prefix, figures):
    """Writes figures into `summary.json`. Replaces the existing figures whose names begin with `prefix`."""
    path, others = os.path.join(folder, "summary.json"), []
    if os.path.exists(path):
        with open(path) as file:
            others = [metric for metric in json.load(file)["metrics"] if not metric["name"].startswith(prefix)]
    lines = [json.dumps(metric, sort_keys=True) for metric in others + figures]
    with open(path, "w") as file:
        file.write('{"metrics": [\n' + ",\n".join(lines) + "\n]}\n")
