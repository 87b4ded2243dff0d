//! Pipeline of a detector and classifiers given on the command line without a description.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Error, Result, Spec};

/// Models to run on each frame, in the order of the pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Models {
    /// The detector. Without one, the classifiers run on whole frames.
    pub detector: Option<PathBuf>,
    /// Whether objects get track IDs. Needs a detector.
    pub track: bool,
    /// The classifiers, each of which runs on every detected object.
    pub classifiers: Vec<PathBuf>,
}

impl Models {
    /// The description of this pipeline, and the values of its parameters.
    ///
    /// The parameters are `device`, `model` and `model-description`; for each classifier, counted from 1, `classify-1` and
    /// `classify-1-description`.
    ///
    /// # Errors
    /// `Usage` if the path of a model is not UTF-8.
    pub fn pipeline(&self) -> Result<(Spec, Vec<(String, String)>)> {
        let mut parameters =
            "[parameters.device]\ntype = \"string\"\ndefault = \"AUTO\"\nhelp = \"device that runs the models\"\n".to_owned();
        let (mut graph, mut set) = ("{source}".to_owned(), Vec::new());
        let mut add = |element: &str, name: &str, model: &Path, more: &str| -> Result<()> {
            let path = model
                .to_str()
                .ok_or_else(|| Error::usage(format!("model `{}`: expected a path in UTF-8. Rename it or link to it", model.display())))?;
            set.push((name.to_owned(), path.to_owned()));
            // Writing to a string cannot fail.
            let _written = write!(
                parameters,
                "[parameters.{name}]\ntype = \"path\"\nhelp = \"a model\"\n\
                 [parameters.{name}-description]\ntype = \"path\"\ndefault = \"\"\nhelp = \"its description, if it is not next to the model\"\n"
            );
            let _written =
                write!(graph, "\n! {element} name={name} model={{{name}}} description={{{name}-description}} device={{device}}{more}");
            if self.track && name == "model" {
                graph.push_str("\n! roitrack name=track");
            }
            Ok(())
        };
        if let Some(model) = &self.detector {
            add("roidetect", "model", model, "")?;
        }
        let region = if self.detector.is_some() { "" } else { " inference-region=full-frame" };
        for (model, number) in self.classifiers.iter().zip(1..) {
            add("roiclassify", &format!("classify-{number}"), model, region)?;
        }
        let text = format!(
            "version = 1\nname = \"models\"\ndescription = \"The models of the command line.\"\n{parameters}\
             [pipeline]\ngraph = \"\"\"\n{graph}\n! {{json}}\n! roioverlay\n! {{video}}\n\"\"\"\n"
        );
        // The path appears in messages, and relative defaults would refer to it; there are none.
        Ok((Spec::parse(&text, Path::new("--model"))?, set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(models: &Models) -> Vec<String> {
        let (spec, _) = models.pipeline().unwrap();
        spec.file.pipeline.graph.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn detector_tracker_and_classifiers_are_in_order() {
        let models = Models { detector: Some("a b.onnx".into()), track: true, classifiers: vec!["c.onnx".into(), "d.xml".into()] };
        assert_eq!(
            graph(&models),
            [
                "{source}",
                "! roidetect name=model model={model} description={model-description} device={device}",
                "! roitrack name=track",
                "! roiclassify name=classify-1 model={classify-1} description={classify-1-description} device={device}",
                "! roiclassify name=classify-2 model={classify-2} description={classify-2-description} device={device}",
                "! {json}",
                "! roioverlay",
                "! {video}",
            ]
        );
        let set = models.pipeline().unwrap().1;
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(set, [of("model", "a b.onnx"), of("classify-1", "c.onnx"), of("classify-2", "d.xml")]);
    }

    #[test]
    fn classifiers_without_a_detector_run_on_whole_frames() {
        let models = Models { classifiers: vec!["scene.onnx".into()], ..Models::default() };
        assert!(graph(&models)[1].ends_with(" inference-region=full-frame"));
    }
}
