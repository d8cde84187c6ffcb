//! JSON merge patches (RFC 7396). Pure.

use serde_json::{Map, Value};

/// Changes `object` as `patch` says: null removes, objects are merged, anything else is replaced.
pub(super) fn merge(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => drop(object.remove(&key)),
            Value::Object(patch) => match object.entry(key).or_insert_with(|| Map::new().into()) {
                Value::Object(inside) => merge(inside, patch),
                other => {
                    let mut inside = Map::new();
                    merge(&mut inside, patch);
                    *other = inside.into();
                }
            },
            value => drop(object.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// From RFC 7396, appendix A.
    #[test]
    fn patches_are_merged() {
        for (object, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": "foo"}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let [Value::Object(mut object), Value::Object(patch)] = [object, patch] else { unreachable!() };
            merge(&mut object, patch);
            assert_eq!(Value::from(object), expected);
        }
    }
}
