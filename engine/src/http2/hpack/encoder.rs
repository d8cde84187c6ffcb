//! Header lists to header blocks.
//!
//! What a field may leave in the dynamic table is a matter of its name ([`POLICY`]). Fields that go
//! into the table are written with the Huffman code when that is shorter, since they are written
//! once; literals that do not (paths, lengths) are written as they are: the code would save a few
//! bytes of every request and cost more time than the rest of the field together.

use super::{
    DEFAULT_TABLE_SIZE, FIELD_OVERHEAD, Field, Token,
    block::{Slot, narrow},
    huffman, integer, static_table,
    table::Table,
};

/// How many entries are searched for a name. A client that sends many unknown names pays for the
/// search with its own bytes, but we pay too: with all 128 entries it would be most of the cost of
/// such a field.
const NAME_SEARCH: usize = 32;

/// Encodes the header blocks of one direction of one connection, in the order they are sent.
pub struct Encoder {
    table: Table,
    /// A change of the table size that the peer has not been told of.
    resize: Option<Resize>,
    /// By hash, modulo the length: the number of the newest entry with such a hash. As long as the
    /// table's ring.
    newest: Vec<u32>,
    /// By entry number, modulo the length: the number of the next older entry in the same place of
    /// `newest`. Entries leave oldest first, so a walk ends at the first evicted number and
    /// eviction has nothing to undo.
    older: Vec<u32>,
}

/// Sizes set since the last block (RFC 7541 §4.2).
#[derive(Clone, Copy)]
struct Resize {
    smallest: usize,
    last: usize,
}

/// How a field may be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Into the table if it is not there.
    Index,
    /// A literal that stays out of the table: another value in almost every request.
    Plain,
    /// A literal that no hop may put into a table (RFC 7541 §7.1.3): credentials, and connections
    /// are shared between users.
    Never,
}

/// By token number; 128 long, so that a masked look-up needs no bounds check.
static POLICY: [Policy; 128] = {
    let mut policy = [Policy::Index; 128];
    let plain = [
        Token::PATH,
        Token::CONTENT_LENGTH,
        Token::AUDIT_ID,
        Token::ETAG,
        Token::IF_NONE_MATCH,
        Token::LAST_MODIFIED,
        Token::IF_MODIFIED_SINCE,
        Token::AGE,
        Token::LOCATION,
        Token::CONTENT_RANGE,
        Token::RANGE,
        Token::TRACEPARENT,
    ];
    let never = [Token::AUTHORIZATION, Token::PROXY_AUTHORIZATION, Token::COOKIE, Token::SET_COOKIE, Token::X_REMOTE, Token::IMPERSONATE];
    let mut at = 0;
    while at < plain.len() {
        policy[plain[at].number() as usize] = Policy::Plain;
        at += 1;
    }
    at = 0;
    while at < never.len() {
        policy[never[at].number() as usize] = Policy::Never;
        at += 1;
    }
    policy
};

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with the protocol's initial table size. Allocates with the first table entry.
    #[must_use]
    pub fn new() -> Self {
        Self { table: Table::new(DEFAULT_TABLE_SIZE), resize: None, newest: Vec::new(), older: Vec::new() }
    }

    /// Takes the peer's SETTINGS_HEADER_TABLE_SIZE; more than 4,096 is not used. The next block
    /// tells the peer.
    pub fn set_max_table_size(&mut self, size: usize) {
        let last = size.min(DEFAULT_TABLE_SIZE);
        let smallest = self.resize.map_or(last, |resize| resize.smallest.min(last));
        self.resize = Some(Resize { smallest, last });
    }

    /// Starts a header block: writes the size updates that are due, the smallest size and then the
    /// last (RFC 7541 §4.2).
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(resize) = self.resize.take() {
            self.announce(resize, out);
        }
    }

    /// Writes one field.
    pub fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) {
        let policy = POLICY[usize::from(field.token.number()) % POLICY.len()];
        if field.never_indexed || policy == Policy::Never {
            return write_plain(&field, 0x10, out);
        }
        let static_index = match field.static_index {
            0 => static_table::find(field.token, field.value),
            known => known,
        };
        if static_index != 0 {
            debug_assert_eq!(static_table::value(static_index), field.value, "the field was changed");
            return out.push(0x80 | static_index);
        }
        if policy == Policy::Plain {
            return write_plain(&field, 0x00, out);
        }
        let hash = field.hash();
        match self.find(&field, hash) {
            Some(age) => integer::write(static_table::STATIC_LEN + age, 0x80, 0x7F, out),
            None => self.insert(&field, hash, out),
        }
    }

    fn announce(&mut self, resize: Resize, out: &mut Vec<u8>) {
        for size in [resize.smallest, resize.last] {
            if size != self.table.size_max() {
                self.table.resize(size);
                integer::write(size, 0x20, 0x1F, out);
            }
        }
    }

    /// The age of the table entry that is `field`.
    #[inline]
    fn find(&self, field: &Field<'_>, hash: u32) -> Option<usize> {
        let mut number = *self.newest.get(hash as usize & self.newest.len().wrapping_sub(1))?;
        let mut age = self.table.age(number);
        loop {
            let slot = self.table.slot(age)?;
            if slot.hash == hash && self.table.is(slot, field) {
                return Some(age);
            }
            number = *self.older.get(number as usize & self.older.len().wrapping_sub(1))?;
            let next = self.table.age(number);
            // Numbers wrap: one that was evicted 2^32 entries ago looks alive. Ages that only grow
            // end the walk all the same.
            if next <= age {
                return None;
            }
            age = next;
        }
    }

    /// A literal with incremental indexing (RFC 7541 §6.2.1), unless it would push out half of the
    /// table.
    fn insert(&mut self, field: &Field<'_>, hash: u32, out: &mut Vec<u8>) {
        let size = field.name.len() + field.value.len() + FIELD_OVERHEAD;
        if size > self.table.size_max() / 2 {
            return write_plain(field, 0x00, out);
        }
        let name_index = self.name_index(field);
        integer::write(name_index, 0x40, 0x3F, out);
        if name_index == 0 {
            write_short_string(field.name, out);
        }
        write_short_string(field.value, out);

        let name = field.stored_name();
        let slot = Slot {
            start: 0,
            name_len: narrow(name.len()),
            value_len: narrow(field.value.len()),
            hash,
            token: field.token,
            static_index: 0,
            never_indexed: false,
            valid: field.valid,
        };
        let number = self.table.next();
        if self.table.insert(slot, name, field.value) {
            self.link(number, hash);
        }
    }

    /// The index of an entry with the name: from the static table by token, else from the newest
    /// entries of the dynamic one; 0 when there is none. The search is only made for fields that
    /// are inserted.
    fn name_index(&self, field: &Field<'_>) -> usize {
        let known = field.token.static_index();
        if known != 0 {
            return usize::from(known);
        }
        let has_name = |&age: &usize| self.table.slot(age).is_some_and(|slot| self.table.has_name(slot, field));
        (0..NAME_SEARCH).find(has_name).map_or(0, |age| static_table::STATIC_LEN + age)
    }

    /// Makes the entry `number`, which is the newest, one that [`Encoder::find`] finds.
    fn link(&mut self, number: u32, hash: u32) {
        if self.newest.len() == self.table.ring_len() {
            return self.link_one(number, hash);
        }
        // The ring has grown. `nobody` is a number that no entry has, as far from the next ones as
        // can be.
        let nobody = number.wrapping_sub(u32::MAX / 2);
        self.newest = vec![nobody; self.table.ring_len()];
        self.older = vec![nobody; self.table.ring_len()];
        for age in (0..self.table.count()).rev() {
            if let Some(slot) = self.table.slot(age) {
                self.link_one(number.wrapping_sub(narrow(age)), slot.hash);
            }
        }
    }

    fn link_one(&mut self, number: u32, hash: u32) {
        let place = hash as usize & (self.newest.len() - 1);
        let at = number as usize & (self.older.len() - 1);
        self.older[at] = std::mem::replace(&mut self.newest[place], number);
    }
}

/// A literal that stays out of the table; `pattern` says whether others may index it (RFC 7541
/// §6.2.2, §6.2.3).
fn write_plain(field: &Field<'_>, pattern: u8, out: &mut Vec<u8>) {
    out.reserve(field.name.len() + field.value.len() + 12);
    let name_index = field.token.static_index();
    integer::write(usize::from(name_index), pattern, 0x0F, out);
    if name_index == 0 {
        write_string(field.name, out);
    }
    write_string(field.value, out);
}

fn write_string(bytes: &[u8], out: &mut Vec<u8>) {
    integer::write(bytes.len(), 0x00, 0x7F, out);
    out.extend_from_slice(bytes);
}

/// A string as the shorter of itself and its Huffman code.
fn write_short_string(bytes: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(bytes);
    if coded >= bytes.len() {
        return write_string(bytes, out);
    }
    integer::write(coded, 0x80, 0x7F, out);
    huffman::encode(bytes, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in fields {
            encoder.field(Field::new(name.as_bytes(), value.as_bytes()), &mut out);
        }
        out
    }

    #[test]
    fn repeats_cost_one_byte() {
        let mut encoder = Encoder::new();
        let fields = [(":method", "GET"), ("user-agent", "kubectl"), ("x-custom", "1"), ("date", "now"), ("te", "trailers")];
        assert!(block(&mut encoder, &fields).len() > 20);
        assert_eq!(block(&mut encoder, &fields), [0x82, 0xC1, 0xC0, 0xBF, 0xBE]);
        let renamed = block(&mut encoder, &[("x-custom", "2")]);
        assert_eq!(renamed, [0x40 | 0x3F, 1, 1, b'2'], "the name comes from the dynamic table");
    }

    #[test]
    fn credentials_are_never_indexed() {
        let mut encoder = Encoder::new();
        for name in ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-remote-user", "impersonate-user"] {
            for _ in 0..2 {
                let out = block(&mut encoder, &[(name, "secret"), (name, "")]);
                assert_eq!(out[0] & 0xF0, 0x10, "{name}");
                assert!(out.ends_with(b"\0"), "an empty value is no exception");
            }
        }
        let arrived = Field { never_indexed: true, ..Field::new(b":path", b"/") };
        let mut out = Vec::new();
        encoder.field(arrived, &mut out);
        assert_eq!(out, [0x14, 1, b'/']);
        assert_eq!(encoder.table.count(), 0);
    }

    #[test]
    fn changing_fields_stay_out_of_the_table() {
        let mut encoder = Encoder::new();
        let fields = [(":path", "/api"), ("content-length", "12"), ("audit-id", "a"), ("etag", "e"), ("traceparent", "t")];
        let out = block(&mut encoder, &fields);
        assert_eq!(out[..6], [0x04, 4, b'/', b'a', b'p', b'i']);
        assert_eq!(encoder.table.count(), 0);
        assert_eq!(block(&mut encoder, &[(":path", "/")]), [0x84]);
    }

    #[test]
    fn a_field_of_half_the_table_is_not_indexed() {
        let mut encoder = Encoder::new();
        let out = block(&mut encoder, &[("user-agent", &"u".repeat(2048 - 32 - 9))]);
        assert_eq!((out[0], encoder.table.count()), (0x0F, 0));
        block(&mut encoder, &[("user-agent", &"u".repeat(2048 - 32 - 10))]);
        assert_eq!(encoder.table.count(), 1);
    }

    #[test]
    fn size_updates_are_the_smallest_then_the_last() {
        let mut encoder = Encoder::new();
        encoder.set_max_table_size(65_536);
        assert_eq!(block(&mut encoder, &[]), [0u8; 0], "4,096 is what both ends start with");
        encoder.set_max_table_size(0);
        encoder.set_max_table_size(100);
        encoder.set_max_table_size(30);
        assert_eq!(block(&mut encoder, &[]), [0x20, 0x3E]);
        assert_eq!(block(&mut encoder, &[("a", "b")]), [0, 1, b'a', 1, b'b'], "nothing fits");
        encoder.set_max_table_size(1 << 20);
        assert_eq!(block(&mut encoder, &[]), [0x3F, 0xE1, 0x1F]);
        assert_eq!(block(&mut encoder, &[]), [0u8; 0]);
    }

    #[test]
    fn an_idle_encoder_holds_no_memory() {
        let encoder = Encoder::new();
        assert_eq!((encoder.newest.capacity(), encoder.older.capacity(), encoder.table.ring_len()), (0, 0, 0));
    }
}
