//! Checks property values in text form against the element's declaration: name, type, range, allowed values.
//!
//! The values of parameters and the values that are written in a description are both checked before they are set. GLib only prints a
//! warning for a value out of range, and its Rust bindings panic.

use gst::glib;
use gst::glib::prelude::*;
use gst::prelude::*;
use gstreamer as gst;

use super::{Error, Result};
use crate::stages::did_you_mean;

/// Finds a property of an element class.
///
/// # Errors
/// Returns `Usage` if the element has no such property or the property is read-only. The message suggests the nearest name.
pub(super) fn find(factory: &gst::ElementFactory, element: &str, property: &str) -> Result<glib::ParamSpec> {
    let name = factory.name();
    let loaded = factory
        .load()
        .map_err(|_| Error::failed(format!("element `{name}` can't be loaded; `gst-inspect-1.0 {name}` shows the reason")))?;
    let class = glib::Class::<gst::Element>::from_type(loaded.element_type());
    let Some(class) = class else { return Err(Error::failed(format!("element `{name}` can't be loaded"))) };
    let pspec = class.find_property(property).ok_or_else(|| {
        let known: Vec<String> = class.list_properties().iter().map(|pspec| pspec.name().to_owned()).collect();
        let near = did_you_mean(property, known.iter().map(String::as_str));
        Error::usage(format!("{} has no property `{property}`{near}; `gst-inspect-1.0 {name}` lists them", title(&name, element)))
    })?;
    if !pspec.flags().contains(glib::ParamFlags::WRITABLE) {
        return Err(Error::usage(format!("property `{property}` of {} can't be set: the property is read-only", title(&name, element))));
    }
    Ok(pspec)
}

/// Parses the value of a property.
///
/// # Errors
/// Returns `Usage` if the text is not a value of the property's type, or out of range; the message contains element, property, range and
/// text.
pub(super) fn value(factory: &str, element: &str, pspec: &glib::ParamSpec, text: &str) -> Result<glib::Value> {
    let refused = || {
        let (property, expected) = (pspec.name(), expected(pspec));
        Error::usage(format!("property `{property}` of {}: expected {expected}, got `{text}`", title(factory, element)))
    };
    if text.contains('\0') {
        return Err(refused());
    }
    if pspec.value_type() == glib::Type::STRING {
        return Ok(text.to_value());
    }
    // Refuse an empty text as a number, because some of GStreamer's parsers read it as 0.
    if text.trim().is_empty() && is_number(pspec) {
        return Err(refused());
    }
    let value = glib::Value::deserialize_with_pspec(text, pspec).map_err(|_| refused())?;
    // GStreamer's parser truncates numbers that do not fit the type. So compare the number in the text with the parsed number.
    let is_cut = text.trim().parse::<i128>().is_ok_and(|number| integer(&value).is_some_and(|read| read != number));
    if is_cut || !is_in_range(pspec, &value) { Err(refused()) } else { Ok(value) }
}

/// Whether a value is in the range of a property. NaN is in no range.
fn is_in_range(pspec: &glib::ParamSpec, value: &glib::Value) -> bool {
    macro_rules! range {
        ($($spec:ty, $kind:ty;)*) => {
            $(if let (Some(pspec), Ok(value)) = (pspec.downcast_ref::<$spec>(), value.get::<$kind>()) {
                return (pspec.minimum()..=pspec.maximum()).contains(&value);
            })*
        };
    }
    range! {
        glib::ParamSpecInt, i32;
        glib::ParamSpecUInt, u32;
        glib::ParamSpecInt64, i64;
        glib::ParamSpecUInt64, u64;
        glib::ParamSpecLong, glib::ILong;
        glib::ParamSpecULong, glib::ULong;
        glib::ParamSpecChar, i8;
        glib::ParamSpecUChar, u8;
        glib::ParamSpecFloat, f32;
        glib::ParamSpecDouble, f64;
        gst::ParamSpecFraction, gst::Fraction;
    }
    true
}

/// Removes the quotes and escapes of a value in a gst-launch line.
pub(super) fn unescaped(text: &str) -> String {
    let inner = ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(text);
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

/// Whether the property takes an object, which only GStreamer's parser can create.
pub(super) fn is_object(pspec: &glib::ParamSpec) -> bool {
    pspec.value_type().is_a(glib::Type::OBJECT)
}

fn integer(value: &glib::Value) -> Option<i128> {
    let small = value.get::<i32>().map(i128::from).or_else(|_| value.get::<u32>().map(i128::from));
    small.or_else(|_| value.get::<i64>().map(i128::from)).or_else(|_| value.get::<u64>().map(i128::from)).ok()
}

fn is_number(pspec: &glib::ParamSpec) -> bool {
    let numbers = [glib::Type::I32, glib::Type::U32, glib::Type::I64, glib::Type::U64, glib::Type::F32, glib::Type::F64];
    numbers.contains(&pspec.value_type())
}

fn title(factory: &str, element: &str) -> String {
    if element == factory { format!("`{factory}`") } else { format!("`{factory}` (element `{element}`)") }
}

/// Describes the values that a property accepts.
fn expected(pspec: &glib::ParamSpec) -> String {
    macro_rules! range {
        ($($spec:ty, $what:literal;)*) => {
            $(if let Some(pspec) = pspec.downcast_ref::<$spec>() {
                return between($what, pspec.minimum().to_string(), pspec.maximum().to_string());
            })*
        };
    }
    range! {
        glib::ParamSpecInt, "a whole number";
        glib::ParamSpecUInt, "a whole number";
        glib::ParamSpecInt64, "a whole number";
        glib::ParamSpecUInt64, "a whole number";
        glib::ParamSpecLong, "a whole number";
        glib::ParamSpecULong, "a whole number";
        glib::ParamSpecFloat, "a number";
        glib::ParamSpecDouble, "a number";
        gst::ParamSpecFraction, "a fraction";
    }
    let kind = pspec.value_type();
    let listed = |names: Vec<String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if let Some(class) = glib::EnumClass::with_type(kind) {
        return format!("one of {}", listed(class.values().iter().map(|value| value.nick().to_owned()).collect()));
    }
    if let Some(class) = glib::FlagsClass::with_type(kind) {
        return format!("flags of {}, joined by `+`", listed(class.values().iter().map(|value| value.nick().to_owned()).collect()));
    }
    match kind {
        glib::Type::BOOL => "`true` or `false`".to_owned(),
        _ => format!("a value of type {kind}"),
    }
}

/// Describes a range of numbers. Leaves out a limit that is only the limit of the number type.
fn between(what: &str, least: String, most: String) -> String {
    let digits = |text: &str| text.trim_start_matches('-').len();
    // A range limit with so many digits is the limit of the number type, and not one of the property, so leave it out. The limits of
    // floating-point types have hundreds of digits.
    match (digits(&least) > 19, digits(&most) > 20) {
        (true, true) => what.to_owned(),
        (false, true) => format!("{what} of at least {least}"),
        _ => format!("{what} from {least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(factory: &str, property: &str, text: &str) -> Result<glib::Value> {
        crate::elements::register_static().unwrap();
        let found = gst::ElementFactory::find(factory).unwrap();
        value(factory, "it", &find(&found, "it", property)?, text)
    }

    #[test]
    fn out_of_range_error_has_property_range_and_value() {
        for (factory, property, text, says) in [
            ("roidetect", "threshold", "2", "`threshold` of `roidetect` (element `it`): expected a number from"),
            ("roidetect", "threshold", "NaN", "got `NaN`"),
            ("roidetect", "threshold", "inf", "got `inf`"),
            ("roidetect", "threshold", "", "got ``"),
            ("roidetect", "threshold", "high", "got `high`"),
            ("roidetect", "inference-interval", "0", "a whole number from 1 to"),
            ("roidetect", "nireq", "-1", "got `-1`"),
            ("roidetect", "nireq", "99999999999999999999", "got `9999"),
            ("roidetect", "queue-policy", "never", "one of `auto`, `wait`"),
            ("roidetect", "qos", "perhaps", "`true` or `false`"),
            ("roidetect", "stats", "x", "read-only"),
            ("roidetect", "treshold", "0.5", "did you mean `threshold`"),
            ("queue", "max-size-buffers", "-5", "a whole number from 0 to 4294967295, got `-5`"),
            ("queue", "leaky", "sideways", "one of `no`, `upstream`, `downstream`"),
            ("videoscale", "method", "best", "`bilinear`"),
            ("videoscale", "sharpness", "9", "from 0.5 to 1.5"),
            ("capsfilter", "caps", "video/x-raw,width=(int)x", "GstCaps"),
        ] {
            let error = check(factory, property, text).expect_err(text);
            assert_eq!(error.kind(), super::super::ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains(says), "{factory} {property}={text}: {error}");
        }
    }

    #[test]
    fn valid_values_equal_those_of_the_parser() {
        check("roidetect", "threshold", "0.5").unwrap();
        assert_eq!(check("queue", "max-size-buffers", "0").unwrap().get::<u32>().unwrap(), 0);
        assert_eq!(check("queue", "max-size-buffers", "4294967295").unwrap().get::<u32>().unwrap(), u32::MAX);
        for (factory, property, text) in
            [("queue", "leaky", "downstream"), ("queue", "leaky", "2"), ("roidetect", "qos", "yes"), ("videoscale", "method", "lanczos")]
        {
            check(factory, property, text).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!(check("roidetect", "model", "a b\"! c").unwrap().get::<String>().unwrap(), "a b\"! c");
    }

    #[test]
    fn quotes_and_escapes_equal_those_of_the_parser() {
        for (text, plain) in [("a", "a"), ("\"a b\"", "a b"), ("a\\ b", "a b"), ("\"a\\\"b\"", "a\"b"), ("'a'", "a")] {
            assert_eq!(unescaped(text), plain);
        }
    }
}
