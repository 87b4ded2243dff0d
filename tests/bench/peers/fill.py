"""Preprocesses images with OpenCV, or with OpenVINO as a part of the compiled model, for comparison with tests/bench/fill. Used by
scripts/compare-fill.

Reads lines `SIDE FORMAT WIDTH HEIGHT INPUT_WIDTH INPUT_HEIGHT BATCH N_RUNS` and answers each with nanoseconds per run and the mean of the
written values. tests/bench/fill/main.rs defines a run. SIDE is `opencv` or `openvino`. Both compute on one thread and reuse their
buffers.
"""

import sys
import time

import cv2
import numpy as np

WIDTH, HEIGHT = 1920, 1080
MEAN, SCALE = (123.675, 116.28, 103.53), 58.0
PAD = 114
COLOR = {"NV12": cv2.COLOR_YUV2RGB_NV12, "I420": cv2.COLOR_YUV2RGB_I420}


class Case:
    def __init__(self, kind, width, height, input_width, input_height, batch):
        self.kind, self.batch = kind, batch
        self.size, self.input = (width, height), (input_width, input_height)
        self.is_letterboxed = self.size == (WIDTH, HEIGHT)
        self.scaled = (input_width, input_width * height // width) if self.is_letterboxed else self.input
        n_bytes = WIDTH * HEIGHT * 3 if kind == "RGB" else WIDTH * HEIGHT * 3 // 2
        index = np.arange(n_bytes, dtype=np.int64)
        self.frame = (index * 31 // 7 + index // WIDTH * 3).astype(np.uint8)

    def place(self, row):
        (width, height) = self.size
        return row * 97 % (WIDTH - width + 1) // 2 * 2, row * 61 % (HEIGHT - height + 1) // 2 * 2

    def planes(self, row):
        """Views of a region's planes."""
        (x, y), (width, height) = self.place(row), self.size
        if self.kind == "RGB":
            return [self.frame.reshape(HEIGHT, WIDTH, 3)[y : y + height, x : x + width]]
        luma, chroma = np.split(self.frame, [WIDTH * HEIGHT])
        luma = luma.reshape(HEIGHT, WIDTH)[y : y + height, x : x + width]
        part = np.s_[y // 2 : (y + height) // 2, x // 2 : (x + width) // 2]
        if self.kind == "NV12":
            return [luma, chroma.reshape(HEIGHT // 2, WIDTH // 2, 2)[part]]
        return [luma] + [plane.reshape(HEIGHT // 2, WIDTH // 2)[part] for plane in np.split(chroma, 2)]


def opencv(case):
    """Crop, cvtColor, resize, border, blobFromImages."""
    (width, height), (scaled_width, scaled_height) = case.size, case.scaled
    rgb = np.empty((height, width, 3), np.uint8)
    i420 = np.empty((height * 3 // 2, width), np.uint8)
    is_whole = case.size == (WIDTH, HEIGHT)
    scaled = [np.empty((scaled_height, scaled_width, 3), np.uint8) for _ in range(case.batch)]
    inputs = [np.empty((case.input[1], case.input[0], 3), np.uint8) for _ in range(case.batch)] if case.is_letterboxed else scaled
    above = (case.input[1] - scaled_height) // 2
    below = case.input[1] - scaled_height - above

    def colors(row):
        planes = case.planes(row)
        if case.kind == "RGB":
            return planes[0]
        if case.kind == "NV12":
            return cv2.cvtColorTwoPlane(planes[0], planes[1], COLOR["NV12"], dst=rgb)
        if is_whole:
            return cv2.cvtColor(case.frame.reshape(HEIGHT * 3 // 2, WIDTH), COLOR["I420"], dst=rgb)
        # cvtColor accepts planes of I420 only if they are contiguous.
        packed = i420.reshape(-1)
        begin = 0
        for plane in planes:
            packed[begin : begin + plane.size].reshape(plane.shape)[:] = plane
            begin += plane.size
        return cv2.cvtColor(i420, COLOR["I420"], dst=rgb)

    def run():
        for row in range(case.batch):
            cv2.resize(colors(row), case.scaled, dst=scaled[row], interpolation=cv2.INTER_LINEAR)
            if case.is_letterboxed:
                cv2.copyMakeBorder(scaled[row], above, below, 0, 0, cv2.BORDER_CONSTANT, dst=inputs[row], value=(PAD,) * 3)
        return cv2.dnn.blobFromImages(inputs, 1 / SCALE, None, MEAN, swapRB=False)

    return run


def openvino(case):
    """Returns a function that runs a model that only preprocesses: convert_color, resize, mean, scale, convert_layout. It supports no
    letterbox."""
    import openvino as ov
    from openvino import opset13
    from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm

    parameter = opset13.parameter([1, 3, case.input[1], case.input[0]], ov.Type.f32, name="picture")
    steps = PrePostProcessor(ov.Model([opset13.result(parameter)], [parameter]))
    tensor = steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    tensor.set_spatial_static_shape(case.size[1], case.size[0])
    process = steps.input().preprocess()
    if case.kind == "NV12":
        tensor.set_color_format(ColorFormat.NV12_TWO_PLANES, ["y", "uv"])
    elif case.kind == "I420":
        tensor.set_color_format(ColorFormat.I420_THREE_PLANES, ["y", "u", "v"])
    else:
        tensor.set_color_format(ColorFormat.RGB)
    process.convert_color(ColorFormat.RGB) if case.kind != "RGB" else None
    process.convert_element_type(ov.Type.f32).resize(ResizeAlgorithm.RESIZE_LINEAR).mean(list(MEAN)).scale([SCALE] * 3)
    steps.input().model().set_layout(ov.Layout("NCHW"))
    config = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": "NO"}
    request = ov.Core().compile_model(steps.build(), "CPU", config).create_infer_request()

    def run():
        for row in range(case.batch):
            for index, plane in enumerate(case.planes(row)):
                # Regions of a frame must be copied to dense memory.
                dense = np.ascontiguousarray(plane if plane.ndim == 3 else plane[..., None])[None]
                request.set_input_tensor(index, ov.Tensor(dense, shared_memory=True))
            request.infer()
        return request.get_output_tensor(0).data

    return run


def main():
    cv2.setNumThreads(1)
    made = {}
    for line in sys.stdin:
        side, kind, *numbers = line.split()
        *numbers, n_runs = map(int, numbers)
        key = (side, kind, *numbers)
        if key not in made:
            made.clear()
            made[key] = {"opencv": opencv, "openvino": openvino}[side](Case(kind, *numbers))
            made[key]()
        run, values = made[key], None
        begin = time.perf_counter_ns()
        for _ in range(n_runs):
            values = None  # Releases its memory for reuse.
            values = run()
        print(f"{(time.perf_counter_ns() - begin) / n_runs:.1f} {values.mean(dtype=np.float64):.6f}", flush=True)


if __name__ == "__main__":
    main()
