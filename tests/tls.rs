//! Certificates and handshakes: T4 to T6 and T8 of threats.md, and a process that runs out of files.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadgen::client::Watch;
use loadgen::{Client, KeyPairPem, Pki, Twin, TwinConfig};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use support::binary::{Binary, Files};
use support::{IoDriver, NAME, TOKEN, World, apis, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

on_both_drivers!(t6_half_handshakes_are_ended_and_nobody_waits_for_them, t6_a_client_hello_byte_by_byte);

const LIMIT: Duration = Duration::from_secs(10);
const SHORT: &str = "/api/v1/namespaces/default/pods";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// A twin, and the files of a proxy in front of it.
fn twin(pki: &Pki) -> (Twin, Files) {
    let twin = Twin::start(TwinConfig::new("cp-a", pki.serving().unwrap(), apis::everywhere())).unwrap();
    let files = Files::new(pki, &[(&twin, "cp-a", &apis::everywhere())]);
    (twin, files)
}

/// The certificate that a client who asks for `name` (or none) is shown.
async fn shown(address: SocketAddr, pki: &Pki, name: Option<&str>) -> Vec<u8> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let verifier = Arc::new(AnyName(rustls::client::WebPkiServerVerifier::builder(Arc::new(roots)).build().unwrap()));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.enable_sni = name.is_some();
    let asked = ServerName::try_from(name.unwrap_or(NAME).to_owned()).unwrap();
    let tcp = TcpStream::connect(address).await.unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(asked, tcp).await.unwrap();
    tls.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(pair: &KeyPairPem) -> Vec<u8> {
    CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap().to_vec()
}

/// Checks the chain and the signature, not the name: which name is shown is what the test is about.
#[derive(Debug)]
struct AnyName(Arc<rustls::client::WebPkiServerVerifier>);

impl rustls::client::danger::ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(leaf, others, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
            )) => Ok(rustls::client::danger::ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_the_certificate_fits_the_name_or_the_address() {
    let pki = Pki::new().unwrap();
    let (_twin, files) = twin(&pki);
    let default = KeyPairPem { cert: std::fs::read_to_string(files.path("serving.crt")).unwrap(), key: String::new() };
    let (by_wildcard, by_flag, by_san, by_address) = (
        pki.serving_for(&["*.wide.example", "*.wild.example", "flag.example"]).unwrap(),
        pki.serving_for(&["elsewhere.example"]).unwrap(),
        pki.serving_for(&["san.example", "one.wide.example", "*.wild.example"]).unwrap(),
        pki.serving_for(&["127.0.0.2"]).unwrap(),
    );
    for (name, pair) in [("wildcard", &by_wildcard), ("flag", &by_flag), ("san", &by_san), ("address", &by_address)] {
        files.pair(name, pair);
    }
    let mut command = files.command();
    let pair = |name: &str| format!("{},{}", files.path(&format!("{name}.crt")).display(), files.path(&format!("{name}.key")).display());
    command.arg(format!("--tls-sni-cert-key={}", pair("wildcard")));
    command.arg(format!("--tls-sni-cert-key={}:flag.example,*.flags.example", pair("flag")));
    command.arg(format!("--tls-sni-cert-key={}", pair("san")));
    command.arg(format!("--tls-sni-cert-key={}", pair("address")));
    command.arg("--bind-address=0.0.0.0");
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).filter(|flag| flag != "--bind-address=127.0.0.1").collect();
    let mut on_all = Command::new(command.get_program());
    on_all.args(arguments).stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let proxy = files.start(on_all);
    let at = |ip: [u8; 4]| SocketAddr::from((ip, proxy.address().port()));
    let (home, second) = (at([127, 0, 0, 1]), at([127, 0, 0, 2]));
    for (address, name, expected) in [
        (home, Some("flag.example"), &by_flag),
        (home, Some("FLAG.example"), &by_flag),
        (home, Some("a.flags.example"), &by_flag),
        (home, Some("a.b.flags.example"), &default),
        // The names of the flag count, not those in the certificate.
        (home, Some("elsewhere.example"), &default),
        (home, Some("san.example"), &by_san),
        (home, Some("unknown.example"), &default),
        // A name beats a wildcard of an earlier pair, and a name of the flag the same name in a certificate; the first wildcard wins.
        (home, Some("other.wide.example"), &by_wildcard),
        (home, Some("one.wide.example"), &by_san),
        (home, Some("x.wild.example"), &by_wildcard),
        (home, Some("localhost"), &default),
        (home, None, &default),
        (second, None, &by_address),
        (second, Some("san.example"), &by_san),
        // A name that nobody has, at an address that somebody has: as kube-apiserver, which looks at the address only without a name.
        (second, Some("unknown.example"), &default),
    ] {
        assert_eq!(shown(address, &pki, name).await, der(expected), "{address} {name:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_versions_protocols_and_no_renegotiation() {
    let world = World::on(IoDriver::Auto).local("cp-a", apis::everywhere()).start();
    let openssl = |arguments: &[&str], input: &'static str| {
        let mut command = Command::new(support::tools::program("openssl", "openssl"));
        command.args(["s_client", "-connect", &world.address().to_string()]).args(arguments);
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            stdin.write_all(input.as_bytes()).ok();
            // openssl ends at the end of its input; what it asked for has to come first.
            std::thread::sleep(Duration::from_millis(300));
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let legacy = ["-cipher", "DEFAULT@SECLEVEL=0"];
    for old in ["-tls1", "-tls1_1"] {
        let text = openssl(&[&[old], &legacy[..]].concat(), "");
        assert!(text.contains("alert protocol version") || text.contains("alert handshake failure"), "{old}: {text}");
    }
    for (version, protocol) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        for (offered, expected) in [("h2,http/1.1", "ALPN protocol: h2"), ("http/1.1,h2", "ALPN protocol: h2"), ("http/1.1", "http/1.1")] {
            let text = openssl(&[version, "-alpn", offered], "");
            assert!(text.contains(protocol) && text.contains(expected), "{version} {offered}: {text}");
        }
        // Nobody is asked for a certificate, as long as none would mean anything.
        let text = openssl(&[version], "");
        assert!(
            text.contains("No client certificate CA names sent") && !text.contains("Acceptable client certificate"),
            "{version}: {text}"
        );
        // Without ALPN it is HTTP/1.1.
        let text = openssl(&[version, "-quiet"], "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(text.contains("HTTP/1.1 200 OK"), "{version}: {text}");
    }
    // `R` asks for a renegotiation.
    let text = openssl(&["-tls1_2", "-legacy_renegotiation"], "R\n");
    assert!(text.contains("RENEGOTIATING") && text.contains("no renegotiation"), "{text}");
    // A protocol that we do not speak.
    let text = openssl(&["-alpn", "spdy/3"], "");
    assert!(text.contains("no application protocol"), "{text}");
}

async fn t6_half_handshakes_are_ended_and_nobody_waits_for_them(driver: IoDriver) {
    let short = Duration::from_secs(2);
    let world = World::on(driver).local("cp-a", apis::everywhere()).limits(|limits| limits.client_handshake = short).start();
    let (client, began) = (world.client().await, Instant::now());
    let mut stalled = Vec::new();
    for nth in 0..1_000 {
        let mut tcp = TcpStream::connect(world.address()).await.unwrap();
        // Nothing, half a record head, half a ClientHello.
        tcp.write_all([&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"][nth % 3]).await.unwrap();
        stalled.push(tcp);
    }
    let asked = Instant::now();
    assert_eq!(client.get(SHORT).await.unwrap().status, 200);
    assert_eq!(world.client().await.get(SHORT).await.unwrap().status, 200);
    // While all handshakes are young a newcomer may wait for a second, as behind a herd of honest ones.
    assert!(asked.elapsed() < short, "{:?}", asked.elapsed());
    for mut tcp in stalled {
        let mut rest = Vec::new();
        // A reset is an end as good as any.
        timeout(LIMIT, tcp.read_to_end(&mut rest)).await.unwrap().ok();
    }
    assert!(began.elapsed() >= short, "not before their time");
    assert_eq!(client.get(SHORT).await.unwrap().status, 200);
    eventually("only the two clients are left", LIMIT, || world.engine().connections()[0] <= 2).await;
}

async fn t6_a_client_hello_byte_by_byte(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let tcp = TcpStream::connect(world.address()).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut from_client, mut to_client) = tokio::io::split(far);
    let (mut from_proxy, mut to_proxy) = tcp.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_proxy, &mut to_client).await });
    tokio::spawn(async move {
        let mut byte = [0];
        while from_client.read_exact(&mut byte).await.is_ok() && to_proxy.write_all(&byte).await.is_ok() {}
    });
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(world.pki().ca_pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let mut config = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Records of 64 bytes: the ClientHello itself comes in pieces.
    config.max_fragment_size = Some(64);
    let connecting = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), near);
    let mut tls = timeout(LIMIT, connecting).await.unwrap().unwrap();
    tls.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, tls.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

/// Watches and requests that go on while certificates change.
struct Busy {
    watches: Vec<Watch>,
    asking: tokio::task::JoinHandle<usize>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Busy {
    async fn new(proxy: &Binary, pki: &Pki, watches: usize) -> Self {
        let mut client = Client::connect(proxy.address(), pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        let mut opened = Vec::new();
        for nth in 0..watches {
            if nth % 50 == 0 {
                client = Client::connect(proxy.address(), pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
            }
            let mut watch = client.watch(WATCH).await.unwrap();
            assert!(timeout(LIMIT, watch.next_event()).await.unwrap().unwrap().is_some());
            opened.push(watch);
        }
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (stopped, mut asked) = (stop.clone(), 0);
        let asking = tokio::spawn(async move {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(client.get(SHORT).await.unwrap().status, 200);
                asked += 1;
            }
            asked
        });
        Self { watches: opened, asking, stop }
    }

    /// Every watch still gets events, and no request failed.
    async fn end(self, twin: &Twin, pki: &Pki) -> usize {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let asked = timeout(LIMIT, self.asking).await.unwrap().unwrap();
        let direct = Client::connect(twin.address(), pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        let object = bytes::Bytes::from_static(br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"last"}}"#);
        let sent = support::headers([("content-type", "application/json")]);
        let made = direct.request(http::Method::POST, "/api/v1/namespaces/default/configmaps", sent, object, None).await.unwrap();
        assert_eq!(made.status, 201);
        for mut watch in self.watches {
            loop {
                let event = timeout(LIMIT, watch.next_event()).await.unwrap().unwrap().unwrap();
                if event["object"]["metadata"]["name"] == "last" {
                    break;
                }
            }
        }
        asked
    }
}

/// How the three kinds of rotation that are met in the field write a pair.
fn rotate(proxy: &Binary, pair: &KeyPairPem, nth: usize) {
    let (cert, key) = (proxy.path("serving.crt"), proxy.path("serving.key"));
    match nth % 3 {
        // In place, the key first; a reader may see a half.
        0 => {
            std::fs::write(&key, &pair.key).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(&cert, &pair.cert).unwrap();
        }
        // Renamed over.
        1 => {
            for (path, text) in [(&cert, &pair.cert), (&key, &pair.key)] {
                let new = path.with_extension("new");
                std::fs::write(&new, text).unwrap();
                std::fs::rename(new, path).unwrap();
            }
        }
        // Links into a directory that is swapped as a whole, as a kubelet mounts secrets.
        _ => {
            let home = cert.parent().unwrap();
            let folder = home.join(format!("data-{nth}"));
            pair.write(&folder, "tls").unwrap();
            for (path, name) in [(&cert, "tls.crt"), (&key, "tls.key")] {
                let link = path.with_extension("link");
                std::os::unix::fs::symlink(folder.join(name), &link).unwrap();
                std::fs::rename(link, path).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_rotations_drop_nothing_and_are_served_at_once() {
    let rotations = if support::is_long() { 100 } else { 9 };
    let pki = Pki::new().unwrap();
    let (twin, files) = twin(&pki);
    let proxy = files.start_plain();
    let busy = Busy::new(&proxy, &pki, 200).await;
    let mut slowest = Duration::ZERO;
    for nth in 0..rotations {
        let pair = pki.serving().unwrap();
        rotate(&proxy, &pair, nth);
        let (written, expected) = (Instant::now(), der(&pair));
        while shown(proxy.address(), &pki, Some(NAME)).await != expected {
            assert!(written.elapsed() < Duration::from_secs(5), "rotation {nth} is not served:\n{}", proxy.log());
            sleep(Duration::from_millis(10)).await;
        }
        slowest = slowest.max(written.elapsed());
        if nth % 3 == 0 {
            // The authority's file changes too: connections to servers are replaced, and nobody notices.
            let ca = proxy.path("ca.crt");
            let text = std::fs::read_to_string(&ca).unwrap();
            std::fs::write(&ca, format!("{text}# rotation {nth}\n")).unwrap();
        }
    }
    proxy.wait_for_log("reloaded --peer-ca-file", LIMIT);
    let asked = busy.end(&twin, &pki).await;
    println!("{rotations} rotations, each served within {slowest:?}, beside 200 watches and {asked} requests");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_a_broken_pair_is_ignored_with_a_line_in_the_log() {
    let pki = Pki::new().unwrap();
    let (_twin, files) = twin(&pki);
    let proxy = files.start_plain();
    let before = shown(proxy.address(), &pki, Some(NAME)).await;
    let (cert, key) = (proxy.path("serving.crt"), proxy.path("serving.key"));
    let next = pki.serving().unwrap();
    for (what, broken_cert, expected) in [
        ("another certificate", next.cert.as_str(), "the private key does not match the certificate"),
        ("cut short", &next.cert[..next.cert.len() / 2], "not valid pem"),
        ("empty", "", "no certificate in it"),
    ] {
        std::fs::write(&cert, broken_cert).unwrap();
        let line = proxy.wait_for_log(expected, LIMIT);
        assert!(line.contains("--tls-") && line.contains("keeping what was loaded before"), "{what}: {line}");
        assert_eq!(shown(proxy.address(), &pki, Some(NAME)).await, before, "{what}");
    }
    std::fs::remove_file(&cert).unwrap();
    let line = proxy.wait_for_log("cannot be read", LIMIT);
    assert!(line.contains("--tls-cert-file"), "{line}");
    assert_eq!(shown(proxy.address(), &pki, Some(NAME)).await, before, "gone");
    // Said once, not four times a second.
    sleep(Duration::from_millis(800)).await;
    assert_eq!(proxy.log().matches("cannot be read").count(), 1, "{}", proxy.log());
    std::fs::write(&key, &next.key).unwrap();
    std::fs::write(&cert, &next.cert).unwrap();
    proxy.wait_for_log("reloaded --tls-cert-file", LIMIT);
    assert_eq!(shown(proxy.address(), &pki, Some(NAME)).await, der(&next));
}

/// The pair of another name is broken, and stays so: the default one is rotated all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_one_broken_pair_holds_up_no_other() {
    let pki = Pki::new().unwrap();
    let (_twin, files) = twin(&pki);
    let other = pki.serving_for(&["other.example"]).unwrap();
    files.pair("other", &other);
    let mut command = files.command();
    command.arg(format!("--tls-sni-cert-key={},{}", files.path("other.crt").display(), files.path("other.key").display()));
    let proxy = files.start(command);
    std::fs::write(proxy.path("other.crt"), "not a certificate").unwrap();
    proxy.wait_for_log("--tls-sni-cert-key", LIMIT);
    let next = pki.serving().unwrap();
    std::fs::write(proxy.path("serving.key"), &next.key).unwrap();
    std::fs::write(proxy.path("serving.crt"), &next.cert).unwrap();
    proxy.wait_for_log("reloaded --tls-cert-file", LIMIT);
    assert_eq!(shown(proxy.address(), &pki, Some(NAME)).await, der(&next));
    assert_eq!(shown(proxy.address(), &pki, Some("other.example")).await, der(&other));
}

/// A local server and a peer, each with an authority of its own.
struct Cluster {
    proxy: Binary,
    client: Client,
    local: Option<Twin>,
    peer: Option<Twin>,
}

impl Cluster {
    async fn new() -> Self {
        let (local_ca, peer_ca) = (Pki::new().unwrap(), Pki::new().unwrap());
        let local = Twin::start(TwinConfig::new("cp-a", local_ca.serving().unwrap(), apis::everywhere())).unwrap();
        let peer = Twin::start(TwinConfig::new("cp-b", peer_ca.serving().unwrap(), apis::batch())).unwrap();
        let files = Files::new(&peer_ca, &[(&local, "cp-a", &apis::everywhere()), (&peer, "cp-b", &apis::batch())]);
        std::fs::write(files.path("local-ca.crt"), local_ca.ca_pem()).unwrap();
        let mut command = files.command();
        command.arg(format!("--local-ca-file={}", files.path("local-ca.crt").display()));
        let proxy = files.start(command);
        let client = Client::connect(proxy.address(), peer_ca.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        Self { proxy, client, local: Some(local), peer: Some(peer) }
    }

    async fn status(&self, path: &str) -> u16 {
        self.client.get(path).await.unwrap().status.as_u16()
    }

    /// Connections are replaced behind the clients' backs: not at once.
    async fn becomes(&self, path: &str, status: u16) {
        let began = Instant::now();
        while self.status(path).await != status {
            assert!(began.elapsed() < LIMIT, "{path} is not {status}:\n{}", self.proxy.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The server of `path` is started again at its address, with another certificate.
    async fn restart(&mut self, path: &str, serving: KeyPairPem) {
        let (twin, id, serves) =
            if path == JOBS { (&mut self.peer, "cp-b", apis::batch()) } else { (&mut self.local, "cp-a", apis::everywhere()) };
        let old = twin.take().unwrap();
        let port = old.address().port();
        old.abort().await;
        *twin = Some(Twin::start(TwinConfig { port, ..TwinConfig::new(id, serving, serves) }).unwrap());
    }
}

/// The authority of one kind of server is replaced, then its file broken; the other kind sees nothing of it.
async fn authority_is_replaced(flag: &str, file: &str, path: &str, other: &str) {
    let mut cluster = Cluster::new().await;
    let next = Pki::new().unwrap();
    assert_eq!((cluster.status(path).await, cluster.status(other).await), (200, 200));

    std::fs::write(cluster.proxy.path(file), next.ca_pem()).unwrap();
    cluster.proxy.wait_for_log(&format!("reloaded {flag}"), LIMIT);
    cluster.becomes(path, 503).await;
    assert_eq!(cluster.status(other).await, 200, "{other} has another authority");

    cluster.restart(path, next.serving().unwrap()).await;
    cluster.becomes(path, 200).await;

    std::fs::write(cluster.proxy.path(file), "not a certificate").unwrap();
    let line = cluster.proxy.wait_for_log("keeping what was loaded before", LIMIT);
    assert!(line.contains(flag), "{line}");
    cluster.restart(path, next.serving().unwrap()).await;
    cluster.becomes(path, 200).await;
    assert_eq!(cluster.status(other).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_the_local_authority_is_replaced() {
    authority_is_replaced("--local-ca-file", "local-ca.crt", SHORT, JOBS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_the_authority_of_peers_is_replaced() {
    authority_is_replaced("--peer-ca-file", "ca.crt", JOBS, SHORT).await;
}

/// 256 files, 1,000 clients: those who have a connection go on, the others wait without costing anything, and get in when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_files_with_io_uring() {
    out_of_files("--io-driver=io_uring").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_files_with_epoll() {
    out_of_files("--io-driver=epoll").await;
}

async fn out_of_files(driver: &str) {
    let pki = Pki::new().unwrap();
    let (_twin, files) = twin(&pki);
    let serve = files.command();
    let mut command = Command::new(support::tools::program("prlimit", "util-linux"));
    command.arg("--nofile=256").arg(serve.get_program()).args(serve.get_args()).arg(driver);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let proxy = files.start(command);
    let client = Client::connect(proxy.address(), pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
    assert_eq!(client.get(SHORT).await.unwrap().status, 200);
    let mut crowd = Vec::new();
    for _ in 0..1_000 {
        crowd.push(TcpStream::connect(proxy.address()).await.unwrap());
    }
    sleep(Duration::from_millis(500)).await;
    assert!(proxy.files() <= 256 - 64, "{} files", proxy.files());
    let (before, began) = (proxy.ticks(), Instant::now());
    sleep(Duration::from_secs(2)).await;
    let busy = (proxy.ticks() - before) as f64 * 0.01 / began.elapsed().as_secs_f64();
    println!("{} of 256 files open, {:.1} % of a CPU", proxy.files(), busy * 100.0);
    assert!(busy < 0.05, "{busy}");
    assert_eq!(client.get(SHORT).await.unwrap().status, 200, "who is in is served");
    let mut watch = client.watch(WATCH).await.unwrap();
    assert!(watch.next_event().await.unwrap().is_some(), "there are files for connections to servers");
    drop(crowd);
    let freed = Instant::now();
    let newcomer = timeout(LIMIT, Client::connect(proxy.address(), pki.ca_pem(), NAME, Some(TOKEN))).await.unwrap().unwrap();
    assert_eq!(newcomer.get(SHORT).await.unwrap().status, 200);
    let waited = freed.elapsed();
    println!("in {waited:?} after there is room again");
    assert!(waited < Duration::from_secs(1), "{waited:?}");
}
