//! The static table (RFC 7541 Appendix A). Its names are the tokens 1 to 61; here are its values.

use super::Token;

/// One more than the highest index; index 0 is not used.
pub(super) const STATIC_LEN: usize = 62;

/// Tokens by index; 64 long, so that a masked look-up needs no bounds check.
static TOKENS: [Token; 64] = {
    let mut tokens = [Token::OTHER; 64];
    let mut index = 1_u8;
    while (index as usize) < STATIC_LEN {
        tokens[index as usize] = Token::of_static(index);
        index += 1;
    }
    tokens
};

static VALUES: [&[u8]; 64] = {
    let mut values: [&[u8]; 64] = [b""; 64];
    values[2] = b"GET";
    values[3] = b"POST";
    values[4] = b"/";
    values[5] = b"/index.html";
    values[6] = b"http";
    values[7] = b"https";
    values[8] = b"200";
    values[9] = b"204";
    values[10] = b"206";
    values[11] = b"304";
    values[12] = b"400";
    values[13] = b"404";
    values[14] = b"500";
    values[16] = b"gzip, deflate";
    values
};

/// The token of entry `index` (1 to 61).
#[inline]
pub(super) fn token(index: u8) -> Token {
    TOKENS[usize::from(index) % 64]
}

/// The value of entry `index` (1 to 61).
#[inline]
pub(super) fn value(index: u8) -> &'static [u8] {
    VALUES[usize::from(index) % 64]
}

/// The entry that has both the name and the value; 0 when there is none.
#[inline]
pub(super) fn find(token: Token, value: &[u8]) -> u8 {
    let index = token.static_index();
    match token {
        Token::METHOD => among(2..=3, value),
        Token::PATH => among(4..=5, value),
        Token::SCHEME => among(6..=7, value),
        Token::STATUS => among(8..=14, value),
        Token::ACCEPT_ENCODING => among(16..=16, value),
        _ if value.is_empty() => index,
        _ => 0,
    }
}

fn among(mut indices: std::ops::RangeInclusive<u8>, value: &[u8]) -> u8 {
    indices.find(|&index| VALUES[usize::from(index) % 64] == value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found() {
        for index in 1..62 {
            assert!(token(index).name().is_some(), "{index}");
            assert_eq!(find(token(index), value(index)), index);
            assert_eq!(find(token(index), b"no such value"), 0);
        }
        assert_eq!(find(Token::OTHER, b""), 0);
        assert_eq!(find(Token::TE, b""), 0);
        assert_eq!(find(Token::METHOD, b""), 0);
    }
}
