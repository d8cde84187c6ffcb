//! `mvproxy serve`: from flags to a running engine, and to its end.
//!
//! What always holds: everything that can be wrong is found before the engine starts, and the engine starts whole or not at all.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use discovery::{Publisher, Snapshot};
use engine::{Config, Engine, Limits, cpus};

use crate::certificates::Certificates;
use crate::cli::ServeFlags;
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::signals::Signal;
use crate::{host, log, signals};

/// How often the shards and the certificate files are looked after: a new certificate is served within a second.
const TICK: Duration = Duration::from_millis(250);
/// How many ticks `-vv` lets pass between counters: 10 s.
const COUNTERS_EVERY: u32 = 40;

/// Runs until a signal, or until a shard fails.
pub(crate) fn run(flags: &ServeFlags) -> Result<ExitCode, Failure> {
    let (sender, signal) = mpsc::channel();
    // Fails only when the program is about to end anyway.
    signals::listen(move |first| {
        sender.send(first).ok();
    })?;
    let nofile = host::raise_nofile();
    let mut certificates = Certificates::load(flags)?;
    let config = config(flags, nofile)?;
    let routes = routes(flags, config.bind)?;
    let serving = describe(&routes);
    let publisher = Publisher::new(routes);
    let engine = Engine::start(config, certificates.configs(), &publisher).map_err(Failure::runtime)?;
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
    log::info(format_args!("serving on {} for {serving}", engine.address()));
    Ok(wait(engine, &signal, &mut certificates, flags.verbose >= 2))
}

/// What the flags mean, files left aside.
fn config(flags: &ServeFlags, nofile: Option<u64>) -> Result<Config, Failure> {
    let cpus = cpus::choose(flags.shards, flags.cpu_list.as_deref(), &cpus::allowed(), host::cpu_quota());
    Ok(Config {
        cpus: cpus.map_err(|error| Failure::usage(format_args!("--cpu-list: {error}")))?,
        io_driver: flags.io_driver,
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

fn routes(flags: &ServeFlags, bind: SocketAddr) -> Result<Snapshot, Failure> {
    let file = Named { flag: "--static-routes", path: &flags.static_routes };
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
    if flags.proxy_client_cert_file.is_some() {
        log::warning("--proxy-client-cert-file and --proxy-client-key-file are not used yet: clients are not asked for certificates");
    }
    if flags.status_port != 0 {
        log::warning(format_args!("--status-port {} is not served yet: its endpoints come with discovery", flags.status_port));
    }
}

/// Waits for the first signal, drains, and waits for the shards. The second signal does not come back here.
fn wait(engine: Engine, signal: &Receiver<Signal>, certificates: &mut Certificates<'_>, counters: bool) -> ExitCode {
    let mut ticks = 0;
    let first = loop {
        if let Ok(first) = signal.recv_timeout(TICK) {
            break first;
        }
        if let Some(failed) = engine.failure() {
            log::error(format_args!("{failed}: ending"));
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
