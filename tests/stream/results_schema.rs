//! Each line of the real command conforms to `assets/results.schema.json` and has no fields that the schema does not define.
//!
//! These tests use a small validator of this project. The crate jsonschema, which the tests of roiflow-inference use, would enable
//! additional features of crates that the engine also uses. The small validator rejects unknown keywords, so it never skips a rule.

use serde_json::{Map, Value};

use crate::cli::{Folder, lines, roiflow};
use crate::harness::tiny;

const SCHEMA: &str = include_str!("../../assets/results.schema.json");

/// Validates values with the schema, and records the properties that occurred.
struct Validator {
    root: Value,
    seen: std::cell::RefCell<std::collections::BTreeSet<String>>,
}

impl Validator {
    fn new() -> Self {
        Self::of(SCHEMA)
    }

    fn of(schema: &str) -> Self {
        Self { root: serde_json::from_str(schema).unwrap(), seen: std::cell::RefCell::default() }
    }

    /// Returns an error with the position of the first invalid value.
    fn check(&self, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
        let rules = schema.as_object().unwrap();
        let wrong = |what: String| Err(format!("{place}: {what}, got {value}"));
        for (keyword, rule) in rules {
            match keyword.as_str() {
                "$schema" | "$id" | "$defs" | "title" | "description" => {}
                "$ref" => {
                    let target = self.root.pointer(rule.as_str().unwrap().trim_start_matches('#')).expect("the target of a reference");
                    self.check(target, value, place)?;
                }
                "const" if rule != value => return wrong(format!("expected {rule}")),
                "enum" if !rule.as_array().unwrap().contains(value) => return wrong(format!("expected one of {rule}")),
                "const" | "enum" => {}
                "type" => {
                    let names = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                    if !names.iter().any(|name| is_type(name.as_str().unwrap(), value)) {
                        return wrong(format!("expected the type {rule}"));
                    }
                }
                "minimum" if value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()) => {
                    return wrong(format!("expected at least {rule}"));
                }
                "minItems" if value.as_array().is_some_and(|items| (items.len() as u64) < rule.as_u64().unwrap()) => {
                    return wrong(format!("expected at least {rule} items"));
                }
                "maxItems" if value.as_array().is_some_and(|items| items.len() as u64 > rule.as_u64().unwrap()) => {
                    return wrong(format!("expected at most {rule} items"));
                }
                "minimum" | "minItems" | "maxItems" => {}
                "anyOf" => {
                    let tries: Vec<_> = rule.as_array().unwrap().iter().map(|rule| self.check(rule, value, place)).collect();
                    if tries.iter().all(Result::is_err) {
                        return wrong(format!("{tries:?}"));
                    }
                }
                "required" => {
                    let Some(fields) = value.as_object() else { continue };
                    let missing = rule.as_array().unwrap().iter().find(|name| !fields.contains_key(name.as_str().unwrap()));
                    if let Some(name) = missing {
                        return wrong(format!("expected the field {name}"));
                    }
                }
                "items" => {
                    for (item_idx, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, item, &format!("{place}[{item_idx}]"))?;
                    }
                }
                "properties" => self.check_fields(rule.as_object().unwrap(), rules.get("additionalProperties"), value, place)?,
                "additionalProperties" if rules.contains_key("properties") => {}
                other => panic!("this validator does not know `{other}`"),
            }
        }
        Ok(())
    }

    fn check_fields(&self, known: &Map<String, Value>, others: Option<&Value>, value: &Value, place: &str) -> Result<(), String> {
        for (name, field) in value.as_object().into_iter().flatten() {
            let inner = format!("{place}.{name}");
            match (known.get(name), others) {
                (Some(rule), _) => {
                    self.seen.borrow_mut().insert(name.clone());
                    self.check(rule, field, &inner)?;
                }
                (None, Some(rule)) => self.check(rule, field, &inner)?,
                (None, None) => return Err(format!("{inner}: the schema has no such field, and no others are allowed here")),
            }
        }
        Ok(())
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        other => panic!("this validator does not know the type `{other}`"),
    }
}

/// Runs the command and validates each line of its output.
fn check_run(validator: &Validator, folder: &Folder, arguments: &[&str]) {
    let json = folder.file("results.jsonl");
    let output = roiflow(&[&["run", "--json", &json], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = lines(&json);
    assert!(!lines.is_empty());
    for line in lines {
        validator.check(&validator.root, &line, "line").unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{line}"));
    }
}

#[test]
fn lines_of_the_command_are_what_the_schema_says() {
    let folder = Folder::new("schema");
    folder.picture("red.png", 64, 64, [255, 0, 0]);
    let (validator, red) = (Validator::new(), folder.file("red.png"));
    let (detector, color, brightness) = (tiny("rectangle.onnx"), tiny("color.onnx"), tiny("brightness.onnx"));
    let run = |arguments: &[&str]| check_run(&validator, &folder, arguments);
    run(&["--model", &detector, "--track", "--classify", &color, "--classify", &brightness, "--device", "CPU", "--input", &red]);
    run(&["--classify", &color, "--device", "CPU", "--input", "test:2", "--name", "door"]);

    let cells = folder.file("cells.toml");
    let description = format!(
        "version = 1\nname = \"cells\"\ndescription = \"Cells.\"\n[pipeline]\ngraph = \"\"\"{{source}} ! roidetect model={detector} device=CPU \
         inference-interval=2 ! roidetect model={} device=CPU inference-region=roi-list ! {{json}} ! {{video}}\"\"\"\n",
        tiny("stripes.onnx")
    );
    std::fs::write(&cells, description).unwrap();
    run(&[&cells, "--input", "test:3"]);

    let raw = folder.file("raw.toml");
    std::fs::write(&raw, "version = 1\ntask = \"classification\"\nname = \"raw\"\n[output]\ndecoder = \"custom\"\n").unwrap();
    let raw = format!("classify-1-description={raw}");
    run(&["--classify", &color, "--set", &raw, "--device", "CPU", "--input", "test:2"]);

    let seen = validator.seen.borrow();
    for field in ["id", "track_state", "parent_id", "label", "value", "reason", "classifications", "stream", "shape", "data"] {
        assert!(seen.contains(field), "no line has `{field}`: {seen:?}");
    }
}

#[test]
fn the_schema_refuses_what_is_no_line_of_results() {
    let validator = Validator::new();
    let line = || -> Value {
        let text = r#"{"schema_version":2,"frame":0,"stream":null,"timestamp":0,"pts":0,"time":"2026-01-01T00:00:00.000Z","source":null,
            "resolution":{"width":8,"height":8},"inference":{"status":"ok"},"objects":[{"x":0,"y":0,"w":1,"h":1,"id":null,"region_id":1,
            "parent_id":null,"roi_type":"a","detection":{"bounding_box":{"x_min":0.0,"y_min":0.0,"x_max":0.1,"y_max":0.1},"confidence":0.5,
            "label_id":0,"label":"a"},"color":{"label":"red","label_id":0,"confidence":1.0,"model":{"name":"m"}}}]}"#;
        serde_json::from_str(text).unwrap()
    };
    let check = |line: &Value| validator.check(&validator.root, line, "line");
    check(&line()).unwrap();
    for (place, wrong) in [
        ("/schema_version", Value::from(1)),
        ("/frame", Value::from("0")),
        ("/inference/status", Value::from("well")),
        ("/objects/0/w", Value::from(0)),
        ("/objects/0/track", Value::from(1)),
        ("/objects/0/color/model", Value::Null),
        ("/objects/0/detection/bounding_box/x_min", Value::from("0")),
        ("/unknown", Value::from(1)),
    ] {
        let mut line = line();
        let (parent, name) = place.rsplit_once('/').unwrap();
        line.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), wrong);
        assert!(check(&line).is_err(), "{place}");
    }
    for place in ["/objects/0/detection/label_id", "/objects/0/color/model", "/resolution"] {
        let mut line = line();
        let (parent, name) = place.rsplit_once('/').unwrap();
        line.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        assert!(check(&line).is_err(), "{place}");
    }
}

/// Asserts that each of these lines, which describe other events than frames, conforms to its schema.
pub fn check_records(lines: &[Value]) {
    let validator = Validator::of(include_str!("../../assets/records.schema.json"));
    for line in lines {
        validator.check(&validator.root, line, "line").unwrap_or_else(|error| panic!("{error}\n{line}"));
    }
}

/// Asserts that each line of a file of `--events` conforms to its schema.
pub fn check_events(path: &str) -> Vec<Value> {
    let validator = Validator::of(include_str!("../../assets/events.schema.json"));
    let lines = lines(path);
    for line in &lines {
        validator.check(&validator.root, line, "line").unwrap_or_else(|error| panic!("{error}\n{line}"));
    }
    lines
}
