//! Every limit of the data plane that may be changed, with its default and the reason for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use crate::core::Rate;
use crate::core::Sign;

/// Which kernel interface moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoDriver {
    /// io_uring with the best flags the kernel takes, else epoll.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// epoll.
    Epoll,
    /// io_uring as on Linux 5.19, for tests on a newer one; no flag of the command line means it.
    #[doc(hidden)]
    CoopTaskrun,
    /// io_uring as on Linux 5.6, for the same.
    #[doc(hidden)]
    PlainIoUring,
}

/// What an engine is started with.
#[derive(Clone)]
pub struct Config {
    /// Where clients connect.
    pub bind: SocketAddr,
    /// Where other proxies connect, if they do.
    pub peer_bind: Option<SocketAddr>,
    /// CPUs the shards are pinned to, one shard each; `None` in place of a CPU leaves a shard unpinned.
    pub cpus: Vec<Option<usize>>,
    /// Kernel interface.
    pub io_driver: IoDriver,
    /// Files the process may have open, when that is limited: nine tenths of them, less what servers need, are for clients.
    pub files: Option<usize>,
    /// Limits of each shard.
    pub limits: Limits,
    /// Is told what the traffic shows about servers, by the shards: it must not wait.
    pub report: Option<Report>,
    /// Gives memory that the calling thread has freed back to the system: called by a shard some time after much of it was freed, because
    /// an allocator that nobody calls does nothing.
    pub release: Option<fn()>,
}

/// See [`Config::report`].
pub type Report = Arc<dyn Fn(Sign) + Send + Sync>;

/// Limits of one shard.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Streams a client may have open on one connection; kube-apiserver's own default.
    pub client_streams: u32,
    /// Stream window granted to clients: an upload in flight holds at most this much.
    pub client_window: u32,
    /// Stream window granted to servers: what kube-apiserver itself uses.
    pub server_window: u32,
    /// Connection window granted to either side; returned on receipt, so it only has to cover a round trip.
    pub connection_window: u32,
    /// Decoded header list of one message: kube-apiserver's limit is 1 MiB, real heads are under 16 KiB, and 64 KiB
    /// leaves room for large impersonation headers without making 100 streams cost 100 MiB.
    pub header_list: usize,
    /// Plaintext waiting to be encrypted for one connection before its streams are held back: one full read.
    pub out_high: usize,
    /// Bytes held by the shard, for slow readers and retries above all: above 80 % the address that holds most is sent away, or new streams
    /// are refused; above all of it the readers are. A thousand slow LISTs at once fit.
    pub held_bytes: usize,
    /// A client that takes nothing of a waiting answer for this long loses the stream; the same while the shard is short of memory.
    pub reader_stall: Duration,
    /// See `reader_stall`.
    pub reader_stall_full: Duration,
    /// Request body kept for a retry until the response head comes.
    pub retry_body: usize,
    /// Servers asked for one request in all: one, another, and a last one; then the client should know.
    pub attempts: u8,
    /// Client connections of one shard.
    pub client_conns: usize,
    /// Connections to one server in all; each shard, and in it each lane, has its share. kube-apiserver allows 100 streams on each.
    pub server_conns: usize,
    /// Requests of a lane waiting for a connection to one server: what 40 full connections carry.
    pub waiting: usize,
    /// Percent of a server's MAX_CONCURRENT_STREAMS in use when the next connection is opened.
    pub streams_percent: u32,
    /// TCP connect: a server on the same network answers in milliseconds.
    pub connect: Duration,
    /// TLS handshake with a server.
    pub server_handshake: Duration,
    /// TLS handshake of a client, its HTTP/2 preface, and each head of HTTP/1.1.
    pub client_handshake: Duration,
    /// Client handshakes under way; beyond that the oldest is cut. A handshake holds some KiB.
    pub handshakes: usize,
    /// The same for one address, which may be a load balancer's with many clients behind it.
    pub handshakes_per_address: usize,
    /// New connections from an address whose client was just told to calm down.
    pub offender_conns: Rate,
    /// A client connection without streams is closed after this; kube-apiserver's own limit.
    pub client_idle: Duration,
    /// A server connection without streams is closed after this, before the server does it at 90 s.
    pub server_idle: Duration,
    /// A server connection made with certificates that were replaced since is closed after this, running streams or not.
    pub retired: Duration,
    /// Silence on a connection with a waiting stream before a PING asks for life.
    pub ping_after: Duration,
    /// Unanswered PING: no new streams on the connection.
    pub suspect_after: Duration,
    /// Unanswered PING: the connection is dead.
    pub dead_after: Duration,
    /// A server that refused a connection is left alone this long: a restarted one is back within a second.
    pub server_backoff: Duration,
    /// Response head of a request that is not long-running: the apiserver's own 60 s and its 504 come first.
    pub response_head: Duration,
    /// Streams that a client resets while they are young, or that we reset for its faults (CVE-2023-44487, CVE-2025-8671): a
    /// controller that gives up on requests does a few a second.
    pub client_resets: Rate,
    /// Frames that carry nothing, from either side: PING, SETTINGS, priorities, unknown kinds, empty or tiny DATA, and
    /// WINDOW_UPDATE beyond ten for each DATA frame we sent (CVE-2019-9512 to -9518).
    pub idle_frames: Rate,
    /// Streams we reset on one server connection, because clients went away. Beyond that they run on unread for a while: a Go server
    /// closes a connection on which 400 requests wait for those that were reset to end, and with it everybody's watches. It may stand still
    /// for a second and a half before that happens.
    pub server_resets: Rate,
    /// `client_resets` for another proxy, whose connection carries many clients; well above what `server_resets` lets it send.
    pub peer_resets: Rate,
    /// `idle_frames` for another proxy.
    pub peer_idle_frames: Rate,
    /// Running short requests may finish this long after a drain began.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            client_streams: 100,
            client_window: 64 * 1024,
            server_window: 256 * 1024,
            connection_window: 16 * 1024 * 1024,
            header_list: 64 * 1024,
            out_high: 128 * 1024,
            held_bytes: 256 * 1024 * 1024,
            reader_stall: Duration::from_secs(300),
            reader_stall_full: Duration::from_secs(10),
            retry_body: 64 * 1024,
            attempts: 3,
            client_conns: 20_000,
            server_conns: 256,
            waiting: 4_096,
            streams_percent: 80,
            connect: Duration::from_secs(2),
            server_handshake: Duration::from_secs(3),
            client_handshake: Duration::from_secs(10),
            handshakes: 4_096,
            handshakes_per_address: 1_024,
            offender_conns: Rate { burst: 5, per_second: 2 },
            client_idle: Duration::from_secs(90),
            server_idle: Duration::from_secs(60),
            retired: Duration::from_secs(600),
            ping_after: Duration::from_secs(2),
            suspect_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(4),
            server_backoff: Duration::from_millis(250),
            response_head: Duration::from_secs(65),
            client_resets: Rate { burst: 100, per_second: 50 },
            idle_frames: Rate { burst: 1_000, per_second: 200 },
            server_resets: Rate { burst: 100, per_second: 200 },
            peer_resets: Rate { burst: 2_000, per_second: 1_000 },
            peer_idle_frames: Rate { burst: 10_000, per_second: 5_000 },
            drain: Duration::from_secs(25),
        }
    }
}
