//! Bounded values of requests. Each states its bounds in the document and enforces them when
//! parsed.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

use crate::{JobId, ProjectId, ScreenshotId};

/// 1 to `MAX` characters, not all blank, without NUL, which databases refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NonBlankText<const MAX: usize>(pub(crate) String);

/// Up to `MAX` characters, without NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AnyText<const MAX: usize>(pub(crate) String);

/// A positive amount up to the maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dollars(pub(crate) f64);

const MOST_DOLLARS: f64 = 100_000.0;

/// A JSON object, and not an array of its values, which serde would also accept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Object<T>(pub(crate) T);

fn bounded(text: String, max: usize) -> Result<String, String> {
    match text.chars().count() {
        count if count > max => Err(format!("longer than {max} characters")),
        _ if text.contains('\0') => Err("holds a NUL character".to_owned()),
        _ => Ok(text),
    }
}

/// As `\s` of regular expressions, which the document uses: information separators count as blank.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character) || character == '\u{feff}'
}

impl<'de, const MAX: usize> Deserialize<'de> for NonBlankText<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = bounded(String::deserialize(deserializer)?, MAX).map_err(de::Error::custom)?;
        if text.chars().all(is_blank) {
            return Err(de::Error::custom("there must be something"));
        }
        Ok(Self(text))
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for AnyText<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(String::deserialize(deserializer)?, MAX).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = f64::deserialize(deserializer)?;
        if amount > 0.0 && amount <= MOST_DOLLARS {
            Ok(Self(amount))
        } else {
            Err(de::Error::custom(format!("must be more than 0 and at most {MOST_DOLLARS}")))
        }
    }
}

impl<'de, T: de::DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = serde_json::Map::deserialize(deserializer)?;
        T::deserialize(serde_json::Value::Object(fields)).map(Self).map_err(de::Error::custom)
    }
}

/// Implements an inlined schema.
macro_rules! inline_schema {
    ([$($generics:tt)*] $type:ty, $name:literal, $schema:expr) => {
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

inline_schema!([const MAX: usize] NonBlankText<MAX>, "NonBlankText", json_schema!({
    "type": "string", "minLength": 1, "maxLength": MAX, "pattern": r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085\ufeff][^\u0000]*$",
}));
inline_schema!([const MAX: usize] AnyText<MAX>, "AnyText", json_schema!({
    "type": "string", "maxLength": MAX, "pattern": r"^[^\u0000]*$",
}));
inline_schema!([] Dollars, "Dollars", json_schema!({
    "type": "number", "exclusiveMinimum": 0, "maximum": MOST_DOLLARS,
}));
inline_schema!([] JobId, "JobId", json_schema!({ "type": "string", "pattern": "^job_[0-9a-f]{20}$" }));
inline_schema!([] ProjectId, "ProjectId", json_schema!({ "type": "string", "pattern": "^prj_[0-9a-f]{20}$" }));
inline_schema!([] ScreenshotId, "ScreenshotId", json_schema!({ "type": "string", "pattern": "^pic_[0-9a-f]{20}$" }));

impl<T: JsonSchema> JsonSchema for Object<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_str;

    #[test]
    fn texts_enforce_their_bounds() {
        assert_eq!(from_str::<NonBlankText<3>>(r#""äöü""#).expect("three characters").0, "äöü");
        for text in [r#""""#, r#"" \n""#, r#""äöüß""#, r#""a\u0000""#, "null", "1"] {
            assert!(from_str::<NonBlankText<3>>(text).is_err(), "{text}");
        }
        assert_eq!(from_str::<AnyText<3>>(r#""""#).expect("nothing").0, "");
        assert!(from_str::<AnyText<3>>(r#""\u0000""#).is_err());
    }

    #[test]
    fn amounts_enforce_their_bounds() {
        assert_eq!(from_str::<Dollars>("0.5").expect("an amount"), Dollars(0.5));
        assert_eq!(from_str::<Dollars>("100000").expect("an amount"), Dollars(100_000.0));
        for text in ["0", "-1", "100000.01", "null", "\"1\""] {
            assert!(from_str::<Dollars>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_array_is_not_an_object() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Pair {
            a: u8,
        }
        assert_eq!(from_str::<Object<Pair>>(r#"{"a": 1}"#).expect("an object").0, Pair { a: 1 });
        assert!(from_str::<Object<Pair>>("[1]").is_err());
        assert_eq!(from_str::<Pair>("[1]").expect("what the type is there for"), Pair { a: 1 });
    }
}
