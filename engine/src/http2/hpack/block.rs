//! A decoded header list, in an arena that is reused from request to request.

use super::{FIELD_OVERHEAD, Token, hash::field_hash, static_table};

/// A header list: all bytes in one buffer, one fixed-size slot per field. Names that a token
/// implies are not stored.
#[derive(Default)]
pub struct HeaderBlock {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    /// Sum of the sizes of `slots`.
    list_size: usize,
}

/// One field of a header list. Another name or value is another field: make it with [`Field::new`]
/// or [`Field::of`], since what was computed about this one would no longer be true.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The name as a number.
    pub token: Token,
    /// The name, in lower case if the sender obeys RFC 9113 §8.2.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// It arrived as "never indexed" (RFC 7541 §6.2.3) and has to leave so.
    pub never_indexed: bool,
    /// [`valid_name`](super::valid_name) and [`valid_value`](super::valid_value) hold. Computed
    /// when the field arrived as a literal; true for fields made here.
    pub valid: bool,
    /// Index of the static table entry it arrived as; 0: not known to be one.
    pub(super) static_index: u8,
    /// [`field_hash`], or 0 while not computed.
    pub(super) hash: u32,
}

/// Where a field's bytes are in a buffer, and what was computed about it once. Its bytes are the
/// name, unless the token implies it, directly followed by the value.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) start: u32,
    /// Length of the stored name; 0 when the token implies it.
    pub(super) name_len: u32,
    pub(super) value_len: u32,
    /// As in [`Field`].
    pub(super) hash: u32,
    pub(super) token: Token,
    /// As in [`Field`]; when not 0, nothing is stored.
    pub(super) static_index: u8,
    pub(super) never_indexed: bool,
    pub(super) valid: bool,
}

impl HeaderBlock {
    /// Forgets the fields and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.slots.clear();
        self.list_size = 0;
    }

    /// How many fields there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no fields.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Appends a field that is known to be valid; `name` is in lower case.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_field(Field::new(name, value));
    }

    /// Appends a field with the name that `token` stands for.
    pub fn push_token(&mut self, token: Token, value: &[u8]) {
        self.push_field(Field::of(token, value));
    }

    /// Appends a field of another list, with all that is known about it.
    pub fn push_field(&mut self, field: Field<'_>) {
        let name = field.stored_name();
        let value = if field.static_index == 0 { field.value } else { b"" };
        let slot = Slot {
            start: narrow(self.bytes.len()),
            name_len: narrow(name.len()),
            value_len: narrow(value.len()),
            hash: field.hash,
            token: field.token,
            static_index: field.static_index,
            never_indexed: field.never_indexed,
            valid: field.valid,
        };
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.push_slot(slot, field.name.len() + field.value.len() + FIELD_OVERHEAD);
    }

    /// The fields in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.slots.iter().map(|slot| slot.field(&self.bytes))
    }

    /// The value of the first field with `token`.
    #[inline]
    #[must_use]
    pub fn first(&self, token: Token) -> Option<&[u8]> {
        let slot = self.slots.iter().find(|slot| slot.token == token)?;
        Some(slot.value(&self.bytes))
    }

    /// The size of the list as SETTINGS_MAX_HEADER_LIST_SIZE counts it: name, value and 32 for each
    /// field (RFC 9113 §6.5.2).
    #[inline]
    #[must_use]
    pub fn list_size(&self) -> usize {
        self.list_size
    }

    /// Bytes of memory held, so that the owner can drop a block that one big request has blown up.
    #[must_use]
    pub fn retained(&self) -> usize {
        self.bytes.capacity() + self.slots.capacity() * size_of::<Slot>()
    }

    /// The buffer's end, where the next field's bytes have to be. Bytes behind the last slot are
    /// not part of the list.
    #[inline]
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a field whose bytes are in the buffer; `size` is what it counts in the list.
    #[inline]
    pub(super) fn push_slot(&mut self, slot: Slot, size: usize) {
        self.slots.push(slot);
        self.list_size += size;
    }
}

impl<'a> Field<'a> {
    /// A field with any lower-case name, known to be valid.
    #[must_use]
    pub fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { token: Token::of(name), name, value, never_indexed: false, valid: true, static_index: 0, hash: 0 }
    }

    /// A field with the name that `token` stands for (empty for a token without one), known to be
    /// valid.
    #[inline]
    #[must_use]
    pub fn of(token: Token, value: &'a [u8]) -> Self {
        let name = token.name().unwrap_or_default();
        Self { token, name, value, never_indexed: false, valid: true, static_index: 0, hash: 0 }
    }

    /// The name if it has to be stored with the field.
    #[inline]
    pub(super) fn stored_name(&self) -> &'a [u8] {
        if self.token.implies_name() { b"" } else { self.name }
    }

    /// The hash, computed now if it was not before.
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        if self.hash == 0 { field_hash(self.token, self.name, self.value) } else { self.hash }
    }
}

impl Slot {
    /// The field, its bytes in `bytes`.
    #[inline]
    pub(super) fn field<'a>(&self, bytes: &'a [u8]) -> Field<'a> {
        let name = if self.name_len == 0 { self.token.implied_name() } else { self.name(bytes) };
        Field {
            token: self.token,
            name,
            value: self.value(bytes),
            never_indexed: self.never_indexed,
            valid: self.valid,
            static_index: self.static_index,
            hash: self.hash,
        }
    }

    /// The name as far as it is stored.
    #[inline]
    pub(super) fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        &bytes[start..start + self.name_len as usize]
    }

    /// The value.
    #[inline]
    pub(super) fn value<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.static_index != 0 {
            return static_table::value(self.static_index);
        }
        let start = self.start as usize + self.name_len as usize;
        &bytes[start..start + self.value_len as usize]
    }

    /// Name, if stored, and value.
    #[inline]
    pub(super) fn stored<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        &bytes[start..start + self.stored_len()]
    }

    /// Length of [`Slot::stored`].
    #[inline]
    pub(super) fn stored_len(&self) -> usize {
        self.name_len as usize + self.value_len as usize
    }

    /// What the field counts in a table or list, if its value is stored: name, value and 32 (RFC
    /// 7541 §4.1).
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.token.implied_name().len() + self.stored_len() + FIELD_OVERHEAD
    }
}

/// A length or position within a header list or table as the 32 bits that slots have.
#[inline]
pub(super) fn narrow(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok(), "lists are limited far below 4 GiB");
    #[expect(clippy::cast_possible_truncation, reason = "lists are limited far below 4 GiB")]
    let narrow = length as u32;
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_fields_in_order() {
        let mut block = HeaderBlock::default();
        assert_eq!((block.retained(), block.is_empty()), (0, true));
        block.push_token(Token::METHOD, b"GET");
        block.push(b"x-custom", b"");
        block.push(b"content-type", b"text/plain");
        block.push(b"x-custom", b"two");
        let fields: Vec<_> = block.iter().map(|field| (field.name, field.value)).collect();
        let want: [(&[u8], &[u8]); 4] = [(b":method", b"GET"), (b"x-custom", b""), (b"content-type", b"text/plain"), (b"x-custom", b"two")];
        assert_eq!(fields, want);
        assert_eq!(block.first(Token::CONTENT_TYPE), Some(&b"text/plain"[..]));
        assert_eq!(block.first(Token::PATH), None);
        assert_eq!(block.list_size(), 10 + 8 + 22 + 11 + 4 * 32);
        let held = block.retained();
        block.clear();
        assert_eq!((block.len(), block.list_size(), block.retained()), (0, 0, held));
    }

    #[test]
    fn a_look_alike_keeps_its_own_name() {
        let mut block = HeaderBlock::default();
        block.push(b"x_kubernetes_peer_proxied", b"true");
        block.push_token(Token::PEER_PROXIED, b"true");
        let names: Vec<_> = block.iter().map(|field| (field.token, field.name)).collect();
        assert_eq!(names[0], (Token::PEER_PROXIED, &b"x_kubernetes_peer_proxied"[..]));
        assert_eq!(names[1], (Token::PEER_PROXIED, &b"x-kubernetes-peer-proxied"[..]));
    }
}
