//! How an end on one leg shows on the other: the table at the top of engine/src/core/lost.rs. Its rows on malformed answers, on answers that do
//! not come and on reads that are asked for once more are in engine/tests/core_scenarios.rs and core_retry.rs.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Method, StatusCode};
use support::script::{self, Script};
use support::{IoDriver, World, apis, eventually, headers, noise, pattern, raw};
use tokio::sync::mpsc;
use tokio::time::timeout;

on_both_drivers!(
    a_client_that_resets_or_leaves_cancels_at_the_server,
    an_answer_before_the_end_of_the_upload_is_a_success,
    a_refused_stream_is_tried_again,
    a_refused_stream_with_a_long_body_is_the_clients_to_try_again,
    resets_of_a_server_arrive_as_far_as_they_are_the_clients_matter,
    a_cut_body_ends_in_a_reset,
    what_goaway_did_not_process_is_tried_again,
    a_server_that_goes_before_it_answers_is_503,
    a_server_that_goes_while_it_answers_is_a_reset,
);

const LIMIT: Duration = Duration::from_secs(10);

async fn a_client_that_resets_or_leaves_cancels_at_the_server(driver: IoDriver) {
    let (sender, mut seen) = mpsc::unbounded_channel();
    let plan = World::on(driver);
    let server = Script::start(plan.pki(), move |_, request, mut respond| {
        let sender = sender.clone();
        async move {
            let held = request;
            sender.send(None).unwrap();
            sender.send(Some(script::reset_of(&mut respond).await)).unwrap();
            drop(held);
        }
    })
    .await;
    let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    let mut next = async || timeout(LIMIT, seen.recv()).await.unwrap().unwrap();
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::ENHANCE_YOUR_CALM] {
        let client = world.raw().await;
        let (_response, mut stream) = client.open(Method::POST, "/x", HeaderMap::new(), false).await;
        assert_eq!(next().await, None);
        stream.send_reset(reason);
        assert_eq!(next().await, Some(Reason::CANCEL), "{reason:?}");
    }
    let client = world.raw().await;
    let _stream = client.open(Method::GET, "/x", HeaderMap::new(), true).await;
    assert_eq!(next().await, None);
    client.cut().await;
    assert_eq!(next().await, Some(Reason::CANCEL), "a connection that was cut");
}

async fn an_answer_before_the_end_of_the_upload_is_a_success(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.raw().await;
    let (response, mut stream) = client.open(Method::POST, "/debug/twin/early", HeaderMap::new(), false).await;
    let mut response = timeout(LIMIT, response).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(raw::read_all(response.body_mut()).await.unwrap(), "early\n".len());
    assert_eq!(timeout(LIMIT, raw::reset_of(&mut stream)).await.unwrap(), Reason::NO_ERROR);
    // A client that never looks at the reset, with more to send than any window takes.
    let client = world.client().await;
    for _ in 0..10 {
        let early = client.request(Method::POST, "/debug/twin/early", HeaderMap::new(), noise(2 << 20, 1), None).await.unwrap();
        assert_eq!((early.status, &early.body[..]), (StatusCode::OK, &b"early\n"[..]));
    }
    // And when the upload is complete there is nothing to reset.
    let early = client.request(Method::POST, "/debug/twin/early", HeaderMap::new(), Bytes::from_static(b"x"), None).await.unwrap();
    assert_eq!(early.body, "early\n");
}

/// Refuses the first `times` requests, then sends the body back.
async fn refusing(plan: &support::Plan, times: usize) -> Script {
    Script::start(plan.pki(), move |number, mut request, mut respond| async move {
        if number < times {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        let mut body = Vec::new();
        while let Some(chunk) = request.body_mut().data().await {
            let Ok(chunk) = chunk else { return };
            body.extend_from_slice(&chunk);
            request.body_mut().flow_control().release_capacity(chunk.len()).ok();
        }
        script::answer(&mut respond, body);
    })
    .await
}

async fn a_refused_stream_is_tried_again(driver: IoDriver) {
    for times in [1, 2] {
        let plan = World::on(driver);
        let server = refusing(&plan, times).await;
        let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
        let body = noise(60_000, 2);
        let answer = world.client().await.request(Method::POST, "/x", HeaderMap::new(), body.clone(), None).await.unwrap();
        assert!(answer.status == StatusCode::OK && answer.body == body, "refused {times} times: {}", answer.status);
    }
    // For ever: a 503 that may be sent again, because no server has begun.
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let answer = world.client().await.get("/debug/twin/reset/7").await.unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
    assert_eq!(world.twin("cp-a").counts().requests, 3);
}

async fn a_refused_stream_with_a_long_body_is_the_clients_to_try_again(driver: IoDriver) {
    // Refuses when it has read more than any proxy keeps.
    let plan = World::on(driver);
    let server = Script::start(plan.pki(), |_, mut request, mut respond| async move {
        let mut read = 0;
        while read < 200_000 {
            let Some(Ok(chunk)) = request.body_mut().data().await else { return };
            read += chunk.len();
            request.body_mut().flow_control().release_capacity(chunk.len()).ok();
        }
        respond.send_reset(Reason::REFUSED_STREAM);
    })
    .await;
    let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    let refused = world.client().await.request(Method::POST, "/x", HeaderMap::new(), noise(1 << 20, 3), None).await.unwrap_err();
    assert!(refused.is_reset(), "{refused}");
    assert_eq!(refused.reason(), Some(Reason::REFUSED_STREAM));
}

async fn resets_of_a_server_arrive_as_far_as_they_are_the_clients_matter(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start();
    let client = world.client().await;
    for path in ["/api/v1/pods", "/apis/batch/v1/jobs"] {
        for code in (0..=13).filter(|code| *code != 7) {
            let sent = headers([("x-twin-debug", &format!("reset/{code}"))]);
            let error = client.request(Method::GET, path, sent, Bytes::new(), None).await.unwrap_err();
            assert!(error.is_reset(), "{path}, {code}: {error}");
            let expected = match code {
                8 => Reason::CANCEL,
                13 => Reason::HTTP_1_1_REQUIRED,
                _ => Reason::INTERNAL_ERROR,
            };
            assert_eq!(error.reason(), Some(expected), "{path}, {code}");
        }
    }
    assert_eq!(client.get("/readyz").await.unwrap().status, StatusCode::OK);
}

async fn a_cut_body_ends_in_a_reset(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    for count in [1usize, 1_000, 16_384, 300_000] {
        let mut body = client.watch(&format!("/debug/twin/truncate/{count}")).await.unwrap();
        let mut received = Vec::new();
        let error = loop {
            match timeout(LIMIT, body.next_chunk()).await.unwrap() {
                Ok(Some(chunk)) => received.extend_from_slice(&chunk),
                Ok(None) => panic!("a clean end after {} of {count} bytes", received.len()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR), "{count}");
        assert!(received.len() <= count && received == pattern(received.len()), "{count}: {} bytes", received.len());
    }
}

async fn what_goaway_did_not_process_is_tried_again(driver: IoDriver) {
    let plan = World::on(driver);
    let server = Script::with_goaways(plan.pki(), 2, |_, mut request, mut respond| async move {
        let body = request.body_mut().data().await.map_or_else(Bytes::new, Result::unwrap);
        script::answer(&mut respond, body);
    })
    .await;
    let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    // A POST, which nothing but the GOAWAY's word allows to send again.
    let answer = world.client().await.request(Method::POST, "/x", HeaderMap::new(), Bytes::from_static(b"once"), None).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"once"[..]));
    eventually("the retries are counted", LIMIT, || world.engine().counters().retried == 2).await;
}

async fn a_server_that_goes_before_it_answers_is_503(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    let hanging = [Method::POST, Method::GET].map(|method| {
        let asked = client.clone();
        tokio::spawn(async move { asked.request(method, "/debug/twin/hang", HeaderMap::new(), Bytes::new(), None).await })
    });
    eventually("the requests arrive", LIMIT, || world.twin("cp-a").counts().requests == 2).await;
    world.kill("cp-a").await;
    // The server may have done what it was asked to: nobody is told to do it again. A read does nothing.
    for (hanging, retry_after) in hanging.into_iter().zip([None, Some("1")]) {
        let answer = timeout(LIMIT, hanging).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let status = answer.json().unwrap();
        assert_eq!((status["kind"].as_str(), status["reason"].as_str()), (Some("Status"), Some("ServiceUnavailable")));
        assert_eq!(answer.header("retry-after"), retry_after);
    }
}

async fn a_server_that_goes_while_it_answers_is_a_reset(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    let mut watch = client.watch("/api/v1/namespaces/default/configmaps?watch=true").await.unwrap();
    assert!(watch.next_event().await.unwrap().is_some());
    world.kill("cp-a").await;
    let error = timeout(LIMIT, watch.next_event()).await.unwrap().unwrap_err();
    assert!(error.is_reset(), "{error}");
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    assert!(client.alive(), "the client's connection has nothing to do with it");
}
