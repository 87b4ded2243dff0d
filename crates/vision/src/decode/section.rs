//! Sections of a model description. Keys are read with serde; errors have line numbers.

use serde::de::{DeserializeOwned, Deserializer, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::tensor::{Error, ErrorKind, Result};

/// A table of a model description, such as `[output]`. Several structs can read different keys of one table. A key that no struct reads is
/// an error.
#[derive(Debug)]
pub struct Section<'a> {
    /// The whole text of the description, from which errors compute line numbers.
    text: &'a str,
    table: Spanned<DeTable<'a>>,
    /// Keys of the structs that were read so far.
    known: Vec<&'static str>,
    /// Value that replaces the key `threshold`, if it is `Some`.
    pub threshold: Option<f32>,
    /// Value that replaces the key `iou-threshold`, if it is `Some`.
    pub iou_threshold: Option<f32>,
    /// The defaults that were used for missing keys, one sentence per key.
    pub assumed: Vec<String>,
    #[cfg(feature = "schema")]
    pub(crate) schemas: Vec<schemars::Schema>,
}

/// Keys of a built-in decoder, for the JSON schema.
#[cfg(feature = "schema")]
pub(crate) trait Keys: DeserializeOwned + schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: DeserializeOwned + schemars::JsonSchema> Keys for T {}
#[cfg(not(feature = "schema"))]
pub(crate) trait Keys: DeserializeOwned {}
#[cfg(not(feature = "schema"))]
impl<T: DeserializeOwned> Keys for T {}

impl<'a> Section<'a> {
    /// Parses text as one table.
    ///
    /// # Errors
    /// Returns `Unsupported` if the text is not valid TOML.
    pub fn parse(text: &'a str) -> Result<Self> {
        Ok(Self::new(text, DeTable::parse(text).map_err(unreadable)?))
    }

    fn new(text: &'a str, table: Spanned<DeTable<'a>>) -> Self {
        Self {
            text,
            table,
            known: Vec::new(),
            threshold: None,
            iou_threshold: None,
            assumed: Vec::new(),
            #[cfg(feature = "schema")]
            schemas: Vec::new(),
        }
    }

    /// Removes a nested table and returns it; empty if it does not exist.
    pub fn take_table(&mut self, key: &str) -> Self {
        let value = self.table.get_mut().remove(key).unwrap_or_else(|| Spanned::new(0..0, DeValue::Table(DeTable::new())));
        let span = value.span();
        let table = if let DeValue::Table(table) = value.into_inner() { table } else { DeTable::new() };
        Self::new(self.text, Spanned::new(span, table))
    }

    /// Removes an array of tables and returns it; empty if it does not exist.
    ///
    /// # Errors
    /// Returns `Unsupported` if the key has another type.
    pub fn take_tables(&mut self, key: &str) -> Result<Vec<Self>> {
        let Some(value) = self.table.get_mut().remove(key) else { return Ok(Vec::new()) };
        let expected = || Error::new(ErrorKind::Unsupported, format!("`{key}`: expected tables, `[[output.{key}]]`"));
        let DeValue::Array(values) = value.into_inner() else { return Err(expected()) };
        let section = |value: Spanned<DeValue<'a>>| {
            let span = value.span();
            match value.into_inner() {
                DeValue::Table(table) => Ok(Self::new(self.text, Spanned::new(span, table))),
                _ => Err(expected()),
            }
        };
        values.into_iter().map(section).collect()
    }

    /// Returns the first key of the table; `None` if the table is empty.
    pub fn first_key(&self) -> Option<&str> {
        self.table.get_ref().keys().next().map(|key| &**key.get_ref())
    }

    /// Reads the keys of a struct that derives `Deserialize`. The other keys of the table remain for other structs.
    ///
    /// The struct must not use `deny_unknown_fields` or `flatten`. [`DecoderRegistry::check_keys`](super::DecoderRegistry::check_keys)
    /// reports unknown keys.
    ///
    /// # Errors
    /// Returns `Unsupported` if a value has the wrong type. The message names the line.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let deserializer = Noting { of: toml::de::Deserializer::from(self.table.clone()), fields: &mut self.known };
        T::deserialize(deserializer).map_err(|error| self.located(error))
    }

    /// Like [`Section::read`], but also records the JSON schema of the keys if the feature `schema` is enabled. For built-in
    /// decoders.
    pub(crate) fn keys<T: Keys>(&mut self) -> Result<T> {
        #[cfg(feature = "schema")]
        self.schemas.push(
            schemars::generate::SchemaSettings::default()
                .with(|it| it.inline_subschemas = true)
                .into_generator()
                .into_root_schema_for::<T>(),
        );
        self.read()
    }

    /// Returns the keys of the structs that were read so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Checks that each key of the table was read. `message` creates the error text for the first unknown key.
    ///
    /// # Errors
    /// Returns `Unsupported` if a key was not read. The error contains the line and the text of `message`.
    pub fn check_keys(&self, message: impl Fn(&str) -> String) -> Result<()> {
        let Some(key) = self.table.get_ref().keys().find(|key| !self.known.contains(&&**key.get_ref())) else { return Ok(()) };
        let line = 1 + self.text[..key.span().start].matches('\n').count();
        Err(Error::new(ErrorKind::Unsupported, format!("line {line}: {}", message(key.get_ref()))))
    }

    fn located(&self, mut error: toml::de::Error) -> Error {
        error.set_input(Some(self.text));
        unreadable(error)
    }
}

fn unreadable(error: toml::de::Error) -> Error {
    Error::new(ErrorKind::Unsupported, error.to_string().trim_end())
}

/// A deserializer that records the names of the fields that a struct requests.
struct Noting<'a, D> {
    of: D,
    fields: &'a mut Vec<&'static str>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Noting<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.of.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.fields.extend(fields);
        self.of.deserialize_struct(name, fields, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct One {
        first_key: Option<f32>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Other {
        second: Option<String>,
    }

    #[test]
    fn several_structs_read_one_table() {
        let mut document = Section::parse("[output]\nfirst-key = 2.5\nsecond = \"x\"\n").unwrap();
        let mut section = document.take_table("output");
        assert_eq!((section.read::<One>().unwrap().first_key, section.read::<Other>().unwrap().second.as_deref()), (Some(2.5), Some("x")));
        assert_eq!(section.known(), ["first-key", "second"]);
        section.check_keys(|key| panic!("{key}")).unwrap();
    }

    #[test]
    fn unknown_key_and_wrong_type_are_reported_with_their_line() {
        let mut document = Section::parse("[output]\nsecond = \"x\"\nfirst-key = \"y\"\n").unwrap();
        let mut section = document.take_table("output");
        let error = section.read::<One>().unwrap_err().to_string();
        assert!(error.contains("line 3, column 13") && error.contains("expected f32"), "{error}");
        let error = section.check_keys(|key| format!("unknown key `{key}`")).unwrap_err().to_string();
        assert_eq!(error, "line 2: unknown key `second`");
    }
}
