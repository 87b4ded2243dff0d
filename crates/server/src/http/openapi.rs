//! The OpenAPI 3.1 document. Its schemas are JSON Schema 2020-12, as in OpenAPI 3.1, so `schemars` writes them.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::Access;
use super::routes::{Answer, routes};
use crate::error::Error;

/// Returns the document as text.
pub(super) fn document(version: &str) -> String {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    let mut document = DOCUMENT.get_or_init(generate).clone();
    document["info"]["version"] = version.into();
    document.to_string()
}

fn generate() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    let error = generator.subschema_for::<Error>();
    let mut paths = Map::new();
    for route in routes() {
        let mut parameters: Vec<Value> = Vec::new();
        if route.path.contains("{name}") {
            let description = if route.path.starts_with("/api/nodes") { "Name of the node" } else { "Name of the stream" };
            parameters
                .push(json!({"name": "name", "in": "path", "required": true, "description": description, "schema": {"type": "string"}}));
        }
        if route.path.contains("{id}") {
            let description = "Number of the crop";
            parameters
                .push(json!({"name": "id", "in": "path", "required": true, "description": description, "schema": {"type": "integer"}}));
        }
        for (name, description) in route.options {
            parameters.push(json!({"name": name, "in": "query", "description": description, "schema": {"type": "string"}}));
        }
        let mut answers = Map::new();
        match route.answer {
            Answer::Json(status, schema) => {
                let content = json!({"application/json": {"schema": schema(&mut generator)}});
                answers.insert(status.to_string(), json!({"description": "Success", "content": content}));
            }
            Answer::Other(kind) => drop(answers.insert("200".to_owned(), json!({"description": "Success", "content": {kind: {}}}))),
            Answer::Nothing => drop(answers.insert("2XX".to_owned(), json!({"description": "Success"}))),
        }
        let body = json!({"type": "object", "properties": {"error": error}, "required": ["error"]});
        answers.insert("default".to_owned(), json!({"description": "Error", "content": {"application/json": {"schema": body}}}));
        let id = format!("{}_{}", route.method, route.path.trim_start_matches("/api/").replace(['/', '.'], "_").replace(['{', '}'], ""));
        let mut operation = json!({"summary": route.summary, "operationId": id, "responses": answers});
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(schema) = route.body {
            let schema = schema(&mut generator);
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        if let Access::Role(role) = route.access {
            operation["security"] = json!([{"token": []}]);
            operation["x-role"] = role.name().into();
        }
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "roiflow serve", "version": "", "description": "Streams of a roiflow server: add, watch, measure, remove."},
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Needed if the server has tokens"}},
        },
    })
}
