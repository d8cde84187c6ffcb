//! Real control planes: one etcd and real kube-apiservers of several versions, as processes of a test.
//!
//! ```ignore
//! let plane = ControlPlane::start().await;
//! let old = plane.server("cp-a", Version::older()).start().await;
//! let mut new = plane.server("cp-b", Version::newer()).flag("--runtime-config=batch/v1=false").start().await;
//! let answer = new.client(ADMIN).await.get("/apis/batch/v1/jobs").await.unwrap();
//! new.restart(|plan| plan.version(Version::older())).await;
//! ```
//!
//! What always holds: every plane has an etcd, authorities, ports and a directory of its own, so that tests run side by side; a port stays
//! reserved while its server is down; what was started ends with what started it, and with the test process however that ends; every wait
//! has a limit, and a panic shows the end of the log.
//!
//! `tests/real/build` makes the programs, once. `MVPROXY_REAL_VERSIONS=1.32,1.33` says with which versions. Tests that
//! use it are `#[ignore]`d, so that `cargo test` alone stays fast; `tests/run` runs them.

pub mod apiserver;
pub mod audit;
pub mod custom;
pub mod load;
pub mod plane;
pub mod process;
pub mod programs;
pub mod proxy;

pub use apiserver::{Apiserver, ServerPlan};
pub use plane::{ADMIN, ALICE, ControlPlane, MVPROXY, User};
pub use process::own_ip;
pub use programs::Version;
pub use proxy::{Fleet, Proxy};

use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for writing by a test that measures times.
static STAGE: RwLock<()> = RwLock::const_new(());

/// No test of the binary that says which it is beside this one, which measures times: others start servers.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    STAGE.write().await
}

/// Beside others, but for those that measure times.
pub async fn beside_others() -> RwLockReadGuard<'static, ()> {
    STAGE.read().await
}

/// A Job that nobody runs.
pub fn job(name: &str) -> Value {
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.invalid/none"}]}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"suspend": true, "template": pod}})
}
