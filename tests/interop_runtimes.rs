//! Byte-identical through the proxy with the HTTP of other languages' runtimes: Go's `net/http` on both sides, which kube-apiserver and
//! client-go are made of, and Python's `httpx` as a client.
//!
//! The servers have kube-apiserver's settings, and end connections at random as its `--goaway-chance` does, at its highest value.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::process::Command;

use support::go::{GoServer, gohttp};
use support::python::httpx_client;
use support::tools::Directory;
use support::{IoDriver, World, apis};

on_both_drivers!(go_http2_clients, go_http1_clients, python_http2_clients, python_http1_clients);

/// The highest that kube-apiserver allows.
const GOAWAY_CHANCE: f64 = 0.02;

const LOCAL: &str = "/api/v1/namespaces/default/configmaps/x";
const PEER: &str = "/apis/batch/v1/namespaces/default/jobs/x";

/// Two Go servers behind an engine of two shards.
struct Scene {
    world: World,
    directory: Directory,
    _servers: [GoServer; 2],
}

impl Scene {
    fn start(driver: IoDriver, goaway_chance: f64) -> Self {
        let plan = World::on(driver).shards(2);
        let servers = [(); 2].map(|()| GoServer::start(plan.pki(), goaway_chance));
        let world =
            plan.local_at("cp-a", apis::everywhere(), servers[0].address()).peer_at("cp-b", apis::batch(), servers[1].address()).start();
        Self { world, directory: Directory::new(), _servers: servers }
    }

    /// Runs a client to its end, with the authority of the proxy's certificate and the URLs as its last arguments.
    async fn passes(&self, mut client: Command) {
        client.arg("--ca").arg(self.world.pki().write_ca(self.directory.path(), "ca").unwrap());
        client.args([LOCAL, PEER].map(|path| self.world.url(path)));
        let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}{complained}");
        println!("{said}");
    }
}

async fn go_http2_clients(driver: IoDriver) {
    let mut client = gohttp();
    client.args(["client", "--requests=40000", "--transports=8", "--goroutines=16"]);
    Scene::start(driver, GOAWAY_CHANCE).passes(client).await;
}

async fn go_http1_clients(driver: IoDriver) {
    let mut client = gohttp();
    client.args(["client", "--http1", "--requests=15000", "--transports=4", "--goroutines=16"]);
    Scene::start(driver, GOAWAY_CHANCE).passes(client).await;
}

async fn python_http2_clients(driver: IoDriver) {
    let mut client = httpx_client();
    client.arg("--requests=1000");
    Scene::start(driver, 0.0).passes(client).await;
}

async fn python_http1_clients(driver: IoDriver) {
    let mut client = httpx_client();
    client.args(["--http1", "--requests=1000"]);
    Scene::start(driver, 0.0).passes(client).await;
}
