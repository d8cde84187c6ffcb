//! The audit log of one kube-apiserver, looked up by Audit-ID: who really served a request.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use http::StatusCode;
use serde_json::Value;

use super::apiserver::Apiserver;

/// Everything is logged, at all stages: a server that was killed half way has at least received what it did not finish.
pub const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n";

/// A log that grows.
pub struct Audit {
    path: PathBuf,
    read: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    /// How much of the file is in `events`.
    offset: u64,
    events: HashMap<String, Vec<Value>>,
}

impl Audit {
    /// The log at that path, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), read: Mutex::default() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The events of a request so far, oldest first. A server answers before it logs `ResponseComplete`, so see
    /// [`super::Apiserver::audited`] too.
    pub fn events(&self, audit_id: &str) -> Vec<Value> {
        let mut index = self.read.lock().unwrap();
        index.read(&self.path);
        index.events.get(audit_id).cloned().unwrap_or_default()
    }

    /// The events of all requests so far, by Audit-ID.
    pub fn all(&self) -> HashMap<String, Vec<Value>> {
        let mut index = self.read.lock().unwrap();
        index.read(&self.path);
        index.events.clone()
    }
}

/// What is wrong with the answer to a write that was sent once: it came to servers more often, it was done and nobody saw it, or it is to
/// be sent again though a server has it, which did not say so itself. `None` for no answer.
pub fn fault_of_write(servers: &[&Apiserver], audit_id: &str, status: Option<StatusCode>, retry_after: bool) -> Option<String> {
    let events: Vec<Value> = servers.iter().flat_map(|server| server.audit().events(audit_id)).collect();
    // A server logs that before it does anything, so it is there also when the server was killed then.
    let received = events.iter().filter(|event| event["stage"] == "RequestReceived").count();
    let is_said = |status: StatusCode| events.iter().any(|event| event["responseStatus"]["code"] == status.as_u16());
    match status {
        _ if received > 1 => Some(format!("it came to servers {received} times")),
        Some(status) if status.is_success() && received == 0 => Some("no server has ever seen it".to_owned()),
        Some(status) if retry_after && received > 0 && !is_said(status) => {
            Some("the client was told to send it again, and a server has it".to_owned())
        }
        _ => None,
    }
}

impl Index {
    /// Takes the lines that came since; half a line waits for its other half.
    fn read(&mut self, path: &Path) {
        let Ok(mut file) = File::open(path) else { return };
        file.seek(SeekFrom::Start(self.offset)).unwrap();
        let mut new = Vec::new();
        file.read_to_end(&mut new).unwrap();
        let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in new[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // A server that was killed may have left half a line for the next one to go on after.
            let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
            let id = event["auditID"].as_str().unwrap_or_default().to_owned();
            self.events.entry(id).or_default().push(event);
        }
        self.offset += whole as u64;
    }
}
