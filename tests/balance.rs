//! Connections are spread over the shards: the busier of two has at most 1.15 times the mean.
//!
//! `cargo test --test balance -- --nocapture` prints each run.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

use std::time::Duration;

use loadgen::Client;
use tokio::task::JoinSet;

mod support;

use support::{IoDriver, NAME, TOKEN, World, apis, eventually};

const RUNS: usize = 20;
const CONNECTIONS: usize = 64;
const SHARDS: usize = 2;
const RATIO_MAX: f64 = 1.15;
/// A closed connection is counted until its shard has seen the end of it.
const PATIENCE: Duration = Duration::from_secs(10);

on_both_drivers!(sixty_four_connections_are_spread_evenly_in_every_run);

async fn sixty_four_connections_are_spread_evenly_in_every_run(driver: IoDriver) {
    let mut worst: f64 = 0.0;
    for run in 1..=RUNS {
        // A new port each time, and with it a new hash of SO_REUSEPORT.
        let world = World::on(driver).shards(SHARDS).local("cp-a", apis::everywhere()).start();
        let mut connecting = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (address, ca) = (world.address(), world.pki().ca_pem().to_owned());
            connecting.spawn(async move { Client::connect(address, &ca, NAME, Some(TOKEN)).await.unwrap() });
        }
        let clients = connecting.join_all().await;
        for client in &clients {
            // Answered: the connection is established on its shard.
            assert_eq!(client.get("/version").await.unwrap().status, 200);
        }
        let spread = world.engine().connections();
        assert_eq!(spread.iter().sum::<usize>(), CONNECTIONS, "{spread:?}");
        let busiest = spread.iter().copied().max().unwrap_or_default();
        let ratio = busiest as f64 * SHARDS as f64 / CONNECTIONS as f64;
        println!("run {run:2}: {spread:?}, the busier has {ratio:.3} x the mean");
        assert!(ratio <= RATIO_MAX, "run {run}: {spread:?}");
        worst = worst.max(ratio);
        drop(clients);
        // What is never released would look like balance.
        eventually("closed connections are no longer counted", PATIENCE, || world.engine().connections() == [0; SHARDS]).await;
    }
    println!("{RUNS} runs of {CONNECTIONS} connections on {SHARDS} shards: at worst {worst:.3} x the mean");
}
