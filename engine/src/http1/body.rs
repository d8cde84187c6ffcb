//! A request body: from bytes to pieces, by its framing.
//!
//! What always holds: every byte of input is taken once; no piece is empty; nothing behind the end of the body is touched; at most
//! [`Bounds::trailers`] bytes are held, and no byte of the body is.

use super::head::Framing;

/// Digits of a chunk size: 2^40 bytes in one chunk is beyond any body. Not a field of `Limits`, because more than 16 would overflow the
/// size, which is how requests are smuggled (RUSTSEC-2021-0079).
const SIZE_DIGITS: u32 = 10;
/// A chunk below this carries less than its frame takes in HTTP/2: a fact, not a limit; how many there may be is `Limits::idle_frames`.
const TINY: u64 = 9;

/// See the fields of `Limits`: `chunk_extensions` and `chunk_trailers`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) extensions: usize,
    pub(crate) trailers: usize,
}

/// The body cannot be read on; the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadBody;

/// What comes next in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    /// This many bytes, then the end.
    Plain(u64),
    /// A chunk size, of which this much and so many digits were read.
    Size {
        value: u64,
        digits: u32,
    },
    /// The rest of the size line.
    Extension {
        value: u64,
    },
    /// The LF of the size line.
    SizeEnd {
        value: u64,
    },
    /// This many bytes of a chunk.
    Chunk(u64),
    /// CR, then LF behind a chunk.
    ChunkCr,
    ChunkLf,
    /// Trailer lines up to an empty one.
    Trailers,
    Done,
}

/// One piece of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece<'a> {
    /// Bytes of the body.
    Data(&'a [u8]),
    /// The body is complete; trailer lines, if there are any, are in [`Body::trailers`].
    End,
}

/// The reader of one body.
#[derive(Debug)]
pub(crate) struct Body {
    expect: Expect,
    bounds: Bounds,
    extensions: usize,
    trailers: Vec<u8>,
    /// Chunks below [`TINY`] since somebody last asked.
    tiny: u32,
}

impl Body {
    pub(crate) fn new(framing: Framing, bounds: Bounds) -> Self {
        let expect = match framing {
            Framing::None => Expect::Plain(0),
            Framing::Length(length) => Expect::Plain(length),
            Framing::Chunked => Expect::Size { value: 0, digits: 0 },
        };
        Self { expect, bounds, extensions: 0, trailers: Vec::new(), tiny: 0 }
    }

    /// Has every byte of a body of known length come?
    pub(crate) fn is_complete(&self) -> bool {
        self.expect == Expect::Plain(0)
    }

    /// The trailer section as it came, empty line included; empty when there is none.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Chunks that carried next to nothing since the last call.
    pub(crate) fn take_tiny(&mut self) -> u32 {
        std::mem::take(&mut self.tiny)
    }

    /// Takes the next piece from the front of `input`; `None` when more input is needed.
    pub(crate) fn poll<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, BadBody> {
        loop {
            match self.expect {
                Expect::Done | Expect::Plain(0) => {
                    self.expect = Expect::Done;
                    return Ok(Some(Piece::End));
                }
                Expect::Plain(left) => return Ok(take(input, left, &mut self.expect, Expect::Plain)),
                Expect::Chunk(0) => self.expect = Expect::ChunkCr,
                Expect::Chunk(left) => return Ok(take(input, left, &mut self.expect, Expect::Chunk)),
                Expect::Trailers => {
                    if !self.take_trailers(input)? {
                        return Ok(None);
                    }
                }
                _ => {
                    let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    self.expect = self.step(byte)?;
                }
            }
        }
    }

    /// One byte of a chunk's frame. CRLF only: a bare LF ends a line for some readers and not for others.
    fn step(&mut self, byte: u8) -> Result<Expect, BadBody> {
        match (self.expect, byte) {
            (Expect::Size { value, digits }, b) if b.is_ascii_hexdigit() && digits < SIZE_DIGITS => {
                let digit = char::from(b).to_digit(16).ok_or(BadBody)?;
                Ok(Expect::Size { value: value << 4 | u64::from(digit), digits: digits + 1 })
            }
            (Expect::Size { value, digits: 1.. }, b'\r') | (Expect::Extension { value }, b'\r') => Ok(Expect::SizeEnd { value }),
            (Expect::Size { value, digits: 1.. }, b';') => Ok(Expect::Extension { value }),
            (Expect::Extension { value }, b) if b >= b' ' || b == b'\t' => {
                self.extensions += 1;
                if self.extensions > self.bounds.extensions { Err(BadBody) } else { Ok(Expect::Extension { value }) }
            }
            (Expect::SizeEnd { value: 0 }, b'\n') => Ok(Expect::Trailers),
            (Expect::SizeEnd { value }, b'\n') => {
                self.tiny += u32::from(value < TINY);
                Ok(Expect::Chunk(value))
            }
            (Expect::ChunkCr, b'\r') => Ok(Expect::ChunkLf),
            (Expect::ChunkLf, b'\n') => Ok(Expect::Size { value: 0, digits: 0 }),
            _ => Err(BadBody),
        }
    }

    /// Gathers trailer lines; true when the empty line that ends them has come.
    fn take_trailers(&mut self, input: &mut &[u8]) -> Result<bool, BadBody> {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            self.trailers.push(byte);
            if byte == b'\n' && !self.trailers.ends_with(b"\r\n") || self.trailers.len() > self.bounds.trailers {
                return Err(BadBody);
            }
            if self.trailers == b"\r\n" {
                self.trailers.clear();
                self.expect = Expect::Done;
                return Ok(true);
            }
            if self.trailers.ends_with(b"\r\n\r\n") {
                self.expect = Expect::Done;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn take<'a>(input: &mut &'a [u8], left: u64, expect: &mut Expect, next: impl Fn(u64) -> Expect) -> Option<Piece<'a>> {
    if input.is_empty() {
        return None;
    }
    let n = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    let (bytes, rest) = input.split_at(n);
    *input = rest;
    *expect = next(left - n as u64);
    Some(Piece::Data(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `text` in steps; the body, its trailers, and what is left behind it.
    fn read(framing: Framing, text: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, usize), BadBody> {
        let mut body = Body::new(framing, Bounds { extensions: 1_024, trailers: 8 * 1_024 });
        let mut got = Vec::new();
        let mut at = 0;
        loop {
            let end = (at + step).min(text.len());
            let mut chunk = &text[at..end];
            while let Some(piece) = body.poll(&mut chunk)? {
                match piece {
                    Piece::Data(bytes) => got.extend_from_slice(bytes),
                    Piece::End => return Ok((got, body.trailers().to_vec(), text.len() - end + chunk.len())),
                }
            }
            if end == text.len() {
                return Err(BadBody);
            }
            at = end;
        }
    }

    #[test]
    fn chunks_however_they_are_cut() {
        let text = b"4\r\nWiki\r\n5;name=x\r\npedia\r\n0\r\nA: b\r\n\r\nNEXT";
        for step in 1..text.len() {
            assert_eq!(read(Framing::Chunked, text, step), Ok((b"Wikipedia".to_vec(), b"A: b\r\n\r\n".to_vec(), 4)), "step {step}");
        }
        assert_eq!(read(Framing::Chunked, b"0\r\n\r\n", 9), Ok((vec![], vec![], 0)));
        assert_eq!(read(Framing::Length(3), b"abcdef", 2), Ok((b"abc".to_vec(), vec![], 3)));
    }

    #[test]
    fn broken_chunks_are_refused() {
        for text in [
            &b"4\nWiki\r\n0\r\n\r\n"[..],
            b"4\r\nWiki\n0\r\n\r\n",
            b"4\r\nWikiX\r\n0\r\n\r\n",
            b"\r\n\r\n",
            b"-4\r\nWiki\r\n",
            b"0x4\r\nWiki\r\n",
            b" 4\r\nWiki\r\n",
            b"4 \r\nWiki\r\n",
            b"fffffffffff\r\n",
            b"4;a\nWiki\r\n0\r\n\r\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\n\n",
        ] {
            assert_eq!(read(Framing::Chunked, text, text.len()), Err(BadBody), "{:?}", String::from_utf8_lossy(text));
        }
    }
}
