//! One kube-apiserver: how it is started, what can be done to it, and what it logged.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{ExitStatus, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use loadgen::twin::server_id;
use loadgen::{Client, KeyPairPem};
use rustix::process::Signal;
use serde_json::Value;

use super::audit::Audit;
use super::plane::{ADMIN, MVPROXY, Shared, User};
use super::process::{EXIT_LIMIT, Port, Process};
use super::programs::{self, Version};
use crate::support::tools::run;

/// The name in every serving certificate, and what peers verify.
pub const NAME: &str = "kubernetes.default.svc";

/// From the start to `/readyz`, on a machine that compiles beside; alone it takes 4 s.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// `/readyz` as mvproxy asks for it, without the checks of etcd.
const SERVES: &str = "/readyz?exclude=etcd&exclude=etcd-readiness";
/// For a line of the audit log that has to come.
const AUDIT_LIMIT: Duration = Duration::from_secs(10);
/// What the user `mvproxy` may do.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/manifests");

/// How a server will be started.
#[derive(Clone)]
pub struct ServerPlan {
    plane: Arc<Shared>,
    hostname: String,
    version: Version,
    ip: IpAddr,
    flags: Vec<String>,
}

/// A kube-apiserver, running or not; killed when dropped.
pub struct Apiserver {
    plan: ServerPlan,
    id: String,
    port: Port,
    process: Option<Process>,
    audit: Audit,
    /// Whether it was ready once, with the manifests in force.
    settled: bool,
}

impl ServerPlan {
    pub(super) fn new(plane: Arc<Shared>, hostname: &str, version: Version) -> Self {
        Self { plane, hostname: hostname.into(), version, ip: Ipv4Addr::LOCALHOST.into(), flags: Vec::new() }
    }

    /// Another version.
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// A further flag; it comes after those of the harness, so that it wins.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Takes the further flags back.
    pub fn no_flags(mut self) -> Self {
        self.flags.clear();
        self
    }

    /// Turns a feature gate on or off.
    pub fn gate(self, name: &str, on: bool) -> Self {
        self.flag(&format!("--feature-gates={name}={on}"))
    }

    /// Turns the StorageVersion API on or off.
    pub fn storage_version_api(self, on: bool) -> Self {
        self.gate("StorageVersionAPI", on).flag(&format!("--runtime-config=internal.apiserver.k8s.io/v1alpha1={on}"))
    }

    /// Turns the mixed version proxy inside kube-apiserver on or off. When nothing is said, it is not active (no `--peer-ca-file`), and
    /// from v1.36 on the identity Lease has the address.
    pub fn in_tree_proxy(self, on: bool) -> Self {
        let authority = self.plane.path("ca.crt");
        let plan = self.gate("UnknownVersionInteroperabilityProxy", on);
        if on { plan.flag(&format!("--peer-ca-file={}", authority.display())) } else { plan }
    }

    /// Listens at and advertises another address of this machine than 127.0.0.1. One that is not loopback is in the EndpointSlice
    /// `default/kubernetes` too.
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        self
    }

    /// Starts it and waits until it is ready and the manifests are applied.
    pub async fn start(self) -> Apiserver {
        let mut server = self.launch().await;
        server.wait_ready().await;
        server
    }

    /// Starts it and waits for nothing.
    pub async fn launch(self) -> Apiserver {
        let place = self.plane.directory.path();
        let serving = self.plane.pki.serving_for(&[NAME, "localhost", "127.0.0.1", &self.ip.to_string()]).unwrap();
        serving.write(place, &self.hostname).unwrap();
        let mut server = Apiserver {
            id: server_id(&self.hostname),
            port: Port::reserve(self.ip),
            process: None,
            settled: false,
            audit: Audit::new(&self.plane.path(&format!("{}-audit.log", self.hostname))),
            plan: self,
        };
        server.launch().await;
        server
    }

    async fn arguments(&self, address: SocketAddr) -> Vec<String> {
        let program = programs::kube_apiserver(self.version).await;
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.plane.path(name).display());
        let own = |flag: &str, ending: &str| file(flag, &format!("{}{ending}", self.hostname));
        let reconciler = if self.ip.is_loopback() { "none" } else { "lease" };
        let mut arguments = vec![
            program.display().to_string(),
            format!("--etcd-servers={}", self.plane.etcd_url()),
            format!("--bind-address={}", self.ip),
            format!("--advertise-address={}", self.ip),
            format!("--secure-port={}", address.port()),
            // The port is reserved by a socket of ours.
            "--permit-port-sharing".into(),
            // An EndpointSlice cannot have loopback addresses.
            format!("--endpoint-reconciler-type={reconciler}"),
            own("tls-cert-file", ".crt"),
            own("tls-private-key-file", ".key"),
            file("client-ca-file", "ca.crt"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            file("service-account-key-file", "service-accounts.crt"),
            file("service-account-signing-key-file", "service-accounts.key"),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
            "--authorization-mode=RBAC".into(),
            file("token-auth-file", "tokens.csv"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            "--requestheader-allowed-names=front-proxy-client".into(),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            file("audit-policy-file", "audit-policy.yaml"),
            own("audit-log-path", "-audit.log"),
            // Megabytes; it must not be rotated away from its reader.
            "--audit-log-maxsize=10000".into(),
        ];
        if self.version.minor() >= 33 {
            arguments.push("--requestheader-uid-headers=X-Remote-Uid".into());
        }
        arguments.extend(self.flags.iter().cloned());
        arguments
    }
}

impl Apiserver {
    /// The name of its identity Lease.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its hostname.
    pub fn hostname(&self) -> &str {
        &self.plan.hostname
    }

    /// Where it listens, also after a restart.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The version it was started with last.
    pub fn version(&self) -> Version {
        self.plan.version
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// What it logged about requests.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// A new connection of a user.
    pub async fn client(&self, user: User) -> Client {
        let client = Client::connect(self.address(), self.plan.plane.pki.ca_pem(), NAME, Some(user.token)).await;
        client.unwrap_or_else(|error| self.process().fail(&format!("did not take a connection: {error}")))
    }

    /// A new connection that shows a client certificate.
    pub async fn client_with_certificate(&self, pair: &KeyPairPem) -> Client {
        let client = Client::connect_with_certificate(self.address(), self.plan.plane.pki.ca_pem(), NAME, pair).await;
        client.unwrap_or_else(|error| self.process().fail(&format!("did not take a connection: {error}")))
    }

    /// Runs kubectl as the admin; it must succeed.
    pub async fn kubectl(&self, arguments: &[&str]) -> Output {
        run(self.plan.plane.kubectl(self.address(), ADMIN, arguments).await).await
    }

    /// The event in which the request of that Audit-ID was completed here; waits for it.
    pub async fn audited(&self, audit_id: &str) -> Value {
        let begun = Instant::now();
        loop {
            let mut events = self.audit.events(audit_id).into_iter();
            if let Some(event) = events.find(|event| event["stage"] == "ResponseComplete") {
                return event;
            }
            assert!(begun.elapsed() < AUDIT_LIMIT, "{} completed no request {audit_id} within {AUDIT_LIMIT:?}", self.hostname());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it as an upgrade does, with SIGTERM, and waits for its end.
    pub async fn stop(&mut self) -> ExitStatus {
        self.end(Signal::TERM).await
    }

    /// Ends it with SIGKILL.
    pub async fn kill(&mut self) -> ExitStatus {
        self.end(Signal::KILL).await
    }

    /// Stops the process, as a server that hangs; see [`Process::freeze`].
    pub fn freeze(&self) {
        self.process().freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process().thaw();
    }

    /// Stops it with SIGTERM if it runs, starts it with a changed plan at the same address, and waits until it is ready.
    pub async fn restart(&mut self, change: impl FnOnce(ServerPlan) -> ServerPlan) {
        if self.process.is_some() {
            self.stop().await;
        }
        self.relaunch(change).await;
        self.wait_ready().await;
    }

    /// Starts it again after [`Apiserver::stop`] or [`Apiserver::kill`], with a changed plan, and waits for nothing.
    pub async fn relaunch(&mut self, change: impl FnOnce(ServerPlan) -> ServerPlan) {
        assert!(self.process.is_none(), "{} is running", self.hostname());
        self.plan = change(self.plan.clone());
        assert_eq!(self.plan.ip, self.address().ip(), "a server keeps its address");
        self.launch().await;
    }

    /// Waits until `/readyz` is 200, and the first time until the manifests are in force; when mvproxy could not yet have found it
    /// ready, which may be a moment earlier.
    ///
    /// A restarted server still answers 403 to entitled users for a moment after this: that is how real ones are.
    pub async fn wait_ready(&mut self) -> Instant {
        let begun = Instant::now();
        let mut idle = begun;
        loop {
            let asked = Instant::now();
            if !self.answers(ADMIN, SERVES).await {
                idle = asked;
            } else if self.ready().await {
                break;
            }
            let hostname = self.plan.hostname.clone();
            let process = self.process.as_mut().unwrap_or_else(|| panic!("{hostname} is not running"));
            if let Some(status) = process.ended() {
                process.fail(&format!("ended before it was ready: {status}"));
            }
            if begun.elapsed() > READY_LIMIT {
                process.fail(&format!("was not ready within {READY_LIMIT:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if !self.settled {
            self.plan.plane.manifests.get_or_init(|| self.apply_manifests()).await;
            self.wait_for(MVPROXY, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await;
            self.settled = true;
        }
        idle
    }

    /// Whether `/readyz` is 200 now.
    pub async fn ready(&self) -> bool {
        self.answers(ADMIN, "/readyz").await
    }

    async fn answers(&self, user: User, path: &str) -> bool {
        let asking = async {
            let client = Client::connect(self.address(), self.plan.plane.pki.ca_pem(), NAME, Some(user.token)).await?;
            client.get(path).await
        };
        // A server that hangs while it starts is asked again.
        let answer = tokio::time::timeout(Duration::from_secs(5), asking).await;
        matches!(answer, Ok(Ok(response)) if response.status == StatusCode::OK)
    }

    async fn wait_for(&self, user: User, path: &str) {
        let begun = Instant::now();
        while !self.answers(user, path).await {
            if begun.elapsed() > READY_LIMIT {
                self.process().fail(&format!("did not answer {path} to {} within {READY_LIMIT:?}", user.name));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn apply_manifests(&self) {
        // A server is ready before it has made its namespaces.
        for namespace in ["default", "kube-system"] {
            self.wait_for(ADMIN, &format!("/api/v1/namespaces/{namespace}")).await;
        }
        let [rbac, names] = ["rbac.yaml", "lease-names.yaml"].map(|name| format!("--filename={MANIFESTS}/{name}"));
        let mut arguments = vec!["create", "--validate=ignore", &rbac];
        if self.plan.version.minor() >= 30 {
            arguments.push(&names);
        }
        self.kubectl(&arguments).await;
    }

    async fn launch(&mut self) {
        let arguments = self.plan.arguments(self.address()).await;
        let (name, log) = (&self.plan.hostname, self.plan.plane.path(&format!("{}.log", self.plan.hostname)));
        self.process = Some(Process::start(name, Some(name), arguments, &log));
    }

    async fn end(&mut self, signal: Signal) -> ExitStatus {
        let mut process = self.process.take().unwrap_or_else(|| panic!("{} is not running", self.plan.hostname));
        process.signal(signal);
        process.wait(EXIT_LIMIT).await
    }

    fn process(&self) -> &Process {
        self.process.as_ref().unwrap_or_else(|| panic!("{} is not running", self.plan.hostname))
    }
}
