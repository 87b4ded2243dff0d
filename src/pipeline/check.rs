//! Checks a description without playing it: no frame is read and no file is written.

use gst::prelude::*;
use gstreamer as gst;

use super::graph::{Graph, Structure};
use super::spec::ParameterType;
use super::{Error, Input, Outputs, Plan, Result, Spec, build};
use crate::elements::{self, analytics::RoiAnalytics, overlay::RoiOverlay};

/// Checks a description with the values `set`: its parameters, graph, elements and properties, and that each model can be loaded,
/// runs, and has a description. Returns the names of the parameters that need a value and have none. Elements that depend on these
/// parameters are not checked.
///
/// # Errors
/// Returns the errors of [`Plan::resolve`] and [`build::build`], and an error if a model cannot be loaded.
pub fn check(spec: &Spec, set: &[(String, String)]) -> Result<Vec<String>> {
    let is_set = |name: &str| set.iter().any(|(known, _)| known == name);
    let mut spec = spec.clone();
    let mut missing = Vec::new();
    for (name, parameter) in &mut spec.file.parameters {
        if parameter.default.is_none() && !is_set(name) {
            missing.push(name.clone());
            // Set the parameter to an empty text, so that the property of the element keeps its default.
            (parameter.r#type, parameter.default) = (ParameterType::String, Some(toml::Value::String(String::new())));
        }
    }
    check_defaults(&spec)?;
    let plan = Plan::resolve(&spec, set, Input::Test(1), Outputs::default())?;
    let named = |error: Error| error.context(spec.title());
    let pipeline = build::build(&plan).map_err(named)?;
    check_slots(&spec, &pipeline).map_err(named)?;
    let slots =
        Graph::parse(&spec.file.pipeline.graph, &Structure { source: String::new(), json: String::new(), video: String::new() }, &|_| {
            false
        })?
        .slots;
    for element in &plan.elements {
        // If a parameter of the element has no value yet, the element cannot be checked.
        if slots.iter().any(|slot| slot.element == element.name && missing.contains(&slot.parameter)) {
            continue;
        }
        if let Some(found) = pipeline.by_name(&element.name) {
            elements::prepare_element(&found).map_err(|why| named(Error::failed(format!("{}: {why}", element.name))))?;
        }
    }
    Ok(missing)
}

/// Checks that each default has the type of its parameter. Also checks defaults that are not used because the user sets the
/// parameter.
fn check_defaults(spec: &Spec) -> Result<()> {
    let mut alone = spec.clone();
    alone.file.pipeline.graph = "{source} ! {video}".to_owned();
    for parameter in alone.file.parameters.values_mut().filter(|parameter| parameter.default.is_none()) {
        (parameter.r#type, parameter.default) = (ParameterType::String, Some(toml::Value::String(String::new())));
    }
    Plan::resolve(&alone, &[], Input::Test(1), Outputs::default()).map(drop)
}

/// Checks that each element has the properties that parameters set. Also checks the properties of parameters that have no value
/// yet.
fn check_slots(spec: &Spec, pipeline: &gst::Pipeline) -> Result<()> {
    let structure = Structure { source: String::new(), json: String::new(), video: String::new() };
    for slot in Graph::parse(&spec.file.pipeline.graph, &structure, &|_| false)?.slots {
        let Some(element) = pipeline.by_name(&slot.element) else { continue };
        if element.find_property(&slot.property).is_none() {
            let factory = element.factory().map(|factory| factory.name().to_string()).unwrap_or_default();
            return Err(Error::usage(format!(
                "element `{factory}` has no property `{}`; `gst-inspect-1.0 {factory}` lists them",
                slot.property
            )));
        }
    }
    Ok(())
}

/// Checks the layouts and the fonts of a pipeline's elements.
///
/// # Errors
/// Returns an error with the name of the element whose layout or font is not valid.
pub(super) fn check_files(pipeline: &gst::Pipeline) -> Result<()> {
    for element in pipeline.iterate_recurse().into_iter().flatten() {
        let named = |error: String| format!("{}: {error}", element.name());
        if let Some(analytics) = element.downcast_ref::<RoiAnalytics>() {
            analytics.check_layout().map_err(|error| Error::usage(named(error)))?;
        } else if let Some(overlay) = element.downcast_ref::<RoiOverlay>() {
            overlay.check_font().map_err(|error| Error::failed(named(error)))?;
        }
    }
    Ok(())
}
