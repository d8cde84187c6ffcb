//! What discovery does for a core: it hears of losses, probes, and publishes who is ready and vouched for. In some worlds nobody does.

use std::time::{Duration, Instant};

use discovery::{Gvr, Publisher, Server as Named, ServerId, ServerSet, Snapshot, SnapshotBuilder, Trust};

use super::rng::Rng;
use super::server::Server;

/// After this long the core stops to wait for somebody who vouches.
const DOUBT_MAX: Duration = Duration::from_secs(5);

/// The probes of one world.
pub struct Probes {
    pub publisher: Publisher,
    generation: u64,
    is_on: bool,
    known: Vec<Known>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    trust: Trust,
    is_unready: bool,
    /// When the next probe begins, and when it is answered.
    probe: Option<(Instant, Instant)>,
}

impl Probes {
    pub fn new(servers: &[Server], rng: &mut Rng) -> Self {
        let (is_on, known) = (rng.percent(50), vec![Known::default(); servers.len()]);
        let publisher = Publisher::new(snapshot(1, servers, &known, is_on));
        Self { publisher, generation: 1, is_on, known }
    }

    /// The core lost a server then.
    pub fn on_lost(&mut self, server: usize, at: Instant, now: Instant, rng: &mut Rng) {
        assert!(self.is_on, "nobody probes");
        let known = &mut self.known[server];
        known.trust.lost = known.trust.lost.max(Some(at));
        let begins = now + Duration::from_millis(rng.pick(&[0, 10, 200]));
        // Some are never answered.
        let answered = begins + Duration::from_millis(rng.pick(&[0, 2, 50, 2_000, 60_000]));
        known.probe.get_or_insert((begins, answered));
    }

    /// The core opens a connection.
    pub fn on_connect(&self, server: usize, now: Instant) {
        let trust = &self.known[server].trust;
        let is_doubted = trust.is_in_doubt() && trust.lost.is_some_and(|lost| now - lost < DOUBT_MAX);
        assert!(!is_doubted, "s{server} is connected to before anybody vouches for it");
    }

    /// Publishes what probes found. One that is down is not ready; in the end all are.
    pub fn run(&mut self, servers: &[Server], is_chaos: bool, now: Instant) {
        let mut is_news = false;
        for (known, server) in self.known.iter_mut().zip(servers) {
            let Some((begins, answered)) = known.probe else { continue };
            if now < answered && is_chaos {
                continue;
            }
            let (begins, is_ready) = if is_chaos { (begins, !server.is_down) } else { (now, true) };
            known.probe = (!is_ready).then_some((now, now + Duration::from_millis(250)));
            known.is_unready = !is_ready;
            if is_ready {
                known.trust.vouched = Some(begins);
            }
            is_news = true;
        }
        if is_news {
            self.generation += 1;
            self.publisher.publish(snapshot(self.generation, servers, &self.known, self.is_on));
        }
    }
}

/// Server 0 is local and serves `mine` and `both`; the others serve `both`, and some of them `theirs`.
fn snapshot(generation: u64, servers: &[Server], known: &[Known], is_probed: bool) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    for (at, (server, known)) in servers.iter().zip(known).enumerate() {
        let port = u8::try_from(at + 1).unwrap();
        let index = builder.server(Named::new(ServerId::new(&format!("s{at}")), ([10, 0, 0, port], u16::from(port)).into())).unwrap();
        let own = if at == 0 { Some("mine") } else { server.serves_theirs.then_some("theirs") };
        for resource in ["both"].into_iter().chain(own) {
            builder.serve(&Gvr::new("g", "v1", resource), ServerSet::only(index)).unwrap();
        }
        if at == 0 {
            builder.local(index);
        }
        if is_probed {
            builder.trust(index, known.trust);
        }
        if known.is_unready {
            builder.unready(index);
        }
    }
    builder.build().unwrap()
}
