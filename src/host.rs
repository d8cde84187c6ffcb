//! What is asked of the machine at start: its address, its limit of open files, its share of CPU time.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use discovery::Cidr;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where the kernel keeps control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The address of the interface that the default route leaves by; IPv4 first, as kube-apiserver looks for it.
pub(crate) fn default_address() -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849), which only a default route leads to.
    let v4 = (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into());
    let v6 = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    [v4, v6].into_iter().find_map(|(from, to): (IpAddr, IpAddr)| source(from, to).ok())
}

/// The address packets to `to` would carry. Connecting a UDP socket sends nothing.
fn source(from: IpAddr, to: IpAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0))?;
    socket.connect(SocketAddr::new(to, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The name of this host, as kube-apiserver puts it into its Lease.
pub(crate) fn name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// Every address of this host, loopback left aside: what the kernel takes for its own.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut all = addresses_from(&read("/proc/net/fib_trie"), &read("/proc/net/if_inet6"));
    // Where /proc says nothing, one is known all the same.
    all.extend(default_address().filter(|address| !all.contains(address)));
    all
}

/// The leaves of the routing table that are local, and the addresses of interfaces for IPv6.
fn addresses_from(trie: &str, interfaces: &str) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    let mut leaf = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            all.extend(leaf.map(IpAddr::V4));
        }
    }
    let v6 = interfaces.lines().filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok());
    all.extend(v6.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))));
    // A table for each of several rules names some of them again.
    all.sort();
    all.dedup();
    all.retain(|address| !address.is_loopback());
    all
}

/// The subnet of the interface that has the address.
pub(crate) fn subnet(address: IpAddr) -> Option<Cidr> {
    match address {
        IpAddr::V4(v4) => subnet_v4(&fs::read_to_string("/proc/net/route").ok()?, v4),
        IpAddr::V6(v6) => subnet_v6(&fs::read_to_string("/proc/net/if_inet6").ok()?, v6),
    }
}

/// The narrowest route without a gateway that the address is on. Numbers are in the byte order of the machine.
fn subnet_v4(routes: &str, address: Ipv4Addr) -> Option<Cidr> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let on_link = routes.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (destination, gateway) = (number(fields.next()?)?, number(fields.next()?)?);
        let mask = number(fields.nth(4)?)?;
        (gateway == 0 && mask != 0 && address.to_bits() & mask == destination).then_some((mask.count_ones(), destination))
    });
    let (bits, destination) = on_link.max()?;
    Cidr::parse(&format!("{}/{bits}", Ipv4Addr::from_bits(destination)))
}

fn subnet_v6(addresses: &str, address: Ipv6Addr) -> Option<Cidr> {
    addresses.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let own = u128::from_str_radix(fields.next()?, 16).ok()?;
        let bits = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
        (own == address.to_bits()).then(|| Cidr::parse(&format!("{address}/{bits}"))).flatten()
    })
}

/// Raises the soft limit of open files to the hard one; returns the limit that then holds (`None` is no limit).
///
/// The soft one is 1,024 on many machines, for programs that use `select`, and every connection is a file.
pub(crate) fn raise_nofile() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        // Refused only where a sandbox forbids the call; what is there is what there is.
        Err(_) => limit.current,
    }
}

/// The CPUs' worth of time the control group may use, where it is limited.
pub(crate) fn cpu_quota() -> Option<f64> {
    cpu_quota_from(|path| fs::read_to_string(path).ok())
}

/// The least of the limits of our group and of the groups around it, each of which holds.
///
/// A container may see its path on the host but only its own part of the tree; that part's root is asked as well.
fn cpu_quota_from(read: impl Fn(&Path) -> Option<String>) -> Option<f64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version2 = controllers.is_empty();
        if !version2 && !controllers.split(',').any(|controller| controller == "cpu") {
            continue;
        }
        let root = if version2 { Path::new(CGROUPS).to_owned() } else { Path::new(CGROUPS).join("cpu") };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let file = |name| read(&root.join(group).join(name));
            let limit = if version2 {
                file("cpu.max").and_then(|text| text.split_once(' ').and_then(|(quota, period)| cpus(quota, period)))
            } else {
                file("cpu.cfs_quota_us").zip(file("cpu.cfs_period_us")).and_then(|(quota, period)| cpus(&quota, &period))
            };
            least = [least, limit].into_iter().flatten().reduce(f64::min);
        }
    }
    least
}

/// Microseconds of CPU time per period; no limit is `max` in version 2 and -1 in version 1.
fn cpus(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (u32, u32) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then(|| f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(files: &[(&str, &str)]) -> Option<f64> {
        cpu_quota_from(|path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| String::from(*text)))
    }

    #[test]
    fn subnets_are_read_from_the_kernel() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        let found = subnet_v4(routes, Ipv4Addr::new(172, 17, 3, 4)).unwrap();
        assert!(found.contains("172.17.255.1".parse().unwrap()) && !found.contains("172.18.0.1".parse().unwrap()));
        assert_eq!(subnet_v4(routes, Ipv4Addr::new(10, 0, 0, 1)), None);
        let addresses = "fd000000000000000000000000000005 02 40 00 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n";
        let found = subnet_v6(addresses, "fd00::5".parse().unwrap()).unwrap();
        assert!(found.contains("fd00::9".parse().unwrap()) && !found.contains("fd00:0:0:1::9".parse().unwrap()));
        assert_eq!(subnet_v6(addresses, "fd00::6".parse().unwrap()), None);
    }

    #[test]
    fn addresses_are_read_from_the_kernel() {
        let trie = "Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.0
           /16 link UNICAST
        |-- 172.17.0.2
           /32 host LOCAL
        |-- 172.17.255.255
           /32 link BROADCAST
Local:
        |-- 172.17.0.2
           /32 host LOCAL
";
        let interfaces = "fd000000000000000000000000000005 02 40 00 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n";
        let expected: [IpAddr; 2] = ["172.17.0.2".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(addresses_from(trie, interfaces), expected);
        assert_eq!(addresses_from("", "rubbish\n\n"), [] as [IpAddr; 0]);
        assert!(default_address().is_none_or(|address| addresses().contains(&address)));
    }

    #[test]
    fn quotas_of_both_versions() {
        let v2 = ("/proc/self/cgroup", "0::/kubepods/pod1/c\n");
        let v1 = ("/proc/self/cgroup", "9:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/\n");
        for (files, expected) in [
            (&[][..], None),
            (&[v2], None),
            (&[v2, ("/sys/fs/cgroup/kubepods/pod1/c/cpu.max", "max 100000\n")], None),
            (&[v2, ("/sys/fs/cgroup/kubepods/pod1/c/cpu.max", "150000 100000\n")], Some(1.5)),
            (
                &[
                    v2,
                    ("/sys/fs/cgroup/kubepods/pod1/c/cpu.max", "max 100000\n"),
                    ("/sys/fs/cgroup/kubepods/pod1/cpu.max", "200000 100000\n"),
                ],
                Some(2.0),
            ),
            (&[v2, ("/sys/fs/cgroup/cpu.max", "50000 100000\n"), ("/sys/fs/cgroup/kubepods/cpu.max", "200000 100000\n")], Some(0.5)),
            (&[v2, ("/sys/fs/cgroup/cpu.max", "rubbish")], None),
            (&[v2, ("/sys/fs/cgroup/cpu.max", "1 0")], None),
            (&[v1, ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"), ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")], None),
            (&[v1, ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"), ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")], Some(3.0)),
            (
                &[
                    v1,
                    ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "100000\n"),
                    ("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"),
                ],
                Some(1.0),
            ),
        ] {
            assert_eq!(quota(files), expected, "{files:?}");
        }
    }
}
