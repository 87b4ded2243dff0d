//! Generates the JSON schema of descriptions, `assets/model-description.schema.json`, which editors use. A test generates it from the types
//! that read descriptions, and compares it with the file.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use super::output::{GalleryKeys, HeadKeys, LabelKeys, NameKeys};
use super::{Description, ModelSpec, Source, StageOptions, Written};
use crate::runtime::{ModelInfo, Port};
use crate::tensor::{ElementType, Shape};
use crate::vision::decode::{DecoderRegistry, Subject};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/model-description.schema.json");

/// ID of the schema. Editors and validators do not download the schema from this URL.
const SCHEMA_URL: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/raw/main/assets/model-description.schema.json");

/// Returns the schema that the file must contain.
fn schema() -> Value {
    let mut schema = schemars::schema_for!(Written).to_value();
    let head =
        [("$id", SCHEMA_URL), ("title", "roiflow model description"), ("description", "Preprocessing and decoding of a model: model.toml")];
    for (key, value) in head {
        schema[key] = json!(value);
    }
    schema["properties"]["version"] = json!({"description": "Version of this format.", "const": 1});
    schema
}

/// Returns the schema of `[output]`: the keys of all decoders, and the decoders that accept each key. Registered decoders may have any
/// keys.
pub(super) fn output(_: &mut SchemaGenerator) -> Schema {
    let heads = json!({"description": "Classifiers: several heads, instead of the other keys.", "items": section(&[Subject::Attributes, Subject::Anything], &keys::<NameKeys>()), "type": "array"});
    let mut schema = section(&[Subject::Objects, Subject::Attributes, Subject::Anything], &BTreeMap::new());
    schema["properties"]["heads"] = heads;
    schema.try_into().unwrap()
}

/// Returns the schema of a section whose decoder produces one of `subjects`. `more` has the schemas of additional keys.
fn section(subjects: &[Subject], more: &BTreeMap<String, Value>) -> Value {
    let registry = DecoderRegistry::built_in();
    let names: Vec<&str> = registry.names().filter(|name| subjects.contains(&registry.subject(name).unwrap())).collect();
    let mut common = keys::<HeadKeys>();
    common.extend(keys::<LabelKeys>());
    common.extend(more.clone());
    let (mut all, mut rules) = (common.clone(), Vec::new());
    for name in &names {
        let mut own: BTreeMap<String, Value> = registry.schemas(name).iter().flat_map(properties).collect();
        if *name == "embedding" {
            own.extend(keys::<GalleryKeys>());
        }
        let known: Vec<&String> = common.keys().chain(own.keys()).collect();
        rules.push(json!({
            "if": {"properties": {"decoder": {"const": name}}, "required": ["decoder"]},
            "then": {"propertyNames": {"enum": known}},
        }));
        all.extend(own);
    }
    let described = |names: &[&str]| format!("Name of the decoder: {}; or one registered by the application.", names.join(", "));
    all.get_mut("decoder").unwrap()["description"] = json!(described(&names));
    // If the decoder is missing or unknown, all keys are allowed.
    let is_own = json!({"properties": {"decoder": {"not": {"enum": names}}}, "required": ["decoder"]});
    json!({
        "type": "object",
        "properties": all,
        "allOf": rules,
        "if": is_own, "else": {"propertyNames": {"enum": all.keys().cloned().chain(["heads".to_owned()]).collect::<Vec<_>>()}},
    })
}

/// Returns the schemas of the fields of a struct, by key.
fn keys<T: JsonSchema>() -> BTreeMap<String, Value> {
    properties(&schemars::schema_for!(T)).collect()
}

fn properties(schema: &Schema) -> impl Iterator<Item = (String, Value)> + use<> {
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    properties.into_iter()
}

/// Converts TOML text to JSON.
fn json_of(text: &str) -> Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).unwrap()
}

#[test]
fn schema_in_the_repository_is_up_to_date() {
    let expected = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("ROIFLOW_UPDATE").is_some() {
        std::fs::write(FILE, &expected).unwrap();
    }
    let found = std::fs::read_to_string(FILE).unwrap();
    assert!(found == expected, "{FILE} is not up to date: ROIFLOW_UPDATE=1 cargo test --lib schema updates it");
}

#[test]
fn all_descriptions_in_the_repository_match_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let check = |name: &str, text: &str| {
        let description = json_of(text);
        let errors: Vec<String> =
            validator.iter_errors(&description).map(|error| format!("{} at {}", error, error.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    };
    let mut n_files = 0;
    for folder in ["assets/models", "assets/tiny"] {
        for entry in std::fs::read_dir(format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"))).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "toml") {
                let text = std::fs::read_to_string(&path).unwrap();
                check(&path.display().to_string(), &text);
                n_files += 1;
                let first = text.lines().next().unwrap();
                assert!(folder != "assets/models" || first == "#:schema ../model-description.schema.json", "{}: {first}", path.display());
            }
        }
    }
    assert!(n_files > 15, "{n_files}");
    let page = include_str!("../../docs/model-descriptions.md");
    let examples = page.split("```toml\n").skip(1);
    for (example_idx, example) in examples.filter_map(|rest| rest.split_once("```")).map(|(example, _)| example).enumerate() {
        // Most examples show only one table, so add the keys that a complete description requires.
        let version = if example.contains("version =") { "" } else { "version = 1\n" };
        let task = if example.contains("task =") { "" } else { "task = \"detection\"\n" };
        let output = if example.contains("output") { "" } else { "\n[output]\n" };
        check(&format!("example {example_idx}"), &format!("{version}{task}{example}{output}"));
    }
}

/// Whether the code that reads descriptions accepts this description, for a model with one output of SSD boxes.
fn is_read(text: &str) -> bool {
    let port = |name: &str, shape: &[usize]| Port::new(name, ElementType::F32, Shape::from(shape));
    let info =
        ModelInfo { inputs: vec![port("image", &[1, 3, 8, 8])], outputs: vec![port("boxes", &[1, 1, 9, 7])], ..ModelInfo::default() };
    let description = Description { source: Source::Model("a test"), text: text.to_owned(), assumed: Vec::new() };
    ModelSpec::of_description(&description, &StageOptions::default(), &info).is_ok()
}

#[test]
fn schema_and_reader_reject_the_same_descriptions() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let good = "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\n[output]\ndecoder = \"ssd\"\n";
    for (from, to) in [
        ("", ""),
        ("version = 1", "version = 2"),
        ("version = 1", "version = \"1\""),
        ("version = 1\n", ""),
        ("\"detection\"", "\"segmentation\""),
        ("task", "tusk"),
        ("color", "colour"),
        ("\"rgb\"", "\"rbg\""),
        ("[output]", "[outputs]"),
        ("decoder", "heads = 1\ndecoder"),
        ("decoder", "nms = \"hard\"\ndecoder"),
        ("decoder", "treshold = 0.5\ndecoder"),
        ("decoder", "threshold = \"0.5\"\ndecoder"),
        ("\"ssd\"", "1"),
    ] {
        let text = good.replacen(from, to, 1);
        let is_read = is_read(&text);
        assert_eq!((is_read, validator.is_valid(&json_of(&text))), (text == good, text == good), "{text}");
    }
}
