//! HPACK: blocks of anybody, and lists of ours there and back.

use engine::http2::hpack::{Decoded, Decoder, Encoder, Field, HeaderBlock, Token, valid_name, valid_value};

use super::ops::Ops;

const NAMES: [&[u8]; 16] = [
    b":method",
    b":path",
    b":authority",
    b":status",
    b"accept",
    b"authorization",
    b"cookie",
    b"content-length",
    b"content-type",
    b"x-remote-user",
    b"x_remote_group",
    b"impersonate-user",
    b"user-agent",
    b"x-custom",
    b"audit-id",
    b"",
];
const VALUES: [&[u8]; 10] =
    [b"", b"GET", b"/", b"200", b"true", b"application/json", b"gzip", b"0", b"a longer value that goes into the table", b"\xff\x00"];

/// Blocks with lengths in front, for a decoder of a chosen table and list size. What comes out is within the limits, is what it says it
/// is, and survives a trip through our own encoder.
pub fn decode(input: &[u8]) {
    let mut ops = Ops(input);
    let table = ops.pick(&[4_096, 0, 64, 200, 65_536]);
    let list_max = ops.pick(&[65_536, 0, 40, 300, 5_000]);
    let (mut decoder, mut list) = (Decoder::new(table), HeaderBlock::default());
    let (mut encoder, mut far) = (Encoder::new(), Decoder::new(4_096));
    while let Some(length) = ops.next() {
        let block = ops.take(usize::from(length));
        list.clear();
        let Ok(decoded) = decoder.decode(block, list_max, &mut list) else { return };
        assert!(list.list_size() <= list_max);
        // A field of the static table takes a slot and no bytes; nothing else is larger here than it counts in the list.
        assert!(list.len() * 32 <= list_max, "every field counts 32");
        for field in list.iter() {
            assert_eq!(field.token, Token::of(field.name));
            assert_eq!(field.valid, valid_name(field.name) && valid_value(field.value), "{field:?}");
        }
        if decoded == Decoded::Complete {
            there_and_back(&list, &mut encoder, &mut far);
        }
    }
}

/// Lists of fields with changes of the table size between them.
pub fn round_trip(input: &[u8]) {
    let mut ops = Ops(input);
    let (mut encoder, mut far, mut list) = (Encoder::new(), Decoder::new(4_096), HeaderBlock::default());
    let (mut size, mut smallest, mut last) = (4_096, 4_096, 4_096);
    while let Some(op) = ops.next() {
        match op % 8 {
            0 => {
                let block = there_and_back(&list, &mut encoder, &mut far);
                // A smaller table is told in front of the next block, whatever became of the size since (RFC 7541 §4.2).
                assert!(smallest >= size || block[0] & 0xe0 == 0x20 && update(&block) <= smallest, "{smallest} of {size}: {block:x?}");
                (size, smallest) = (last, last);
                list.clear();
            }
            1 => {
                last = ops.pick(&[0, 30, 31, 64, 100, 500, 4_095, 4_096, 1 << 20, usize::MAX]).min(4_096);
                smallest = smallest.min(last);
                encoder.set_max_table_size(last);
            }
            2 => {
                // The same list again: now it comes from the table.
                there_and_back(&list, &mut encoder, &mut far);
                (size, smallest) = (last, last);
            }
            kind => {
                let name = if kind < 6 { ops.pick(&NAMES) } else { ops.string(48) };
                let value = if op & 0x80 == 0 { ops.pick(&VALUES) } else { ops.string(64) };
                let mut field = Field::new(name, value);
                field.never_indexed = op & 0x40 != 0;
                // The list's own rule: a name in lower case.
                if !name.iter().any(u8::is_ascii_uppercase) && list.len() < 64 {
                    list.push_field(field);
                }
            }
        }
    }
    there_and_back(&list, &mut encoder, &mut far);
}

/// The size that the update at the front of a block sets (RFC 7541 §6.3).
fn update(block: &[u8]) -> usize {
    let mut size = usize::from(block[0] & 0x1f);
    if size == 0x1f {
        for (at, byte) in block[1..].iter().enumerate() {
            size += usize::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    size
}

/// Encodes and decodes a list, and compares. The block.
fn there_and_back(list: &HeaderBlock, encoder: &mut Encoder, far: &mut Decoder) -> Vec<u8> {
    let (mut block, mut back) = (Vec::new(), HeaderBlock::default());
    encoder.begin(&mut block);
    for field in list.iter() {
        encoder.field(field, &mut block);
    }
    assert_eq!(far.decode(&block, 1 << 24, &mut back), Ok(Decoded::Complete));
    assert_eq!(back.len(), list.len());
    for (was, is) in list.iter().zip(back.iter()) {
        assert_eq!((was.name, was.value, was.token), (is.name, is.value, is.token));
        assert!(is.never_indexed || !was.never_indexed, "never indexed is for every hop (RFC 7541 §7.1.3)");
    }
    block
}

/// RFC 7541 appendix C in short, and what breaks decoders: bombs, size updates, long integers.
pub fn block_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        blocks(&[
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
        ]),
        blocks(&[b"\x40\x0acustom-key\x0dcustom-header", b"\xbe\xbe\xbe", b"\x7e\x03new", b"\xbe\xbf"]),
        blocks(&[b"\x04\x0c/sample/path", b"\x10\x08password\x06secret", b"\x0f\x2f\x03abc"]),
        blocks(&[b"\x20\x3f\xe1\x1f\x40\x01a\x01b", b"\xbe", b"\x3f\x61\x40\x01c\x28aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b"\xbe"]),
        blocks(&[
            b"\x48\x82\x64\x02\x58\x85\xae\xc3\x77\x1a\x4b\x61\x96\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66",
            b"\xc0\xbf",
        ]),
        blocks(&[b"\xff\xff\xff\xff\xff\x0f", b"\x7f\xff\x80\x80\x80\x80\x00"]),
        blocks(&[b"\x40\x02A-\x03b c", b"\x40\x01z\x02\r\n", b"\xbe\xbf\x7e\x01y"]),
        blocks(&[b"\x40\x0dx-remote-user\x05admin\x40\x0dx_remote_user\x05admin", b"\xbe\xbf"]),
    ];
    let mut bomb = b"\x40\x01n\x7f\x20".to_vec();
    bomb.extend_from_slice(&[b'v'; 159]);
    seeds.push(blocks(&[&bomb, &[0xbe; 80]]));
    seeds
}

fn blocks(blocks: &[&[u8]]) -> Vec<u8> {
    let mut seed = vec![0, 0];
    for block in blocks {
        seed.push(block.len() as u8);
        seed.extend_from_slice(block);
    }
    seed
}

pub fn list_seeds() -> Vec<Vec<u8>> {
    let all: Vec<u8> = (0..16).flat_map(|name| [3, name, name % 10]).collect();
    let mut twice = all.clone();
    twice.extend([2, 2, 0, 1, 0, 2, 1, 7]);
    twice.extend(&all);
    let spelled = b"\x86\x05name!\x09value two\x07\x01n\x01\xc6\x04nevr\x02vv\x02\x02\x00".to_vec();
    let resized = b"\x03\x0d\x08\x02\x01\x03\x02\x01\x00\x01\x04\x02\x03\x0c\x08\x02\x01\x07\x02".to_vec();
    vec![all, twice, spelled, resized]
}
