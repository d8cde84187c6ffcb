//! `mvproxy serve`: from flags to a running engine, and to its end.
//!
//! What always holds: everything that can be wrong is found before the engine starts, and the engine starts whole or not at all.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use discovery::live::{Hint, Live};
use discovery::{BuildError, Publisher, Readers, Server, ServerId, Snapshot, SnapshotBuilder};
use engine::core::Sign;
use engine::{Config, Engine, Limits, Report, cpus};

use crate::certificates::Certificates;
use crate::cli::ServeFlags;
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::signals::Signal;
use crate::status::Board;
use crate::{host, live, log, signals, status};

/// How often the shards and the certificate files are looked after: a new certificate is served within a second.
const TICK: Duration = Duration::from_millis(250);
/// How many ticks `-vv` lets pass between counters: 10 s.
const COUNTERS_EVERY: u32 = 40;

/// Runs until a signal, or until a shard fails.
pub(crate) fn run(flags: &ServeFlags) -> Result<ExitCode, Failure> {
    log::set_format(flags.logging_format);
    if let Some(path) = &flags.config {
        log::info(format_args!("flags also come from {}", path.display()));
    }
    let (sender, signal) = mpsc::channel();
    // Fails only when the program is about to end anyway.
    signals::listen(move |first| {
        sender.send(first).ok();
    })?;
    let nofile = host::raise_nofile();
    let mut certificates = Certificates::load(flags)?;
    let mut config = config(flags, nofile)?;
    let board = status::start(flags.status_port)?;
    let routes = Routes::open(flags, &config)?;
    routes.show(&board, &config);
    config.report = routes.report();
    let engine = Engine::start(config, certificates.configs(), &routes.readers()).map_err(Failure::runtime)?;
    board.show_engine(engine.observer());
    for line in engine.refusals() {
        log::info(line);
    }
    if flags.verbose >= 1 {
        for line in engine.drivers() {
            log::info(line);
        }
        log::info(format_args!("limit of open files: {}", nofile.map_or_else(|| String::from("none"), |files| files.to_string())));
    }
    warn_of_unused(flags);
    let peers = engine.peer_address().map_or_else(String::new, |address| format!(", proxies on {address}"));
    log::info(format_args!("serving on {}{peers} for {}", engine.address(), routes.describe()));
    Ok(wait(engine, routes, &board, &signal, &mut certificates, flags.verbose >= 2))
}

/// What the flags mean, files left aside.
fn config(flags: &ServeFlags, nofile: Option<u64>) -> Result<Config, Failure> {
    let cpus = cpus::choose(flags.shards, flags.cpu_list.as_deref(), &cpus::allowed(), host::cpu_quota());
    Ok(Config {
        cpus: cpus.map_err(|error| Failure::usage(format_args!("--cpu-list: {error}")))?,
        io_driver: flags.io_driver,
        peer_bind: peer_bind(flags, bind(flags)?),
        report: None,
        release: Some(crate::memory::release),
        files: nofile.and_then(|files| usize::try_from(files).ok()),
        limits: Limits { client_streams: flags.http2_max_streams_per_connection, ..Limits::default() },
        bind: bind(flags)?,
    })
}

fn bind(flags: &ServeFlags) -> Result<SocketAddr, Failure> {
    let address = flags.bind_address.or_else(host::default_address);
    let address = address
        .ok_or_else(|| Failure::runtime("this machine has no default route to take the address from: name one with --bind-address"))?;
    Ok(SocketAddr::new(address, flags.secure_port))
}

/// Where other proxies come in: only with authorities to know them by.
fn peer_bind(flags: &ServeFlags, bind: SocketAddr) -> Option<SocketAddr> {
    let wanted = flags.peers.peer_port != 0 && flags.peers.is_on() && flags.peers.requestheader_client_ca_file.is_some();
    wanted.then(|| SocketAddr::new(bind.ip(), flags.peers.peer_port))
}

/// Where routing comes from.
enum Routes {
    /// From a file, or from nowhere: everything is local.
    Fixed(Publisher, String),
    /// From the cluster.
    Live(Live),
}

impl Routes {
    fn open(flags: &ServeFlags, config: &Config) -> Result<Self, Failure> {
        if !flags.peers.is_on() {
            let local = local_only(flags).map_err(Failure::usage)?;
            let text = format!("the local server at {} alone: the feature gate is off", flags.peers.local_server.0);
            return Ok(Self::Fixed(Publisher::new(local), text));
        }
        match &flags.static_routes {
            Some(path) => {
                let snapshot = routes(Named { flag: "--static-routes", path }, config.bind)?;
                let text = describe(&snapshot);
                Ok(Self::Fixed(Publisher::new(snapshot), text))
            }
            None if flags.peers.kubeconfig.is_some() => Ok(Self::Live(live::start(flags, &own(config))?)),
            None => Err(Failure::usage(
                "nothing says who serves what: give --kubeconfig=FILE, with which the cluster is asked, or --static-routes=FILE; see 'mvproxy serve --help'",
            )),
        }
    }

    fn readers(&self) -> Readers {
        match self {
            Self::Fixed(publisher, _) => publisher.readers(),
            Self::Live(live) => live.readers().clone(),
        }
    }

    /// Lets the status port see it.
    fn show(&self, board: &Board, config: &Config) {
        board.show_routes(self.readers());
        if let Self::Live(live) = self {
            board.show_discovery(live.observer(), config.peer_bind.is_some());
        }
    }

    /// Who is to be told what the traffic shows.
    fn report(&self) -> Option<Report> {
        let Self::Live(live) = self else { return None };
        let notifier = live.notifier();
        Some(Arc::new(move |sign| {
            notifier.notify(match sign {
                Sign::LocalLost => Hint::LocalInDoubt,
                Sign::Unreachable(address) => Hint::Unreachable(address),
            });
        }))
    }

    fn describe(&self) -> String {
        match self {
            Self::Fixed(_, text) => text.clone(),
            Self::Live(_) => "a cluster that is asked who serves what".to_owned(),
        }
    }

    /// Other proxies are told that we go.
    fn close(self) {
        if let Self::Live(live) = self {
            live.stop();
        }
    }
}

/// Everything local.
fn local_only(flags: &ServeFlags) -> Result<Snapshot, BuildError> {
    let mut builder = SnapshotBuilder::new(1);
    let id = ServerId::new(flags.peers.server_id.as_deref().unwrap_or("local"));
    let local = builder.server(Server::new(id, flags.peers.local_server.0))?;
    builder.local(local);
    builder.build()
}

fn own(config: &Config) -> live::Own {
    live::Own { clients: config.bind, peers: config.peer_bind }
}

fn routes(file: Named<'_>, bind: SocketAddr) -> Result<Snapshot, Failure> {
    let routes = files::routes(file)?;
    match routes.servers().iter().find(|server| is_own(server.address, bind)) {
        Some(server) => Err(Failure::usage(format_args!(
            "{} {}: server `{}` has the address {bind}, where mvproxy itself is to listen, so requests would go round in circles: \
             give the apiserver's address, or another --bind-address or --secure-port",
            file.flag,
            file.path.display(),
            server.id
        ))),
        None => Ok(routes),
    }
}

/// Would a connection to `address` come back to us? With every address bound, those of other interfaces are not known here.
fn is_own(address: SocketAddr, bind: SocketAddr) -> bool {
    let own_ip = address.ip() == bind.ip()
        || (bind.ip().is_unspecified() && (address.ip().is_loopback() || Some(address.ip()) == host::default_address()));
    own_ip && address.port() == bind.port()
}

fn describe(routes: &Snapshot) -> String {
    let local = &routes.servers()[routes.local().get()];
    format!("{} at {}, {} peers, {} resources", local.id, local.address, routes.peers().len(), routes.gvrs())
}

fn warn_of_unused(flags: &ServeFlags) {
    if flags.proxy_client_cert_file.is_some() && flags.static_routes.is_some() {
        log::warning("--proxy-client-cert-file and --proxy-client-key-file are not used with --static-routes: no proxy is connected to");
    }
    for name in flags.peers.unknown_gates() {
        log::warning(format_args!("--feature-gates: {name} means nothing to mvproxy"));
    }
    if flags.peers.kubeconfig.is_some() && flags.peers.requestheader_client_ca_file.is_none() {
        log::warning("no peer port: other proxies could not be told from anybody else without --requestheader-client-ca-file");
    }
}

/// Waits for the first signal, drains, and waits for the shards. The second signal does not come back here.
fn wait(
    engine: Engine,
    routes: Routes,
    board: &Board,
    signal: &Receiver<Signal>,
    certificates: &mut Certificates<'_>,
    counters: bool,
) -> ExitCode {
    let mut ticks = 0;
    let first = loop {
        if let Ok(first) = signal.recv_timeout(TICK) {
            break first;
        }
        if let Some(failed) = engine.failure() {
            log::error(format_args!("{failed}: ending"));
            routes.close();
            return ExitCode::from(1);
        }
        if certificates.reload() {
            engine.set_tls(certificates.configs());
        }
        ticks = (ticks + 1) % COUNTERS_EVERY;
        if counters && ticks == 0 {
            log_counters(&engine);
        }
    };
    log::info(format_args!("{}: draining; again to end at once", first.name()));
    board.show_drain();
    routes.close();
    engine.drain();
    match engine.join() {
        Ok(()) => {
            log::info("drained");
            ExitCode::SUCCESS
        }
        Err(failed) => {
            log::error(&failed);
            ExitCode::from(1)
        }
    }
}

fn log_counters(engine: &Engine) {
    let sum = engine.counters();
    log::info(format_args!(
        "connections {} requests {} rerouted {} refused {} retried {} body bytes {}",
        engine.connections().iter().sum::<usize>(),
        sum.requests,
        sum.rerouted,
        sum.refused,
        sum.retried,
        sum.body_received
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command, Parsed};

    /// A core that hangs is worse than a process that ends: systemd or the kubelet starts another.
    #[test]
    #[allow(clippy::unwrap_used, reason = "a test")]
    fn a_shard_that_panics_ends_the_process_with_1() {
        let directory = std::env::temp_dir().join(format!("mvproxy-serve-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let pki = loadgen::Pki::new().unwrap();
        let (cert, key) = pki.serving().unwrap().write(&directory, "serving").unwrap();
        let ca = pki.write_ca(&directory, "ca.crt").unwrap();
        let files = [("--tls-cert-file", &cert), ("--tls-private-key-file", &key), ("--peer-ca-file", &ca)];
        let mut line = ["mvproxy", "serve", "--bind-address=127.0.0.1", "--secure-port=0", "--shards=2"].map(String::from).to_vec();
        line.extend(files.map(|(flag, path)| format!("{flag}={}", path.display())));
        line.push("--feature-gates=UnknownVersionInteroperabilityProxy=false".into());
        let Ok(Parsed::Command(Command::Serve(flags))) = cli::parse(line.into_iter().map(Into::into)) else { unreachable!() };
        let mut certificates = Certificates::load(&flags).unwrap();
        let config = config(&flags, None).unwrap();
        let routes = Routes::open(&flags, &config).unwrap();
        let board = status::start(0).unwrap();
        let engine = Engine::start(config, certificates.configs(), &routes.readers()).unwrap();
        assert!(engine.panic_shard(1));
        let (_signals, none) = mpsc::channel();
        let code = wait(engine, routes, &board, &none, &mut certificates, false);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(1)));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
