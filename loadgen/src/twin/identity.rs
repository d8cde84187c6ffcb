//! Who a twin is to its peers: the identity Lease that a kube-apiserver keeps while it runs, and its entries in StorageVersions.
//!
//! Always: the Lease is written anew at the start, renewed every 10 s, and deleted when the twin stops; a twin that is cut leaves it there,
//! as a killed server does. Nothing is removed from StorageVersions: in a cluster a controller does that, some time after the Lease went.

use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::apis::Api;
use super::store::{Key, Preconditions, Refusal, Store};
use super::{TwinConfig, clock, exchange, serve};

/// How often kube-apiserver renews it.
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: u32 = 3_600;
const NAMESPACE: &str = "kube-system";
/// The first minor version that writes its address by default.
const ADVERTISES_SINCE: u32 = 36;
/// Where StorageVersions are, if they are served.
const STORAGE_VERSIONS: (&str, &str) = ("internal.apiserver.k8s.io", "storageversions");

/// The id of the kube-apiserver on a host: the name of its identity Lease.
pub fn server_id(hostname: &str) -> String {
    let mut hashed = Vec::new();
    for part in [hostname, "kube-apiserver"] {
        // Names of hosts have at most 253 bytes.
        hashed.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        hashed.extend_from_slice(part.as_bytes());
    }
    format!("apiserver-{}", base32(&digest(&SHA256, &hashed).as_ref()[..16]))
}

/// One run of a server with its Lease.
pub(super) struct Identity {
    id: String,
    hostname: String,
    holder: String,
    address: Option<SocketAddr>,
}

impl Identity {
    /// Of a twin at `address`, if it has a hostname.
    pub(super) fn new(config: &TwinConfig, address: SocketAddr) -> Option<Self> {
        let hostname = config.hostname.clone()?;
        let id = server_id(&hostname);
        let holder = format!("{id}_{}", clock::uuid());
        let address = (exchange::minor(&config.version) >= ADVERTISES_SINCE).then_some(address);
        Some(Self { id, hostname, holder, address })
    }

    /// Says that the server is there, and what it serves.
    pub(super) fn announce(&self, store: &Store, apis: &[Api]) {
        let key = self.key(store);
        // The Lease of an earlier run goes first, as in kube-apiserver.
        self.withdraw(store);
        // A store that is full has no place for it, and every other write says so.
        drop(store.create(key, self.lease()));
        if apis.iter().any(|api| api.group == STORAGE_VERSIONS.0) {
            self.announce_storage(store, apis);
        }
    }

    /// Renews the Lease until the twin stops, then deletes it. Dropping the future leaves it.
    pub(super) async fn keep(self, store: &Store, mut stopping: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RENEW_EVERY) => {
                    let renewed = store.update(self.key(store), self.lease());
                    if renewed.is_err_and(|refusal| refusal == Refusal::Missing) {
                        // Somebody deleted it.
                        drop(store.create(self.key(store), self.lease()));
                    }
                }
                () = serve::stopped(&mut stopping) => break,
            }
        }
        self.withdraw(store);
    }

    fn withdraw(&self, store: &Store) {
        // Only an object that is not there cannot be deleted.
        drop(store.delete(self.key(store), &Preconditions::default()));
    }

    fn key(&self, store: &Store) -> Key {
        Key::new(store.resource("coordination.k8s.io", "leases"), NAMESPACE, &self.id)
    }

    fn lease(&self) -> Map<String, Value> {
        let mut metadata = json!({
            "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": self.hostname},
        });
        if let Some(address) = self.address {
            metadata["annotations"] = json!({"kubernetes.io/peer-advertise-address": address.to_string()});
        }
        let spec = json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": clock::micro_time_now(),
        });
        Map::from_iter([("metadata".into(), metadata), ("spec".into(), spec)])
    }

    /// One entry in the StorageVersion of every resource that is served.
    fn announce_storage(&self, store: &Store, apis: &[Api]) {
        let storage = store.resource(STORAGE_VERSIONS.0, STORAGE_VERSIONS.1);
        for (group, resource, served) in resources(apis) {
            let group = if group.is_empty() { "core" } else { group };
            let key = Key::new(storage, "", &format!("{group}.{resource}"));
            let old = store.find(&key).and_then(|old| serde_json::from_slice(&old.json).ok()).unwrap_or(Value::Null);
            let status = storage_status(&old, &self.id, &served);
            let object = Map::from_iter([("spec".into(), json!({})), ("status".into(), status)]);
            // Two twins that start at once could each forget the other here; nobody starts them so.
            if store.update(key.clone(), object.clone()).is_err_and(|refusal| refusal == Refusal::Missing) {
                drop(store.create(key, object));
            }
        }
    }
}

/// Every group and resource with the group-versions that serve it.
fn resources(apis: &[Api]) -> Vec<(&str, &str, Vec<String>)> {
    let mut found: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for api in apis {
        for resource in &api.resources {
            match found.iter_mut().find(|known| known.0 == api.group && known.1 == resource.plural) {
                Some((.., served)) => served.push(api.group_version()),
                None => found.push((&api.group, &resource.plural, vec![api.group_version()])),
            }
        }
    }
    found
}

/// The status of a StorageVersion with the entry of one server in it; those of others stay.
fn storage_status(old: &Value, id: &str, served: &[String]) -> Value {
    let entries = old.pointer("/status/storageVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut entries: Vec<Value> = entries.into_iter().filter(|entry| entry["apiServerID"] != id).collect();
    let encoding = served.first().cloned().unwrap_or_default();
    entries.push(json!({"apiServerID": id, "encodingVersion": encoding, "decodableVersions": served, "servedVersions": served}));
    let all_equal = entries.iter().all(|entry| entry["encodingVersion"] == encoding.as_str());
    let (status, set) = if all_equal { ("True", "set") } else { ("False", "unset") };
    let mut written = json!({
        "storageVersions": entries,
        "conditions": [{
            "type": "AllEncodingVersionsEqual",
            "status": status,
            "lastTransitionTime": clock::timestamp(clock::now()),
            "reason": if all_equal { "CommonEncodingVersionSet" } else { "CommonEncodingVersionUnset" },
            "message": format!("Common encoding version {set}"),
        }],
    });
    if all_equal {
        written["commonEncodingVersion"] = encoding.into();
    }
    written
}

/// RFC 4648 §6 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let digit = |at: usize| (0..5).fold(0, |digit, offset| digit << 1 | usize::from(bit(at + offset)));
    (0..bytes.len() * 8).step_by(5).map(|at| char::from(DIGITS[digit(at)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::apis;

    #[test]
    fn ids_are_hashes_of_hostnames() {
        let id = server_id("cp-a");
        let digits = id.strip_prefix("apiserver-").unwrap();
        assert!(digits.len() == 26 && digits.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')), "{id}");
        assert_ne!(id, server_id("cp-b"));
        // RFC 4648 §10.
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn servers_stand_side_by_side_in_a_storage_version() {
        let served = ["batch/v1".to_owned()];
        let first = json!({"status": storage_status(&Value::Null, "a", &served)});
        let both = json!({"status": storage_status(&first, "b", &["batch/v2".to_owned()])});
        let ids = |status: &Value| -> Vec<Value> {
            status["storageVersions"].as_array().unwrap().iter().map(|entry| entry["apiServerID"].clone()).collect()
        };
        assert_eq!(ids(&both["status"]), ["a", "b"]);
        assert_eq!(both["status"]["conditions"][0]["status"], "False");
        let again = storage_status(&both, "b", &served);
        assert_eq!((ids(&again).len(), &again["commonEncodingVersion"]), (2, &json!("batch/v1")));
    }

    #[test]
    fn resources_are_named_once() {
        let found = [apis::batch(), vec![Api::new("batch", "v1beta1", apis::batch()[0].resources.clone())]].concat();
        let found = resources(&found);
        assert_eq!(found[0], ("batch", "jobs", vec!["batch/v1".to_owned(), "batch/v1beta1".to_owned()]));
        assert_eq!(found.len(), 2);
    }
}
