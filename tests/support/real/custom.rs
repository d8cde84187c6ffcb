//! A custom resource that any server serves once it is told of it.

use serde_json::{Value, json};

/// Where it is told.
pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Where it is listed.
pub const THINGS: &str = "/apis/custom.example/v1/namespaces/default/things";

/// The definition of things.
pub fn crd() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.custom.example"},
        "spec": {
            "group": "custom.example", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}
