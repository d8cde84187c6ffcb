//! Where body bytes live between the two TLS sessions, and the one function that copies them.
//!
//! ```text
//!  decrypted record --copy--> Outbox of the other connection           (window open, nothing held)
//!                   --copy--> Block --shared, not copied--> Outbox     (held for a slow reader, or kept for a retry)
//! ```
//!
//! What always holds: every body byte passes [`Copied::into`] exactly once; a [`Block`] is shared by reference between the
//! holder and the outbox, and is written to only while nobody else holds it.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a block: one DATA frame as we emit them.
pub(crate) const BLOCK_LEN: usize = crate::http2::frame::MAX_DATA;
/// Free blocks kept for reuse: 4 MiB; a burst beyond that gives its memory back.
const SPARE_BLOCKS: usize = 256;

/// Free blocks that are kept although nobody needed them for a while: 1 MiB, so that a quiet second costs no allocation.
const KEPT_BLOCKS: usize = 64;

/// A new queue: a whole stream window of a server in blocks, so that it does not grow.
const FIRST_QUEUE: usize = 20;

type Block = Rc<Vec<u8>>;

/// Counts the body bytes that were copied; the only place where they are.
#[derive(Default, Debug)]
pub(crate) struct Copied {
    bytes: u64,
}

impl Copied {
    /// The copy between the two TLS sessions.
    pub(crate) fn into(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        out.extend_from_slice(bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The blocks of a shard, and how many bytes of them are in use.
#[derive(Default)]
pub(crate) struct Blocks {
    spare: Vec<Block>,
    /// Empty queues of holdings that ended, so that a body does not allocate one.
    queues: Vec<VecDeque<Chunk>>,
    /// The fewest spare blocks there were since the last [`Blocks::trim`]: those nobody needed.
    unneeded: usize,
    in_use: usize,
}

impl Blocks {
    fn take(&mut self) -> Block {
        self.in_use += BLOCK_LEN;
        let block = self.spare.pop().unwrap_or_else(|| Rc::new(Vec::with_capacity(BLOCK_LEN)));
        self.unneeded = self.unneeded.min(self.spare.len());
        block
    }

    /// Frees half of the spare blocks that nobody needed since the last time.
    pub(crate) fn trim(&mut self) {
        let keep = self.spare.len() - self.unneeded.min(self.spare.len()).div_ceil(2);
        self.spare.truncate(keep.max(KEPT_BLOCKS));
        self.queues.truncate(keep.max(KEPT_BLOCKS));
        self.unneeded = self.spare.len();
    }

    /// Bytes of memory in blocks, used or spare.
    pub(crate) fn memory(&self) -> usize {
        self.in_use + self.spare.len() * BLOCK_LEN
    }

    /// Gives back one reference; the last one frees the block for reuse.
    pub(crate) fn give(&mut self, mut block: Block) {
        if let Some(bytes) = Rc::get_mut(&mut block) {
            self.in_use -= BLOCK_LEN;
            if self.spare.len() < SPARE_BLOCKS {
                bytes.clear();
                self.spare.push(block);
            }
        }
    }

    /// Bytes of memory held in blocks.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }
}

/// Part of a block on its way out.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) block: Block,
    pub(crate) range: Range<usize>,
}

/// Body bytes of one direction of one exchange that wait for a window, or are kept for a retry.
///
/// `next <= chunks.len()`, `offset` is inside `chunks[next]`; what lies before them was sent and is there only while `keep`.
#[derive(Default)]
pub(crate) struct Holding {
    chunks: VecDeque<Chunk>,
    next: usize,
    offset: usize,
    unsent: usize,
    kept: usize,
    keep: bool,
}

impl Holding {
    /// Starts keeping what is sent, so that [`Holding::rewind`] can send it again.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    pub(crate) fn is_keeping(&self) -> bool {
        self.keep
    }

    /// Bytes not sent yet.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Bytes since the beginning of the body, while it is kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Memory held, by the block.
    pub(crate) fn held(&self) -> usize {
        self.chunks.len() * BLOCK_LEN
    }

    /// Copies `bytes` behind what is held.
    pub(crate) fn push(&mut self, mut bytes: &[u8], blocks: &mut Blocks, copied: &mut Copied) {
        if self.chunks.capacity() == 0 {
            self.chunks = blocks.queues.pop().unwrap_or_else(|| VecDeque::with_capacity(FIRST_QUEUE));
        }
        self.unsent += bytes.len();
        self.kept += bytes.len();
        while !bytes.is_empty() {
            let room = match self.chunks.back_mut().map(|chunk| (Rc::get_mut(&mut chunk.block), &mut chunk.range)) {
                Some((Some(block), range)) if block.len() < BLOCK_LEN => {
                    let n = bytes.len().min(BLOCK_LEN - block.len());
                    copied.into(block, &bytes[..n]);
                    range.end += n;
                    n
                }
                _ => {
                    self.chunks.push_back(Chunk { block: blocks.take(), range: 0..0 });
                    0
                }
            };
            bytes = &bytes[room..];
        }
    }

    /// The next at most `max` bytes, in one piece, shared with the block that holds them.
    pub(crate) fn pop(&mut self, max: usize, blocks: &mut Blocks) -> Option<Chunk> {
        let mut chunk = self.chunks.get(self.next)?;
        // The block behind `next` was still shared when more bytes came, so they are in the one after it.
        if chunk.range.start + self.offset == chunk.range.end && self.next + 1 < self.chunks.len() {
            self.next += 1;
            self.offset = 0;
            chunk = self.chunks.get(self.next)?;
        }
        let start = chunk.range.start + self.offset;
        let end = chunk.range.end.min(start + max);
        if start == end {
            return None;
        }
        let piece = Chunk { block: Rc::clone(&chunk.block), range: start..end };
        self.unsent -= end - start;
        self.offset += end - start;
        if end == chunk.range.end && !self.keep {
            self.next += 1;
            self.offset = 0;
        }
        self.forget_sent(blocks);
        Some(piece)
    }

    /// Sends again from the beginning; only while everything was kept.
    pub(crate) fn rewind(&mut self) {
        self.next = 0;
        self.offset = 0;
        self.unsent = self.kept;
    }

    /// No retry any more: what was sent is let go.
    pub(crate) fn stop_keeping(&mut self, blocks: &mut Blocks) {
        self.keep = false;
        self.forget_sent(blocks);
    }

    /// Lets go of everything.
    pub(crate) fn clear(&mut self, blocks: &mut Blocks) {
        while let Some(chunk) = self.chunks.pop_front() {
            blocks.give(chunk.block);
        }
        let queue = std::mem::take(self).chunks;
        if queue.capacity() > 0 && blocks.queues.len() < SPARE_BLOCKS {
            blocks.queues.push(queue);
        }
    }

    fn forget_sent(&mut self, blocks: &mut Blocks) {
        if self.keep {
            return;
        }
        while self.next > 0 {
            self.next -= 1;
            if let Some(chunk) = self.chunks.pop_front() {
                blocks.give(chunk.block);
            }
        }
        if self.unsent == 0 {
            // All sent, the last block perhaps not full; it is not appended to while the outbox shares it.
            while let Some(chunk) = self.chunks.pop_front() {
                blocks.give(chunk.block);
            }
            self.offset = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        #[allow(clippy::cast_possible_truncation, reason = "a pattern")]
        (0..n).map(|i| (i * 31) as u8).collect()
    }

    #[test]
    fn what_goes_in_comes_out_once_in_any_pieces() {
        for (step_in, step_out) in [(1, 7), (1000, 999), (40_000, 16_375), (5, 100_000), (16_375, 1)] {
            let (mut blocks, mut copied, mut holding) = (Blocks::default(), Copied::default(), Holding::default());
            let want = bytes(50_000);
            let mut got = Vec::new();
            for piece in want.chunks(step_in) {
                holding.push(piece, &mut blocks, &mut copied);
                while holding.unsent() > 30_000 {
                    let chunk = holding.pop(step_out, &mut blocks).unwrap();
                    got.extend_from_slice(&chunk.block[chunk.range.clone()]);
                    blocks.give(chunk.block);
                }
            }
            while let Some(chunk) = holding.pop(step_out, &mut blocks) {
                got.extend_from_slice(&chunk.block[chunk.range.clone()]);
                blocks.give(chunk.block);
            }
            assert_eq!(got, want);
            assert_eq!((holding.unsent(), copied.bytes()), (0, 50_000));
            holding.clear(&mut blocks);
            assert_eq!(blocks.in_use(), 0);
        }
    }

    #[test]
    fn a_kept_body_can_be_sent_again() {
        let (mut blocks, mut copied, mut holding) = (Blocks::default(), Copied::default(), Holding::default());
        holding.keep();
        let want = bytes(20_000);
        for _ in 0..2 {
            let mut got = Vec::new();
            if holding.kept() == 0 {
                for piece in want.chunks(3000) {
                    holding.push(piece, &mut blocks, &mut copied);
                    let chunk = holding.pop(1 << 20, &mut blocks).unwrap();
                    got.extend_from_slice(&chunk.block[chunk.range.clone()]);
                    blocks.give(chunk.block);
                }
            }
            while let Some(chunk) = holding.pop(1 << 20, &mut blocks) {
                got.extend_from_slice(&chunk.block[chunk.range.clone()]);
                blocks.give(chunk.block);
            }
            assert_eq!(got, want);
            holding.rewind();
        }
        holding.stop_keeping(&mut blocks);
        holding.clear(&mut blocks);
        assert_eq!((blocks.in_use(), copied.bytes()), (0, 20_000));
    }
}
