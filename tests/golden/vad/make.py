"""Writes the speech and the expected results for the test of a model with state: silero-vad, whose state is an input and an output.

    apt-get install espeak-ng sox
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install onnx numpy onnxruntime && /tmp/venv/bin/pip install --no-deps silero-vad==6.2.3
    /tmp/venv/bin/python tests/golden/vad/make.py

speech.s16 has a synthesized sentence between silence and noise: 16 kHz, mono, 16 bits, little-endian.
probabilities.json has the output of the model in ONNX Runtime for each chunk. The script passes the state from run to run. A chunk has 576
samples: the last 64 samples of the previous chunk and 512 new samples, as in the wrapper of the package.
"""

import importlib.util
import json
import pathlib
import subprocess

import numpy as np
import onnxruntime

FOLDER = pathlib.Path(__file__).resolve().parent
CHUNK, CONTEXT = 512, 64

if not (FOLDER / "speech.s16").exists():
    wav = subprocess.run(["espeak-ng", "-v", "en", "--stdout", "One frame, four boxes."], capture_output=True, check=True).stdout
    raw = ["-r", "16000", "-c", "1", "-b", "16", "-e", "signed", "-L", "-t", "raw", "-"]
    speech = np.frombuffer(subprocess.run(["sox", "-t", "wav", "-", *raw], input=wav, capture_output=True, check=True).stdout, "<i2")
    noise = np.random.default_rng(1).normal(0, 60, 8 * CHUNK + len(speech)).astype("<i2")
    noise[8 * CHUNK :] += speech // 2
    (FOLDER / "speech.s16").write_bytes(noise[: len(noise) // CHUNK * CHUNK].tobytes())

package = pathlib.Path(importlib.util.find_spec("silero_vad").origin).parent
session = onnxruntime.InferenceSession(package / "data/silero_vad_openvino_16k.onnx", providers=["CPUExecutionProvider"])
samples = np.frombuffer((FOLDER / "speech.s16").read_bytes(), "<i2").astype(np.float32) / 32768
state, context, probabilities = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32), []
for begin in range(0, len(samples), CHUNK):
    chunk = np.concatenate([context, samples[begin : begin + CHUNK]])
    probability, state = session.run(None, {"input": chunk[None], "state": state})
    context = chunk[-CONTEXT:]
    probabilities.append(round(float(probability[0, 0]), 6))
(FOLDER / "probabilities.json").write_text(json.dumps(probabilities) + "\n")
print(f"{len(samples) / 16000:.1f} s, {len(probabilities)} chunks, speech in {sum(p > 0.5 for p in probabilities)}")
