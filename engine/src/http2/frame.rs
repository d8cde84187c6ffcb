//! The vocabulary of frames: kinds, flags, error codes, settings, and how each control frame is written.

/// What a client sends first (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head (RFC 9113 §4.1).
pub(crate) const HEAD_LEN: usize = 9;
/// The frame size every endpoint must accept, and the most we accept (RFC 9113 §4.2).
pub(crate) const MAX_FRAME: usize = 16_384;
/// DATA we emit: with its head it fills exactly one TLS record of 16,384 bytes; one byte more makes two records.
pub(crate) const MAX_DATA: usize = MAX_FRAME - HEAD_LEN;
/// Window of a stream and of a connection before anyone said otherwise (RFC 9113 §6.9.2).
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;
/// Largest window, stream id and increment (RFC 9113 §6.9.1).
pub(crate) const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Frame types (RFC 9113 §6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Frame flags (RFC 9113 §6).
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Setting identifiers (RFC 9113 §6.5.2).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Error codes (RFC 9113 §7). Codes we do not know are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reason(pub(crate) u32);

impl Reason {
    pub(crate) const NO_ERROR: Self = Self(0x0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(0x1);
    pub(crate) const INTERNAL_ERROR: Self = Self(0x2);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub(crate) const STREAM_CLOSED: Self = Self(0x5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub(crate) const REFUSED_STREAM: Self = Self(0x7);
    pub(crate) const CANCEL: Self = Self(0x8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(0x9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(0xb);
    pub(crate) const HTTP_1_1_REQUIRED: Self = Self(0xd);
}

/// The nine bytes in front of every frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) fn parse(b: &[u8; HEAD_LEN]) -> Self {
        Self {
            len: usize::from(b[0]) << 16 | usize::from(b[1]) << 8 | usize::from(b[2]),
            kind: b[3],
            flags: b[4],
            // The reserved bit is ignored (RFC 9113 §4.1).
            stream: u32::from_be_bytes([b[5], b[6], b[7], b[8]]) & MAX_WINDOW,
        }
    }

    pub(crate) fn bytes(self) -> [u8; HEAD_LEN] {
        #[allow(clippy::cast_possible_truncation, reason = "frames we write are at most MAX_FRAME long")]
        let len = (self.len as u32).to_be_bytes();
        let stream = self.stream.to_be_bytes();
        [len[1], len[2], len[3], self.kind, self.flags, stream[0], stream[1], stream[2], stream[3]]
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame head.
pub(crate) fn put_head(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&Head { len, kind, flags, stream }.bytes());
}

/// Sets the length field of the head at `at`, when the length is known only after the payload was written.
pub(crate) fn patch_len(out: &mut [u8], at: usize, len: usize) {
    if let Some(field) = out.get_mut(at..at + 3) {
        #[allow(clippy::cast_possible_truncation, reason = "three bytes of a length that is at most MAX_FRAME")]
        field.copy_from_slice(&[(len >> 16) as u8, (len >> 8) as u8, len as u8]);
    }
}

/// Appends SETTINGS with the given pairs.
pub(crate) fn put_settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    put_head(out, pairs.len() * 6, kind::SETTINGS, 0, 0);
    for (id, value) in pairs {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub(crate) fn put_settings_ack(out: &mut Vec<u8>) {
    put_head(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// Appends PING.
pub(crate) fn put_ping(out: &mut Vec<u8>, ack: bool, opaque: [u8; 8]) {
    put_head(out, 8, kind::PING, if ack { flag::ACK } else { 0 }, 0);
    out.extend_from_slice(&opaque);
}

/// Appends RST_STREAM.
pub(crate) fn put_reset(out: &mut Vec<u8>, stream: u32, reason: Reason) {
    put_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&reason.0.to_be_bytes());
}

/// Appends WINDOW_UPDATE; stream 0 is the connection.
pub(crate) fn put_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    put_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends GOAWAY without debug text.
pub(crate) fn put_goaway(out: &mut Vec<u8>, last: u32, reason: Reason) {
    put_head(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&reason.0.to_be_bytes());
}

/// What the other end has told us in SETTINGS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSettings {
    pub(crate) header_table_size: u32,
    pub(crate) max_streams: u32,
    pub(crate) initial_window: u32,
}

impl PeerSettings {
    /// What holds as long as nothing else is said (RFC 9113 §6.5.2).
    pub(crate) const DEFAULT: Self = Self { header_table_size: 4_096, max_streams: u32::MAX, initial_window: DEFAULT_WINDOW };

    /// Takes one SETTINGS payload, whose length is a multiple of six.
    pub(crate) fn apply(&mut self, payload: &[u8], from_server: bool) -> Result<(), Reason> {
        for pair in payload.chunks_exact(6) {
            let id = u16::from_be_bytes([pair[0], pair[1]]);
            let value = u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]);
            match id {
                setting::HEADER_TABLE_SIZE => self.header_table_size = value,
                // A server must not send 1 (RFC 9113 §6.5.2), and we never push.
                setting::ENABLE_PUSH if value > 1 || (from_server && value == 1) => return Err(Reason::PROTOCOL_ERROR),
                setting::MAX_CONCURRENT_STREAMS => self.max_streams = value,
                setting::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => return Err(Reason::FLOW_CONTROL_ERROR),
                setting::INITIAL_WINDOW_SIZE => self.initial_window = value,
                // Larger frames than everybody must accept are never sent, so only the range matters.
                setting::MAX_FRAME_SIZE if !(16_384..=16_777_215).contains(&value) => return Err(Reason::PROTOCOL_ERROR),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_round_trips() {
        let head = Head { len: 16_384, kind: kind::HEADERS, flags: 0x25, stream: 0x7fff_ffff };
        let back = Head::parse(&head.bytes());
        assert_eq!((back.len, back.kind, back.flags, back.stream), (16_384, 1, 0x25, 0x7fff_ffff));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let pair = |id: u16, value: u32| {
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend_from_slice(&value.to_be_bytes());
            PeerSettings::DEFAULT.clone().apply(&payload, true)
        };
        assert_eq!(pair(setting::MAX_FRAME_SIZE, 0), Err(Reason::PROTOCOL_ERROR));
        assert_eq!(pair(setting::MAX_FRAME_SIZE, 1 << 24), Err(Reason::PROTOCOL_ERROR));
        assert_eq!(pair(setting::INITIAL_WINDOW_SIZE, 1 << 31), Err(Reason::FLOW_CONTROL_ERROR));
        assert_eq!(pair(setting::ENABLE_PUSH, 1), Err(Reason::PROTOCOL_ERROR));
        assert_eq!(pair(0x9999, 7), Ok(()));
    }
}
