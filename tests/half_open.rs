//! Servers whose packets vanish: no answer, no refusal, no reset, no end of file, as when a machine loses its power or its network (threats.md
//! §6, half-open TCP).
//!
//! A filter on the sockets of a relay drops what comes in before TCP sees it, so that nothing is even acknowledged.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use loadgen::client::Response;
use loadgen::{Client, Error, Twin, TwinConfig};
use socket2::{SockFilter, SockRef, Socket};
use support::{IoDriver, World, apis, headers};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

on_both_drivers!(a_server_that_vanishes_is_given_up_in_time, a_watch_of_a_server_that_vanishes_is_reset_in_time);

const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// What threats.md allows, and what a busy machine takes beyond.
const GIVEN_UP: Duration = Duration::from_millis(6_500);
/// `BPF_RET | BPF_K` of no bytes: of every packet nothing is kept.
const DROP: [SockFilter; 1] = [SockFilter::new(0x06, 0, 0, 0)];

/// A relay to a server, with a plug that can be pulled.
struct Cable {
    address: SocketAddr,
    ends: Arc<Mutex<Vec<Socket>>>,
}

impl Cable {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(Mutex::new(vec![SockRef::from(&listener).try_clone().unwrap()]));
        let cable = Self { address, ends: Arc::clone(&ends) };
        tokio::spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                ends.lock().unwrap().push(SockRef::from(&here).try_clone().unwrap());
                tokio::spawn(async move {
                    let mut there = TcpStream::connect(server).await.unwrap();
                    // However it ends, both are closed then.
                    drop(copy_bidirectional(&mut here, &mut there).await);
                });
            }
        });
        cable
    }

    fn pull(&self) {
        self.ends.lock().unwrap().iter().for_each(|end| end.attach_filter(&DROP).unwrap());
    }

    fn plug_in(&self) {
        self.ends.lock().unwrap().iter().for_each(|end| end.detach_filter().unwrap());
    }
}

/// cp-a is local and behind a cable; cp-b serves pods as well. Both were asked.
async fn behind_a_cable(driver: IoDriver) -> (World, Twin, Cable, Client) {
    let plan = World::on(driver);
    let everything = [apis::everywhere(), apis::batch()].concat();
    let twin = Twin::start(TwinConfig::new("cp-a", plan.pki().serving().unwrap(), everything.clone())).unwrap();
    let cable = Cable::to(twin.address()).await;
    let world = plan.local_at("cp-a", everything, cable.address).peer("cp-b", apis::everywhere()).start();
    let client = world.client().await;
    for path in [PODS, JOBS] {
        assert_eq!(server_of(client.get(path).await), (StatusCode::OK, "cp-a".to_owned()));
    }
    (world, twin, cable, client)
}

fn server_of(answer: Result<Response, Error>) -> (StatusCode, String) {
    let answer = answer.unwrap();
    (answer.status, answer.header("x-twin-id").unwrap_or_default().to_owned())
}

async fn a_server_that_vanishes_is_given_up_in_time(driver: IoDriver) {
    let (_world, _twin, cable, client) = behind_a_cable(driver).await;
    cable.pull();
    let pulled = Instant::now();
    let write = client.request(Method::POST, PODS, headers([("content-type", "application/json")]), "{}".into(), None);
    let (shared, own, write) = tokio::join!(client.get(PODS), client.get(JOBS), write);
    assert!(pulled.elapsed() <= GIVEN_UP, "{:?}", pulled.elapsed());
    assert_eq!(server_of(shared), (StatusCode::OK, "cp-b".to_owned()), "what only reads is asked once more");
    let own = own.unwrap();
    assert_eq!((own.status, own.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")), "nobody else serves it");
    let write = write.unwrap();
    assert_eq!((write.status, write.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, None), "nobody knows whether it was done");

    let asked = Instant::now();
    for _ in 0..20 {
        assert_eq!(server_of(client.get(PODS).await), (StatusCode::OK, "cp-b".to_owned()));
    }
    assert!(asked.elapsed() < Duration::from_secs(2), "nobody waits for it any more: {:?}", asked.elapsed());
    cable.plug_in();
    let plugged = Instant::now();
    while client.get(JOBS).await.unwrap().status != StatusCode::OK {
        assert!(plugged.elapsed() < Duration::from_secs(10), "it is back, and nobody asks it");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Nothing is sent on it for minutes, so nothing but a question finds out.
async fn a_watch_of_a_server_that_vanishes_is_reset_in_time(driver: IoDriver) {
    let (_world, _twin, cable, client) = behind_a_cable(driver).await;
    let mut watch = client.watch(&format!("{PODS}?watch=1")).await.unwrap();
    cable.pull();
    let pulled = Instant::now();
    // A watch ends as a reset, never as a watch that came to its end.
    let ended = timeout(Duration::from_secs(30), async {
        while watch.next_event().await?.is_some() {}
        Ok::<_, Error>(())
    })
    .await;
    let error = ended.unwrap().unwrap_err();
    assert!(error.is_reset() && pulled.elapsed() <= GIVEN_UP, "{error} after {:?}", pulled.elapsed());
    assert_eq!(server_of(client.get(PODS).await), (StatusCode::OK, "cp-b".to_owned()));
}
