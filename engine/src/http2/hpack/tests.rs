//! Both directions together: the RFC's examples, hostile input, and round trips against each other.

use proptest::prelude::*;

use super::*;

type Pair = (Vec<u8>, Vec<u8>);

/// A block in hex, the list in it, the dynamic table after it (newest first), and the table's size.
type Example<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], usize);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).expect("hex")).expect("small");
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn pairs(block: &HeaderBlock) -> Vec<Pair> {
    block.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
}

fn owned(fields: &[(&str, &str)]) -> Vec<Pair> {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// Decodes the blocks in turn; after each the list and the dynamic table have to be as given.
fn expect_blocks(table_size: usize, blocks: &[Example<'_>]) {
    let mut decoder = Decoder::new(table_size);
    let mut out = HeaderBlock::default();
    for (block, fields, entries, size) in blocks {
        out.clear();
        assert_eq!(decoder.decode(&hex(block), usize::MAX, &mut out), Ok(Decoded::Complete));
        assert_eq!(pairs(&out), owned(fields));
        assert!(out.iter().all(|field| field.valid));
        assert_eq!(out.list_size(), fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>());
        let table = decoder.table();
        let held: Vec<Pair> = (0..table.count())
            .map(|age| table.slot(age).expect("live").field(table.bytes()))
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect();
        assert_eq!(held, owned(entries));
        assert_eq!(table.size(), *size);
    }
}

#[test]
fn appendix_c_2_representations() {
    let custom = [("custom-key", "custom-header")];
    expect_blocks(4096, &[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", &custom, &custom, 55)]);
    expect_blocks(4096, &[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], &[], 0)]);
    expect_blocks(4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], &[], 0)]);
    expect_blocks(4096, &[("82", &[(":method", "GET")], &[], 0)]);
}

#[test]
fn never_indexed_is_kept() {
    let mut out = HeaderBlock::default();
    let block = hex("1008 7061 7373 776f 7264 0673 6563 7265 74 040c 2f73 616d 706c 652f 7061 7468");
    assert_eq!(Decoder::new(4096).decode(&block, usize::MAX, &mut out), Ok(Decoded::Complete));
    assert_eq!(out.iter().map(|field| field.never_indexed).collect::<Vec<_>>(), [true, false]);
    let mut encoded = Vec::new();
    let mut encoder = Encoder::new();
    out.iter().for_each(|field| encoder.field(field, &mut encoded));
    assert_eq!(encoded, block);
}

#[test]
fn appendix_c_3_and_c_4_requests() {
    let first = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
    let mut second = first.to_vec();
    second.push(("cache-control", "no-cache"));
    let third = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ];
    let entries = [("custom-key", "custom-value"), ("cache-control", "no-cache"), (":authority", "www.example.com")];
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    // The encoder chooses what the RFC's Huffman example does.
    let mut encoder = Encoder::new();
    for (fields, block) in [&first[..], &second, &third].iter().zip(coded) {
        let mut wire = Vec::new();
        encoder.begin(&mut wire);
        fields.iter().for_each(|(name, value)| encoder.field(Field::new(name.as_bytes(), value.as_bytes()), &mut wire));
        assert_eq!(wire, hex(block));
    }
    for blocks in [plain, coded] {
        expect_blocks(
            4096,
            &[(blocks[0], &first, &entries[2..], 57), (blocks[1], &second, &entries[1..], 110), (blocks[2], &third, &entries, 164)],
        );
    }
}

#[test]
fn appendix_c_5_and_c_6_responses_with_eviction() {
    let location = ("location", "https://www.example.com");
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let later = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
    let private = ("cache-control", "private");
    let cookie = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
    let gzip = ("content-encoding", "gzip");
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
         6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
         54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
         5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
         3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
         77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
         9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        expect_blocks(
            256,
            &[
                (blocks[0], &[(":status", "302"), private, date, location], &[location, date, private, (":status", "302")], 222),
                (blocks[1], &[(":status", "307"), private, date, location], &[(":status", "307"), location, date, private], 222),
                (blocks[2], &[(":status", "200"), private, later, location, gzip, cookie], &[cookie, gzip, later], 215),
            ],
        );
    }
}

fn decode(block: &[u8]) -> Result<Decoded, HpackError> {
    Decoder::new(4096).decode(block, 65_536, &mut HeaderBlock::default())
}

#[test]
fn what_is_malformed_is_an_error() {
    let cases: [(&[u8], HpackError); 12] = [
        (&[0x80], HpackError::InvalidIndex),
        (&[0xBE], HpackError::InvalidIndex),
        (&[0x7F, 0x00], HpackError::InvalidIndex),
        (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F], HpackError::IntegerOverflow),
        (&[0xFF], HpackError::Truncated),
        (&[0x82, 0x20], HpackError::SizeUpdateNotFirst),
        (&[0x3F, 0xE2, 0x1F], HpackError::SizeUpdateTooLarge),
        (&[0x04], HpackError::Truncated),
        (&[0x04, 0x05, b'a'], HpackError::Truncated),
        (&[0x00, 0x01, b'a'], HpackError::Truncated),
        (&[0x04, 0x81, 0x00], HpackError::InvalidHuffman),
        (&[0x04, 0x84, 0xFF, 0xFF, 0xFF, 0xFF], HpackError::InvalidHuffman),
    ];
    for (block, error) in cases {
        assert_eq!(decode(block), Err(error), "{block:x?}");
    }
    assert_eq!(decode(&[0x20, 0x3F, 0xE1, 0x1F, 0x82]), Ok(Decoded::Complete), "two size updates, then a field");
}

#[test]
fn validity_is_told_and_kept_in_the_table() {
    let mut decoder = Decoder::new(4096);
    let mut out = HeaderBlock::default();
    let block = b"\x40\x01A\x01v\x40\x01a\x02v\n\x40\x04:foo\x01v\x40\x01a\x01v";
    assert_eq!(decoder.decode(block, 4096, &mut out), Ok(Decoded::Complete));
    // The same from the table, then new values for the names in it (62 is the newest).
    assert_eq!(decoder.decode(b"\xC1\xC0\xBF\xBE\x0F\x32\x01v\x0F\x31\x01v\x0F\x30\x01v", 4096, &mut out), Ok(Decoded::Complete));
    let valid: Vec<_> = out.iter().map(|field| field.valid).collect();
    assert_eq!(valid, [false, false, false, true, false, false, false, true, false, true, false]);
}

#[test]
fn a_bomb_stays_small() {
    let mut decoder = Decoder::new(4096);
    let mut out = HeaderBlock::default();
    // One entry of almost 4 KiB, then 10,000 references to it.
    let mut block = vec![0x40, 1, b'x', 0x7F, 0xE0, 0x1E];
    block.resize(block.len() + 127 + 3936, b'v');
    block.resize(block.len() + 10_000, 0xBE);
    assert_eq!(decoder.decode(&block, 65_536, &mut out), Ok(Decoded::TooLarge));
    assert_eq!(decoder.table().count(), 1);
    assert!(out.list_size() <= 65_536 && out.len() == 16 && out.retained() <= 140_000, "{}", out.retained());
    // The connection stays usable.
    out.clear();
    assert_eq!(decoder.decode(&[0xBE, 0x82], 65_536, &mut out), Ok(Decoded::Complete));
    assert_eq!(out.len(), 2);
    // What is skipped is judged: entries 1 to 62 are there, and an index of several bytes is not taken for several.
    let bomb = |last: &[u8]| [&block, &[0x81, 0xBD][..], last].concat();
    out.clear();
    assert_eq!(decoder.decode(&bomb(&[0x82]), 65_536, &mut out), Ok(Decoded::TooLarge));
    for last in [&[0x80][..], &[0xC1], &[0xFF], &[0xFF, 0x00], &[0xFF, 0x80, 0x00]] {
        let mut decoder = Decoder::new(4096);
        let expected = if last == [0xFF] { HpackError::Truncated } else { HpackError::InvalidIndex };
        assert_eq!(decoder.decode(&bomb(last), 65_536, &mut HeaderBlock::default()), Err(expected), "{last:x?}");
    }
    // A literal behind them still comes into the table.
    out.clear();
    assert_eq!(decoder.decode(&bomb(b"@yw"), 65_536, &mut out), Ok(Decoded::TooLarge));
    out.clear();
    assert_eq!(decoder.decode(&[0xBE], 65_536, &mut out), Ok(Decoded::Complete));
    assert_eq!(pairs(&out), owned(&[("y", "w")]));
}

#[test]
fn a_list_that_is_too_large_keeps_the_table_in_step() {
    let mut decoder = Decoder::new(4096);
    let mut out = HeaderBlock::default();
    assert_eq!(decoder.decode(b"\x82\x40\x01a\x01b\x40\x01c\x01d\x84", 60, &mut out), Ok(Decoded::TooLarge));
    assert_eq!(pairs(&out), owned(&[(":method", "GET")]));
    out.clear();
    assert_eq!(decoder.decode(b"\xBF\xBE", 4096, &mut out), Ok(Decoded::Complete));
    assert_eq!(pairs(&out), owned(&[("a", "b"), ("c", "d")]));
}

/// Names that meet every case: static, known, prefix classes, look-alikes, unknown.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        ":method",
        ":path",
        ":status",
        "accept",
        "cookie",
        "date",
        "te",
        "audit-id",
        "user-agent",
        "content-length",
        "x-remote-user",
        "x_remote_user",
        "impersonate-user",
        "x_kubernetes_peer_proxied",
        "x-kubernetes-peer-proxied",
        "x-a",
        "x-b",
    ]);
    prop_oneof![4 => known.prop_map(|name| name.as_bytes().to_vec()), 1 => prop::collection::vec(any::<u8>(), 0..60)]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(vec!["", "GET", "/", "200", "a", "b", "text/plain"]).prop_map(|value| value.as_bytes().to_vec()),
        2 => "[ -~]{0,80}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..1500),
    ]
}

/// What happens between two ends of a connection.
#[derive(Clone, Debug)]
enum Step {
    Block(Vec<(Pair, bool)>),
    TableSize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(((name(), value()), prop::bool::weighted(0.1)), 0..20).prop_map(Step::Block),
        1 => prop_oneof![Just(0), Just(4096), 0..600_usize, 0..10_000_usize].prop_map(Step::TableSize),
    ]
}

proptest! {
    /// Sent, decoded, forwarded by a second encoder as a proxy does, decoded again: always the same
    /// list, nothing less secret.
    #[test]
    fn round_trip_over_two_hops(steps in prop::collection::vec(step(), 1..30)) {
        let (mut encoders, mut decoders) = ([Encoder::new(), Encoder::new()], [Decoder::new(4096), Decoder::new(4096)]);
        let (mut wire, mut lists) = (Vec::new(), [HeaderBlock::default(), HeaderBlock::default()]);
        for step in steps {
            let fields = match step {
                Step::TableSize(size) => {
                    encoders.iter_mut().for_each(|encoder| encoder.set_max_table_size(size));
                    continue;
                }
                Step::Block(fields) => fields,
            };
            wire.clear();
            encoders[0].begin(&mut wire);
            for ((name, value), never_indexed) in &fields {
                encoders[0].field(Field { never_indexed: *never_indexed, ..Field::new(name, value) }, &mut wire);
            }
            lists[0].clear();
            prop_assert_eq!(decoders[0].decode(&wire, usize::MAX, &mut lists[0]), Ok(Decoded::Complete));
            wire.clear();
            encoders[1].begin(&mut wire);
            lists[0].iter().for_each(|field| encoders[1].field(field, &mut wire));
            lists[1].clear();
            prop_assert_eq!(decoders[1].decode(&wire, usize::MAX, &mut lists[1]), Ok(Decoded::Complete));

            for list in &lists {
                let want: Vec<Pair> = fields.iter().map(|(pair, _)| pair.clone()).collect();
                prop_assert_eq!(pairs(list), want);
                for (field, (_, never_indexed)) in list.iter().zip(&fields) {
                    prop_assert!(field.never_indexed || !never_indexed);
                    prop_assert_eq!(field.token, Token::of(field.name));
                    prop_assert_eq!(field.valid, valid_name(field.name) && valid_value(field.value));
                }
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let (mut decoder, mut encoder) = (Decoder::new(4096), Encoder::new());
        let (mut out, mut wire) = (HeaderBlock::default(), Vec::new());
        for block in blocks {
            out.clear();
            let outcome = decoder.decode(&block, 1000, &mut out);
            prop_assert!(out.list_size() <= 1000);
            prop_assert!(decoder.table().size() <= 4096);
            if outcome.is_ok() {
                wire.clear();
                out.iter().for_each(|field| encoder.field(field, &mut wire));
            }
        }
    }

    /// Every cut of a valid block is an error or a list that the whole one starts with.
    #[test]
    fn a_cut_block_is_an_error_or_a_prefix(fields in prop::collection::vec((name(), value()), 1..12)) {
        let mut wire = Vec::new();
        let mut encoder = Encoder::new();
        for (name, value) in &fields {
            encoder.field(Field::new(name, value), &mut wire);
        }
        for end in 0..wire.len() {
            let mut out = HeaderBlock::default();
            match Decoder::new(4096).decode(&wire[..end], usize::MAX, &mut out) {
                Ok(_) => prop_assert_eq!(&pairs(&out)[..], &fields[..out.len()]),
                Err(error) => prop_assert_eq!(error, HpackError::Truncated),
            }
        }
    }
}
