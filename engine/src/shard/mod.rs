//! A shard: one pinned thread with one ring, and the tasks that wait on it.
//!
//! ```text
//!  ring --readable--> reader task --> State::on_readable --> Core      every socket that is ready in this wake-up
//!                                                              |
//!  main future (runs when no task is left) <-- dirty, actions -'      then one encrypted write for each connection
//! ```
//!
//! What always holds: no task keeps the state borrowed across a wait; nothing wakes itself without bound (monoio submits
//! without waiting while tasks are ready, and with DEFER_TASKRUN completions are then not reaped).
//! Dropping a task's future cancels a poll only: the kernel never owns a buffer of ours.

mod gate;
mod gather;
mod link;
mod listen;
mod mailbox;
pub(crate) mod ring;
mod state;
mod sys;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use arc_swap::ArcSwap;
use monoio::net::TcpStream;

use crate::config::Config;
use crate::core::{Action, ConnKey, Core, DOUBT_TICK, Destination, Ended, Port, Source};
use crate::tls::{Configs, Session, server_name};
use gate::Gate;
use link::{Link, Writer};
use mailbox::Mail;
use state::{Flushed, Next, State};

pub(crate) use gather::Gather;
pub(crate) use listen::{Listeners, Loads, bind};
pub(crate) use mailbox::{Receiver, Sender, mailbox};

/// Connections accepted before other sockets get their turn.
const ACCEPTS: usize = 64;
/// Reads of one socket before others get their turn.
const READS: usize = 4;
/// How long accepting pauses when there is no place.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Keep-alive of idle connections: kube-apiserver's interval is 3 min; a minute notices vanished clients sooner.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What a shard shares with the others.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) tls: ArcSwap<Configs>,
    /// Rises when connections to servers made before are to be replaced.
    pub(crate) server_tls_generation: AtomicU64,
    pub(crate) loads: Loads,
    pub(crate) mail: Vec<Sender>,
    pub(crate) published: Vec<crate::engine::Published>,
    pub(crate) draining: AtomicBool,
    /// Client connections of all shards together.
    pub(crate) client_places: usize,
}

/// One shard, on its own thread.
pub(crate) struct Shard {
    index: usize,
    shared: Arc<Shared>,
    state: RefCell<State>,
    /// Wakes the main future.
    flusher: RefCell<Option<Waker>>,
    draining: Cell<bool>,
    server_tls_generation: Cell<u64>,
    /// Of both ports.
    paused_acceptors: RefCell<Vec<Waker>>,
    listeners: RefCell<Vec<RawFd>>,
    gather: Option<Gather>,
}

impl Shard {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, core: Core, gather: Option<Gather>) -> Rc<Self> {
        let gate = Gate::new(&shared.config.limits);
        Rc::new(Self {
            index,
            shared,
            state: RefCell::new(State::new(core, gate)),
            flusher: RefCell::new(None),
            draining: Cell::new(false),
            server_tls_generation: Cell::new(0),
            paused_acceptors: RefCell::new(Vec::new()),
            listeners: RefCell::new(Vec::new()),
            gather,
        })
    }

    /// Runs until the shard is drained. Must be the main future of the thread's runtime.
    pub(crate) async fn run(self: Rc<Self>, listeners: Listeners, mail: Receiver) -> io::Result<()> {
        let ports = [(Some(listeners.clients), Port::Clients), (listeners.peers, Port::Peers)];
        for (listener, port) in ports.into_iter().filter_map(|(listener, port)| Some((listener?, port))) {
            self.listeners.borrow_mut().push(listener.as_raw_fd());
            monoio::spawn(Self::accept(self.clone(), monoio::net::TcpListener::from_std(listener)?, port));
        }
        let (mail, mail_fd) = mail.into_stream()?;
        monoio::spawn(Self::read_mail(self.clone(), mail, mail_fd));
        self.tick();
        // Polled by monoio when every ready task has run: the end of a wake-up.
        poll_fn(|context| {
            if self.flusher.borrow().is_none() {
                *self.flusher.borrow_mut() = Some(context.waker().clone());
            }
            self.flush();
            if self.draining.get() && self.state.borrow().core.is_drained() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(())
    }

    fn wake_flusher(&self) {
        if let Some(waker) = &*self.flusher.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Sends what the wake-up produced and does what the core asked for, until nothing is left to do.
    fn flush(self: &Rc<Self>) {
        let mut is_quiet = true;
        loop {
            let mut state = self.state.borrow_mut();
            if let Some(key) = state.core.poll_dirty() {
                let flushed = state.flush(key);
                drop(state);
                is_quiet &= flushed == Flushed::Done;
                self.start_writer(key, flushed);
            } else if let Some(action) = state.core.poll_action() {
                drop(state);
                is_quiet = false;
                self.act(action);
            } else {
                let events = state.end_turn();
                let closed = std::mem::take(&mut state.clients_closed);
                drop(state);
                for _ in 0..closed {
                    self.shared.loads.release(self.index);
                }
                // Whoever has something to do does it first.
                if is_quiet && let (Some(gather), Some(events)) = (&self.gather, events) {
                    gather.wait(events, self.shared.config.limits.gather_time);
                }
                return;
            }
        }
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Close { conn } => {
                let flushed = self.state.borrow_mut().close(conn);
                self.start_writer(conn, flushed);
            }
            Action::Blame { conn } => {
                let mut state = self.state.borrow_mut();
                state.blame(conn);
                // Until then it may read why.
                self.shared.published[self.index].hurry(state.now() + self.shared.config.limits.offender_close);
            }
            Action::Report(sign) => {
                // Somebody may wait for what comes of it.
                let soon = self.state.borrow_mut().now() + DOUBT_TICK;
                self.shared.published[self.index].hurry(soon);
                if let Some(report) = &self.shared.config.report {
                    report(sign);
                }
            }
            Action::Cut { conn } => self.state.borrow_mut().cut(conn),
            Action::Read { conn } => self.state.borrow_mut().resume_reader(conn),
            Action::Connect { conn, address, destination } => {
                self.connect(conn, address, destination);
            }
        }
    }

    fn start_writer(self: &Rc<Self>, key: ConnKey, flushed: Flushed) {
        if flushed == Flushed::NeedsWriter
            && let Some(stream) = self.state.borrow_mut().link(key).map(|link| link.stream.clone())
        {
            monoio::spawn(Self::write(self.clone(), key, stream));
        }
    }

    async fn accept(self: Rc<Self>, listener: monoio::net::TcpListener, port: Port) {
        let fd = listener.as_raw_fd();
        while listener.readable(false).await.is_ok() && !self.draining.get() {
            for _ in 0..ACCEPTS {
                if self.is_full(port) {
                    self.pause_accepting().await;
                    break;
                }
                match sys::accept(fd) {
                    Ok(connection) => self.place(connection, port),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
                        self.pause_accepting().await;
                        break;
                    }
                    // The client gave up before we came to it.
                    Err(_) => {}
                }
            }
            self.wake_flusher();
        }
    }

    /// Should new connections wait in the kernel? Clients leave some places to other proxies.
    fn is_full(&self, port: Port) -> bool {
        let places = self.shared.client_places;
        if port == Port::Peers {
            return self.shared.loads.total() >= places;
        }
        let mut state = self.state.borrow_mut();
        let now = state.now();
        state.gate.is_crowded(now) || self.shared.loads.total() >= places - places / 100 * self.shared.config.limits.peer_percent
    }

    /// Gives a new connection to the least loaded shard.
    fn place(self: &Rc<Self>, connection: OwnedFd, port: Port) {
        let target = self.shared.loads.reserve(self.index);
        if target == self.index {
            return self.adopt(connection, port);
        }
        if let Err(connection) = self.shared.mail[target].adopt(connection, port) {
            self.shared.loads.keep(target, self.index);
            self.adopt(connection, port);
        }
    }

    /// Takes over a client connection; its load is reserved already.
    fn adopt(self: &Rc<Self>, connection: OwnedFd, port: Port) {
        let mut state = self.state.borrow_mut();
        let now = state.now();
        let connection = std::net::TcpStream::from(connection);
        let source = connection.peer_addr().ok().map(|address| Source::from(address.ip()));
        // What a client did is not held against a proxy of the same address.
        if port == Port::Clients && source.is_some_and(|source| !state.gate.admits(source, now)) {
            return self.shared.loads.release(self.index);
        }
        let tls = self.shared.tls.load();
        let (Some(Ok(session)), Ok((stream, fd))) = (serve(&tls, port, &connection), tune(connection)) else {
            return self.shared.loads.release(self.index);
        };
        let Some(key) = state.core.handle_accepted(port, source, now) else {
            return self.shared.loads.release(self.index);
        };
        let stream = Rc::new(stream);
        let mut link = Link::new(key, stream.clone(), fd, session, true);
        let mut cut = None;
        if let Some(source) = source {
            link.source = Some(source);
            let (ticket, oldest) = state.gate.begin(key, (port, source), now);
            link.handshake = Some(ticket);
            cut = oldest;
        }
        state.insert(link);
        if let Some(oldest) = cut {
            state.lose(oldest, Ended::Lost);
        }
        state.note_task();
        drop(state);
        monoio::spawn(Self::read(self.clone(), key, stream));
    }

    /// Begins to connect; the link is there at once, so that the core can give it up at any time.
    fn connect(self: &Rc<Self>, key: ConnKey, address: SocketAddr, destination: Destination) {
        let tls = self.shared.tls.load();
        let tls = match destination {
            Destination::Local => Some(&tls.local),
            Destination::Peer => Some(&tls.peer),
            Destination::Proxy => tls.proxy.as_ref(),
        };
        let session = tls.and_then(|tls| Session::client(tls, server_name()).ok());
        let mut state = self.state.borrow_mut();
        let (Ok(stream), Some(session)) = (dial(address, self.shared.config.limits.connect), session) else {
            return state.lose(key, Ended::Unreachable);
        };
        let fd = stream.as_raw_fd();
        let stream = Rc::new(stream);
        state.insert(Link::new(key, stream.clone(), fd, session, false));
        drop(state);
        monoio::spawn(Self::finish_connect(self.clone(), key, stream));
    }

    async fn finish_connect(self: Rc<Self>, key: ConnKey, stream: Rc<TcpStream>) {
        if !connected(&stream, self.shared.config.limits.user_timeout).await {
            self.state.borrow_mut().lose(key, Ended::Unreachable);
            return self.wake_flusher();
        }
        let flushed = self.state.borrow_mut().begin_session(key);
        self.start_writer(key, flushed);
        self.wake_flusher();
        Self::read(self, key, stream).await;
    }

    async fn read(self: Rc<Self>, key: ConnKey, stream: Rc<TcpStream>) {
        // With io_uring every wait is a turn of the ring; with epoll a socket that has more to read does not wait at all.
        let is_epoll = monoio::utils::is_legacy();
        let mut reads = 0;
        loop {
            if stream.readable(false).await.is_err() {
                self.state.borrow_mut().lose(key, Ended::Lost);
                return self.wake_flusher();
            }
            let (next, flushed) = self.state.borrow_mut().on_readable(key);
            self.start_writer(key, flushed);
            self.wake_flusher();
            reads += 1;
            match next {
                Next::Read if is_epoll && reads % READS == 0 => give_way().await,
                Next::Later if is_epoll => give_way().await,
                Next::Read | Next::Later => {}
                Next::Hold => self.hold(key).await,
                Next::End => return,
            }
        }
    }

    /// Waits until the client has read what we have for it.
    async fn hold(&self, key: ConnKey) {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.wants_read(key) {
                return Poll::Ready(());
            }
            match state.link(key) {
                Some(link) => {
                    link.held_reader = Some(context.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Sends what a full socket left behind, then waits to be needed again.
    async fn write(self: Rc<Self>, key: ConnKey, stream: Rc<TcpStream>) {
        loop {
            if stream.writable(false).await.is_err() {
                self.state.borrow_mut().lose(key, Ended::Lost);
                return self.wake_flusher();
            }
            let done = self.state.borrow_mut().on_writable(key);
            self.wake_flusher();
            if done && !self.writer_needed(key).await {
                return;
            }
        }
    }

    /// Waits until the socket is full again; false when the connection is gone.
    async fn writer_needed(&self, key: ConnKey) -> bool {
        let mut parked = false;
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if parked && state.link(key).is_some_and(|link| matches!(link.writer, Writer::Busy)) {
                return Poll::Ready(true);
            }
            parked = true;
            if state.park_writer(key, context.waker()) { Poll::Pending } else { Poll::Ready(false) }
        })
        .await
    }

    async fn read_mail(self: Rc<Self>, stream: monoio::net::UnixStream, fd: RawFd) {
        while stream.readable(false).await.is_ok() {
            while let Some(mail) = mailbox::next(fd) {
                match mail {
                    Mail::Adopt(connection, port) => self.adopt(connection, port),
                    Mail::Drain => self.drain(),
                    Mail::Tick => self.tick(),
                    #[allow(clippy::panic, reason = "what the test wants")]
                    Mail::Panic => panic!("a test asked for it"),
                }
            }
            self.wake_flusher();
        }
    }

    fn drain(&self) {
        if !self.draining.replace(true) {
            // Ends the accept tasks; connections the kernel still holds are refused.
            for &listener in &*self.listeners.borrow() {
                sys::shutdown(listener, libc::SHUT_RDWR);
            }
            let mut state = self.state.borrow_mut();
            let now = state.now();
            state.core.begin_drain(now);
        }
    }

    fn tick(&self) {
        if self.shared.draining.load(Ordering::Relaxed) {
            self.drain();
        }
        let mut state = self.state.borrow_mut();
        let now = state.now();
        let generation = self.shared.server_tls_generation.load(Ordering::Relaxed);
        if self.server_tls_generation.replace(generation) != generation {
            state.core.retire_servers(now);
        }
        state.core.handle_tick(now);
        if state.trim()
            && let Some(release) = self.shared.config.release
        {
            release();
        }
        state.lose_held();
        let offenders_left = state.cut_slow_closes();
        let next = state.core.next_tick(now);
        let next = if offenders_left { next.min(now + self.shared.config.limits.offender_close / 2) } else { next };
        let published = &self.shared.published[self.index];
        published.set(state.counters(), now, next);
        state.publish_meters(published);
        state.note_task();
        drop(state);
        for acceptor in self.paused_acceptors.take() {
            acceptor.wake();
        }
    }

    /// Waits for the next tick, which comes soon: no busy loop.
    async fn pause_accepting(&self) {
        let soon = self.state.borrow_mut().now() + ACCEPT_PAUSE;
        self.shared.published[self.index].hurry(soon);
        let mut paused = false;
        poll_fn(|context| {
            if std::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            self.paused_acceptors.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A session for who came in by that port.
fn serve(tls: &Configs, port: Port, connection: &std::net::TcpStream) -> Option<Result<Session, crate::tls::TlsError>> {
    let config = match port {
        Port::Peers => tls.peer_port.as_ref()?,
        Port::Clients => {
            let local = if tls.clients.looks_at_addresses() { connection.local_addr().ok() } else { None };
            tls.clients.config_for(local.map(|address| address.ip()))
        }
    };
    Some(Session::server(config))
}

/// Lets everybody else run once.
async fn give_way() {
    let mut gave = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A socket on its way to `address`. The kernel gives up after `limit`.
fn dial(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    sys::set_user_timeout(socket.as_raw_fd(), limit);
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    Ok(tune(std::net::TcpStream::from(socket))?.0)
}

/// Waits until the kernel has connected a socket, or given up. From then on it gives up when sent bytes stay unacknowledged for `limit`.
async fn connected(stream: &TcpStream, limit: Duration) -> bool {
    let fd = stream.as_raw_fd();
    if stream.writable(false).await.is_err() || !sys::is_connected(fd) {
        return false;
    }
    sys::set_user_timeout(fd, limit);
    true
}

/// A socket as we want it, registered with this thread's ring.
fn tune(stream: std::net::TcpStream) -> io::Result<(TcpStream, RawFd)> {
    stream.set_nodelay(true)?;
    let stream = TcpStream::from_std(stream)?;
    stream.set_tcp_keepalive(Some(KEEPALIVE), Some(KEEPALIVE), None)?;
    let fd = stream.as_raw_fd();
    Ok((stream, fd))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::IntoRawFd;

    use socket2::SockRef;

    use super::*;
    use ring::{Rung, build};

    const CONNECT: Duration = Duration::from_millis(1_234);
    const USER_TIMEOUT: Duration = Duration::from_millis(4_321);
    const TUNED: (bool, Duration, Duration, bool) = (true, KEEPALIVE, KEEPALIVE, true);

    /// monoio's sockets show none of their options, and std's do.
    fn looked_at(stream: TcpStream) -> std::net::TcpStream {
        sys::adopt(stream.into_raw_fd()).into()
    }

    /// Keep-alive (on, after, between), and is nothing delayed?
    fn tuning(stream: &std::net::TcpStream) -> (bool, Duration, Duration, bool) {
        let socket = SockRef::from(stream);
        let (after, between) = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        (socket.keepalive().unwrap(), after, between, stream.nodelay().unwrap())
    }

    fn user_timeout(stream: &std::net::TcpStream) -> Option<Duration> {
        SockRef::from(stream).tcp_user_timeout().unwrap()
    }

    #[test]
    fn a_connect_has_a_limit_and_what_is_sent_then_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        build(Rung::Epoll).unwrap().block_on(async {
            let begun = looked_at(dial(address, CONNECT).unwrap());
            assert_eq!((user_timeout(&begun), tuning(&begun)), (Some(CONNECT), TUNED));
            let stream = dial(address, CONNECT).unwrap();
            assert!(connected(&stream, USER_TIMEOUT).await);
            let stream = looked_at(stream);
            assert_eq!((user_timeout(&stream), tuning(&stream)), (Some(USER_TIMEOUT), TUNED));
        });
    }

    #[test]
    fn a_server_that_refuses_is_not_connected() {
        // Bound, so that nobody else takes the port, and not listening.
        let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = bound.local_addr().unwrap().as_socket().unwrap();
        build(Rung::Epoll).unwrap().block_on(async {
            assert!(!connected(&dial(address, CONNECT).unwrap(), USER_TIMEOUT).await);
        });
    }

    #[test]
    fn a_client_that_vanished_is_noticed_and_an_answer_not_delayed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (on, after, between, is_prompt) = tuning(&accepted);
        assert!(!on && after != KEEPALIVE && between != KEEPALIVE && !is_prompt, "what the kernel does by itself shows nothing");
        build(Rung::Epoll).unwrap().block_on(async {
            let (stream, fd) = tune(accepted).unwrap();
            assert_eq!(fd, stream.as_raw_fd());
            assert_eq!(tuning(&looked_at(stream)), TUNED);
        });
    }
}
