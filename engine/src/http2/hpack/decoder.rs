//! Header blocks to header lists.

use std::fmt;

use super::{
    DEFAULT_TABLE_SIZE, HeaderBlock, Token,
    block::{Slot, narrow},
    hash::field_hash,
    huffman, integer, static_table,
    table::Table,
    valid_name, valid_value,
};

/// Decodes the header blocks of one direction of one connection, in the order of their arrival.
pub struct Decoder {
    table: Table,
    /// Our SETTINGS_HEADER_TABLE_SIZE: the most that a size update may ask for.
    size_limit: usize,
}

/// What became of a block that decodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// All fields were appended.
    Complete,
    /// The list is larger than allowed: the fields before the limit were appended, the rest only
    /// kept the table in step.
    TooLarge,
}

/// Why a block does not decode; for the connection all of them are COMPRESSION_ERROR (RFC 9113
/// §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer larger than any that makes sense (RFC 7541 §5.1).
    IntegerOverflow,
    /// Index 0, or one behind the end of the dynamic table (RFC 7541 §2.3.3, §6.1).
    InvalidIndex,
    /// EOS in a string, or padding that is too long or not all ones (RFC 7541 §5.2).
    InvalidHuffman,
    /// A size update after the first field (RFC 7541 §4.2).
    SizeUpdateNotFirst,
    /// A size update above our SETTINGS_HEADER_TABLE_SIZE (RFC 7541 §6.3).
    SizeUpdateTooLarge,
}

impl Decoder {
    /// A decoder for a peer that was told `max_table_size` as SETTINGS_HEADER_TABLE_SIZE. The table
    /// starts with the protocol's 4,096 or with `max_table_size` if that is less, which is right
    /// only if the peer knows before its first block.
    #[must_use]
    pub fn new(max_table_size: usize) -> Self {
        Self { table: Table::new(max_table_size.min(DEFAULT_TABLE_SIZE)), size_limit: max_table_size }
    }

    /// Decodes one whole block (HEADERS with all its CONTINUATIONs) and appends its fields to
    /// `out`.
    ///
    /// `max_list_size` limits this block's list as RFC 9113 §6.5.2 counts it; what `out` held
    /// before does not count. Once it is passed nothing more is stored or copied out of the table,
    /// so that `out` grows by at most the limit plus 8/5 of the block's length, however often the
    /// block refers to a large entry.
    ///
    /// # Errors
    /// The block is not HPACK, or not in step with the table. The connection cannot go on; what
    /// `out` holds is undefined.
    pub fn decode(&mut self, block: &[u8], max_list_size: usize, out: &mut HeaderBlock) -> Result<Decoded, HpackError> {
        let mut rest = self.size_updates(block)?;
        let mut left = Some(max_list_size.min(u32::MAX as usize / 2));
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            if first & 0x80 != 0 {
                self.indexed(integer::read(first, 0x7F, &mut rest)?, &mut left, out)?;
                if left.is_none() {
                    rest = self.skip_indexed(rest);
                }
            } else if first & 0x40 != 0 {
                let (slot, start) = self.literal(integer::read(first, 0x3F, &mut rest)?, false, &mut rest, out)?;
                let slot = self.insert(slot, out);
                store(slot, start, &mut left, out);
            } else if first & 0x20 == 0 {
                let never_indexed = first & 0x10 != 0;
                let (slot, start) = self.literal(integer::read(first, 0x0F, &mut rest)?, never_indexed, &mut rest, out)?;
                store(slot, start, &mut left, out);
            } else {
                return Err(HpackError::SizeUpdateNotFirst);
            }
        }
        Ok(if left.is_some() { Decoded::Complete } else { Decoded::TooLarge })
    }

    /// Reads the size updates at the start of `block` (RFC 7541 §4.2); what is left are fields.
    #[inline]
    fn size_updates<'a>(&mut self, mut block: &'a [u8]) -> Result<&'a [u8], HpackError> {
        while let Some((&first, mut rest)) = block.split_first()
            && first & 0xE0 == 0x20
        {
            let size = integer::read(first, 0x1F, &mut rest)?;
            if size > self.size_limit {
                return Err(HpackError::SizeUpdateTooLarge);
            }
            self.table.resize(size);
            block = rest;
        }
        Ok(block)
    }

    /// An indexed field (RFC 7541 §6.1). `left` is what the list may still grow by; `None` once it
    /// was too large.
    #[inline]
    fn indexed(&self, index: usize, left: &mut Option<usize>, out: &mut HeaderBlock) -> Result<(), HpackError> {
        let (slot, stored, size) = match reference(index)? {
            Reference::Static(index) => {
                let token = static_table::token(index);
                let size = token.implied_name().len() + static_table::value(index).len() + super::FIELD_OVERHEAD;
                (Slot { token, static_index: index, valid: true, ..Slot::default() }, &[][..], size)
            }
            Reference::Dynamic(age) => {
                let slot = self.table.slot(age).ok_or(HpackError::InvalidIndex)?;
                (*slot, slot.stored(self.table.bytes()), slot.size())
            }
        };
        *left = left.and_then(|left| left.checked_sub(size));
        if left.is_some() {
            let buffer = out.buffer();
            let start = narrow(buffer.len());
            buffer.extend_from_slice(stored);
            out.push_slot(Slot { start, ..slot }, size);
        }
        Ok(())
    }

    /// Skips references of one byte to entries that are there: of a list that is too large nothing of them is wanted, and 10,000 of them are
    /// a bomb that every stream of the shard waits for.
    fn skip_indexed<'a>(&self, rest: &'a [u8]) -> &'a [u8] {
        // Larger ones than 126 have more bytes (RFC 7541 §5.1).
        let last = (static_table::STATIC_LEN - 1 + self.table.count()).min(0x7E);
        let is_there = |byte: u8| byte > 0x80 && usize::from(byte & 0x7F) <= last;
        &rest[rest.iter().take_while(|&&byte| is_there(byte)).count()..]
    }

    /// A literal whose name is `index`, or spelled out if that is 0. Its bytes are put at the end
    /// of the buffer of `out`, from the returned position on.
    fn literal(&self, index: usize, never_indexed: bool, rest: &mut &[u8], out: &mut HeaderBlock) -> Result<(Slot, usize), HpackError> {
        let buffer = out.buffer();
        let start = buffer.len();
        let (token, name_valid) = self.name(index, rest, buffer)?;
        let value_start = buffer.len();
        string(rest, buffer)?;
        let slot = Slot {
            start: narrow(start),
            name_len: narrow(value_start - start),
            value_len: narrow(buffer.len() - value_start),
            token,
            never_indexed,
            valid: name_valid && valid_value(&buffer[value_start..]),
            ..Slot::default()
        };
        Ok((slot, start))
    }

    /// The name of a literal: its token and whether it is valid; its bytes are appended if the
    /// token does not imply them.
    fn name(&self, index: usize, rest: &mut &[u8], buffer: &mut Vec<u8>) -> Result<(Token, bool), HpackError> {
        if index == 0 {
            let start = buffer.len();
            string(rest, buffer)?;
            let name = &buffer[start..];
            let token = Token::of(name);
            if token.implies_name() {
                buffer.truncate(start);
                return Ok((token, true));
            }
            return Ok((token, valid_name(name)));
        }
        match reference(index)? {
            Reference::Static(index) => Ok((static_table::token(index), true)),
            Reference::Dynamic(age) => {
                let slot = self.table.slot(age).ok_or(HpackError::InvalidIndex)?;
                let name = slot.name(self.table.bytes());
                buffer.extend_from_slice(name);
                // An entry may be invalid by its value alone.
                Ok((slot.token, slot.valid || slot.token.implies_name() || valid_name(name)))
            }
        }
    }

    /// Inserts the field at the end of the buffer of `out` into the table (RFC 7541 §6.2.1), with
    /// its hash, which is returned with it.
    fn insert(&mut self, slot: Slot, out: &mut HeaderBlock) -> Slot {
        let buffer = out.buffer();
        let (name, value) = (slot.name(buffer), slot.value(buffer));
        let slot = Slot { hash: field_hash(slot.token, name, value), ..slot };
        self.table.insert(slot, name, value);
        slot
    }
}

/// Makes the field at the end of the buffer, from `start` on, part of the list if the limit allows
/// it; else it is dropped.
#[inline]
fn store(slot: Slot, start: usize, left: &mut Option<usize>, out: &mut HeaderBlock) {
    let size = slot.size();
    *left = left.and_then(|left| left.checked_sub(size));
    if left.is_some() {
        out.push_slot(slot, size);
    } else {
        out.buffer().truncate(start);
    }
}

/// The two index spaces (RFC 7541 §2.3.3).
enum Reference {
    Static(u8),
    Dynamic(usize),
}

#[inline]
fn reference(index: usize) -> Result<Reference, HpackError> {
    match u8::try_from(index) {
        Ok(0) => Err(HpackError::InvalidIndex),
        Ok(small) if index < static_table::STATIC_LEN => Ok(Reference::Static(small)),
        _ => Ok(Reference::Dynamic(index - static_table::STATIC_LEN)),
    }
}

/// A string literal (RFC 7541 §5.2), appended to `buffer`.
#[inline]
fn string(rest: &mut &[u8], buffer: &mut Vec<u8>) -> Result<(), HpackError> {
    let (&first, after) = rest.split_first().ok_or(HpackError::Truncated)?;
    *rest = after;
    let length = integer::read(first, 0x7F, rest)?;
    let (coded, after) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *rest = after;
    if first & 0x80 == 0 {
        buffer.extend_from_slice(coded);
        Ok(())
    } else {
        huffman::decode(coded, buffer)
    }
}

#[cfg(test)]
impl Decoder {
    /// For tests: the dynamic table.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "header block ends within a field",
            Self::IntegerOverflow => "integer in header block too large",
            Self::InvalidIndex => "header block refers to no table entry",
            Self::InvalidHuffman => "malformed Huffman code in header block",
            Self::SizeUpdateNotFirst => "table size update after the first field",
            Self::SizeUpdateTooLarge => "table size update above the limit we set",
        })
    }
}

impl std::error::Error for HpackError {}
