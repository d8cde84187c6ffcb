//! A control plane: etcd, authorities and users; its servers are in `apiserver.rs`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadgen::{KeyPairPem, Pki};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::apiserver::ServerPlan;
use super::process::{Port, Process};
use super::programs::{self, Version};
use super::{audit, process};
use crate::support::tools::{Directory, run};

/// For etcd to be healthy, on a machine that compiles beside.
const ETCD_LIMIT: Duration = Duration::from_secs(60);

/// Someone with a token that every server of every plane knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// As servers and audit logs call them.
    pub name: &'static str,
    /// For `Authorization: Bearer`.
    pub token: &'static str,
    groups: &'static str,
}

/// May do everything.
pub const ADMIN: User = User { name: "admin", token: "token-of-the-admin", groups: "system:masters" };
/// May do what every authenticated user may.
pub const ALICE: User = User { name: "alice", token: "token-of-alice", groups: "developers" };
/// May do what `docs/manifests` allow.
pub const MVPROXY: User = User { name: "mvproxy", token: "token-of-mvproxy", groups: "proxies" };

/// One etcd and what all servers on it share. Declare it before its servers, so that it ends after them.
pub struct ControlPlane {
    shared: Arc<Shared>,
    etcd: Option<Process>,
}

/// What a server needs of its plane.
pub(super) struct Shared {
    pub(super) directory: Directory,
    pub(super) pki: Pki,
    front_proxy: Pki,
    etcd_client: Port,
    etcd_peer: Port,
    /// Set when the manifests are applied, which the first server that becomes ready sees to.
    pub(super) manifests: OnceCell<()>,
}

impl ControlPlane {
    /// An etcd, healthy and empty.
    pub async fn start() -> Self {
        let shared = Shared {
            directory: Directory::new(),
            pki: Pki::new().unwrap(),
            front_proxy: Pki::new().unwrap(),
            etcd_client: Port::local(),
            etcd_peer: Port::local(),
            manifests: OnceCell::new(),
        };
        shared.write_files();
        let mut plane = Self { shared: Arc::new(shared), etcd: None };
        plane.start_etcd().await;
        plane
    }

    /// A server that can be started: its hostname, from which its id is made, and its version.
    pub fn server(&self, hostname: &str, version: Version) -> ServerPlan {
        ServerPlan::new(Arc::clone(&self.shared), hostname, version)
    }

    /// The authority of the servers' and clients' certificates.
    pub fn pki(&self) -> &Pki {
        &self.shared.pki
    }

    /// The authority of front proxies.
    pub fn front_proxy_pki(&self) -> &Pki {
        &self.shared.front_proxy
    }

    /// A certificate of `front-proxy-client`, whose `X-Remote-*` the servers believe.
    pub fn front_proxy_pair(&self) -> KeyPairPem {
        self.shared.front_proxy.client("front-proxy-client", &[]).unwrap()
    }

    /// A file of this plane, such as `ca.crt`, `front-proxy-ca.crt`, `front-proxy-client.crt` or `.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.shared.path(name)
    }

    /// A file with the credentials of a user at that address, be it a server or a proxy.
    pub fn kubeconfig(&self, address: SocketAddr, user: User) -> PathBuf {
        self.shared.kubeconfig(address, user)
    }

    /// Runs kubectl as that user at that address; it must succeed.
    pub async fn kubectl(&self, address: SocketAddr, user: User, arguments: &[&str]) -> Output {
        run(self.shared.kubectl(address, user, arguments).await).await
    }

    /// etcd, to be frozen, thawed or looked at.
    pub fn etcd(&self) -> &Process {
        self.etcd.as_ref().expect("etcd was killed")
    }

    /// Ends etcd as `kill -9` does; what it has on disk stays.
    pub async fn kill_etcd(&mut self) {
        let mut etcd = self.etcd.take().expect("etcd was killed");
        etcd.signal(Signal::KILL);
        etcd.wait(process::EXIT_LIMIT).await;
    }

    /// Starts etcd with what is on disk, and waits until it is healthy.
    pub async fn start_etcd(&mut self) {
        let program = programs::etcd().await;
        let client = format!("http://{}", self.shared.etcd_client.address());
        let peer = format!("http://{}", self.shared.etcd_peer.address());
        let arguments = [
            program.display().to_string(),
            format!("--data-dir={}", self.path("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--socket-reuse-port".into(),
            // It need not survive a power cut.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let mut etcd = Process::start("etcd", None, arguments.into(), &self.path("etcd.log"));
        let begun = Instant::now();
        while !healthy(self.shared.etcd_client.address()).await {
            if let Some(status) = etcd.ended() {
                etcd.fail(&format!("ended: {status}"));
            }
            if begun.elapsed() > ETCD_LIMIT {
                etcd.fail(&format!("was not healthy within {ETCD_LIMIT:?}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.etcd = Some(etcd);
    }
}

impl Shared {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn etcd_url(&self) -> String {
        format!("http://{}", self.etcd_client.address())
    }

    fn write_files(&self) {
        let place = self.directory.path();
        self.pki.write_ca(place, "ca").unwrap();
        self.front_proxy.write_ca(place, "front-proxy-ca").unwrap();
        self.front_proxy.client("front-proxy-client", &[]).unwrap().write(place, "front-proxy-client").unwrap();
        // kube-apiserver takes the public key of service account tokens from a certificate too.
        self.pki.serving().unwrap().write(place, "service-accounts").unwrap();
        self.directory.write("audit-policy.yaml", audit::POLICY.as_bytes());
        let line = |user: &User| format!("{},{},{},\"{}\"\n", user.token, user.name, user.name, user.groups);
        let tokens: String = [ADMIN, ALICE, MVPROXY].iter().map(line).collect();
        self.directory.write("tokens.csv", tokens.as_bytes());
    }

    fn kubeconfig(&self, address: SocketAddr, user: User) -> PathBuf {
        let text = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority": self.path("ca.crt"),
                "tls-server-name": "kubernetes.default.svc",
            }}],
            "users": [{"name": user.name, "user": {"token": user.token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": user.name}}],
            "current-context": "it",
        });
        self.directory.write(&format!("{}-{}.kubeconfig", user.name, address.port()), text.to_string().as_bytes())
    }

    pub(super) async fn kubectl(&self, address: SocketAddr, user: User, arguments: &[&str]) -> Command {
        let mut command = Command::new(programs::kubectl().await);
        command.arg("--kubeconfig").arg(self.kubeconfig(address, user)).args(arguments);
        // What it caches of one plane is wrong in the next.
        command.env("HOME", self.path("home")).env("KUBECACHEDIR", self.path("home/cache"));
        command
    }
}

/// Whether etcd says that it is.
async fn healthy(address: SocketAddr) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.contains(r#""health":"true""#))
    };
    matches!(timeout(Duration::from_secs(1), asking).await, Ok(Ok(true)))
}
