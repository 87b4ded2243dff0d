//! Serde formats of ports, options and durations in files. Enabled by the feature `serde`.
//!
//! An extent is a number, a range such as `"1..8"`, or `"?"` if it is unknown. The axes of a port are a string. A duration is a number of
//! seconds.

use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Axes, Dim, PartialShape};

impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(extent) => extent.serialize(serializer),
            open => serializer.collect_str(open),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(usize),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(extent) => return Ok(Self::Fixed(extent)),
            Written::Text(text) => text,
        };
        let bounds = text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match bounds {
            Some((min, max)) => Ok(Self::Range { min, max }),
            None if text == "?" => Ok(Self::Dynamic),
            None => Err(D::Error::custom(format!("extent: expected a number, bounds such as `1..8`, or `?`, got `{text}`"))),
        }
    }
}

impl Serialize for PartialShape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.dims().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PartialShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Axes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Axes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Formats a shared text (`Arc<str>`) as a string.
pub(super) mod text {
    use super::{Arc, Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

/// Formats a list of shared texts (`Arc<str>`) as a list of strings.
pub(super) mod texts {
    use super::{Arc, Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(texts: &[Arc<str>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(texts.iter().map(|text| &**text))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<str>>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(Arc::from).collect())
    }
}

/// Formats a duration as a number of seconds.
pub(super) mod seconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};
    use serde::de::Error as _;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Formats an optional duration as a number of seconds.
pub(super) mod maybe_seconds {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer};
    use serde::de::Error as _;

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(D::Error::custom)
    }
}
