//! Checks a description without playing it: no frame is read and no file is written.

use gst::prelude::*;
use gstreamer as gst;

use super::graph::{Graph, Structure};
use super::spec::ParameterType;
use super::{Error, Input, Outputs, Plan, Result, Spec, build};
use crate::elements::analytics::RoiAnalytics;
use crate::stages::{Engine, GalleryChoice, Stage, StageOptions};

/// Checks a description with the values `set`: its parameters, graph, elements and properties, and that each model can be loaded
/// and has a description. Returns the names of the parameters that need a value and have none. Elements that depend on these
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
        Graph::parse(&spec.file.pipeline.graph, &Structure { source: String::new(), json: String::new(), video: String::new() })?.slots;
    for element in &plan.elements {
        // If a parameter of the element has no value yet, the element cannot be checked.
        if slots.iter().any(|slot| slot.element == element.name && missing.contains(&slot.parameter)) {
            continue;
        }
        if let Some(found) = pipeline.by_name(&element.name) {
            load_model(&element.factory, &found, &plan.engine).map_err(|why| named(Error::failed(format!("{}: {why}", element.name))))?;
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
    for slot in Graph::parse(&spec.file.pipeline.graph, &structure)?.slots {
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

/// Checks the layouts of a pipeline's counters of objects.
///
/// # Errors
/// Returns an error with the name of the element whose layout is not valid.
pub fn check_layouts(pipeline: &gst::Pipeline) -> Result<()> {
    for element in pipeline.iterate_recurse().into_iter().flatten() {
        if let Some(analytics) = element.downcast_ref::<RoiAnalytics>() {
            analytics.check_layout().map_err(|error| Error::usage(format!("{}: {error}", analytics.name())))?;
        }
    }
    Ok(())
}

/// Loads the models of a pipeline as its elements would. While the returned stages exist, elements that start share their models
/// instead of loading them again.
///
/// # Errors
/// Returns an error with the name of the element whose model cannot be loaded, or whose layout is not valid.
pub(super) fn load_models(pipeline: &gst::Pipeline, plan: &Plan) -> Result<Vec<Stage>> {
    check_layouts(pipeline)?;
    let elements = plan.elements.iter().filter_map(|element| Some((element, pipeline.by_name(&element.name)?)));
    let loaded = elements.map(|(element, found)| {
        load_model(&element.factory, &found, &plan.engine).map_err(|why| Error::failed(format!("{}: {why}", element.name)))
    });
    loaded.filter_map(Result::transpose).collect()
}

/// Loads the model of an inference element as the element would. Returns `None` for other elements.
fn load_model(factory: &str, element: &gst::Element, engine: &Engine) -> Result<Option<Stage>, String> {
    if !["roidetect", "roiclassify"].contains(&factory) {
        return Ok(None);
    }
    let text = |property: &str| element.property::<Option<String>>(property).filter(|text| !text.is_empty());
    let threshold = |property: &str| Some(element.property::<f32>(property)).filter(|threshold| *threshold >= 0.0);
    let options = StageOptions {
        model: text("model").unwrap_or_default().into(),
        description: text("description").map(Into::into),
        model_proc: text("model-proc").map(Into::into),
        device: text("device"),
        labels: text("labels").map(|labels| labels.split(',').map(|label| label.trim().to_owned()).collect()),
        labels_file: text("labels-file").map(Into::into),
        threshold: threshold("threshold"),
        config: text("config"),
        engine: engine.clone(),
        ..StageOptions::default()
    };
    let options = options.with_remote_model();
    if options.model.as_os_str().is_empty() {
        return Err("expected a model, got none. Set the property `model` to the path of a model file".to_owned());
    }
    let loaded = match factory {
        "roidetect" => {
            let options = StageOptions { class_thresholds: text("class-thresholds"), iou_threshold: threshold("iou-threshold"), ..options };
            Stage::detector(&options)
        }
        _ => {
            let gallery = text("gallery").map_or(GalleryChoice::Described, |path| GalleryChoice::File(path.into()));
            Stage::classifier(&StageOptions { gallery, ..options })
        }
    };
    loaded.map(Some).map_err(|error| error.to_string())
}
