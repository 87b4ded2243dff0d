//! Objects are named by the nearest vector of a gallery. The model's four outputs, the shares of colors, serve as vectors.

use std::sync::atomic::{AtomicUsize, Ordering};

use roiflow::frame::{Frame, Outcome, PixelFormat, Size};
use roiflow::runtime::ErrorKind;
use roiflow::stages::{GalleryChoice, Stage, StageOptions, Thresholds};

use crate::support::{Scratch, tiny};

const GALLERY: &str = "{\"name\": \"Ruby\", \"vector\": [2, 0, 0, 0]}\n{\"name\": \"Emerald\", \"vector\": [0, 1, 0, 0]}\n";

/// A description of the model with more keys in `[output]`.
fn description(keys: &str) -> String {
    format!(
        "version = 1\ntask = \"classification\"\nname = \"who\"\n[input]\nlayout = \"nchw\"\ncolor = \"rgb\"\nresize = \"stretch\"\n\
         [output]\ndecoder = \"embedding\"\n{keys}\n"
    )
}

/// Options with a description in a file of its own.
fn options(scratch: &Scratch, keys: &str) -> StageOptions {
    static N_FILES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("who-{}.toml", N_FILES.fetch_add(1, Ordering::Relaxed));
    StageOptions {
        model: tiny("color.onnx"),
        device: Some("CPU".to_owned()),
        description: Some(scratch.file(&name, description(keys))),
        ..StageOptions::default()
    }
}

fn frame(color: [u8; 3]) -> Frame {
    Frame::from_packed(PixelFormat::Rgb, Size::new(16, 16), &color.repeat(256)).unwrap()
}

/// Returns name and confidence, rounded to two digits.
fn name_of(stage: &Stage, color: [u8; 3]) -> (String, f32) {
    match &stage.classify(&frame(color)).unwrap()[0].outcome {
        Outcome::Label { label: Some(label), confidence, .. } => (label.to_string(), (confidence * 100.0).round() / 100.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nearest_known_vector_names_an_object() {
    let scratch = Scratch::new("galleries");
    let file = scratch.file("staff.jsonl", GALLERY);
    let gallery = GalleryChoice::File(file.clone());
    let named = Stage::classifier_of_frames(&StageOptions { gallery, ..options(&scratch, "") }).unwrap();
    let described = Stage::classifier_of_frames(&options(&scratch, "gallery = \"staff.jsonl\"\nthreshold = 0.6")).unwrap();
    for stage in [&named, &described] {
        assert_eq!(name_of(stage, [255, 0, 0]), ("Ruby".to_owned(), 1.0));
        assert_eq!(name_of(stage, [0, 255, 0]), ("Emerald".to_owned(), 1.0));
        assert_eq!(name_of(stage, [0, 0, 255]).0, "unknown");
    }
    assert!(named.spec().assumed.iter().any(|assumed| assumed.contains("`threshold` is not given: 0.5")), "{:?}", named.spec().assumed);
    // The threshold changes while the stage runs. A cosine is never above 1.
    named.set_thresholds(&Thresholds { threshold: Some(1.0), ..Thresholds::default() }).unwrap();
    let dark_red = [200, 60, 0];
    assert_eq!(name_of(&named, dark_red).0, "unknown");
    named.set_thresholds(&Thresholds { threshold: Some(0.3), ..Thresholds::default() }).unwrap();
    assert_eq!(name_of(&named, dark_red).0, "Ruby");
    // Without the gallery, the result is the vector.
    let gallery = GalleryChoice::None;
    let vectors = Stage::classifier_of_frames(&StageOptions { gallery, ..options(&scratch, "gallery = \"staff.jsonl\"") }).unwrap();
    assert!(matches!(&vectors.classify(&frame([255, 0, 0])).unwrap()[0].outcome, Outcome::Tensor { data, .. } if data.len() == 4));
}

#[test]
fn gallery_that_does_not_fit_is_an_error() {
    let scratch = Scratch::new("wrong-galleries");
    let short = scratch.file("short.jsonl", "{\"name\": \"Ruby\", \"vector\": [1, 0]}");
    let secret = Scratch::new("galleries-outside").file("secret.jsonl", GALLERY);
    let file = |path: &std::path::Path| GalleryChoice::File(path.to_owned());
    let color = StageOptions { model: tiny("color.onnx"), device: Some("CPU".to_owned()), ..StageOptions::default() };
    for (options, parts) in [
        (StageOptions { gallery: file(&short), ..options(&scratch, "") }, ["expected 2 values", "got 4"]),
        (StageOptions { gallery: file(&short), ..color }, ["expected a model with the decoder `embedding`", "got `classes`"]),
        (options(&scratch, "threshold = 0.5"), ["`threshold` of decoder `embedding`", "requires `gallery`"]),
        (options(&scratch, "gallery = \"\""), ["expected the name of a file", "`gallery`"]),
        (options(&scratch, "gallery = \"short.jsonl\"\nlabels = [\"a\"]"), ["has labels and `gallery`", "Remove the labels"]),
        (options(&scratch, "gallery = \"short.jsonl\"\nthreshold = 2.0"), ["expected 0 to 1", "got 2"]),
        (options(&scratch, &format!("gallery = {secret:?}")), ["`gallery`: expected a file in the folder", "absolute path"]),
    ] {
        let error = Stage::classifier_of_frames(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
    }
    let missing = StageOptions { gallery: file(std::path::Path::new("/no/such/gallery.jsonl")), ..options(&scratch, "") };
    let error = Stage::classifier_of_frames(&missing).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("/no/such/gallery.jsonl"), "{error}");
}
