//! The JSON schema of descriptions, made from the types that read them: `assets/model-description.schema.json`, for editors and for
//! whoever writes descriptions. Tests alone build it, so users of the crate do not pay for it.

use serde_json::{Value, json};

use super::Written;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/model-description.schema.json");

/// What the schema is called; nothing is loaded from there.
const SCHEMA_URL: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/raw/main/assets/model-description.schema.json");

/// The schema as it is to be.
fn schema() -> Value {
    let mut schema = schemars::schema_for!(Written).to_value();
    let head = [("$id", SCHEMA_URL), ("title", "roiflow model description"), ("description", "What a model wants and says: model.toml")];
    for (key, value) in head {
        schema[key] = json!(value);
    }
    schema["properties"]["version"] = json!({"description": "The version of this format.", "const": 1});
    schema
}

/// What a text in TOML is in JSON.
fn json_of(text: &str) -> Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).unwrap()
}

#[test]
fn the_schema_in_the_repository_is_that_of_the_types() {
    let expected = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("ROIFLOW_UPDATE").is_some() {
        std::fs::write(FILE, &expected).unwrap();
    }
    let found = std::fs::read_to_string(FILE).unwrap();
    assert!(found == expected, "{FILE} is not up to date: ROIFLOW_UPDATE=1 cargo test --lib schema writes it anew");
}

#[test]
fn every_description_of_ours_is_what_the_schema_says() {
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
    let (page, readme) = (include_str!("../../docs/model-descriptions.md"), include_str!("../../README.md"));
    let examples = page.split("```toml\n").skip(1).chain(readme.split("```toml\n").skip(1).filter(|text| text.starts_with("version = 1")));
    for (example_idx, example) in examples.filter_map(|rest| rest.split_once("```")).map(|(example, _)| example).enumerate() {
        // Most examples are of one table.
        let version = if example.contains("version =") { "" } else { "version = 1\n" };
        let task = if example.contains("task =") { "" } else { "task = \"detection\"\n" };
        let output = if example.contains("output") { "" } else { "\n[output]\n" };
        check(&format!("example {example_idx}"), &format!("{version}{task}{example}{output}"));
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
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
    ] {
        let text = good.replacen(from, to, 1);
        let is_read = toml::from_str::<Written>(&text).is_ok_and(|written| written.version == 1);
        assert_eq!((is_read, validator.is_valid(&json_of(&text))), (text == good, text == good), "{text}");
    }
}
