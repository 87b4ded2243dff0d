//! Reads ONNX files and OpenVINO IRs with random changes. Reading must not panic, and a second parser must read the same values.
//! `fuzz/fuzz_targets/onnx.rs` and `ir.rs` run the same test for longer.

use crate::model_files::{try_ir, try_onnx};
use crate::source::Source;
use crate::support::tiny;

fn seed() -> u64 {
    let seed = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x0ff1ce);
    eprintln!("seed {seed}");
    seed
}

/// Returns `n_cases` copies of the file. In each copy, some bytes are changed, repeated or removed.
fn mutants(file: &[u8], n_cases: usize) -> impl Iterator<Item = Vec<u8>> {
    let seed = seed().to_le_bytes();
    let mut source = Source::new(&[]);
    seed.iter().for_each(|byte| {
        for _ in 0..*byte {
            source.random();
        }
    });
    (0..n_cases).map(move |_| {
        let mut bytes = file.to_vec();
        for _ in 0..source.below(4) {
            let (at, len) = (source.below(bytes.len()), source.below(12));
            let end = (at + len).min(bytes.len());
            match source.below(3) {
                0 => bytes[at] = source.random() as u8,
                1 => drop(bytes.drain(at..end)),
                _ => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            }
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    })
}

#[test]
fn second_parser_reads_the_same_reshaped_onnx_file() {
    const N_CASES: usize = 3000;
    for name in ["double.onnx", "append.onnx", "color.onnx", "open_all.onnx"] {
        let file = std::fs::read(tiny(name)).unwrap();
        let n_read = mutants(&file, N_CASES).filter(|case| try_onnx(case)).count();
        assert!(n_read > N_CASES / 8, "{name}: only {n_read} of {N_CASES} are models");
    }
}

#[test]
fn key_of_external_weights_outside_of_a_model_is_found() {
    assert!(!try_onnx(b"no model, but location"));
}

#[test]
fn weights_that_are_not_numbers_are_compared_by_their_bytes() {
    // A graph (field 7) with a tensor (field 5) that has one f64 (field 10).
    let tensor = [&[0x52, 8][..], &f64::NAN.to_le_bytes()].concat();
    let graph = [&[0x2a, tensor.len() as u8][..], &tensor].concat();
    assert!(try_onnx(&[&[0x3a, graph.len() as u8][..], &graph].concat()), "it is a model");
}

#[test]
fn ir_names_and_metadata_are_read_correctly() {
    const N_CASES: usize = 3000;
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/descriptions/ssd.xml")).unwrap();
    let n_names: usize = mutants(&file, N_CASES).map(|case| try_ir(&case)).sum();
    assert!(n_names > N_CASES, "only {n_names} names in {N_CASES} files");
}
