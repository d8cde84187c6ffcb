//! A server whose certificate is of the right authority but for another name is not spoken to (threats.md, T7).
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadgen::KeyPairPem;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

mod support;

use support::{IoDriver, World, apis, eventually, script};

on_both_drivers!(a_peer_with_a_wrong_name, a_local_server_with_a_wrong_name, the_right_name_gets_requests);

const PATIENCE: Duration = Duration::from_secs(10);
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Every address and name that a server could have, but not the one that servers are known by.
const WRONG: [&str; 4] = ["localhost", "127.0.0.1", "kubernetes.default.svc.example.com", "default.svc"];

/// What a server saw of its connections: handshakes that failed, and bytes of HTTP.
#[derive(Default, Debug)]
struct Seen {
    failed: usize,
    http: Vec<u8>,
}

/// A server that takes connections and says nothing.
async fn listen(pair: &KeyPairPem) -> (SocketAddr, Arc<Mutex<Seen>>) {
    let acceptor = script::acceptor(pair);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let shared = seen.clone();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, seen) = (acceptor.clone(), shared.clone());
            tokio::spawn(async move {
                match acceptor.accept(tcp).await {
                    Err(_) => seen.lock().unwrap().failed += 1,
                    Ok(mut tls) => {
                        let mut buffer = [0; 4_096];
                        while let Ok(count @ 1..) = tls.read(&mut buffer).await {
                            seen.lock().unwrap().http.extend(&buffer[..count]);
                        }
                    }
                }
            });
        }
    });
    (address, seen)
}

async fn a_peer_with_a_wrong_name(driver: IoDriver) {
    let plan = World::on(driver);
    let (address, seen) = listen(&plan.pki().serving_for(&WRONG).unwrap()).await;
    let world = plan.local("cp-a", apis::everywhere()).peer_at("cp-b", apis::batch(), address).start();
    let client = world.client().await;
    for _ in 0..3 {
        let answer = client.get(JOBS).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
    }
    assert_eq!(client.get(PODS).await.unwrap().status, 200, "local goes on");
    eventually("a failed handshake", PATIENCE, || seen.lock().unwrap().failed > 0).await;
    assert!(seen.lock().unwrap().http.is_empty(), "{:?}", seen.lock().unwrap());
}

async fn a_local_server_with_a_wrong_name(driver: IoDriver) {
    let plan = World::on(driver);
    let (address, seen) = listen(&plan.pki().serving_for(&WRONG).unwrap()).await;
    let world = plan.local_at("cp-a", apis::everywhere(), address).start();
    let answer = world.client().await.get(PODS).await.unwrap();
    assert_eq!(answer.status, 503);
    eventually("a failed handshake", PATIENCE, || seen.lock().unwrap().failed > 0).await;
    assert!(seen.lock().unwrap().http.is_empty(), "{:?}", seen.lock().unwrap());
}

/// That it is the name, and not the server: with the right one the preface comes.
async fn the_right_name_gets_requests(driver: IoDriver) {
    let plan = World::on(driver);
    let (address, seen) = listen(&plan.pki().serving_for(&["kubernetes.default.svc"]).unwrap()).await;
    let world = plan.local("cp-a", apis::everywhere()).peer_at("cp-b", apis::batch(), address).start();
    let client = world.client().await;
    let asking = tokio::spawn(async move { client.get(JOBS).await });
    eventually("the preface", PATIENCE, || seen.lock().unwrap().http.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).await;
    assert_eq!(seen.lock().unwrap().failed, 0);
    asking.abort();
}
