//! Registry of decoders: the built-in decoders, and the decoders that the program registers.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::boxes_labels::BoxesLabels;
use super::extra::{Extra, Pose};
use super::yolov5::YoloV5;
use super::yolov8::YoloV8;
use super::yolov10::YoloV10;
use super::{
    BoxDecoder, Decoder, Section, anchors, blazeface, boxes_scores, centerface, classes, detr, efficientdet, expectation, fastestdet,
    final_boxes, landmarks, maps, nanodet, pose, retinaface, scrfd, ssd, text, tf_ssd, ultraface, vector, yolox, yunet,
};
use crate::tensor::{Error, ErrorKind, Result};

/// What the results of a decoder describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Objects in the image: `task = "detection"`.
    Objects,
    /// The whole image: `task = "classification"`.
    Attributes,
    /// Objects or the whole image.
    Anything,
}

/// A function that creates a decoder from its section of a description.
type Make = dyn Fn(&mut Section<'_>) -> Result<Box<dyn Decoder>> + Send + Sync;

/// Like [`Make`], but a function pointer, so that [`BUILT_IN`] can be a constant.
type MakeBuiltIn = fn(&mut Section<'_>) -> Result<Box<dyn Decoder>>;

/// The built-in decoders, in the order in which messages list them.
const BUILT_IN: [(&str, Subject, MakeBuiltIn); 48] = [
    ("yolov5", Subject::Objects, |section| BoxDecoder::boxed(YoloV5(Extra::None), section)),
    ("yolov8", Subject::Objects, |section| BoxDecoder::boxed(YoloV8(Extra::None), section)),
    ("yolov10", Subject::Objects, |section| BoxDecoder::boxed(YoloV10::plain(section)?, section)),
    ("yolox", Subject::Objects, |section| BoxDecoder::boxed(section.keys::<yolox::Yolox>()?, section)),
    ("ssd", Subject::Objects, |section| BoxDecoder::boxed(ssd::Ssd, section)),
    ("yolov5-seg", Subject::Objects, |section| BoxDecoder::boxed(YoloV5(Extra::Masks), section)),
    ("yolov8-seg", Subject::Objects, |section| BoxDecoder::boxed(YoloV8(Extra::Masks), section)),
    ("yolov10-seg", Subject::Objects, |section| BoxDecoder::boxed(YoloV10::with(Extra::Masks), section)),
    ("yolov8-pose", Subject::Objects, |section| BoxDecoder::boxed(YoloV8(Extra::Keypoints(Pose::new(section, true)?)), section)),
    ("yolov10-pose", Subject::Objects, |section| BoxDecoder::boxed(YoloV10::with(Extra::Keypoints(Pose::new(section, false)?)), section)),
    ("yolov8-obb", Subject::Objects, |section| BoxDecoder::boxed(YoloV8(Extra::Angle), section)),
    ("yolov10-obb", Subject::Objects, |section| BoxDecoder::boxed(YoloV10::with(Extra::Angle), section)),
    ("yolo-anchors", Subject::Objects, |section| BoxDecoder::boxed(anchors::YoloAnchors::new(section)?, section)),
    ("boxes-labels", Subject::Objects, |section| BoxDecoder::boxed(BoxesLabels { masks: None }, section)),
    ("boxes-masks", Subject::Objects, |section| BoxDecoder::boxed(BoxesLabels { masks: Some(section.keys()?) }, section)),
    ("boxes-scores", Subject::Objects, |section| BoxDecoder::boxed(section.keys::<boxes_scores::BoxesScores>()?, section)),
    ("detr", Subject::Objects, |section| BoxDecoder::boxed(section.keys::<detr::Detr>()?, section)),
    ("final-boxes", Subject::Objects, |section| BoxDecoder::boxed(final_boxes::FinalBoxes::new(section)?, section)),
    ("detr-final", Subject::Objects, |section| BoxDecoder::boxed(final_boxes::FinalBoxes::new(section)?, section)),
    ("multiclass-nms", Subject::Objects, |section| BoxDecoder::boxed(final_boxes::FinalBoxes::of_paddle(section)?, section)),
    ("rtdetr", Subject::Objects, |section| BoxDecoder::boxed(detr::RtDetr, section)),
    ("tf-ssd", Subject::Objects, |section| BoxDecoder::boxed(tf_ssd::TfSsd, section)),
    ("efficientdet", Subject::Objects, |section| BoxDecoder::boxed(efficientdet::EfficientDet::new(section)?, section)),
    ("fastestdet", Subject::Objects, |section| BoxDecoder::boxed(fastestdet::FastestDet, section)),
    ("nanodet", Subject::Objects, |section| BoxDecoder::boxed(nanodet::NANODET, section)),
    ("nanodet-plus", Subject::Objects, |section| BoxDecoder::boxed(nanodet::NANODET_PLUS, section)),
    ("picodet", Subject::Objects, |section| BoxDecoder::boxed(nanodet::PICODET, section)),
    ("ultraface", Subject::Objects, |section| BoxDecoder::boxed(ultraface::UltraFace, section)),
    ("yunet", Subject::Objects, |section| BoxDecoder::boxed(yunet::YuNet, section)),
    ("scrfd", Subject::Objects, |section| BoxDecoder::boxed(scrfd::Scrfd, section)),
    ("retinaface", Subject::Objects, |section| BoxDecoder::boxed(retinaface::RetinaFace, section)),
    ("centerface", Subject::Objects, |section| BoxDecoder::boxed(centerface::CenterFace, section)),
    ("blazeface", Subject::Objects, |section| BoxDecoder::boxed(blazeface::BlazeFace, section)),
    ("movenet-multi", Subject::Objects, |section| BoxDecoder::boxed(pose::MultiMoveNet::new(section)?, section)),
    ("db-text", Subject::Objects, |section| BoxDecoder::boxed(text::Db::new(section)?, section)),
    ("classes", Subject::Attributes, |section| Ok(Box::new(classes::Classes::best(section)?))),
    ("multi-label", Subject::Attributes, |section| Ok(Box::new(classes::Classes::multi(section)?))),
    ("expectation", Subject::Attributes, |section| Ok(Box::new(expectation::Expectation::new(section)?))),
    ("regression", Subject::Attributes, |section| Ok(Box::new(vector::Regression::new(section)?))),
    ("embedding", Subject::Attributes, |section| Ok(Box::new(section.keys::<vector::Embedding>()?))),
    ("ctc", Subject::Attributes, |section| Ok(Box::new(text::Ctc::new(section)?))),
    ("text-indexes", Subject::Attributes, |section| Ok(Box::new(text::TextIndexes::new(section)?))),
    ("simcc", Subject::Attributes, |section| Ok(Box::new(pose::SimCc::new(section)?))),
    ("movenet", Subject::Attributes, |section| Ok(Box::new(pose::MoveNet::new(section)?))),
    ("landmarks", Subject::Attributes, |section| Ok(Box::new(landmarks::Landmarks::new(section)?))),
    ("class-map", Subject::Attributes, |section| Ok(Box::new(maps::ClassMap::new(section)?))),
    ("anomaly", Subject::Attributes, |section| Ok(Box::new(maps::Anomaly::new(section)?))),
    ("custom", Subject::Anything, |_| Ok(Box::new(vector::Raw))),
];

#[derive(Clone)]
struct Entry {
    name: Arc<str>,
    subject: Subject,
    make: Arc<Make>,
}

/// Maps names to decoders. The default value contains the built-in decoders. Clones share the decoders.
#[derive(Clone)]
pub struct DecoderRegistry(Arc<Vec<Entry>>);

impl Default for DecoderRegistry {
    fn default() -> Self {
        Self::built_in().clone()
    }
}

impl PartialEq for DecoderRegistry {
    /// Returns whether both values are clones of one registry.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for DecoderRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| &entry.name)).finish()
    }
}

impl DecoderRegistry {
    /// Returns the registry that contains only the built-in decoders.
    pub fn built_in() -> &'static Self {
        static BUILT_IN_REGISTRY: LazyLock<DecoderRegistry> = LazyLock::new(|| {
            let entry = |(name, subject, make): (&str, Subject, MakeBuiltIn)| Entry { name: name.into(), subject, make: Arc::new(make) };
            DecoderRegistry(Arc::new(BUILT_IN.into_iter().map(entry).collect()))
        });
        &BUILT_IN_REGISTRY
    }

    /// Adds a decoder, or replaces the earlier decoder of this name. `make` creates the decoder from its keys in a description, before the
    /// model is known.
    pub fn register<D: Decoder + 'static>(
        &mut self,
        name: &str,
        subject: Subject,
        make: impl Fn(&mut Section<'_>) -> Result<D> + Send + Sync + 'static,
    ) {
        let entries = Arc::make_mut(&mut self.0);
        entries.retain(|entry| *entry.name != *name);
        let make = Arc::new(move |section: &mut Section<'_>| Ok(Box::new(make(section)?) as Box<dyn Decoder>));
        entries.push(Entry { name: name.into(), subject, make });
    }

    /// Returns the names of the decoders, in the order in which messages list them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| &*entry.name)
    }

    /// Returns the names of the decoders for this subject and of those for [`Subject::Anything`], in the order of the registry.
    pub fn names_of(&self, subject: Subject) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |entry| entry.subject == subject || entry.subject == Subject::Anything).map(|entry| &*entry.name)
    }

    /// Returns the subject of a decoder; `None` if there is no decoder of this name.
    pub fn subject(&self, name: &str) -> Option<Subject> {
        self.entry(name).map(|entry| entry.subject)
    }

    /// Creates a decoder from the keys of a section. Unknown keys are reported by [`DecoderRegistry::check_keys`].
    ///
    /// # Errors
    /// Returns `Unsupported` if there is no decoder of this name, or if the value of a key is invalid.
    pub fn make(&self, name: &str, section: &mut Section<'_>) -> Result<Box<dyn Decoder>> {
        let unknown = || Error::new(ErrorKind::Unsupported, format!("unknown decoder `{name}`"));
        (self.entry(name).ok_or_else(unknown)?.make)(section)
    }

    /// Like [`DecoderRegistry::make`], but reads the keys from text. The text contains only keys of the decoder, such as `threshold = 0.5`.
    ///
    /// # Errors
    /// Returns the errors of [`DecoderRegistry::make`], and `Unsupported` if the text is not valid TOML or has an unknown key.
    pub fn make_from_text(&self, name: &str, text: &str) -> Result<Box<dyn Decoder>> {
        let mut section = Section::parse(text)?;
        let decoder = self.make(name, &mut section)?;
        self.check_keys(name, &section)?;
        Ok(decoder)
    }

    /// Returns the description keys that a decoder reads.
    pub fn keys(&self, name: &str) -> Vec<&'static str> {
        let mut section = Section::parse("").expect("no text is an empty table");
        // Creating a decoder without keys may fail, because a required key is missing. But the section has recorded the keys by
        // then.
        let _made = self.make(name, &mut section);
        section.known().to_vec()
    }

    /// Checks that the decoder has read each key of the section.
    ///
    /// # Errors
    /// Returns `Unsupported` if a key was not read. The message names the line, the keys of this decoder, and the decoders that accept the
    /// unread key.
    pub fn check_keys(&self, name: &str, section: &Section<'_>) -> Result<()> {
        section.check_keys(|key| {
            let known = section.known().iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
            let owners: Vec<&str> = self.names().filter(|other| self.keys(other).contains(&key)).collect();
            match owners.is_empty() {
                true => format!("unknown field `{key}`, expected one of {known}"),
                false => {
                    format!(
                        "`{key}` is not a key of decoder `{name}`: expected one of {known} (decoders with `{key}`: {})",
                        owners.join(", ")
                    )
                }
            }
        })
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| *entry.name == *name)
    }

    /// Schemas of the keys of a decoder, for tests.
    #[cfg(feature = "schema")]
    pub fn schemas(&self, name: &str) -> Vec<schemars::Schema> {
        let mut section = Section::parse("").expect("no text is an empty table");
        let _made = self.make(name, &mut section);
        section.schemas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_decoders_are_errors_with_their_names() {
        let refused = |name: &str, text: &str| DecoderRegistry::built_in().make_from_text(name, text).map(drop).unwrap_err().to_string();
        let message = refused("yolov10", "threshold = 0.5\nnms = \"linear\"\n");
        assert!(message.contains("line 2") && message.contains("`nms` is not a key of decoder `yolov10`"), "{message}");
        assert!(
            message.contains("expected one of `box-format`, `threshold`") && message.contains("decoders with `nms`: yolov5, yolov8"),
            "{message}"
        );
        let message = refused("embedding", "scale = 2.0");
        assert!(message.contains("expected one of `normalize` (decoders with `scale`: regression)"), "{message}");
        let message = refused("yolox", "treshold = 0.5");
        assert!(message.contains("unknown field `treshold`, expected one of `decoded`, `threshold`"), "{message}");
    }

    #[test]
    fn registered_decoder_replaces_one_of_the_same_name() {
        let mut registry = DecoderRegistry::default();
        registry.register("yolov5", Subject::Attributes, |_| Ok(vector::Raw));
        assert_eq!(
            (registry.subject("yolov5"), DecoderRegistry::built_in().subject("yolov5")),
            (Some(Subject::Attributes), Some(Subject::Objects))
        );
        assert_eq!(registry.names().count(), BUILT_IN.len());
        assert!(registry.make("yolov3", &mut Section::parse("").unwrap()).unwrap_err().to_string().contains("yolov3"));
    }
}
