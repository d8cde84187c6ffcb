//! The command line: what was typed, checked one value at a time.
//!
//! What always holds: flags that kube-apiserver has too are named and mean as there; every error is one line with the cause and the fix.
//! What the values mean together, and what is in the files, is `serve`'s to find out.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use engine::IoDriver;

use crate::failure::Failure;
use crate::log::Format;
use crate::status::DEFAULT_PORT;

mod asking;
mod file;
mod peers;
mod texts;

pub(crate) use asking::{ExplainFlags, Output, RoutesFlags, SkewFlags, TextOutput};
pub(crate) use peers::{Endpoint, PeerFlags};
use texts::{DEMO_EXAMPLES, EXIT_CODES, EXPLAIN_EXAMPLES, ROUTES_EXAMPLES, SERVE_EXAMPLES, SERVE_USAGE, SKEW_EXAMPLES};

const SERVING: &str = "Serving clients";
const SERVERS: &str = "Reaching apiservers";
const RESOURCES: &str = "CPUs and kernel";
const WATCHING: &str = "Watching it";

/// The Kubernetes mixed version proxy as a program of its own
///
/// It stands in front of a kube-apiserver. While the apiservers of a control plane differ in version or in the APIs they have
/// turned on, a request for a resource that the one behind it does not serve is forwarded to one that does, instead of being
/// answered with a wrong 404.
#[derive(Parser, Debug)]
#[command(name = "mvproxy", version, after_help = EXIT_CODES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What the program can do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the proxy in front of a kube-apiserver
    ///
    /// Flags that kube-apiserver has too are named as there, and take `--flag=value` or `--flag value`. Everything is checked before
    /// anything is started.
    #[command(override_usage = SERVE_USAGE, after_help = EXIT_CODES, after_long_help = format!("{SERVE_EXAMPLES}\n{EXIT_CODES}"))]
    Serve(Box<ServeFlags>),
    /// Show which server serves what, as a running instance on this host knows it
    ///
    /// Asks the instance's status port. A server that is not ready gets no requests; one that is gone left less than a minute ago.
    #[command(after_help = ROUTES_EXAMPLES)]
    Routes(RoutesFlags),
    /// Tell what would become of a request, and why
    ///
    /// Asks the instance's status port, which asks the function that routes. Nothing is sent to an apiserver.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainFlags),
    /// Tell which versions there are in the cluster, and whether Kubernetes supports them together
    ///
    /// Versions of apiservers, and what they serve differently, come from the status port of the instance on this host; those of kubelets and
    /// kube-proxies from Node and Pod objects. What may not be read is unknown.
    #[command(after_help = SKEW_EXAMPLES)]
    Skew(SkewFlags),
    /// Show what the proxy does, with simulated apiservers on this machine, and upgrade them
    ///
    /// Starts three simulated kube-apiservers that serve different resources, and an mvproxy in front of each, which learns from them who
    /// serves what. Sends requests through them, and prints who answered and how much time mvproxy added (measured here and now). Then
    /// upgrades the servers one by one while requests go on, and tells of each step. Takes less than 20 s. Touches nothing outside 127.0.0.1
    /// and one directory for temporary files, which it removes.
    #[command(after_help = EXIT_CODES, after_long_help = format!("{DEMO_EXAMPLES}\n{EXIT_CODES}"))]
    Demo(DemoFlags),
}

/// The flags of `mvproxy serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeFlags {
    /// A file with flags, in YAML; what is on the command line wins, of feature gates each for itself
    ///
    /// It begins with `apiVersion: mvproxy.io/v1alpha1` and `kind: ProxyConfiguration`. Its keys are the flags in lowerCamelCase, such as
    /// `securePort: 6443`. It is read once, at start.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The address clients connect to [default: the address of the default route's interface]
    ///
    /// Not 0.0.0.0 by default, as kube-apiserver has it: the kube-apiserver behind the proxy listens on 127.0.0.1 with the same
    /// port, and beside that the port cannot be bound on all addresses. The port has to be the same on both, because the
    /// `kubernetes` Service is made of the apiserver's own port: with another one every pod would bypass the proxy.
    #[arg(long, value_name = "IP", value_parser = ip, help_heading = SERVING)]
    pub(crate) bind_address: Option<IpAddr>,

    /// The port clients connect to; 0 takes any free one
    #[arg(long, value_name = "PORT", value_parser = port, default_value = "6443", help_heading = SERVING)]
    pub(crate) secure_port: u16,

    /// The certificate shown to clients, in PEM form, intermediate ones after it
    #[arg(long, value_name = "FILE", help_heading = SERVING)]
    pub(crate) tls_cert_file: PathBuf,

    /// The private key of --tls-cert-file, in PEM form, not encrypted
    #[arg(long, value_name = "FILE", help_heading = SERVING)]
    pub(crate) tls_private_key_file: PathBuf,

    /// A further certificate with its key, for clients that ask for one of the names; may be given more than once
    ///
    /// The names follow a colon: cert.pem,key.pem:example.com,*.example.org. Without them those in the certificate count. The first pair that
    /// fits is taken; a client that names no server is matched by the address it came to; --tls-cert-file is for all others.
    #[arg(long, value_name = "CERT,KEY[:NAME,...]", value_parser = sni_files, help_heading = SERVING)]
    pub(crate) tls_sni_cert_key: Vec<SniFiles>,

    /// Requests a client may have running on one connection: 1 to 10000
    ///
    /// kube-apiserver's own default; each may hold 64 KiB of request body.
    #[arg(long, value_name = "N", value_parser = max_streams, default_value = "100", help_heading = SERVING)]
    pub(crate) http2_max_streams_per_connection: u32,

    /// Which server serves which resources, and which one is local; an example is below
    ///
    /// Instead of --kubeconfig: nothing is asked of the cluster then. It is read once, at start.
    #[arg(long, value_name = "FILE", help_heading = SERVERS)]
    pub(crate) static_routes: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) peers: PeerFlags,

    /// The authorities that sign the certificates of peers (the other apiservers), in PEM form
    ///
    /// Every server must have a certificate for the name kubernetes.default.svc, as all kube-apiservers do; its address does not matter.
    #[arg(long, value_name = "FILE", help_heading = SERVERS)]
    pub(crate) peer_ca_file: PathBuf,

    /// The authorities that sign the certificate of the local apiserver, in PEM form [default: --peer-ca-file]
    #[arg(long, value_name = "FILE", help_heading = SERVERS)]
    pub(crate) local_ca_file: Option<PathBuf>,

    /// The front-proxy certificate, shown to the peer ports of other proxies
    ///
    /// Without it they are not connected to, and their apiservers are reached at their own addresses. Clients are not asked for
    /// certificates yet, and tokens pass through as they are.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file", help_heading = SERVERS)]
    pub(crate) proxy_client_cert_file: Option<PathBuf>,

    /// The private key of --proxy-client-cert-file
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file", help_heading = SERVERS)]
    pub(crate) proxy_client_key_file: Option<PathBuf>,

    /// How many shards (threads with connections of their own): 1 to 128 [default: 4, or fewer]
    ///
    /// The default is one for each CPU of --cpu-list; without that the least of 4, the CPUs of the affinity mask, and the whole CPUs of the
    /// cgroup's quota. One shard carries 50,000 requests a second and more, and each opens its own connections to every server, so
    /// more is not better. Shards beyond the number of CPUs are not pinned.
    #[arg(long, value_name = "N", value_parser = shards, help_heading = RESOURCES)]
    pub(crate) shards: Option<usize>,

    /// The CPUs that shards are pinned to, in this order, such as 0-3,6 [default: the affinity mask]
    #[arg(long, value_name = "LIST", help_heading = RESOURCES)]
    pub(crate) cpu_list: Option<String>,

    /// The kernel interface that moves bytes: auto, io_uring or epoll
    ///
    /// `auto` takes io_uring with the best options the kernel has (6.1 and later have them all), else epoll; -v says which. `io_uring` is an
    /// error where the kernel or a seccomp profile refuses it.
    #[arg(long, value_name = "DRIVER", value_parser = io_driver(), default_value = "auto", hide_possible_values = true, help_heading = RESOURCES)]
    pub(crate) io_driver: IoDriver,

    /// The port for health, metrics and `mvproxy routes`, plain HTTP on 127.0.0.1; 0 is none
    ///
    /// /livez and /readyz (?verbose says which checks fail, and why), /metrics (Prometheus), /routes and /explain (JSON).
    #[arg(long, value_name = "PORT", value_parser = port, default_value_t = DEFAULT_PORT, help_heading = WATCHING)]
    pub(crate) status_port: u16,

    /// The form of log lines, which go to stderr: text or json, both as kube-apiserver has them
    #[arg(long, value_name = "FORM", value_parser = logging_format(), default_value = "text", hide_possible_values = true, help_heading = WATCHING)]
    pub(crate) logging_format: Format,

    /// Say more on stderr: -v what it runs on, -vv also counters every 10 seconds
    #[arg(short, action = clap::ArgAction::Count, help_heading = WATCHING)]
    pub(crate) verbose: u8,
}

/// A certificate, its key, and the names it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SniFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) names: Vec<String>,
}

/// The flags of `mvproxy demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoFlags {
    /// End after the upgrade, with exit code 1 if an answer was wrong
    #[arg(long)]
    pub(crate) once: bool,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// To do this.
    Command(Command),
    /// Help or the version, which has been printed.
    Printed,
}

/// For the hint where help is.
const COMMANDS: [&str; 5] = ["serve", "routes", "explain", "skew", "demo"];

/// Reads the command line; the first argument is the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Parsed, Failure> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let config = file::named(&arguments);
    if let Some(path) = &config
        && let Some(serve) = Cli::command().find_subcommand("serve")
    {
        file::merge(&mut arguments, path, serve)?;
    }
    let error = match Cli::try_parse_from(&arguments) {
        Ok(cli) => return Ok(Parsed::Command(cli.command)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe (`mvproxy --help | head`) is nobody's failure.
            error.print().ok();
            Ok(Parsed::Printed)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Err(Failure::usage("no command: use `mvproxy serve`, `routes`, `explain`, `skew` or `demo`; see 'mvproxy --help'"))
        }
        _ => {
            let command = arguments.get(1).and_then(|name| name.to_str()).filter(|name| COMMANDS.contains(name));
            let command = command.map_or_else(String::new, |name| format!(" {name}"));
            let file = config.map_or_else(String::new, |path| format!("; flags also come from {}", path.display()));
            Err(Failure::usage(format_args!("{}{file}; see 'mvproxy{command} --help'", reduce(&error.to_string()))))
        }
    }
}

/// The cause and the tip of clap's message, which has several lines, in one.
fn reduce(message: &str) -> String {
    let lines = message.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let mut reduced = String::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let separator = match reduced.chars().last() {
            None => "",
            Some(':') => " ",
            _ if line.starts_with("--") => ", ",
            _ if line.starts_with('[') => " ",
            _ => "; ",
        };
        reduced += separator;
        reduced += line;
    }
    reduced
}

fn ip(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "not an IP address: write one such as 10.0.0.5 or fd00::5 (names are not looked up)")
}

fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "not a port: write a number from 0 to 65535")
}

fn sni_files(text: &str) -> Result<SniFiles, &'static str> {
    let wrong = "not a pair: write CERT,KEY or CERT,KEY:NAME,NAME";
    let (files, names) = text.split_once(':').map_or((text, None), |(files, names)| (files, Some(names)));
    let (cert, key) = files.split_once(',').filter(|(cert, key)| !cert.is_empty() && !key.is_empty() && !key.contains(',')).ok_or(wrong)?;
    let names: Vec<String> = names.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().into()).collect();
    if names.iter().any(String::is_empty) {
        return Err(wrong);
    }
    Ok(SniFiles { cert: cert.into(), key: key.into(), names })
}

fn max_streams(text: &str) -> Result<u32, &'static str> {
    let range = 1..=10_000;
    text.parse().ok().filter(|count| range.contains(count)).ok_or("not a number of streams: write one from 1 to 10000")
}

fn shards(text: &str) -> Result<usize, String> {
    let range = 1..=engine::cpus::SHARDS_MAX;
    let bad = || format!("not a number of shards: write one from 1 to {}", engine::cpus::SHARDS_MAX);
    text.parse().ok().filter(|count| range.contains(count)).ok_or_else(bad)
}

fn logging_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(["text", "json"]).map(|name| if name == "json" { Format::Json } else { Format::Text })
}

fn io_driver() -> impl TypedValueParser<Value = IoDriver> {
    PossibleValuesParser::new(["auto", "io_uring", "epoll"]).map(|name| match &*name {
        "io_uring" => IoDriver::IoUring,
        "epoll" => IoDriver::Epoll,
        _ => IoDriver::Auto,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: &str = "--tls-cert-file c --tls-private-key-file k --peer-ca-file p --static-routes r";

    fn read(line: &str) -> Result<Parsed, Failure> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn flags(line: &str) -> ServeFlags {
        match read(&format!("mvproxy serve {REQUIRED} {line}")).unwrap() {
            Parsed::Command(Command::Serve(flags)) => *flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clap_accepts_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_kube_apiserver() {
        let flags = flags("");
        assert_eq!((flags.bind_address, flags.secure_port, flags.http2_max_streams_per_connection), (None, 6443, 100));
        assert_eq!((flags.shards, flags.status_port, flags.verbose, flags.io_driver), (None, 6446, 0, IoDriver::Auto));
        assert_eq!((flags.peers.peer_port, &flags.peers.peer_ports[..]), (6445, &[6443, 6445][..]));
    }

    #[test]
    fn values_come_with_or_without_an_equals_sign() {
        for line in [
            "--bind-address ::1 --secure-port 1 --shards 2 -vv --io-driver io_uring",
            "--bind-address=::1 --secure-port=1 --shards=2 -v -v --io-driver=io_uring",
        ] {
            let flags = flags(line);
            assert_eq!((flags.bind_address, flags.secure_port), (Some("::1".parse().unwrap()), 1), "{line}");
            assert_eq!((flags.shards, flags.verbose, flags.io_driver), (Some(2), 2, IoDriver::IoUring), "{line}");
        }
    }

    /// Those of the KEP "Mixed Version Proxy" (4020), so that they can be taken over from a kube-apiserver as they are.
    #[test]
    fn the_flags_of_the_kep_are_taken() {
        let block = "--feature-gates=UnknownVersionInteroperabilityProxy=true \
            --proxy-client-cert-file=/pki/front-proxy-client.crt --proxy-client-key-file=/pki/front-proxy-client.key \
            --requestheader-client-ca-file=/pki/front-proxy-ca.crt --requestheader-allowed-names= --peer-advertise-port=7443";
        for address in ["--peer-advertise-ip=10.0.0.5", "--peer-advertise-address=10.0.0.5"] {
            let flags = flags(&format!("{block} {address}"));
            let peers = &flags.peers;
            assert_eq!((peers.is_on(), peers.unknown_gates().count()), (true, 0));
            assert_eq!(flags.peer_ca_file, PathBuf::from("p"));
            assert_eq!(flags.proxy_client_cert_file, Some("/pki/front-proxy-client.crt".into()));
            assert_eq!(flags.proxy_client_key_file, Some("/pki/front-proxy-client.key".into()));
            assert_eq!(peers.requestheader_client_ca_file, Some("/pki/front-proxy-ca.crt".into()));
            assert_eq!(peers.allowed_names(), Vec::<String>::new(), "blank: any");
            assert_eq!((peers.peer_advertise_ip, peers.peer_advertise_port), (Some(IpAddr::from([10, 0, 0, 5])), Some(7443)), "{address}");
        }
        assert_eq!(flags("--requestheader-allowed-names=a,b").peers.allowed_names(), ["a", "b"]);
        assert!(!flags("--feature-gates=UnknownVersionInteroperabilityProxy=false").peers.is_on());
    }

    #[test]
    fn a_pair_may_have_names() {
        let pair = |names: &[&str]| SniFiles { cert: "c".into(), key: "k".into(), names: names.iter().map(|&name| name.into()).collect() };
        let flags = flags("--tls-sni-cert-key c,k --tls-sni-cert-key=c,k:a.example,*.b.example,10.0.0.1");
        assert_eq!(flags.tls_sni_cert_key, [pair(&[]), pair(&["a.example", "*.b.example", "10.0.0.1"])]);
        for wrong in ["c", "c,", ",k", "c,k,x", "c,k:", "c,k:a,,b"] {
            assert_eq!(sni_files(wrong), Err("not a pair: write CERT,KEY or CERT,KEY:NAME,NAME"), "{wrong}");
        }
    }

    #[test]
    fn errors_are_one_line_with_the_fix() {
        for (line, expected) in [
            ("mvproxy", "no command: use `mvproxy serve`"),
            ("mvproxy serv", "unrecognized subcommand 'serv'; tip: a similar subcommand exists: 'serve'; see 'mvproxy --help'"),
            ("mvproxy demo --twice", "unexpected argument '--twice' found"),
            (
                "mvproxy serve --tls-cert-file c",
                "the following required arguments were not provided: --tls-private-key-file <FILE>, --peer-ca-file",
            ),
            (
                "mvproxy serve --secure-port x",
                "invalid value 'x' for '--secure-port <PORT>': not a port: write a number from 0 to 65535; see 'mvproxy serve --help'",
            ),
            ("mvproxy serve --secure-port 65536", "invalid value '65536' for '--secure-port <PORT>': not a port"),
            ("mvproxy serve --bind-address localhost", "invalid value 'localhost' for '--bind-address <IP>': not an IP address"),
            ("mvproxy serve --shards 0", "invalid value '0' for '--shards <N>': not a number of shards"),
            ("mvproxy serve --http2-max-streams-per-connection 0", "invalid value '0'"),
            (
                "mvproxy serve --io-driver kqueue",
                "invalid value 'kqueue' for '--io-driver <DRIVER>' [possible values: auto, io_uring, epoll]",
            ),
            (
                "mvproxy serve --bind-adress 1.1.1.1",
                "unexpected argument '--bind-adress' found; tip: a similar argument exists: '--bind-address'",
            ),
            ("mvproxy serve --peer-ca-file a --peer-ca-file b", "the argument '--peer-ca-file <FILE>' cannot be used multiple times"),
            ("mvproxy serve --proxy-client-key-file k", "the following required arguments were not provided: --"),
        ] {
            let failure = read(line).unwrap_err();
            let text = failure.to_string();
            assert!(matches!(failure, Failure::Usage(_)), "{line}");
            assert!(text.starts_with(&format!("mvproxy: error: {expected}")), "{line}:\n{text}");
            assert!(!text.contains('\n') && text.contains("--help'"), "{line}:\n{text}");
        }
    }
}
