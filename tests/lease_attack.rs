//! Whoever may write Leases cannot make the proxy connect to what is not on its allow-list (threats.md §5; bar 9 of the issue "Discovery
//! and routing"): forged Leases of servers and of proxies, on a real kube-apiserver, and every SYN of the machine counted. What could send
//! no SYN anyway (multicast, broadcast, link-local IPv6 without a link) is looked for in the proxy's own list of servers. Where it may
//! connect to, and nobody answers rightly, it does so once a second, however often the Lease changes.
//!
//! The allow-list is one of the command line, or the one that holds when none is given: the subnet of this machine and the EndpointSlice.
//!
//! SYNs are seen with CAP_NET_RAW; `MVPROXY_NO_RAW=1` does without, and counts only what arrives.
//!
//! `MVPROXY_LONG=1` forges a thousand times in each attack; else a few hundred times.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use serde_json::{Value, json};
use support::http1::get_plain;
use support::real::{ADMIN, Apiserver, ControlPlane, Proxy, Version, alone, own_ip};
use support::syns::{Syns, Trap};
use support::{eventually, headers, is_long, notice, until};
use tokio::time::sleep;

const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
const PROXY: (&str, &str) = ("mvproxy.io/identity", "peer");
const ADVERTISED: &str = "kubernetes.io/peer-advertise-address";
/// How often a round writes the one Lease whose connections are counted.
const CHANGES: usize = 30;
/// What may be beyond once a second: at the begin, and because clocks differ.
const DIALS_MORE: u64 = 2;

/// Leases that are together more than 128 MiB of JSON.
const FAT: usize = 20;

/// How many Leases are forged at least; each round is some 190.
fn least() -> usize {
    if is_long() { 1_000 } else { 250 }
}

/// The name of the nth Lease of a server that does not exist, `nth < 676`: it has the form of a real one.
fn id(nth: usize) -> String {
    let digit = |place: u32| char::from(b'a' + u8::try_from(nth / 26_usize.pow(place) % 26).unwrap());
    format!("apiserver-{}{}{}", "forged".repeat(4), digit(1), digit(0))
}

/// A Lease as an attacker writes it.
struct Forgery {
    namespace: &'static str,
    name: String,
    label: (&'static str, &'static str),
    holder: Option<String>,
    annotations: BTreeMap<&'static str, String>,
}

impl Forgery {
    /// What a server at that address would write.
    fn server(id: &str, address: &str, holder: &str) -> Self {
        let annotations = BTreeMap::from([(ADVERTISED, address.to_owned())]);
        Self { namespace: "kube-system", name: id.into(), label: IDENTITY, holder: Some(holder.into()), annotations }
    }

    /// What the proxy of that server would write.
    fn proxy(id: &str, address: &str) -> Self {
        let annotations = ["mvproxy.io/peer-address", "mvproxy.io/server-address"].map(|name| (name, address.to_owned()));
        let (name, holder) = (format!("mvproxy-{id}"), Some("forged".to_owned()));
        Self { namespace: "kube-system", name, label: PROXY, holder, annotations: annotations.into() }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}", self.namespace, self.name)
    }

    fn object(&self) -> Value {
        let labels = json!({ self.label.0: self.label.1 });
        let metadata = json!({"name": self.name, "namespace": self.namespace, "labels": labels, "annotations": self.annotations});
        let spec = self.holder.as_ref().map_or_else(|| json!({}), |holder| json!({"holderIdentity": holder}));
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    }
}

/// Where nobody may connect to, and where somebody should.
struct Ground {
    /// An address in the ranges, with a port of the list: what is said rightly is believed, and the counting works.
    control: Trap,
    /// The same, for the Lease that comes last.
    last: Trap,
    /// The same, for one Lease that changes all the time.
    churned: Trap,
    /// In the ranges and with a port of the list, but named only by Leases that are not to be believed.
    misplaced: Trap,
    /// In the ranges, with a port that is not on the list.
    wrong_port: Trap,
    /// Outside of the ranges, with the port of `control`. 127.0.0.1 is in those of the first test; there only the name `localhost` leads to
    /// it, and names are not to be believed.
    outside: Vec<Trap>,
}

impl Ground {
    async fn prepare(control: IpAddr) -> Self {
        let mut outside = vec![control, Ipv4Addr::new(127, 8, 0, 1).into(), Ipv4Addr::LOCALHOST.into()];
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            outside.push(Ipv6Addr::LOCALHOST.into());
        }
        let mut outside = Trap::set_all(&outside).await;
        let one = async || Trap::set_all(&[control]).await.remove(0);
        let (last, churned) = (one().await, one().await);
        Self { last, churned, misplaced: one().await, wrong_port: one().await, control: outside.remove(0), outside }
    }

    /// The ports that are allowed; the proxy's own among them, so that only its being its own speaks against them.
    fn ports(&self) -> String {
        let ports = [&self.control, &self.last, &self.churned, &self.misplaced].map(|trap| trap.address().port().to_string());
        format!("--peer-ports={},{{clients}},{{peers}}", ports.join(","))
    }

    /// Where connections may go, of all that Leases say.
    fn allowed(&self) -> [SocketAddr; 3] {
        [&self.control, &self.last, &self.churned].map(Trap::address)
    }

    fn forbidden(&self) -> impl Iterator<Item = &Trap> {
        self.outside.iter().chain([&self.misplaced, &self.wrong_port])
    }

    /// Texts where an address is expected; none of them is one that may be connected to.
    fn bad(&self, proxy: &Proxy, outside: &[&str]) -> Vec<String> {
        let (ip, port, misplaced) = (self.control.address().ip(), self.control.address().port(), self.misplaced.address());
        let never = ["127.8.0.1", "169.254.169.254", "224.0.0.1", "239.1.2.3", "255.255.255.255", "0.0.0.0"];
        let never6 = ["[::1]", "[::]", "[fe80::1]", "[ff02::1]", "[::ffff:127.8.0.1]", "[::ffff:169.254.169.254]", "[::ffff:0.0.0.0]"];
        let hosts = never.iter().chain(&never6).chain(outside).chain(&["localhost", "example.invalid"]);
        let mut bad: Vec<String> = hosts.map(|host| format!("{host}:{port}")).collect();
        bad.extend([self.wrong_port.address(), proxy.clients, proxy.peers].map(|address| address.to_string()));
        bad.extend([format!("{ip}"), format!("{ip}:0"), format!("{ip}:99999"), format!("{ip}:{port}0000"), String::new()]);
        bad.extend([format!("{misplaced}/x"), format!(" {misplaced}"), format!("{misplaced},{misplaced}"), format!("https://{misplaced}")]);
        // As much as a server takes: annotations of an object are 256 KiB in all.
        bad.extend(["1".repeat(100_000), format!("{misplaced}{}", " ".repeat(100_000))]);
        bad
    }

    /// Leases that name an allowed address and are not to be believed.
    fn disbelieved(&self, round: usize) -> Vec<Forgery> {
        let (address, holder) = (self.misplaced.address().to_string(), format!("round-{round}"));
        let server = |name: &str| Forgery::server(name, &address, &holder);
        let (nobody, somebody) = (id(660), id(0));
        let mut forgeries = vec![
            server("apiserver-short"),
            server(&format!("{nobody}a")),
            server(&nobody.replace("forged", "f0rged")),
            server("evil"),
            Forgery { namespace: "default", ..server(&nobody) },
            Forgery { label: (IDENTITY.0, "kube-scheduler"), ..server(&id(661)) },
            Forgery { label: PROXY, ..server(&id(662)) },
            Forgery { holder: None, ..server(&id(663)) },
            // Of a server that no Lease names.
            Forgery::proxy(&id(664), &address),
        ];
        let proxy = Forgery::proxy(&somebody, &address);
        forgeries.push(Forgery { name: "mvproxy-evil".into(), ..Forgery::proxy("", &address) });
        forgeries.push(Forgery { name: format!("mvproxy-{somebody}-2"), ..Forgery::proxy("", &address) });
        forgeries.push(Forgery { namespace: "default", ..proxy });
        forgeries
    }
}

/// Writes Leases, and remembers which.
struct Attacker {
    client: Client,
    written: BTreeSet<String>,
    sent: usize,
    refused: BTreeMap<StatusCode, usize>,
}

impl Attacker {
    async fn at(server: &Apiserver) -> Self {
        Self { client: server.client(ADMIN).await, written: BTreeSet::new(), sent: 0, refused: BTreeMap::new() }
    }

    async fn write(&mut self, forgery: &Forgery) -> StatusCode {
        let path = forgery.path();
        let apply = headers([("content-type", "application/apply-patch+yaml")]);
        let query = format!("{path}?fieldManager=attacker&force=true");
        let body = Bytes::from(forgery.object().to_string());
        let status = self.client.request(Method::PATCH, &query, apply, body, None).await.unwrap().status;
        self.sent += 1;
        if status.is_success() {
            self.written.insert(path);
        } else {
            *self.refused.entry(status).or_default() += 1;
        }
        status
    }

    /// Every bad address as that of a server, of its proxy, and of the proxy of a server that is believed.
    async fn round(&mut self, ground: &Ground, bad: &[String], round: usize, local: &str) {
        let holder = format!("round-{round}");
        let control = id(600);
        for (nth, address) in bad.iter().enumerate() {
            let server = id((nth + round) % bad.len());
            self.write(&Forgery::server(&server, address, &holder)).await;
            self.write(&Forgery::proxy(&server, address)).await;
            self.write(&Forgery::proxy(&control, address)).await;
        }
        for forgery in ground.disbelieved(round) {
            self.write(&forgery).await;
        }
        // The local server's own Lease, which it puts right again, and that of a proxy in front of it.
        for address in &bad[..3] {
            let own = Forgery { holder: None, ..Forgery::server(local, address, "") };
            self.write(&own).await;
            self.write(&Forgery::proxy(local, address)).await;
        }
        // Good and bad in turn, as fast as it goes.
        for (nth, address) in bad.iter().enumerate() {
            let address = if nth % 2 == 0 { ground.control.address().to_string() } else { address.clone() };
            self.write(&Forgery::server(&id(601), &address, &format!("{holder}-{nth}"))).await;
        }
        let churned = ground.churned.address().to_string();
        for nth in 0..CHANGES {
            self.write(&Forgery::server(&id(604), &churned, &format!("{holder}-{nth}"))).await;
        }
    }

    async fn clean_up(&mut self, local: &str) {
        for path in std::mem::take(&mut self.written) {
            if !path.ends_with(&format!("/{local}")) {
                self.client.request(Method::DELETE, &path, headers([]), Bytes::new(), None).await.unwrap();
            }
        }
    }
}

/// What a proxy knows of peers is where they may be, or nowhere.
async fn assert_peers(proxy: &Proxy, allowed: &[SocketAddr]) {
    let (status, body) = get_plain(proxy.status, "/routes").await;
    assert_eq!(status, 200, "{body}");
    let table: Value = serde_json::from_str(&body).unwrap();
    for row in table["servers"].as_array().unwrap().iter().filter(|row| row["local"] != true) {
        let address = row["address"].as_str().map(|text| text.parse::<SocketAddr>().unwrap());
        assert!(address.is_none_or(|address| allowed.contains(&address)), "{row}");
    }
}

/// Every SYN of the machine, if it may be seen.
fn listen() -> Option<Syns> {
    match Syns::listen() {
        Ok(syns) => Some(syns),
        Err(error) if std::env::var_os("MVPROXY_NO_RAW").is_some_and(|value| value != "0") => {
            notice(&format!("SYNS ARE NOT COUNTED, only connections that arrive: {error}"));
            None
        }
        Err(error) => panic!("cannot see SYNs (CAP_NET_RAW; MVPROXY_NO_RAW=1 does without): {error}"),
    }
}

/// Where no program of this machine has anything to do, whatever the port: what forged addresses could be mistaken for is there too.
fn is_nobodys(address: SocketAddr) -> bool {
    match address.ip().to_canonical() {
        // Those who run machines answer at that one address, and at port 80.
        IpAddr::V4(ip) if ip.is_link_local() => address.port() != 80,
        // TEST-NET-3 (RFC 5737), and what the tests say beside it.
        IpAddr::V4(ip) => matches!(ip.octets(), [203, 0, 113, _] | [10, 255, 255, _] | [127, 8, _, _]),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Nothing went to where nobody may connect to; `bad` is what was said.
fn assert_syns(syns: &Syns, ground: &Ground, bad: &[String]) {
    assert!(syns.to(ground.control.address()) > 0, "a SYN is seen");
    let strange: Vec<_> = syns.destinations().into_iter().filter(|&address| is_nobodys(address)).collect();
    assert!(strange.is_empty(), "SYNs to {strange:?}");
    let told = bad.iter().filter_map(|text| text.parse::<SocketAddr>().ok());
    let told = told.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
    // As a port with more than 16 bits would be cut.
    let (ip, port) = (ground.control.address().ip(), u32::from(ground.control.address().port()));
    let cut = [99_999, port * 10_000].map(|port| SocketAddr::new(ip, u16::try_from(port & 0xffff).unwrap()));
    let cut = cut.into_iter().filter(|address| !ground.allowed().contains(address));
    for address in told.chain(cut).chain(ground.forbidden().map(Trap::address)) {
        assert_eq!(syns.to(address), 0, "SYNs to {address}");
    }
}

/// One proxy with these flags, of which one says what ranges are allowed, and an attack; `outside` are hosts that are not in them.
async fn attack(plane: &ControlPlane, server: &Apiserver, flags: &[&str], control: IpAddr, outside: &[&str]) {
    let ground = Ground::prepare(control).await;
    let ports = ground.ports();
    let mut proxy = Proxy::alone(plane, server, &[flags, &[&ports]].concat());
    proxy.wait_ready().await;
    let syns = listen();
    let mut attacker = Attacker::at(server).await;
    let bad = ground.bad(&proxy, outside);

    let believed = Forgery::server(&id(600), &ground.control.address().to_string(), "believed");
    assert!(attacker.write(&believed).await.is_success());
    let huge = attacker.write(&Forgery::server(&id(602), &"1".repeat(1 << 20), "huge")).await;
    assert!(huge.is_client_error(), "a megabyte is refused by the server itself: {huge}");
    let begun = Instant::now();
    for round in 0.. {
        attacker.round(&ground, &bad, round, server.id()).await;
        // For checks, probes and fetches of what is new.
        sleep(Duration::from_millis(1_200)).await;
        assert_peers(&proxy, &ground.allowed()).await;
        if attacker.sent >= least() {
            break;
        }
    }
    attacker.write(&Forgery::server(&id(603), &ground.last.address().to_string(), "last")).await;
    eventually("the last Lease is followed", Duration::from_secs(30), || ground.last.accepted() > 0).await;
    sleep(Duration::from_secs(2)).await;

    let Attacker { sent, refused, .. } = &attacker;
    let (dialled, churned, seconds) = (ground.control.accepted(), ground.churned.accepted() as u64, begun.elapsed().as_secs() + 1);
    println!("{flags:?}: {sent} forged Leases ({refused:?} refused), {dialled} connections to where they may be");
    assert!(refused.values().sum::<usize>() * 10 < *sent, "hardly any got through: {refused:?}");
    assert!(dialled > 0, "what is believed is connected to");
    println!("{flags:?}: {churned} connections within {seconds} s to where the Lease leads that changes all the time");
    assert!(churned > 0 && churned <= seconds + DIALS_MORE, "{churned} connections within {seconds} s");
    for trap in ground.forbidden() {
        assert_eq!(trap.accepted(), 0, "connections to {}", trap.address());
    }
    if let Some(syns) = &syns {
        assert_syns(syns, &ground, &bad);
    }
    attacker.clean_up(server.id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn forged_leases_lead_nowhere_outside_of_the_ranges_and_ports() {
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    // The proxy's own address is in them. Nobody answers in TEST-NET-3 (RFC 5737).
    let ranges = "--peer-cidr=127.0.0.1/32,127.7.0.0/16";
    attack(&plane, &server, &[ranges], Ipv4Addr::new(127, 7, 0, 99).into(), &["203.0.113.1", "10.255.255.1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn forged_leases_lead_to_no_loopback_nor_link_when_all_the_world_is_allowed() {
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    attack(&plane, &server, &["--peer-cidr=0.0.0.0/0,::/0"], own_ip(), &["127.0.0.1", "127.255.255.254"]).await;
}

/// No range is named. A proxy at an address that is not loopback allows its subnet, and any proxy what the EndpointSlice names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn forged_leases_lead_nowhere_outside_of_the_subnet_and_the_endpoints_when_nothing_is_said() {
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).ip(own_ip()).start().await;
    let (bind, behind) = (format!("--bind-address={}", own_ip()), behind_subnet().to_string());
    default_ports_are_two(&plane, &server, &["--peer-cidr", &bind]).await;
    let outside = [&*behind, "203.0.113.1", "127.0.0.1", "127.255.255.254"];
    attack(&plane, &server, &["--peer-cidr", &bind], own_ip(), &outside).await;
    // Now the one endpoint alone, and nothing beside it.
    let beside = Ipv4Addr::from_bits(own_v4().to_bits() ^ 1).to_string();
    attack(&plane, &server, &["--peer-cidr"], own_ip(), &[&outside[..], &[&beside]].concat()).await;
}

/// Where no port is named either, two may be connected to.
async fn default_ports_are_two(plane: &ControlPlane, server: &Apiserver, flags: &[&str]) {
    let (trap, syns) = (Trap::set_all(&[own_ip()]).await.remove(0), listen());
    let mut proxy = Proxy::alone(plane, server, flags);
    proxy.wait_ready().await;
    let mut attacker = Attacker::at(server).await;
    let good = [6443, 6445].map(|port| SocketAddr::new(own_ip(), port));
    for (nth, address) in [trap.address(), good[0], good[1]].into_iter().enumerate() {
        attacker.write(&Forgery::server(&id(nth), &address.to_string(), "ports")).await;
        let expected = if good.contains(&address) { json!(address) } else { Value::Null };
        let is_known = async || proxy.server_row(&id(nth)).await.get("address") == Some(&expected);
        until(&format!("{address} is known as {expected}"), Duration::from_secs(30), is_known).await;
    }
    sleep(Duration::from_secs(2)).await;
    assert_peers(&proxy, &good).await;
    assert_eq!(trap.accepted(), 0, "connections to {}", trap.address());
    if let Some(syns) = &syns {
        assert_eq!((syns.to(trap.address()), good.map(|address| syns.to(address) > 0)), (0, [true; 2]));
    }
    attacker.clean_up(server.id()).await;
}

/// The holder of a Lease may be as long as etcd takes, and each `<` in it is six bytes of JSON: a hundred of them are more than is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn leases_as_large_as_etcd_takes_blind_nobody() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    let mut attacker = Attacker::at(&server).await;
    let holder = "<".repeat(1_400_000);
    for nth in 0..FAT {
        let written = attacker.write(&Forgery::server(&id(nth), "", &holder)).await;
        assert!(written.is_success(), "{written}");
    }
    let mut proxy = Proxy::alone(&plane, &server, &[]);
    proxy.wait_ready().await;
    until("ready", Duration::from_secs(30), async || get_plain(proxy.status, "/readyz").await.0 == 200).await;
    attacker.clean_up(server.id()).await;
}

fn own_v4() -> Ipv4Addr {
    let IpAddr::V4(ip) = own_ip() else { panic!("{} is not IPv4", own_ip()) };
    ip
}

/// The second address behind the subnet of this machine, as the kernel's routes tell it: in the byte order of the machine.
fn behind_subnet() -> Ipv4Addr {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap();
    let number = |text: &str| u32::from_str_radix(text, 16).map_or(0, u32::from_be);
    let fields = routes.lines().skip(1).map(|line| line.split_whitespace().map(number).collect::<Vec<u32>>());
    // Destination, gateway, and mask of those that need no gateway.
    let on_link = fields.map(|fields| (fields[1], fields[2], fields[7])).filter(|&(_, gateway, mask)| gateway == 0 && mask != 0);
    let masks = on_link.filter(|&(network, _, mask)| own_v4().to_bits() & mask == network).map(|(.., mask)| mask);
    // A machine without neighbours has a subnet of its own.
    let mask = masks.max().unwrap_or(u32::MAX);
    Ipv4Addr::from_bits((own_v4().to_bits() | !mask) + 2)
}
