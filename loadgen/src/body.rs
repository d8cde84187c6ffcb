//! Bodies over HTTP/2 with flow control, for both roles.
//!
//! Always: at most [`CHUNK`] bytes of a body are reserved at a time, and none are queued without send capacity;
//! receive capacity is released only for bytes that were taken. A body ends in END_STREAM or in an error.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};

use crate::error::Error;

/// How much of a body is reserved at once: one maximal TLS record, as more would only sit in a queue.
const CHUNK: usize = 16 * 1024;

/// Sends all of `bytes`, waiting for send capacity (RFC 9113 §6.9); `end` closes the sending side with the last frame.
pub(crate) async fn send_all(stream: &mut SendStream<Bytes>, mut bytes: Bytes, end: bool) -> Result<(), h2::Error> {
    if bytes.is_empty() && end {
        return stream.send_data(Bytes::new(), true);
    }
    while !bytes.is_empty() {
        let capacity = capacity(stream, bytes.len().min(CHUNK)).await?;
        let chunk = bytes.split_to(capacity.min(bytes.len()));
        stream.send_data(chunk, end && bytes.is_empty())?;
    }
    Ok(())
}

/// Waits until some of the wanted capacity is there; more than zero bytes.
async fn capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, h2::Error> {
    stream.reserve_capacity(wanted);
    // `poll_capacity` reports only growth, so what is there already has to be looked at first.
    while stream.capacity() == 0 {
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(granted) => {
                granted?;
            }
            // The stream no longer takes bytes: it was reset, and the reason is the error.
            None => return Err(h2::Error::from(poll_fn(|cx| stream.poll_reset(cx)).await?)),
        }
    }
    Ok(stream.capacity())
}

/// Reads a body to its end; more than `limit` bytes is [`Error::TooLarge`].
pub(crate) async fn read_all(body: &mut RecvStream, limit: usize) -> Result<Bytes, Error> {
    let mut all = BytesMut::new();
    while let Some(chunk) = next_chunk(body).await? {
        if all.len() + chunk.len() > limit {
            return Err(Error::TooLarge(limit));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}

/// The next piece of a body, its capacity released; `None` is the clean end.
pub(crate) async fn next_chunk(body: &mut RecvStream) -> Result<Option<Bytes>, h2::Error> {
    let Some(chunk) = body.data().await else {
        return Ok(None);
    };
    let chunk = chunk?;
    body.flow_control().release_capacity(chunk.len())?;
    Ok(Some(chunk))
}
