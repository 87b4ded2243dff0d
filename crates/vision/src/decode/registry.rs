//! The registry of decoders: built-in ones, one line each, and those that a program registers.

use std::fmt;
use std::sync::{Arc, LazyLock};

use super::{
    BoxDecoder, Decoder, Section, boxes_labels, boxes_scores, centerface, classes, expectation, nanodet, retinaface, scrfd, ssd, tf_ssd,
    ultraface, vector, yolov5, yolov8, yolov10, yolox, yunet,
};
use crate::tensor::{Error, ErrorKind, Result};

/// The subject of a decoder's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    /// Objects in the image: `task = "detection"`.
    Objects,
    /// The whole image: `task = "classification"`.
    Attributes,
    /// Both.
    Anything,
}

/// Makes a decoder from its section of a description.
type Make = dyn Fn(&mut Section<'_>) -> Result<Box<dyn Decoder>> + Send + Sync;

/// Likewise, for built-in decoders.
type MakeBuiltIn = fn(&mut Section<'_>) -> Result<Box<dyn Decoder>>;

/// The built-in decoders, in the order of messages.
const BUILT_IN: [(&str, Gives, MakeBuiltIn); 22] = [
    ("yolov5", Gives::Objects, |section| BoxDecoder::boxed(yolov5::YoloV5, section)),
    ("yolov8", Gives::Objects, |section| BoxDecoder::boxed(yolov8::YoloV8, section)),
    ("yolov10", Gives::Objects, |section| BoxDecoder::boxed(yolov10::YoloV10, section)),
    ("yolox", Gives::Objects, |section| BoxDecoder::boxed(yolox::Yolox, section)),
    ("ssd", Gives::Objects, |section| BoxDecoder::boxed(ssd::Ssd, section)),
    ("boxes-labels", Gives::Objects, |section| BoxDecoder::boxed(boxes_labels::BoxesLabels, section)),
    ("boxes-scores", Gives::Objects, |section| BoxDecoder::boxed(section.keys::<boxes_scores::BoxesScores>()?, section)),
    ("tf-ssd", Gives::Objects, |section| BoxDecoder::boxed(tf_ssd::TfSsd, section)),
    ("nanodet", Gives::Objects, |section| BoxDecoder::boxed(nanodet::NANODET, section)),
    ("nanodet-plus", Gives::Objects, |section| BoxDecoder::boxed(nanodet::NANODET_PLUS, section)),
    ("picodet", Gives::Objects, |section| BoxDecoder::boxed(nanodet::PICODET, section)),
    ("ultraface", Gives::Objects, |section| BoxDecoder::boxed(ultraface::UltraFace, section)),
    ("yunet", Gives::Objects, |section| BoxDecoder::boxed(yunet::YuNet, section)),
    ("scrfd", Gives::Objects, |section| BoxDecoder::boxed(scrfd::Scrfd, section)),
    ("retinaface", Gives::Objects, |section| BoxDecoder::boxed(retinaface::RetinaFace, section)),
    ("centerface", Gives::Objects, |section| BoxDecoder::boxed(centerface::CenterFace, section)),
    ("classes", Gives::Attributes, |section| Ok(Box::new(classes::Classes::best(section)?))),
    ("multi-label", Gives::Attributes, |section| Ok(Box::new(classes::Classes::multi(section)?))),
    ("expectation", Gives::Attributes, |section| Ok(Box::new(expectation::Expectation::new(section)?))),
    ("regression", Gives::Attributes, |section| Ok(Box::new(vector::Regression::new(section)?))),
    ("embedding", Gives::Attributes, |section| Ok(Box::new(section.keys::<vector::Embedding>()?))),
    ("custom", Gives::Anything, |_| Ok(Box::new(vector::Raw))),
];

#[derive(Clone)]
struct Entry {
    name: Arc<str>,
    gives: Gives,
    make: Arc<Make>,
}

/// Decoders by name. The default has the built-in ones. Clones share them.
#[derive(Clone)]
pub struct DecoderRegistry(Arc<Vec<Entry>>);

impl Default for DecoderRegistry {
    fn default() -> Self {
        Self::built_in().clone()
    }
}

impl PartialEq for DecoderRegistry {
    /// Whether both are clones of the same registry.
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
    /// The built-in decoders.
    pub fn built_in() -> &'static Self {
        static BUILT_IN_REGISTRY: LazyLock<DecoderRegistry> = LazyLock::new(|| {
            let entry = |(name, gives, make): (&str, Gives, MakeBuiltIn)| Entry { name: name.into(), gives, make: Arc::new(make) };
            DecoderRegistry(Arc::new(BUILT_IN.into_iter().map(entry).collect()))
        });
        &BUILT_IN_REGISTRY
    }

    /// Adds a decoder under this name, and replaces an earlier one. `make` reads its keys from the section of a description; the model is
    /// not known yet.
    pub fn register<D: Decoder + 'static>(
        &mut self,
        name: &str,
        gives: Gives,
        make: impl Fn(&mut Section<'_>) -> Result<D> + Send + Sync + 'static,
    ) {
        let entries = Arc::make_mut(&mut self.0);
        entries.retain(|entry| *entry.name != *name);
        let make = Arc::new(move |section: &mut Section<'_>| Ok(Box::new(make(section)?) as Box<dyn Decoder>));
        entries.push(Entry { name: name.into(), gives, make });
    }

    /// Names of the decoders, in the order of messages.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| &*entry.name)
    }

    /// Names of the decoders with this subject, those of [`Gives::Anything`] last.
    pub fn names_of(&self, gives: Gives) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |entry| entry.gives == gives || entry.gives == Gives::Anything).map(|entry| &*entry.name)
    }

    /// The subject of the decoder with this name; `None` if there is no such decoder.
    pub fn gives(&self, name: &str) -> Option<Gives> {
        self.entry(name).map(|entry| entry.gives)
    }

    /// Makes the decoder with this name from the keys of a section. [`DecoderRegistry::check_keys`] reports unknown keys.
    ///
    /// # Errors
    /// `Unsupported` if there is no such decoder, or the value of a key is invalid.
    pub fn make(&self, name: &str, section: &mut Section<'_>) -> Result<Box<dyn Decoder>> {
        let unknown = || Error::new(ErrorKind::Unsupported, format!("unknown decoder `{name}`"));
        (self.entry(name).ok_or_else(unknown)?.make)(section)
    }

    /// As [`DecoderRegistry::make`], from text with the decoder's keys alone, such as `threshold = 0.5`.
    ///
    /// # Errors
    /// As [`DecoderRegistry::make`], and for unknown keys.
    pub fn make_from_text(&self, name: &str, text: &str) -> Result<Box<dyn Decoder>> {
        let mut section = Section::parse(text)?;
        let decoder = self.make(name, &mut section)?;
        self.check_keys(name, &section)?;
        Ok(decoder)
    }

    /// The keys of the decoder with this name.
    pub fn keys(&self, name: &str) -> Vec<&'static str> {
        let mut section = Section::parse("").expect("no text is an empty table");
        // Making a decoder without its keys may fail, but then its keys are known.
        let _made = self.make(name, &mut section);
        section.known().to_vec()
    }

    /// Checks that each key of the section was read, by the decoder with this name or another reader.
    ///
    /// # Errors
    /// `Unsupported` with the line, the known keys, and the decoders that have the unknown key.
    pub fn check_keys(&self, name: &str, section: &Section<'_>) -> Result<()> {
        section.check_keys(|key| {
            let known = section.known().iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ");
            let owners: Vec<&str> = self.names().filter(|other| self.keys(other).contains(&key)).collect();
            match owners.is_empty() {
                true => format!("unknown field `{key}`, expected one of {known}"),
                false => {
                    format!(
                        "`{key}` does not go with decoder `{name}`: expected one of {known} (decoders with `{key}`: {})",
                        owners.join(", ")
                    )
                }
            }
        })
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| *entry.name == *name)
    }

    /// Schemas of the keys of the decoder with this name, for tests.
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
    fn keys_of_other_decoders_are_refused_with_their_names() {
        let refused = |name: &str, text: &str| DecoderRegistry::built_in().make_from_text(name, text).map(drop).unwrap_err().to_string();
        let message = refused("yolov10", "threshold = 0.5\nnms = \"linear\"\n");
        assert!(message.contains("line 2") && message.contains("`nms` does not go with decoder `yolov10`"), "{message}");
        assert!(message.contains("expected one of `threshold`") && message.contains("decoders with `nms`: yolov5, yolov8"), "{message}");
        let message = refused("embedding", "scale = 2.0");
        assert!(message.contains("expected one of `normalize` (decoders with `scale`: regression)"), "{message}");
        let message = refused("yolox", "treshold = 0.5");
        assert!(message.contains("unknown field `treshold`, expected one of `threshold`"), "{message}");
    }

    #[test]
    fn a_decoder_that_is_registered_replaces_one_of_its_name() {
        let mut registry = DecoderRegistry::default();
        registry.register("yolov5", Gives::Attributes, |_| Ok(vector::Raw));
        assert_eq!(
            (registry.gives("yolov5"), DecoderRegistry::built_in().gives("yolov5")),
            (Some(Gives::Attributes), Some(Gives::Objects))
        );
        assert_eq!(registry.names().count(), BUILT_IN.len());
        assert!(registry.make("yolov3", &mut Section::parse("").unwrap()).unwrap_err().to_string().contains("yolov3"));
    }
}
