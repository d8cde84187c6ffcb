//! What is asked of the machine at start: its address, its limit of open files, its share of CPU time.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

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
