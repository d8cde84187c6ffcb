//! A strict reader of HTTP/1.1, written from RFC 9112 and threats.md §1 and from nothing of the engine: which requests an input holds.
//!
//! It is slow, reads whole inputs only, and knows no limits of size.

/// What follows the accepted requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// The next request, or the rest of one, is waited for; or it is broken already and may be refused before it is complete.
    Waits,
    /// A refusal and the end of the connection.
    Refused,
    /// The end of the connection.
    Closed,
    /// Something that the recorder itself would refuse: no input for this test.
    Odd,
}

/// An accepted request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Vec<u8>,
}

/// A part that cannot be read: why.
type Bad = Then;

/// The requests of an input, in order, up to what ends the connection or is not complete.
pub fn read(mut input: &[u8]) -> (Vec<Request>, Then) {
    let mut requests = Vec::new();
    loop {
        match read_one(input) {
            Ok((request, rest, keep_alive)) => {
                requests.push(request);
                input = rest;
                if !keep_alive {
                    return (requests, Then::Closed);
                }
            }
            Err(then) => return (requests, then),
        }
    }
}

fn read_one(input: &[u8]) -> Result<(Request, &[u8], bool), Bad> {
    let (head, rest) = cut_head(input)?;
    let head = Head::read(head)?;
    let (body, rest) = match (head.chunked, head.length) {
        (true, _) => read_chunks(rest)?,
        (false, length) if length > rest.len() => return Err(Then::Waits),
        (false, length) => (rest[..length].to_vec(), &rest[length..]),
    };
    Ok((Request { method: head.method, path: head.path, body }, rest, head.keep_alive))
}

/// The lines up to the empty one. Where there is none, a reader may or may not have noticed yet that something is wrong.
fn cut_head(input: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let begin = input.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(input.len());
    let over = |at: usize| input[at..].starts_with(b"\n\r\n") || input[at..].starts_with(b"\n\n");
    if !(begin..input.len()).any(over) {
        return Err(Then::Waits);
    }
    let end = input.windows(4).position(|window| window == b"\r\n\r\n").ok_or(Then::Refused)?;
    Ok((&input[..end + 2], &input[end + 4..]))
}

struct Head {
    method: String,
    path: String,
    length: usize,
    chunked: bool,
    keep_alive: bool,
}

impl Head {
    fn read(lines: &[u8]) -> Result<Self, Bad> {
        let mut lines = split_lines(lines)?.into_iter();
        let line = lines.next().ok_or(Then::Refused)?;
        let [method, target, version] = line.split(|&byte| byte == b' ').collect::<Vec<_>>()[..] else { return Err(Then::Refused) };
        let old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err(Then::Refused),
        };
        refuse(!is_token(method) || method == b"CONNECT")?;
        let path = read_target(method, target)?;
        let fields = lines.map(read_field).collect::<Result<Vec<_>, _>>()?;
        let all = |name: &str| fields.iter().filter(|(key, _)| key == name).map(|(_, value)| *value).collect::<Vec<_>>();
        let (hosts, lengths, codings) = (all("host"), all("content-length"), all("transfer-encoding"));
        refuse(hosts.len() > 1 || hosts.is_empty() && !old)?;
        refuse(hosts.iter().any(|host| !is_authority(host)))?;
        odd(hosts.iter().any(|host| !host.iter().all(u8::is_ascii_alphanumeric)))?;
        refuse(lengths.len() > 1 || codings.len() > 1 || !codings.is_empty() && (old || !lengths.is_empty()))?;
        refuse(codings.iter().any(|coding| !coding.eq_ignore_ascii_case(b"chunked")))?;
        let length = lengths.first().map_or(Ok(0), |digits| read_length(digits))?;
        let options: Vec<_> = all("connection").iter().flat_map(|value| value.split(|&byte| byte == b',')).map(trim).collect();
        let has = |option: &[u8]| options.iter().any(|other| other.eq_ignore_ascii_case(option));
        refuse(has(b"upgrade") && all("upgrade").iter().any(|offer| !offer.eq_ignore_ascii_case(b"h2c")))?;
        // A recorder that answers HEAD with a body is no server.
        odd(method == b"HEAD")?;
        let keep_alive = !has(b"close") && (!old || has(b"keep-alive"));
        odd(old && has(b"close") && has(b"keep-alive"))?;
        Ok(Self { method: text(method), path, length, chunked: !codings.is_empty(), keep_alive })
    }
}

/// Lines that end with CR LF, and have neither CR nor LF inside.
fn split_lines(mut bytes: &[u8]) -> Result<Vec<&[u8]>, Bad> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| b"\r\n".contains(byte)).ok_or(Then::Refused)?;
        refuse(!bytes[end..].starts_with(b"\r\n"))?;
        lines.push(&bytes[..end]);
        bytes = &bytes[end + 2..];
    }
    Ok(lines)
}

/// Name in lower case, and value.
fn read_field(line: &[u8]) -> Result<(String, &[u8]), Bad> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or(Then::Refused)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    refuse(!is_token(name))?;
    refuse(value.iter().any(|&byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)))?;
    Ok((text(name).to_lowercase(), trim(value)))
}

/// The path of a target in one of its forms (RFC 9112 §3.2).
fn read_target(method: &[u8], target: &[u8]) -> Result<String, Bad> {
    refuse(target.is_empty() || target.iter().any(|&byte| byte <= b' ' || byte == 0x7f || byte == b'#'))?;
    if target == b"*" {
        refuse(method != b"OPTIONS")?;
        return Ok("*".into());
    }
    let lower = target.to_ascii_lowercase();
    let scheme = [&b"https://"[..], b"http://"].iter().find(|scheme| lower.starts_with(scheme)).map_or(0, |scheme| scheme.len());
    let mut path = target;
    if scheme > 0 {
        let rest = &target[scheme..];
        let end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
        refuse(!is_authority(&rest[..end]))?;
        odd(!rest[..end].iter().all(u8::is_ascii_alphanumeric))?;
        path = if end == rest.len() { b"/" } else { &rest[end..] };
    }
    refuse(path[0] != b'/')?;
    let raw = path.split(|&byte| byte == b'?').next().unwrap_or(path);
    let escaped = raw.split(|&byte| byte == b'%').skip(1);
    for after in escaped {
        refuse(after.len() < 2 || !after[..2].iter().all(u8::is_ascii_hexdigit))?;
    }
    refuse(std::str::from_utf8(target).is_err())?;
    odd(!path.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"/%-._?:;,+".contains(&byte)))?;
    Ok(text(path))
}

fn read_length(digits: &[u8]) -> Result<usize, Bad> {
    refuse(digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit))?;
    Ok(text(digits).parse().unwrap())
}

/// A chunked body (RFC 9112 §7.1), and what follows it. A size line is judged byte by byte, trailers when they are complete.
fn read_chunks(mut input: &[u8]) -> Result<(Vec<u8>, &[u8]), Bad> {
    let mut body = Vec::new();
    loop {
        let digits = input.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        refuse(digits > 10 || digits == 0 && !input.is_empty())?;
        let size = usize::from_str_radix(&text(&input[..digits]), 16).unwrap_or(0);
        input = &input[digits..];
        if input.first() == Some(&b';') {
            let end = input.iter().position(|&byte| byte < b' ' && byte != b'\t').ok_or(Then::Waits)?;
            input = &input[end..];
        }
        input = expect(input, b"\r\n")?;
        if size == 0 {
            return Ok((body, read_trailers(input)?));
        }
        if input.len() < size {
            return Err(Then::Waits);
        }
        body.extend(&input[..size]);
        input = expect(&input[size..], b"\r\n")?;
    }
}

fn read_trailers(input: &[u8]) -> Result<&[u8], Bad> {
    if input.starts_with(b"\r\n") {
        return Ok(&input[2..]);
    }
    let end = input.windows(4).position(|window| window == b"\r\n\r\n");
    let bare = input.iter().enumerate().position(|(at, &byte)| byte == b'\n' && (at == 0 || input[at - 1] != b'\r'));
    refuse(bare.is_some_and(|bare| end.is_none_or(|end| bare < end)))?;
    let end = end.ok_or(Then::Waits)?;
    for line in split_lines(&input[..end + 2])? {
        let (name, _) = read_field(line)?;
        let hop = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te", "host", "http2-settings"];
        refuse(name == "content-length" || hop.contains(&name.as_str()))?;
    }
    Ok(&input[end + 4..])
}

fn expect<'a>(input: &'a [u8], wanted: &[u8]) -> Result<&'a [u8], Bad> {
    let have = input.len().min(wanted.len());
    refuse(input[..have] != wanted[..have])?;
    if have < wanted.len() { Err(Then::Waits) } else { Ok(&input[have..]) }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn is_authority(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte))
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| b" \t".contains(byte);
    let begin = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(begin, |last| last + 1);
    &value[begin..end]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refuse(bad: bool) -> Result<(), Bad> {
    if bad { Err(Then::Refused) } else { Ok(()) }
}

fn odd(is_odd: bool) -> Result<(), Bad> {
    if is_odd { Err(Then::Odd) } else { Ok(()) }
}
