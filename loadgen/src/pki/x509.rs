//! Subjects with several organisations, which rcgen cannot express: its distinguished name is a map with one value
//! per attribute type, while a Kubernetes user has one O per group.
//!
//! Takes a finished certificate, replaces the subject in its TBSCertificate (RFC 5280 §4.1) and signs it again.
//! Not a general DER library: it knows lengths and the position of one field.

use rcgen::{KeyPair, SigningKey};

use crate::error::Error;

const BIT_STRING: u8 = 0x03;
const UTF8_STRING: u8 = 0x0c;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Whole TLVs, because they never change: id-at-commonName 2.5.4.3 and id-at-organizationName 2.5.4.10.
const OID_COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
const OID_ORGANIZATION: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0a];
/// version, serialNumber, signature, issuer, validity, then subject (RFC 5280 §4.1).
const SUBJECT_INDEX: usize = 5;

/// `certificate` with the subject O=…, …, CN=…, signed again by `issuer_key`, which must have signed it before.
pub(super) fn with_subject(certificate: &[u8], cn: &str, orgs: &[&str], issuer_key: &KeyPair) -> Result<Vec<u8>, Error> {
    let outer = fields(content(certificate)?)?;
    let [tbs, algorithm, _signature] = outer[..] else {
        return Err(malformed());
    };
    let tbs_fields = fields(content(tbs)?)?;
    let subject = subject(cn, orgs);
    let mut new_tbs = Vec::new();
    for (index, field) in tbs_fields.iter().enumerate() {
        new_tbs.extend_from_slice(if index == SUBJECT_INDEX { &subject } else { field });
    }
    let new_tbs = tlv(SEQUENCE, &new_tbs);
    // The first content byte of a BIT STRING counts its unused bits: none.
    let signature = [&[0], &issuer_key.sign(&new_tbs)?[..]].concat();
    Ok(tlv(SEQUENCE, &[&new_tbs[..], algorithm, &tlv(BIT_STRING, &signature)].concat()))
}

/// PEM form (RFC 7468) of a DER certificate.
pub(super) fn certificate_pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    // 48 bytes make one line of 64 characters.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for position in 0..4 {
                let sextet = (bits >> (18 - 6 * position)) & 0x3f;
                let padding = position > group.len();
                pem.push(if padding { '=' } else { char::from(ALPHABET[sextet as usize]) });
            }
        }
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

fn subject(cn: &str, orgs: &[&str]) -> Vec<u8> {
    let attribute = |oid: &[u8], value: &str| {
        let pair = [oid, &tlv(UTF8_STRING, value.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    };
    let mut names: Vec<u8> = orgs.iter().flat_map(|org| attribute(&OID_ORGANIZATION, org)).collect();
    names.extend(attribute(&OID_COMMON_NAME, cn));
    tlv(SEQUENCE, &names)
}

/// Tag, definite length (X.690 §8.1.3), content.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let bytes = content.len().to_be_bytes();
    let significant = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    match (content.len(), significant) {
        (0..=0x7f, []) => out.push(0),
        (0..=0x7f, [short, ..]) => out.push(*short),
        // At most eight length bytes, so the count fits beside the flag.
        (_, long) => {
            out.push(0x80 | long.iter().fold(0, |count, _| count + 1));
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

/// The content of the one TLV that `der` starts with.
fn content(der: &[u8]) -> Result<&[u8], Error> {
    let (head, len) = header(der)?;
    der.get(head..head + len).ok_or_else(malformed)
}

/// The TLVs that `der` is a sequence of, each with its header.
fn fields(mut der: &[u8]) -> Result<Vec<&[u8]>, Error> {
    let mut fields = Vec::new();
    while !der.is_empty() {
        let (head, len) = header(der)?;
        let (field, rest) = der.split_at_checked(head + len).ok_or_else(malformed)?;
        fields.push(field);
        der = rest;
    }
    Ok(fields)
}

/// Length of the header and of the content of a TLV.
fn header(der: &[u8]) -> Result<(usize, usize), Error> {
    let first = *der.get(1).ok_or_else(malformed)?;
    if first < 0x80 {
        return Ok((2, usize::from(first)));
    }
    let count = usize::from(first & 0x7f);
    let bytes = der.get(2..2 + count).filter(|bytes| bytes.len() <= 4).ok_or_else(malformed)?;
    let len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
    Ok((2 + count, len))
}

fn malformed() -> Error {
    Error::Pem(String::from("malformed certificate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_survive_a_round_trip() {
        for len in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let bytes = vec![0x55; len];
            let der = tlv(SEQUENCE, &bytes);
            assert_eq!(content(&der).unwrap(), bytes, "{len}");
            assert_eq!(fields(&der).unwrap().len(), 1);
        }
    }

    #[test]
    fn truncated_input_is_an_error() {
        assert!(content(&[0x30]).is_err());
        assert!(content(&[0x30, 0x05, 0x00]).is_err());
        assert!(fields(&[0x30, 0x82, 0x01]).is_err());
    }

    #[test]
    fn pem_pads_the_last_group() {
        assert!(certificate_pem(b"M").contains("\nTQ==\n"));
        assert!(certificate_pem(b"Ma").contains("\nTWE=\n"));
        assert!(certificate_pem(b"Man").contains("\nTWFu\n"));
    }

    #[test]
    fn subject_has_every_organisation_in_order() {
        let der = subject("alice", &["b", "a"]);
        let attributes = fields(content(&der).unwrap()).unwrap();
        assert_eq!(attributes.len(), 3);
        assert!(attributes[0].ends_with(b"b") && attributes[1].ends_with(b"a") && attributes[2].ends_with(b"alice"));
    }
}
