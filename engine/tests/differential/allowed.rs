//! The differences that are meant, each with its reason. What is not here fails the test.

use super::Role;
use super::outcome::Verdict;

/// A verdict, as far as it matters.
#[derive(Clone, Copy)]
enum Is {
    Conn(u32),
    Stream(u32),
    Fine,
    Any,
}

use Is::{Any, Conn, Fine, Stream};

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const CLOSED: u32 = 5;
const SIZE: u32 = 6;
const COMPRESSION: u32 = 9;

/// A difference: the steps it shows on, what we do and what h2 does.
struct Difference {
    name: &'static str,
    role: Option<Role>,
    steps: &'static [&'static str],
    ours: Is,
    theirs: Is,
}

const fn both(name: &'static str, steps: &'static [&'static str], ours: Is, theirs: Is) -> Difference {
    Difference { name, role: None, steps, ours, theirs }
}

const fn server(name: &'static str, steps: &'static [&'static str], ours: Is, theirs: Is) -> Difference {
    Difference { name, role: Some(Role::Server), steps, ours, theirs }
}

const fn client(name: &'static str, steps: &'static [&'static str], ours: Is, theirs: Is) -> Difference {
    Difference { name, role: Some(Role::Client), steps, ours, theirs }
}

/// Steps that are a header block, right or wrong.
const HEADS: &[&str] = &[
    "request",
    "field",
    "trailers",
    "trailers-with-pseudo",
    "trailers-without-end",
    "hop-by-hop",
    "te",
    "te-in-trailers",
    "te-other",
    "two-lengths",
    "bad-length",
    "long-length",
    "outer-blanks",
    "late-pseudo",
    "control-in-value",
    "bad-name",
    "bad-value",
    "upper-case-name",
    "unknown-pseudo",
];
const LENGTHS: &[&str] = &[
    "padding-without-length",
    "headers-priority-cut",
    "ping-length",
    "settings-ack-length",
    "settings-length",
    "goaway-length",
    "reset-length",
    "window-update-length",
];
const NO_HPACK: &[&str] = &["not-hpack", "index-0", "index-beyond", "update-too-large", "update-late"];
const BAD_FIELDS: &[&str] = &["bad-name", "bad-value", "upper-case-name", "control-in-value", "unknown-pseudo", "bad-method", "bad-status"];
const STRICT_HEADS: &[&str] = &["fragment-in-path", "other-scheme", "pseudo-missing", "pseudo-of-request", "userinfo"];

const DIFFERENCES: &[Difference] = &[
    // RFC 9113 §4.2, §4.3, §6.5.2 give these their own codes; h2 says PROTOCOL_ERROR.
    both("code of a wrong length", LENGTHS, Conn(SIZE), Conn(PROTOCOL)),
    both("code of what is no HPACK", NO_HPACK, Conn(COMPRESSION), Conn(PROTOCOL)),
    both("code of a window out of range", &["initial-window"], Conn(FLOW_CONTROL), Conn(PROTOCOL)),
    // §6.3: a stream error; for an idle stream, which must not be reset (§6.4), a connection error.
    both("PRIORITY of a wrong length", &["priority-length"], Any, Conn(PROTOCOL)),
    // §6.4: h2 resets idle streams.
    both("PRIORITY on itself of an idle stream", &["priority-on-itself"], Conn(PROTOCOL), Stream(PROTOCOL)),
    // §8.1.1: malformed is a stream error; h2 loses its place in the block.
    both("malformed fields", BAD_FIELDS, Stream(PROTOCOL), Conn(PROTOCOL)),
    // §8.3: what a head must have and must not have; we are stricter (threats.md §1, H14).
    both("malformed pseudo-headers", STRICT_HEADS, Stream(PROTOCOL), Fine),
    // §8.2.1: no blanks around a value; h2 lets them pass, and so does Go (threats.md §1).
    both("blanks around a value", &["outer-blanks"], Stream(PROTOCOL), Fine),
    // RFC 9110 §8.6: one length, of digits; more than 18 of them are no length either.
    both("strange lengths", &["two-lengths", "bad-length", "long-length"], Stream(PROTOCOL), Fine),
    // RFC 9110 §6.5.1: a trailer does not frame the message.
    both("a length in trailers", &["length-in-trailers"], Stream(PROTOCOL), Fine),
    // The same for what is about one hop (RFC 9110 §10.1.4).
    both("te in trailers", &["te-in-trailers"], Stream(PROTOCOL), Fine),
    // RFC 9113 §8.1: no pseudo-headers in trailers; h2 drops them.
    both("pseudo-headers in trailers", &["trailers-with-pseudo", "late-pseudo"], Stream(PROTOCOL), Fine),
    // §6.9: a stream error, and nothing for a closed stream; h2 ends the connection.
    both("WINDOW_UPDATE of 0", &["window-update-0"], Stream(PROTOCOL), Conn(PROTOCOL)),
    both("WINDOW_UPDATE of 0 when closed", &["window-update-0"], Fine, Conn(PROTOCOL)),
    // §6.9.1: a window above 2^31-1 ends the stream; h2 does not look when it has nothing more to send.
    both("window overflow", &["window-overflow"], Stream(FLOW_CONTROL), Fine),
    // §8.4: clients never push, and servers only when allowed; h2 does not look at streams it has reset.
    both("PUSH_PROMISE", &["push-promise"], Conn(PROTOCOL), Fine),
    // RFC 8441 §3 names no error for values above 1, and we do not use the setting.
    both("ENABLE_CONNECT_PROTOCOL of 2", &["connect-protocol"], Fine, Conn(PROTOCOL)),
    // §6.5.3 names no error for an acknowledgement that nobody waits for.
    both("one acknowledgement too many", &["settings-ack"], Fine, Conn(PROTOCOL)),
    // No tunnels: CONNECT, well formed (§8.5) or not, is answered with 405 (threats.md §1, H14).
    server("CONNECT", &["connect", "connect-with-path"], Fine, Any),
    // §5.1, half-closed (remote): a stream error STREAM_CLOSED.
    both("DATA behind the end", &["data"], Stream(CLOSED), Conn(PROTOCOL)),
    both("HEADERS behind the end", HEADS, Stream(CLOSED), Any),
    // §5.1, closed, and §5.1.1: a stream id that was passed over cannot be used any more.
    server("HEADERS of a closed stream", HEADS, Conn(CLOSED), Any),
    // §3.4: the first frame of a server is SETTINGS; h2 does not insist.
    client("no SETTINGS first", &["first-frame"], Any, Any),
    // §6.5.2: a server must not say 1.
    client("ENABLE_PUSH of a server", &["enable-push"], Conn(PROTOCOL), Fine),
    // §8.1: DATA in front of the head makes a malformed response; h2 ends the connection.
    client("DATA without a head", &["data"], Stream(PROTOCOL), Conn(PROTOCOL)),
    // §5.1: frames that may have crossed our reset are ignored; h2 resets again what it has forgotten.
    client("late DATA", &["data"], Fine, Stream(CLOSED)),
    client("late HEADERS", HEADS, Fine, Stream(CLOSED)),
    both("late frames", &["late"], Fine, Any),
    // §8.1: a second final head is malformed, or late as above; h2 takes it for trailers.
    client("a second head", &["second-head"], Stream(PROTOCOL), Any),
    client("a second head behind the end", &["second-head"], Stream(CLOSED), Any),
    client("a second head when closed", &["second-head"], Fine, Any),
    // RFC 9110 §8.6: 204 and 304 have no body, whatever their content-length says; h2 knows that of HEAD only.
    client("content-length without a body", &["body-of-none"], Fine, Stream(PROTOCOL)),
    client("a body where there is none", &["body-of-none"], Stream(PROTOCOL), Fine),
];

/// The name of the difference, if it is one of those.
pub fn find(role: Role, what: &str, ours: &Verdict, theirs: &Verdict) -> Option<&'static str> {
    let fits = |known: &&Difference| {
        known.role.is_none_or(|only| only == role) && known.steps.contains(&what) && known.ours.fits(ours) && known.theirs.fits(theirs)
    };
    DIFFERENCES.iter().find(fits).map(|known| known.name)
}

impl Is {
    fn fits(self, verdict: &Verdict) -> bool {
        match (self, verdict) {
            (Any, _) | (Fine, Verdict::Fine) => true,
            (Conn(code), Verdict::Conn(found)) => code == *found,
            (Stream(code), Verdict::Stream(resets)) => resets.iter().all(|reset| reset.1 == code),
            _ => false,
        }
    }
}
