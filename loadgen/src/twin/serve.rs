//! The listener and the connections of a twin: one task each, in a tree under the listener's. HTTP/1.1 is made HTTP/2 by `http1`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::error::Error;
use crate::tls::HTTP1;

use super::exchange::{Exchange, Served};
use super::{Counters, TwinConfig, http1};

/// For the TLS handshake and for the HTTP/2 preface, each; kube-apiserver's limit for the latter.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts until the twin stops, then waits for the connections. Dropping the future cuts them all.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    served: Arc<Served>,
    mut stopping: watch::Receiver<bool>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    let counters = &served.counters;
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = listener.accept() => match accepted {
                Ok((tcp, _)) if connections.len() < served.config.max_connections => {
                    counters.connections.fetch_add(1, Relaxed);
                    let connection = connection(tcp, acceptor.clone(), Arc::clone(&served), stopping.clone());
                    connections.spawn(connection);
                }
                // Too many: closing it is the answer.
                Ok(_) => {}
                // Out of file descriptors, most likely: accepting again at once would spin.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(ended) = connections.join_next() => counters.note(&ended),
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        counters.note(&ended);
    }
}

/// Returns when the twin stops.
pub(super) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_err() {
        // The twin was aborted: nothing ends well any more. A watch that ended cleanly here would look like an honest end.
        std::future::pending().await
    }
}

async fn connection(tcp: TcpStream, acceptor: TlsAcceptor, served: Arc<Served>, stopping: watch::Receiver<bool>) -> Result<(), Error> {
    let failed = |source| Error::Io(String::from("TLS accept"), source);
    tcp.set_nodelay(true).map_err(failed)?;
    let tls = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(tcp)).await;
    let tls = tls.map_err(|_| Error::Timeout("TLS handshake"))?.map_err(failed)?;
    let session = tls.get_ref().1;
    let certified = session.peer_certificates().is_some();
    if session.alpn_protocol() == Some(HTTP1) {
        return http1::serve(tls, served, certified, stopping).await;
    }
    http2(tls, served, certified, stopping).await
}

/// Serves one connection that speaks HTTP/2.
pub(super) async fn http2<T: AsyncRead + AsyncWrite + Unpin>(
    wire: T,
    served: Arc<Served>,
    certified: bool,
    stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let builder = settings(&served.config);
    let http2 = timeout(HANDSHAKE_TIMEOUT, builder.handshake(wire)).await;
    let http2 = http2.map_err(|_| Error::Timeout("HTTP/2 preface"))??;
    exchanges(http2, served, certified, stopping).await
}

fn settings(config: &TwinConfig) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(config.max_concurrent_streams)
        .initial_window_size(config.stream_window)
        .initial_connection_window_size(config.connection_window)
        .max_frame_size(config.max_frame)
        .max_header_list_size(config.max_header_list)
        // As Go, which bears four times its streams in requests that are over before they began; `h2` bears 20.
        .max_pending_accept_reset_streams(4 * config.max_concurrent_streams as usize);
    builder
}

/// Serves the exchanges of one connection, one task each, until the connection ends.
async fn exchanges<T: AsyncRead + AsyncWrite + Unpin>(
    mut http2: h2::server::Connection<T, Bytes>,
    served: Arc<Served>,
    certified: bool,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let counters = &served.counters;
    let mut running = JoinSet::new();
    let mut requests = 0u32;
    let mut draining = false;
    loop {
        tokio::select! {
            () = stopped(&mut stopping), if !draining => {
                draining = true;
                http2.graceful_shutdown();
            }
            accepted = http2.accept() => {
                let Some(accepted) = accepted else { break };
                let (request, respond) = accepted?;
                counters.requests.fetch_add(1, Relaxed);
                requests = requests.saturating_add(1);
                if served.config.goaway_every.is_some_and(|every| requests >= every) {
                    http2.graceful_shutdown();
                }
                let exchange = Exchange::new(Arc::clone(&served), request, respond, certified, stopping.clone());
                running.spawn(exchange.serve());
            }
            Some(ended) = running.join_next() => counters.note(&ended),
        }
    }
    Ok(())
}

impl Counters {
    /// Counts a task that did not end well.
    fn note(&self, ended: &Result<Result<(), Error>, JoinError>) {
        if !matches!(ended, Ok(Ok(()))) {
            self.failures.fetch_add(1, Relaxed);
        }
    }
}
