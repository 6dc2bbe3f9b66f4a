//! `AgentDescription` → attributes as text.

use std::{collections::BTreeMap, fmt::Write};

use base64::{Engine, prelude::BASE64_STANDARD};

use super::cut;
use crate::opamp::{
    messages::{AgentDescription, AnyValue, KeyValue, any_value::Value},
    record::Attributes,
};

/// Bytes of a value that are kept; selectors and templates work on nothing longer.
const VALUE_LIMIT: usize = 256;
/// A longer key, like an empty one, is left out: cut, it would be another key.
const KEY_LIMIT: usize = 256;
/// Keys that are kept, identifying ones first.
const KEYS_LIMIT: usize = 64;

/// Strings as they are, all other kinds as JSON (bytes in base64, as OTLP's JSON has it).
///
/// An identifying attribute wins over a non-identifying one of the same key, and a later one over an earlier one. Of
/// too many keys the first in alphabetical order stay, so that two reports in different order give the same.
#[must_use]
pub fn attributes(description: &AgentDescription) -> Attributes {
    let identifying = collect(&description.identifying_attributes, KEYS_LIMIT, |_| true);
    let room = KEYS_LIMIT - identifying.len();
    let non_identifying = collect(&description.non_identifying_attributes, room, |key| !identifying.contains_key(key));
    Attributes { identifying, non_identifying }
}

fn collect(list: &[KeyValue], room: usize, admits: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let mut kept: BTreeMap<&str, &KeyValue> = BTreeMap::new();
    for attribute in list {
        let key = attribute.key.as_str();
        if key.is_empty() || key.len() > KEY_LIMIT || !admits(key) {
            continue;
        }
        kept.insert(key, attribute);
        if kept.len() > room {
            kept.pop_last();
        }
    }
    kept.into_iter().map(|(key, attribute)| (key.into(), text_of(attribute.value.as_ref()))).collect()
}

fn text_of(value: Option<&AnyValue>) -> String {
    if let Some(AnyValue { value: Some(Value::StringValue(text)) }) = value {
        return cut(text, VALUE_LIMIT).into();
    }
    let mut json = Json::default();
    // An error means that it is full: what fitted is what is kept.
    let _ = json.value(value);
    json.text.shrink_to_fit();
    json.text
}

/// JSON up to [`VALUE_LIMIT`]; stops there, so that a huge value costs no more than a small one.
#[derive(Default)]
struct Json {
    text: String,
}

impl Json {
    fn value(&mut self, value: Option<&AnyValue>) -> std::fmt::Result {
        match value.and_then(|any| any.value.as_ref()) {
            None => self.write_str("null"),
            Some(Value::StringValue(text)) => self.string(text),
            Some(Value::BoolValue(truth)) => write!(self, "{truth}"),
            Some(Value::IntValue(number)) => write!(self, "{number}"),
            Some(Value::DoubleValue(number)) => self.double(*number),
            Some(Value::BytesValue(bytes)) => {
                // Three bytes make four characters.
                self.string(&BASE64_STANDARD.encode(&bytes[..bytes.len().min(VALUE_LIMIT)]))
            }
            Some(Value::ArrayValue(array)) => {
                self.list('[', &array.values, ']', |json, element| json.value(Some(element)))
            }
            Some(Value::KvlistValue(map)) => self.list('{', &map.values, '}', |json, entry| {
                json.string(&entry.key)?;
                json.write_char(':')?;
                json.value(entry.value.as_ref())
            }),
        }
    }

    fn list<T>(
        &mut self,
        open: char,
        items: &[T],
        close: char,
        mut write_item: impl FnMut(&mut Self, &T) -> std::fmt::Result,
    ) -> std::fmt::Result {
        self.write_char(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.write_char(',')?;
            }
            write_item(self, item)?;
        }
        self.write_char(close)
    }

    fn string(&mut self, text: &str) -> std::fmt::Result {
        // A character more than fits, so that the missing quote shows the cut.
        let quoted = serde_json::Value::from(cut(text, VALUE_LIMIT + 4));
        write!(self, "{quoted}")
    }

    /// JSON has no word for what is not finite; OTLP's JSON uses these strings.
    fn double(&mut self, number: f64) -> std::fmt::Result {
        match serde_json::Number::from_f64(number) {
            Some(finite) => write!(self, "{finite}"),
            None if number.is_nan() => self.write_str("\"NaN\""),
            None if number > 0.0 => self.write_str("\"Infinity\""),
            None => self.write_str("\"-Infinity\""),
        }
    }
}

impl Write for Json {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let fitting = cut(text, VALUE_LIMIT - self.text.len());
        self.text.push_str(fitting);
        if fitting.len() == text.len() { Ok(()) } else { Err(std::fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opamp::messages::{ArrayValue, KeyValueList};

    fn any(value: Value) -> AnyValue {
        AnyValue { value: Some(value) }
    }

    fn string(text: &str) -> AnyValue {
        any(Value::StringValue(text.into()))
    }

    fn attribute(key: &str, value: AnyValue) -> KeyValue {
        KeyValue { key: key.into(), value: Some(value) }
    }

    fn nested() -> AnyValue {
        any(Value::KvlistValue(KeyValueList {
            values: vec![
                attribute(
                    "list",
                    any(Value::ArrayValue(ArrayValue { values: vec![string("a\"b"), AnyValue::default()] })),
                ),
                attribute("deep", any(Value::KvlistValue(KeyValueList::default()))),
            ],
        }))
    }

    #[test]
    fn strings_stay_and_every_other_kind_becomes_json() {
        // STS-08
        for (case, value, expected) in [
            ("string", string("linux"), "linux"),
            ("string that looks like JSON", string("[1]"), "[1]"),
            ("true", any(Value::BoolValue(true)), "true"),
            ("smallest int", any(Value::IntValue(i64::MIN)), "-9223372036854775808"),
            ("largest int", any(Value::IntValue(i64::MAX)), "9223372036854775807"),
            ("double", any(Value::DoubleValue(1.5)), "1.5"),
            ("not a number", any(Value::DoubleValue(f64::NAN)), "\"NaN\""),
            ("infinite", any(Value::DoubleValue(f64::NEG_INFINITY)), "\"-Infinity\""),
            ("bytes", any(Value::BytesValue(vec![0, 1, 2].into())), "\"AAEC\""),
            ("nested", nested(), r#"{"list":["a\"b",null],"deep":{}}"#),
            ("no kind", AnyValue::default(), "null"),
        ] {
            assert_eq!(text_of(Some(&value)), expected, "{case}");
        }
        assert_eq!(text_of(None), "null", "a key without value");
    }

    #[test]
    fn a_value_keeps_256_bytes_and_ends_between_characters() {
        assert_eq!(text_of(Some(&string(&"é".repeat(200)))), "é".repeat(128));
        assert_eq!(text_of(Some(&string(&"日".repeat(200)))), "日".repeat(85), "255 bytes, the next needs three");
        let list = ArrayValue { values: vec![any(Value::IntValue(7)); 1_000_000] };
        let text = text_of(Some(&any(Value::ArrayValue(list))));
        assert_eq!((text.len(), &text[..5]), (256, "[7,7,"));
        let bytes = text_of(Some(&any(Value::BytesValue(vec![0; 1 << 20].into()))));
        assert_eq!((bytes.len(), bytes.ends_with('"')), (256, false), "a cut string has no closing quote");
    }

    #[test]
    fn an_identifying_attribute_wins_and_a_later_one_replaces_an_earlier_one() {
        let description = AgentDescription {
            identifying_attributes: vec![attribute("both", string("early")), attribute("both", string("late"))],
            non_identifying_attributes: vec![attribute("both", string("other")), attribute("os.type", string("linux"))],
        };
        let attributes = attributes(&description);
        assert_eq!(attributes.get("both"), Some("late"));
        assert_eq!(attributes.non_identifying.keys().collect::<Vec<_>>(), ["os.type"]);
    }

    #[test]
    fn of_too_many_keys_64_stay_the_identifying_ones_first_and_in_whatever_order_they_came() {
        let many = |prefix: &str| -> Vec<KeyValue> {
            (0..60).map(|index| attribute(&format!("{prefix}{index:02}"), string("v"))).collect()
        };
        let mut description =
            AgentDescription { identifying_attributes: many("i"), non_identifying_attributes: many("n") };
        let kept = attributes(&description);
        assert_eq!((kept.identifying.len(), kept.non_identifying.len()), (60, 4));
        assert_eq!(kept.non_identifying.keys().next_back().map(String::as_str), Some("n03"));
        description.non_identifying_attributes.reverse();
        assert_eq!(attributes(&description), kept);
    }

    #[test]
    fn an_empty_or_endless_key_is_left_out() {
        let list = vec![attribute("", string("v")), attribute(&"k".repeat(257), string("v"))];
        let description = AgentDescription { identifying_attributes: list, non_identifying_attributes: Vec::new() };
        assert_eq!(attributes(&description), Attributes::default());
    }
}
