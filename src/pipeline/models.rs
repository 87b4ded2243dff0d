//! Pipeline of a detector and classifiers given on the command line without a description.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Error, Result, Spec};
use crate::stages::labels::LabelList;
use crate::stages::spec::described_labels;
use crate::stages::{Quoted, StageOptions, did_you_mean};

/// Models to run on each frame, in the order of the pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Models {
    /// The detector. If there is no detector, the classifiers run on whole frames.
    pub detector: Option<PathBuf>,
    /// Whether objects get track IDs. Needs a detector.
    pub track: bool,
    /// The classifiers.
    pub classifiers: Vec<Classifier>,
}

/// A classifier, and the objects that it classifies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classifier {
    /// The model.
    pub model: PathBuf,
    /// Labels of the objects to classify. If the list is empty, every object is classified.
    pub object_classes: Vec<String>,
}

impl Classifier {
    /// Reads `model.onnx` or `model.onnx@car,truck`. If a file with the whole name exists, that file is the model, even if its
    /// name contains an `@`.
    ///
    /// # Errors
    /// Returns `Usage` if a label or the model is empty.
    pub fn parse(text: &Path) -> Result<Self> {
        let parts = text.to_str().filter(|_| !text.exists()).and_then(|text| text.rsplit_once('@'));
        let Some((model, labels)) = parts else { return Ok(Self { model: text.to_owned(), object_classes: Vec::new() }) };
        let object_classes: Vec<String> = labels.split(',').map(|label| label.trim().to_owned()).collect();
        if model.is_empty() || object_classes.iter().any(String::is_empty) {
            let text = text.display();
            return Err(Error::usage(format!(
                "--classify: expected MODEL or MODEL@LABEL,LABEL, such as color.onnx@car,truck, got `{text}`"
            )));
        }
        Ok(Self { model: model.into(), object_classes })
    }
}

impl Models {
    /// Returns the description of this pipeline, and the values of its parameters.
    ///
    /// The parameters are `device`; with a detector `model`, `model-description`, `threshold`, `classes` and `drop-classes`; for each classifier, counted from 1, `classify-1` and
    /// `classify-1-description`.
    ///
    /// # Errors
    /// Returns `Usage` if the path of a model is not UTF-8, or a classifier has object labels but there is no detector.
    pub fn pipeline(&self) -> Result<(Spec, Vec<(String, String)>)> {
        let mut parameters =
            "[parameters.device]\ntype = \"string\"\ndefault = \"AUTO\"\nhelp = \"device that runs the models\"\n".to_owned();
        let (mut graph, mut set) = ("{source}".to_owned(), Vec::new());
        let mut add = |element: &str, name: &str, model: &Path, more: &str| -> Result<()> {
            let path = model.to_str().ok_or_else(|| {
                Error::usage(format!(
                    "model `{}`: expected a path in UTF-8. Rename the file, or pass the path of a link to the file",
                    model.display()
                ))
            })?;
            set.push((name.to_owned(), path.to_owned()));
            // Writing to a string cannot fail.
            let _written = write!(
                parameters,
                "[parameters.{name}]\ntype = \"path\"\nhelp = \"a model\"\n\
                 [parameters.{name}-description]\ntype = \"path\"\ndefault = \"\"\nhelp = \"description of the model, if the description is not next to the model\"\n"
            );
            let _written =
                write!(graph, "\n! {element} name={name} model={{{name}}} description={{{name}-description}} device={{device}}{more}");
            if self.track && name == "model" {
                graph.push_str("\n! roitrack name=track");
            }
            Ok(())
        };
        if let Some(model) = &self.detector {
            add("roidetect", "model", model, " threshold={threshold} keep-classes={classes} drop-classes={drop-classes}")?;
        }
        let mut labels_of = Vec::new();
        let region = if self.detector.is_some() { "" } else { " inference-region=full-frame" };
        for (classifier, number) in self.classifiers.iter().zip(1..) {
            let name = format!("classify-{number}");
            if classifier.object_classes.is_empty() {
                add("roiclassify", &name, &classifier.model, region)?;
                continue;
            }
            let labels = classifier.object_classes.join(",");
            if self.detector.is_none() {
                let model = classifier.model.display();
                return Err(Error::usage(format!(
                    "--classify {model}@{labels}: expected a detector that gives these labels, got none: add --model FILE"
                )));
            }
            add("roiclassify", &name, &classifier.model, &format!(" object-class={{{name}-labels}}"))?;
            labels_of.push((format!("{name}-labels"), labels));
        }
        if self.detector.is_some() {
            parameters += "[parameters.threshold]\ntype = \"number\"\ndefault = -1\nhelp = \"minimum confidence of reported objects\"\n\
                 [parameters.classes]\ntype = \"string\"\ndefault = \"\"\nhelp = \"labels of the only objects that are reported\"\n\
                 [parameters.drop-classes]\ntype = \"string\"\ndefault = \"\"\nhelp = \"labels of objects that are not reported\"\n";
        }
        for (name, labels) in labels_of {
            // Writing to a string cannot fail.
            let _written = write!(parameters, "[parameters.{name}]\ntype = \"string\"\nhelp = \"labels of the objects to classify\"\n");
            set.push((name, labels));
        }
        let text = format!(
            "version = 1\nname = \"models\"\ndescription = \"The models of the command line.\"\n{parameters}\
             [pipeline]\ngraph = \"\"\"\n{graph}\n! {{json}}\n! roioverlay\n! {{video}}\n\"\"\"\n"
        );
        // The path appears only in messages, because this description has no defaults that are relative paths.
        Ok((Spec::parse(&text, Path::new("--model"))?, set))
    }
}

/// Checks that the detector has the labels that the classifiers select. `set` are the values of the parameters.
///
/// For some detectors, the labels are known only after the model is loaded. These labels are not checked here, and errors of the
/// detector itself are reported when the pipeline loads it.
///
/// # Errors
/// Returns `Usage` with the nearest label if the detector lacks a label that a classifier selects.
pub fn check_labels(models: &Models, set: &[(String, String)]) -> Result<()> {
    let value =
        |name: &str| set.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone()).filter(|value| !value.is_empty());
    let classes = models.classifiers.iter().flat_map(|classifier| &*classifier.object_classes).map(String::as_str);
    let classes = LabelList::parse(&classes.collect::<Vec<_>>().join(","));
    let Some(model) = value("model").filter(|_| !classes.is_empty()) else { return Ok(()) };
    let options = StageOptions {
        model: model.clone().into(),
        description: value("model-description").map(Into::into),
        device: value("device"),
        ..StageOptions::default()
    };
    let Ok(labels) = described_labels(&options) else { return Ok(()) };
    let known: Vec<&str> = (0..labels.len() as u32).filter_map(|class_id| labels.get(class_id)).map(|label| &**label).collect();
    match classes.unknown(known.iter().copied()).into_iter().find(|_| !known.is_empty()) {
        None => Ok(()),
        Some(class) => {
            let near = did_you_mean(class, known.iter().copied());
            let mut named = known.iter().take(N_NAMED).copied().collect::<Vec<_>>().join(", ");
            if known.len() > N_NAMED {
                let _written = write!(named, " and {} more, which `roiflow describe {}` lists", known.len() - N_NAMED, Quoted(&model));
            }
            Err(Error::usage(format!(
                "--classify: expected labels that the detector `{model}` gives, got `{class}`. The detector gives {named}{near}"
            )))
        }
    }
}

/// Maximum number of known labels that the error message lists.
const N_NAMED: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(models: &Models) -> Vec<String> {
        let (spec, _) = models.pipeline().unwrap();
        spec.file.pipeline.graph.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn detector_tracker_and_classifiers_are_in_order() {
        let models = Models {
            detector: Some("a b.onnx".into()),
            track: true,
            classifiers: ["c.onnx", "d.xml@car,light truck"].map(|text| Classifier::parse(Path::new(text)).unwrap()).to_vec(),
        };
        assert_eq!(
            graph(&models),
            [
                "{source}",
                "! roidetect name=model model={model} description={model-description} device={device} threshold={threshold} keep-classes={classes} drop-classes={drop-classes}",
                "! roitrack name=track",
                "! roiclassify name=classify-1 model={classify-1} description={classify-1-description} device={device}",
                "! roiclassify name=classify-2 model={classify-2} description={classify-2-description} device={device} object-class={classify-2-labels}",
                "! {json}",
                "! roioverlay",
                "! {video}",
            ]
        );
        let set = models.pipeline().unwrap().1;
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            set,
            [of("model", "a b.onnx"), of("classify-1", "c.onnx"), of("classify-2", "d.xml"), of("classify-2-labels", "car,light truck")]
        );
    }

    #[test]
    fn classifiers_without_a_detector_run_on_whole_frames() {
        let models = Models { classifiers: vec![Classifier { model: "scene.onnx".into(), ..Classifier::default() }], ..Models::default() };
        assert!(graph(&models)[1].ends_with(" inference-region=full-frame"));
    }

    #[test]
    fn labels_behind_a_classifier_are_split_and_checked() {
        let parse = |text: &str| Classifier::parse(Path::new(text));
        let of = |model: &str, labels: &[&str]| Classifier {
            model: model.into(),
            object_classes: labels.iter().map(|label| (*label).to_owned()).collect(),
        };
        assert_eq!(parse("c.onnx").unwrap(), of("c.onnx", &[]));
        assert_eq!(parse("a@b/c.onnx@car, traffic light").unwrap(), of("a@b/c.onnx", &["car", "traffic light"]));
        for wrong in ["c.onnx@", "c.onnx@car,", "@car"] {
            assert!(parse(wrong).unwrap_err().to_string().contains("MODEL@LABEL"), "{wrong}");
        }
        let lone = Models { classifiers: vec![of("c.onnx", &["car"])], ..Models::default() };
        assert!(lone.pipeline().unwrap_err().to_string().contains("--model FILE"));
    }
}
