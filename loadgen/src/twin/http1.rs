//! HTTP/1.1: every request becomes a stream of an HTTP/2 connection in memory, so that one implementation answers both.
//!
//! Always: one request at a time, its body first, then the response as it comes; trailers are dropped. A client that goes resets its
//! stream.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

use crate::body::send_all;
use crate::error::Error;

use super::exchange::Served;
use super::serve;

/// What is in flight between the two.
const PIPE: usize = 64 << 10;
/// Headers that are about an HTTP/1.1 connection, or are something else in HTTP/2 (RFC 9113 §8.2.2).
const HOP: [&str; 7] = ["connection", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// Serves one connection until it ends. Dropping the future cuts it.
pub(super) async fn serve(
    tls: TlsStream<TcpStream>,
    served: Arc<Served>,
    certified: bool,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    let (near, far) = tokio::io::duplex(PIPE);
    let (send, streams) = h2::client::handshake(near).await?;
    let service = service_fn(move |request| forward(send.clone(), request));
    let mut client = pin!(http1::Builder::new().serve_connection(TokioIo::new(tls), service));
    let mut streams = pin!(streams);
    let mut answers = pin!(serve::http2(far, served, certified, stopping.clone()));
    let (mut streams_ended, mut answers_ended, mut is_stopping) = (false, false, false);
    loop {
        // What ended inside has said so to every stream; what was answered has still to be written.
        tokio::select! {
            ended = &mut client => return ended.map_err(|error| Error::Io("HTTP/1.1".into(), std::io::Error::other(error))),
            _ = &mut streams, if !streams_ended => streams_ended = true,
            _ = &mut answers, if !answers_ended => answers_ended = true,
            () = serve::stopped(&mut stopping), if !is_stopping => is_stopping = true,
        }
        if streams_ended || is_stopping {
            client.as_mut().graceful_shutdown();
        }
    }
}

async fn forward(send: SendRequest<Bytes>, request: Request<Incoming>) -> Result<Response<Received>, h2::Error> {
    let (mut head, body) = request.into_parts();
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    let host = head.headers.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    (uri.scheme, uri.authority) = (Some(Scheme::HTTPS), Some(host.unwrap_or_else(|| Authority::from_static("localhost"))));
    // Without path and authority it is refused below.
    head.uri = Uri::from_parts(uri).unwrap_or_default();
    for name in HOP {
        head.headers.remove(name);
    }
    let is_bodiless = body.is_end_stream();
    let (response, stream) = send.ready().await?.send_request(Request::from_parts(head, ()), is_bodiless)?;
    if !is_bodiless {
        send_body(body, stream).await;
    }
    let (mut head, body) = response.await?.into_parts();
    head.version = Version::HTTP_11;
    Ok(Response::from_parts(head, Received(body)))
}

/// Sends the body as it comes. What becomes of it is the response's to say.
async fn send_body(mut body: Incoming, mut stream: SendStream<Bytes>) {
    loop {
        let sent = match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => send_all(&mut stream, bytes, false).await,
                Err(_trailers) => Ok(()),
            },
            Some(Err(_)) => return stream.send_reset(Reason::CANCEL),
            None => return drop(stream.send_data(Bytes::new(), true)),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// A response body out of HTTP/2.
struct Received(RecvStream);

impl Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let chunk = ready!(self.0.poll_data(cx));
        Poll::Ready(chunk.map(|chunk| {
            let chunk = chunk?;
            self.0.flow_control().release_capacity(chunk.len())?;
            Ok(Frame::data(chunk))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
