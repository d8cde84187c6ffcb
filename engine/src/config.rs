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
    /// Percent of `held_bytes` above which the shard is short of memory: the last fifth is for what running streams still bring.
    pub full_percent: usize,
    /// Percent of `held_bytes` above which an address stands out and is sent away: who holds less would free little, and may be one of many
    /// that are merely slow.
    pub stands_out_percent: usize,
    /// Percent of `held_bytes` that is left when enough was sent away: a tenth below `full_percent`, or the next one would be due at once.
    pub relieved_percent: usize,
    /// Between two looks for who holds most: a look walks all connections and exchanges, and what it sends away takes a moment to go.
    pub relief_pause: Duration,
    /// A client that takes nothing of a waiting answer for this long loses the stream: no honest reader pauses for minutes.
    pub reader_stall: Duration,
    /// The same while the shard is short of memory: an honest reader takes something within seconds.
    pub reader_stall_full: Duration,
    /// Request body kept for a retry until the response head comes: one `client_window`, which is more than most objects are long.
    pub retry_body: usize,
    /// Servers asked for one request in all: one, another, and a last one; then the client should know.
    pub attempts: u8,
    /// Times that a request above a GOAWAY's last id is asked again without counting as one of `attempts`: the server takes requests, and ends
    /// connections at random (kube-apiserver's `--goaway-chance`), three of them in a row now and then.
    pub goaways: u8,
    /// Client connections of one shard: idle ones take about 8 KiB each, so all of them some 160 MiB.
    pub client_conns: usize,
    /// Percent of the places for connections that only other proxies get: clients could shut them out. A proxy needs a handful.
    pub peer_percent: usize,
    /// Tenths of the files the process may have open that clients get (file exhaustion): a flood of connections must leave some to servers.
    pub client_files_tenths: usize,
    /// Files that are kept for servers beyond that, because a tenth of a low limit is too few: a connection in either lane to 32 servers.
    pub server_files: usize,
    /// Open connections to one server; each shard, and in it each lane, has its share. kube-apiserver allows 100 streams on each.
    pub server_conns: usize,
    /// Times `server_conns`: connections to one server in any state. Watches stay on one after a GOAWAY, or made with old certificates, and
    /// those that replace it need room: a lane may be replaced three times over before the first has ended.
    pub server_conns_factor: usize,
    /// Requests of a lane waiting for a connection to one server: what 40 full connections carry.
    pub waiting: usize,
    /// Percent of a server's MAX_CONCURRENT_STREAMS in use when the next connection is opened: what comes during its handshake finds room
    /// in the other fifth.
    pub streams_percent: u32,
    /// TCP connect: a server on the same network answers in milliseconds.
    pub connect: Duration,
    /// TLS handshake with a server, and its first SETTINGS: time for a lost packet to be sent again twice; with `connect`, another server is asked within 5 s.
    pub server_handshake: Duration,
    /// Bytes a server does not acknowledge, for TCP (a half-open connection): before `ping_after` and `dead_after` are over.
    pub user_timeout: Duration,
    /// TLS handshake of a client, its HTTP/2 preface, and each head of HTTP/1.1: what Go allows for the preface.
    pub client_handshake: Duration,
    /// Client handshakes under way; beyond that the oldest is cut. A handshake holds some KiB.
    pub handshakes: usize,
    /// The same for one address, which may be a load balancer's with many clients behind it.
    pub handshakes_per_address: usize,
    /// TLS handshakes of clients taken a step further in one wake-up: a signature costs 25 µs (P-256) to 700 µs (RSA), and every stream of
    /// the shard waits for it.
    pub handshakes_per_wake_up: usize,
    /// Sockets read in one wake-up from which on the shard waits for more of them together: with fewer there is little to gather, and a client
    /// or two would only wait longer (decision 0022).
    pub gather_from: u32,
    /// Sockets read within `gather_period` from which on it does: with 16 clients in a closed loop all of them soon wait for us, and a wait
    /// doubles the time of a request; with 48 it saves CPU time, with 64 it shortens it too.
    pub gather_busy: u32,
    /// Bytes read within `gather_period` from which on it does as well: 200 MB/s. They come in pieces as small as the other side writes them.
    pub gather_bytes: usize,
    /// While so many short requests are at servers: with 8 a wait makes each of them longer by a third, with 32 by a tenth, with 48 hardly.
    pub gather_requests: usize,
    /// And so many sockets were read: requests that hang are no reason for the few others to wait.
    pub gather_sockets: u32,
    /// Over how long they are counted: four times what an exchange takes with 64 clients.
    pub gather_period: Duration,
    /// Events that are enough: what more of them would save is little.
    pub gather_events: u32,
    /// How long they are waited for: some fifty times what going to sleep and waking up costs, a fifth of what an exchange takes with 64 clients.
    pub gather_time: Duration,
    /// While this many handshakes are under way and all are younger than `herd_age`, a herd is coming in, and the rest of it waits in the
    /// backlog, where it costs nothing: as many signatures as a shard makes in 13 ms (P-256) to 360 ms (RSA).
    pub herd: usize,
    /// See `herd`. An honest handshake is done by then: who is not stalls, and must not make others wait.
    pub herd_age: Duration,
    /// New connections from an address whose client was just told to calm down: enough for the others behind it to come back, few enough
    /// that a flood does not cost a handshake each time (decision 0011).
    pub offender_conns: Rate,
    /// How long an address is an offender after its last offence: long for a flood that reconnects at once, short for others behind it.
    pub offence: Duration,
    /// Offenders remembered at once, about 100 KiB of them: from more addresses than that, a limit by address is no help.
    pub offenders: usize,
    /// How long an offender has to read why it was sent away: a round trip to anywhere; until then its connection takes memory.
    pub offender_close: Duration,
    /// A connection whose last bytes have left is cut when the other side does not close it in this time: some lost packets.
    pub close: Duration,
    /// The same while a slow client still takes the end of its last answer: what a drain allows.
    pub slow_close: Duration,
    /// A client connection without streams is closed after this; kube-apiserver's own limit.
    pub client_idle: Duration,
    /// A server connection without streams is closed after this, before the server does it at 90 s.
    pub server_idle: Duration,
    /// A server connection made with certificates that were replaced since is closed after this, running streams or not: short requests
    /// are over long before, and watches would keep an authority in use for up to an hour that is not trusted any more.
    pub retired: Duration,
    /// Silence on a connection with a waiting stream before a PING asks for life: most short answers come sooner, so few PINGs are
    /// sent, and with `dead_after` a server that hangs is noticed within 6 s.
    pub ping_after: Duration,
    /// Unanswered PING: no new streams on the connection. More than a lost packet takes to be sent again.
    pub suspect_after: Duration,
    /// Unanswered PING: the connection is dead. Since `suspect_after`, one `connect` to see whether the server is.
    pub dead_after: Duration,
    /// A server that refused a connection is left alone this long: a restarted one is back within a second.
    pub server_backoff: Duration,
    /// The first connection to a server that takes this long shows that it may have been starting: it listens a second or more before it goes
    /// on with a handshake, which takes milliseconds with one that is up.
    pub server_late: Duration,
    /// How long a server that was lost is sent nothing while nobody vouches for it: discovery, if it works, has said by then what it found.
    pub doubt: Duration,
    /// How often discovery is told of a doubt: its queue may have been full.
    pub doubt_told: Duration,
    /// Response head of a request that is not long-running: the apiserver's own 60 s and its 504 come first.
    pub response_head: Duration,
    /// Streams that a client resets while they are young, or that we reset for its faults (CVE-2023-44487, CVE-2025-8671): a
    /// controller that gives up on requests does a few a second.
    pub client_resets: Rate,
    /// What a header list above `header_list` takes from `client_resets`: to decode it takes as long as a dozen requests, and whoever sends one
    /// sends it again and again.
    pub large_head_resets: u32,
    /// A stream is young up to this age (CVE-2023-44487). A later reset is a timeout or a change of mind, and `client_streams` limits
    /// streams that live that long to 100 a second.
    pub young: Duration,
    /// Frames that carry nothing, from either side: PING, SETTINGS, priorities, unknown kinds, empty or tiny DATA, and
    /// WINDOW_UPDATE beyond `updates_per_data` (CVE-2019-9512 to -9518).
    pub idle_frames: Rate,
    /// WINDOW_UPDATEs that a DATA frame we sent pays for: one for the stream and one for the connection would do; Envoy allows ten as well.
    pub updates_per_data: u32,
    /// WINDOW_UPDATEs that are paid for at most: those for 16 MiB in full frames; a long download must not pay for a flood after it.
    pub paid_updates: u32,
    /// CONTINUATION frames of one header block beyond one for each full frame that `header_list` allows, so that empty ones cannot go on
    /// for ever (CVE-2024-27316): real senders fill their frames, and five forgive those that do not.
    pub spare_continuations: usize,
    /// 1xx heads in front of one answer. No window holds them back, so an endless row of them would fill the memory of a client that does
    /// not read; real ones are one or two.
    pub interim_heads: u8,
    /// Bytes of chunk extensions over one body of HTTP/1.1 (CVE-2023-39326): nobody uses them, and they cost a byte of line each.
    pub chunk_extensions: usize,
    /// Bytes of the trailer section of one body of HTTP/1.1, held until it ends: Kubernetes' clients send none, others a few lines.
    pub chunk_trailers: usize,
    /// Streams we reset on one server connection, because clients went away. Beyond that they run on unread for a while: a Go server
    /// closes a connection on which 400 requests wait for those that were reset to end, and with it everybody's watches. It may stand still
    /// for a second and a half before that happens.
    pub server_resets: Rate,
    /// `client_resets` for another proxy, whose connection carries many clients; well above what `server_resets` lets it send.
    pub peer_resets: Rate,
    /// `idle_frames` for another proxy: tiny DATA of as many clients as it has streams comes on one connection.
    pub peer_idle_frames: Rate,
    /// Running short requests may finish this long after a drain began: a pod has 30 s by default, and the rest is for ending.
    pub drain: Duration,
}

impl Default for Limits {
    #[allow(clippy::too_many_lines, reason = "a limit a line")]
    fn default() -> Self {
        Self {
            client_streams: 100,
            client_window: 64 * 1024,
            server_window: 256 * 1024,
            connection_window: 16 * 1024 * 1024,
            header_list: 64 * 1024,
            out_high: 128 * 1024,
            held_bytes: 256 * 1024 * 1024,
            full_percent: 80,
            stands_out_percent: 25,
            relieved_percent: 70,
            relief_pause: Duration::from_millis(20),
            reader_stall: Duration::from_secs(300),
            reader_stall_full: Duration::from_secs(10),
            retry_body: 64 * 1024,
            attempts: 3,
            goaways: 8,
            client_conns: 20_000,
            peer_percent: 1,
            client_files_tenths: 9,
            server_files: 64,
            server_conns: 256,
            server_conns_factor: 4,
            waiting: 4_096,
            streams_percent: 80,
            connect: Duration::from_secs(2),
            server_handshake: Duration::from_secs(3),
            user_timeout: Duration::from_secs(5),
            client_handshake: Duration::from_secs(10),
            handshakes: 4_096,
            handshakes_per_address: 1_024,
            handshakes_per_wake_up: 4,
            gather_from: 3,
            gather_busy: 40,
            gather_bytes: 1 << 20,
            gather_requests: 40,
            gather_sockets: 6,
            gather_period: Duration::from_millis(5),
            gather_events: 16,
            gather_time: Duration::from_micros(200),
            herd: 512,
            herd_age: Duration::from_secs(1),
            offender_conns: Rate { burst: 5, per_second: 2 },
            offence: Duration::from_secs(10),
            offenders: 1_024,
            offender_close: Duration::from_millis(250),
            close: Duration::from_secs(2),
            slow_close: Duration::from_secs(25),
            client_idle: Duration::from_secs(90),
            server_idle: Duration::from_secs(60),
            retired: Duration::from_secs(600),
            ping_after: Duration::from_secs(2),
            suspect_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(4),
            server_backoff: Duration::from_millis(250),
            server_late: Duration::from_millis(250),
            doubt: Duration::from_secs(5),
            doubt_told: Duration::from_secs(1),
            response_head: Duration::from_secs(65),
            client_resets: Rate { burst: 100, per_second: 50 },
            large_head_resets: 5,
            young: Duration::from_secs(1),
            idle_frames: Rate { burst: 1_000, per_second: 200 },
            updates_per_data: 10,
            paid_updates: 10_000,
            spare_continuations: 5,
            interim_heads: 16,
            chunk_extensions: 1_024,
            chunk_trailers: 8 * 1_024,
            server_resets: Rate { burst: 100, per_second: 200 },
            peer_resets: Rate { burst: 2_000, per_second: 1_000 },
            peer_idle_frames: Rate { burst: 10_000, per_second: 5_000 },
            drain: Duration::from_secs(25),
        }
    }
}
