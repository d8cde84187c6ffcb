//! Plaintext waiting to leave on one connection: frames in order, body blocks woven in without a copy.
//!
//! What always holds: frames leave in the order they were put; a DATA head promises exactly the bytes that follow it; an empty
//! outbox owns no buffer.

use super::ExchangeKey;
use super::body::{Blocks, Chunk, Copied};
use crate::http2::frame::{self, MAX_DATA, flag, kind};

/// A new buffer: what a dozen small answers need, so that it seldom has to grow.
const FIRST_CAPACITY: usize = 16 * 1024;
/// New lists of credits and blocks: what a watch connection needs; busy ones grow to their high-water mark once.
const FIRST_LIST: usize = 8;
/// A buffer that grew beyond this is freed instead of kept: twice what holds streams back.
const SPARE_CAPACITY: usize = 256 * 1024;
/// Buffers that are kept although nobody needed them for a while, when they are small.
const KEPT_BUFFERS: usize = 32;
const KEPT_BYTES: usize = 2 * 1024 * 1024;
/// All buffers kept for reuse.
const SPARE_BYTES: usize = 16 * 1024 * 1024;

/// Empty buffers of a shard, lent to outboxes while they hold something.
#[derive(Default)]
pub(crate) struct Buffers {
    spare: Vec<Vec<u8>>,
    /// Sum of the capacities in `spare`; `bytes <= SPARE_BYTES`.
    bytes: usize,
    /// The fewest there were since the last [`Buffers::trim`].
    unneeded: usize,
}

impl Buffers {
    /// Frees half of what nobody needed since the last time.
    pub(crate) fn trim(&mut self) {
        let keep = self.spare.len() - self.unneeded.min(self.spare.len()).div_ceil(2);
        let floor = if self.bytes <= KEPT_BYTES { KEPT_BUFFERS.min(self.spare.len()) } else { 0 };
        for buffer in self.spare.drain(keep.max(floor)..) {
            self.bytes -= buffer.capacity();
        }
        self.unneeded = self.spare.len();
    }

    /// Bytes of all of them.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }

    fn take(&mut self) -> Vec<u8> {
        self.unneeded = self.unneeded.min(self.spare.len().saturating_sub(1));
        match self.spare.pop() {
            Some(buffer) => {
                self.bytes -= buffer.capacity();
                buffer
            }
            None => Vec::with_capacity(FIRST_CAPACITY),
        }
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && capacity <= SPARE_CAPACITY && self.bytes + capacity <= SPARE_BYTES {
            buffer.clear();
            self.bytes += capacity;
            self.spare.push(buffer);
        }
    }
}

/// Bytes of one exchange inside the outbox; when they have left, the sender's window is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    pub(crate) exchange: ExchangeKey,
    pub(crate) bytes: u32,
}

/// The writing half of a connection.
#[derive(Default)]
pub(crate) struct Outbox {
    frames: Vec<u8>,
    /// Blocks to weave in: each stands in front of `frames[at..]`. `at` never falls.
    woven: Vec<(usize, Chunk)>,
    woven_len: usize,
    /// Where the head of the last frame is, when that frame is DATA that more bytes of its stream may extend.
    open_data: Option<(u32, usize)>,
    waiting_credits: Vec<Credit>,
    leaving_credits: Vec<Credit>,
    /// Bytes ever put, and ever drained: `drained <= put`.
    put: u64,
    drained: u64,
    /// Bytes drained that the kernel has not taken yet.
    leaving: usize,
}

impl Outbox {
    /// Plaintext bytes waiting.
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.woven_len
    }

    /// Bytes held here and on their way to the kernel, those in blocks not counted.
    pub(crate) fn held(&self) -> usize {
        self.frames.len() + self.leaving
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.woven.is_empty()
    }

    /// How many bytes were ever put: a mark for [`Outbox::has_left`].
    pub(crate) fn mark(&self) -> u64 {
        self.put + self.frames.len() as u64
    }

    /// Has the first byte behind `mark` been drained?
    pub(crate) fn has_left(&self, mark: u64) -> bool {
        self.drained > mark
    }

    /// The buffer to append whole frames (not DATA) to.
    pub(crate) fn frames(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        self.open_data = None;
        if self.frames.capacity() == 0 {
            self.frames = buffers.take();
        }
        &mut self.frames
    }

    /// Appends body bytes of `stream`, extending the last frame when it is the same stream's.
    pub(crate) fn data(&mut self, stream: u32, mut bytes: &[u8], end: bool, buffers: &mut Buffers, copied: &mut Copied) {
        if let Some((open, at)) = self.open_data
            && open == stream
        {
            let have = self.frames.len() - at - frame::HEAD_LEN;
            let (more, rest) = bytes.split_at(bytes.len().min(MAX_DATA - have));
            copied.into(&mut self.frames, more);
            frame::patch_len(&mut self.frames, at, have + more.len());
            bytes = rest;
            if bytes.is_empty() {
                if end {
                    self.end_open_data(at);
                }
                return;
            }
        }
        loop {
            let (now, rest) = bytes.split_at(bytes.len().min(MAX_DATA));
            let last = end && rest.is_empty();
            let frames = self.frames(buffers);
            let at = frames.len();
            frame::put_head(frames, now.len(), kind::DATA, if last { flag::END_STREAM } else { 0 }, stream);
            copied.into(frames, now);
            self.open_data = if last { None } else { Some((stream, at)) };
            bytes = rest;
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// Appends a body block without copying it.
    pub(crate) fn chunk(&mut self, stream: u32, chunk: Chunk, end: bool, buffers: &mut Buffers) {
        let frames = self.frames(buffers);
        frame::put_head(frames, chunk.range.len(), kind::DATA, if end { flag::END_STREAM } else { 0 }, stream);
        self.weave(chunk, buffers);
    }

    /// Puts a block behind what is there, as it is.
    pub(crate) fn weave(&mut self, chunk: Chunk, buffers: &mut Buffers) {
        self.frames(buffers);
        self.woven_len += chunk.range.len();
        if self.woven.capacity() == 0 {
            self.woven.reserve(FIRST_LIST);
        }
        self.woven.push((self.frames.len(), chunk));
    }

    /// Notes that the last bytes put belong to an exchange that wants to know when they have left.
    pub(crate) fn credit(&mut self, exchange: ExchangeKey, bytes: u32) {
        match self.waiting_credits.last_mut() {
            Some(last) if last.exchange == exchange => last.bytes = last.bytes.saturating_add(bytes),
            _ => {
                if self.waiting_credits.capacity() == 0 {
                    self.waiting_credits.reserve(FIRST_LIST);
                }
                self.waiting_credits.push(Credit { exchange, bytes });
            }
        }
    }

    /// Hands everything to `sink` in order, and is empty.
    pub(crate) fn drain(&mut self, buffers: &mut Buffers, blocks: &mut Blocks, mut sink: impl FnMut(&[u8])) {
        self.leaving += self.len();
        let mut from = 0;
        for (at, chunk) in self.woven.drain(..) {
            sink(&self.frames[from..at]);
            sink(&chunk.block[chunk.range.clone()]);
            blocks.give(chunk.block);
            from = at;
        }
        if from < self.frames.len() {
            sink(&self.frames[from..]);
        }
        self.woven_len = 0;
        self.put += self.frames.len() as u64;
        self.drained = self.put;
        self.open_data = None;
        if self.leaving_credits.is_empty() {
            std::mem::swap(&mut self.leaving_credits, &mut self.waiting_credits);
        } else {
            self.leaving_credits.append(&mut self.waiting_credits);
        }
        buffers.give(std::mem::take(&mut self.frames));
    }

    /// What was drained has been taken by the kernel; its credits, to be returned through [`Outbox::return_credits`].
    pub(crate) fn take_credits(&mut self) -> Vec<Credit> {
        self.leaving = 0;
        std::mem::take(&mut self.leaving_credits)
    }

    /// Gives the emptied list back for reuse.
    pub(crate) fn return_credits(&mut self, mut credits: Vec<Credit>) {
        if self.leaving_credits.is_empty() {
            credits.clear();
            self.leaving_credits = credits;
        }
    }

    /// Drops everything, for a connection that is gone.
    pub(crate) fn clear(&mut self, buffers: &mut Buffers, blocks: &mut Blocks) {
        for (_, chunk) in self.woven.drain(..) {
            blocks.give(chunk.block);
        }
        self.woven_len = 0;
        self.leaving = 0;
        self.open_data = None;
        buffers.give(std::mem::take(&mut self.frames));
        self.waiting_credits = Vec::new();
        self.leaving_credits = Vec::new();
    }

    /// Frees what only a busy connection needs.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            self.woven.shrink_to(0);
            self.waiting_credits.shrink_to(0);
            self.leaving_credits.shrink_to(0);
        }
    }

    fn end_open_data(&mut self, at: usize) {
        self.frames[at + 4] |= flag::END_STREAM;
        self.open_data = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::body::Holding;

    fn drained(outbox: &mut Outbox, buffers: &mut Buffers, blocks: &mut Blocks) -> Vec<u8> {
        let mut all = Vec::new();
        outbox.drain(buffers, blocks, |piece| all.extend_from_slice(piece));
        all
    }

    #[test]
    fn consecutive_data_of_one_stream_is_one_frame() {
        let (mut outbox, mut buffers, mut blocks, mut copied) = Default::default();
        let outbox: &mut Outbox = &mut outbox;
        outbox.data(1, b"ab", false, &mut buffers, &mut copied);
        outbox.data(1, b"cd", true, &mut buffers, &mut copied);
        assert_eq!(drained(outbox, &mut buffers, &mut blocks), b"\0\0\x04\0\x01\0\0\0\x01abcd");
        assert_eq!((outbox.is_empty(), outbox.len()), (true, 0));
    }

    #[test]
    fn large_data_fills_tls_records_exactly() {
        let (mut outbox, mut buffers, mut blocks, mut copied) = Default::default();
        let outbox: &mut Outbox = &mut outbox;
        outbox.data(3, &[7; 40_000], true, &mut buffers, &mut copied);
        let all = drained(outbox, &mut buffers, &mut blocks);
        assert_eq!(all.len(), 40_000 + 3 * 9);
        assert_eq!(&all[..3], &[0, 0x3f, 0xf7]);
        assert_eq!((all[4], all[16_384 + 4], all[32_768 + 4]), (0, 0, flag::END_STREAM));
    }

    #[test]
    fn blocks_are_woven_in_at_their_place() {
        let (mut outbox, mut buffers, mut blocks, mut copied) = Default::default();
        let (outbox, mut holding): (&mut Outbox, _) = (&mut outbox, Holding::default());
        holding.push(b"held", &mut blocks, &mut copied);
        frame::put_ping(outbox.frames(&mut buffers), false, [1; 8]);
        outbox.chunk(5, holding.pop(9, &mut blocks).unwrap(), true, &mut buffers);
        outbox.data(7, b"z", false, &mut buffers, &mut copied);
        assert_eq!(outbox.len(), 17 + 9 + 4 + 9 + 1);
        let all = drained(outbox, &mut buffers, &mut blocks);
        assert_eq!(&all[17..], b"\0\0\x04\0\x01\0\0\0\x05held\0\0\x01\0\0\0\0\0\x07z");
        assert_eq!(blocks.in_use(), 0);
    }
}
