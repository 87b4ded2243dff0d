//! A streaming model for voice activity detection on a sequence of chunks. The request keeps the state of the model from run to run.

use std::path::Path;

use roiflow::devices;
use roiflow::runtime::{Config, InferRequest};
use roiflow::tensor::Tensor;

use crate::support::{fetched, is_here};

const CHUNK: usize = 512;
const CONTEXT: usize = 64;

/// Returns the speech probability of each chunk of samples. A chunk starts with the last samples of the previous chunk.
fn probabilities(request: &InferRequest, samples: &[f32]) -> Vec<f32> {
    let mut chunk = vec![0.0; CONTEXT + CHUNK];
    let probability = |new: &[f32]| {
        chunk.copy_within(CHUNK.., 0);
        chunk[CONTEXT..].copy_from_slice(new);
        request.infer(Tensor::from_slice([1, CONTEXT + CHUNK], &chunk).unwrap()).unwrap();
        request.output_tensor(()).unwrap().view::<f32>().unwrap()[[0, 0]]
    };
    samples.chunks_exact(CHUNK).map(probability).collect()
}

/// The expected results come from the same model in another engine with explicit state tensors (`tests/golden/vad/make.py`).
#[test]
fn voice_activity_model_matches_its_reference() {
    let Some(path) = fetched("silero_vad/data/silero_vad_openvino_16k.onnx") else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vad");
    let bytes = std::fs::read(golden.join("speech.s16")).unwrap();
    let samples: Vec<f32> = bytes.as_chunks::<2>().0.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32768.0).collect();
    let expected: Vec<f32> = serde_json::from_slice(&std::fs::read(golden.join("probabilities.json")).unwrap()).unwrap();

    for device in ["CPU", "ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| is_here(device)) {
        check(device, &path, &samples, &expected);
    }
}

fn check(device: &str, path: &Path, samples: &[f32], expected: &[f32]) {
    let core = devices::core();
    let model = core.read_model(path).unwrap().make_stateful([("state", "stateN")]).unwrap();
    let model = core.compile_model(&model, device, &Config::default()).unwrap();
    let (request, other) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    for _ in 0..2 {
        let got = probabilities(&request, samples);
        let worst = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        eprintln!("{device}: {} chunks, largest difference {worst:.6}", got.len());
        assert_eq!(got.len(), expected.len());
        assert!(worst < 1e-3, "{device}: {got:?}");
        // Another request processes another stream. Then the first request is reset and processes its stream again, with the same results.
        probabilities(&other, &samples[..4 * CHUNK]);
        request.reset_state().unwrap();
    }
}
