//! Vectors of images, which a gallery of known objects contains.

use std::path::Path;

use crate::frame::{Classification, Frame, Outcome, PixelFormat, Size};
use crate::stages::{self, GalleryChoice, RunGuard, Stage, StageOptions};

/// The models that compute the vector of an image.
#[derive(Debug)]
pub struct Vectors {
    classifier: Stage,
    /// Finds the object in an image. `None`: the whole image is the object.
    detector: Option<Stage>,
}

impl Vectors {
    /// Loads the model of the vectors, and optionally a detector.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::classifier`] and [`Stage::detector`]. Returns `Config` if the model does not compute vectors.
    pub fn load(model: &StageOptions, detector: Option<&StageOptions>) -> stages::Result<Self> {
        let classifier = Stage::classifier(&StageOptions { gallery: GalleryChoice::None, ..model.clone() })?;
        if classifier.spec().heads.iter().filter(|head| &*head.decoder_name == "embedding").count() != 1 {
            let decoders: Vec<&str> = classifier.spec().heads.iter().map(|head| &*head.decoder_name).collect();
            let message = format!(
                "`{}`: expected a model with one output of the decoder `embedding`, got {}",
                model.model.display(),
                decoders.join(", ")
            );
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        Ok(Self { classifier, detector: detector.map(Stage::detector).transpose()? })
    }

    /// Computes the vector of the object in an image.
    ///
    /// # Errors
    /// Returns the reason if the image cannot be read, if a run fails, if the detector does not find exactly one object, or
    /// if the vector consists of zeros.
    pub fn of_image(&self, path: &Path) -> Result<Vec<f32>, String> {
        let pixels = roiflow_images::file::read(path)?.pixels;
        let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(pixels.width(), pixels.height()), &pixels);
        let frame = frame.map_err(|error| error.to_string())?;
        let failed = |error: stages::Error| error.to_string();
        let classifications = match &self.detector {
            None => self.classifier.classify(&frame).map_err(failed)?,
            Some(detector) => {
                let detections = detector.detect(&frame).map_err(failed)?;
                let [object] = &*detections else {
                    return Err(format!("expected one object, got {}. Crop the image, so that it shows one object", detections.len()));
                };
                let region = self.classifier.spec().crop.region(object);
                let (sender, receiver) = std::sync::mpsc::sync_channel(1);
                let done = move |results: stages::StageResults| {
                    // Sending fails only if the receiver was dropped, and the receiver exists until it gets the results.
                    let _delivered = sender.send(results.into_result());
                };
                self.classifier.submit_regions(frame, 0, [region], RunGuard::now(), done);
                let results = receiver.recv().map_err(|_| "the model stopped".to_owned())?.map_err(failed)?;
                results.of_regions.into_iter().map(|(_, classification)| classification).collect()
            }
        };
        vector_of(classifications)
    }
}

/// Returns the vector of an object. A vector without a direction is an error, because a gallery must not contain it.
fn vector_of(classifications: impl IntoIterator<Item = Classification>) -> Result<Vec<f32>, String> {
    let vector = classifications.into_iter().find_map(|classification| match classification.outcome {
        Outcome::Tensor { data, .. } => Some(data.to_vec()),
        _ => None,
    });
    let vector = vector.ok_or_else(|| "expected a vector, got none".to_owned())?;
    if vector.iter().all(|&value| value == 0.0) {
        return Err(format!("expected a vector other than 0, got {} zeros from the model. Use another image of the object", vector.len()));
    }
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_of_zeros_is_an_error() {
        let vector_of = |data: [f32; 2]| {
            let outcome = Outcome::Tensor { shape: vec![1, 2], data: data.to_vec().into() };
            vector_of([Classification { name: "who".into(), model: "faces".into(), outcome }])
        };
        assert_eq!(vector_of([0.0, -1.0]), Ok(vec![0.0, -1.0]));
        let message = vector_of([0.0, 0.0]).unwrap_err();
        assert!(message.contains("got 2 zeros"), "{message}");
    }
}
