//! Gallery files: names and vectors of known objects, one JSON object per line.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::runtime::{Error, ErrorKind, Result, files};
use crate::vision::decode::Gallery;

/// A line of a gallery file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GalleryEntry {
    /// Name of the object. Several lines may have the same name.
    pub name: String,
    /// The vector that the model computes for an image of the object. Only its direction matters, not its Euclidean length.
    pub vector: Vec<f32>,
}

/// The gallery of a classifier with the decoder `embedding`, which converts its vectors to names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GalleryChoice {
    /// The gallery of the description, if it has one.
    #[default]
    Described,
    /// This file, instead of the gallery of the description.
    File(PathBuf),
    /// No gallery: the results are vectors.
    None,
}

/// The label of objects that are not in the gallery.
pub const UNKNOWN: &str = "unknown";

/// Reads a gallery file. Ignores empty lines, and unknown keys of a line.
///
/// # Errors
/// Returns `Io` if the file cannot be read, is too large or not UTF-8. Returns `Config` with the number of the line if a line is invalid,
/// if a name is empty or `unknown`, if all values of a vector are 0, or if vectors have different numbers of values. Returns `Config` if
/// there are no vectors.
pub fn read_gallery(path: &Path) -> Result<Gallery> {
    let text = files::read_text(path, files::MAX_GALLERY_BYTES, "gallery")?;
    let wrong = |what: String| Error::new(ErrorKind::Config, format!("gallery `{}`: {what}", path.display()));
    let mut gallery = Gallery::default();
    for (number, line) in (1_usize..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let entry: GalleryEntry = serde_json::from_str(line).map_err(|error| {
            let expected = "expected an object such as {\"name\": \"Anna\", \"vector\": [0.5, -1.25]}";
            wrong(format!("line {number}: {expected}, got an error: {error}"))
        })?;
        if entry.name.trim().is_empty() || entry.name == UNKNOWN {
            return Err(wrong(format!("line {number}: expected a name other than `{UNKNOWN}`, got `{}`", entry.name)));
        }
        gallery.push(&entry.name, &entry.vector).map_err(|error| wrong(format!("line {number}: {error}")))?;
    }
    if gallery.is_empty() {
        return Err(wrong("expected at least one vector, got none".to_owned()));
    }
    Ok(gallery)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_vectors() {
        let path = std::env::temp_dir().join(format!("roiflow-gallery-{}.jsonl", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_gallery(&path).map(|gallery| gallery.names().iter().map(|name| name.to_string()).collect::<Vec<_>>())
        };
        let anna = "{\"name\": \"Anna\", \"vector\": [1, 0.5]}\n";
        let ben = "{\"vector\": [0.25, 1], \"name\": \"Ben\", \"image\": \"ben.jpg\"}\n";
        assert_eq!(read(&format!("{anna}\n{ben}{anna}")).unwrap(), ["Anna", "Ben"]);
        for (text, part) in [
            ("".to_owned(), "got none"),
            (format!("{anna}\n{{\"name\": \"Ben\"}}\n"), "line 3: expected an object such as"),
            (format!("{anna}\n\n{{\"name\": \"Ben\", \"vector\": [1]}}"), "line 4: expected 2 values"),
            (anna.replace("Anna", "unknown"), "line 1: expected a name other than `unknown`"),
            (anna.replace("Anna", " "), "line 1: expected a name"),
            (anna.replace("1, 0.5", "0, 0"), "line 1: expected a vector of finite values"),
            (anna.replace("0.5", "1e60"), "line 1: expected an object such as"),
        ] {
            let error = read(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part) && error.to_string().contains("gallery `"), "{text}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_gallery(&path).unwrap_err().kind(), ErrorKind::Io);
    }
}
