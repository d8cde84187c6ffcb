//! Who is connected to: every TCP SYN that this machine sends, and listeners that count.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::TcpListener;

/// Every protocol (`ETH_P_ALL`), in the order of the network.
const ALL: u16 = 3_u16.to_be();
const TCP: u8 = 6;
/// SYN and ACK of the flags of TCP (RFC 9293 §3.1); SYN alone asks for a connection.
const FLAGS: u8 = 0x12;
const SYN: u8 = 0x02;

/// Counts SYNs on all interfaces by where they go to. On loopback each is seen twice: as it leaves, and as it comes in.
pub struct Syns {
    seen: Arc<Mutex<BTreeMap<SocketAddr, usize>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Syns {
    /// Fails without the right to listen to the network (CAP_NET_RAW).
    pub fn listen() -> io::Result<Self> {
        // DGRAM: packets come without the header of the link.
        let mut socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(ALL))))?;
        socket.attach_filter(&only_syns())?;
        socket.set_recv_buffer_size(4 << 20)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let (seen, is_over) = (Arc::<Mutex<BTreeMap<SocketAddr, usize>>>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (Arc::clone(&seen), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 128];
            while !ends.load(Ordering::Relaxed) {
                // What does not fit is cut off, and what is asked about is in front.
                if let Ok(length) = socket.read(&mut packet)
                    && let Some(address) = destination(&packet[..length])
                {
                    *counted.lock().unwrap().entry(address).or_default() += 1;
                }
            }
        });
        Ok(Self { seen, is_over, thread: Some(thread) })
    }

    /// Where they went so far.
    pub fn destinations(&self) -> Vec<SocketAddr> {
        self.seen.lock().unwrap().keys().copied().collect()
    }

    /// How many went there so far.
    pub fn to(&self, address: SocketAddr) -> usize {
        self.seen.lock().unwrap().get(&address).copied().unwrap_or_default()
    }
}

impl Drop for Syns {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The kernel's side of [`destination`], so that the traffic of others is not copied here.
fn only_syns() -> [SockFilter; 16] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_BYTE_BEHIND_X: u16 = 0x50;
    const X_IS_HEADER_LENGTH: u16 = 0xb1;
    const AND: u16 = 0x54;
    const JUMP: u16 = 0x05;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, operand| SockFilter::new(code, 0, 0, operand);
    // Over how many steps to go when it is, and when it is not.
    let when = |operand: u8, is, is_not| SockFilter::new(IF_EQUAL, is, is_not, operand.into());
    [
        step(LOAD_BYTE, 0),
        step(AND, 0xf0),
        when(0x40, 0, 5),
        // IPv4.
        step(LOAD_BYTE, 9),
        when(TCP, 0, 9),
        step(X_IS_HEADER_LENGTH, 0),
        step(LOAD_BYTE_BEHIND_X, 13),
        step(JUMP, 4),
        // IPv6.
        when(0x60, 0, 5),
        step(LOAD_BYTE, 6),
        when(TCP, 0, 3),
        step(LOAD_BYTE, 40 + 13),
        // The flags of TCP, of either.
        step(AND, FLAGS.into()),
        when(SYN, 1, 0),
        step(RETURN, 0),
        step(RETURN, u32::MAX),
    ]
}

/// Where a SYN goes; `None` when the packet is none.
fn destination(packet: &[u8]) -> Option<SocketAddr> {
    let (protocol, ip, tcp): (u8, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let ip: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (packet[9], Ipv4Addr::from(ip).into(), packet.get(usize::from(packet[0] & 0xf) * 4..)?)
        }
        6 => {
            let ip: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (packet[6], Ipv6Addr::from(ip).into(), &packet[40..])
        }
        _ => return None,
    };
    let port = u16::from_be_bytes([*tcp.get(2)?, *tcp.get(3)?]);
    (protocol == TCP && tcp.get(13)? & FLAGS == SYN).then(|| SocketAddr::new(ip, port))
}

/// A listener that counts who comes, and says nothing.
pub struct Trap {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Trap {
    async fn set(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (address, accepted) = (listener.local_addr()?, Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { address, accepted, task })
    }

    /// Traps at all of these addresses, with one port.
    pub async fn set_all(ips: &[IpAddr]) -> Vec<Self> {
        for _ in 0..50 {
            let mut traps = vec![Self::set(SocketAddr::new(ips[0], 0)).await.unwrap()];
            let port = traps[0].address.port();
            for &ip in &ips[1..] {
                match Self::set(SocketAddr::new(ip, port)).await {
                    Ok(trap) => traps.push(trap),
                    // Somebody has it there.
                    Err(_) => break,
                }
            }
            if traps.len() == ips.len() {
                return traps;
            }
        }
        panic!("no port is free at all of {ips:?}");
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many came.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.task.abort();
    }
}
