//! The objects a twin starts with: a couple for each resource, so that a list is never empty. What says who serves what has none: it would
//! be believed.

use serde_json::{Map, Value, json};

use super::apis::Resource;

/// One object to create at the start.
pub(super) struct Sample {
    /// Empty for a resource of the whole cluster.
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    /// Everything but `kind`, `apiVersion` and `metadata`.
    pub(super) fields: Map<String, Value>,
}

/// The samples of one resource; kinds not known here get objects that have only metadata.
pub(super) fn of(resource: &Resource) -> Vec<Sample> {
    let names: &[(&str, &str)] = match (resource.kind.as_str(), resource.namespaced) {
        ("Lease" | "EndpointSlice" | "CustomResourceDefinition" | "APIService" | "StorageVersion", _) => &[],
        ("Namespace", _) => &[("", "default"), ("", "kube-system")],
        ("Node", _) => &[("", "node-1"), ("", "node-2")],
        (_, false) => &[("", "demo"), ("", "demo-2")],
        (_, true) => &[("default", "demo"), ("kube-system", "demo-2")],
    };
    let sample = |&(namespace, name)| Sample { namespace, name, fields: fields(&resource.kind, name) };
    names.iter().map(sample).collect()
}

fn fields(kind: &str, name: &str) -> Map<String, Value> {
    let container = json!({"name": "main", "image": "example/app:1"});
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}});
    let fields = match kind {
        "Namespace" => {
            json!({"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
        }
        "Node" => {
            json!({"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        }
        "Pod" => {
            json!({"spec": {"nodeName": "node-1", "containers": [container]}, "status": {"phase": "Running"}})
        }
        "ConfigMap" => json!({"data": {"greeting": "hello", "color": "blue"}}),
        "Secret" => json!({"type": "Opaque", "data": {"password": "bm90LWEtc2VjcmV0"}}),
        "Service" => {
            json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "selector": {"app": name}}})
        }
        "Deployment" => json!({
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
            "status": {"replicas": 1, "readyReplicas": 1},
        }),
        "Job" => {
            json!({"spec": {"completions": 1, "parallelism": 1, "template": template}, "status": {"succeeded": 1}})
        }
        "CronJob" => {
            json!({"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": template}}}})
        }
        _ => Value::Null,
    };
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
