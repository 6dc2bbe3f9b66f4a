//! The difference between two statuses as a JSON merge patch (RFC 7386).

use serde::Serialize;
use serde_json::{Map, Value};

/// The merge patch that turns what the API server acknowledged into what is wanted; `None` if that is the same.
///
/// A merge patch keeps whatever it does not name, so what vanished is named with `null`; lists are replaced whole.
/// Neither status may hold a `null` of its own, which a merge patch could not express: fields without a value are left
/// out of a status. What was acknowledged has to be what the server returned, not what it was sent, or a field that the
/// server fills in is sent again for ever.
#[must_use]
pub fn difference(acknowledged: &Value, wanted: &Value) -> Option<Value> {
    match (acknowledged, wanted) {
        (Value::Object(acknowledged), Value::Object(wanted)) => {
            let patch = difference_of_objects(acknowledged, wanted);
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (acknowledged, wanted) => (acknowledged != wanted).then(|| wanted.clone()),
    }
}

/// The same for statuses that are not JSON yet.
#[must_use]
pub fn written_difference<S: Serialize>(acknowledged: &S, wanted: &S) -> Option<Value> {
    // A status is made of strings, numbers, lists and objects, all of which have a JSON form.
    let acknowledged = serde_json::to_value(acknowledged).ok()?;
    let wanted = serde_json::to_value(wanted).ok()?;
    difference(&acknowledged, &wanted)
}

fn difference_of_objects(acknowledged: &Map<String, Value>, wanted: &Map<String, Value>) -> Map<String, Value> {
    let vanished = acknowledged.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = wanted.iter().filter_map(|(key, wanted)| {
        let patch = match acknowledged.get(key) {
            Some(acknowledged) => difference(acknowledged, wanted),
            None => Some(wanted.clone()),
        };
        patch.map(|patch| (key.clone(), patch))
    });
    vanished.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The algorithm of RFC 7386 section 2.
    fn apply(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return patch.clone() };
        let mut target = if let Value::Object(target) = target { target } else { Map::new() };
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                let former = target.remove(key).unwrap_or(Value::Null);
                target.insert(key.clone(), apply(former, value));
            }
        }
        Value::Object(target)
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..4_i64).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn any_status() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-f]", any_value(), 0..5).prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn the_patch_turns_what_was_acknowledged_into_what_is_wanted(before in any_status(), wanted in any_status()) {
            let after = difference(&before, &wanted).map_or_else(|| before.clone(), |patch| apply(before.clone(), &patch));
            prop_assert_eq!(after, wanted);
        }

        #[test]
        fn nothing_is_left_to_do_after_the_patch(before in any_status(), wanted in any_status()) {
            prop_assert_eq!(difference(&wanted, &wanted), None);
            if let Some(patch) = difference(&before, &wanted) {
                prop_assert_eq!(difference(&apply(before, &patch), &wanted), None);
            }
        }
    }

    #[test]
    fn only_what_changed_is_named() {
        for (case, before, wanted, expected) in [
            ("same", json!({"a": 1}), json!({"a": 1}), None),
            ("vanished", json!({"a": 1, "b": 2}), json!({"b": 2}), Some(json!({"a": null}))),
            ("nested", json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1, "c": 3}}), Some(json!({"a": {"c": 3}}))),
            (
                "key of a map",
                json!({"a": {"x.y": "1"}}),
                json!({"a": {"z": "1"}}),
                Some(json!({"a": {"x.y": null, "z": "1"}})),
            ),
            ("list", json!({"a": [1, 2]}), json!({"a": [2]}), Some(json!({"a": [2]}))),
        ] {
            assert_eq!(difference(&before, &wanted), expected, "{case}");
        }
    }
}
