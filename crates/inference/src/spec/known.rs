//! Finds the built-in description of a known model by the checksum or the name of the model file.
//!
//! This module does not check ports. If a description was found by the name of the file, the caller must check that the model has
//! the ports that the description expects.

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use sha2::{Digest, Sha256, Sha384};

use super::{WrittenModel, config};
use crate::labels::Labels;
use crate::runtime::{Result, files};

/// A built-in description.
#[derive(Debug)]
pub(super) struct Known {
    /// File name in `assets/models`, without extension.
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    model: WrittenModel,
}

macro_rules! files {
    ($ending:literal: $($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../../assets/models/", $name, $ending)))),*] };
}

/// The built-in descriptions, one per model. Descriptions that cover only one output of a model are not built in.
static TEXTS: &[(&str, &str)] = &files!(".toml":
    "age",
    "age-gender-recognition-retail-0013",
    "efficientnet-lite0-uint8",
    "emotion-mini-xception",
    "emotions-recognition-retail-0003",
    "face-detection-0200",
    "face-detection-0202",
    "face-detection-0204",
    "face-detection-0205",
    "face-detection-0206",
    "face-detection-adas-0001",
    "face-detection-retail-0004",
    "face-detection-retail-0005",
    "face-reidentification-retail-0095",
    "gender",
    "head-pose-estimation-adas-0001",
    "landmarks-regression-retail-0009",
    "nanodet-m",
    "pedestrian-and-vehicle-detector-adas-0001",
    "pedestrian-detection-adas-0002",
    "person-attributes-recognition-crossroad-0230",
    "person-attributes-recognition-crossroad-0234",
    "person-attributes-recognition-crossroad-0238",
    "person-detection-0200",
    "person-detection-0201",
    "person-detection-0202",
    "person-detection-0203",
    "person-detection-retail-0013",
    "person-reidentification-retail-0277",
    "person-reidentification-retail-0286",
    "person-reidentification-retail-0287",
    "person-reidentification-retail-0288",
    "person-reidentification-retail-0288-ir",
    "person-vehicle-bike-detection-2000",
    "person-vehicle-bike-detection-2001",
    "person-vehicle-bike-detection-2002",
    "person-vehicle-bike-detection-2003",
    "person-vehicle-bike-detection-2004",
    "person-vehicle-bike-detection-crossroad-0078",
    "person-vehicle-bike-detection-crossroad-1016",
    "pp-ocr-v2-cls",
    "pp-ocr-v4-det",
    "pp-ocr-v4-rec",
    "pp-ocr-v4-rec-plates",
    "ultraface-rfb-320",
    "ultraface-rfb-320-nchw",
    "vehicle-attributes",
    "vehicle-detection-0200",
    "vehicle-detection-0201",
    "vehicle-detection-0202",
    "vehicle-detection-adas-0002",
    "vehicle-license-plate-detection-barrier-0106",
    "yolox-nano",
);

/// Labels files of built-in descriptions.
static LABELS: &[(&str, &str)] = &files!(".txt": "coco", "imagenet_1000");

/// Returns the description that lists the checksum of this file. `None` if no description lists it, or if the file cannot be
/// read.
pub(super) fn of_checksum(model: &Path) -> Option<&'static Known> {
    let known = all();
    let (sha256, sha384) = checksums(model).ok()?;
    let is_it =
        |known: &&Known| known.model.sha256.contains(&sha256) || sha384.as_ref().is_some_and(|sum| known.model.sha384.contains(sum));
    known.iter().find(is_it)
}

/// Returns the descriptions that list the name of this file.
pub(super) fn of_name(model: &Path) -> impl Iterator<Item = &'static Known> {
    let stem = super::stem_of(model).unwrap_or_default();
    all().iter().filter(move |known| known.model.files.iter().any(|name| name.eq_ignore_ascii_case(&stem)))
}

/// Returns the description with this name. The name of a built-in description has neither a folder nor an extension.
pub(super) fn of_own_name(name: &Path) -> Option<&'static Known> {
    all().iter().find(|known| name.as_os_str() == known.name)
}

/// Returns the labels in the built-in labels file with this name.
pub(super) fn labels(file: &Path) -> Result<Labels> {
    let text = LABELS.iter().find(|(name, _)| file.to_str() == Some(&format!("{name}.txt"))).map(|(_, text)| text);
    text.map(|text| Labels::of_lines(text)).ok_or_else(|| config(format!("there are no built-in labels `{}`", file.display())))
}

fn all() -> &'static [Known] {
    static ALL: OnceLock<Vec<Known>> = OnceLock::new();
    ALL.get_or_init(|| {
        /// Identity of the model in a description.
        #[derive(serde::Deserialize)]
        struct Identity {
            #[serde(default)]
            model: WrittenModel,
        }
        let read = |&(name, text): &(&'static str, &'static str)| {
            let Identity { model } = toml::from_str(text).expect("a test parses all of these texts");
            Known { name, text, model }
        };
        TEXTS.iter().map(read).collect()
    })
}

/// Returns the SHA-256 of a file. For OpenVINO IR (XML) files, also returns the SHA-384, because the Open Model Zoo lists these files by
/// SHA-384.
fn checksums(path: &Path) -> std::io::Result<(String, Option<String>)> {
    let mut file = files::open_regular(path, "model").map_err(std::io::Error::other)?;
    let mut sha384 = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml")).then(Sha384::new);
    let (mut sha256, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n_bytes => {
                sha256.update(&buffer[..n_bytes]);
                if let Some(sha384) = &mut sha384 {
                    sha384.update(&buffer[..n_bytes]);
                }
            }
        }
    }
    Ok((hex(&sha256.finalize()), sha384.map(|sha384| hex(&sha384.finalize()))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files with the description of a single output, for models that also have a complete description.
    const PARTS: [&str; 2] = ["vehicle-attributes-color", "vehicle-attributes-type"];
    /// Descriptions of a special use of a model that another description lists. They are found by their own name only.
    const VARIANTS: [&str; 1] = ["pp-ocr-v4-rec-plates"];

    #[test]
    fn every_description_is_built_in_and_models_are_unique() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
        let mut files: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort_unstable();
        let built_in = TEXTS.iter().map(|(name, _)| format!("{name}.toml")).chain(LABELS.iter().map(|(name, _)| format!("{name}.txt")));
        let mut expected: Vec<String> = built_in.chain(PARTS.map(|name| format!("{name}.toml"))).collect();
        expected.sort_unstable();
        assert_eq!(files, expected);
        let mut seen: Vec<&str> = Vec::new();
        for Known { name, model, text } in all() {
            let WrittenModel { about, author, license, origin, checked, files, sha256, sha384 } = model;
            assert!([about, author, license, origin].iter().all(|text| text.is_some()) && checked.is_some(), "{name}");
            let is_variant = VARIANTS.contains(name);
            assert_eq!(files.is_empty(), is_variant, "{name}");
            assert_eq!(sha256.is_empty() && sha384.is_empty(), is_variant, "{name}");
            let is_sum = |sum: &str, n_digits| sum.len() == n_digits && sum.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            assert!(sha256.iter().all(|sum| is_sum(sum, 64)) && sha384.iter().all(|sum| is_sum(sum, 96)), "{name}");
            for identity in sha256.iter().chain(sha384) {
                assert!(!seen.contains(&identity.as_str()), "{name}: {identity} is in two descriptions");
                seen.push(identity);
            }
            toml::from_str::<super::super::Written>(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// `roiflow describe` writes the labels into the description that it prints, because it does not know in which folder the
    /// user stores the description.
    #[test]
    fn description_with_inlined_labels_is_equivalent() {
        use super::super::{Description, KnownBy, Source};
        for known in all() {
            let source = Source::Known { name: known.name, found: KnownBy::Checksum };
            let as_it_is = Description { source, text: known.text.to_owned(), assumed: Vec::new() };
            let mut expected: toml::Table = known.text.parse().unwrap();
            let written: toml::Table = as_it_is
                .with_own_labels(&crate::Engine::default())
                .unwrap()
                .text
                .parse()
                .unwrap_or_else(|error| panic!("{}: {error}", known.name));
            if let Some(file) = expected["output"].as_table_mut().and_then(|output| output.remove("labels-file")) {
                let labels = labels(Path::new(file.as_str().unwrap())).unwrap();
                let names = (0..labels.len() as u32).map(|class_id| toml::Value::String(labels.get(class_id).unwrap().to_string()));
                expected["output"].as_table_mut().unwrap().insert("labels".to_owned(), toml::Value::Array(names.collect()));
            }
            assert_eq!(written, expected, "{}", known.name);
        }
    }

    #[test]
    fn checksums_match_the_standard() {
        let path = std::env::temp_dir().join(format!("roiflow-{}-checksum.xml", std::process::id()));
        std::fs::write(&path, "abc").unwrap();
        let (sha256, sha384) = checksums(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Test vectors of FIPS 180-2, appendixes B.1 and D.1.
        assert_eq!(sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(sha384.unwrap().starts_with("cb00753f45a35e8bb5a03d699ac65007272c32ab0eded163"));
    }
}
