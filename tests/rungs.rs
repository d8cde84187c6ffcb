//! Kernels older than 6.1 refuse the best ring: the whole engine on each of the rings below it.
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use engine::Limits;
use http::{HeaderMap, Method};

mod support;

use support::{IoDriver, Plan, World, apis, headers, noise};

const COLLECTION: &str = "/apis/batch/v1/namespaces/default/jobs";
const OBJECT: &[u8] = br#"{"metadata":{"name":"demo","namespace":"default"}}"#;
const LARGE: usize = 3 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coop_taskrun() {
    carries_requests_watches_and_large_bodies(IoDriver::CoopTaskrun, "io_uring (COOP_TASKRUN), events one by one").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flags() {
    carries_requests_watches_and_large_bodies(IoDriver::PlainIoUring, "io_uring (no flags), events one by one").await;
}

/// The same on the best one, so that a failure above is the ring's and not the test's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defer_taskrun() {
    carries_requests_watches_and_large_bodies(IoDriver::IoUring, "io_uring (SINGLE_ISSUER | DEFER_TASKRUN), events gathered").await;
}

/// And with a wait for more events after every wake-up: it puts nothing off for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defer_taskrun_always_gathering() {
    let always = |limits: &mut Limits| (limits.gather_from, limits.gather_busy) = (1, 1);
    carries(World::on(IoDriver::IoUring).limits(always), "io_uring (SINGLE_ISSUER | DEFER_TASKRUN), events gathered").await;
}

async fn carries_requests_watches_and_large_bodies(driver: IoDriver, rung: &str) {
    carries(World::on(driver), rung).await;
}

async fn carries(plan: Plan, rung: &str) {
    let mut world = plan.shards(2).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start();
    assert!(world.engine().drivers().iter().all(|line| line.contains(rung)), "{:?}", world.engine().drivers());
    let clients = [world.client().await, world.client().await, world.client().await];
    let mut watches = Vec::new();
    for client in &clients {
        watches.push(client.watch(&format!("{COLLECTION}?watch=true")).await.unwrap());
    }
    for (nth, client) in clients.iter().enumerate() {
        let local = client.get("/api/v1/namespaces/default/configmaps").await.unwrap();
        assert_eq!((local.status.as_u16(), local.header("x-twin-id")), (200, Some("cp-a")));
        let body = noise(LARGE, nth as u64);
        let echo = client.request(Method::POST, COLLECTION, headers([("x-twin-debug", "echo")]), body.clone(), None).await.unwrap();
        assert_eq!((echo.status.as_u16(), echo.header("x-twin-id")), (200, Some("cp-b")));
        assert!(echo.body == body, "{} bytes came back", echo.body.len());
    }
    let written = clients[0].request(Method::PUT, &format!("{COLLECTION}/demo"), HeaderMap::new(), OBJECT.into(), None).await.unwrap();
    assert!(written.status.is_success(), "{}", written.status);
    for watch in &mut watches {
        let event = watch.next_event().await.unwrap().unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"ADDED".into(), &"demo".into()));
    }
    drop((clients, watches));
    world.drain().await.unwrap();
}
