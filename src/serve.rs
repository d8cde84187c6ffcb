//! `mvproxy serve`: from flags to a running engine, and to its end.
//!
//! What always holds: everything that can be wrong is found before the engine starts, and the engine starts whole or not at all.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use discovery::live::{Hint, Live, Status};
use discovery::{AllowList, BuildError, Publisher, Readers, Server, ServerId, Snapshot, SnapshotBuilder};
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
    log::take_panics();
    let (sender, signal) = mpsc::channel();
    // Fails only when the program is about to end anyway.
    signals::listen(move |first| {
        sender.send(first).ok();
    })?;
    let nofile = host::raise_nofile();
    let mut certificates = Certificates::load(flags)?;
    let mut config = config(flags, nofile)?;
    let board = status::start(flags.status_port)?;
    let routes = Routes::open(flags, &config, &certificates)?;
    routes.show(&board, &config);
    config.report = routes.report();
    let engine = match Engine::start(config, certificates.configs(), &routes.readers()) {
        Ok(engine) => engine,
        Err(error) => {
            routes.close();
            return Err(Failure::runtime(error));
        }
    };
    board.show_engine(engine.observer());
    if let Some(path) = &flags.config {
        log::info(format_args!("flags also come from {}", path.display()));
    }
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
pub(crate) fn config(flags: &ServeFlags, nofile: Option<u64>) -> Result<Config, Failure> {
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
pub(crate) enum Routes {
    /// From a file, or from nowhere: everything is local.
    Fixed(Publisher, String),
    /// From the cluster.
    Live(Live),
}

impl Routes {
    /// Reads the file, or begins to ask the cluster.
    pub(crate) fn open(flags: &ServeFlags, config: &Config, certificates: &Certificates<'_>) -> Result<Self, Failure> {
        let file = flags.static_routes.as_ref().map(|path| routes(Named { flag: "--static-routes", path }, config.bind)).transpose()?;
        if file.is_none() {
            refuse_circle(flags.peers.local_server.0, config)?;
        }
        if !flags.peers.is_on() {
            let local = file.as_ref().map_or_else(|| named_local(flags), |file| file.servers()[file.local().get()].clone());
            let text = format!("the local server at {} alone: the feature gate is off", local.address);
            return Ok(Self::Fixed(Publisher::new(local_only(local).map_err(Failure::usage)?), text));
        }
        match file {
            Some(snapshot) => {
                let text = describe(&snapshot);
                Ok(Self::Fixed(Publisher::new(snapshot), text))
            }
            None if flags.peers.kubeconfig.is_some() => {
                // Before others are told of us: a second proxy of the same server would write the same Lease.
                Engine::check_ports(config).map_err(Failure::runtime)?;
                Ok(Self::Live(live::start(flags, &own(config), certificates.for_discovery())?))
            }
            None => Err(Failure::usage(
                "nothing says who serves what: give --kubeconfig=FILE, with which the cluster is asked, or --static-routes=FILE; see 'mvproxy serve --help'",
            )),
        }
    }

    /// What shards read snapshots from.
    pub(crate) fn readers(&self) -> Readers {
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
    pub(crate) fn report(&self) -> Option<Report> {
        let Self::Live(live) = self else { return None };
        let notifier = live.notifier();
        Some(Arc::new(move |sign| {
            notifier.notify(match sign {
                Sign::LocalLost => Hint::LocalInDoubt,
                Sign::Lost { server, at } => Hint::Lost { server, at },
                Sign::Unreachable(address) => Hint::Unreachable(address),
            });
        }))
    }

    /// Lets the cluster be asked with what the files say now.
    fn renew(&self, certificates: &Certificates<'_>) {
        if let Self::Live(live) = self {
            live.renew(certificates.for_discovery());
        }
    }

    /// What is known of the cluster, if it is asked.
    pub(crate) fn status(&self) -> Option<Arc<Status>> {
        match self {
            Self::Fixed(..) => None,
            Self::Live(live) => Some(live.status()),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Fixed(_, text) => text.clone(),
            Self::Live(_) => "a cluster that is asked who serves what".to_owned(),
        }
    }

    /// Other proxies are told that we go.
    pub(crate) fn close(self) {
        if let Self::Live(live) = self {
            live.stop();
        }
    }
}

/// The local server, as flags have it.
fn named_local(flags: &ServeFlags) -> Server {
    let id = ServerId::new(flags.peers.server_id.as_deref().unwrap_or("local"));
    Server::new(id, flags.peers.local_server.0)
}

/// Everything local.
fn local_only(local: Server) -> Result<Snapshot, BuildError> {
    let mut builder = SnapshotBuilder::new(1);
    let local = builder.server(local)?;
    builder.local(local);
    builder.build()
}

/// The local server must not be this proxy.
fn refuse_circle(local: SocketAddr, config: &Config) -> Result<(), Failure> {
    let bound = [Some(config.bind), config.peer_bind].into_iter().flatten();
    match bound.into_iter().find(|&bound| is_own(local, bound)) {
        Some(bound) => Err(Failure::usage(format_args!(
            "--local-server {local}: mvproxy itself is to listen on {bound}, so requests would go round in circles: give the apiserver's \
             address, or another --bind-address or port of mvproxy"
        ))),
        None => Ok(()),
    }
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

/// Would a connection to `address` come back to us?
fn is_own(address: SocketAddr, bind: SocketAddr) -> bool {
    AllowList { own: live::reached_at(bind, &host::addresses()), ..AllowList::default() }.is_own(address)
}

fn describe(routes: &Snapshot) -> String {
    let local = &routes.servers()[routes.local().get()];
    format!("{} at {}, {} peers, {} resources", local.id, local.address, routes.peers().len(), routes.gvrs())
}

fn warn_of_unused(flags: &ServeFlags) {
    if flags.static_routes.is_some() {
        let unused = unused_with_static_routes(flags).join(", ");
        if !unused.is_empty() {
            log::warning(format_args!("{unused}: not used with --static-routes, whose file says who is where; no proxy is connected to"));
        }
    }
    for name in flags.peers.unknown_gates() {
        log::warning(format_args!("--feature-gates: {name} means nothing to mvproxy"));
    }
    if flags.peers.kubeconfig.is_some() && flags.peers.requestheader_client_ca_file.is_none() {
        log::warning("no peer port: other proxies could not be told from anybody else without --requestheader-client-ca-file");
    }
}

fn unused_with_static_routes(flags: &ServeFlags) -> Vec<&'static str> {
    let peers = &flags.peers;
    let given = [
        (flags.proxy_client_cert_file.is_some(), "--proxy-client-cert-file and --proxy-client-key-file"),
        (peers.server_id.is_some(), "--server-id"),
        (!peers.peer_endpoint.is_empty(), "--peer-endpoint"),
        (!peers.peer_cidr.is_empty(), "--peer-cidr"),
        (peers.peer_advertise_ip.is_some(), "--peer-advertise-ip"),
        (peers.peer_advertise_port.is_some(), "--peer-advertise-port"),
    ];
    given.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag)).collect()
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
            routes.renew(certificates);
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
mod two_proxies;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use discovery::live::ServerStatus;
    use loadgen::twin::{Storage, apis, server_id};
    use loadgen::{KeyPairPem, Pki, Twin, TwinConfig};

    use super::*;
    use crate::cli::{self, Command, Parsed};

    /// The flags of a proxy whose files are in a new directory.
    fn flags(directory: &Path, pki: &Pki, more: &[String]) -> ServeFlags {
        std::fs::create_dir(directory).unwrap();
        let (cert, key) = pki.serving().unwrap().write(directory, "serving").unwrap();
        let ca = pki.write_ca(directory, "ca").unwrap();
        let files = [("--tls-cert-file", &cert), ("--tls-private-key-file", &key), ("--peer-ca-file", &ca)];
        let mut line = ["mvproxy", "serve", "--bind-address=127.0.0.1", "--secure-port=0", "--shards=2"].map(String::from).to_vec();
        line.extend(files.map(|(flag, path)| format!("{flag}={}", path.display())));
        line.extend_from_slice(more);
        let Ok(Parsed::Command(Command::Serve(flags))) = cli::parse(line.into_iter().map(Into::into)) else { unreachable!() };
        *flags
    }

    /// A core that hangs is worse than a process that ends: systemd or the kubelet starts another.
    #[test]
    fn a_shard_that_panics_ends_the_process_with_1() {
        let directory = std::env::temp_dir().join(format!("mvproxy-serve-{}", std::process::id()));
        let gate = "--feature-gates=UnknownVersionInteroperabilityProxy=false".to_owned();
        let flags = flags(&directory, &Pki::new().unwrap(), &[gate]);
        let mut certificates = Certificates::load(&flags).unwrap();
        let config = config(&flags, None).unwrap();
        let routes = Routes::open(&flags, &config, &certificates).unwrap();
        let board = status::start(0).unwrap();
        let engine = Engine::start(config, certificates.configs(), &routes.readers()).unwrap();
        assert!(engine.panic_shard(1));
        let (_signals, none) = mpsc::channel();
        let code = wait(engine, routes, &board, &none, &mut certificates, false);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(1)));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Ends the proxy, also when the test fails.
    struct End(mpsc::Sender<Signal>);

    impl Drop for End {
        fn drop(&mut self) {
            self.0.send(Signal::Terminate).ok();
        }
    }

    /// The local server comes back with a certificate of another authority: discovery knows it again when the file names that one.
    #[test]
    fn t8_discovery_follows_the_files() {
        let directory = std::env::temp_dir().join(format!("mvproxy-serve-renewed-{}", std::process::id()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (storage, inside) = (Storage::default(), runtime.handle().clone());
        let start = move |serving: KeyPairPem, port: u16| {
            let _inside = inside.enter();
            let (hostname, storage) = (Some("cp-a".to_owned()), Some(storage.clone()));
            Twin::start(TwinConfig { port, hostname, storage, ..TwinConfig::new("cp-a", serving, apis::control_plane()) }).unwrap()
        };
        let (pki, next) = (Pki::new().unwrap(), Pki::new().unwrap());
        let (serving, authority) = (next.serving().unwrap(), next.ca_pem().to_owned());
        let twin = start(pki.serving().unwrap(), 0);
        let address = twin.address();
        let kubeconfig = directory.join("kubeconfig");
        let more = [
            format!("--local-server=https://{address}"),
            format!("--server-id={}", server_id("cp-a")),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let flags = flags(&directory, &pki, &more);
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                    clusters: [{name: k, cluster: {server: 'https://192.0.2.1'}}]\nusers: [{name: u, user: {token: t}}]\n";
        std::fs::write(&kubeconfig, text).unwrap();
        let mut certificates = Certificates::load(&flags).unwrap();
        let config = config(&flags, None).unwrap();
        let routes = Routes::open(&flags, &config, &certificates).unwrap();
        let Routes::Live(live) = &routes else { unreachable!() };
        let observer = live.observer();
        let engine = Engine::start(config, certificates.configs(), &routes.readers()).unwrap();
        let board = status::start(0).unwrap();
        let (stop, signal) = mpsc::channel();
        let ca = directory.join("ca.crt");
        let story = std::thread::spawn(move || {
            let _end = End(stop);
            let until = |what: &str, is_so: fn(&ServerStatus) -> bool| {
                let began = Instant::now();
                while !observer.status().servers.iter().any(|server| server.view.is_local && is_so(server)) {
                    assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:#?}", observer.status());
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            until("known", |server| server.view.is_ready);
            runtime.block_on(twin.abort());
            let _twin = start(serving, address.port());
            until("a stranger", |server| {
                !server.view.is_ready && server.error.as_ref().is_some_and(|error| error.contains("invalid peer certificate"))
            });
            std::fs::write(ca, authority).unwrap();
            until("known again", |server| server.view.is_ready);
        });
        let code = wait(engine, routes, &board, &signal, &mut certificates, false);
        story.join().unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
